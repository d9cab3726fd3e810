"""Rows → Arrow IPC stream files that `datasets` opens, in record batches whose size no setting of workers or buffers changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ftcli.core.arrays import numbers
from ftcli.core.files.new_file import NewFile
from ftcli.core.prepare.pairs import TYPES, PairTemplate, types_of, unmarked
from ftcli.core.ragged import Ids, Ints, to_offsets
from ftcli.core.reading.label_lists import Labels
from ftcli.core.targets import labels_of, plain

BATCH_ROWS = 8_192
"""Rows of a record batch at most. Fixed: the bytes of the output must not depend on how many rows were read or buffered at a time."""
FEWEST, MOST = 1 << 18, 1 << 22
"""Bounds of the tokens from which on a record batch has no further row: 1 and 16 MB of ids."""
TEXT_BYTES = 16
"""Bytes of a shard's source for each of them: four batches of a shard of English, that the disk takes while the next rows are encoded. Where it took
all rows of a shard at its end, a worker stood still for a twelfth of its time (Python source)."""


def batch_tokens(size: int) -> int:
    """Tokens that end a record batch of a shard of `size` bytes of source."""
    return max(FEWEST, min(size // TEXT_BYTES, MOST))


def schema(*, labels: bool, packed: bool, targets: bool = False, flags: int = 0, types: bool = False, numbers: bool = False) -> pa.Schema:
    """Columns of prepared data: ids and length always; a type a token where rows hold two texts; a label id or a number a row, or whether each of `flags`
    labels holds, or a label a token; and the lengths of the packed documents where there are any."""
    ids = pa.list_(pa.int32())
    fields = [pa.field("input_ids", ids), pa.field("length", pa.int32())]
    if types:
        fields.append(pa.field(TYPES, pa.list_(pa.int8())))
    if labels:
        fields.append(pa.field("labels", pa.int64()))
    if numbers:
        fields.append(pa.field("labels", pa.float32()))
    if flags:
        fields.append(pa.field("labels", pa.list_(pa.float32(), flags)))
    if targets:
        fields.append(pa.field("labels", ids))
    if packed:
        fields.append(pa.field("seq_lengths", ids))
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that wait to be written: one flat array a column, and where each row begins in the lists."""

    ids: Ids
    offsets: Ints
    labels: Labels | None
    documents: Ids | None
    """Tokens of every document of packed rows."""
    document_offsets: Ints | None

    def cut(self, start: int, stop: int) -> _Rows:
        labels = None if self.labels is None else self.labels[start:stop]
        ids, offsets = _between(self.ids, self.offsets, start, stop)
        if self.documents is None or self.document_offsets is None:
            return _Rows(ids, offsets, labels, None, None)
        return _Rows(ids, offsets, labels, *_between(self.documents, self.document_offsets, start, stop))

    def __len__(self) -> int:
        return len(self.offsets) - 1


class RowWriter:
    """Writes one file, in record batches of `BATCH_ROWS` rows, or of fewer where they have `tokens` tokens.

    Args:
        labels: a row has a label id.
        targets: ids carry marks of what is learned, which become a label a token.
        flags: how many labels there are, of which a row has any number; 0: it has not.
        pair: rows hold two texts, and ids carry marks of the second's.
        numbers: a row has a number that is to be predicted.
        tokens: the row with which a record batch has so many is its last.
        buffer_rows: an execution knob: the batches are written when so many rows, or `tokens` tokens, wait; at least one batch is always buffered.
    """

    def __init__(
        self,
        path: Path,
        *,
        labels: bool,
        packed: bool,
        targets: bool = False,
        flags: int = 0,
        pair: PairTemplate | None = None,
        numbers: bool = False,
        tokens: int = MOST,
        buffer_rows: int = BATCH_ROWS,
    ) -> None:
        self._schema = schema(
            labels=labels, packed=packed, targets=targets, flags=flags, types=pair is not None and pair.types, numbers=numbers
        )
        self._targets, self._pairs = targets, pair is not None
        self.file = NewFile(path)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self.file, mode="w"), self._schema)
        self._tokens, self._buffer_rows = tokens, max(buffer_rows, BATCH_ROWS)
        self._pending: list[_Rows] = []
        self._pending_rows = self._pending_tokens = 0

    def add(self, ids: Ids, lengths: Ints, labels: Labels | None = None, seq_lengths: tuple[Ids, Ints] | None = None) -> None:
        """Append rows.

        Args:
            ids: int32, all rows joined.
            lengths: int64 [rows].
            labels: int64 or float32 [rows], or uint8 [rows, labels].
            seq_lengths: tokens of every document, joined, and documents of every row.
        """
        documents, counts = seq_lengths or (None, None)
        offsets = to_offsets(lengths)
        assert offsets[-1] == len(ids)
        self._pending.append(_Rows(ids, offsets, labels, documents, None if counts is None else to_offsets(counts)))
        self._pending_rows += len(lengths)
        self._pending_tokens += len(ids)
        if self._pending_rows >= self._buffer_rows or self._pending_tokens >= self._tokens:
            while rows := self._whole():
                self._write(rows)

    def _whole(self) -> int:
        """Rows of the next record batch; 0 where not all of them are there yet."""
        rows = tokens = 0
        for part in self._pending:
            enough = min(BATCH_ROWS - rows, int(np.searchsorted(part.offsets, self._tokens - tokens)))
            if enough <= len(part):
                return rows + enough
            rows, tokens = rows + len(part), tokens + int(part.offsets[-1])
        return 0

    def _write(self, rows: int) -> None:
        """Write the first `rows` rows that wait, as one record batch."""
        taken: list[_Rows] = []
        missing = rows
        while missing:
            first = self._pending.pop(0)
            taken.append(first.cut(0, min(missing, len(first))))
            if len(first) > missing:
                self._pending.insert(0, first.cut(missing, len(first)))
            missing -= len(taken[-1])
        self._pending_rows -= rows
        self._pending_tokens -= sum(len(part.ids) for part in taken)
        self._writer.write_batch(_batch(taken, self._schema, targets=self._targets, pairs=self._pairs))

    def close(self) -> None:
        """Write what is buffered and end the file."""
        while self._pending_rows:
            self._write(self._whole() or self._pending_rows)
        self._writer.close()
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self.file.abandon()


