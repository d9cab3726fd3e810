"""Described rows (`ftcli.core.inspect.look`) as lines for a terminal: every mark stands in the text, colours only repeat what the marks say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from ftcli.core.tokenizer.visible_text import BETWEEN, CODE, LEARNED, SPECIAL, WHITE, columns_of
from ftcli.masking import shown

IGNORED = -100
"""As `ftcli.core.targets.IGNORED`, which imports numpy."""
MARGIN = "  "
PIPE_WIDTH = 100
Colour = Callable[[str, str], str]
"""A text and its tone ("learned", "dim", "special", "warn", "head") → the text as it is printed."""


def plain(text: str, _: str) -> str:
    return text


def lines(rows: Sequence[Mapping[str, Any]], width: int, colour: Colour = plain, *, ids: bool = False) -> list[str]:
    """What is in a row is masked here, string by string.

    Args:
        width: columns; a token that is wider is broken.
        ids: every token's id before its text.
    """
    found: list[str] = []
    for row in shown(rows):
        found += [*_row(row, max(20, width), colour, ids=ids), ""]
    return [*found, *(colour(line, "dim") for line in _legend(rows, width))]


def title(row: Mapping[str, Any]) -> str:
    """The row in a few words: "row 3 of train, 40 tokens, 12 learned, label refund (1)"."""
    return ", ".join([where(row), *facts(row)])


def where(row: Mapping[str, Any]) -> str:
    return f"row {row['row']:,} of {row['split']}" if row["row"] is not None else f"a row of {row['split']} ({row['place']})"


def facts(row: Mapping[str, Any]) -> list[str]:
    """What a reader wants to know of a row before its tokens."""
    found = [f"{row['tokens']:,} token{'' if row['tokens'] == 1 else 's'}"]
    if row["labels"] is not None:
        found.append(f"{sum(label != IGNORED for label in row['labels']):,} learned")
    if row["types"] is not None:
        found.append(f"second text from token {row['types'].index(1):,}" if 1 in row["types"] else "no second text")
    if len(row["documents"]) > 1:
        found.append(f"{len(row['documents']):,} documents")
    if row["label"] is not None or row["label_id"] is not None:
        found.append("label " + " ".join([*([str(row["label"])] if row["label"] is not None else []), *_number(row["label_id"])]))
    return found


def _number(label: int | None) -> list[str]:
    return [] if label is None else [f"({label})"]


def documents(row: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Heading ("" where there is one document only) and tokens {"at", "id", "text", "learned", "special"} of each document."""
    special, start = set(row["special"]), 0
    for number, length in enumerate(row["documents"], 1):
        heading = f"document {number:,} of {len(row['documents']):,}: {length:,} tokens" if len(row["documents"]) > 1 else ""
        yield (
            heading,
            [
                {
                    "at": at,
                    "id": row["ids"][at],
                    "text": str(row["ids"][at]) if row["texts"] is None else row["texts"][at],
                    "learned": None if row["labels"] is None else row["labels"][at] != IGNORED,
                    "special": at in special,
                }
                for at in range(start, start + length)
            ],
        )
        start += length


def _row(row: Mapping[str, Any], width: int, colour: Colour, *, ids: bool) -> Iterator[str]:
    yield from (colour(line, "head") for line in wrap(title(row), width, subsequent_indent=MARGIN))
    for note in row["notes"]:
        yield from (colour(line, "warn") for line in wrap(f"! {note}", width, initial_indent=MARGIN, subsequent_indent=2 * MARGIN))
    for heading, tokens in documents(row):
        if heading:
            rule = f"{MARGIN}── {heading} "
            yield colour(rule + "─" * max(2, width - columns_of(rule)), "dim")
        yield from _wrapped(tokens, width - len(MARGIN) - len(BETWEEN), colour, ids=ids and row["texts"] is not None)


def _wrapped(tokens: Sequence[Mapping[str, Any]], width: int, colour: Colour, *, ids: bool) -> Iterator[str]:
    line, used = "", 0
    for place, token in enumerate(tokens):
        text = f"{SPECIAL[0]}{token['text']}{SPECIAL[1]}" if token["special"] else token["text"]
        text = f"{token['id']}:{text}" if ids else text
        opens = token["learned"] and not (place and tokens[place - 1]["learned"])
        closes = token["learned"] and not (place + 1 < len(tokens) and tokens[place + 1]["learned"])
        text = f"{LEARNED[0] if opens else ''}{text}{LEARNED[1] if closes else ''}"
        tone = "special" if token["special"] else "" if token["learned"] is None else "learned" if token["learned"] else "dim"
        between = BETWEEN if place else ""
        if used and used + len(between) + columns_of(text) > width:
            yield f"{MARGIN}{line}{colour(between, 'dim')}"
            line, used, between = "", 0, ""
        line += colour(between, "dim")
        used += len(between)
        while columns_of(text) > width - used:
            cut = _fitting(text, width - used)
            yield f"{MARGIN}{line}{colour(text[:cut], tone)}"
            line, used, text = "", 0, text[cut:]
        line += colour(text, tone)
        used += columns_of(text)
    yield f"{MARGIN}{line}"


def _fitting(text: str, width: int) -> int:
    """Characters that fit, 1 at least."""
    used = 0
    for place, character in enumerate(text):
        used += columns_of(character)
        if used > width and place:
            return place
    return len(text)


def _legend(rows: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    """What the marks mean, of those that can occur."""
    if not rows:
        return
    white = {" ": "space", "\n": "line end", "\t": "tab", "\r": "return"}
    said = "".join(text for row in rows for text in row["texts"] or ())
    parts = [f"{BETWEEN} between tokens", *(f"{mark} {white[key]}" for key, mark in WHITE.items() if mark in said)]
    if any(row["labels"] is not None for row in rows):
        parts.append(f"{LEARNED[0]}…{LEARNED[1]} learned")
    if any(row["special"] for row in rows):
        parts.append(f"{SPECIAL[0]}…{SPECIAL[1]} special token")
    if CODE[0] in said:
        parts.append(f"{CODE[0]}U+200B{CODE[1]} invisible character, or one used as a mark here")
        parts.append(f"{CODE[0]}EB B0{CODE[1]} bytes of an incomplete character")
        parts.append(f"{CODE[0]}B0=배{CODE[1]} with the character they complete")
    line = ""
    for part in parts:
        if line and columns_of(line) + 3 + columns_of(part) > width:
            yield line
            line = ""
        line += f"   {part}" if line else part
    yield line
