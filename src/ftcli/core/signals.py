"""SIGINT and SIGTERM as a wish: the run ends at the next step's end, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

WATCHED = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Inside the `with` block the first SIGINT or SIGTERM is remembered in `received`; the second acts as it always did.

    Outside the main thread nothing is installed, since Python allows it nowhere else.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._remember) for number in WATCHED}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _remember(self, number: int, _: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
