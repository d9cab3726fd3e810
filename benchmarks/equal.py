"""Whether two prepared directories hold the same ids, token by token, as `datasets.load_from_disk` gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, load_from_disk
from numpy.typing import NDArray

STEP = 10_000


class DifferentError(Exception):
    """The outputs differ; the message names the row and both ids."""


def same_ids(ours: Path, theirs: Path) -> tuple[int, int]:
    """Compare every row of `theirs` with the same row of `ours`, which may have more; returns rows and tokens compared.

    Raises:
        DifferentError: a row is missing or differs.
    """
    first, second = _column(ours), _column(theirs)
    rows, tokens = len(second), 0
    if not rows or len(first) < rows:
        raise DifferentError(f"{ours} has {len(first):,} rows, {theirs} has {rows:,}")
    for start in range(0, rows, STEP):
        (left, left_lengths), (right, right_lengths) = (_flat(column.slice(start, STEP)) for column in (first.slice(0, rows), second))
        tokens += len(right)
        if np.array_equal(left_lengths, right_lengths) and np.array_equal(left, right):
            continue
        row = next(row for row in range(start, rows) if first[row].as_py() != second[row].as_py())
        one, other = first[row].as_py(), second[row].as_py()
        place = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))
        shown = (f"{len(ids):,} ids, from {place:,} on {ids[place : place + 8]}" for ids in (one, other))
        raise DifferentError(f"row {row:,} differs: {ours} has {next(shown)}; {theirs} has {next(shown)}")
    return rows, tokens


def rows_of(folder: Path) -> int:
    """Rows of a prepared directory's train split."""
    return len(_column(folder))


def _column(folder: Path) -> pa.ChunkedArray:
    loaded = load_from_disk(str(folder))
    rows: Dataset = loaded["train"] if isinstance(loaded, DatasetDict) else loaded
    return rows.data.column("input_ids")


def _flat(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    lists = column.combine_chunks()
    lists = lists if isinstance(lists, pa.Array) else pa.concat_arrays(lists.chunks)
    return lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64), lists.value_lengths().to_numpy(zero_copy_only=False)
