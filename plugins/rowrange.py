"""Rows of a file that is decoded from a beginning only: the next piece of it that a process reads goes on where the last one ended."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ftcli.records import Piece

if TYPE_CHECKING:
    import pyarrow as pa

Rows = Iterator[tuple[int, "pa.RecordBatch"]]
"""Batches, each with how many rows of the file come before it."""


class RowRange:
    """Batches one after the other, of which pieces in rising order take their rows.

    Args:
        row: how many rows of the file come before the first batch.
    """

    def __init__(self, row: int, batches: Iterator[pa.RecordBatch]) -> None:
        self.row, self._batches = row, batches
        self._begun: pa.RecordBatch | None = None
        """The batch that begins at `row`, once it is read."""

    def rows(self, piece: Piece) -> Rows:
        """The piece's rows, as far as they lie here."""
        while self.row < piece.stop:
            batch = self._begun = next(self._batches, None) if self._begun is None else self._begun
            if batch is None:
                return
            start, stop = max(0, piece.start - self.row), min(piece.stop - self.row, batch.num_rows)
            if start < stop:
                yield self.row + start, batch.slice(start, stop - start)
            if stop < batch.num_rows:
                return
            self.row, self._begun = self.row + batch.num_rows, None


_kept: dict[tuple[object, ...], RowRange] = {}
"""What the last piece of this process left: none or one."""
atexit.register(_kept.clear)  # a generator that the interpreter ends last has no modules any more


def going_on(key: tuple[object, ...], piece: Piece, begin: Callable[[], RowRange]) -> Rows:
    """The piece's rows, from what the last piece left, where that was of the same file and `key` and lies before them; else from `begin`, which is decoded anew.

    Without this every piece decodes all that lies before it.
    """
    stat = Path(piece.path).stat()
    key = (piece.path, stat.st_ino, stat.st_size, stat.st_mtime_ns, *key)
    left = _kept.pop(key, None)
    _kept.clear()
    if left is None or left.row > piece.start:
        left = begin()
    yield from left.rows(piece)
    _kept[key] = left
