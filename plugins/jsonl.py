"""JSON lines: one object a line, cut out or parsed by simdjson or pyarrow in blocks; Python looks at a line only to say what is wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.contracts import Columns, Place, Reject
from ftcli.records import BadCode, BadRow, Piece
from ftcli.settings import Settings

from .fileformat import FileFormat, byte_range
from .jsonhints import array_hint, keyed_hint, line_hint, table_hint
from .longlines import quick_arrays

if TYPE_CHECKING:
    import pyarrow as pa

    from ftcli.core.reading.columns import Kind


FEW = 10
"""Bad rows of a block that are found by the parser's word. A Python pass over a block takes as long as ten of the parser's."""
STOPPED = re.compile(r" in row (\d+)$")
UNSURE = frozenset({"not-utf8", "not-json", "too-deep", "out-of-range"})
"""Verdicts of Python's parser that pyarrow's may not share: about an ignored key, for instance."""


class JsonLines(FileFormat):
    """.jsonl and .ndjson, plain (cut into byte ranges; a piece owns the lines that start in it) or compressed (one piece, streamed).

    Blank lines, CRLF and a byte order mark are accepted; other keys are ignored and may hold anything.
    """

    name = "jsonl"
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson")

    def plan(self, path: str, target_bytes: int, settings: Settings) -> list[Piece]:
        from ftcli.core.files.streams import codec_of, cut_evenly
        from ftcli.core.reading.conversation import columns_of
        from ftcli.core.reading.reject import usable

        columns = columns_of(settings)
        if not usable((line_fault(path, line, columns, of_chat(columns)) for line in first_lines(path, settings)), settings):
            return []
        size = Path(path).stat().st_size
        if codec_of(path):
            return [Piece(path, "jsonl", 0, size, "file", size)]
        return [Piece(path, "jsonl", start, stop, "bytes", stop - start) for start, stop in cut_evenly(size, target_bytes)]

    def found_columns(self, path: str, settings: Settings) -> dict[str, bool]:
        with suppress(StopIteration, ValueError):
            return keys_of(json.loads(next(line for line in first_lines(path, settings) if not isinstance(line, BadRow))[1]))
        return {}

    def label_kind(self, path: str, column: str, settings: Settings) -> Kind | None:
        return kind_of_rows(
            column, settings, lambda columns, tell: (line_fault(path, line, columns, tell) for line in first_lines(path, settings))
        )

    def read(self, piece: Piece, columns: Columns, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
        from ftcli.core.files.streams import line_blocks
        from ftcli.core.reading.columns import batch_of

        from .chatlines import documents

        path, (start, stop) = piece.path, byte_range(piece)
        for offset, block in line_blocks(path, start, stop, longest=settings.dataset.max_line_bytes, reject=reject):
            if block.isspace():
                continue
            try:
                arrays = arrays_of(path, block, columns) if columns.chat is None else documents(path, offset, block, columns, reject)
            except ValueError:
                arrays = _sifted(path, offset, block, columns, reject)
            if arrays:
                yield batch_of(columns, arrays)

    def places(self, piece: Piece, settings: Settings) -> Iterator[Place]:
        for line in lines(piece.path, *byte_range(piece), settings):
            yield Place(start=line.start) if isinstance(line, BadRow) else Place(start=line[0], raw=line[1])


def kind_of_rows(
    column: str, settings: Settings, faults: Callable[[Columns, Callable[[Object], None]], Iterable[BadRow | None]]
) -> Kind | None:
    """What the first rows hold in `column`; `faults` gives what is wrong with each, and tells the function every row that is none."""
    from ftcli.core.reading.columns import kind_of_value, special_kind
    from ftcli.core.reading.reject import usable

    columns = Columns(settings.dataset.text_column, column, flags=tuple(settings.dataset.label_columns or ()), labels_only=True)
    kinds: list[Kind] = []

    def tell(row: Object) -> None:
        if (kind := kind_of_value(column, row[column], special_kind(settings))) is not None:
            kinds.append(kind)

    found = faults(columns, tell)
    usable((bad for bad in found if bad is not None or kinds), settings)  # an empty list does not tell: the next row is asked
    return kinds[0] if kinds else None


class Object(dict[str, Any]):
    """A JSON object that remembers how often a key stood in it."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.keys_found = [key for key, _ in pairs]


DECODER = json.JSONDecoder(object_pairs_hook=Object)
"""Made once: `json.loads` makes one a row, a tenth of the whole of a conversation."""


