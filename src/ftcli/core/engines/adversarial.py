"""Strings made to show that two tokenizers differ: every Unicode scalar value in context, and texts that break engines."""

from __future__ import annotations

import hashlib
import random
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

RUN = 32
"""Characters in one string of the sweep: few enough to trace a difference, enough to keep the sweep at 39,000 strings."""
JOINED = 256
"""Characters in one string where each has ids of its own, whatever stands beside it."""
LONG = 100_000
FULL_CONTEXTS = 2_000
"""Added tokens that get every context; the others (Gemma has 6,000) get one each."""

NEWER = """
105d2 307 105da 307 11382 113c9 11384 113bb 1138b 113c2 11390 113c9 113c2 113c2 113c2 113b8 1611e 1611e 1611e 16129 1611e 1611f
16129 1611f 1611e 16120 16121 1611f 16122 1611f 16121 16120 16d67 16d67 16d63 16d67 16d69 16d67
"""
"""Pairs that NFC joins since Unicode 16, which Python's tables may not know."""


@cache
def composing() -> tuple[dict[str, str], dict[str, str]]:
    """Characters that NFC joins: mark → those that it joins, and character → the marks that join it."""
    before: defaultdict[str, str] = defaultdict(str)
    after: defaultdict[str, str] = defaultdict(str)
    newer = [chr(int(code, 16)) for code in NEWER.split()]
    pairs = set(zip(newer[::2], newer[1::2], strict=True))
    for code in range(0x2_0000):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and "<" not in parts[0]:
            base, mark = (chr(int(part, 16)) for part in parts)
            if unicodedata.normalize("NFC", base + mark) == chr(code):
                pairs.add((base, mark))
    for base, mark in sorted(pairs):
        before[mark] += base
        after[base] += mark
    return before, after


def _composed(run: str) -> str:
    after = composing()[1]
    return "".join(f" {character}{mark}" for character in run for mark in after.get(character, "") + "\u11a8")


CONTEXTS: dict[str, Callable[[str], str]] = {
    # Two spaces tell white space, 's and 1…11 letters and digits from the rest, the marks (classes 230 and 220, which do not join q)
    # combining classes. gigatoken 0.10.0 takes 4,748 letters newer than its tables for symbols: only 's shows it.
    "word": lambda run: "".join(f"  {c}'s 1{c}11q\u0301{c}\u0316b" for c in run),
    "letter": lambda run: " " + "'s ".join(run) + "'s",
    "spaced": lambda run: " " + " ".join(run),
    "bare": lambda run: run,
    # gigatoken 0.10.0 and splintr 0.22.0 join 20 pairs that tokenizers 0.23.3 does not know to be one character
    "composed": _composed,
}
"""How a run of characters becomes a string. But for "bare", each stands alone in it, so that an unknown neighbour does not hide it."""

