"""How fast the machine itself is from round to round: one fixed small loop, timed beside what is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

TURNS = 60_000
"""Turns of the loop: about 3 ms, under the smallest time slice of a scheduler."""
TRIES = 3


@dataclass(slots=True)
class Pace:
    """Seconds of the loop at every look. CPU seconds tell the clock's frequency, wall seconds also what other processes took."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def look(self) -> None:
        """Time the loop: the best of three."""
        cpus, walls = zip(*(_loop() for _ in range(TRIES)), strict=True)
        self.cpu.append(min(cpus))
        self.wall.append(min(walls))

    @property
    def drift(self) -> float | None:
        """Slowest look over fastest, less 1, in CPU seconds; None where there was one look only."""
        return max(self.cpu) / min(self.cpu) - 1 if len(self.cpu) > 1 and min(self.cpu) > 0 else None

    def to_details(self) -> dict[str, Any]:
        return {"drift": self.drift, "cpu_seconds": list(self.cpu), "wall_seconds": list(self.wall)}


def _loop() -> tuple[float, float]:
    cpu, wall, total = time.thread_time(), time.perf_counter(), 0
    for number in range(TURNS):
        total += number & 7
    assert total > 0
    return time.thread_time() - cpu, time.perf_counter() - wall
