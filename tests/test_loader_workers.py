"""Signals to all processes of a job, of which one loads data: the run goes on to its last checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from ftcli.core.training.meter import Counted

ROWS = SimpleNamespace(idle=False, input_ids=SimpleNamespace(values=(1, 2)), index=())


def plain(_: Any) -> dict[str, Any]:
    return {"pid": os.getpid()}


def counted(_: Any) -> dict[str, Any]:
    return Counted(plain)(ROWS)  # type: ignore[arg-type]


def loading(collate: Any) -> Iterator[dict[str, Any]]:
    return iter(DataLoader(range(1000), batch_size=1, num_workers=1, collate_fn=collate, prefetch_factor=2))  # type: ignore[arg-type]


def ended_by_somebody(pid: int) -> None:
    subprocess.run(["kill", "-TERM", str(pid)], check=True)


def test_a_process_that_loads_data_outlives_the_signal_that_ends_the_job_but_not_its_own_run() -> None:
    batches = loading(counted)
    pid = next(batches)["pid"]
    for _ in range(3):
        ended_by_somebody(pid)
    assert [next(batches)["pid"] for _ in range(20)] == [pid] * 20
    os.kill(pid, signal.SIGTERM)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(batches)


def test_without_that_it_dies_and_the_run_with_it() -> None:
    batches = loading(plain)
    ended_by_somebody(next(batches)["pid"])
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(batches)
