"""Labels that are numbers to be predicted (mode regress): from what a column holds to float32, and the rows whose value is none."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ftcli.core.arrays import values
from ftcli.core.reading.columns import REGRESS, shown
from ftcli.core.reading.reject import Fault
from ftcli.core.targets import IGNORED

HINT = "Correct the row, or set such rows aside with --on-bad quarantine."


def label_numbers(column: pa.Array, name: str) -> tuple[NDArray[np.float32], dict[int, Fault]]:
    """The numbers of the rows, 0 where there is none, and those rows.

    Args:
        column: float64; or strings, as tables of text have them.
        name: of the column, for the faults.
    """
    found = values(column) if pa.types.is_floating(column.type) else _parsed(column)
    with np.errstate(over="ignore"):
        narrow = found.astype(np.float32)
    wrong = ~np.isfinite(narrow) | (narrow == IGNORED)
    faults = {row: _fault(column[row].as_py(), float(narrow[row]), name) for row in np.flatnonzero(wrong).tolist()}
    return np.where(wrong, np.float32(0), narrow), faults


def _parsed(column: pa.Array) -> NDArray[np.float64]:
    """NaN where a string is no number."""
    try:
        return values(pc.cast(column, pa.float64()))
    except pa.ArrowInvalid:
        return np.array([_number(text) for text in column.to_pylist()], np.float64)


def _number(text: str) -> float:
    try:
        return math.nan if "_" in text else float(text)  # Python's numbers may have them
    except ValueError:
        return math.nan


def _fault(value: object, narrow: float, name: str) -> Fault:
    if narrow == IGNORED:
        return Fault(
            "out-of-range", f"{name!r} is {IGNORED}, which is reserved to mark rows that are ignored", name, "Shift or scale the labels."
        )
    number = _number(value) if isinstance(value, str) else value
    if isinstance(number, float) and math.isfinite(number):
        return Fault("out-of-range", f"{name!r} is {number:g}, out of the range of float32", name, HINT)
    return Fault("wrong-type", f"{name!r} is {shown(value)}; in mode {REGRESS} labels must be finite numbers", name, HINT)