def _between(values: Ids, offsets: Ints, start: int, stop: int) -> tuple[Ids, Ints]:
    """The lists start..stop of a list column."""
    return values[offsets[start] : offsets[stop]], offsets[start : stop + 1] - offsets[start]


def _batch(parts: Sequence[_Rows], schema: pa.Schema, *, targets: bool, pairs: bool) -> pa.RecordBatch:
    """The rows joined, copied once, into buffers that hold nothing else: on disk Arrow fills a buffer up to 64 bytes with whatever follows
    it in memory."""
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    ids = np.concatenate([part.ids for part in parts])
    columns = [_lists(plain(ids) if targets else unmarked(ids) if pairs else ids, lengths), numbers(lengths.astype(np.int32))]
    if TYPES in schema.names:
        columns.append(_lists(types_of(ids), lengths))
    if parts[0].labels is not None:
        labels = np.concatenate([part.labels for part in parts if part.labels is not None])
        columns.append(numbers(labels) if labels.ndim == 1 else _flags(labels))
    if targets:
        columns.append(_lists(labels_of(ids), lengths))
    if parts[0].documents is not None:
        counts = np.concatenate([np.diff(part.document_offsets) for part in parts if part.document_offsets is not None])
        columns.append(_lists(np.concatenate([part.documents for part in parts if part.documents is not None]), counts))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _flags(labels: NDArray[np.uint8]) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(numbers(labels.astype(np.float32).ravel()), labels.shape[1])


def _lists(values: Ids | NDArray[np.int8], lengths: Ints) -> pa.ListArray:
    offsets = to_offsets(lengths)
    assert offsets[-1] == len(values) < 2**31
    return pa.ListArray.from_arrays(numbers(offsets.astype(np.int32)), numbers(values))


def split_metadata(
    *,
    files: Sequence[str],
    fingerprint: str,
    split: str,
    label_names: Sequence[str] | None,
    packed: bool,
    rows: int,
    size: int,
    targets: bool = False,
    multi_label: bool = False,
    types: bool = False,
    regression: bool = False,
) -> dict[str, str]:
    """The small files that make a split's folder a `datasets.Dataset`: name → content."""
    integer = {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "List"}
    features: dict[str, Any] = {"input_ids": integer, "length": {"dtype": "int32", "_type": "Value"}}
    if types:
        features[TYPES] = {"feature": {"dtype": "int8", "_type": "Value"}, "_type": "List"}
    if label_names is not None and multi_label:
        features["labels"] = {"feature": {"dtype": "float32", "_type": "Value"}, "length": len(label_names), "_type": "List"}
    elif label_names is not None:
        features["labels"] = {"names": list(label_names), "_type": "ClassLabel"}
    if regression:
        features["labels"] = {"dtype": "float32", "_type": "Value"}
    if targets:
        features["labels"] = integer
    if packed:
        features["seq_lengths"] = integer
    state: Mapping[str, Any] = {
        "_data_files": [{"filename": name} for name in files],
        "_fingerprint": fingerprint[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    info = {
        "builder_name": "ftcli",
        "features": features,
        "splits": {split: {"name": split, "num_bytes": size, "num_examples": rows, "dataset_name": "ftcli"}},
    }
    return {"state.json": json.dumps(state, indent=2), "dataset_info.json": json.dumps(info, indent=2, ensure_ascii=False)}
