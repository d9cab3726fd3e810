"""Claims in seconds of CPU time: what, limit, the best of some runs, and the machine. Exit code 1 when one does not hold.

    python -m benchmarks.limits

Not part of the tests, which count instructions, calls and bytes: how long something takes is also the machine's business.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ftcli.core.batches.batch import LengthGroupedSampler
from ftcli.core.prepare.pack import BestFit
from ftcli.core.processes.footprint import family, resident_bytes
from ftcli.machine import detect
from ftcli.testing import tiny_tokenizer

REPEATS = 3
DOCUMENTS = 3_000_000
WINDOW = 75_000
Claim = tuple[str, float, Callable[[], object]]
"""What is done, the most CPU seconds, and the doing."""


def claims(folder: Path) -> Iterator[Claim]:
    lengths = np.clip(np.random.default_rng(7).normal(211.5, 30, DOCUMENTS), 20, 287).astype(np.int64)
    windows = [lengths[start : start + WINDOW] for start in range(0, DOCUMENTS, WINDOW)]
    sampler = LengthGroupedSampler(lengths, 32, 0)
    yield "pack 3,000,000 documents at once", 8.0, lambda: BestFit().pack(lengths, 1024)
    yield "pack 3,000,000 documents in windows", 8.0, lambda: [BestFit().pack(window, 1024) for window in windows]
    yield "group 3,000,000 rows by length", 2.0, sampler.order
    yield "look at the memory of a process tree", 0.01, lambda: resident_bytes(family(os.getpid()))
    again = _prepared(folder)
    yield "ftcli tokenize again, nothing changed", 2.0, again


def _prepared(folder: Path) -> Callable[[], object]:
    """The same command again, whose output is there."""
    tiny_tokenizer(folder / "tokenizer")
    rows = (json.dumps({"text": f"please cancel subscription number {number}"}) for number in range(1_000))
    (folder / "data.jsonl").write_text("\n".join(rows) + "\n")
    command = [sys.executable, "-m", "ftcli", "tokenize", "data.jsonl", "--tokenizer-path", "tokenizer", "--output-dir", "out"]

    def run() -> object:
        return subprocess.run([*command, "--tokenizer-engine", "hf", "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    run()
    return run


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of this process and of those that it waited for; the best of `REPEATS`: neighbours cost caches, never save time."""
    best = float("inf")
    for _ in range(REPEATS):
        before = _used()
        work()
        best = min(best, _used() - before)
    return best


def _used() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main() -> int:
    missed = 0
    print("| what | limit | measured | |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for what, limit, work in claims(Path(folder)):
            seconds = cpu(work)
            missed += seconds > limit
            print(f"| {what} | {limit:g} s | {seconds:.3f} s | {'MISSED' if seconds > limit else 'holds'} |", flush=True)
    machine = detect()
    load = "unknown" if machine.load_average is None else f"{machine.load_average:.1f}"
    print(
        f"\nCPU seconds, best of {REPEATS}. {machine.cpu_model}, {machine.cores} cores, {machine.platform}, Python {machine.python}; load {load}."
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
