"""Which rank gets which rows of a batch that all ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from ftcli.core.batches.slots import IDLE


class Shares(Sampler[int]):
    """The order of rows of `sampler`, dealt to several ranks: every `size` * `ranks` places are one batch of all, the first `size` of them
    rank 0's, and so on.

    A batch of all holds the same rows as without ranks, so that the loss of a step is the same. The last one of an epoch may have fewer:
    then `IDLE` stands in the places that are left, with every rank at most one row ahead of another. (accelerate would fill it with rows
    from the beginning, which then count twice.)

    Args:
        lengths: tokens of every row.
        drop_last: leave out an incomplete last batch instead.
    """

    def __init__(self, sampler: Sampler[int], lengths: NDArray[np.int64], size: int, ranks: int, *, drop_last: bool) -> None:
        self.sampler: Any = sampler
        self.lengths = lengths
        self.size = size
        self.ranks = ranks
        self.drop_last = drop_last

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        unit, rows = self.size * self.ranks, len(self.sampler)
        return (rows if self.drop_last else rows + unit - 1) // unit * unit

    def __iter__(self) -> Iterator[int]:
        order = np.fromiter(self.sampler, np.int64, len(self.sampler))[: len(self)]
        missing = np.full(len(self) - len(order), IDLE, np.int64)
        return iter(deal(np.concatenate([order, missing]), self.lengths, self.size, self.ranks).tolist())


def deal(order: NDArray[np.int64], lengths: NDArray[np.int64], size: int, ranks: int) -> NDArray[np.int64]:
    """Deal whole batches by length, there and back, so that every rank gets as many rows and nearly as many tokens.

    Each rank also gets one of the longest rows: that costs no time, since a step lasts as long as its slowest rank.

    Args:
        order: row numbers, or `IDLE`; a multiple of size * ranks.
    """
    batches = order.reshape(-1, size * ranks)
    tokens = np.where(batches == IDLE, -1, lengths[batches])
    longest_first = np.take_along_axis(batches, np.argsort(-tokens, axis=1, kind="stable"), axis=1).reshape(-1, size, ranks)
    longest_first[:, 1::2] = longest_first[:, 1::2, ::-1]
    return longest_first.transpose(0, 2, 1).reshape(-1)
