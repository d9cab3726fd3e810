"""Text that can be checked by eye: white space, invisible characters and bytes that are no whole character get marks, and every mark means one thing."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

WHITE = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}
BETWEEN = "│"
"""Between two tokens."""
LEARNED = ("⟦", "⟧")
SPECIAL = ("⟪", "⟫")
CODE = ("‹", "›")
"""Around a character's number (‹U+200B›), or around bytes (‹EB B0›, and ‹B0=배› where they complete a character)."""
CARRIER = "◌"
"""Before a combining mark that begins a token, which would sit on what stands before it."""
RESERVED = frozenset([*WHITE.values(), BETWEEN, *LEARNED, *SPECIAL, *CODE, CARRIER])
"""Marks; where the text itself has one, it is written as its number."""
UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"})
"""Categories of characters that a reader does not see, or that drive the terminal."""


def visible(text: str) -> str:
    """
    >>> visible("a b\\u200b\\n")
    'a·b‹U+200B›↵'
    """
    found = [_visible(character) for character in text]
    if text and unicodedata.category(text[0]).startswith("M"):
        found.insert(0, CARRIER)
    return "".join(found)


def _visible(character: str) -> str:
    if character in WHITE:
        return WHITE[character]
    if character in RESERVED or unicodedata.category(character) in UNSEEN:
        return f"{CODE[0]}U+{ord(character):04X}{CODE[1]}"
    return character


def spelled_out(pieces: Sequence[bytes]) -> list[str]:
    """What each of some neighbouring pieces of one UTF-8 text says. A character that lies in several pieces is given in bytes, and named in the piece
    that completes it; bytes that are no character stay bytes.

    >>> spelled_out([b"a ", "배".encode()[:1], "배".encode()[1:] + b"!"])
    ['a·', '‹EB›', '‹B0 B0=배›!']
    """
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    found: list[list[tuple[bytes, str]]] = [[] for _ in pieces]  # (bytes of no whole character here, or text)
    at = 0
    for start, stop, character in _characters(b"".join(pieces)):
        while ends[at + 1] <= start:
            at += 1
        if character and stop <= ends[at + 1]:
            found[at].append((b"", character))
            continue
        for number in range(at, len(pieces)):
            low, high = max(start, ends[number]), min(stop, ends[number + 1])
            if low >= stop:
                break
            if high > low:
                found[number].append((pieces[number][low - ends[number] : high - ends[number]], character if high == stop else ""))
    return [_joined(parts) for parts in found]


def _joined(parts: Sequence[tuple[bytes, str]]) -> str:
    """Args:
    parts: (bytes, the character that they complete or "") or (no bytes, a character), in order.
    """
    out, text, raw = "", "", b""
    for data, character in parts:
        if data:
            out, text, raw = out + visible(text), "", raw + data
            if not character:
                continue
        if raw:
            out += _bytes(raw, character if data else "")
            raw = b""
        if not data:
            text += character
    return out + visible(text) + (_bytes(raw, "") if raw else "")


def _bytes(raw: bytes, character: str) -> str:
    name = f"={_visible(character).strip(''.join(CODE))}" if character else ""
    return f"{CODE[0]}{raw.hex(' ').upper()}{name}{CODE[1]}"


def _characters(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Start, stop and character; a byte that belongs to none stands alone, with ""."""
    at = 0
    while at < len(data):
        first = data[at]
        size = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        try:
            character = data[at : at + size].decode()
        except UnicodeDecodeError:
            character, size = "", 1
        yield at, at + size, character
        at += size


def columns_of(text: str) -> int:
    """Columns of a terminal: two for a wide character, none for a combining mark."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.category(character) in {"Mn", "Me"} for character in text)
