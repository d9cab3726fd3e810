"""Progress on stderr: a line that moves on a terminal, a line now and then in a pipe, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.cli.streams import emit
from ftcli.context import Progress, Quiet
from ftcli.core.figures import GAP, megabytes, number, quantity, seconds, size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

SHORT = 0.3
"""Seconds under which a stage is not worth a line."""
INTERVAL = 30.0
"""Seconds between the lines of a long stage in a pipe."""
REDRAWS = 5.0
"""A second, on a terminal."""
WINDOW = 15.0
"""Seconds that a rate and the time left are taken from: a machine that gets slower shows at once, a slow batch hardly."""
SAMPLE = 0.5
"""Seconds between the samples of that window."""
BAR = 16
FILE_WIDTH = 28


def make(*, quiet: bool, terminal: bool) -> Progress:
    if quiet:
        return Quiet()
    return Bar() if terminal else Lines()


def amount(value: float, unit: str) -> str:
    """A stage's amount for people: bytes scaled, anything else counted."""
    text = size(value) if unit == "B" else quantity(round(value), unit.removesuffix("s") if round(value) == 1 else unit)
    return text.replace(GAP, " ")


def speed(rate: float, unit: str) -> str:
    """Units a second; seconds a unit where less than one is done in a second, as with a large model's steps."""
    if unit == "B" or rate >= 10 or rate <= 0:
        return f"{amount(rate, unit)}/s"
    return f"{rate:.1f} {unit}/s" if rate >= 1 else f"{seconds(1 / rate)}/{unit.removesuffix('s')}".replace(GAP, " ")


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    done: float
    tokens: float


class _Stage:
    """What both kinds count: done, since when, the latest figures, and how fast it goes just now.

    The figures `rows`, `tokens`, `workers`, `memory_mb` and `file` have forms of their own; others are shown as name and value.
    """

    def __init__(self, name: str, total: float | None, unit: str, before: float = 0.0) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.before = self.done = before
        self.began = time.monotonic()
        self.figures: dict[str, Any] = {}
        self._beside = sys.exc_info()[1]
        self._recent = deque([_Sample(self.began, before, 0.0)])

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def advance(self, amount: float, figures: dict[str, Any]) -> None:
        self.done += amount
        self.figures.update(figures)
        now = time.monotonic()
        if now - self._recent[-1].at >= SAMPLE:
            self._recent.append(_Sample(now, self.done, self._tokens))
            while len(self._recent) > 2 and self._recent[1].at <= now - WINDOW:
                self._recent.popleft()

    @property
    def _tokens(self) -> float:
        return self.figures.get("tokens") or 0

    def rates(self) -> tuple[float, float]:
        """Units and tokens a second over the last `WINDOW` seconds, over the whole stage where one wait (a checkpoint) is most of them; 0.0 before anything
        was done."""
        now = time.monotonic()
        times = [*(sample.at for sample in self._recent), now]
        waits = max(after - before for before, after in pairwise(times)) > (now - times[0]) / 2
        since = _Sample(self.began, self.before, 0.0) if waits else self._recent[0]
        span = max(now - since.at, 1e-9)
        return (self.done - since.done) / span, (self._tokens - since.tokens) / span

    def parts(self) -> dict[str, str]:
        """What can be said of a stage that goes on: name → text, the most important first."""
        rate, tokens = self.rates()
        left = self.total - self.done if self.total is not None else None
        figures = dict(self.figures)  # drawn in another thread than it is filled in
        known = {
            "share": f"{100 * self.done / self.total:.0f} %" if self.total else "",
            "rate": speed(rate, self.unit) if self.done > self.before else "",
            "left": f"{seconds(max(1, round(left / rate)))} left" if left and rate > 0 else "",
            "rows": quantity(figures.pop("rows", None) or None, "rows"),
            "tokens": f"{_short(tokens)} tokens/s" if figures.pop("tokens", None) else "",
            "memory": megabytes(figures.pop("memory_mb", None)),
            "workers": quantity(figures.pop("workers", None), "workers"),
        }
        known["workers"] = "1 worker" if known["workers"].startswith(f"1{GAP}") else known["workers"]
        file = figures.pop("file", None)
        known |= {name: f"{name.replace('_', ' ')} {number(value)}" for name, value in figures.items() if value is not None}
        known["file"] = _clipped(Path(file).name) if file else ""
        return {name: text.replace(GAP, " ") for name, text in known.items() if text and text != "unknown"}

    @property
    def _fails(self) -> bool:
        """Whether an exception is on its way that was not there when the stage began: it is what ends it."""
        return sys.exc_info()[1] not in (None, self._beside)

    def summary(self, ended: str = "") -> str:
        """What a stage came to; `ended`: a word for one that no exception ends."""
        took = seconds(self.seconds).replace(GAP, " ")
        done = self.done - self.before
        rate = speed(done / self.seconds, self.unit) if done and self.seconds > 0 else ""
        parts = ["stopped"] if self._fails else [ended] if ended else []
        parts.append(f"{amount(done, self.unit)} in {took} ({rate})" if rate else took)
        parts += [
            f"{name.replace('_', ' ')} {number(value)}" for name, value in self.figures.items() if name not in PASSING and value is not None
        ]
        return ", ".join(parts)


