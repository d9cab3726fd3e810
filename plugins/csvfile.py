"""CSV and TSV: streamed by pyarrow, every value kept as the text it is ("NA", "null", "007"), quoting checked before it is trusted."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ftcli.contracts import Columns, Place, Reject
from ftcli.records import BadRow, Piece
from ftcli.settings import Settings

from .csvlayout import Layout, fields_of, flags_of, header_columns, layout_of, mark_hint, mark_note, wide_fields
from .csvquotes import Span, Whole, quoting_note, quoting_of
from .fileformat import FileFormat, byte_range
from .jsonl import drained

if TYPE_CHECKING:
    import pyarrow as pa

    from ftcli.core.reading.columns import Kind, Role

    Field = tuple[Role, str, Kind]

BLOCKS = (4 << 20, 128 << 20, 2**31 - 1)
"""Block sizes tried in turn: a row must fit in one."""
UNDECODED = re.compile("[\udc80-\udcff]")
UNQUOTED = "Correct the row. In a .tsv file, quoted fields are recognised only if every quote in the file is balanced."
ROWS = 10_000
"""Rows of a batch, where they are read row by row."""


class Csv(FileFormat):
    """.csv (commas) and .tsv (tabs), plain (cut between rows, where its quotes are in order) or compressed (one piece).

    Where only another delimiter gives a header with all columns asked for, that one is taken (`layout_of`).
    The first line is the header, unless all columns asked for are numbers: then there is none, and "0" is the first column (but a first
    line 0, 1, 2 …, as pandas writes it for columns without names, is a header). In a .csv quotes follow RFC 4180 and a stray one is an error. In a .tsv they are characters unless the whole file
    is quoted properly and cannot be read as plain lines. Blank lines are skipped. Labels are strings.
    """

    name = "csv"
    suffixes: tuple[str, ...] = (".csv", ".tsv")

    def plan(self, path: str, target_bytes: int, settings: Settings) -> list[Piece]:
        from ftcli.core.files.cuts import record_ranges
        from ftcli.core.files.streams import codec_of

        layout = layout_of(path, header_columns(settings))
        size = Path(path).stat().st_size
        if layout is None or not layout.rows:
            return []
        if codec_of(path):
            return [Piece(path, "csv", 0, size, "file", size)]
        ranges = record_ranges(path, layout.delimiter, size, target_bytes)
        return [Piece(path, "csv", start, stop, "bytes", stop - start) for start, stop in ranges]

    def found_columns(self, path: str, settings: Settings) -> dict[str, bool]:
        layout = layout_of(path, header_columns(settings))
        return dict.fromkeys(layout.names, layout.header) if layout else {}

    def layout_note(self, path: str, settings: Settings) -> str | None:
        layout = layout_of(path, header_columns(settings))
        if layout is None or not layout.rows:
            return None
        return mark_note(path, layout) or quoting_note(path, layout.delimiter, settings.dataset.max_line_bytes)

    def flag_columns(self, path: str, settings: Settings) -> list[str]:
        layout = layout_of(path, header_columns(settings))
        return flags_of(path, layout) if layout else []

    def label_kind(self, path: str, column: str, settings: Settings) -> Kind:
        return "string"

    def read(self, piece: Piece, columns: Columns, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from ftcli.core.files.streams import data_errors
        from ftcli.core.reading.columns import BadValue, check_arrow

        path, longest = piece.path, settings.dataset.max_line_bytes
        layout = layout_of(path, columns)
        if layout is None:
            return
        span = byte_range(piece)
        fields = fields_of(path, columns, layout)
        quoting, done = quoting_of(path, layout.delimiter, longest, span), 0
        if quoting != "damaged":
            with data_errors(path):
                try:
                    for batch in _batches(path, layout, fields, quoting == "quotes", longest, span):
                        arrays = [check_arrow(path, *column, batch.column(i), longest) for i, column in enumerate(fields)]
                        yield _made(columns, fields, arrays)
                        done += batch.num_rows
                except (pa.ArrowException, BadValue):  # pyarrow does not say which row, nor go on behind it
                    pass
                else:
                    return
        yield from _good(path, layout, columns, fields, quoting != "characters", done, longest, reject, span)

    def places(self, piece: Piece, settings: Settings) -> Iterator[Place]:
        longest = settings.dataset.max_line_bytes
        layout = layout_of(piece.path, header_columns(settings))
        if layout is not None:
            span = byte_range(piece)
            quoted = quoting_of(piece.path, layout.delimiter, longest, span) != "characters"
            for record in islice(_records(piece.path, layout.delimiter, quoted, longest, span), int(layout.header and not span[0]), None):
                yield Place(start=record.start, raw=record.raw)


def _made(columns: Columns, fields: list[Field], arrays: list[pa.Array]) -> pa.RecordBatch:
    """The batch of the contract; raises BadValue for a row that is no conversation."""
    from ftcli.core.arrays import strings
    from ftcli.core.reading.columns import batch_of
    from ftcli.core.reading.conversation import as_document

    if columns.chat is None:
        return batch_of(columns, arrays)
    names = [name for _, name, _ in fields]
    rows = zip(*(array.to_pylist() for array in arrays), strict=True)
    return batch_of(columns, [strings(as_document(dict(zip(names, row, strict=True)), columns) for row in rows)])


def _batches(path: str, layout: Layout, fields: list[Field], quoted: bool, longest: int, span: Span) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.csv as reader

    from ftcli.core.files.streams import BOM

    mark = BOM if span[0] else b""  # pyarrow drops one at the start of every stream, also where it belongs to the first text of a piece
    every = [name if layout.header else f"f{name}" for name in layout.names] if span[0] else None
    names = [name if layout.header else f"f{name}" for _, name, _ in fields]
    parse = reader.ParseOptions(delimiter=layout.delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted)
    convert = reader.ConvertOptions(include_columns=names, column_types=dict.fromkeys(names, pa.large_string()), strings_can_be_null=False)
    done = 0
    sizes = sorted({min(size, longest + (1 << 20)) for size in BLOCKS})
    for block_size in sizes:
        read = reader.ReadOptions(
            use_threads=False, block_size=block_size, column_names=every, autogenerate_column_names=not (every or layout.header)
        )
        seen = 0
        try:
            for batch in reader.open_csv(
                pa.PythonFile(Whole(path, span, mark), "r"), read_options=read, parse_options=parse, convert_options=convert
            ):
                fresh = batch.slice(max(0, done - seen))
                seen += batch.num_rows
                if fresh.num_rows:
                    yield fresh
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error) or block_size == sizes[-1]:  # a row longer than the block
                raise
            done = max(done, seen)
        else:
            return


@dataclass(frozen=True, slots=True)
class _Record:
    """A row as it stands in the file: its fields, or what is wrong with it."""

    start: int
    raw: bytes
    fields: list[str]
    bad: BadRow | None = None


def _records(path: str, delimiter: str, quoted: bool, longest: int, span: Span) -> Iterator[_Record]:
    """Row by row, the header as well. A quote that is not closed costs the line in which it was opened; the next one begins a row."""
    from ftcli.core.files.streams import line_blocks

    long: list[BadRow] = []

    def lines() -> Iterator[tuple[int, bytes] | BadRow]:
        for offset, block in line_blocks(path, *span, longest=longest, reject=long.append):
            yield from drained(long)
            place = offset
            for line in block.splitlines(keepends=True):
                yield place, line
                place += len(line)
        yield from drained(long)

    source, again, taken = lines(), list[tuple[int, bytes] | BadRow](), list[tuple[int, bytes]]()

    size = 0

    def feed() -> Iterator[str]:
        nonlocal size
        while (line := again.pop() if again else next(source, None)) is not None:
            if isinstance(line, BadRow) or size + len(line[1]) > longest + 2:
                again.append(line)
                return  # inside a row: the reader then says that the data end unexpectedly
            taken.append(line)
            size += len(line[1])
            yield line[1].decode("utf-8", "surrogateescape")

    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    with wide_fields():
        reader = csv.reader(feed(), delimiter=delimiter, strict=True, quoting=quoting)
        while True:
            taken.clear()
            size = 0
            try:
                fields = next(reader, None)
            except csv.Error as error:
                reader = csv.reader(feed(), delimiter=delimiter, strict=True, quoting=quoting)
                again.extend(reversed(taken[1:]))
                start, raw = taken[0][0], taken[0][1].rstrip(b"\r\n")
                reason = f"a quote is not closed, or text follows the closing one ({error})"
                hint = 'In a CSV file, quotes inside a field are doubled: "say ""hi""". If the file does not use quoting, name it .tsv.'
                yield _Record(start, raw, [], BadRow(path, "unterminated-quote", reason, start=start, size=len(raw), raw=raw, hint=hint))
                continue
            if fields:
                yield _Record(taken[0][0], b"".join(line for _, line in taken).rstrip(b"\r\n"), fields)
            elif fields is None:
                if not again:
                    return
                reader = csv.reader(feed(), delimiter=delimiter, strict=True, quoting=quoting)
                bad = again.pop()
                assert isinstance(bad, BadRow), "a row of one line is never too long"
                yield _Record(bad.start or 0, bad.raw or b"", [], bad)


