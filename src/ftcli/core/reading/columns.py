"""The text and label columns of a source: exact types, no nulls, UTF-8, and errors that say which value is wrong."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ftcli.contracts import Columns, LabelKind
from ftcli.core.reading import jq
from ftcli.core.reading.label_lists import checked, is_list, item_type, row_of_item
from ftcli.core.reading.soundness import are_utf8
from ftcli.errors import DataError
from ftcli.records import BadCode
from ftcli.settings import Settings

Kind = LabelKind
Role = Literal["text", "pair", "label"]
T = TypeVar("T")
WORDS: dict[Kind, str] = {
    "int": "whole numbers",
    "string": "strings",
    "ints": "lists of whole numbers",
    "strings": "lists of strings",
    "bool": "true or false",
    "float": "numbers",
}
ONE: dict[Kind, Kind] = {"int": "int", "string": "string", "ints": "int", "strings": "string", "bool": "bool", "float": "float"}
"""The kind of a list's items; any other kind itself."""
PYTHON: dict[Kind, type] = {"int": int, "string": str, "bool": bool, "float": float}
REGRESS = "regress"
"""The mode in which labels are numbers that are to be predicted."""
CONVERT: dict[Kind | None, str] = {
    "float": f"ftcli does not convert values: convert the column. To predict the number itself: --mode {REGRESS}.",
    None: "ftcli does not convert values: convert the column.",
}
FLATTENED = """python -c "import pyarrow.parquet as p; p.write_table(p.read_table('OLD').flatten(), 'NEW.parquet')\""""
MUST: dict[Kind, str] = {
    "float": f"in mode {REGRESS} labels must be numbers",
    "bool": "each label column must hold 0 or 1, or false or true",
}
"""Of the kinds that only some runs read."""
FLAGS = (
    "Write the positions of the set flags, in Python [i for i, flag in enumerate(row) if flag]; or give each label its own column and name the columns "
    "with --label-columns."
)
"""What to do about a list of one flag a label."""
LABELS = "strings, whole numbers, true or false, or lists of strings or whole numbers"
LEAST, MOST = -(2**63), 2**63 - 1


class BadValue(ValueError):  # noqa: N818 - turned into a BadRow by the reader, which knows the place
    """Row `index` (from 0, of what was checked) cannot be used."""

    def __init__(self, index: int, code: BadCode, reason: str, field: str | None = None, hint: str = "") -> None:
        super().__init__(reason)
        self.index, self.code, self.reason, self.field, self.hint = index, code, reason, field, hint


def wanted(columns: Columns) -> list[tuple[Role, str, Kind]]:
    """(role, column, kind) of every column to read, texts first; none of conversations, whose columns differ from row to row."""
    if columns.chat is not None:
        return []
    texts: list[tuple[Role, str, Kind]] = [] if columns.labels_only else [("text", columns.text, "string")]
    if columns.pair is not None and not columns.labels_only:
        texts.append(("pair", columns.pair, "string"))
    texts += [("label", name, kind) for name, kind in zip(columns.flags, columns.flag_kinds, strict=False)]
    return texts if columns.label is None else [*texts, ("label", columns.label, columns.label_kind or "string")]


def target_type(kind: Kind) -> pa.DataType:
    one = {"int": pa.int64(), "bool": pa.bool_(), "float": pa.float64()}.get(ONE[kind], pa.large_string())
    return one if ONE[kind] == kind else pa.list_(one)