PASSING = {"workers", "memory_mb", "file"}
"""Figures that say nothing once a stage is over."""


class Lines:
    """A line when a stage begins to take long, one every `INTERVAL`, one when it ends; none for a stage that is over at once."""

    def __init__(self) -> None:
        self._stage: _Stage | None = None
        self._next = 0.0

    def start(self, stage: str, total: float | None, unit: str, before: float = 0.0) -> None:
        self.close()
        self._stage = _Stage(stage, total, unit, before)
        self._next = SHORT

    def advance(self, amount: float, **figures: Any) -> None:
        stage = self._stage
        if stage is None:
            return
        stage.advance(amount, figures)
        if stage.seconds < self._next or (stage.total is not None and stage.done >= stage.total):
            return
        if self._next == SHORT:
            self.say(f"{stage.name}: begun{_of(stage)}")
        else:
            self.say(f"{stage.name}: {', '.join(stage.parts().values())}")
        self._next = (stage.seconds // INTERVAL + 1) * INTERVAL

    def say(self, message: str) -> None:
        emit(f"{message}\n", sys.stderr)

    def close(self) -> None:
        if self._stage is not None:
            stage, self._stage = self._stage, None
            if stage.seconds >= SHORT:
                self.say(f"{stage.name}: {stage.summary('done')}")


class Bar:
    """One line with a bar, redrawn by a thread of its own; as many figures as the terminal is wide."""

    def __init__(self) -> None:
        self._stage: _Stage | None = None
        self._live: Live | None = None

    def start(self, stage: str, total: float | None, unit: str, before: float = 0.0) -> None:
        from rich.console import Console
        from rich.live import Live

        self.close()
        self._stage = _Stage(stage, total, unit, before)
        console = Console(file=sys.stderr, highlight=False)
        self._live = Live(get_renderable=lambda: self._drawn(console.width), console=console, refresh_per_second=REDRAWS, transient=True)
        self._live.start()

    def advance(self, amount: float, **figures: Any) -> None:
        if self._stage is not None:
            self._stage.advance(amount, figures)

    def say(self, message: str) -> None:
        emit(f"{message}\n", sys.stderr)

    def close(self) -> None:
        if self._live is not None and self._stage is not None:
            self._live.stop()
            stage, self._stage, self._live = self._stage, None, None
            self.say(f"{stage.name}: {stage.summary()}")

    def _drawn(self, width: int) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        stage = self._stage
        if stage is None:
            return Text("")
        name, bar, told = fitted(stage.name, stage.parts(), width - 1, bar=bool(stage.total))
        cells: list[RenderableType] = [Text(name, no_wrap=True, overflow="ellipsis")]
        if bar:
            cells.append(ProgressBar(total=stage.total, completed=min(stage.done, stage.total or 0), width=bar))
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_row(*cells, Text(told, no_wrap=True, overflow="ellipsis"))
        return grid


def fitted(name: str, parts: dict[str, str], width: int, *, bar: bool) -> tuple[str, int, str]:
    """Name, width of the bar (0: none) and figures of one line: the first parts as far as there is room.

    Share, rate and time left come before the bar, the bar before everything else.
    """
    room = width - len(name) - 1
    shown: list[str] = []
    drawn = 0
    for place, text in enumerate(parts.values()):
        if place == 3 and bar:
            drawn, room = _bar(room)
        if len(text) + 2 > room:
            break
        shown.append(text)
        room -= len(text) + 2
    if bar and not drawn:
        drawn, room = _bar(room)
    return name, drawn, "  ".join(shown)


def _bar(room: int) -> tuple[int, int]:
    """Width of a bar, and the room behind it; none where it would be shorter than 6."""
    drawn = min(BAR, room - 1)
    return (drawn, room - drawn - 1) if drawn >= 6 else (0, room)


def _of(stage: _Stage) -> str:
    return f", {amount(stage.total - stage.before, stage.unit)} to do" if stage.total else ""


def _short(value: float) -> str:
    """Three digits that matter: 812, 12.3k, 4.56M."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.0f}"


def _clipped(name: str) -> str:
    """A file name of at most `FILE_WIDTH` characters, its end kept: that is where it differs from its neighbours."""
    return name if len(name) <= FILE_WIDTH else f"…{name[1 - FILE_WIDTH :]}"
