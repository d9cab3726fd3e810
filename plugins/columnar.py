"""Parquet by row groups, Arrow IPC files and streams by record batches; large ones of either by their rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import accumulate, count, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.contracts import Columns, Place, Reject
from ftcli.errors import DataError
from ftcli.records import BadRow, Piece
from ftcli.settings import Settings

from .fileformat import FileFormat
from .rowrange import RowRange, going_on

if TYPE_CHECKING:
    import pyarrow as pa

    from ftcli.core.reading.columns import Kind

PARQUET_ROWS = 8192
"""Rows of a batch from a parquet file, at most."""
BATCH_BYTES = 32 << 20
"""About what a batch may hold of the columns that are read: with rows of up to 4 kB it has `PARQUET_ROWS`. 300 rows of 1 MB as one batch took 7.2 GB to
tokenize, in batches of 16 rows 2.1, of which 1 is pyarrow's for the one page that they are in."""
MOST_PARTS = 64
"""Of one row group: cores of a large machine, each of which decodes it once."""
PARTITIONED = (
    'Combine the partitions into one table: python -c "import pyarrow.dataset as d, pyarrow.parquet as p; '
    "p.write_table(d.dataset('FOLDER', partitioning='hive').to_table(), 'NEW.parquet')\""
)


class Columnar(FileFormat):
    """A format whose rows are counted through the file."""

    def places(self, piece: Piece, settings: Settings) -> Iterator[Place]:
        return (Place(row=row) for row in count(piece.start + 1))


