"""What the source format of a plugin gives, looked at: pieces that are pieces, and batches with the columns of the contract."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from ftcli.contracts import Columns, Reject, SourceFormat
from ftcli.core.reading.columns import wanted
from ftcli.errors import PluginError
from ftcli.pluginfaults import named
from ftcli.pluginparts import Made
from ftcli.records import Piece
from ftcli.registry import AnyRegistry
from ftcli.settings import Settings

HINT = "ftcli.contracts.SourceFormat says what plan and read give; docs/hooks.md has a small one."


def owner_of(formats: AnyRegistry, name: str) -> str | None:
    """The plugin that offers this format; None when it is ftcli's own."""
    made = formats.get(name)
    return made.plugin if isinstance(made, Made) else None


def planned_pieces(reader: SourceFormat, path: str, target: int, settings: Settings, owner: str | None) -> list[Piece]:
    """A file's pieces.

    Raises:
        PluginError: the plugin's `plan` breaks, or gives something else than a list of pieces.
    """
    with named(f"source {reader.name}", owner, HINT):
        pieces: Any = reader.plan(path, target, settings)
    if owner is not None and not (isinstance(pieces, list) and all(isinstance(piece, Piece) for piece in pieces)):
        _refuse(reader, owner, f"plan returned {type(pieces).__name__}, not a list of Piece")
    return pieces  # type: ignore[no-any-return]  # ftcli's own gives that


def batches(formats: AnyRegistry, piece: Piece, columns: Columns, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
    """A piece's rows.

    Raises:
        PluginError: the plugin's `read` breaks, or gives something else than record batches with these columns.
    """
    reader: SourceFormat = formats.get(piece.format)()
    owner = owner_of(formats, piece.format)
    with named(f"source {reader.name}", owner, HINT):
        found: Any = reader.read(piece, columns, settings, reject)
    if owner is None:
        yield from found
        return
    if not isinstance(found, Iterable) or isinstance(found, (pa.Table, pa.RecordBatch)):
        _refuse(reader, owner, f"read returned {type(found).__name__}: it yields record batches")
    with named(f"source {reader.name}", owner, HINT):
        rows = iter(found)
    while True:
        with named(f"source {reader.name}", owner, HINT):
            batch = next(rows, None)
        if batch is None:
            return
        if fault := _fault(batch, columns):
            _refuse(reader, owner, fault)
        yield batch


def _fault(batch: Any, columns: Columns) -> str:
    if not isinstance(batch, pa.RecordBatch):
        return f"read yields {type(batch).__name__}, not a RecordBatch"
    for name, kind in {role: kind for role, _, kind in wanted(columns)}.items():
        if name not in batch.schema.names:
            return f"read yields no column {name!r}, only {', '.join(map(repr, batch.schema.names))}"
        for column in (column for other, column in zip(batch.schema.names, batch.columns, strict=True) if other == name):
            if column.null_count:
                return f"read yields nulls in {name!r}: reject such a row"
            if kind == "string" and not pa.types.is_large_string(column.type):
                return f"read yields {name!r} as {column.type}, not as large_string"
    return ""


def _refuse(reader: SourceFormat, owner: str, fault: str) -> None:
    raise PluginError(f"the source {reader.name} of plugin {owner!r} breaks its contract: {fault}", HINT)
