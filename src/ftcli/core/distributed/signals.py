"""SIGINT, SIGTERM, SIGUSR1 and SIGHUP as a wish: the run ends at the next step's end, with a checkpoint."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, Self

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""SIGUSR1 is what Slurm sends some time before the end (--signal=USR1@120), SIGHUP what a terminal sends that is closed."""


def heeded(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Without SIGHUP where it is ignored: nohup has a run go on without its terminal."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in numbers if number != signal.SIGHUP or not ignored]


def hung_up() -> None:
    """Heed no further SIGHUP, and point stdout and stderr at nothing where their other end is gone: what is still said would end the run (EIO).

    A closed terminal sends two: one by way of the shell, one when the shell ends.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            poll = select.poll()
            poll.register(descriptor, 0)
            if poll.poll(0):  # only an end that is gone is told without being asked for
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, descriptor)
                os.close(nothing)


def put_back(before: Mapping[signal.Signals, Any]) -> None:
    """Give signals their handlers back; after `hung_up` SIGHUP stays ignored, since the second one may come as late as when the process ends."""
    for number, handler in before.items():
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


class Signals:
    """Inside the `with` block the first of these signals is remembered in `received`; the second acts as it always did.

    Before the run has begun there is nothing to save, and the first acts as it always did: a large model is loaded for minutes.
    Outside the main thread nothing is installed, since Python allows it nowhere else.

    Args:
        apart: seconds within which another signal is the same wish: a scheduler signals the launcher and every rank, and the launcher
            hands it on.
        begun: False: it has not, until `begin` is called.
        said: written to stderr as soon as the first is remembered: a step may take minutes.
    """

    def __init__(self, apart: float = 0.0, *, begun: bool = True, said: str | None = None) -> None:
        self.received: str | None = None
        self.apart = apart
        self._begun = begun
        self._said = said
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._remember) for number in heeded(WATCHED)}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def begin(self) -> None:
        """From now on a signal is remembered."""
        self._begun = True

    def hear(self, of: str) -> None:
        """Remember a wish that came by another way, unless there is one: a signal that follows it soon is the same wish."""
        if self.received is None:
            self.received, self._since = of, time.monotonic()

    def _remember(self, number: int, _: FrameType | None) -> None:
        if not self._begun:
            self._restore()
            signal.raise_signal(number)
        elif self.received is None:
            self.hear(signal.Signals(number).name)
            if number == signal.SIGHUP:
                hung_up()
            self._tell()
            if not self.apart:
                self._restore()
        elif time.monotonic() - self._since >= self.apart:
            self._restore()
            signal.raise_signal(number)

    def _tell(self) -> None:
        """By the system call: the signal may have come while this thread holds the lock of `sys.stderr`."""
        if self._said is not None:
            start = "\n" if os.isatty(2) else ""  # behind a line of progress
            with contextlib.suppress(OSError):
                os.write(2, f"{start}{self.received} received: {self._said}\n".encode())

    def _restore(self) -> None:
        put_back(self._before)
        self._before = {}
