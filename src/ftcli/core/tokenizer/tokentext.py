"""The text behind rows of ids, compared without decoding a row: each token's bytes once, then arithmetic on whole columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ftcli.core.ragged import Ints, row_hash, to_offsets

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHUNK_TOKENS = 1_000_000
"""Tokens that are worked on together: about 100 MB of arithmetic."""
BASE = np.uint64(0x9E3779B97F4A7C15)
SPACES = re.compile(rb"[\t\n\v\f\r ]+")
ENDS = b" .,;:!?\"'"
"""What a text may end with and be the same to a search for leaks. A bracket is not among them: it ends ":)"."""
FEW_UNKNOWN, LEAST_TOKENS = 0.05, 12
"""Share of unknown tokens up to which a text of so many tokens is told by the others."""
BYTE_FALLBACK = re.compile("<0x([0-9A-F]{2})>")
LEADS = range(0xC3, 0xD6)
"""First bytes of the letters of two bytes that have a case: Latin, Greek, Cyrillic, Armenian."""
Hashes = NDArray[np.uint64]


class TokenText:
    """Texts as numbers: sum of code(byte) × BASE^place, so that a text's number follows from those of its tokens, however it was cut.

    Args:
        pieces: bytes of every token, with a space where a word begins; none for special tokens.
        unknown: id of the token that stands for a text that the vocabulary cannot spell.
    """

    def __init__(self, pieces: list[bytes], unknown: int | None = None) -> None:
        self._unknown, self._unlike = unknown, np.random.default_rng(2)
        folded = [SPACES.sub(b" ", _fold(piece)) if piece else piece for piece in pieces]
        stripped = [piece[1:] if piece[:1] == b" " else piece for piece in folded]
        self.sizes = np.array([[*map(len, folded)], [*map(len, stripped)]], np.int64)
        self._codes = np.random.default_rng(1).integers(1, 2**63, 256, np.uint64) * np.uint64(2) + np.uint64(1)
        self._powers = _powers(int(self.sizes.max(initial=1)))
        self._numbers = np.stack([self._number(folded), self._number(stripped)])
        cores = [[piece.rstrip(ENDS) for piece in some] for some in (folded, stripped)]
        self._core_sizes = np.array([[*map(len, some)] for some in cores], np.int64)
        self._core_numbers = np.stack([self._number(some) for some in cores])
        self._begins = np.fromiter((piece[:1] == b" " for piece in folded), np.bool_, len(folded))
        self._ends = np.fromiter((piece[-1:] == b" " for piece in folded), np.bool_, len(folded))
        self._blank = self.sizes[0] == 0
        self._leads = np.fromiter((piece[-1] if piece and piece[-1] in LEADS else 0 for piece in folded), np.uint8, len(folded))
        self._follows = np.fromiter((piece[0] if piece and 0x80 <= piece[0] < 0xC0 else 0 for piece in folded), np.uint8, len(folded))

    @classmethod
    def of(cls, pieces: list[bytes], unknown: int | None) -> TokenText:
        """Of what `spelled` gives. The unknown token stands for a text, and gets a byte that no other token has."""
        if unknown is not None and unknown < len(pieces):
            pieces = [*pieces[:unknown], b" \xff", *pieces[unknown + 1 :]]
        return cls(pieces, unknown)

    def bytes_a_token(self, values: NDArray[np.int32]) -> float:
        """Mean over tokens of the data."""
        known = values[(values >= 0) & (values < len(self._begins))]
        return float(self.sizes[0, known].mean()) if len(known) else 5.0

    def hashes(self, values: NDArray[np.int32], lengths: NDArray[np.int64]) -> tuple[Hashes, Hashes]:
        """64 bits of each row's text, the same for texts that differ in case or in spaces only (how many, and around the text); and 64 bits that are
        the same, too, for texts that differ in the punctuation of their ends, and where an unknown token is like another as `unlike` allows it.

        A row without text, or with ids that are no tokens, gets the hash of its ids; one with an unknown token a number that no other has: what it says is
        not known, even where another row has the same ids.
        """
        exact = row_hash(values, lengths, 1)
        loose, offsets = exact.copy(), to_offsets(lengths)
        step = max(1, int(CHUNK_TOKENS / max(1.0, float(lengths.mean()) if len(lengths) else 1.0)))
        for first in range(0, len(lengths), step):
            rows = slice(first, first + step)
            ids = values[offsets[first] : offsets[min(first + step, len(lengths))]]
            if len(ids) and ids.min() >= 0 and ids.max() < len(self._begins):
                for found, (numbers, sizes) in zip((exact, loose), self._texts(ids, lengths[rows]), strict=True):
                    found[rows] = np.where(sizes > 0, numbers, found[rows])
        for found, alone in ((exact, self.unspelled(values, lengths)), (loose, self.unlike(values, lengths))):
            found[alone] = self._unlike.integers(0, 2**64, int(alone.sum()), np.uint64)
        return exact, loose

    def unspelled(self, values: NDArray[np.int32], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """By row, whether it has an unknown token."""
        found = np.zeros(len(lengths), np.bool_)
        if self._unknown is not None:
            found[np.repeat(np.arange(len(lengths)), lengths)[values == self._unknown]] = True
        return found

    def unlike(self, values: NDArray[np.int32], lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """By row, whether it has so many unknown tokens that other rows with the same ids may be other texts."""
        found = np.zeros(len(lengths), np.bool_)
        if self._unknown is not None and len(places := np.flatnonzero(values == self._unknown)):
            rows = np.searchsorted(to_offsets(lengths)[1:], places, "right")
            counts = np.bincount(rows, minlength=len(lengths))
            found = (counts > FEW_UNKNOWN * lengths) | ((counts > 0) & (lengths < LEAST_TOKENS))
        return found

    def _texts(self, ids: NDArray[np.int32], lengths: NDArray[np.int64]) -> tuple[tuple[Hashes, Ints], tuple[Hashes, Ints]]:
        """Number and bytes of each row's text, with single spaces between words and none around them; the same without the punctuation of its end."""
        rows = np.repeat(np.arange(len(lengths)), lengths)
        if self._blank[ids].any():  # special tokens stand for no text
            real = ~self._blank[ids]
            ids, rows = ids[real], rows[real]
            lengths = np.bincount(rows, minlength=len(lengths)).astype(np.int64)
        offsets = to_offsets(lengths)
        if not len(ids):
            none = np.zeros(len(lengths), np.uint64), np.zeros(len(lengths), np.int64)
            return none, none
        after_space = np.ones(len(ids), np.bool_)
        after_space[1:] = self._ends[ids[:-1]]
        after_space[offsets[:-1][lengths > 0]] = True
        which = (after_space & self._begins[ids]).astype(np.int8)
        sizes = self.sizes[which, ids]
        ends = to_offsets(sizes)
        places = ends[:-1] - ends[offsets[:-1]][rows]
        total = ends[offsets[1:]] - ends[offsets[:-1]]
        if len(self._powers) <= total.max():
            self._powers = _powers(2 * int(total.max()))
        sums = np.zeros(len(ids) + 1, np.uint64)
        terms = self._numbers[which, ids] * self._powers[places]
        self._fold_divided(terms, ids, rows, places, sizes)
        np.cumsum(terms, dtype=np.uint64, out=sums[1:])
        numbers = sums[offsets[1:]] - sums[offsets[:-1]]
        last = ids[np.maximum(offsets[1:] - 1, 0)]
        trailing = (lengths > 0) & (total > 0) & self._ends[last]
        numbers[trailing] -= self._codes[0x20] * self._powers[total[trailing] - 1]
        total = total - trailing
        place = np.where(self._core_sizes[which, ids] > 0, np.arange(len(ids)), -1)
        core = np.maximum.accumulate(place)[np.maximum(offsets[1:] - 1, 0)]  # the last token that is more than an end
        some = np.flatnonzero((lengths > 0) & (core >= offsets[:-1]))
        core = core[some]
        kind = which[core], ids[core]
        cores, core_total = numbers.copy(), total.copy()
        cores[some] = sums[core + 1] - sums[offsets[some]] - (self._numbers[kind] - self._core_numbers[kind]) * self._powers[places[core]]
        core_total[some] = places[core] + self._core_sizes[kind]
        return (numbers ^ total.astype(np.uint64) * BASE, total), (cores ^ core_total.astype(np.uint64) * BASE, core_total)

    def _fold_divided(self, terms: Hashes, ids: NDArray[np.int32], rows: Ints, places: Ints, sizes: Ints) -> None:
        """Put letters of two bytes that two tokens share into one case."""
        at = np.flatnonzero(self._leads[ids[:-1]])
        at = at[(rows[at] == rows[at + 1]) & (self._follows[ids[at + 1]] > 0)]
        lead, follow = self._leads[ids[at]], self._follows[ids[at + 1]]
        new = TWO_BYTES[lead, follow]
        terms[at] += (self._codes[new[:, 0]] - self._codes[lead]) * self._powers[places[at] + sizes[at] - 1]
        terms[at + 1] += (self._codes[new[:, 1]] - self._codes[follow]) * self._powers[places[at + 1]]

    def _number(self, pieces: list[bytes]) -> Hashes:
        flat = np.frombuffer(b"".join(pieces), np.uint8)
        offsets = to_offsets(np.fromiter(map(len, pieces), np.int64, len(pieces)))
        places = np.arange(len(flat)) - np.repeat(offsets[:-1], np.diff(offsets))
        sums = np.zeros(len(flat) + 1, np.uint64)
        np.cumsum(self._codes[flat] * self._powers[places], dtype=np.uint64, out=sums[1:])
        difference: Hashes = sums[offsets[1:]] - sums[offsets[:-1]]
        return difference


