"""SIGINT, SIGTERM and SIGUSR1 as a wish: the run ends at the next step's end, with a checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any, Self

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""SIGUSR1 is what Slurm sends some time before the end (--signal=USR1@120)."""


class Signals:
    """Inside the `with` block the first of these signals is remembered in `received`; the second acts as it always did.

    Outside the main thread nothing is installed, since Python allows it nowhere else.

    Args:
        apart: seconds within which another signal is the same wish: a scheduler signals the launcher and every rank, and the launcher
            hands it on.
    """

    def __init__(self, apart: float = 0.0) -> None:
        self.received: str | None = None
        self.apart = apart
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._remember) for number in WATCHED}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _remember(self, number: int, _: FrameType | None) -> None:
        if self.received is None:
            self.received, self._since = signal.Signals(number).name, time.monotonic()
            if not self.apart:
                self._restore()
        elif time.monotonic() - self._since >= self.apart:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
