"""What a run did with its time and its slots, without a device synchronisation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ftcli.contracts import Collator
from ftcli.core.store import Rows
from ftcli.core.tasks import IGNORED

TOKENS = "tokens"
"""Key under which a counted batch carries its number of real tokens."""
ROWS = "rows"
"""Key under which it carries its row numbers."""


class Counted:
    """A collator whose batches say which rows and how many real tokens they hold, so that this needs no mask and works across loader processes."""

    def __init__(self, collator: Collator) -> None:
        self.collator = collator

    def __call__(self, rows: Rows) -> dict[str, Any]:
        batch = self.collator(rows)
        if rows.idle:
            batch["labels"].fill_(IGNORED)
        return {**batch, TOKENS: 0 if rows.idle else len(rows.input_ids.values), ROWS: rows.index}


PARTS = (
    "data_wait",
    "host_to_device",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "checkpoint",
    "evaluation",
    "logging",
)
"""What a run's seconds are put down to; what is left is "other"."""
HOST = ("host_to_device", "logging", "other")
"""Parts that are neither work on the model nor waiting: what Trainer itself does about a step."""
WHOLE = ("evaluation", "checkpoint")
"""Parts that count as one, whatever happens inside."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    tokens: int
    slots: int
    targets: Any
    steps: int
    seconds: dict[str, float]

    @property
    def aside(self) -> float:
        return self.seconds["evaluation"] + self.seconds["checkpoint"]


@dataclass(slots=True)
class Meter:
    """Seconds and tokens since `start`, on one clock. Rates leave out the first step (it compiles, allocates and fills caches), evaluations and
    checkpoints.

    A part inside another is taken off the outer one, so that parts never count a second twice: with "other" they are the wall clock.
    """

    tokens: int = 0
    slots: int = 0
    targets: Any = 0
    """Of the loss, in all processes where Trainer adds them up; a tensor on the device where they are counted there."""
    steps: int = 0
    unpadded: bool = False
    """The model leaves padding out: a batch's slots are its tokens."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    _open: list[str] = field(default_factory=list)
    _mark: float = 0.0
    _began: float = 0.0
    _ended: float = 0.0
    _warm: _Reading | None = None
    _last: _Reading | None = None
    """After the first step, and after the last one."""

    def start(self) -> None:
        """The clock starts here, also when it was started before."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._open.clear()  # an attempt that ended in the middle of a step left them
        self._began = self._mark = time.perf_counter()

    def step(self) -> None:
        """An optimizer step ended."""
        self.steps += 1
        self._last = self._read()
        if self._warm is None:
            self._warm = self._last

    def stop(self) -> None:
        while self._open:  # an error left them
            self.leave()
        self._ended = time.perf_counter()

    def enter(self, part: str) -> None:
        """The seconds from here on belong to `part`, until `leave`."""
        now = time.perf_counter()
        outer = self._open[-1] if self._open else None
        if outer is not None:
            self.seconds[outer] += now - self._mark
        self._open.append(outer if outer in WHOLE else part)
        self._mark = now

    def leave(self) -> None:
        """The part that was entered last ends; the one around it goes on."""
        now = time.perf_counter()
        self.seconds[self._open.pop()] += now - self._mark
        self._mark = now

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Put the block's seconds down to `part`."""
        self.enter(part)
        try:
            yield
        finally:
            self.leave()

    def timed(self, part: str, function: Callable[..., T]) -> Callable[..., T]:
        """`function`, its seconds put down to `part`."""

        def run(*args: Any, **kwargs: Any) -> T:
            with self.timing(part):
                return function(*args, **kwargs)

        return run

    def count(self, batch: dict[str, Any]) -> list[int]:
        """Take what `Counted` put there out of a batch: the count, which is added, and the row numbers, which are returned."""
        tokens = batch.pop(TOKENS)
        self.tokens += tokens
        self.slots += tokens if self.unpadded else batch["input_ids"].numel()
        rows: list[int] = batch.pop(ROWS).tolist()
        return rows

    def count_targets(self, items: Any) -> None:
        """Add the targets of a step, without a look at their value, which may be on a device."""
        if items is not None:
            self.targets = self.targets + items

    def rates(self) -> dict[str, float | None]:
        """real_tokens_per_second, slots_per_second, targets_per_second, padding_share, data_wait_share and host_overhead_share; None where nothing was
        measured."""
        start, end = self._stretch()
        wall = end.at - start.at - (end.aside - start.aside)
        names = (
            "real_tokens_per_second",
            "slots_per_second",
            "targets_per_second",
            "padding_share",
            "data_wait_share",
            "host_overhead_share",
        )
        if wall <= 0 or not end.slots:
            return dict.fromkeys(names)
        return {
            "real_tokens_per_second": (end.tokens - start.tokens) / wall,
            "slots_per_second": (end.slots - start.slots) / wall,
            "targets_per_second": float(end.targets - start.targets) / wall,
            "padding_share": 1 - end.tokens / end.slots,
            "data_wait_share": (end.seconds["data_wait"] - start.seconds["data_wait"]) / wall,
            "host_overhead_share": self._host_overhead(),
        }

    def _host_overhead(self) -> float | None:
        """From the first step's end to the last one's; None with fewer than two steps."""
        if self._warm is None or self._last is None or self._last is self._warm:
            return None
        seconds = _between(self._warm, self._last)
        whole = sum(share for part, share in seconds.items() if part not in WHOLE)
        return sum(seconds[part] for part in HOST) / whole if whole > 0 else None

    def time(self) -> dict[str, float]:
        """Seconds by part, the whole run; they add up to `wall`."""
        return {**self.seconds, "other": max(0.0, self.wall - sum(self.seconds.values()))}

    @property
    def wall(self) -> float:
        """Seconds since `start`."""
        return (self._ended or time.perf_counter()) - self._began

    def since_first_step(self) -> tuple[dict[str, float], int]:
        """Seconds by part and optimizer steps behind the first step, "other" in it."""
        start, end = self._stretch()
        return _between(start, end), end.steps - start.steps

    def _stretch(self) -> tuple[_Reading, _Reading]:
        end = self._read(self._ended or time.perf_counter())
        if self._warm is not None and self._warm.tokens < end.tokens:
            return self._warm, end
        return _Reading(self._began, 0, 0, 0, 0, dict.fromkeys(PARTS, 0.0)), end

    def _read(self, at: float | None = None) -> _Reading:
        return _Reading(at or time.perf_counter(), self.tokens, self.slots, self.targets, self.steps, dict(self.seconds))


def _between(start: _Reading, end: _Reading) -> dict[str, float]:
    """Seconds by part of a stretch of the run, "other" in it."""
    found = {part: end.seconds[part] - start.seconds[part] for part in PARTS}
    return {**found, "other": max(0.0, end.at - start.at - sum(found.values()))}