def batch_of(columns: Columns, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
    """The record batch of the contract: arrays are in the order of `wanted`."""
    return pa.record_batch(list(arrays), names=["text"] if columns.chat is not None else [role for role, _, _ in wanted(columns)])


def special_kind(settings: Settings) -> Kind | None:
    """The kind of label that only some runs read: numbers that are to be predicted, or whether a label holds."""
    return "float" if settings.train.mode == REGRESS else "bool" if settings.dataset.label_columns else None


def kind_of_type(where: str, name: str, type_: pa.DataType, special: Kind | None) -> Kind:
    """The label kind of an Arrow column.

    Raises:
        DataError: it holds neither strings nor whole numbers, nor lists of them, nor true and false.
    """
    if special is not None and _fits(type_, special):
        return special
    if _is_string(item_type(type_)):
        return "strings" if is_list(type_) else "string"
    if pa.types.is_integer(item_type(type_)):
        return "ints" if is_list(type_) else "int"
    if special is None and pa.types.is_boolean(type_):
        return "bool"
    kind: Kind | None = "float" if special is None and _fits(type_, "float") else None
    flags = is_list(type_) and (pa.types.is_floating(item_type(type_)) or pa.types.is_boolean(item_type(type_)))
    hint = FLAGS if flags and special is None else _parts(where, name, type_) or CONVERT[kind]
    if kind and hint == CONVERT[kind]:
        hint += " If all values are whole numbers, pandas' .astype('int64') or Dataset.cast_column make them so."
    raise DataError(f"{where}: column {name!r} holds {type_}; {_kinds(special)}", hint)


def _parts(where: str, name: str, type_: pa.DataType) -> str:
    """What to do about a column of objects, as KLUE's labels are."""
    if not pa.types.is_struct(type_) or not type_.num_fields:
        return ""
    first = type_.field(0).name
    if where.endswith(".parquet"):
        return f"{FLATTENED} makes columns of its fields, such as {name}.{first}."
    return f"Turn its fields into columns with pyarrow's Table.flatten() or Dataset.flatten(), then use a column such as {name}.{first}."


def kind_of_value(name: str, value: object, special: Kind | None = None) -> Kind | None:
    """The label kind of a Python value, None of an empty list, which does not tell; raises BadValue (index 0)."""
    if isinstance(value, str):
        return "string"
    if special is not None and is_one(special, value):
        return special
    if isinstance(value, Integral) and not isinstance(value, bool):
        return "int"
    if isinstance(value, bool) and special is None:
        return "bool"
    hint = CONVERT["float"] if special is None and isinstance(value, float) else ""
    if hint and isinstance(value, float) and value.is_integer():
        hint += f" If all values are whole numbers: {jq.changed(f'{jq.key(name)} |= floor')}"
    if isinstance(value, dict) and value:
        hint = jq.part_of(name, value)
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (bool, float)):
        hint = FLAGS if special is None else ""
    elif isinstance(value, (list, tuple)):
        first = kind_of_value(name, value[0]) if value else None
        if first in {"string", "int", None}:
            return "strings" if first == "string" else "ints" if first == "int" else None
    code: BadCode = "null" if value is None else "wrong-type"
    raise BadValue(0, code, f"{name!r} is {shown(value)}; {_kinds(special)}", name, hint)


def check_arrow(where: str, role: Role, name: str, kind: Kind, column: pa.Array, longest: int = MOST) -> pa.Array:
    """An Arrow column as the contract wants it.

    Args:
        longest: bytes that a string may have.

    Raises:
        DataError: the column's type cannot be right. BadValue: a null, bad UTF-8, too long a string or too large a number, by row.
        pa.ArrowInvalid: the column is damaged.
    """
    try:
        if not are_utf8(column):
            column.validate(full=True)  # offsets and UTF-8
    except pa.ArrowInvalid:
        _check_layout(column)
        column = _decoded(column)
        if (index := _first_invalid(column)) is not None:
            raise BadValue(index, "not-utf8", f"{name!r} is not UTF-8", name) from None
    column = _decoded(column)
    if column.null_count and (pa.types.is_null(column.type) or _fits(column.type, kind)):
        raise BadValue(pc.index(column.is_null(), pa.scalar(True)).as_py(), "null", f"{name!r} is null; {_must(role, kind)}", name)
    if not _fits(column.type, kind):
        hint = _parts(where, name, column.type) or "ftcli does not convert values: convert the column."
        raise DataError(f"{where}: column {name!r} holds {column.type}; {_must(role, kind)}", hint)
    if ONE[kind] != kind:
        return _checked_lists(where, name, kind, column, longest)
    if kind == "string" and column.nbytes > longest:
        check_lengths(name, pc.binary_length(column.cast(target_type(kind))), longest)
    try:
        return column.cast(target_type(kind))
    except pa.ArrowInvalid:
        large = pc.index(pc.greater(column, pa.scalar(MOST, pa.uint64())), pa.scalar(True)).as_py()
        raise BadValue(large, "out-of-range", f"{name!r} does not fit into a signed 64-bit integer", name) from None


def _checked_lists(where: str, name: str, kind: Kind, column: pa.Array, longest: int) -> pa.Array:
    """A list column without nulls as the contract wants it; what is wrong with an item is said of its row."""
    try:
        return checked(column, lambda items: check_arrow(where, "label", name, ONE[kind], items, longest))
    except BadValue as bad:
        raise BadValue(row_of_item(column, bad.index), bad.code, f"an item of {bad.reason}", name, bad.hint) from None


def check_lengths(name: str, lengths: pa.Array, longest: int) -> None:
    """Raises BadValue for the first string that has more bytes than it may."""
    index = pc.index(pc.greater(lengths, longest), pa.scalar(True)).as_py()
    if index >= 0:
        size = lengths[index].as_py()
        raise BadValue(index, "line-too-long", f"{name!r} has {size:,} bytes, more than max_line_bytes {longest:,}", name)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _check_layout(column: pa.Array) -> None:
    """Raises pyarrow's own error, unless nothing is wrong with the column but the bytes of its strings: only then it can be looked at."""
    if pa.types.is_dictionary(column.type):
        _check_layout(column.dictionary)
        bounds = pc.min_max(column.indices).as_py()
        if len(column) > column.null_count and not 0 <= bounds["min"] <= bounds["max"] < len(column.dictionary):
            raise pa.ArrowInvalid("a dictionary index is out of range")
    elif _is_string(column.type):
        binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(column.type, pa.binary_view())
        pa.Array.from_buffers(binary, len(column), column.buffers(), offset=column.offset).validate(full=True)
    else:
        column.validate(full=True)


