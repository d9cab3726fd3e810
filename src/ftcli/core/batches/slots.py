"""Batches of as many rows as a budget of slots holds, padding included; on lengths alone, so that checks can tell it without torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ftcli.contracts import CollatorKind
from ftcli.core.batches.order import ORDERS
from ftcli.core.ragged import Ints
from ftcli.errors import SettingsError
from ftcli.settings import Settings

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

IDLE = -1
"""In place of a row number: no row."""
CHUNK_BATCHES = 250
"""Batches that are sorted by width together. Padding at 2,048 to 32,768 slots a batch: incident 1's lengths 0.2 %, log-normal ones (median 120, up to
1,024) 0.8 %; with 100 batches 0.4 and 1.9 %."""
DRAWS = 2
"""Orders whose batches are counted: the larger count is every epoch's."""
TRIES = 20
"""Orders drawn for an epoch until one needs no more batches than that, which two in three do; then the first epoch's batches come again."""


class TokenBatches:
    """The batches of an epoch on all ranks: the first `ranks` of them are taken at once, one by each rank, then the next.

    They depend on (seed, epoch) and the arguments only. Their number is the same in every epoch, since `Trainer` counts its steps, its schedule and
    where a run goes on by it: an order that fills fewer batches has its largest ones halved.

    Args:
        widths: slots that every row takes alone, [rows]; a batch takes its rows times its widest one.
        budget: slots of a batch at most.
        order: "random", "grouped" (by width) or "sequential".
        unpadded: a batch takes the sum of its rows' slots instead.

    Raises:
        SettingsError: a row is wider than the budget.
    """

    def __init__(self, widths: Ints, budget: int, *, order: str, seed: int, ranks: int, unpadded: bool = False) -> None:
        self.widths, self.budget, self.order, self.seed, self.ranks, self.unpadded = widths, budget, order, seed, ranks, unpadded
        self.epoch = 0
        if widths.max(initial=0) > budget:
            row, many = int(widths.argmax()), int((widths > budget).sum())
            raise SettingsError(
                f"train.max_tokens_per_batch = {budget:,} does not hold row {row} of train, which takes {widths[row]:,} tokens "
                f"({many:,} such row{'s' * (many > 1)})",
                f"Raise it to {widths[row]} at least, or prepare the data with --max-length {budget}.",
            )

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[int]]:
        """Row numbers of each batch; `[IDLE]` where there are fewer rows than ranks."""
        rows, bounds = self.plan()
        for start, end in bounds.tolist():
            yield rows[start:end].tolist() or [IDLE]

    def plan(self) -> tuple[Ints, Ints]:
        """Row numbers, and where in them each batch begins and ends, [batches, 2]."""
        for attempt in range(TRIES):
            rows, ends = self._draw(self.epoch, attempt)
            if len(ends) <= self._count:
                break
        else:
            rows, ends = self._draw(0, 0)
        ends = _halved(ends, self._count)
        bounds = np.stack([np.concatenate([[0], ends])[:-1], ends], axis=1)
        if self.order == "random" and self.ranks > 1:  # grouped ones of like size stand beside each other already
            bounds = bounds[np.argsort(self._sizes(rows, bounds)[1], kind="stable")]
        bounds = bounds.reshape(-1, self.ranks, 2)
        if self.order != "sequential":
            bounds = np.random.default_rng([self.seed, self.epoch, TRIES]).permutation(bounds)
        return rows, bounds.reshape(-1, 2)

    @property
    def said(self) -> str:
        """For the notes of a run."""
        steps = len(self) // self.ranks
        return (
            f"batches of at most {self.budget:,} tokens{'' if self.unpadded else ', padding included'}: {steps:,} an epoch{' and process' if self.ranks > 1 else ''}, "
            f"of {len(self.widths) / max(1, len(self)):.1f} rows on average; train.per_device_train_batch_size is not used"
        )

    def slots(self) -> tuple[Ints, Ints]:
        """Rows and slots of each batch of the epoch, in the order of the ranks."""
        return self._sizes(*self.plan())

    def _sizes(self, rows: Ints, bounds: Ints) -> tuple[Ints, Ints]:
        sizes = bounds[:, 1] - bounds[:, 0]
        if self.unpadded:
            filled = np.concatenate([[0], np.cumsum(self.widths[rows])])
            return sizes, filled[bounds[:, 1]] - filled[bounds[:, 0]]
        widest = [self.widths[rows[start:end]].max(initial=0) for start, end in bounds.tolist()]
        return sizes, sizes * np.array(widest, np.int64)

    @cached_property
    def _count(self) -> int:
        draws = 1 if self.order == "sequential" else DRAWS
        return -(-max(len(self._draw(0, attempt)[1]) for attempt in range(draws)) // self.ranks) * self.ranks

    def _draw(self, epoch: int, attempt: int) -> tuple[Ints, Ints]:
        """All rows in an order, and where its batches end."""
        count = len(self.widths)
        if self.order == "sequential":
            return np.arange(count), self._ends(self.widths)
        rows = np.random.default_rng([self.seed, epoch, attempt]).permutation(count)
        if self.order == "grouped" and count:
            chunks = max(1, round(self.widths.sum() / (CHUNK_BATCHES * self.ranks * self.budget)))
            rows = rows[_by_width(self.widths[rows], -(-count // chunks))]
        return rows, self._ends(self.widths[rows])

    def _ends(self, widths: Ints) -> Ints:
        return (_filled if self.unpadded else _ends)(widths, self.budget)


def token_batches(
    settings: Settings, lengths: Ints, *, collator: str, kind: CollatorKind, max_length: int, ranks: int, unpadded: bool = False
) -> TokenBatches | None:
    """A run's batches by `train.max_tokens_per_batch`; None where it is unset and a batch has a fixed number of rows.

    Args:
        lengths: tokens of every row.
        collator, max_length: what a row is padded to, as ftcli's collators do.
        unpadded: the model leaves padding out.

    Raises:
        SettingsError: a row is wider than the budget.
    """
    train, multiple = settings.train, settings.loader.pad_to_multiple_of
    if train.max_tokens_per_batch is None:
        return None
    widths = -(-np.maximum(lengths, max_length if collator == "fixed" else 1) // multiple) * multiple
    seed = train.seed if train.data_seed is None else train.data_seed
    order = ORDERS.get(train.train_sampling_strategy or "", kind.order)
    return TokenBatches(widths, train.max_tokens_per_batch, order=order, seed=seed, ranks=ranks, unpadded=unpadded)


def planned(probe: Probe) -> TokenBatches | None:
    """`token_batches` of the run that is looked at."""
    if probe.settings.train.max_tokens_per_batch is None:  # collators import torch, which a quick look does without
        return None
    name, store = probe.collator_name, probe.store
    kind = probe.context.plugins.registry("collator").get(name, "loader.collator")
    return token_batches(
        probe.settings,
        probe.train_split.lengths,
        collator=name,
        kind=kind,
        max_length=store.max_length,
        ranks=int(os.environ.get("WORLD_SIZE", "1")),
        unpadded=kind.packed and not probe.train_split.packed,
    )


def rows_a_batch(settings: Settings, lengths: Ints) -> int:
    """Rows of a batch on one device; on average and about, where `train.max_tokens_per_batch` decides.

    Args:
        lengths: tokens of every row (a sample will do).
    """
    budget = settings.train.max_tokens_per_batch
    return settings.train.per_device_train_batch_size if budget is None else max(1, int(budget / max(1.0, lengths.mean())))


def _by_width(widths: Ints, together: int) -> Ints:
    """Places sorted by width inside chunks of `together`, rising and falling in turn, so that rows of like width meet where two chunks do.

    The keys are unique and hold their places: sorting them is 2.5 times as fast as `lexsort`, and does not depend on how equal ones are sorted.
    """
    place = np.arange(len(widths))
    chunk, most = place // together, int(widths.max())
    ranked = chunk * (most + 1) + np.where(chunk % 2, most - widths, widths)
    found: Ints = chunk * together + np.sort(ranked * together + place % together) % together
    return found


def _ends(widths: Ints, budget: int) -> Ints:
    """Where batches end that take rows as they come, each as many as it holds. A batch costs some µs, a row next to nothing."""
    numbers = np.arange(1, min(len(widths), budget // max(1, int(widths.min(initial=budget)))) + 1)
    ends, start, limit = [], 0, np.int64(budget)
    while start < len(widths):
        most = widths[start : start + budget // widths.item(start)]
        start += int((np.maximum.accumulate(most) * numbers[: len(most)]).searchsorted(limit, "right"))
        ends.append(start)
    return np.array(ends, np.int64)


def _filled(widths: Ints, budget: int) -> Ints:
    """As `_ends`, where a batch takes the sum of its rows."""
    until = np.cumsum(widths)
    ends: list[int] = []
    taken = 0
    while (ends[-1] if ends else 0) < len(widths):
        ends.append(int(until.searchsorted(taken + budget, "right")))
        taken = int(until[ends[-1] - 1])
    return np.array(ends, np.int64)


def _halved(ends: Ints, count: int) -> Ints:
    """`count` batches out of fewer: those of most rows are cut in the middle, down to batches without a row."""
    while len(ends) < count:
        sizes = np.diff(ends, prepend=0)
        largest = np.argsort(-sizes, kind="stable")[: count - len(ends)]
        if sizes.max() > 1:  # else an empty batch would stand beside one that can be cut
            largest = largest[sizes[largest] > 1]
        ends = np.sort(np.concatenate([ends, (ends - (sizes + 1) // 2)[largest]]))
    return ends
