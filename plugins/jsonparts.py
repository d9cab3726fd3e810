"""A JSON document as Python reads it: the elements of its parts, with what is wrong with each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.contracts import Columns
from ftcli.errors import DataError
from ftcli.records import BadCode, BadRow
from ftcli.settings import Settings

from .chatlines import documents
from .jsonhints import SPLIT
from .jsonl import DECODER, Object, arrays_of, check_row
from .jsonopening import BLANKS, Opening, array_of, begun, end_of, named, opening_of, skip_blanks

if TYPE_CHECKING:
    import pyarrow as pa

    from ftcli.core.reading.array_chunks import Chunk
    from ftcli.core.reading.columns import BadValue

ESCAPED = re.compile("[\udc80-\udcff]")


def parts(path: str, start: int, stop: int | None, settings: Settings) -> Iterator[Part]:
    """The elements between two bytes where elements begin; 0 is the document's beginning, None its end.

    Raises:
        DataError: the document is no JSON as far as its array, or holds none, or several.
    """
    import pyarrow as pa

    from ftcli.core.files.streams import content, data_errors, open_stream, skip
    from ftcli.core.reading.array_chunks import chunks

    stop = None if stop == Path(path).stat().st_size else stop
    opening = opening_of(path, start, stop)
    if opening is not None:
        with data_errors(path), open_stream(path) as stream:
            stream.seek(start) if start else skip(stream, opening.start)
            for chunk in chunks(stream, start or opening.start, stop):
                yield Part(path, settings, opening, chunk)
        return
    offset, data = content(path)
    text = data.decode("utf-8", "surrogateescape")
    if text.strip(BLANKS):
        with named(path, text, offset):
            bracket, closing, _ = array_of(text, skip_blanks(text, 0))
        opening = begun(text, offset, bracket, closing)
        stream = pa.BufferReader(data)
        stream.seek(opening.start - offset)
        del text
        for chunk in chunks(stream, opening.start, None):
            yield Part(path, settings, opening, chunk)


@dataclass(frozen=True, slots=True)
class Element:
    """An element of the array: where it stands in the text, and its value or what is wrong with it."""

    start: int
    stop: int
    value: Any
    fault: BadValue | None = None


class Part:
    """Elements of an array as they stand in the file. Bytes that are not UTF-8 stand in the text as lone surrogates, so that they cost a row and not the file."""

    def __init__(self, path: str, settings: Settings, opening: Opening, chunk: Chunk) -> None:
        self.path, self._longest, self._column = path, settings.dataset.max_line_bytes, settings.dataset.text_column
        self._settings, self._opening, self._chunk = settings, opening, chunk
        self._at, self._byte = 0, chunk.start

    @cached_property
    def _text(self) -> str:
        text = self._chunk.data.decode("utf-8", "surrogateescape")
        behind = text.rstrip(BLANKS)
        return text if self._chunk.last or not behind.endswith(",") else behind[:-1] + "]"

    @cached_property
    def _broken(self) -> bool:
        return ESCAPED.search(self._text) is not None

    def arrays(self, columns: Columns) -> list[pa.Array] | None:
        """The columns, where all elements are objects as they should be and the part ends as it should; None: they have to be looked at."""
        from ftcli.core.reading.array_chunks import as_lines
        from ftcli.core.reading.soundness import sound

        lines = as_lines(self._chunk, self._longest)
        if lines is None or not sound(lines[0]) or not self._ended(lines[1].decode("utf-8", "surrogateescape").strip(BLANKS)):
            return None
        try:
            if columns.chat is None:
                return arrays_of(self.path, lines[0], columns)
            return documents(self.path, self._chunk.start, lines[0], columns, _refuse)
        except ValueError:
            return None

    def _ended(self, rest: str) -> bool:
        """Whether this may stand behind the last element."""
        return rest == "," if not self._chunk.last else rest[:1] == "]" and self._closed(rest[1:].strip(BLANKS))

    def _closed(self, rest: str) -> bool:
        """Whether this may stand behind the array: further keys of its object, if it is in one, and nothing else."""
        closing = self._opening.closing if self._chunk.last else ""
        if rest == closing or not closing or not rest.startswith(","):
            return rest == closing
        try:
            further, end = DECODER.raw_decode("{" + rest[1:])
        except (ValueError, RecursionError):
            return False
        hides = "data" in further and (self._opening.data or isinstance(further["data"], list))
        return end == len(rest) and bool(further) and not hides

    def place(self, element: Element) -> tuple[int, bytes]:
        """(byte, bytes) of an element, which is not before the last one asked for."""
        self._byte += len(self._text[self._at : element.start].encode("utf-8", "surrogateescape"))
        self._at = element.start
        return self._byte, self._text[element.start : element.stop].encode("utf-8", "surrogateescape")

    def fault(self, element: Element, columns: Columns, check: Callable[[Object], object] = lambda _: None) -> BadRow | None:
        """What is wrong with an element; `check` raises BadValue."""
        from ftcli.core.files.encodings import utf8_hint
        from ftcli.core.files.streams import bad_utf8
        from ftcli.core.reading.columns import BadValue

        bad = element.fault
        size = element.stop - element.start
        if bad is None and self._longest < 4 * size:
            size = len(self._text[element.start : element.stop].encode("utf-8", "surrogateescape"))
            if size > self._longest:
                bad = BadValue(0, "line-too-long", f"a row of {size:,} bytes, more than max_line_bytes {self._longest:,}")
        if bad is None and self._broken and ESCAPED.search(self._text, element.start, element.stop):
            raw = self._text[element.start : element.stop].encode("utf-8", "surrogateescape")
            undecodable = bad_utf8(raw)
            assert undecodable is not None
            bad = BadValue(0, "not-utf8", undecodable[1], None, utf8_hint(raw))
        if bad is None:
            try:
                check(check_row(element.value, columns))
            except BadValue as error:
                bad = error
        if bad is None:
            return None
        start, raw = self.place(element)
        hint = SPLIT if self._opening.split and self._opening.first == "[" and bad.code == "missing-field" else bad.hint
        return BadRow(self.path, bad.code, bad.reason, start=start, size=len(raw), field=bad.field, raw=raw, hint=hint)

    def elements(self) -> Iterator[Element]:
        """The elements: where the array's first is a text each text as a row of its own, and an array as a row whose columns are counted from 0.

        Raises:
            DataError: the text stops being JSON: what comes behind is lost.
        """
        try:
            yield from self._elements()
        except DataError:
            for part in parts(self.path, 0, self._chunk.start, self._settings):  # where a quote is missing, all behind it lies elsewhere
                for _ in part._elements():
                    pass
            raise

    def _elements(self) -> Iterator[Element]:
        text, first = self._text, self._opening.first
        if not self._chunk.last and not text.strip(BLANKS):  # before the first element
            return
        with named(self.path, text, self._chunk.start):
            position = skip_blanks(text, 0)
            more = text[position : position + 1] != "]"
            while more:
                element = _element(text, position)
                if first == '"' and isinstance(element.value, str):
                    element = replace(element, value=Object([(self._column, element.value)]))
                elif first == "[" and isinstance(element.value, list):
                    element = replace(element, value=Object([(str(number), value) for number, value in enumerate(element.value)]))
                yield element
                position = skip_blanks(text, element.stop)
                more = text[position : position + 1] == ","
                if more:
                    position = skip_blanks(text, position + 1)
                elif text[position : position + 1] != "]":
                    raise json.JSONDecodeError("Expecting ',' or ']'", text, position)
            if not self._closed(text[position + 1 :].strip(BLANKS)):
                raise json.JSONDecodeError("Extra data or a missing end", text, position + 1)


def _refuse(bad: BadRow) -> None:
    raise ValueError(bad.reason)


def _element(text: str, position: int) -> Element:
    """The value at `position`. What Python cannot hold costs this element only, if its end can be found."""
    from ftcli.core.reading.columns import BadValue

    try:
        value, end = DECODER.raw_decode(text, position)
        return Element(position, end, value)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError) as error:
        stop = end_of(text, position)
        if stop is None:
            raise
        deep = isinstance(error, RecursionError)
        code: BadCode = "too-deep" if deep else "out-of-range"  # a number of more digits than Python reads
        return Element(position, stop, None, BadValue(0, code, "nested too deeply" if deep else str(error).partition(";")[0]))
