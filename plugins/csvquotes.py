"""What quotes mean in a CSV or TSV file."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

from ftcli.records import BadRow

from .csvlayout import wide_fields

Span = tuple[int, int | None]
"""The bytes of a piece; None: to the end."""
HEAD = 1 << 20
NOTED = 64 << 20
"""Bytes that are read for a note: a second of one core."""
QUOTED = re.compile(rb'(?:^|\t)"(?:[^"\t]|"")*"(?=[\t\r\n]|\Z)', re.MULTILINE)
"""A field that looks as if its quotes were to be taken off."""


def quoting_of(path: str, delimiter: str, longest: int, span: Span) -> Literal["quotes", "characters", "damaged"]:
    """Whether quotes quote. "damaged": in a .csv a quote is not closed, or text follows the closing one, or a line is too long; pyarrow would
    swallow rows in silence.

    The check costs 0.05 s for 100 MB whose quotes are all where they belong, nothing for a file without any, and 1.3 s where Python's parser has to look.
    """
    return _judged(path, delimiter, longest, span)[0]


def _judged(path: str, delimiter: str, longest: int, span: Span) -> tuple[Literal["quotes", "characters", "damaged"], str]:
    """Whether quotes quote, and where they are characters though there are some, why."""
    if (judgement := _in_order(path, delimiter, longest, span)) is not None:
        return judgement, ""
    return _parsed(path, delimiter, longest, span)


def _parsed(path: str, delimiter: str, longest: int, span: Span) -> tuple[Literal["quotes", "characters", "damaged"], str]:
    """As `_judged`, of a file with quotes, by Python's parser."""
    with wide_fields():
        rows = begun = 0
        try:
            reader = csv.reader(_text(path, longest, span), delimiter=delimiter, strict=True)
            for rows, _ in enumerate(reader, 1):  # noqa: B007 - counted
                begun = reader.line_num
        except csv.Error as error:
            return (
                "characters" if delimiter == "\t" else "damaged",
                f"the quotes of the row that begins in line {begun + 1:,} are not balanced ({error})",
            )
        if delimiter != "\t" or rows == begun:
            return "quotes", ""
        why = "otherwise some rows would span several lines that are rows by themselves"
        try:
            plain = csv.reader(_text(path, longest, span), delimiter=delimiter, strict=True, quoting=csv.QUOTE_NONE)
            return ("quotes", "") if len({len(row) for row in plain if row}) > 1 else ("characters", why)
        except csv.Error:
            return "characters", why


def _in_order(path: str, delimiter: str, longest: int, span: Span) -> Literal["quotes", "characters"] | None:
    """The judgement where it takes no parser: there are no quotes, or all are where they belong (and within the lines of a .tsv); else None."""
    import numpy as np

    from ftcli.core.files.cuts import NEWLINE, RETURN, QuoteOrder
    from ftcli.core.files.streams import BLOCK, BOM, data_errors

    order, seen, sound, begun = QuoteOrder(delimiter), False, True, 0
    with data_errors(path), closing(Whole(path, span)) as stream:
        chunk = stream.read(BLOCK)
        if not span[0]:
            chunk = chunk.removeprefix(BOM)
        while chunk and (sound or not seen):
            data = np.frombuffer(chunk, np.uint8)
            inside, quotes = order.inside, order.follow(data)
            seen = seen or quotes is None or len(quotes) > 0
            sound = sound and quotes is not None and begun + len(chunk) <= longest
            begun = len(chunk) - 1 - end if (end := chunk.rfind(b"\n")) >= 0 else begun + len(chunk)
            if quotes is not None and delimiter == "\t" and seen:
                ends = np.flatnonzero((data == NEWLINE) | (data == RETURN))
                sound = sound and not ((np.searchsorted(quotes, ends) + inside) % 2).any()
            chunk = stream.read(BLOCK)
    if not seen:
        return "characters"
    return "quotes" if sound and not order.inside else None


def quoting_note(path: str, delimiter: str, longest: int) -> str | None:
    """What to say of a .tsv whose quotes are characters of the texts, though fields in its first MB look quoted. Of a large file its beginning is read."""
    from ftcli.core.files.streams import codec_of, data_errors

    if delimiter != "\t":
        return None
    with data_errors(path), closing(Whole(path, (0, None))) as stream:
        looks = QUOTED.search(stream.read(HEAD)) is not None
    if not looks:
        return None
    whole = codec_of(path) is not None or Path(path).stat().st_size <= NOTED
    judgement, why = _judged(path, delimiter, longest, (0, None if whole else NOTED))
    if judgement != "characters" or (not whole and "unexpected end" in why):  # a row that goes on behind what was read
        return None
    return f"{path}: quotes are kept as part of the texts, although some fields look quoted: {why}"


def _text(path: str, longest: int, span: Span) -> Iterator[str]:
    """Lines with their ends (LF, CRLF or CR). Raises csv.Error for one that is too long."""
    from ftcli.core.files.streams import line_blocks

    for _, block in line_blocks(path, *span, longest=longest, reject=_refuse):
        yield from io.StringIO(block.decode("utf-8", "surrogateescape"), newline="")


def _refuse(bad: BadRow) -> None:
    raise csv.Error(bad.reason)


class Whole:
    """The bytes of a piece, in chunks that never end between CR and LF: pyarrow 26 loses such an LF, also inside a quoted field."""

    closed = False

    def __init__(self, path: str, span: Span, mark: bytes = b"") -> None:
        from ftcli.core.files.streams import open_stream

        self._stream = open_stream(path)
        self._left = sys.maxsize if span[1] is None else span[1] - span[0]
        self._mark = mark
        if span[0]:
            self._stream.seek(span[0])

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(min(size, self._left))
        last = data[-1:]
        while last == b"\r" and len(data) < self._left:
            last = self._stream.read(1)
            data += last
        self._left -= len(data)
        mark, self._mark = self._mark, b""
        return mark + data

    def close(self) -> None:
        self._stream.close()
