"""Memory of this process and everything it started, sampled while it works."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes that `ru_maxrss` counts in."""
INTERVAL = 1.0
"""Seconds between samples, at least."""
SPARING = 50
"""Times what a sample takes that pass until the next: 24 ms for three processes of 1 GB in all, so that 48 workers would cost a third of a core."""


def family(pid: int) -> list[int]:
    """`pid` and its descendants; empty once it is gone.

    Linux lists the children of every thread, which costs the same however many processes the machine has; elsewhere psutil looks
    through all of them.
    """
    if not Path(f"/proc/{pid}/task/{pid}/children").exists():
        try:
            process = psutil.Process(pid)
            return [pid, *(child.pid for child in process.children(recursive=True))]
        except psutil.Error:
            return []
    found = [pid]
    for parent in found:  # grows as it goes
        try:
            for task in os.scandir(f"/proc/{parent}/task"):
                found += map(int, Path(task.path, "children").read_text().split())
        except OSError:  # it ended meanwhile
            continue
    return found


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident size summed over the processes that are still there.

    On Linux a page that several of them share counts once, in equal parts: workers that are copies share what was loaded before.
    """
    return sum(map(_share, pids))


def _share(pid: int) -> int:
    """0.4 to 5 ms for a process of 1 GB."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):  # another system, another user's process, or it ended meanwhile
        return _whole(pid)


def _whole(pid: int) -> int:
    try:
        size: int = psutil.Process(pid).memory_info().rss
    except psutil.Error:  # it ended meanwhile
        return 0
    return size


class Footprint:
    """Samples the memory of this process and its descendants from a thread, inside a `with`."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="footprint", daemon=True)
        self._now = self._peak = self._largest = 0

    @property
    def now_mb(self) -> float:
        """The latest sample, in MB (10⁶ bytes)."""
        return self._now / 1e6

    @property
    def peak_mb(self) -> float:
        """The largest sample so far, in MB. What came and went between two samples is not seen."""
        return self._peak / 1e6

    @property
    def largest_mb(self) -> float:
        """The largest sample of a single process so far, in MB."""
        return self._largest / 1e6

    def sample(self) -> None:
        pids = family(os.getpid())
        self._now = resident_bytes(pids)
        self._largest = max(self._largest, *map(_whole, pids))
        self._peak = max(self._peak, self._now, self._largest)

    def __enter__(self) -> Self:
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        took = 0.0
        while not self._over.wait(max(INTERVAL, SPARING * took)):
            clock = time.perf_counter()
            self.sample()
            took = time.perf_counter() - clock