def parse_row(text: str) -> object:
    """As `json.loads` with `Object`."""
    if text.startswith("\ufeff"):
        raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
    return DECODER.decode(text)


def keys_of(row: object) -> dict[str, bool]:
    """The keys of a row, each with whether a text, a list or an object with something in it stands there."""
    return {key: isinstance(value, (str, list, dict)) and bool(value) for key, value in row.items()} if isinstance(row, dict) else {}


def check_row(row: object, columns: Columns) -> Object:
    """The row, which is an object and has every wanted key once; else raises BadValue."""
    from ftcli.core.reading.column_names import need_key
    from ftcli.core.reading.columns import BadValue, shown, wanted

    if not isinstance(row, Object):
        raise BadValue(
            0, "not-an-object", f"a row must be an object, found {shown(row)}", None, "Each line must hold one complete JSON object."
        )
    for role, name, _ in wanted(columns):
        need_key(role, name, row.keys_found, flags=bool(columns.flags))
    for name in (columns.chat or ()) if len(row) < len(row.keys_found) else ():
        if row.keys_found.count(name) > 1:
            need_key("text", name, row.keys_found)
    return row


def lines(path: str, start: int, stop: int | None, settings: Settings) -> Iterator[tuple[int, bytes] | BadRow]:
    """(offset, line without its end) of all lines that are not blank; one that is too long as a bad row."""
    from ftcli.core.files.streams import line_blocks

    long: list[BadRow] = []
    for offset, block in line_blocks(path, start, stop, longest=settings.dataset.max_line_bytes, reject=long.append):
        yield from drained(long)
        yield from split_lines(offset, block)
    yield from drained(long)


def drained(rows: list[BadRow]) -> Iterator[BadRow]:
    """The rows, which the list has no more."""
    while rows:
        yield rows.pop(0)


def first_lines(path: str, settings: Settings) -> Iterator[tuple[int, bytes] | BadRow]:
    """As `lines`, of a whole file; a file that is no text is refused."""
    from ftcli.core.files.streams import head, refuse_page

    refuse_page(path, head(path))
    return lines(path, 0, None, settings)


def split_lines(offset: int, block: bytes) -> Iterator[tuple[int, bytes]]:
    for line in block.removesuffix(b"\n").split(b"\n"):
        if line.strip():
            yield offset, line
        offset += len(line) + 1


def arrays_of(path: str, block: bytes, columns: Columns) -> list[pa.Array]:
    """As `_arrays`, by the quickest way that gives the same."""
    from ftcli.core.reading.uniform_lines import even_arrays

    found = quick_arrays(block, columns) or even_arrays(block, columns, partial(_arrays, path, columns=columns))
    return found or _arrays(path, block, columns)


def _arrays(path: str, block: bytes, columns: Columns) -> list[pa.Array]:
    """Checked columns. Raises BadValue, or ValueError (pyarrow's errors are ValueErrors), for anything that is not as it should be."""
    import pyarrow as pa
    import pyarrow.json as reader

    from ftcli.core.files.streams import object_lines
    from ftcli.core.reading.columns import check_arrow, target_type, wanted

    if block.lstrip()[:1] != b"{":  # pyarrow 26 crashes (SIGSEGV) on a block that starts with null
        raise ValueError("a row must be an object")
    read = wanted(columns)
    table = reader.read_json(
        pa.BufferReader(block),
        read_options=reader.ReadOptions(use_threads=False, block_size=len(block) + 1),
        parse_options=reader.ParseOptions(
            explicit_schema=pa.schema([(name, target_type(kind)) for _, name, kind in read]), unexpected_field_behavior="ignore"
        ),
    )
    if object_lines(block) != table.num_rows:
        raise ValueError("a line must hold one complete object")  # pyarrow takes two on a line, and one over several lines
    table = table.combine_chunks()
    return [check_arrow(path, role, name, kind, table.column(name).chunk(0)) for role, name, kind in read]


def of_chat(columns: Columns) -> Callable[[Object], object]:
    """A look at a row beyond its keys: conversations have no fixed columns."""
    from ftcli.core.reading.conversation import as_document

    return (lambda _: None) if columns.chat is None else (lambda row: as_document(row, columns))


