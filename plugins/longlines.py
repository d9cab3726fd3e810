"""JSON lines of long rows, parsed by simdjson: quick where everything is in order, and silent where anything is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ftcli.contracts import Columns

if TYPE_CHECKING:
    import pyarrow as pa

LONG = 2_000
"""Bytes of a row, on average, from which on it pays: below, pyarrow's parser makes an array faster than Python can hand over its rows."""
FOREIGN = 1 / 3
"""Share of bytes outside ASCII above which it does not: decoding them to Python strings takes longer than pyarrow's whole way."""
OPEN = ord("{")
SEEN = 1 << 16
"""Bytes of a block from which both are told."""


def quick_arrays(block: bytes, columns: Columns) -> list[pa.Array] | None:
    """The columns of a block of lines; None where its rows are short or foreign, and where there is the least doubt.

    Doubt is whatever pyarrow might see otherwise: anything but one object a line, a key that is missing or there twice, a value of another
    type, a number too large, and all that simdjson refuses (bytes that are not UTF-8, lone surrogates, NaN, depth), also in keys that
    nobody asked for. What is given is what pyarrow would give.
    """
    from ftcli.core.arrays import numbers, utf8
    from ftcli.core.reading.columns import PYTHON, wanted

    if not suits(block) or columns.label_kind in {"strings", "ints", "bool"} or columns.number or "bool" in columns.flag_kinds:
        return None
    names = [(name, PYTHON[kind]) for _, name, kind in wanted(columns)]
    found: list[list[Any]] = [[] for _ in names]
    parser = _parser()
    try:
        for line in _lines(block):
            if line[0] != OPEN or not _take(parser.parse(line), names, found):
                return None
        return [utf8(values) if kind is str else numbers(_integers(values)) for values, (_, kind) in zip(found, names, strict=True)]
    except (ValueError, OverflowError, RuntimeError):  # simdjson raises the last for numbers of more than 64 bits, in whatever key
        return None


@cache
def _parser() -> Any:
    """One for all blocks: its memory, made anew for each, took an eighth of the whole. It keeps two and a half times its longest row."""
    import simdjson

    return simdjson.Parser()


def _lines(block: bytes) -> Iterator[memoryview]:
    """The lines that are not empty, in the block's memory: to copy them out took a third of the whole."""
    view, start = memoryview(block), 0
    while start < len(block):
        end = block.find(b"\n", start)
        end = len(block) if end < 0 else end
        if end > start:
            yield view[start:end]
        start = end + 1


def suits(block: bytes) -> bool:
    """Whether the rows are long and mostly ASCII."""
    import numpy as np

    seen = block[:SEEN]
    foreign = int(np.count_nonzero(np.frombuffer(seen, np.int8) < 0))
    return len(seen) >= LONG * (seen.count(b"\n") or 1) and foreign <= FOREIGN * len(seen)


def _take(row: Any, names: Sequence[tuple[str, type]], found: list[list[Any]]) -> bool:
    """Add a row's values to the columns; False when one is missing, doubled or of another type. The row must not outlive its parser's next."""
    keys = [*row]
    for (name, kind), values in zip(names, found, strict=True):
        if keys.count(name) != 1 or type(value := row[name]) is not kind:
            return False
        values.append(value.encode() if isinstance(value, str) else value)  # encoded later, a text has left the cache: a fifth of the whole
    return True


def _integers(values: list[int]) -> Any:
    """Raises OverflowError beyond 64 bits."""
    import numpy as np

    return np.array(values, np.int64)
