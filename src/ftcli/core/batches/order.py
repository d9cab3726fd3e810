"""Orders of rows and the padding that they cost, on lengths alone, so that checks can tell it without torch."""

from __future__ import annotations

import numpy as np

from ftcli.core.ragged import Ints

ORDERS = {"random": "random", "sequential": "sequential", "group_by_length": "grouped"}
"""`train_sampling_strategy` → order of rows; batch_rebalance wants rows as dictionaries, which a store has not."""
CHUNK_BATCHES = 100
"""Batches that are sorted by length together. Padding of incident 1's lengths, at 8 to 64 rows a batch: 0.7 % with 50, 0.4 % with 100,
0.2 % with 200; more costs randomness."""


def wasted(lengths: Ints, size: int, collator: str, max_length: int) -> float | None:
    """Share of slots without a token under one of ftcli's collators at `size` rows a batch; None for a collator of a plugin.

    Args:
        lengths: tokens of every row (a sample will do).
    """
    size = max(1, min(size, len(lengths)))
    if not len(lengths) or not lengths.sum():
        return 0.0
    if collator == "fixed":
        return float(1 - lengths.mean() / max(max_length, int(lengths.max())))
    if collator == "bucketed":
        return padded(_grouped(lengths, size * CHUNK_BATCHES), size)
    if collator in {"dynamic", "packed"}:
        return padded(np.random.default_rng(0).permutation(lengths), size)
    return None


def _grouped(lengths: Ints, chunk: int) -> Ints:
    mixed = np.random.default_rng(0).permutation(lengths)
    return mixed[np.lexsort((mixed, np.arange(len(mixed)) // chunk))]


def padded(lengths: Ints, size: int) -> float:
    """Share of slots that hold no token when rows, in this order, are padded to the longest of their batch."""
    batches = lengths[: len(lengths) // size * size].reshape(-1, size)
    return float(1 - batches.sum() / (batches.max(axis=1).sum() * size)) if len(batches) else 0.0
