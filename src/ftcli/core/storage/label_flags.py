"""A column that says of every label whether it holds in a row: float32 of fixed width, as `BCEWithLogitsLoss` takes it, left in its memory map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ftcli.core.arrays import values
from ftcli.core.ragged import row_hash

Flags = NDArray[np.float32]
"""[rows, labels]: 1 where the label holds, else 0."""


class LabelFlags:
    """The column. Whole columns are looked at chunk by chunk: that of 3 M rows and 280 labels has 3.3 GB."""

    def __init__(self, width: int, parts: Sequence[Flags]) -> None:
        self.width = width
        """Labels there are."""
        self.parts = parts
        self._starts = np.cumsum([0, *map(len, parts)])

    @classmethod
    def of_column(cls, column: pa.ChunkedArray) -> LabelFlags:
        width = int(column.type.list_size)
        return cls(width, [values(chunk.flatten()).reshape(-1, width) for chunk in column.chunks if len(chunk)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def gather(self, wanted: NDArray[np.int64]) -> Flags:
        """Rows by number, copied."""
        if len(self.parts) == 1:
            return self.parts[0][wanted]
        which = np.searchsorted(self._starts, wanted, side="right") - 1
        found = np.empty((len(wanted), self.width), np.float32)
        for part in np.unique(which):
            found[which == part] = self.parts[part][wanted[which == part] - self._starts[part]]
        return found

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows in which each label holds."""
        return sum((part.sum(0, dtype=np.float64) for part in self.parts), np.zeros(self.width)).astype(np.int64)

    @cached_property
    def without(self) -> int:
        """Rows in which none holds."""
        return sum(int(np.count_nonzero(~part.any(1))) for part in self.parts)

    @cached_property
    def codes(self) -> NDArray[np.uint64]:
        """64 bits of every row: rows of the same labels have the same."""
        return np.concatenate([np.zeros(0, np.uint64), *(label_codes(part) for part in self.parts)])

    def odd(self) -> Iterator[tuple[int, float]]:
        """(row, value) of the first value of each chunk that is neither 0 nor 1."""
        for start, part in zip(self._starts.tolist(), self.parts, strict=False):
            wrong = ((part != 0) & (part != 1)).any(1)
            if wrong.any():
                row = int(wrong.argmax())
                yield start + row, float(next(value for value in part[row] if value not in {0, 1}))


def label_codes(flags: Flags) -> NDArray[np.uint64]:
    """64 bits of every row: rows of the same labels have the same."""
    rows, labels = flags.nonzero()
    return row_hash(labels.astype(np.int32), np.bincount(rows, minlength=len(flags)), 0)


def entropy(counts: NDArray[np.int64], rows: int) -> float:
    """Loss of knowing only how often each label holds, the mean over labels: that of a model that has learned nothing else. 0.69 is chance."""
    share = np.clip(counts / max(1, rows), 1e-12, 1 - 1e-12)
    return float(-(share * np.log(share) + (1 - share) * np.log(1 - share)).mean())


def names_of(flags: Flags, names: list[str] | None) -> list[str]:
    """The labels that hold in a row, [labels]; by number where there are no names."""
    return [
        str(label) if names is None else names[label] for label in np.flatnonzero(flags).tolist() if names is None or label < len(names)
    ]
