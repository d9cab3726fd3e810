"""Text that was read in another encoding than it was written in, found by what only such text has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

REPLACEMENT = "\ufffd"
_WINDOWS = {ord(character): byte for byte in range(0x80, 0xA0) for character in [bytes([byte]).decode("cp1252", "ignore")] if character}
"""cp1252's signs as the bytes that they were; bytes that it leaves out stand as control characters, as latin-1 has them."""
_UTF8 = re.compile("[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_HIGH = re.compile("[\x80-\xff]")
_KOREAN = re.compile("(?:[\xb0-\xc8][\xa1-\xfe]){3,}")
"""Three Hangul of KS X 1001 in a row, byte by byte."""
_LEADS = re.compile("[ìíëê]")
_FOREIGN = re.compile("[^\x00-\x7f]{4,}")
COVERED = 0.7
"""Share of a text's signs above ASCII that must be parts of UTF-8 sequences: in sound French or German most stand alone."""
DENSE = 0.15
"""Share of ì í ë ê, with which every Hangul's UTF-8 begins, among all letters; the most in sound text is Vietnamese with about 4 %."""
CODECS = ("cp949", "cp1251", "gbk")
MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Damage:
    """Rows that are damaged, by what happened to them."""

    utf8_as_latin: list[int]
    """UTF-8 read as cp1252 or latin-1: "ì•ˆë…•", "Ã©"."""
    korean_as_latin: list[int]
    """EUC-KR read as cp1252 or latin-1: "¾È³ç"."""
    utf8_as_other: list[int]
    """UTF-8 read as cp949, cp1251 or GBK: "РїСЂ"."""
    replaced: list[int]
    """U+FFFD in the text, where a decoder gave up; characters that truncation cut must be left out before."""

    def all(self) -> list[int]:
        return sorted({*self.utf8_as_latin, *self.korean_as_latin, *self.utf8_as_other, *self.replaced})


def find_damage(texts: Sequence[str], *, spaced: bool = False) -> Damage:
    """Look at the first `MOST_CHARACTERS` of every text: 3 to 10 µs each.

    Args:
        spaced: the texts are decoded WordPiece tokens, which have spaces around every sign.
    """
    found = Damage([], [], [], [])
    for row, whole in enumerate(texts):
        text = whole[:MOST_CHARACTERS]
        if text.isascii():
            continue
        if REPLACEMENT in text:
            found.replaced.append(row)
        if spaced:
            text = text.replace(" ", "")
        mapped = text.translate(_WINDOWS)
        high = len(_HIGH.findall(mapped))
        if high and _is_utf8_as_latin(text, mapped, high):
            found.utf8_as_latin.append(row)
        elif high >= 6 and sum(map(len, _KOREAN.findall(mapped))) >= COVERED * high:
            found.korean_as_latin.append(row)
        elif any(_is_utf8_as(codec, text) for codec in CODECS):
            found.utf8_as_other.append(row)
    return found


def repaired(text: str) -> str | None:
    """The text as it was before UTF-8 was read as cp1252 or latin-1, as far as it can be told."""
    mapped = text.translate(_WINDOWS)
    mended = _UTF8.sub(lambda match: _decoded(match[0]), mapped)
    return mended if mended != mapped else None


def _is_utf8_as_latin(text: str, mapped: str, high: int) -> bool:
    sequences = _UTF8.findall(mapped)
    if sequences and sum(map(len, sequences)) >= COVERED * high:
        characters = {_decoded(sequence) for sequence in sequences} - {REPLACEMENT}
        if len(sequences) >= 3 and sum(map(_is_common, characters)) >= COVERED * len(characters):
            return True
        return bool(characters) and all(map(_is_western, characters))
    leads = len(_LEADS.findall(text))
    return leads >= 4 and leads >= DENSE * sum(not character.isspace() for character in text)


def _decoded(sequence: str) -> str:
    try:
        return sequence.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        return REPLACEMENT


def _is_western(character: str) -> bool:
    """A letter or sign of Western Europe: "CAFÉ…" and "voilà »" in sound text make others."""
    code = ord(character)
    return 0xA0 <= code <= 0xFF or 0x2013 <= code <= 0x2026 or code in {0x152, 0x153, 0x20AC, 0x2122}


def _is_common(character: str) -> bool:
    """Of a script that is written today, or a usual sign: random bytes of sound text decode to anything."""
    code = ord(character)
    return (
        0xA1 <= code < 0x600  # Latin, Greek, Cyrillic, Armenian, Hebrew
        or 0x600 <= code < 0x700
        or 0x900 <= code < 0x1000
        or 0x1E00 <= code < 0x2700
        or 0x3000 <= code < 0x3400
        or 0x4E00 <= code < 0xA000
        or 0xAC00 <= code < 0xD7A4
        or 0xFF00 <= code < 0xFFF0
        or 0x1F000 <= code < 0x1FB00
    )


def _is_utf8_as(codec: str, text: str) -> bool:
    """Whether a run of signs above ASCII is UTF-8 when it is written in `codec`; sound text practically never is."""
    for run in _FOREIGN.findall(text):
        try:
            before = run.encode(codec).decode("utf-8")
        except UnicodeError:
            continue
        if len(before) >= 3 and all(map(_is_common, before)):
            return True
    return False
