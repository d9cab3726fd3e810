"""`ftcli tokenize` killed, raced and starved of disk: the next run goes on and ends at the same bytes."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ftcli.core.files.manifest import check_published
from ftcli.testing import tiny_tokenizer
from reliability import SEED, size
from timing import PATIENCE, until
from tokenizing import corpus, left_behind, manifest, write
from tracing import needs_strace

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("nursery")]
HERE = Path(__file__).parent
NAIVE = [sys.executable, "-m", "naive_driver"]
WORKERS = 2
SHARDS = 40
"""The data have more."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and some 60 shards of text."""
    root = tmp_path_factory.mktemp("faults")
    tiny_tokenizer(root / "tokenizer")
    write(root / "data.jsonl", corpus(3_000), ("a", "b", "c") * 1_000)
    return root


def command(folder: Path, output: Path, *options: str, source: str = "data.jsonl") -> list[str]:
    words = ["tokenize", folder / source, "--tokenizer-path", folder / "tokenizer", "--output-dir", output]
    settings = ["--set", "dataset.shard_bytes=6000", "--tokenizer-engine", "hf", "--max-length", "24"]
    return [sys.executable, "-m", "ftcli", *map(str, words), *settings, "--json", *options]


def start(command: list[str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def end(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    out, err = process.communicate(timeout=PATIENCE)
    assert out, err
    return process.returncode, json.loads(out.splitlines()[-1])


def records(output: Path) -> int:
    """Finished shards of an attempt."""
    return sum(1 for _ in output.parent.glob(f".{output.name}.*.attempt/records/*.json"))


def wait(condition: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    """What `condition` answers as soon as that is true, while the process runs."""
    found = until(lambda: condition() or process.poll() is not None, 0.005)
    assert process.poll() is None or condition(), f"it did not happen; exit code {process.poll()}"
    return found


def in_the_middle(run: list[str], output: Path, cwd: Path) -> subprocess.Popen[str]:
    """A run that stands still, all processes of it, with some shards finished and some left; `go_on` lets it go on.

    One that was over before this process could look is begun anew.
    """
    for _ in range(20):
        process = start(run, cwd)
        until(lambda: records(output) >= 2 or process.poll() is not None, 0.002)  # noqa: B023 - it is called here
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGSTOP)
        if process.poll() is None and not output.exists() and 2 <= records(output) < SHARDS:
            return process
        go_on(process)
        code, report = end(process)
        assert code == 0, report["error"]
        shutil.rmtree(output)
    raise AssertionError("every run was over at once")


def go_on(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The worker processes of a run, without the one that they are copies of; none where it has ended."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
        return [child for child in below if "ftcli.core.processes.child" in " ".join(child.cmdline()) and not child.children()]
    except psutil.NoSuchProcess:
        return []


def unfinished(output: Path) -> set[str]:
    """Shards that an attempt has begun and not finished: the work that the next run does again."""
    begun = {path.name.rsplit(".", 1)[0] for path in output.parent.glob(f".{output.name}.*.attempt/tmp/*") if path.is_dir()}
    return begun - {path.stem for path in output.parent.glob(f".{output.name}.*.attempt/records/*.json")}


def gone(process: subprocess.Popen[str]) -> None:
    """Kill the whole group and wait until nothing of it is left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: not [one for one in psutil.process_iter() if group_of(one) == process.pid])


def group_of(process: psutil.Process) -> int:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return -1


class Chain:
    """The same command again and again, killed each time, until a run ends; then from the beginning. Its checks hold after every kill."""

    def __init__(self, output: Path, whole: dict[str, Any]) -> None:
        self.output, self.hash = output, whole["metrics"]["content_hash"]
        self.kills = self.completed = self.done = self.most_redone = 0

    def killed(self) -> None:
        """After a kill: finished shards are kept, and each worker had at most one in work."""
        self.kills += 1
        if self.output.exists():
            assert check_published(self.output, full=True)["content_hash"] == self.hash
            return
        finished, redone = records(self.output), len(unfinished(self.output))
        assert finished >= self.done, "a finished shard was lost"
        assert redone <= WORKERS
        self.done, self.most_redone = finished, max(self.most_redone, redone)

    def ended(self, code: int, report: dict[str, Any]) -> None:
        """After a run that nothing stopped: the content of a run that was never killed, every row once, and nothing else."""
        assert code == 0, report["error"]
        assert report["metrics"]["content_hash"] == self.hash
        assert report["metrics"]["rows_read"] == report["metrics"]["rows_written"] == 3_000
        assert report["metrics"]["reused"] or report["metrics"]["shards_resumed"] == self.done
        assert left_behind(self.output) == []
        assert sorted(path.name for path in self.output.parent.iterdir()) == ["ftcli-reports", self.output.name]
        shutil.rmtree(self.output)
        self.completed, self.done = self.completed + 1, 0


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Any]:
    """The report of a run that nothing disturbed, in one process."""
    code, report = end(start(command(folder, folder / "whole", "--num-proc", "1"), folder))
    assert code == 0, report["error"]
    assert len(manifest(folder / "whole")["files"]) > SHARDS + 10
    return dict(report)


@pytest.mark.timeout(7200)
@pytest.mark.reliability(2, "SIGKILL of the whole group, then the same command again")
def test_killed_at_random_times_it_goes_on_and_ends_at_the_same_bytes(folder, whole, tmp_path, tally):
    chain, rolls = Chain(tmp_path / "out", whole), random.Random(SEED)
    run = command(folder, chain.output, "--num-proc", str(WORKERS))
    took = 1.0  # seconds that the last whole run took after its first shard: only where the next kill is aimed
    while chain.kills < size(20, 200):
        process = start(run, tmp_path)
        if rolls.random() < 0.2:  # anywhere, also in the first seconds, which import and look at the sources
            moment = rolls.uniform(0, 2.0)
        else:  # from the first new shard to some time after the end
            with suppress(AssertionError):
                wait(lambda: chain.output.exists() or records(chain.output) > chain.done, process)
            moment = rolls.uniform(0, 1.2 * took / (1 + chain.completed % 3))
        begun = time.monotonic()
        try:
            out, _ = process.communicate(timeout=moment)
        except subprocess.TimeoutExpired:
            gone(process)
            chain.killed()
        else:
            took = max(0.3, time.monotonic() - begun)
            chain.ended(process.returncode, json.loads(out.splitlines()[-1]))
    chain.ended(*end(start(run, tmp_path)))
    tally(kills=chain.kills, hashes_differ=0, shards_redone_at_most=chain.most_redone)


@pytest.mark.reliability(2, "datasets.map and save_to_disk", control=True)
def test_map_and_save_to_disk_begin_again_and_leave_temporary_files(folder, tmp_path, tally):
    """Killed once, or again where the kill fell between two temporary files."""
    for kills in range(1, 6):
        cache, log = tmp_path / f"cache{kills}", tmp_path / f"rows{kills}.log"
        log.touch()
        run = [*NAIVE, str(folder / "data.jsonl"), str(cache), str(tmp_path / f"out{kills}"), str(log)]
        process = start([*run, "1500"], HERE)
        wait(lambda log=log: sum(map(int, log.read_text().split())) >= 1_500, process)
        gone(process)
        done = sum(map(int, log.read_text().split()))
        process = start(run, HERE)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        redone = sum(map(int, log.read_text().split())) - 3_000
        left = [path for path in cache.rglob("tmp*") if path.is_file()]
        if left:
            break
    tally(f"map + save_to_disk: {redone:,} of {done:,} rows done again after a kill, {len(left)} temporary files left")
    assert redone > 200, "more than a batch per worker"
    assert left


CALLS = {"the command": ("fsync", "rename", "mkdir", "openat", "close"), "a worker": ("fsync", "rename", "mkdir", "write", "rmdir")}


@needs_strace
@pytest.mark.timeout(7200)
@pytest.mark.reliability(1, "tokenize killed at random system calls")
@pytest.mark.parametrize("victim", CALLS)
def test_killed_at_random_system_calls_it_ends_at_the_same_bytes(victim, folder, whole, tmp_path, tally):
    """strace joins the main thread of the command, or a worker, when the first new shard is there, and kills it at its n-th call of a kind."""
    chain, rolls = Chain(tmp_path / "out", whole), random.Random(SEED)
    run = command(folder, chain.output, "--num-proc", str(WORKERS))
    while chain.kills < size(2, 50):
        process = start(run, tmp_path)
        with suppress(AssertionError):  # it ended before
            wait(lambda: records(chain.output) > chain.done, process)
        call, number = rolls.choice(CALLS[victim]), rolls.randint(1, 6)
        pids = [process.pid] if victim == "the command" else [worker.pid for worker in workers(process)][:1]
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"]
        for pid in pids:
            subprocess.run(["strace", "-p", str(pid), "-o", os.devnull, *inject], capture_output=True)
        out, _ = process.communicate(timeout=PATIENCE)
        report = json.loads(out.splitlines()[-1]) if out else None
        if process.returncode == 0:
            chain.ended(0, report)
            continue
        if victim == "a worker":
            assert re.search("worker process .*ended by SIGKILL in shard", report["error"]["message"]), report["error"]
        else:
            assert process.returncode == -signal.SIGKILL, report["error"]
        gone(process)
        chain.killed()
    chain.ended(*end(start(run, tmp_path)))
    tally(points=chain.kills, wrong=0)


def test_workers_do_not_outlive_a_killed_command(folder, tmp_path):
    output = tmp_path / "out"
    process = in_the_middle(command(folder, output, "--num-proc", str(WORKERS)), output, tmp_path)
    children = workers(process)
    assert len(children) == WORKERS
    os.kill(process.pid, signal.SIGKILL)
    go_on(process)
    process.communicate()
    psutil.wait_procs(children, timeout=PATIENCE)
    assert not [child for child in children if child.is_running()]


@pytest.mark.reliability(22, "a worker of tokenize")
def test_a_killed_worker_is_named_and_the_next_run_ends(folder, whole, tmp_path, tally):
    output = tmp_path / "out"
    process = in_the_middle(command(folder, output, "--num-proc", str(WORKERS)), output, tmp_path)
    workers(process)[0].kill()
    go_on(process)
    assert process.stderr is not None
    told = next(line for line in process.stderr if line.startswith("error:"))
    assert "ended by SIGKILL" in told
    code, report = end(process)
    assert (code, report["status"]) == (1, "failed")
    assert re.search(
        r"worker process \d+ ended by SIGKILL in shard \d+, after [\d,]+ of its rows, in .*data\.jsonl", report["error"]["message"]
    )
    assert "memory" in report["error"]["hint"]
    code, report = end(start(command(folder, output, "--num-proc", "1"), tmp_path))
    assert (code, report["metrics"]["content_hash"]) == (0, whole["metrics"]["content_hash"])
    assert left_behind(output) == []


@pytest.mark.reliability(22, "a worker of datasets.map", control=True)
def test_a_killed_worker_of_map_is_reported_without_file_or_row(folder, tmp_path, tally):
    log = tmp_path / "rows.log"
    log.touch()
    process = start([*NAIVE, str(folder / "data.jsonl"), str(tmp_path / "cache"), str(tmp_path / "out"), str(log), "300"], HERE)
    wait(lambda: log.stat().st_size > 8, process)
    pool = [child for child in psutil.Process(process.pid).children() if "naive_driver" in child.cmdline()]
    pool[0].kill()
    _, err = process.communicate(timeout=PATIENCE)
    said = err.strip().splitlines()[-1]
    tally(f"map: {said[:90]}")
    assert process.returncode != 0
    assert "data.jsonl" not in said


def test_interrupted_it_says_how_to_go_on(folder, whole, tmp_path):
    output = tmp_path / "out"
    process = in_the_middle(command(folder, output, "--num-proc", "1"), output, tmp_path)
    process.send_signal(signal.SIGINT)
    go_on(process)
    code, report = end(process)
    assert (code, report["status"], report["error"]["code"]) == (3, "interrupted", "interrupted")
    assert "Run the same command again" in report["error"]["hint"]
    code, report = end(start(command(folder, output, "--num-proc", "1"), tmp_path))
    assert (code, report["metrics"]["content_hash"]) == (0, whole["metrics"]["content_hash"])
    assert report["metrics"]["shards_resumed"] >= 2


@pytest.mark.reliability(7, "two runs of tokenize at once")
def test_of_two_runs_at_once_one_works_and_the_other_takes_its_result(folder, whole, tmp_path):
    output = tmp_path / "out"
    both = [start(command(folder, output, "--num-proc", "1"), tmp_path) for _ in range(2)]
    ends = [end(process) for process in both]
    assert [code for code, _ in ends] == [0, 0], [report["error"] for _, report in ends]
    assert sorted(report["metrics"]["reused"] for _, report in ends) == [False, True]
    assert {report["metrics"]["content_hash"] for _, report in ends} == {whole["metrics"]["content_hash"]}
    assert left_behind(output) == []


def mountable() -> bool:
    """Whether this user may mount a small file system in a namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"], capture_output=True).returncode == 0


@pytest.mark.skipif(not mountable(), reason="mounting a tmpfs is not permitted here")
@pytest.mark.reliability(5, "tokenize on a full tmpfs")
@pytest.mark.parametrize("compressed", [False, True], ids=["foreseen", "met while writing"])
def test_a_full_disk_is_named_with_its_bytes_and_leaves_nothing_behind(compressed, folder, tmp_path):
    """The beginning of a compressed source may say little about the size of the output, so that the disk fills up half-way."""
    texts = corpus(200) * 100
    if compressed:  # long texts that do not compress and are cut, before many short ones that do
        texts = [f"{random.Random(number).getrandbits(4_000):x}" for number in range(1_200)] + texts
    source = write(tmp_path / "big.jsonl", texts)
    if compressed:
        source = tmp_path / "big.jsonl.gz"
        source.write_bytes(gzip.compress((tmp_path / "big.jsonl").read_bytes()))
    disk = tmp_path / "disk"
    disk.mkdir()
    run = shlex.join(command(folder, disk / "out", "--num-proc", "1", source=str(source)))
    script = f'mount -t tmpfs -o size=1m none {disk} && {run}; code=$?; echo "left: $(ls -A {disk})" >&2; exit $code'
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    report = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, report["error"]["code"]) == (1, "publish"), done.stderr
    assert "bytes" in report["error"]["message"]
    assert ("No space left on device" in report["error"]["message"]) is compressed
    assert "space" in report["error"]["hint"]
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "left: "
