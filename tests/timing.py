"""Bounds of time that say something of the program and nothing of how busy the machine is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 240.0
"""Seconds to wait for what must happen, on a machine that others use too."""


def until(condition: Callable[[], Any], pause: float = 0.01) -> Any:
    """What `condition` answers as soon as that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(pause)
    return found


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """The block, with the processes that it waited for, takes less than `seconds` of CPU time, and does not hang."""
    before, clock = os.times(), time.monotonic()
    try:
        yield
    finally:  # an error in time is as good as an answer
        used = sum(os.times()[:4]) - sum(before[:4])
        assert used < seconds, f"{used:.1f} s of CPU time"
        assert time.monotonic() - clock < PATIENCE


def least_cpu(work: Callable[[], object], below: float = 0.0, times: int = 3) -> float:
    """CPU seconds of this process for the best of some runs, of which no more are made once one takes less than `below`.

    Neighbours on the same cores cost caches, and so up to three times the CPU time.
    """
    least = float("inf")
    for _ in range(times):
        clock = time.process_time()
        work()
        least = min(least, time.process_time() - clock)
        if least < below:
            break
    return least
