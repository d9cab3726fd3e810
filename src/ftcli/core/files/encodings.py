"""What bytes that are no UTF-8 were probably written in, for a hint that can be pasted."""

from __future__ import annotations

import re

HANGUL = re.compile(rb"[\xb0-\xc8][\xa1-\xfe]")
"""The syllables of KS X 1001, as EUC-KR and CP949 write them. Of Chinese in GBK the same bytes are less than two thirds."""
RUNS = re.compile(rb"(?<![\x80-\xff])[\x80\x85\x91-\x97\xa0-\xd6\xd8-\xf6\xf8-\xff]{1,2}(?![\x80-\xff])")
"""Of CP1252: letters with accents, quotation marks and dashes, one or two between ASCII."""
SHARE = 0.9
ENOUGH = 1 << 16
SHOWN = 20


def utf8_hint(raw: bytes) -> str:
    """What to do about bytes that are no UTF-8: Korean as Windows and Excel save it, or a western text, is recognised."""
    raw = raw[:ENOUGH]
    name = _encoding(raw)
    if name is None:
        return "Convert the file to UTF-8 (iconv), or correct the line."
    text = " ".join(raw.decode(name, "replace").split())
    first = next((place for place, character in enumerate(text) if not character.isascii()), 0)
    return f"It is readable as {name} ({text[max(0, first - 5) :][:SHOWN]!r}). Convert the file: iconv -f {name} -t UTF-8 OLD > NEW"


def _encoding(raw: bytes) -> str | None:
    beyond = sum(byte > 0x7F for byte in raw)
    if not beyond:
        return None
    if 2 * len(HANGUL.findall(raw)) >= SHARE * beyond:
        return "CP949"
    western = sum(map(len, RUNS.findall(raw)))
    return "CP1252" if western >= SHARE * beyond and 3 * beyond <= len(raw) else None
