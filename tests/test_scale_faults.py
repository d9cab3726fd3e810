"""Past one machine: parts that are killed, and 64 ranks on 8 nodes that start the same run."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ftcli.testing import tiny_tokenizer
from reliability import FULL, SEED, size
from timing import PATIENCE, until
from tokenizing import corpus, left_behind, manifest, write

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("nursery")]
PARTS = 3
RANKS = 64
SIMULATION = Path(__file__).with_name("rank_simulation.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and some 60 shards of text."""
    root = tmp_path_factory.mktemp("scale")
    tiny_tokenizer(root / "tokenizer")
    write(root / "data.jsonl", corpus(3_000), ("a", "b", "c") * 1_000)
    return root


# -- parts -------------------------------------------------------------------------------------------------------------


def command(folder: Path, output: Path, *options: str) -> list[str]:
    words = ["tokenize", folder / "data.jsonl", "--tokenizer-path", folder / "tokenizer", "--output-dir", output]
    settings = ["--set", "dataset.shard_bytes=6000", "--label-column", "label", "--tokenizer-engine", "hf", "--json"]
    return [sys.executable, "-m", "ftcli", *map(str, words), *settings, *options]


def start(words: list[str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def end(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report


def records(output: Path) -> int:
    return sum(1 for _ in output.parent.glob(f".{output.name}.*.parts/records/*.json"))


@pytest.mark.reliability(28, "parts of one job as processes, SIGKILL at random finished shards, run again, finished")
def test_killed_parts_lose_no_row(folder: Path, tmp_path: Path, tally: Any) -> None:
    plain, output = tmp_path / "plain", tmp_path / "out"
    end(start(command(folder, plain), tmp_path))
    generator = random.Random(SEED)
    running = {number: start(command(folder, output, "--shard", f"{number}/{PARTS}"), tmp_path) for number in range(1, PARTS + 1)}
    rounds = kills = 0
    while running:
        if rounds < size(4, 30):
            some = records(output) + generator.randrange(1, 8)
            until(lambda: records(output) >= some or all(one.poll() is not None for one in running.values()))  # noqa: B023 - called here
            number = generator.choice(sorted(running))
            with suppress(ProcessLookupError):
                os.killpg(running[number].pid, signal.SIGKILL)
            running[number].communicate()
            rounds += 1
            kills += running[number].returncode == -signal.SIGKILL  # else it had ended before
            running[number] = start(command(folder, output, "--shard", f"{number}/{PARTS}"), tmp_path)
            continue
        for number, process in list(running.items()):
            end(process)
            del running[number]
    finished = end(start(command(folder, output, "--finish"), tmp_path))
    wrong = manifest(plain)["content_hash"] != manifest(output)["content_hash"]
    tally(kills=kills, rows_lost=3_000 - finished["metrics"]["rows_read"], wrong=int(wrong))
    assert kills
    assert not wrong
    assert left_behind(output) == []


@pytest.mark.reliability(28, "every task writes its own file, whatever lies there is taken", control=True)
def test_control_whatever_lies_there_is_taken(tmp_path: Path, tally: Any) -> None:
    script = "import sys, time\nwith open(sys.argv[1], 'w') as f:\n    for i in range(100):\n        f.write(f'{i}\\n'); f.flush(); time.sleep(0.01)\n"
    tasks = [start([sys.executable, "-c", script, str(tmp_path / f"part-{number}.jsonl")], tmp_path) for number in range(PARTS)]
    victim = tmp_path / "part-1.jsonl"
    until(lambda: victim.exists() and victim.stat().st_size > 20)
    os.killpg(tasks[1].pid, signal.SIGKILL)
    for task in tasks:
        task.communicate()
    taken = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tmp_path.glob("part-*.jsonl"))
    tally(rows_lost=100 * PARTS - taken)
    assert taken < 100 * PARTS  # and nothing says so


# -- ranks -------------------------------------------------------------------------------------------------------------


def simulate(folder: Path, *options: str) -> subprocess.Popen[str]:
    return start([sys.executable, str(SIMULATION), str(folder), *options], folder.parent)


def outcomes(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def holder(folder: Path) -> int:
    """The process that prepares, as its lease says; 0: none yet, or not two shards."""
    for lease in folder.glob(".prepared.*.attempt/lease"):
        text = lease.read_text(encoding="utf-8", errors="replace")
        pid, done = re.search(r'"pid": ?(\d+)', text), re.search(r'"shards_done": ?(\d+)', text)
        if pid and done and int(done[1]) >= 2:
            return int(pid[1])
    return 0


@pytest.mark.reliability(29, "64 ranks on 8 nodes with 2 file systems start together: each file system is prepared once")
def test_every_file_system_is_prepared_once(tmp_path: Path, tally: Any) -> None:
    found = outcomes(simulate(tmp_path / "run"))
    did = Counter((one["system"], one["what"]) for one in found)
    tally(ranks=len(found), prepared=did[0, "prepared"] + did[1, "prepared"])
    assert did == {(0, "prepared"): 1, (0, "waited"): RANKS // 2 - 1, (1, "prepared"): 1, (1, "waited"): RANKS // 2 - 1}
    assert len({one["hash"] for one in found}) == 1


@pytest.mark.reliability(29, "the preparing rank is killed: one other goes on with its shards, and says after whom")
def test_a_killed_preparer_is_followed_by_one(tmp_path: Path, tally: Any) -> None:
    process = simulate(tmp_path / "run", "--systems", "1", "--pause", "0.3")
    pid = until(lambda: holder(tmp_path / "run/system-0"))
    os.kill(pid, signal.SIGKILL)
    found = outcomes(process)
    (second,) = [one for one in found if one["what"] == "prepared"]
    tally(ranks=len(found), resumed=second["resumed"])
    assert len(found) == RANKS - 1
    assert second["resumed"] >= 2
    assert f"pid {pid}" in second["after"]
    assert all(one["hash"] == second["hash"] for one in found)


@pytest.mark.reliability(29, "the preparing rank is stopped: every other names it, its machine and the remedy, and ends")
def test_a_stopped_preparer_is_named_by_all(tmp_path: Path, tally: Any) -> None:
    process = simulate(tmp_path / "run", "--systems", "1", "--pause", "0.3", "--patience", "3")
    pid = until(lambda: holder(tmp_path / "run/system-0"))
    os.kill(pid, signal.SIGSTOP)
    try:
        assert process.stdout is not None
        found = [json.loads(process.stdout.readline()) for _ in range(RANKS - 1)]
    finally:
        os.kill(pid, signal.SIGKILL)
        process.communicate()
    tally(ranks=len(found), named=sum(f"pid {pid} on {os.uname().nodename}" in one["words"] for one in found))
    assert {one["what"] for one in found} == {"refused"}
    assert all(f"pid {pid} on {os.uname().nodename}" in one["words"] and f"kill -CONT {pid}" in one["hint"] for one in found)


@pytest.mark.reliability(29, "whoever sees no output makes it: several do, and others take half of it", control=True)
def test_control_whoever_sees_no_output_makes_it(tmp_path: Path, tally: Any) -> None:
    found = outcomes(simulate(tmp_path / "run", "--naive", "--systems", "1"))
    prepared = sum(one["what"] == "prepared" for one in found)
    tally(ranks=len(found), prepared=prepared)
    assert prepared > 1


@pytest.mark.reliability(29, "64 whole commands on 2 file systems (FTCLI_FAULTS=full)")
@pytest.mark.skipif(not FULL, reason="64 commands take minutes: FTCLI_FAULTS=full")
def test_sixty_four_commands(folder: Path, tmp_path: Path, tally: Any) -> None:
    outputs = [tmp_path / f"system-{number}" / "out" for number in (0, 1)]
    for output in outputs:
        output.parent.mkdir()
    environment = [{**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS)} for rank in range(RANKS)]
    running = [
        subprocess.Popen(
            [*command(folder, outputs[rank // 8 % 2]), "--set", "runtime.lease_timeout=120"],
            cwd=tmp_path,
            env=environment[rank],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    reports = [end(process) for process in running]
    made = [report for report in reports if not report["metrics"]["reused"]]
    tally(ranks=len(reports), prepared=len(made))
    assert len(made) == 2
    assert len({report["metrics"]["content_hash"] for report in reports}) == 1
