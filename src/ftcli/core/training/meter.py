"""What a run did with its time and its slots. Nothing here waits for a device, but who asks for the figures."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ftcli.contracts import Collator
from ftcli.core.batches.tasks import IGNORED
from ftcli.core.storage.store import Rows
from ftcli.core.training.clock import Clock, HostClock, Mark

TOKENS = "tokens"
"""Key under which a counted batch carries its number of real tokens."""
ROWS = "rows"
"""Key under which it carries its row numbers."""
TEXTS = "texts"
"""Key under which it carries the tokens of each text, where its collator knows them, for `ftcli.core.models.side_by_side`."""


class Counted:
    """A collator whose batches say which rows and how many real tokens they hold, so that this needs no mask and works across loader processes."""

    def __init__(self, collator: Collator) -> None:
        self.collator = collator

    def __call__(self, rows: Rows) -> dict[str, Any]:
        batch = self.collator(rows)
        if rows.idle:
            batch["labels"].fill_(IGNORED)
        texts = getattr(self.collator, "texts", None)
        known = {} if texts is None else {TEXTS: texts(rows)}
        return {**batch, **known, TOKENS: 0 if rows.idle else len(rows.input_ids.values), ROWS: rows.index}


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


@dataclass(slots=True)
class _Reading:
    """What was counted up to a moment; seconds and the moment itself are known when the clock has come there."""

    tokens: int = 0
    slots: int = 0
    targets: Any = 0
    steps: int = 0
    at: float = 0.0
    """Seconds since the start."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @property
    def aside(self) -> float:
        return self.seconds["evaluation"] + self.seconds["checkpoint"]


@dataclass(slots=True)
class Meter:
    """Seconds and tokens since `start`, on one clock. Rates leave out the first step (it compiles, allocates and fills caches), evaluations and
    checkpoints.

    A part inside another is taken off the outer one, so that parts never count a second twice: with "other" they are the wall clock.
    """

    clock: Clock = field(default_factory=HostClock)
    tokens: int = 0
    slots: int = 0
    targets: Any = 0
    """Of the loss, in all processes where Trainer adds them up; a tensor on the device where they are counted there."""
    steps: int = 0
    unpadded: bool = False
    """The model leaves padding out: a batch's slots are its tokens."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    _at: float = 0.0
    """Seconds since the start that `seconds` and what is between the parts make together."""
    _open: list[str] = field(default_factory=list)
    _mark: Mark = None
    _began: float = 0.0
    _ended: float = 0.0
    _warm: _Reading | None = None
    _last: _Reading | None = None
    """After the first step, and after the last one."""
    _pending: deque[tuple[str | None, Mark, Mark] | _Reading] = field(default_factory=deque)
    """Stretches whose seconds the clock does not know yet, and readings that wait for those before them."""

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """The clock starts here, also when it was started before, unless steps were made: then it goes on."""
        if self.steps:
            self._open.clear()  # an attempt that ended in the middle of a step left them
            self._turn()
            return
        self.seconds, self._at = dict.fromkeys(PARTS, 0.0), 0.0
        self._open.clear()  # an attempt that ended in the middle of a step left them
        self._pending.clear()
        self._began, self._mark = time.perf_counter(), self.clock.mark()

    def step(self) -> None:
        """An optimizer step ended."""
        self.steps += 1
        self._last = self._read()
        if self._warm is None:
            self._warm = self._last

    def stop(self) -> None:
        while self._open:  # an error left them
            self.leave()
        self._read()
        self._settle(wait=True)
        self._ended = time.perf_counter()

    def enter(self, part: str) -> None:
        """The seconds from here on belong to `part`, until `leave`."""
        self._turn()
        outer = self._open[-1] if self._open else None
        self._open.append(outer if outer in WHOLE else part)

    def leave(self) -> None:
        """The part that was entered last ends; the one around it goes on."""
        self._turn()
        self._open.pop()

    def _turn(self) -> None:
        """The stretch since the last turn ends, and belongs to the part that is open."""
        now = self.clock.mark()
        self._pending.append((self._open[-1] if self._open else None, self._mark, now))
        self._mark = now
        self._settle()

    def _settle(self, *, wait: bool = False) -> None:
        """Add up the stretches that are over by the clock; all of them with `wait`."""
        while self._pending:
            first = self._pending[0]
            if isinstance(first, _Reading):
                first.at, first.seconds = self._at, dict(self.seconds)
            else:
                part, start, end = first
                if wait:
                    self.clock.wait(end)
                elif not self.clock.passed(end):
                    return
                lasted = self.clock.seconds(start, end)
                self._at += lasted
                if part is not None:
                    self.seconds[part] += lasted
            self._pending.popleft()

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
        self._settle(wait=True)
        seconds = _between(self._warm, self._last)
        whole = sum(share for part, share in seconds.items() if part not in WHOLE)
        return sum(seconds[part] for part in HOST) / whole if whole > 0 else None

    def time(self) -> dict[str, float]:
        """Seconds by part, the whole run; they add up to `wall`."""
        self._settle(wait=True)
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
        end = self._read()
        self._settle(wait=True)
        if self._warm is not None and self._warm.tokens < end.tokens:
            return self._warm, end
        return _Reading(), end

    def _read(self) -> _Reading:
        """The state of things now."""
        if not self._ended:
            self._turn()
        reading = _Reading(self.tokens, self.slots, self.targets, self.steps)
        self._pending.append(reading)
        self._settle()
        return reading


def _between(start: _Reading, end: _Reading) -> dict[str, float]:
    """Seconds by part of a stretch of the run, "other" in it."""
    found = {part: end.seconds[part] - start.seconds[part] for part in PARTS}
    return {**found, "other": max(0.0, end.at - start.at - sum(found.values()))}
