"""A table out of plain Python objects (what a pickle holds): the wanted columns as record batches, and every row that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ftcli.core.reading.column_names import need_column
from ftcli.core.reading.columns import (
    LEAST,
    MOST,
    ONE,
    PYTHON,
    WORDS,
    Kind,
    Role,
    check_value,
    is_one,
    kind_of_value,
    shown,
    target_type,
)
from ftcli.core.reading.columns import BadValue as WrongKind
from ftcli.errors import DataError
from ftcli.records import BadCode

ROWS = 10_000
"""Rows of a batch at most."""
BATCH_CHARACTERS = 8 << 20
"""A batch of longer texts has fewer rows."""
SHAPES = "Pickle a list of dicts, a dict of lists, a list of strings, or a DataFrame (with --trust-pickle)."

Wanted = Sequence[tuple[Role, str, Kind]]
Fault = tuple[BadCode, str, str | None, str]
"""Code, reason, field and hint."""
Bad = tuple[int, BadCode, str, str | None, str]
"""Row (from 1) and its fault."""
Cells = list[Sequence[Any]]
"""One sequence a wanted column."""


class Table:
    """A list of dicts, of strings (each a text) or of lists (columns by number from 0), a dict of lists, or a DataFrame. A column whose name is
    no string is asked for as `str` writes it.

    Raises:
        DataError: it is none of these, or lacks a wanted column altogether.
    """

    def __init__(self, path: str, loaded: Any, wanted: Wanted, most_bytes: int) -> None:
        self.path, self.wanted, self.most_bytes = path, wanted, most_bytes
        self._rows: Sequence[Any] | None = None
        self._columns: Cells = []
        self._row_type: type[Any] = dict
        if isinstance(loaded, (list, tuple)):
            self._rows, self.rows = loaded, len(loaded)
            self._row_type = type(loaded[0]) if loaded and type(loaded[0]) in {str, list, tuple} else dict
            if self._row_type is str and [role for role, _, _ in wanted] != ["text"]:
                raise DataError(f"{path}: a list of strings has no column {wanted[-1][1]!r}", "Pickle a list of dicts.")
        elif isinstance(loaded, dict) or type(loaded).__name__ == "DataFrame":
            names = [str(column) for column in loaded]  # numbers, and tuples of a DataFrame, are asked for as they are shown
            for role, name, _ in wanted:
                if isinstance(loaded, dict) and name not in names:
                    _refuse_rows(path, loaded, name)
                need_column(path, role, name, names)
            keys = dict(zip(names, loaded, strict=True))
            self._columns = [self._column(name, loaded[keys[name]]) for _, name, _ in wanted]
            lengths = list(map(len, self._columns))
            if len(set(lengths)) > 1:
                raise DataError(
                    f"{path}: the columns have different lengths: {', '.join(map(str, lengths))}",
                    "Give all columns the same number of rows.",
                )
            self.rows = lengths[0]
        else:
            raise DataError(f"{path}: holds a {type(loaded).__name__}, not a table", SHAPES)

    def kind(self, *, strict: bool, special: Kind | None = None) -> Kind | None:
        """The label kind of the one wanted column, from the first row that has any; None when none has.

        Raises:
            DataError: there are rows, none has, and it is `strict`; says what is wrong with the first.
        """
        ((_, name, _),) = self.wanted
        first: Fault | None = None
        for place in range(self.rows):
            fault = self._row_fault(place)
            if fault is None:
                try:
                    if (kind := kind_of_value(name, self._cell(place, 0), special)) is not None:
                        return kind
                except WrongKind as wrong:
                    fault = ("wrong-type", wrong.reason, name, "ftcli does not convert values: correct the row.")
            first = first or fault
        if first is not None and strict:
            raise DataError(f"{self.path}: row 1: {first[1]}", first[3])
        return None

    def batches(self) -> Iterator[tuple[pa.RecordBatch, list[Bad]]]:
        """All rows in order: what can be used, and what was left out of it or of what follows directly."""
        for start in range(0, self.rows, ROWS):
            places: Sequence[int] = range(start, min(start + ROWS, self.rows))
            cells, bad = self._cells(places[0], places[-1] + 1), list[Bad]()
            if cells is None:
                places, cells, bad = self._sifted(places)
            for batch, found in self._cut(places, cells):
                yield batch, bad + found
                bad = []

    def _cut(self, places: Sequence[int], cells: Cells) -> Iterator[tuple[pa.RecordBatch, list[Bad]]]:
        """Rows in halves while they hold too much text."""
        if len(places) > 1 and _characters(cells) > BATCH_CHARACTERS:
            middle = len(places) // 2
            for part in (slice(0, middle), slice(middle, None)):
                yield from self._cut(places[part], [column[part] for column in cells])
            return
        arrays, bad = self._arrays(cells), list[Bad]()
        if arrays is None:
            _, cells, bad = self._sifted(places)
            arrays = [pa.array(column, target_type(kind)) for column, (_, _, kind) in zip(cells, self.wanted, strict=True)]
        yield pa.record_batch(arrays, names=[role for role, _, _ in self.wanted]), bad

    def _sifted(self, places: Sequence[int]) -> tuple[Sequence[int], Cells, list[Bad]]:
        """The rows that can be used, their cells, and the others."""
        faults = {place: self._fault(place) for place in places}
        good = [place for place, fault in faults.items() if fault is None]
        cells = [[self._cell(place, column) for place in good] for column in range(len(self.wanted))]
        return good, list(cells), [(place + 1, *fault) for place, fault in faults.items() if fault is not None]

    def _cells(self, start: int, stop: int) -> Cells | None:
        """The wanted cells of rows start..stop; None where a row has another shape or lacks one."""
        if self._rows is None:
            return [column[start:stop] for column in self._columns]
        rows = self._rows[start:stop]
        if set(map(type, rows)) != {self._row_type}:
            return None
        if self._row_type is str:
            return [rows]
        try:
            return [[row[key] for row in rows] for key in map(self._key, range(len(self.wanted)))]
        except (LookupError, ValueError):
            return None

    def _arrays(self, cells: Cells) -> list[pa.Array] | None:
        """The columns of the contract; None where a value is wrong."""
        arrays = []
        for values, (role, name, kind) in zip(cells, self.wanted, strict=True):
            if ONE[kind] != kind and any(self._value_fault(role, name, kind, value) for value in values):
                return None
            if ONE[kind] == kind and set(map(type, values)) - {PYTHON[kind]}:
                return None
            try:
                array = pa.array(values, target_type(kind))
            except (UnicodeEncodeError, OverflowError, pa.ArrowException):
                return None
            if role != "label" and (pc.max(pc.binary_length(array)).as_py() or 0) > self.most_bytes:
                return None
            arrays.append(array)
        return arrays

    def _fault(self, place: int) -> Fault | None:
        fault = self._row_fault(place)
        for column, (role, name, kind) in enumerate(self.wanted):
            fault = fault or self._value_fault(role, name, kind, self._cell(place, column))
        return fault

    def _row_fault(self, place: int) -> Fault | None:
        """What is wrong with a row as a whole."""
        if self._rows is None:
            return None
        row = self._rows[place]
        if not isinstance(row, self._row_type):
            shape = "a dict" if self._row_type is dict else "a string" if self._row_type is str else "a list"
            code: BadCode = "not-an-object" if self._row_type is dict else "wrong-type"
            return code, f"a row must be {shape}, found {shown(row)}", None, "Pickle a DataFrame, or a list of dicts."
        for column, (role, name, _) in enumerate(self.wanted):
            try:
                self._cell(place, column)
            except (LookupError, ValueError):
                existing = list(row) if self._row_type is dict else list(map(str, range(len(row))))
                try:
                    need_column("", role, name, existing)
                except DataError as error:
                    return "missing-field", error.message.removeprefix(": "), name, error.hint
                return "missing-field", f"no column {name!r}", name, "Column names must be strings."
        return None

    def _value_fault(self, role: Role, name: str, kind: Kind, value: Any) -> Fault | None:
        coerced = "ftcli does not convert values: correct the row."
        if ONE[kind] != kind:
            try:
                check_value(role, name, kind, value, 0)
            except WrongKind as wrong:
                return wrong.code, wrong.reason, name, coerced
            return None
        if not is_one(kind, value):
            must = "text must be a string" if role != "label" else f"labels must be {WORDS[kind]}, as in the first row"
            return "null" if value is None else "wrong-type", f"{name!r} is {shown(value)}; {must}", name, coerced
        if kind in {"bool", "float"}:
            return None
        if kind == "int":
            return (
                None
                if LEAST <= int(value) <= MOST
                else ("out-of-range", f"{name!r} is {shown(value)}, which does not fit into a signed 64-bit integer", name, coerced)
            )
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            reason = f"{name!r} holds the lone surrogate U+{ord(value[error.start]):04X}, which no UTF-8 text can"
            return "surrogate", reason, name, coerced
        if role != "label" and size > self.most_bytes:
            return (
                "line-too-long",
                f"{name!r} has {size:,} bytes, more than the {self.most_bytes:,} allowed",
                name,
                "Raise dataset.max_line_bytes.",
            )
        return None

    def _cell(self, place: int, column: int) -> Any:
        if self._rows is None:
            return self._columns[column][place]
        return self._rows[place] if self._row_type is str else self._rows[place][self._key(column)]

    def _key(self, column: int) -> Any:
        name = self.wanted[column][1]
        return name if self._row_type is dict else int(name)

    def _column(self, name: str, column: Any) -> Sequence[Any]:
        """A column's values as a list; a numpy or pandas object makes its own."""
        values = column.tolist() if hasattr(column, "tolist") else column
        if not isinstance(values, (list, tuple)):
            raise DataError(f"{self.path}: column {name!r} is {shown(column)}, not a list", SHAPES)
        return values


def _refuse_rows(path: str, loaded: dict[Any, Any], name: str) -> None:
    """Raises `DataError`: the values are not columns but rows, by a number or an id."""
    key, row = next(iter(loaded.items()), (None, None))
    if isinstance(row, dict) and (isinstance(key, int) or isinstance(row.get(name), (str, int, float))):
        raise DataError(
            f"{path}: holds a dict of rows, such as {shown(key)}, not of columns", "Pickle its rows as a list instead: list(d.values())."
        )


def _characters(cells: Cells) -> int:
    return sum(len(value) for column in cells for value in column if isinstance(value, str))
