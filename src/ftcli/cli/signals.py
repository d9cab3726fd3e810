"""SIGTERM, which schedulers send before they kill, as an interruption: report, hooks and exit code 3 instead of sudden death."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from ftcli.core.distributed import pulse


@contextlib.contextmanager
def termination_interrupts() -> Iterator[None]:
    """Turn the first SIGTERM into KeyboardInterrupt; forked children keep the default, and die of it at once."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    rank = pulse.current()
    if rank is not None and rank.closing:
        return
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt


def _hold() -> None:
    """Keep a SIGTERM that comes during a fork waiting: Python drops what the child's inherited handler has noted."""
    if signal.getsignal(signal.SIGTERM) is _interrupt:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    if signal.getsignal(signal.SIGTERM) is _interrupt:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _default_in_child() -> None:
    """A Python handler would wait for the worker's C code to return; pools terminate their workers with SIGTERM."""
    if signal.getsignal(signal.SIGTERM) is _interrupt:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_default_in_child)
