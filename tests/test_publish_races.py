"""Several processes at one output: one works, the others wait; the dead are succeeded at once, the stalled are named."""

from __future__ import annotations

import itertools
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

import publish_driver
from ftcli.core.publishing import publish
from ftcli.core.publishing.publish import Attempt
from ftcli.errors import PublishError
from publish_cases import NEW, OLD, SHARDS, command, prepare, seen, write_shard
from reliability import size
from timing import PATIENCE, until

pytestmark = pytest.mark.fault
ROUNDS = size(3, 50)


def start(mode: str, output: Path, version: str = NEW, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(command(mode, output, version), stdout=subprocess.PIPE, text=True, **options)


def waiting(mode: str, output: Path) -> subprocess.Popen[str]:
    """A process that has begun to wait for the holder."""
    process = start(mode, output, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stderr.readline() == "waiting\n"
    return process


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has finished one shard of `out` and hangs in the next."""
    process = start("hang", tmp_path / "out")
    until(lambda: list(tmp_path.glob(".out.*.attempt/records/*.json")))
    yield process
    process.kill()
    process.wait()


@pytest.mark.reliability(7, "8 processes prepare the same output: one works, all exit 0")
def test_of_eight_processes_one_does_the_work_and_all_succeed(tmp_path: Path) -> None:
    for _ in range(ROUNDS):
        processes = [start("wait", tmp_path / "out") for _ in range(8)]
        said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * 8, said
        assert sorted(said) == ["worked 0\n"] * 7 + ["worked 3\n"]
        assert seen(tmp_path / "out") == NEW
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        shutil.rmtree(tmp_path / "out")


def test_a_second_process_is_told_who_holds_the_output(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    second = start("normal", tmp_path / "out")
    said = second.communicate(timeout=PATIENCE)[0]
    assert second.returncode == 1
    assert said.startswith(f"PublishError | {tmp_path / 'out'} is being prepared by pid {holder.pid} on {os.uname().nodename}")
    assert holder.poll() is None


@pytest.mark.reliability(7, "two save_to_disk to one path both exit 0 and leave a mix of their rows", control=True)
def test_two_processes_that_save_to_one_path_leave_what_neither_wrote(tmp_path: Path) -> None:
    """The naive way: both exit with 0. Each is stopped half-way through, which a loaded machine does by itself, and goes on
    in the order that leaves the first half of one and the second half of the other."""
    script = """
import sys
from datasets import Dataset
from pathlib import Path
path, word, rows = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
data = Dataset.from_dict({"text": [word] * rows})
real = Dataset._save_to_disk_single
def save(job_id, shard, *rest, **options):
    if job_id == 1:
        print("half", flush=True)
        sys.stdin.readline()
    yield from real(job_id, shard, *rest, **options)
Dataset._save_to_disk_single = staticmethod(save)
data.save_to_disk(str(path), num_shards=2)
"""
    output = tmp_path / "out"
    pair = []
    for word, rows in (("one", "60"), ("two", "90")):
        command = [sys.executable, "-c", script, str(output), word, rows]
        pair.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        written = pair[-1].stdout
        assert written is not None
        assert written.readline() == "half\n"
    for process in pair[::-1]:  # the second's second shard, then the first's
        process.communicate("\n", timeout=PATIENCE)
    assert [process.returncode for process in pair] == [0, 0]
    words = Counter(Dataset.load_from_disk(str(output))["text"])
    assert set(words) == {"one", "two"}, words


@pytest.mark.reliability(8, "a killed preparer is succeeded at once, its finished shards are kept")
def test_a_killed_holder_is_succeeded_at_once_and_its_finished_shard_is_kept(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    waiter = waiting("wait", tmp_path / "out")
    with pytest.raises(subprocess.TimeoutExpired):
        waiter.wait(0.5)
    holder.kill()
    assert waiter.communicate(timeout=PATIENCE)[0] == "worked 2\n"
    assert seen(tmp_path / "out") == NEW


@pytest.mark.reliability(9, "a stopped preparer is reported with what to do, and the waiters leave")
def test_a_stopped_holder_is_reported_after_the_patience_and_the_waiter_leaves(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.send_signal(signal.SIGSTOP)
    waiter = start("impatient", tmp_path / "out")
    said = waiter.communicate(timeout=PATIENCE)[0]
    assert waiter.returncode == 1
    assert re.search(rf"no progress for \d+ s from pid {holder.pid} on {os.uname().nodename}", said), said
    assert f"It is suspended. To resume it: kill -CONT {holder.pid}. To end it: kill -9 {holder.pid}" in said


def test_who_comes_second_to_an_output_is_told_what_is_kept_of_its_work(tmp_path: Path) -> None:
    with Attempt.open(tmp_path / "out", "f") as late:
        write_shard(late, "a", SHARDS["a"])
        prepare(tmp_path / "out", "g")
        with pytest.raises(PublishError) as lost:
            late.publish({}, ["a"])
    assert lost.value.hint == (
        "Choose another output directory, or replace it with --overwrite. Running it again uses what this run finished, which is kept in "
        f"{late.directory}; otherwise remove that folder."
    )
    assert late.directory.is_dir()
    with Attempt.open(tmp_path / "out", "f", replace=True) as again:
        assert again.done("a") is not None
        again.publish({}, ["a"])
    assert not late.directory.exists()


@pytest.mark.reliability(9, "a preparer that wakes up after its attempt was taken over cannot publish")
@pytest.mark.parametrize("removed", ["the attempt", "the lease"])
@pytest.mark.parametrize("published", [True, False])
def test_a_holder_that_wakes_up_after_another_took_over_publishes_nothing(removed: str, published: bool, tmp_path: Path) -> None:
    output = tmp_path / "out"
    sleeper = start("step", output, stdin=subprocess.PIPE)
    assert sleeper.stdout is not None
    assert sleeper.stdout.readline() == "shard\n"
    sleeper.send_signal(signal.SIGSTOP)
    attempt = next(tmp_path.glob(".out.*.attempt"))
    if removed == "the attempt":
        shutil.rmtree(attempt)
    else:
        (attempt / "lease").unlink()
    other = start("normal" if published else "hang", output)
    if published:
        assert other.communicate(timeout=PATIENCE)[0].startswith("worked")
    else:
        until(lambda: len(list(attempt.glob("records/*.json"))) > (removed == "the lease"))
    sleeper.send_signal(signal.SIGCONT)
    said = sleeper.communicate("on\n" * 3, timeout=PATIENCE)[0]
    assert sleeper.returncode == 1, said
    assert "taken over" in said or "took over" in said
    if published:
        assert seen(output) == NEW
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
    else:
        assert not output.exists()
        assert other.poll() is None
        other.kill()
        other.wait()
        publish_driver.prepare(output, NEW)
        assert seen(output) == NEW


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, marks=pytest.mark.reliability(8, "ranks that poll for a marker still wait", control=True)),
        pytest.param(signal.SIGSTOP, marks=pytest.mark.reliability(9, "ranks that poll for a marker still wait", control=True)),
    ],
)
def test_polling_for_a_marker_waits_for_ever_when_the_one_who_sets_it_dies_or_stops(number: signal.Signals, tmp_path: Path) -> None:
    """The naive way of many training scripts."""
    script = """
import os, sys, time
from pathlib import Path
marker = Path(sys.argv[1])
if os.environ["RANK"] == "0":
    print("working", flush=True)
    time.sleep(100_000)
    marker.touch()
while not marker.exists():
    time.sleep(0.05)
"""
    first, second = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "ready")], stdout=subprocess.PIPE, env={"RANK": str(rank)})
        for rank in range(2)
    ]
    assert first.stdout is not None
    first.stdout.readline()
    first.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(4)  # ours, of the same size, has gone on or left by then
    for process in (first, second):
        process.kill()
        process.communicate()


def test_a_forked_worker_that_outlives_the_holder_does_not_keep_the_lease(tmp_path: Path) -> None:
    script = """
import os, sys, time
from pathlib import Path
from ftcli.core.publishing.publish import Attempt
attempt = Attempt.open(Path(sys.argv[1]), "f")
if os.fork() == 0:
    attempt.close()  # must not touch what belongs to the parent
    os.write(1, b"child %d\\n" % os.getpid())
    time.sleep(100_000)
os.write(1, b"parent\\n")
time.sleep(100_000)
"""
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    said = sorted(parent.stdout.readline().split() for _ in range(2))
    child = int(said[0][1])
    try:
        with pytest.raises(PublishError, match=f"pid {parent.pid} "):
            publish.Attempt.open(tmp_path / "out", "f")
        parent.kill()
        parent.wait()
        publish.Attempt.open(tmp_path / "out", "f").close()
    finally:
        parent.kill()
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_reader_with_a_memory_map_keeps_its_own_version_through_replacements(tmp_path: Path) -> None:
    output = tmp_path / "out"
    publish_driver.prepare(output, OLD)
    name, data = next(iter(publish_driver.content(OLD).items()))
    with (output / name).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        for version in itertools.islice(itertools.cycle([NEW, OLD]), 11):
            publish_driver.prepare(output, version)
            assert seen(output) == version
            assert view[:] == data
