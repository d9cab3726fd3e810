"""What the tokens of a few rows say, in marks that lose nothing (`ftcli.core.tokenizer.visible_text`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftcli.core.tokenizer.tokentext import spelled
from ftcli.core.tokenizer.visible_text import spelled_out, visible

NOTHING, UNKNOWN = "‹nothing›", "‹no token›"
"""A token without text; an id that the tokenizer does not have."""


class Spelling:
    """
    Args:
        ids: all that will be asked for; nothing else of the vocabulary is looked up.
    """

    def __init__(self, tokenizer: Any, ids: NDArray[np.int32]) -> None:
        known = [number for number in np.unique(ids).tolist() if 0 <= number < max(len(tokenizer), _end(tokenizer))]
        tokens = dict(zip(known, tokenizer.convert_ids_to_tokens(known), strict=True))
        self._tokens = {number: token for number, token in tokens.items() if token is not None}
        added = tokenizer.added_tokens_decoder
        self._special = {number for number in known if number in added and added[number].special} | {*tokenizer.all_special_ids}
        self._bytes = _bytes_of(tokenizer, self._tokens)

    def is_special(self, number: int) -> bool:
        return number in self._special

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Of the tokens of one document, in order: a character may lie in several of them."""
        found: list[str] = []
        for plain, group in groupby(ids, lambda number: number in self._bytes and number not in self._special):
            part = list(group)
            if plain:
                said = spelled_out([self._bytes[number] for number in part])
                found += [text or NOTHING for text in said]
            else:
                found += [visible(self._tokens[number]) or NOTHING if number in self._tokens else UNKNOWN for number in part]
        return found


def _end(tokenizer: Any) -> int:
    """One more than the largest id, which may be more than the number of tokens."""
    return max(tokenizer.added_tokens_decoder, default=-1) + 1


def _bytes_of(tokenizer: Any, tokens: Iterable[int]) -> dict[int, bytes]:
    """Bytes by id; none for tokens that are shown as the vocabulary writes them (WordPiece's ## says more than a space that the text may not have)."""
    if type(tokenizer).__name__ == "ByT5Tokenizer":  # its tokens are bytes, written as the Latin letters of the same number
        return {number: bytes([number - tokenizer.offset]) for number in tokens if 0 <= number - tokenizer.offset < 256}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or "WordPiece" in repr(backend.decoder):
        return {}
    used = np.zeros(len(tokenizer), np.bool_)
    used[[number for number in tokens if number < len(used)]] = True
    pieces = spelled(tokenizer, used) or []
    return {number: pieces[number] for number in tokens if number < len(pieces)}