def _sifted(path: str, offset: int, block: bytes, columns: Columns, reject: Reject) -> list[pa.Array]:
    """The good rows of a refused block; none: an empty list.

    The parser says at which row it stopped; so few bad rows cost about one more pass. Where there are many, or its word does not hold,
    Python names the rows that are surely bad; where it may be stricter than the parser, and for the rest, the parser has the last word:
    whether a row is good must not depend on its neighbours.
    """
    import pyarrow as pa

    from ftcli.core.reading.columns import halved

    rows = list(split_lines(offset, block))
    faults, parts, start = dict[int, BadRow](), list[list[pa.Array]](), 0

    def parsed(first: int, last: int) -> list[pa.Array]:
        return _arrays(path, b"\n".join(line for _, line in rows[first:last]), columns)

    def refused(number: int) -> ValueError | None:
        (_, result), *_ = halved(number, number + 1, parsed)
        return result if isinstance(result, ValueError) else None

    def examined(number: int) -> BadRow | None:
        return line_fault(path, rows[number], columns, lambda row: check_row_values(row, columns))

    for _ in range(FEW):
        stop = start + _stopped(parsed, start, len(rows))
        try:
            parts.append(parsed(start, stop)) if stop > start else None
        except ValueError:
            break
        start = stop
        error = refused(stop) if stop < len(rows) else None
        if error is None:
            break
        faults[stop] = examined(stop) or _row(path, rows[stop], *_verdict(error))
        start = stop + 1
    good = []
    for number in range(start, len(rows)):
        bad = examined(number)
        if bad is not None and (bad.code not in UNSURE or refused(number)):
            faults[number] = bad
        else:
            good.append(number)
    rest = [rows[number] for number in good]
    for first, part in (
        halved(0, len(rest), lambda one, other: _arrays(path, b"\n".join(line for _, line in rest[one:other]), columns)) if rest else ()
    ):
        if isinstance(part, ValueError):
            faults[good[first]] = _row(path, rest[first], *_verdict(part))
        else:
            parts.append(part)
    for number in sorted(faults):
        reject(faults[number])
    return [pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True)]


def _stopped(parsed: Callable[[int, int], list[pa.Array]], start: int, stop: int) -> int:
    """How many rows the parser, by its own words, read before the one that it refused; all, when it refused none."""
    from ftcli.core.reading.columns import BadValue

    if start == stop:
        return 0
    try:
        parsed(start, stop)
    except BadValue as bad:
        return bad.index
    except ValueError as error:
        found = STOPPED.search(str(error))
        return min(int(found[1]), stop - start) if found else 0
    return stop - start


def check_row_values(row: Object, columns: Columns) -> None:
    """Raises BadValue for the first wanted value that is not of its kind."""
    from ftcli.core.reading.columns import check_value, wanted

    for role, name, kind in wanted(columns):
        check_value(role, name, kind, row[name], 0)


def _verdict(error: ValueError) -> tuple[BadCode, str, str | None]:
    """Code, reason and field for a row that only the parser refuses."""
    from ftcli.core.reading.columns import BadValue

    if isinstance(error, BadValue):
        return error.code, error.reason, error.field
    reason = str(error).removesuffix(" in row 0")
    return "surrogate" if "surrogate" in reason.lower() else "not-json", reason, None


def line_fault(path: str, line: tuple[int, bytes] | BadRow, columns: Columns, check: Callable[[Object], object]) -> BadRow | None:
    """What is wrong with a line, as far as Python sees it; `check` raises BadValue."""
    from ftcli.core.files.encodings import utf8_hint
    from ftcli.core.files.streams import bad_utf8
    from ftcli.core.reading.columns import BadValue

    if isinstance(line, BadRow):
        return line
    undecodable = bad_utf8(line[1])
    if undecodable is not None:
        return _row(path, line, "not-utf8", undecodable[1], None, utf8_hint(line[1]))
    try:
        check(check_row(parse_row(line[1].decode()), columns))
    except BadValue as bad:
        whole = {"wrong-type": table_hint, "missing-field": keyed_hint}.get(bad.code) if columns.chat is None else None
        hint = array_hint(path, line) or (whole(line) if whole else "")
        return _row(path, line, bad.code, bad.reason, bad.field, hint or bad.hint)
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}"
        return _row(path, line, "not-json", reason, None, array_hint(path, line) or line_hint(line))
    except RecursionError:
        return _row(path, line, "too-deep", "nested too deeply")
    except ValueError as error:  # a number of more digits than Python reads
        return _row(path, line, "out-of-range", str(error).partition(";")[0])
    return None


def _row(path: str, line: tuple[int, bytes], code: BadCode, reason: str, field: str | None = None, hint: str = "") -> BadRow:
    return BadRow(path, code, reason, start=line[0], size=len(line[1]), field=field, raw=line[1], hint=hint)