_ALIKE = ((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xE000, 0xF900), (0x17000, 0x18D00))
"""Ideographs, Hangul syllables, private use: large blocks of one kind, for which the letter test is enough."""
_RARE = ((0x20000, 0x40000), (0xE0000, 0xF0000))
"""Planes 2 and 3, where new ideographs appear, and 14."""
_EMPTY = ((0x40000, 0xE0000), (0xF0000, 0x110000))
"""Planes without characters, and private ones."""
_FIRST = ((0, 0x3400), (0xF900, 0x11000))
"""Scripts and signs that texts begin with: splintr 0.22.0 with UnicodeScripts differs on unassigned ones at the beginning of a text only."""
_SURROGATES = (0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class Run:
    """Characters in one context; a difference is traced to one of them by leaving others out."""

    context: str
    characters: str

    @property
    def text(self) -> str:
        return CONTEXTS[self.context](self.characters)


def corpus_version() -> str:
    """Changes whenever this file does, so that a proof over an older corpus is not taken for one over this."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


def sweep(unknown: bool) -> list[Run]:
    """Every Unicode scalar value at least once.

    Args:
        unknown: the tokenizer has characters that it cannot tell apart, so that in planes without characters, too, each must stand alone.
    """
    edges = [0, *(edge for block in sorted((*_ALIKE, _SURROGATES)) for edge in block), 0x20000]
    runs = [Run("word", run) for run in _runs(zip(edges[::2], edges[1::2], strict=True))]
    runs += [Run("letter", run) for run in _runs((*_ALIKE, *_RARE))]
    runs += [Run("spaced", run) for run in _runs(_EMPTY)] if unknown else [Run("bare", run) for run in _runs(_EMPTY, JOINED)]
    runs += [Run("bare", run) for run in _runs(((0, _SURROGATES[0]), (_SURROGATES[1], 0x20000)))]
    runs += [Run("bare", run) for run in _runs(_FIRST, 1)]
    bases = "".join(sorted(composing()[1]))
    runs += [Run("composed", bases[start : start + RUN]) for start in range(0, len(bases), RUN)]
    return runs


def _runs(ranges: Iterable[tuple[int, int]], size: int = RUN) -> Iterator[str]:
    for start, stop in ranges:
        for first in range(start, stop, size):
            yield "".join(map(chr, range(first, min(first + size, stop))))


def texts(added_tokens: Sequence[str], vocabulary: Sequence[str]) -> list[str]:
    """Adversarial texts for one tokenizer.

    Args:
        added_tokens: texts of its added and special tokens.
        vocabulary: text of every token; all of them occur in the result.
    """
    return [*_fixed(), *_around(added_tokens), *_joined(vocabulary), *mixed(added_tokens)]


WORDS = tuple(
    """
    the The THE don't DON'T we'll it's I'VE naïve Straße ﬁne e-mail snake_case camelCaseHTTP x86_64 한국어 안녕하세요 ㅋㅋㅋ 뷁 값이 日本語
    中文 テスト ﾃｽﾄ русский Ελληνικά עברית العربية हिन्दी ไทย 0 7 42 100 2024 1,234.56 1e-10 ٣٤ ½ ① Ⅳ x² 3.14159265358979 ! ... ?! -- —— …
    «» “” ¿ () []{} <> </s> &amp; \\n // #@$%^ https://a.b/c?d=e&f=1 `` '' 😀 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇰🇷 🇰 1️⃣ ❤️ ☺ 🫨 e\u0301 é
    a\u0323\u0307 a\u0307\u0323 \u1100\u1161\u11a8 가\u11a8 \u0301 Å \u212b ﬀ ①\u0338
    """.split()  # noqa: SIM905 - one line, not one a word
)
SPACES = tuple(" _  _   _\t_\n_\n\n_\r\n_\r_ \n_\n _\u00a0_\u3000_\u2003_\u200b_\u2028_\u0085_\ufeff_\v_\f".split("_"))  # noqa: SIM905
ODD = tuple("\0_\x01_\x1c_\x7f_\u00ad_\u200d_\u200e_\u202e_\ufe0f_\ufffd_\uffff_\ue000_\U000e0001_\U0010ffff_\u2581_Ġ_Ċ_##".split("_"))  # noqa: SIM905
UNKNOWN = "\U0010ffff"
"""A character that no vocabulary holds: splintr 0.22.0 does not join its unknown token with the <unk> that Nmt makes of <u\\x18nk>."""
PARTED = 500
"""Tokens of which each is tried with a letter inside."""
DROPPED = "뷁ж"
"""Letters between those of a token: splintr 0.22.0 does not merge what stands on both sides of a letter that the vocabulary drops."""
ALPHABETS = ("abcdefghijklmnopqrstuvwxyz", "0123456789", "가각간갇갈감갑값강나다라마바", "!?.,-_=+*#'\"", " \t\n\r\u00a0", "あいアイ漢字語")


def _fixed() -> Iterator[str]:
    yield ""
    for piece in (*WORDS, *SPACES, *ODD):
        for form in ("NFC", "NFD", "NFKC"):
            normal = unicodedata.normalize(form, piece)
            yield from (normal, f" {normal}", f"{normal} ", f"  {normal}  ", f"a{normal}b", normal * 3, f"\n{normal}\n", normal.upper())
    for piece in (*SPACES, *ODD, "!", "1", "a", "-", "'", "가", "ㅋ", "語", "😀", "e\u0301", "\u0301"):
        yield from (piece * count for count in (2, 3, 4, 5, 8, 16, 17, 64, 100, 101, 200, 1000))
        yield from (f"a{piece * count}b" for count in (2, 3, 7, 31, 128))
    rng = random.Random(3)
    yield "a" * (10 * LONG)
    yield "가나다라" * (LONG // 12)
    yield from ((character * LONG)[:LONG] for character in " \n.")
    yield "ab 12!\n가 " * (LONG // 12)
    for alphabet in ALPHABETS:
        yield "".join(rng.choices(alphabet, k=LONG // 10))
        yield from ("".join(rng.choices(alphabet, k=rng.randint(1, 40))) for _ in range(300))


def _around(tokens: Sequence[str]) -> Iterator[str]:
    """Added tokens inside words, next to white space, doubled, cut, in other cases and next to each other."""
    for token in tokens[FULL_CONTEXTS:]:
        yield f"x{token} y"
    tokens = tokens[:FULL_CONTEXTS]
    for token in tokens:
        yield from (
            token,
            f"a{token}b",
            f"a {token} b",
            f"  {token}  ",
            f"한{token}국",
            f"1{token}1",
            f"_{token}_",
            f"<{token}>",
            f"{token}.",
        )
        yield from (f"\n{token}\n", f"e\u0301{token}\u0301", token * 2, f"{token} {token}", f"x{token}{token} y", token[:-1], token[1:])
        yield from (
            f"{token[:-1]} {token[-1:]}",
            token.upper(),
            token.lower(),
            f"a {token.title()}\tb",
            unicodedata.normalize("NFD", token),
        )
    for token in tokens[:500]:
        yield from _disguised(token)
    for one, other in pairwise(tokens[:500]):
        yield f"{one}{other} {one} {other}"
    for token in tokens[:50]:
        yield from (f"a{space}{token}{space}b" for space in SPACES)


def _disguised(token: str) -> Iterator[str]:
    """Texts that only a normaliser turns into the token, and texts that hold it until a normaliser takes it apart.

    gigatoken 0.10.0 and splintr 0.22.0 look for added tokens before Qwen's NFC: they find <x> in <x and U+0338, which is <x≯ afterwards.
    """
    before, after = composing()
    yield from (f"a{token}{mark}b" for mark in after.get(token[-1:], "") + "\u1161\u11a8")
    yield from (f"a{base}{token}b" for base in before.get(token[:1], "") + "\u1100")
    alike = look_alikes()
    for turn in range(3):
        other = "".join(others[turn % len(others)] if (others := alike.get(character)) else character for character in token)
        yield from (other, f"{UNKNOWN}{other}{UNKNOWN}")
    for removed in "\0\x18\u00ad\u200b\u200d\ufffd\u0301\u00a0":
        parted = f"{token[:2]}{removed}{token[2:]}"
        yield from (f"a {parted} b", f"{UNKNOWN}{parted}{UNKNOWN}")


@cache
def look_alikes() -> dict[str, str]:
    """Characters that NFKC, lower case or both turn into another one, by that one."""
    found: defaultdict[str, str] = defaultdict(str)
    for code in range(0x80, 0x1_0000):
        character = chr(code)
        for plain in {unicodedata.normalize("NFKC", character), character.lower()} - {character}:
            if len(plain) == 1:
                found[plain] += character
    return found


def _joined(vocabulary: Sequence[str]) -> Iterator[str]:
    """Every token's text, next to other tokens with and without a space: what merges, ignored merges and equal scores decide; some with a letter inside."""
    rng = random.Random(5)
    for start in range(0, len(vocabulary), 16):
        yield "".join(text + rng.choice(("", " ")) for text in vocabulary[start : start + 16])
    for text in rng.sample(vocabulary, min(len(vocabulary), PARTED)):
        yield from (letter.join(text) for letter in DROPPED)


def mixed(tokens: Sequence[str]) -> Iterator[str]:
    """4,000 texts of words, white space, odd characters and these tokens."""
    rng = random.Random(7)
    pieces = (*WORDS, *WORDS, *SPACES, *SPACES, *SPACES, *ODD, *tokens[:40])
    for _ in range(4_000):
        yield "".join(rng.choices(pieces, k=rng.randint(2, 24)))
