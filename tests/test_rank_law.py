"""Loss and gradient of a global batch do not depend on how many ranks share it and into how many micro-batches each cuts its part, in any task.

That plain `Trainer` multiplies both is shown beside it in `test_incident2` and `test_train`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ftcli.testing import tiny_model
from rank_steps import TASKS, step, stores
from runs import Bench
from timing import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread", "nursery")]
HERE = Path(__file__).parent
FULL = pytest.mark.skipif(os.environ.get("FTCLI_FAULTS") != "full", reason="four processes, a minute of CPU: FTCLI_FAULTS=full")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("law"))
    stores(made)
    tiny_model("qwen3", labels=None).save_pretrained(made.folder / "qwen3")
    return made


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), pytest.param(4, 3, marks=FULL)])
def test_loss_and_gradient_do_not_depend_on_ranks_and_micro_batches(bench: Bench, ranks: int, micro_batches: int) -> None:
    truths = {task: step(bench, task, 1, 1) for task in TASKS}
    _job(bench.folder, ranks, micro_batches)
    for task, (loss, gradient) in truths.items():
        other_loss, other = torch.load(bench.folder / f"{task} {ranks}.pt")
        assert gradient.norm() > 1e-4
        assert other_loss == pytest.approx(loss, rel=1e-5), task
        assert float((other - gradient).norm() / gradient.norm()) < 1e-4, task


def _job(folder: Path, ranks: int, micro_batches: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    words = [sys.executable, "-m", "rank_steps", str(folder), str(micro_batches)]
    logs = [folder / f"rank {ranks} {rank}.log" for rank in range(ranks)]
    jobs = []
    for rank, log in enumerate(logs):
        with log.open("w") as out:
            numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
            jobs.append(subprocess.Popen(words, cwd=HERE, env={**shared, **numbers}, stdout=out, stderr=out))
    codes = [job.wait(PATIENCE) for job in jobs]
    assert not any(codes), "".join(log.read_text()[-2000:] for log in logs)