def unknown_of(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The unknown token; None where there is none, or where it is EOS, BOS or PAD as well (GPT-2), so that a row may have it for another reason."""
    others = {tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id}
    return None if tokenizer.unk_token_id in others else tokenizer.unk_token_id


def spelled(tokenizer: PreTrainedTokenizerBase, used: NDArray[np.bool_] | None = None) -> list[bytes] | None:
    """Bytes that every id of a fast tokenizer stands for, with a space where a word begins; none for special tokens. 0.3 s for 150,000 ids.

    They are read from the vocabulary and not decoded: some decoders cannot spell tokens of their own (deepseek-coder's added "Á" comes back as U+FFFD).
    None for a slow tokenizer.

    Args:
        used: by id, which are wanted; the others get no bytes.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    wanted = np.arange(len(tokenizer)) if used is None else np.flatnonzero(used[: len(tokenizer)])
    tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(wanted.tolist())]
    kind = repr(backend.decoder)
    if "ByteLevel" in kind:
        found = _byte_level(tokens)
    elif "WordPiece" in kind:
        found = [(token[2:] if token.startswith("##") else f" {token}").encode() for token in tokens]
    else:
        found = [_metaspace(token) for token in tokens]
    pieces = [b""] * len(tokenizer)
    for number, piece in zip(wanted.tolist(), found, strict=True):
        pieces[number] = piece
    for number, token in tokenizer.added_tokens_decoder.items():  # written as they are, whatever the alphabet
        if number < len(pieces):
            pieces[number] = token.content.encode()
    for special in tokenizer.all_special_ids:
        if special < len(pieces):
            pieces[special] = b""
    return pieces


def _fold(piece: bytes) -> bytes:
    """A piece in one case, letter by letter, so that it does not matter where a text was cut; a divided letter stays what it is."""
    if piece.isascii():
        return piece.lower()
    return piece.decode("utf-8", "surrogateescape").casefold().encode("utf-8", "surrogateescape")


def _two_bytes() -> NDArray[np.uint8]:
    """[first byte, second byte] → the two bytes of the letter in one case."""
    table = np.stack(np.meshgrid(np.arange(256), np.arange(256), indexing="ij"), 2).astype(np.uint8)
    for lead in LEADS:
        for follow in range(0x80, 0xC0):
            folded = _fold(bytes([lead, follow]))
            if len(folded) == 2:
                table[lead, follow] = list(folded)
    return table


TWO_BYTES = _two_bytes()


def _powers(count: int) -> Hashes:
    factors = np.full(count + 1, BASE, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _byte_level(tokens: list[str]) -> list[bytes]:
    """Tokens in GPT-2's alphabet, in which every byte has a printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet |= {chr(256 + number): byte for number, byte in enumerate(byte for byte in range(256) if byte not in printable)}
    table = str.maketrans({character: chr(byte) for character, byte in alphabet.items()})
    pieces = []
    for token in tokens:
        try:
            pieces.append(token.translate(table).encode("latin-1"))
        except UnicodeEncodeError:  # an added token, written as it is
            pieces.append(token.encode())
    return pieces


def _metaspace(token: str) -> bytes:
    fallback = BYTE_FALLBACK.fullmatch(token)
    return bytes([int(fallback[1], 16)]) if fallback else token.replace("▁", " ").encode()