def _first_invalid(column: pa.Array) -> int | None:
    """The first row that makes the column invalid; None where it is an unused entry of a dictionary that did."""
    for index in range(len(column)):
        try:
            column.slice(index, 1).validate(full=True)
        except pa.ArrowInvalid:
            return index
    return None


def check_values(role: Role, name: str, kind: Kind, values: list[Any]) -> pa.Array:
    """Python values as the contract wants them; raises BadValue for the first that is not right."""
    if ONE[kind] != kind or set(map(type, values)) - {PYTHON[kind]}:
        for index, value in enumerate(values):
            check_value(role, name, kind, value, index)
    try:
        return pa.array([*map(_float, values)] if kind == "float" else values, target_type(kind))
    except (UnicodeEncodeError, OverflowError, pa.ArrowException):
        for index, value in enumerate(values):
            check_value(role, name, kind, value, index)
        raise


def _float(value: Any) -> float:
    """As Arrow reads it: whole numbers as the nearest there is, infinite beyond; whoever takes labels says what is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def check_value(role: Role, name: str, kind: Kind, value: object, index: int) -> bool:
    """True; or raises BadValue that says what `value` is and what it must be."""
    if ONE[kind] != kind and isinstance(value, (list, tuple)):
        try:
            return all(check_value(role, name, ONE[kind], item, index) for item in value)
        except BadValue as bad:
            raise BadValue(index, bad.code, f"an item of {bad.reason}", name) from None
    if not is_one(kind, value):
        code: BadCode = "null" if value is None else "wrong-type"
        way = jq.text_in(name, value) if role != "label" else ""
        raise BadValue(index, code, f"{name!r} is {shown(value)}; {_must(role, kind)}", name, way)
    if isinstance(value, Integral) and ONE[kind] != "float" and not LEAST <= int(value) <= MOST:
        raise BadValue(index, "out-of-range", f"{name!r} is {shown(value)}, which does not fit into a signed 64-bit integer", name)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            reason = f"{name!r} holds the lone surrogate U+{ord(value[error.start]):04X}, which no UTF-8 text can"
            raise BadValue(index, "surrogate", reason, name) from None
    return True


def is_one(kind: Kind, value: object) -> bool:
    """Whether a Python value is of a kind that is no list."""
    if kind == "int":
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind == "float":
        return isinstance(value, (Integral, float)) and not isinstance(value, bool)
    return isinstance(value, {"string": str, "bool": bool}.get(kind, ()))


def halved(start: int, stop: int, read: Callable[[int, int], T]) -> Iterator[tuple[int, T | ValueError]]:
    """What `read` makes of rows start..stop, without those that it refuses: (first row, result), or (row, why) of a bad one, in order.

    A refused part is asked about in halves, so that a block with few bad rows costs little, and the reader's own verdict blames a row.
    """
    try:
        yield start, read(start, stop)
    except ValueError as error:
        if stop - start == 1:
            yield start, error
            return
        middle = (start + stop) // 2
        yield from halved(start, middle, read)
        yield from halved(middle, stop, read)


def shown(value: object) -> str:
    """A found value for a message, as JSON would write it, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = _SHORT.repr(value)
    return (text if len(text) <= 60 else text[:59] + "…") + f" ({_word(value)})"


class _Short(reprlib.Repr):
    """`repr` whose cost does not grow with the value: a few bytes may stand for 2²⁹ leaves."""

    def repr_str(self, x: str | bytes, _: int) -> str:
        return repr(x[:61])

    repr_bytes = repr_str

    def repr_int(self, x: int, _: int) -> str:
        return repr(x) if x.bit_length() <= 512 else f"an integer of {x.bit_length():,} bits"


_SHORT = _Short()


def _word(value: object) -> str:
    words = {str: "a string", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return next((word for type_, word in words.items() if isinstance(value, type_)), type(value).__name__)


def _kinds(special: Kind | None) -> str:
    return MUST[special] if special is not None else f"labels must be {LABELS}"


def _must(role: Role, kind: Kind) -> str:
    if role != "label":
        return "text must be a string"
    return f"labels must be {WORDS[kind]}, as in the first row"


def _is_string(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _fits(type_: pa.DataType, kind: Kind) -> bool:
    if is_list(type_) != (ONE[kind] != kind):
        return False
    if ONE[kind] == "bool":
        return bool(pa.types.is_boolean(type_))
    if ONE[kind] == "float":
        return bool(pa.types.is_floating(type_) or pa.types.is_integer(type_) or pa.types.is_decimal(type_))
    return _is_string(item_type(type_)) if ONE[kind] == "string" else bool(pa.types.is_integer(item_type(type_)))