class Parquet(Columnar):
    """.parquet. Only the columns asked for are decoded."""

    name = "parquet"
    suffixes: tuple[str, ...] = (".parquet",)

    def plan(self, path: str, target_bytes: int, settings: Settings) -> list[Piece]:
        from ftcli.core.reading.conversation import columns_of

        with _parquet(path) as file:
            _check_columns(path, file.schema_arrow, columns_of(settings))
            metadata = file.metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            weights = [sum(group.column(i).total_compressed_size for i in range(group.num_columns)) for group in groups]
            return _pieces(path, self.name, [group.num_rows for group in groups], weights, target_bytes)

    def found_columns(self, path: str, settings: Settings) -> dict[str, bool]:
        with _parquet(path) as file:
            return _found(file.schema_arrow)

    def label_kind(self, path: str, column: str, settings: Settings) -> Kind:
        from ftcli.core.reading.columns import special_kind

        with _parquet(path) as file:
            return _kind(path, column, file.schema_arrow, special_kind(settings))

    def label_names(self, path: str, column: str) -> tuple[str, ...] | None:
        from ftcli.core.reading.class_labels import class_names

        with _parquet(path) as file:
            return class_names(file.schema_arrow.metadata, column)

    def read(self, piece: Piece, columns: Columns, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
        from ftcli.core.files.streams import data_errors

        path = piece.path
        with _parquet(path) as file, data_errors(path):
            _check_columns(path, file.schema_arrow, columns)
            names = _names(path, columns, file.schema_arrow.names)
            metadata = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            bounds = [0, *accumulate(group.num_rows for group in metadata)]
            inside = [i for i, (start, stop) in enumerate(pairwise(bounds)) if start < piece.stop and piece.start < stop]
            for most, groups in groupby(inside, lambda i: _rows_of_group(metadata[i], names)):
                read = list(groups)
                first, last = bounds[read[0]], bounds[read[-1] + 1]
                begin = partial(_decoded, path, first, batch_size=most, row_groups=read, columns=names, use_threads=False)
                cut = first < piece.start or piece.stop < last
                rows = going_on((*names, *read), piece, begin) if cut else begin(file).rows(piece)
                for row, batch in rows:
                    yield from _checked(path, columns, batch, row, settings, reject)


class ArrowIpc(Columnar):
    """.arrow, .arrows, .feather and .ipc: the file and the stream layout (as `datasets` writes it), memory-mapped."""

    name = "arrow"
    suffixes: tuple[str, ...] = (".arrow", ".arrows", ".feather", ".ipc")

    def plan(self, path: str, target_bytes: int, settings: Settings) -> list[Piece]:
        from ftcli.core.reading.conversation import columns_of

        columns = columns_of(settings)
        sizes = [(batch.num_rows, batch.get_total_buffer_size() + 1) for batch in _ipc_batches(path, columns)]
        return _pieces(path, "arrow", [rows for rows, _ in sizes], [size for _, size in sizes], target_bytes)

    def found_columns(self, path: str, settings: Settings) -> dict[str, bool]:
        return _found(_ipc_schema(path))

    def label_kind(self, path: str, column: str, settings: Settings) -> Kind:
        from ftcli.core.files.streams import data_errors
        from ftcli.core.reading.columns import special_kind

        with data_errors(path):
            return _kind(path, column, _ipc_schema(path), special_kind(settings))

    def label_names(self, path: str, column: str) -> tuple[str, ...] | None:
        from ftcli.core.files.streams import data_errors
        from ftcli.core.reading.class_labels import class_names

        with data_errors(path):
            return class_names(_ipc_schema(path).metadata, column)

    def read(self, piece: Piece, columns: Columns, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
        rows = going_on((columns,), piece, lambda: RowRange(0, _ipc_batches(piece.path, columns)))
        for row, batch in rows:
            most = _rows_at_a_time(batch.nbytes, batch.num_rows, batch.num_rows)
            for start in range(0, batch.num_rows, most):
                yield from _checked(piece.path, columns, batch.slice(start, most), row + start, settings, reject)


def _parquet(path: str) -> Any:
    import pyarrow.parquet as reader

    from ftcli.core.files.streams import data_errors

    _refuse_compressed(path)
    with data_errors(path):
        return reader.ParquetFile(path, pre_buffer=False)  # 3.1 to 2.6 ms a MB of texts; no later either where the disk has to be read


def _decoded(path: str, row: int, file: Any = None, **options: Any) -> RowRange:
    """Batches that begin behind `row` rows of a file, which is opened anew where it is not given: then it stays open as long as the batches are."""
    return RowRange(row, (file or _parquet(path)).iter_batches(**options))


def _rows_of_group(group: Any, names: list[str]) -> int:
    """Rows of a batch from a row group, by what its metadata say of the columns `names`."""
    columns = (group.column(i) for i in range(group.num_columns))
    beginnings = tuple(f"{name}." for name in names)
    size = sum(column.total_uncompressed_size for column in columns if f"{column.path_in_schema}.".startswith(beginnings))
    return _rows_at_a_time(size, group.num_rows, PARQUET_ROWS)


def _rows_at_a_time(size: int, rows: int, most: int) -> int:
    """Rows of a batch, of so many rows of so many bytes: `most`, halved until rows of the mean length fill no more than `BATCH_BYTES`. By halves, so
    that row groups of nearly the same mean are read in one go."""
    while most > 1 and size * most > BATCH_BYTES * rows:
        most //= 2
    return max(1, most)


def _ipc_batches(path: str, columns: Columns) -> Iterator[pa.RecordBatch]:
    """All record batches, the asked-for columns only. Uncompressed ones are views of the memory map, so that skipping some is cheap."""
    import pyarrow as pa

    from ftcli.core.files.streams import data_errors

    with data_errors(path):
        schema = _ipc_schema(path)
        _check_columns(path, schema, columns)
        options = pa.ipc.IpcReadOptions(
            included_fields=[schema.get_field_index(name) for name in _names(path, columns, schema.names)], use_threads=False
        )
        with pa.memory_map(path) as source:
            if _is_ipc_file(path):
                reader = pa.ipc.open_file(source, options=options)
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                yield from pa.ipc.open_stream(source, options=options)


def _ipc_schema(path: str) -> pa.Schema:
    import pyarrow as pa

    _refuse_compressed(path)
    with Path(path).open("rb") as file:
        if file.read(4) == b"FEA1":
            raise DataError(
                f"{path}: the file is in Feather version 1",
                "Convert it to parquet: pandas.read_feather(OLD).to_parquet(NEW).",
            )
    with pa.memory_map(path) as source:
        return (pa.ipc.open_file(source) if _is_ipc_file(path) else pa.ipc.open_stream(source)).schema


def _is_ipc_file(path: str) -> bool:
    with Path(path).open("rb") as file:
        return file.read(6) == b"ARROW1"


def _refuse_compressed(path: str) -> None:
    from ftcli.core.files.streams import codec_of

    if codec_of(path):
        raise DataError(
            f"{path}: columnar files compress their own columns and are not read inside {Path(path).suffix}", "Decompress it first."
        )


def _names(path: str, columns: Columns, there: list[str]) -> list[str]:
    """The columns to read."""
    from ftcli.core.reading.columns import wanted
    from ftcli.core.reading.conversation import present

    return [name for _, name, _ in wanted(columns)] if columns.chat is None else list(present(columns, there, path))


def _found(schema: pa.Schema) -> dict[str, bool]:
    """The columns, each with whether it holds strings, lists or objects."""
    from pyarrow import types

    kinds = (types.is_string, types.is_large_string, types.is_string_view, types.is_dictionary, types.is_nested)
    return {field.name: any(is_kind(field.type) for is_kind in kinds) for field in schema}


def _check_columns(path: str, schema: pa.Schema, columns: Columns) -> None:
    from ftcli.core.reading.column_names import need_column
    from ftcli.core.reading.columns import wanted
    from ftcli.core.reading.conversation import present
    from ftcli.core.reading.label_lists import is_list

    if columns.chat is not None:
        present(columns, schema.names, path, [field.name for field in schema if is_list(field.type)])
    for role, name, _ in wanted(columns):
        above = next((part for part in Path(path).parent.parts if part.startswith(f"{name}=")), None)
        if above and name not in schema.names:
            raise DataError(f"{path}: the column {name!r} is not in the file: its value is in the folder name ({above})", PARTITIONED)
        need_column(path, role, name, schema.names, flags=bool(columns.flags))


def _kind(path: str, column: str, schema: pa.Schema, special: Kind | None) -> Kind:
    from ftcli.core.reading.column_names import need_column
    from ftcli.core.reading.columns import kind_of_type

    need_column(path, "label", column, schema.names, flags=special == "bool")
    return kind_of_type(path, column, schema.field(column).type, special)


def _pieces(path: str, name: str, rows: list[int], weights: list[int], target_bytes: int) -> list[Piece]:
    """Consecutive parts of so many rows, joined to about `target_bytes` of the file or cut where they are much larger; sizes add up to the file's size."""
    held = [(count, weight) for count, weight in zip(rows, weights, strict=True) if count]
    size, total = Path(path).stat().st_size, max(1, sum(weight for _, weight in held))
    ends = [(0, 0)]
    """Rows and bytes before each part, and behind the last."""
    for count_, weight in held:
        (row, place), parts = ends[-1], min(MOST_PARTS, count_, max(1, size * weight // (total * target_bytes)))
        ends += [(row + count_ * i // parts, place + weight * i // parts) for i in range(1, parts + 1)]
    places = [size * place // total for _, place in ends]
    starts = [next(group) for _, group in groupby(range(len(ends) - 1), lambda i: (places[i] + target_bytes // 16) // target_bytes)]
    return [Piece(path, name, ends[a][0], ends[b][0], "rows", places[b] - places[a]) for a, b in pairwise([*starts, len(ends) - 1])]


def _checked(path: str, columns: Columns, batch: pa.RecordBatch, row: int, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
    """The batches of the contract without bad rows; `row` is how many rows of the file come before this batch."""
    from ftcli.core.files.streams import data_errors
    from ftcli.core.reading.columns import BadValue, batch_of, check_arrow, halved, wanted

    longest = settings.dataset.max_line_bytes

    def checked(start: int, stop: int) -> pa.RecordBatch:
        part = batch.slice(start, stop - start)
        with data_errors(path):
            return batch_of(columns, [check_arrow(path, *column, part.column(column[1]), longest) for column in wanted(columns)])

    for start, part in halved(0, batch.num_rows, checked if columns.chat is None else partial(_documents, batch, columns)):
        if isinstance(part, BadValue):
            raw = None if part.field is None or part.field not in batch.schema.names else _raw(batch.column(part.field), start)
            bad = BadRow(
                path, part.code, part.reason, row=row + start + 1, size=None if raw is None else len(raw), field=part.field, raw=raw
            )
            reject(bad)
        else:
            yield part


def _documents(batch: pa.RecordBatch, columns: Columns, start: int, stop: int) -> pa.RecordBatch:
    """Conversations start … stop - 1 as a batch of the contract; raises BadValue."""
    from ftcli.core.arrays import strings
    from ftcli.core.reading.columns import BadValue, batch_of
    from ftcli.core.reading.conversation import as_document

    try:
        rows = batch.slice(start, stop - start).to_pylist()
    except UnicodeDecodeError as error:
        raise BadValue(0, "not-utf8", f"the conversation is not UTF-8: {error.reason}", columns.text) from None
    return batch_of(columns, [strings(as_document(_unfilled(row), columns) for row in rows)])


def _unfilled(value: Any) -> Any:
    """Without the nulls by which a table gives all objects of a column the same keys: else each call of a tool would have the arguments of all."""
    if isinstance(value, dict):
        return {key: _unfilled(item) for key, item in value.items() if item is not None}
    return [_unfilled(item) for item in value] if isinstance(value, list) else value


def _raw(column: pa.Array, row: int) -> bytes | None:
    """The bytes of a value, or its digits; None for a null."""
    import pyarrow as pa

    value = column.slice(row, 1)
    if pa.types.is_dictionary(value.type):
        value = value.dictionary_decode()
    if value.null_count:
        return None
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        return bytes(value.cast(pa.large_binary())[0].as_py())
    return str(value[0].as_py()).encode()
