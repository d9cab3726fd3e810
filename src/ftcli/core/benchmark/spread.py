"""Some rows of a stream, from all of it: those at its beginning may have one label only."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa


class Spread:
    """As many rows as are asked for, each as likely as any other; the same stream gives the same rows, however it is cut into batches.

    Every row draws a number, and those with the smallest are kept: at most three times as many as are asked for are in memory.
    """

    def __init__(self, rows: int) -> None:
        self._rows, self._draws, self._seen = rows, np.random.default_rng(0), 0
        self._bound = 1.0
        self._kept: list[tuple[float, int, dict[str, Any]]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        drawn = self._draws.random(len(batch))
        places = np.flatnonzero(drawn < self._bound)
        # A slice at a time: a batch may have more rows than are kept.
        for begin in range(0, len(places), self._rows):
            chosen = places[begin : begin + self._rows]
            rows = batch.take(pa.array(chosen)).to_pylist()
            self._kept += zip(drawn[chosen].tolist(), (chosen + self._seen).tolist(), rows, strict=True)
            if len(self._kept) > 2 * self._rows:
                self._prune()
        self._seen += len(batch)

    def _prune(self) -> None:
        self._kept = sorted(self._kept, key=itemgetter(0))[: self._rows]
        self._bound = self._kept[-1][0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows in the order of the stream."""
        if len(self._kept) > self._rows:
            self._prune()
        return (row for _, _, row in sorted(self._kept, key=itemgetter(1)))
