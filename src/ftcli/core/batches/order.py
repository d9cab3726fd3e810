"""Orders of rows and the padding that they cost, on lengths alone, so that checks can tell it without torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
ORDERS = {"random": "random", "sequential": "sequential", "group_by_length": "grouped"}
"""`train_sampling_strategy` → order of rows; batch_rebalance wants rows as dictionaries, which a store has not."""


def wasted(lengths: Ints, size: int, collator: str, max_length: int, chunk_batches: int = 100) -> float | None:
    """Share of slots without a token under one of ftcli's collators at `size` rows a batch; None for a collator of a plugin.

    Args:
        lengths: tokens of every row (a sample will do).
        chunk_batches: batches that bucketed rows are sorted in, `ftcli.core.batches.batch.CHUNK_BATCHES`.
    """
    size = max(1, min(size, len(lengths)))
    if not len(lengths) or not lengths.sum():
        return 0.0
    if collator == "fixed":
        return float(1 - lengths.mean() / max(max_length, int(lengths.max())))
    if collator == "bucketed":
        return _padded(_grouped(lengths, size * chunk_batches), size)
    if collator in {"dynamic", "packed"}:
        return _padded(np.random.default_rng(0).permutation(lengths), size)
    return None


def _grouped(lengths: Ints, chunk: int) -> Ints:
    mixed = np.random.default_rng(0).permutation(lengths)
    return mixed[np.lexsort((mixed, np.arange(len(mixed)) // chunk))]


def _padded(lengths: Ints, size: int) -> float:
    batches = lengths[: len(lengths) // size * size].reshape(-1, size)
    return float(1 - batches.sum() / (batches.max(axis=1).sum() * size))
