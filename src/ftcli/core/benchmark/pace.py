"""What the machine itself did while something was measured: one fixed small loop, timed in every round, and the CPU time that others took."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psutil

from ftcli.core.processes.footprint import family

TURNS = 60_000
"""Turns of the loop: about 3 ms, under the smallest time slice of a scheduler."""
TRIES = 3
CROWDED = 0.1
"""Share of the CPUs' time in other processes from which on figures are theirs as well: of equal reports (8 runs each, 2 cores) that were made
beside a program that came and went, 21 of 80 comparisons found a difference."""
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
        """Time the loop: the best of three."""
        self.taken.append(taken())
        cpus, walls = zip(*(_loop() for _ in range(TRIES)), strict=True)
        self.cpu.append(min(cpus))
        self.wall.append(min(walls))

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


def _loop() -> tuple[float, float]:
    cpu, wall, total = time.thread_time(), time.perf_counter(), 0
    for number in range(TURNS):
        total += number & 7
    assert total > 0
    return time.thread_time() - cpu, time.perf_counter() - wall
