"""Several processes of one job that need the same prepared data: one prepares, the others show how far it is, then all go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftcli.context import Context, Progress
from ftcli.core.figures import GAP, size
from ftcli.core.files.lease_holder import Note, this_rank
from ftcli.core.files.lease_watch import UNSIGNED, Sight
from ftcli.core.publishing.publish import Attempt

FIRST_SECONDS = 1.0
"""A shorter wait is not worth a word."""
LINE_SECONDS = 10.0
"""Between two lines in a pipe, and the silence after which a holder is said to be silent."""
STAGE = "waiting"


class Beating:
    """Progress that is also a sign of life, for those who wait for what this process does."""

    def __init__(self, progress: Progress, beat: Callable[[], None]) -> None:
        self.loud = progress.loud if isinstance(progress, Muted) else progress
        self.inner, self._beat = progress, beat

    def start(self, stage: str, total: float | None, unit: str, before: float = 0.0) -> None:
        self._beat()
        self.inner.start(stage, total, unit, before)

    def advance(self, amount: float, **figures: Any) -> None:
        self._beat()
        self.inner.advance(amount, **figures)

    def say(self, message: str) -> None:
        self.inner.say(message)

    def close(self) -> None:
        self.inner.close()


class Muted:
    """Progress of a rank that is not the first: its notes and bars would repeat those of the first, until it turns out to do the work itself
    (`speak`). `loud` shows all the same."""

    def __init__(self, loud: Progress) -> None:
        self.loud = loud
        self.speaks = False
        self._kept: list[str] = []

    def speak(self) -> None:
        """Show what was said, and from now on everything."""
        self.speaks = True
        for message in self._kept:
            self.loud.say(message)
        self._kept.clear()

    def start(self, stage: str, total: float | None, unit: str, before: float = 0.0) -> None:
        if self.speaks:
            self.loud.start(stage, total, unit, before)

    def advance(self, amount: float, **figures: Any) -> None:
        if self.speaks:
            self.loud.advance(amount, **figures)

    def say(self, message: str) -> None:
        if self.speaks:
            self.loud.say(message)
        else:
            self._kept.append(message)

    def close(self) -> None:
        self.loud.close()


def speak(progress: Progress) -> None:
    """This process does the work of its output, whatever its rank: ranks that Slurm started may have an output each."""
    if (found := _muted(progress)) is not None:
        found.speak()


def silent(progress: Progress) -> bool:
    """Whether another rank says what there is to say."""
    found = _muted(progress)
    return found is not None and not found.speaks


def _muted(progress: Progress) -> Muted | None:
    inner = progress.inner if isinstance(progress, Beating) else progress
    return inner if isinstance(inner, Muted) else None


def open_attempt(
    context: Context,
    output: Path,
    fingerprint: str,
    *,
    inputs: Mapping[str, Any],
    need_bytes: int,
    on_block: Callable[[], None] = lambda: None,
) -> Attempt:
    """`Attempt.open` that waits for another process and shows on stderr, on every rank, whom it waits for and how far that one is.

    Args:
        on_block: called when the first look shows that another process has the work.

    Raises:
        FtcliError: as `Attempt.open`.
    """
    runtime = context.settings.runtime
    wait = Wait(context.progress, output, runtime.lease_timeout, on_block)
    try:
        attempt = Attempt.open(
            output,
            fingerprint,
            inputs=inputs,
            replace=runtime.overwrite,
            need_bytes=need_bytes,
            wait=True,
            patience=runtime.lease_timeout,
            on_wait=wait.see,
        )
    finally:
        wait.close()
    attempt.on_left = context.note
    gone = attempt.predecessor
    if gone is not None and attempt.ready is None:
        context.notes.append(f"{gone.short}, which was preparing {output}, has ended: {_me()} continues from the shards it had finished")
        wait.say(context.notes[-1])
    return attempt


def _me() -> str:
    rank = this_rank()
    return "this process" if rank is None else f"rank {rank}"


class Wait:
    """Shows a wait: a bar on a terminal, lines in a pipe, and in both a warning when the holder falls silent."""

    def __init__(
        self,
        progress: Progress,
        output: Path | str,
        patience: float,
        on_block: Callable[[], None] = lambda: None,
        *,
        does: str = "prepares",
    ) -> None:
        self._progress = progress.loud if isinstance(progress, Muted | Beating) else progress
        self._bar = sys.stderr.isatty() and not this_rank()  # the bars of several ranks would draw over each other
        self._work, self._patience, self._on_block = f"{does} {output}", patience, on_block
        self._begun: float | None = None
        self._next = 0.0
        self._warn_at = self._warn_first = min(LINE_SECONDS, patience / 2)
        self._drawn: Note | None = None
        self._start: tuple[float, float] | None = None

    def say(self, message: str) -> None:
        self._progress.say(message)

    def see(self, sight: Sight) -> None:
        """To be called some times a second."""
        now = time.monotonic()
        if self._begun is None:
            self._begun, self._next = now, now + FIRST_SECONDS
            self._on_block()
        self._warn(sight)
        if now < self._next:
            return
        if self._bar:
            self._next = now + FIRST_SECONDS / 5
            self._draw(sight.note)
        else:
            self._next = now + LINE_SECONDS
            self.say(self._line(sight, now))

    def close(self) -> None:
        if self._drawn is not None:
            self._progress.close()

    def _warn(self, sight: Sight) -> None:
        if sight.silent < self._warn_first:
            self._warn_at = self._warn_first
        elif sight.silent >= self._warn_at:
            self._warn_at = sight.silent + LINE_SECONDS
            self._next = time.monotonic() + LINE_SECONDS
            self.say(
                f"no progress for {sight.silent:.0f} s from {_who(sight.note)}, which {self._work} and holds {sight.path}:"
                f" {_me()} gives up after {self._patience:g} s (runtime.lease_timeout)"
            )

    def _line(self, sight: Sight, now: float) -> str:
        parts = [f"{_me()} waits for {_who(sight.note)}, which {self._work}"]
        progress = {} if sight.note is None else sight.note.progress
        if progress.get("total"):
            done, total = progress["done"], progress["total"]
            if self._start is None or done < self._start[1]:
                self._start = (now, done)
            parts.append(f"{100 * done / total:.0f} %, {_size(done)} of {_size(total)}")
            parts.append(f"{progress['shards_done']:,.0f} of {progress['shards']:,.0f} shards")
            if now > self._start[0]:
                parts.append(f"{_size((done - self._start[1]) / (now - self._start[0]))}/s")
        parts.append(f"last heartbeat {sight.silent:.1f} s ago")
        return f"{parts[0]}: {', '.join(parts[1:])}"

    def _draw(self, note: Note | None) -> None:
        if note is None:
            return
        progress = note.progress
        before = self._drawn
        if before is None or (before.token, before.progress.get("total")) != (note.token, progress.get("total")):
            self._progress.start(f"{STAGE} for {note.short}", progress.get("total"), "B")
            before = None
        done = progress.get("done", 0.0) - (before.progress.get("done", 0.0) if before is not None else 0.0)
        shards = {"shards": f"{progress['shards_done']:,.0f} of {progress['shards']:,.0f}"} if "shards" in progress else {}
        self._progress.advance(done, **shards)
        self._drawn = note


def _who(note: Note | None) -> str:
    return UNSIGNED if note is None else note.short


def _size(count: float) -> str:
    return size(count).replace(GAP, " ")
