"""Signals to all processes of a job, of which one loads data: the run goes on to its last checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from ftcli.core.batches.batch import StoreDataset
from ftcli.core.distributed.loader_workers import of_a_dead_loader, of_a_loader, outliving
from ftcli.errors import DataError


class Plain(Dataset[Any]):
    """Each row is the process that gives it."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, _: int) -> int:
        return os.getpid()


class Split(SimpleNamespace):
    def __len__(self) -> int:
        return 1000


def ours() -> StoreDataset:
    return StoreDataset(Split(rows=lambda _: os.getpid()))  # type: ignore[arg-type]


def loading(data: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=1, num_workers=1, collate_fn=lambda rows: rows[0] if isinstance(rows, list) else rows)


def ended_by_somebody(pid: int) -> None:
    subprocess.run(["kill", "-TERM", str(pid)], check=True)


def test_a_process_that_loads_data_outlives_the_signal_that_ends_the_job_but_not_its_own_run() -> None:
    batches = iter(outliving(loading(ours())))
    pid = next(batches)
    for _ in range(3):
        ended_by_somebody(pid)
    assert [next(batches) for _ in range(20)] == [pid] * 20
    os.kill(pid, signal.SIGTERM)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(batches)


def test_without_that_it_dies_and_the_run_with_it() -> None:
    batches = iter(loading(Plain()))
    ended_by_somebody(next(batches))
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(batches)


class Broken:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> int:
        raise DataError(f"the collator odd breaks: ValueError: row {row}", "Mend the plugin.") from ValueError("row")


def test_an_error_in_a_process_that_loads_data_is_told_in_its_own_words() -> None:
    """Its words were the whole traceback, and a RuntimeError was called the death of the process."""
    with pytest.raises(DataError, match=r"^Caught DataError in DataLoader worker") as raised:
        list(loading(Broken()))
    told = of_a_loader(raised.value)
    assert (type(told), told.message) == (DataError, "the collator odd breaks: ValueError: row 0")
    assert "--dataloader-num-workers 0" in told.hint
    assert of_a_loader(told) is told
    assert not of_a_dead_loader(RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback"))
    assert of_a_dead_loader(RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."))