def _good(
    path: str,
    layout: Layout,
    columns: Columns,
    fields: list[Field],
    quoted: bool,
    done: int,
    longest: int,
    reject: Reject,
    span: Span,
) -> Iterator[pa.RecordBatch]:
    """The good rows behind the first `done`, row by row."""
    from ftcli.core.reading.columns import check_values
    from ftcli.core.reading.reject import strict

    rows: Iterator[_Record] = _records(path, layout.delimiter, quoted, longest, span)
    if layout.header and not span[0] and (header := next(rows)).bad is not None:
        strict(header.bad)
    rows = islice(rows, done, None)
    while batch := list(islice(rows, ROWS)):
        good = []
        for record in batch:
            bad = record.bad or _fault(path, layout, columns, record, [name for _, name, _ in fields], quoted)
            if bad is None:
                good.append(record.fields)
            else:
                reject(bad)
        if good:
            places = [(column, layout.names.index(column[1])) for column in fields]
            yield _made(columns, fields, [check_values(*column, [row[place] for row in good]) for column, place in places])


def _fault(path: str, layout: Layout, columns: Columns, record: _Record, names: list[str], quoted: bool) -> BadRow | None:
    from ftcli.core.files.encodings import utf8_hint
    from ftcli.core.reading.columns import BadValue, shown
    from ftcli.core.reading.conversation import as_document

    width, fields = len(layout.names), record.fields
    where = {"path": path, "start": record.start, "size": len(record.raw), "raw": record.raw}
    if len(fields) != width:
        word = "the header" if layout.header else "the first line"
        reason = f"{len(fields)} fields where {word} has {width}: {shown(layout.delimiter.join(fields[:20]))}"
        hint = UNQUOTED if layout.delimiter == "\t" and not quoted else "Correct the row, or quote fields that contain the delimiter."
        hint += "" if layout.header else f" {mark_hint(path, layout)}"
        return BadRow(code="ragged", reason=reason, hint=hint, **where)  # type: ignore[arg-type]
    for name in names:
        if UNDECODED.search(fields[layout.names.index(name)]):
            reason = f"{name!r} is not UTF-8"
            return BadRow(code="not-utf8", reason=reason, field=name, hint=utf8_hint(record.raw), **where)  # type: ignore[arg-type]
    if columns.chat is not None:
        try:
            as_document({name: fields[layout.names.index(name)] for name in names}, columns)
        except BadValue as bad:
            return BadRow(code=bad.code, reason=bad.reason, field=bad.field, hint=bad.hint, **where)  # type: ignore[arg-type]
    return None
