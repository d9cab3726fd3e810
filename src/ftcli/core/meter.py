"""What a run did with its time and its slots, without a device synchronisation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ftcli.contracts import Collator
from ftcli.core.store import Rows

TOKENS = "tokens"
"""Key under which a counted batch carries its number of real tokens."""


class Counted:
    """A collator whose batches say how many real tokens they hold, so that counting needs no mask and works across loader processes."""

    def __init__(self, collator: Collator) -> None:
        self.collator = collator

    def __call__(self, rows: Rows) -> dict[str, Any]:
        return {**self.collator(rows), TOKENS: len(rows.input_ids.values)}


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    tokens: int
    slots: int
    data_wait: float
    other: float


@dataclass(slots=True)
class Meter:
    """Seconds and tokens since `start`. Rates leave out the first step (it compiles, allocates and fills caches), evaluations and saves."""

    tokens: int = 0
    slots: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"data_wait": 0.0, "evaluation": 0.0, "saving": 0.0})
    _began: float = 0.0
    _ended: float = 0.0
    _warm: _Reading | None = None

    def start(self) -> None:
        self._began = time.perf_counter()

    def step(self) -> None:
        """An optimizer step ended."""
        if self._warm is None:
            self._warm = self._read()

    def stop(self) -> None:
        self._ended = time.perf_counter()

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Add the block's seconds to "data_wait", "evaluation" or "saving"."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - began

    def count(self, batch: dict[str, Any]) -> None:
        """Take the count out of a batch of `Counted` and add it."""
        self.tokens += batch.pop(TOKENS)
        self.slots += batch["input_ids"].numel()

    def rates(self) -> dict[str, float | None]:
        """real_tokens_per_second, slots_per_second, padding_share and data_wait_share; None where nothing was measured."""
        end = self._read(self._ended or time.perf_counter())
        start = self._warm if self._warm is not None and self._warm.tokens < end.tokens else _Reading(self._began, 0, 0, 0.0, 0.0)
        wall = end.at - start.at - (end.other - start.other)
        if wall <= 0 or not end.slots:
            return dict.fromkeys(("real_tokens_per_second", "slots_per_second", "padding_share", "data_wait_share"))
        return {
            "real_tokens_per_second": (end.tokens - start.tokens) / wall,
            "slots_per_second": (end.slots - start.slots) / wall,
            "padding_share": 1 - end.tokens / end.slots,
            "data_wait_share": (end.data_wait - start.data_wait) / wall,
        }

    def time(self) -> dict[str, float]:
        """Seconds by part, the whole run."""
        total = (self._ended or time.perf_counter()) - self._began
        return {"forward_backward": max(0.0, total - sum(self.seconds.values())), **self.seconds}

    def _read(self, at: float | None = None) -> _Reading:
        other = self.seconds["evaluation"] + self.seconds["saving"]
        return _Reading(at or time.perf_counter(), self.tokens, self.slots, self.seconds["data_wait"], other)
