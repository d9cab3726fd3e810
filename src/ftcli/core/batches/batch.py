"""Which rows are read together, and in which order: the store as a torch dataset, and the samplers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from ftcli.core.batches.order import CHUNK_BATCHES
from ftcli.core.batches.slots import IDLE
from ftcli.core.distributed.loader_workers import outlive_termination
from ftcli.core.storage.store import Rows, SplitData


class StoreDataset(Dataset[Rows]):
    """A split as a map-style dataset. DataLoader calls `__getitems__`, so that the collator gets one `Rows` a batch."""

    def __init__(self, split: SplitData) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Rows:
        return self.split.rows([index])

    def __getitems__(self, indices: list[int]) -> Rows:
        """The rows among these places; where all are `IDLE`, one that stands in for them."""
        outlive_termination()
        if IDLE not in indices:
            return self.split.rows(indices)
        rows = [index for index in indices if index != IDLE]
        return self.split.rows(rows) if rows else replace(self.split.rows([0]), idle=True)


class EpochSampler(Sampler[int]):
    """Row numbers in an order that depends on (seed, epoch) only. `set_epoch` chooses the epoch; it is called before every pass."""

    def __init__(self, rows: int, seed: int) -> None:
        self.rows = rows
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        return iter(self.order().tolist())

    def order(self) -> NDArray[np.int64]:
        """All row numbers, each once."""
        return self._generator().permutation(self.rows)

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch])


class LengthGroupedSampler(EpochSampler):
    """Shuffled batches of similar length: 3 M rows in under 2 s.

    Rows are shuffled, sorted by length inside chunks of `CHUNK_BATCHES` batches, and the batches are shuffled.

    Args:
        lengths: tokens of every row.
        unit: rows that must lie together: the batch of one device times the number of processes.
    """

    def __init__(self, lengths: NDArray[np.int64], unit: int, seed: int) -> None:
        super().__init__(len(lengths), seed)
        self.lengths = lengths
        self.unit = unit

    def order(self) -> NDArray[np.int64]:
        generator = self._generator()
        rows = generator.permutation(self.rows)
        whole = self.rows // self.unit * self.unit
        chunk = np.arange(whole) // (self.unit * CHUNK_BATCHES)
        by_length = rows[:whole][np.lexsort((self.lengths[rows[:whole]], chunk))]
        batches = generator.permutation(by_length.reshape(-1, self.unit))
        return np.concatenate([batches.reshape(-1), rows[whole:]])  # the incomplete batch stays last, so that no other one is torn


def eval_batches(lengths: NDArray[np.int64], size: int, rank: int, world: int) -> list[list[int]]:
    """The rank's share of an evaluation: every row once over all ranks, longest first, at most `size` rows a batch."""
    order = np.argsort(-lengths, kind="stable")
    count = -(-len(order) // (size * world)) * world
    shares: Sequence[NDArray[np.int64]] = np.array_split(order, count)[rank::world] if len(order) else []
    return [share.tolist() for share in shares if len(share)]


def common_batches(rows: int, size: int, world: int) -> int:
    """Batches that every rank has in an evaluation; some ranks have one more."""
    return min(rows, -(-rows // (size * world)) * world) // world
