"""JSON documents: an array of objects, of texts or of arrays (columns counted from 0), or an object whose "data", or whose only array, is one; a .json
file that is really JSON lines is read as such."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.contracts import Columns, Place, Reject
from ftcli.errors import DataError
from ftcli.records import BadCode, BadRow, Piece
from ftcli.settings import Settings

from .fileformat import FileFormat
from .jsonhints import KEYED, SPLIT
from .jsonl import DECODER, JsonLines, Object, check_row, check_row_values, first_lines, keys_of, kind_of_rows, of_chat

if TYPE_CHECKING:
    import pyarrow as pa

    from ftcli.core.reading.columns import BadValue, Kind

ROWS = 10_000
"""Rows of a batch."""
SPACE = re.compile(r"\s*")
BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
ESCAPED = re.compile("[\udc80-\udcff]")


class Json(FileFormat):
    """.json, plain or compressed: one piece, the text held in memory, rows made one at a time. For large data use JSON lines."""

    name = "json"
    suffixes: tuple[str, ...] = (".json",)

    def plan(self, path: str, target_bytes: int, settings: Settings) -> list[Piece]:
        from ftcli.core.reading.conversation import columns_of
        from ftcli.core.reading.reject import usable

        if _is_lines(path, settings):
            return JsonLines().plan(path, target_bytes, settings)
        document = _Document(path, settings)
        columns = columns_of(settings)
        if not usable((document.fault(element, columns, of_chat(columns)) for element in document.elements()), settings):
            return []
        size = Path(path).stat().st_size
        return [Piece(path, "json", 0, size, "file", size)]

    def found_columns(self, path: str, settings: Settings) -> dict[str, bool]:
        if _is_lines(path, settings):
            return JsonLines().found_columns(path, settings)
        from ftcli.core.files.streams import head

        text = head(path).decode("utf-8", "ignore")  # of a file of any size
        with suppress(ValueError):
            return keys_of(json.JSONDecoder().raw_decode(text, text.index("{", text.index("[")))[0])
        return {}

    def label_kind(self, path: str, column: str, settings: Settings) -> Kind | None:
        if _is_lines(path, settings):
            return JsonLines().label_kind(path, column, settings)
        document = _Document(path, settings)
        return kind_of_rows(column, settings, lambda columns, tell: (document.fault(each, columns, tell) for each in document.elements()))

    def read(self, piece: Piece, columns: Columns, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
        from ftcli.core.arrays import strings
        from ftcli.core.reading.columns import batch_of, check_values, wanted
        from ftcli.core.reading.conversation import as_document

        document = _Document(piece.path, settings)
        elements, read = document.elements(), wanted(columns)
        while batch := list(islice(elements, ROWS)):
            rows: list[Any] = []
            for element in batch:
                texts: list[str] = []

                def check(row: Object, texts: list[str] = texts) -> None:
                    check_row_values(row, columns) if columns.chat is None else texts.append(as_document(row, columns))

                bad = document.fault(element, columns, check)
                if bad is None:
                    rows.append(texts[0] if texts else element.value)
                else:
                    reject(bad)
            if rows and columns.chat is not None:
                yield batch_of(columns, [strings(rows)])
            elif rows:
                yield batch_of(columns, [check_values(role, name, kind, [row[name] for row in rows]) for role, name, kind in read])

    def places(self, piece: Piece, settings: Settings) -> Iterator[Place]:
        document = _Document(piece.path, settings)
        for element in document.elements():
            line, start, raw = document.place(element)
            yield Place(start=start, line=line, raw=raw)


@dataclass(frozen=True, slots=True)
class _Element:
    """An element of the array: where it stands in the text, and its value or what is wrong with it."""

    start: int
    stop: int
    value: Any
    fault: BadValue | None = None


class _Document:
    """The text of a file. Bytes that are not UTF-8 stand in it as lone surrogates, so that they cost a row and not the file."""

    def __init__(self, path: str, settings: Settings) -> None:
        from ftcli.core.files.streams import content

        self.path, self._longest, self._column = path, settings.dataset.max_line_bytes, settings.dataset.text_column
        self._offset, data = content(path)
        try:
            self.text, self._broken = data.decode(), False
        except UnicodeDecodeError:
            self.text, self._broken = data.decode("utf-8", "surrogateescape"), True
        self._at, self._line, self._byte = 0, 1, self._offset
        self._split = False

    def place(self, element: _Element) -> tuple[int, int, bytes]:
        """(line, byte, bytes) of an element, which is not before the last one asked for."""
        between = self.text[self._at : element.start]
        self._line += between.count("\n")
        self._byte += len(between.encode("utf-8", "surrogateescape"))
        self._at = element.start
        return self._line, self._byte, self.text[element.start : element.stop].encode("utf-8", "surrogateescape")

    def fault(self, element: _Element, columns: Columns, check: Callable[[Object], object] = lambda _: None) -> BadRow | None:
        """What is wrong with an element; `check` raises BadValue."""
        from ftcli.core.files.encodings import utf8_hint
        from ftcli.core.files.streams import bad_utf8
        from ftcli.core.reading.columns import BadValue

        bad = element.fault
        size = element.stop - element.start
        if bad is None and self._longest < 4 * size:
            size = len(self.text[element.start : element.stop].encode("utf-8", "surrogateescape"))
            if size > self._longest:
                bad = BadValue(0, "line-too-long", f"a row of {size:,} bytes, more than max_line_bytes {self._longest:,}")
        if bad is None and self._broken and ESCAPED.search(self.text, element.start, element.stop):
            raw = self.text[element.start : element.stop].encode("utf-8", "surrogateescape")
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
        line, start, raw = self.place(element)
        hint = SPLIT if self._split and bad.code == "missing-field" else bad.hint
        return BadRow(self.path, bad.code, bad.reason, line=line, start=start, size=len(raw), field=bad.field, raw=raw, hint=hint)

    def elements(self) -> Iterator[_Element]:
        """The elements of the array: where the first is a text each text as a row of its own, and an array as a row whose columns are counted from 0.

        Raises:
            DataError: the text stops being JSON: what comes behind is lost.
        """
        text, shape = self.text, None
        if not text.strip():
            return
        try:
            start, closing = _array(text, _skip(text, 0))
            position = _skip(text, start + 1)
            more = text[position : position + 1] != "]"
            while more:
                element = _element(text, position)
                shape = shape or type(element.value)
                self._split = shape is list and '"columns"' in text[:start]
                if shape is str and isinstance(element.value, str):
                    element = replace(element, value=Object([(self._column, element.value)]))
                elif shape is list and isinstance(element.value, list):
                    element = replace(element, value=Object([(str(number), value) for number, value in enumerate(element.value)]))
                yield element
                position = _skip(text, element.stop)
                more = text[position : position + 1] == ","
                if more:
                    position = _skip(text, position + 1)
                elif text[position : position + 1] != "]":
                    raise json.JSONDecodeError("Expecting ',' or ']'", text, position)
            rest = text[position + 1 :].strip()
            if rest != closing and not (closing and rest.startswith(",") and rest.endswith(closing)):
                raise json.JSONDecodeError("Extra data or a missing end", text, position + 1)
        except json.JSONDecodeError as error:
            hint = "Expected an array of objects, or an object that holds one. A file that breaks off was not completely written or copied: make or copy it again."
            reason = f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
            start = self._offset + len(text[: error.pos].encode("utf-8", "surrogateescape"))
            raise DataError(f"{self.path}:{error.lineno} (byte {start:,}): {reason}", hint) from None
        except _NoArrayError as error:
            raise DataError(f"{self.path}: {error}", error.hint) from None
        except RecursionError:
            raise DataError(f"{self.path}: nested too deeply", "Reduce the nesting, or write the rows as JSON lines.") from None
        except ValueError as error:
            raise DataError(
                f"{self.path}: {str(error).partition(';')[0]}", "No data row holds a number this long: check that this is the right file."
            ) from None


def _is_lines(path: str, settings: Settings) -> bool:
    """Whether the first line that is not blank is a whole object, and not one document that fills the file."""
    lines = first_lines(path, settings)
    line = next(lines, None)
    if line is None or isinstance(line, BadRow) or line[1].lstrip()[:1] != b"{":
        return False
    from ftcli.core.reading.conversation import columns_of

    try:
        value = json.loads(line[1].decode())
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or isinstance(value.get("data"), list):
        return False
    arrays = [part for part in value.values() if isinstance(part, list) and part and isinstance(part[0], dict)]
    if settings.dataset.text_column in value or len(arrays) != 1:
        return True
    chat = columns_of(settings).chat
    return chat is not None and (any(name in value for name in chat) or next(lines, None) is not None)


def _element(text: str, position: int) -> _Element:
    """The value at `position`. What Python cannot hold costs this element only, if its end can be found."""
    from ftcli.core.reading.columns import BadValue

    try:
        value, end = DECODER.raw_decode(text, position)
        return _Element(position, end, value)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError) as error:
        stop = _end(text, position)
        if stop is None:
            raise
        deep = isinstance(error, RecursionError)
        code: BadCode = "too-deep" if deep else "out-of-range"  # a number of more digits than Python reads
        return _Element(position, stop, None, BadValue(0, code, "nested too deeply" if deep else str(error).partition(";")[0]))


def _end(text: str, position: int) -> int | None:
    """Where the array or object at `position` ends, by its brackets."""
    depth = 0
    if text[position : position + 1] not in {"[", "{"}:
        return None
    for match in BRACKET.finditer(text, position):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.end()
    return None


class _NoArrayError(Exception):
    """The document is sound, and which of its arrays holds the rows is not known."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def _array(text: str, position: int) -> tuple[int, str]:
    """(where the array opens, what must close the document after it): of an object's arrays "data", or the only one. Raises _NoArrayError."""
    if text[position : position + 1] != "{":
        if text[position : position + 1] != "[":
            raise json.JSONDecodeError("Expecting an array of objects", text, position)
        return position, ""
    found: dict[str, int] = {}
    names: list[str] = []
    objects = 0
    while text[position : position + 1] in {"{", ","}:
        position = _skip(text, position + 1)
        if text[position : position + 1] == "}":
            break
        key, position = DECODER.raw_decode(text, position)
        position = _skip(text, position)
        if text[position : position + 1] != ":":
            raise json.JSONDecodeError("Expecting ':'", text, position)
        position = _skip(text, position + 1)
        if text[position : position + 1] != "[":
            objects += text[position : position + 1] == "{"
            _, position = DECODER.raw_decode(text, position)
        else:
            names.append(key)
            first, stop = _skip(text, position + 1), _end(text, position)
            if key == "data" or stop is None:  # whoever reads on says where it breaks off
                return position, "}"
            if text[first : first + 1] == "{":
                found[key] = position
            position = stop
        position = _skip(text, position)
    if text[position : position + 1] != "}":
        raise json.JSONDecodeError("Expecting ',' or '}'", text, position)
    if len(found) == 1:
        return next(iter(found.values())), "}"
    if not names:
        raise _NoArrayError("an object that holds no array of rows", _objects_hint(text[position + 1 :], objects))
    what = "several arrays of objects" if found else "no array of objects"
    shown = ", ".join(map(repr, names[:10])) + (" …" if len(names) > 10 else "")
    raise _NoArrayError(
        f"{what} among {shown}, and none is named data",
        f"Write the array of rows to its own file, for example: jq .{names[0]} OLD > {names[0]}.json",
    )


def _objects_hint(rest: str, objects: int) -> str:
    """What to do about a document of objects alone."""
    if rest.lstrip()[:1] == "{":
        return "The file holds several objects, one after another. Write one per line: jq -c . OLD > NEW.jsonl"
    if objects > 1:
        return KEYED
    return "Write the rows as a JSON array of objects, or as JSON lines."


def _skip(text: str, position: int) -> int:
    found = SPACE.match(text, position)
    assert found is not None
    return found.end()
