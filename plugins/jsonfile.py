"""JSON documents: an array of objects, of texts or of arrays (columns counted from 0), or an object whose "data", or whose only array, is one; a .json
file that is really JSON lines is read as such."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.contracts import Columns, Place, Reject
from ftcli.records import BadRow, Piece
from ftcli.settings import Settings

from .fileformat import FileFormat, byte_range
from .jsonl import JsonLines, Object, check_row_values, first_lines, keys_of, kind_of_rows, of_chat
from .jsonopening import opening_of
from .jsonparts import Part, parts

if TYPE_CHECKING:
    import pyarrow as pa

    from ftcli.core.reading.columns import Kind

ROWS = 10_000
"""Rows of a batch."""


class Json(FileFormat):
    """.json, plain (an array is cut between its elements) or compressed (one piece), read in chunks of whole elements.

    Objects are read as JSON lines are, where every one of a chunk is as it should be; else Python looks at each. What is held in memory: an object
    whose array begins behind the first megabyte, an array of texts, and what stands behind an array.
    """

    name = "json"
    suffixes: tuple[str, ...] = (".json",)

    def plan(self, path: str, target_bytes: int, settings: Settings) -> list[Piece]:
        from ftcli.core import progress
        from ftcli.core.files.streams import codec_of, cut_evenly, data_errors, open_stream
        from ftcli.core.reading.array_chunks import cuts
        from ftcli.core.reading.conversation import columns_of
        from ftcli.core.reading.reject import usable

        if _is_lines(path, settings):
            return JsonLines().plan(path, target_bytes, settings)
        columns = columns_of(settings)
        if not usable(_faults(path, columns, of_chat(columns), settings), settings):
            return []
        size, opening = Path(path).stat().st_size, opening_of(path)
        cut = opening is not None and opening.first in {"{", "["} and codec_of(path) is None
        wanted = [stop for _, stop in cut_evenly(size, target_bytes)[:-1]] if cut else []
        if opening is None or not wanted:
            return [Piece(path, "json", 0, size, "file", size)]
        with data_errors(path), open_stream(path) as stream:
            stream.seek(opening.start)
            bounds = [0, *cuts(stream, opening.start, wanted, lambda read: progress.report(read, 0, 0, path)), size]
        return [Piece(path, "json", start, stop, "bytes", stop - start) for start, stop in pairwise(bounds)]

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
        return kind_of_rows(column, settings, lambda columns, tell: _faults(path, columns, tell, settings))

    def read(self, piece: Piece, columns: Columns, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
        from ftcli.core.reading.columns import batch_of

        for part in parts(piece.path, *byte_range(piece), settings):
            if (arrays := part.arrays(columns)) is not None:
                yield batch_of(columns, arrays)
            else:
                yield from _looked_at(part, columns, reject)

    def places(self, piece: Piece, settings: Settings) -> Iterator[Place]:
        for part in parts(piece.path, *byte_range(piece), settings):
            for element in part.elements():
                start, raw = part.place(element)
                yield Place(start=start, raw=raw)


def _looked_at(part: Part, columns: Columns, reject: Reject) -> Iterator[pa.RecordBatch]:
    """Its rows, each looked at by Python."""
    from ftcli.core.arrays import strings
    from ftcli.core.reading.columns import batch_of, check_values, wanted
    from ftcli.core.reading.conversation import as_document

    elements, read = part.elements(), wanted(columns)
    while batch := list(islice(elements, ROWS)):
        rows: list[Any] = []
        for element in batch:
            texts: list[str] = []

            def check(row: Object, texts: list[str] = texts) -> None:
                check_row_values(row, columns) if columns.chat is None else texts.append(as_document(row, columns))

            bad = part.fault(element, columns, check)
            if bad is None:
                rows.append(texts[0] if texts else element.value)
            else:
                reject(bad)
        if rows and columns.chat is not None:
            yield batch_of(columns, [strings(rows)])
        elif rows:
            yield batch_of(columns, [check_values(role, name, kind, [row[name] for row in rows]) for role, name, kind in read])


def _faults(path: str, columns: Columns, check: Callable[[Object], object], settings: Settings) -> Iterator[BadRow | None]:
    """What is wrong with each row of a file; `check` raises BadValue."""
    for part in parts(path, 0, None, settings):
        for element in part.elements():
            yield part.fault(element, columns, check)


def _is_lines(path: str, settings: Settings) -> bool:
    """Whether the first line that is not blank is a whole object, and not one document that fills the file."""
    from ftcli.core.files.streams import head

    if head(path, 1 << 12).lstrip()[:1] == b"[":
        return False
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
    if settings.dataset.text_column in value or not arrays:
        return True
    chat = columns_of(settings).chat
    if chat is not None and any(name in value for name in chat):
        return True
    return (chat is not None or len(arrays) > 1) and next(lines, None) is not None
