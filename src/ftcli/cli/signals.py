"""What schedulers send before they kill, and terminals that are closed, as an interruption: report, hooks and exit code 3 instead of sudden death."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from ftcli.core.distributed import pulse
from ftcli.core.distributed.signals import heeded, hung_up, put_back

SENT = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@contextlib.contextmanager
def termination_interrupts() -> Iterator[None]:
    """Turn the first of each into KeyboardInterrupt; forked children keep the default, and die of it at once."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in heeded(SENT)}
    try:
        yield
    finally:
        put_back(before)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    rank = pulse.current()
    if rank is not None and rank.closing:
        return
    if number == signal.SIGHUP:  # not by way of the default: the second may come in between
        hung_up()
    else:
        signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt


def _ours() -> list[signal.Signals]:
    return [number for number in SENT if signal.getsignal(number) is _interrupt]


def _hold() -> None:
    """Keep a signal that comes during a fork waiting: Python drops what the child's inherited handler has noted."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ours())


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ours())


def _default_in_child() -> None:
    """A Python handler would wait for the worker's C code to return; pools terminate their workers with SIGTERM."""
    ours = _ours()
    for number in ours:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ours)


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_default_in_child)
