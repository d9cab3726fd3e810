"""What the machine itself did while something was measured: one fixed small loop, timed in every round, and the CPU time that others took."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil

from ftcli.core.processes.footprint import family

TURNS = 60_000
"""Turns of the loop: about 3 ms, under the smallest time slice of a scheduler."""
TRIES = 3
MOST_CPUS = 4
"""CPUs that are looked at, of those that this process may use. A virtual one slows down alone, by 1.4 to 1.8 times, while a neighbour computes on its core."""
CROWDED = 0.1
"""Share of the CPUs' time in other processes that is worth a note."""
LEAST_SECONDS = 0.2
"""The system counts CPU time in steps of 0.01 s: shorter measurements do not tell whose it was."""
IDLE = frozenset({"idle", "iowait", "guest", "guest_nice"})
"""Of `psutil.cpu_times`; a guest's time is in user and nice already."""


class Taken(NamedTuple):
    """CPU seconds so far, and the clock."""

    clock: float
    busy: float
    """Of the CPUs that this process may use, by anybody, the hypervisor's other guests included."""
    own: float
    """By this process and everything it started."""


@dataclass(slots=True)
class Pace:
    """Seconds of the loop at every look (CPU seconds tell the clock's frequency), and the CPU time taken until then."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)

    def look(self) -> None:
        """Time the loop on several CPUs: the mean of each one's best of three."""
        self.taken.append(taken())
        cpus, walls = zip(*(_best(cpu) for cpu in _spread(_cpus())), strict=True)
        self.cpu.append(sum(cpus) / len(cpus))
        self.wall.append(sum(walls) / len(walls))

    @property
    def drift(self) -> float | None:
        """Slowest look over fastest, less 1, in CPU seconds; None where there was one look only."""
        return max(self.cpu) / min(self.cpu) - 1 if len(self.cpu) > 1 and min(self.cpu) > 0 else None

    @property
    def others(self) -> float | None:
        """Share of the CPUs' time that other processes took between the first look and the last; None where that is too short to tell."""
        if len(self.taken) < 2 or (seconds := self.taken[-1].clock - self.taken[0].clock) < LEAST_SECONDS:
            return None
        first, last = self.taken[0], self.taken[-1]
        return max(0.0, last.busy - first.busy - (last.own - first.own)) / (seconds * len(_cpus()))

    def to_details(self) -> dict[str, Any]:
        return {"drift": self.drift, "others": self.others, "cpu_seconds": list(self.cpu), "wall_seconds": list(self.wall)}


def taken() -> Taken:
    """CPU seconds until now, as the system counts them (in steps of 0.01 s)."""
    each = psutil.cpu_times(percpu=True)
    busy = sum(
        seconds
        for cpu in _cpus()
        if cpu < len(each)
        for name, seconds in zip(each[cpu]._fields, each[cpu], strict=True)
        if name not in IDLE
    )
    return Taken(time.perf_counter(), busy, sum(map(_used, family(os.getpid()))))


def _used(pid: int) -> float:
    try:
        return float(sum(psutil.Process(pid).cpu_times()[:4]))  # its own and its ended children's, user and system
    except psutil.Error:  # it ended meanwhile
        return 0.0


def _cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _spread(cpus: list[int]) -> list[int]:
    """At most `MOST_CPUS` of them, evenly spaced.

    >>> _spread([0, 1, 2, 3, 4, 5, 6, 7])
    [0, 2, 4, 6]
    """
    return cpus[:: -(-len(cpus) // MOST_CPUS)]


def _best(cpu: int) -> tuple[float, float]:
    """CPU and wall seconds of the loop, this thread being moved to a CPU where the system lets it."""
    if not hasattr(os, "sched_setaffinity"):
        return _fastest()
    before = os.sched_getaffinity(0)
    try:
        with suppress(OSError):
            os.sched_setaffinity(0, {cpu})
        return _fastest()
    finally:
        os.sched_setaffinity(0, before)


def _fastest() -> tuple[float, float]:
    cpus, walls = zip(*(_loop() for _ in range(TRIES)), strict=True)
    return min(cpus), min(walls)


def _loop() -> tuple[float, float]:
    cpu, wall, total = time.thread_time(), time.perf_counter(), 0
    for number in range(TURNS):
        total += number & 7
    assert total > 0
    return time.thread_time() - cpu, time.perf_counter() - wall
