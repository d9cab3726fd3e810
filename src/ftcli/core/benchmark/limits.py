"""What this machine could do at best, measured beside a result: copying memory, and matrix products in the run's own precision."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from ftcli.core.figures import number

COPIED = 64_000_000
"""Bytes of the memory that is copied: more than a cache holds."""
SECONDS = 0.2
"""Of measuring, for each limit."""
WIDTH = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices by device: large enough that starting the product does not count."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A result beside the machine: `reached` of `best` in `unit`; `what` says how the best was measured."""

    name: str
    what: str
    unit: str
    reached: float
    best: float

    @property
    def share(self) -> float:
        return self.reached / self.best

    @property
    def words(self) -> str:
        figures = f"{number(self.reached)} of {number(self.best)} {self.unit} ({self.what})"
        return f"{self.name} is at {self.share:.2g} of this machine's limit: {figures}"

    def to_json(self) -> dict[str, Any]:
        """A row of `metrics.limits`."""
        return {"name": self.name, "what": self.what, "unit": self.unit, "reached": self.reached, "best": self.best, "share": self.share}


@cache
def copied_bytes_per_second() -> float:
    """Bytes a second of copying memory in one thread, each byte counted once."""
    source, target = np.ones(COPIED, np.uint8), np.empty(COPIED, np.uint8)
    return COPIED / _fastest(lambda: np.copyto(target, source))


@cache
def gemm_flops_per_second(precision: str, device: str, threads: int) -> float:
    """FLOP/s of square matrix products with torch's present threads.

    Args:
        precision: fp32 or bf16.
        device: cpu or cuda.
        threads: those torch computes with now; the answer is remembered for each number.
    """
    width = WIDTH[device]
    matrix = torch.ones(width, width, dtype=torch.bfloat16 if precision == "bf16" else torch.float32, device=device)

    def product() -> None:
        torch.matmul(matrix, matrix)
        if device == "cuda":
            torch.cuda.synchronize()

    assert threads > 0
    return 2 * width**3 / _fastest(product)


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of as many runs as fit into `SECONDS`, two at least; the first, which allocates, does not count."""
    work()
    begun, found = time.perf_counter(), list[float]()
    while len(found) < 2 or time.perf_counter() - begun < SECONDS:
        clock = time.perf_counter()
        work()
        found.append(time.perf_counter() - clock)
    return min(found)
