"""What stands beside a run - metrics and report - cannot end it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftcli.commands.train import run
from ftcli.core.training.train import _named
from ftcli.core.training.trainer import FtcliTrainer
from ftcli.errors import TrainError
from runs import VOCABULARY, Bench
from stores import learnable
from timing import PATIENCE


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("bench"))
    made.store("store", {"train": learnable(24, 3, VOCABULARY, 0)}, labels=3)
    return made


@pytest.mark.fault
@pytest.mark.reliability(23, "a full disk under metrics and report")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_metrics_and_report_that_cannot_be_written_are_said_and_the_run_goes_on(bench: Bench, tally: Callable[..., None]) -> None:
    output = bench.folder / "full"
    (output / "report.html" / "in the way").mkdir(parents=True)
    (output / "metrics.jsonl").symlink_to("/dev/full")  # takes no byte: ENOSPC
    values = {"train__max_steps": 2, "train__logging_steps": 1, "train__verify": False}
    state = torch.get_rng_state()
    report = run(bench.context(bench.folder / "store", "full", **values))
    torch.set_rng_state(state)
    assert report.status == "ok"
    assert (output / "model.safetensors").exists()
    assert len([note for note in report.notes if "metrics.jsonl: No space left on device" in note and "continues without it" in note]) == 1
    assert any("report.html" in note and "the report is not kept" in note for note in report.notes)
    tally(files=2)


def test_metrics_that_are_not_there_are_not_among_the_files(bench: Bench) -> None:
    """As when the run's folder is moved away under it: the saves make it anew."""
    output = bench.folder / "moved"
    output.mkdir()
    (output / "metrics.jsonl").symlink_to("gone/metrics.jsonl")
    values = {"train__max_steps": 1, "train__logging_steps": 1, "train__verify": False}
    report = run(bench.context(bench.folder / "store", "moved", **values))
    assert (report.status, "metrics" in report.paths) == ("ok", False)


@pytest.mark.fault
@pytest.mark.reliability(22, "a loader's worker of train")
@pytest.mark.parametrize("seen", ["by its signal", "by what it sent"])
def test_a_dead_worker_of_the_loader_is_named_with_the_step(
    bench: Bench, seen: str, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    """torch hears of it by SIGCHLD, or finds that what the process has sent can no longer be had from it: whichever comes first."""
    fetch, killed = FtcliTrainer.get_batch_samples, list[int]()

    def fetching(self: FtcliTrainer, *arguments: Any) -> Any:
        if self.state.global_step == 2 and not killed:
            (worker,) = multiprocessing.active_children()
            killed.append(worker.pid or 0)
            if seen == "by what it sent":
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                monkeypatch.setattr(worker, "is_alive", lambda: True)  # a process that is being killed is, for a moment
                time.sleep(0.5)  # it has sent two batches ahead
            os.kill(killed[0], signal.SIGKILL)
            os.waitid(os.P_PID, killed[0], os.WEXITED | os.WNOWAIT)
            if seen == "by its signal":
                time.sleep(PATIENCE)
        return fetch(self, *arguments)

    monkeypatch.setattr(FtcliTrainer, "get_batch_samples", fetching)
    values = {"train__max_steps": 20, "train__per_device_train_batch_size": 1, "train__verify": False, "loader__num_workers": 1}
    state = torch.get_rng_state()
    before = signal.getsignal(signal.SIGCHLD)
    try:
        with pytest.raises(TrainError, match=r"after step \d+ a DataLoader worker died: ") as died:
            run(bench.context(bench.folder / "store", f"worker {seen}", **values))
    finally:
        signal.signal(signal.SIGCHLD, before)
        torch.set_rng_state(state)
    assert (f"DataLoader worker (pid {killed[0]})" in died.value.message) is (seen == "by its signal")
    assert "--dataloader-num-workers 0" in died.value.hint
    tally(workers=1)


def test_an_error_that_is_no_machines_keeps_its_traceback() -> None:
    trainer: Any = SimpleNamespace(state=SimpleNamespace(global_step=1))
    assert _named(SimpleNamespace(), trainer, RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None  # type: ignore[arg-type]
    assert _named(SimpleNamespace(), trainer, ConnectionResetError("the hub's")) is None  # type: ignore[arg-type]
