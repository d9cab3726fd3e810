"""Labels that have a column each, which says whether the label holds in a row: read as lists of labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ftcli.contracts import Columns, LabelKind
from ftcli.core.arrays import numbers, strings, values
from ftcli.core.ragged import to_offsets

YES, NO = ("1", "true", "True", "TRUE"), ("0", "false", "False", "FALSE")
"""What says, in text, that a label holds, and that it does not."""
BETWEEN = "\0"


def joined_labels(batch: pa.RecordBatch, columns: Columns) -> pa.RecordBatch:
    """The batch with one `label` column, lists of names, in place of one a label.

    A value that says neither becomes an item of the list too, the column's name and what it holds with `BETWEEN` between them: it is no label, and so
    refused with its row's place.
    """
    texts = [place for place, name in enumerate(batch.schema.names) if name != "label"]
    flags = [column for name, column in zip(batch.schema.names, batch.columns, strict=True) if name == "label"]
    names = list(columns.flags)
    held = np.zeros((batch.num_rows, len(flags)), np.bool_)
    odd: dict[tuple[int, int], str] = {}
    for number, (column, kind) in enumerate(zip(flags, columns.flag_kinds, strict=True)):
        yes, no = _said(column, kind)
        held[:, number] = yes | ~no
        odd |= {(row, number): f"{names[number]}{BETWEEN}{column[row].as_py()!r}" for row in np.flatnonzero(~(yes | no)).tolist()}
    rows, which = held.nonzero()
    items = (
        strings([odd.get((row, label), names[label]) for row, label in zip(rows.tolist(), which.tolist(), strict=True)])
        if odd
        else _taken(names, which)
    )
    lists = pa.ListArray.from_arrays(numbers(to_offsets(held.sum(1)).astype(np.int32)), items)
    return pa.record_batch(
        [*(batch.column(place) for place in texts), lists], names=[*(batch.schema.names[place] for place in texts), "label"]
    )


def _said(column: pa.Array, kind: LabelKind) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each value says that the label holds, and whether it says that it does not."""
    if kind == "string":
        yes, no = (values(pc.is_in(column, value_set=strings(said))) for said in (YES, NO))
        return yes, no
    found = values(column)
    return (found, ~found) if kind == "bool" else (found == 1, found == 0)


def _taken(names: Sequence[str], which: NDArray[np.int64]) -> pa.Array:
    return strings(names).take(numbers(which))
