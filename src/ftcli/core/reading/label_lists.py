"""Label columns that hold any number of labels a row: lists, and strings that are cut into lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ftcli.core.arrays import flags, numbers, strings, values
from ftcli.core.ragged import Ints, how_often, to_offsets

Labels = NDArray[np.int64] | NDArray[np.uint8] | NDArray[np.float32]
"""Of rows on their way into prepared data: a label id a row, int64 [rows]; or, where a row has any number of labels, whether each holds,
uint8 [rows, labels]; or a number a row that is to be predicted, float32 [rows]."""


def is_list(type_: pa.DataType) -> bool:
    """Whether an Arrow type holds lists."""
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def item_type(type_: pa.DataType) -> pa.DataType:
    """The type of a list's items, or the type itself; of a dictionary, that of its values."""
    if is_list(type_):
        type_ = type_.value_type
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def checked(column: pa.Array, check: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """A column of lists without nulls, its items (all rows', joined) as `check` gives them back."""
    column = column.cast(pa.list_(column.type.value_type))
    return _lists(values(pc.list_value_length(column)).astype(np.int64), check(column.flatten()))


def kinds_of_lists(column: pa.Array) -> Counter[str]:
    """The rows by what their lists may be: the number of flags where a list is nothing but 0 and 1, with the pair itself where there are two of
    them; "labels" of all other lists.

    >>> sorted(kinds_of_lists(pa.array([[0, 1], [1, 1], [1, 0, 0], [1], [], [2, 0]])).items())
    [('2: 01', 1), ('2: 11', 1), ('3', 1), ('labels', 3)]
    """
    counts = values(pc.list_value_length(column)).astype(np.int64)
    items = column.flatten()
    flag_values = numbers(np.arange(2)) if pa.types.is_integer(items.type) else strings(["0", "1"])
    places = pc.index_in(items, value_set=flag_values.cast(items.type))
    ends = to_offsets(counts)
    others = np.concatenate([[0], np.cumsum(~values(places.is_valid()))])
    plain = (counts > 1) & (others[ends[1:]] == others[ends[:-1]])
    kinds = Counter({str(width): int(rows) for width, rows in zip(*how_often(counts[plain & (counts > 2)]), strict=True)})
    ones, first = values(places.fill_null(0)), ends[:-1][plain & (counts == 2)]
    for pair, rows in zip(*how_often(2 * ones[first].astype(np.int64) + ones[first + 1]), strict=True):
        kinds[f"2: {pair:02b}"] = int(rows)
    kinds["labels"] = len(counts) - kinds.total()
    return +kinds


def flags_per_row(kinds: Mapping[str, int]) -> int | None:
    """The number of flags in every row, where the lists are one 0 or 1 a label and not the labels that hold; None where they are not.

    Only that says so which no list of labels has: all rows of one length, nothing but 0 and 1, and one of them twice in a row; or, of two, both in every row
    and now the one first and now the other.

    Args:
        kinds: `kinds_of_lists` of all rows there are. A few of them may look like flags by chance.

    >>> flags_per_row(kinds_of_lists(pa.array([[0, 0, 1], [1, 0, 1]])))
    3
    >>> flags_per_row(kinds_of_lists(pa.array([[0, 1], [0, 1]]))), flags_per_row(kinds_of_lists(pa.array([[2, 0, 1], [1, 0, 0]])))
    (None, None)
    >>> flags_per_row(kinds_of_lists(pa.array([[0, 1], [1, 0]])))
    2
    """
    widths = {kind.split(":")[0] for kind in kinds}
    if len(widths) != 1 or "labels" in kinds or kinds.keys() in ({"2: 01"}, {"2: 10"}):
        return None
    return int(widths.pop())


def row_of_item(column: pa.Array, item: int) -> int:
    """The row that an item (all rows', joined) stands in."""
    counts = values(pc.list_value_length(column))
    return int(np.searchsorted(np.cumsum(counts), item, side="right"))


def parted(column: pa.Array, separator: str) -> pa.Array:
    """Strings cut at `separator` into lists; spaces around a label go, and so does what is then empty.

    >>> parted(pa.array(["a| b", "", "a|"], pa.large_string()), "|").to_pylist()
    [['a', 'b'], [], ['a']]
    """
    lists = pc.split_pattern(column, separator)
    items = pc.utf8_trim_whitespace(lists.flatten())
    kept = values(pc.binary_length(items)) > 0
    rows = np.repeat(np.arange(len(lists)), values(pc.list_value_length(lists)))
    return _lists(np.bincount(rows[kept], minlength=len(lists)), items.filter(flags(kept)))


def _lists(counts: Ints, items: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(numbers(to_offsets(counts).astype(np.int32)), items)
