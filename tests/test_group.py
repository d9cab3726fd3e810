"""A rank's process ends when its work does: without an abort, although threads of its group are still at work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runs import VOCABULARY, Bench
from stores import learnable
from test_launch_ranks import launched
from timing import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.fault]
RANK = """
import atexit
import ctypes
import sys
import time

# Called last, straight from C, and keeps the lock: who asks for it meanwhile gets it when the interpreter is being torn down already.
atexit.register(ctypes.PyDLL(None).usleep, 2_000_000)
import torch
from torch import distributed

from ftcli.core.distributed.group import leave

rank = int(sys.argv[1])
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
distributed.barrier()
if rank:
    tensor = torch.ones(8)
    distributed.all_reduce(tensor, async_op=True)
    del tensor
else:
    time.sleep(0.5)
    distributed.all_reduce(torch.ones(8))
if sys.argv[3] == "leave":
    leave()
print("done", flush=True)
"""
SPY = '''
"""Writes at the end of a rank's process whether it is still in a group."""
import atexit
import os
from pathlib import Path


def ended():
    from torch import distributed

    Path(os.environ["SPIED"], os.environ["RANK"]).write_text("true" if distributed.is_initialized() else "false")


if "RANK" in os.environ:
    atexit.register(ended)
'''


def two(folder: Path, how: str) -> tuple[list[int], str]:
    """Exit codes of two ranks, and what the second wrote."""
    script = folder / "rank.py"
    script.write_text(RANK)
    words = [str(folder / "meeting"), how]
    jobs = [
        subprocess.Popen([sys.executable, script, str(rank), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    told = [job.communicate(timeout=PATIENCE)[0] for job in jobs]
    return [job.returncode for job in jobs], told[1]


def test_a_rank_that_leaves_its_group_ends_with_zero(tmp_path: Path) -> None:
    codes, told = two(tmp_path, "leave")
    assert codes == [0, 0], told


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python lets such a thread hang there")
def test_a_rank_that_does_not_is_aborted_after_its_work(tmp_path: Path) -> None:
    (first, second), told = two(tmp_path, "stay")
    # The first has waited for its last call; threads of its group may be at work for it all the same.
    assert second == -signal.SIGABRT, told
    assert first in (0, -signal.SIGABRT), told
    assert told.startswith("done\n")


@pytest.mark.usefixtures("nursery")
def test_every_rank_of_a_training_leaves_its_group(tmp_path: Path) -> None:
    bench = Bench.make(tmp_path)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "spy.py").write_text(SPY)
    store = bench.store("data", {"train": learnable(12, 3, VOCABULARY, 0)}, labels=3)
    code, _, log = launched(bench, store, "run", "--plugins-dir", str(tmp_path / "plugins"), SPIED=str(tmp_path))
    assert code == 0, log
    assert [json.loads((tmp_path / rank).read_text()) for rank in "01"] == [False, False]
