"""`ftcli tokenize` and `train` started by every rank of a job: one prepares, the others wait, see how far it is, and load."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ftcli.core.files.lease_holder import Note
from ftcli.testing import tiny_tokenizer
from timing import PATIENCE, until
from tokenizing import corpus, left_behind, manifest, write

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("nursery")]
HOST = os.uname().nodename
GATE = "RANKS_GATE"
"""Variable with the path of a file: until it is there, a process prepares two shards and waits."""
GATED = f'''
import os
import time
from pathlib import Path

from ftcli import hookimpl
from ftcli.core import progress


class Gated:
    """Shards in this process."""

    name = "gated"

    def start(self, workers):
        pass

    def each(self, function):
        return [function()]

    def run(self, function, shards, on_progress, rescue=None):
        gate = os.environ.get("{GATE}")
        for number, shard in enumerate(shards):
            while number >= 2 and gate and not os.path.exists(gate):
                time.sleep(0.02)
            with progress.to(on_progress):
                result = function(shard)
            yield result

    def close(self):
        pass


@hookimpl
def register_executors(register):
    register("gated", Gated)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, some 25 shards of text, the same with a bad row near the end, and the executor with a gate."""
    root = tmp_path_factory.mktemp("ranks")
    tiny_tokenizer(root / "tokenizer")
    source = write(root / "data.jsonl", corpus(1_500))
    lines = source.read_text(encoding="utf-8").splitlines()
    lines[1_000] = '{"text": 5}'
    (root / "bad.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (root / "plugins").mkdir()
    (root / "plugins" / "gated.py").write_text(GATED, encoding="utf-8")
    return root


def words(folder: Path, output: Path, *options: str, source: str = "data.jsonl") -> list[str]:
    """What stands behind `python`."""
    given = ["-m", "ftcli", "tokenize", folder / source, "--tokenizer-path", folder / "tokenizer", "--output-dir", output]
    settings = ["--set", "dataset.shard_bytes=6000", "--tokenizer-engine", "hf", "--max-length", "24", "--num-proc", "1"]
    return [*map(str, given), *settings, "--plugins-dir", str(folder / "plugins"), "--executor", "gated", "--json", *options]


class Rank:
    """One process of a job that nobody supervises."""

    def __init__(self, number: int, command: list[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self.number = number
        self.log = cwd / f"rank-{number}.log"
        rank = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "4"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **rank, **environment},
            )

    def end(self) -> tuple[int, dict[str, Any]]:
        out, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, json.loads(out.splitlines()[-1]) if out else {}

    @property
    def said(self) -> str:
        return self.log.read_text()


def gate(cwd: Path) -> Path:
    """The file that ranks in `cwd` wait for."""
    return cwd / "gate"


@contextmanager
def job(count: int, command: list[str], cwd: Path, **environment: str) -> Iterator[list[Rank]]:
    started = [Rank(number, command, cwd, {GATE: str(gate(cwd)), **environment}) for number in range(count)]
    try:
        yield started
    finally:
        for rank in started:
            rank.process.kill()
            rank.process.communicate()


def holder(output: Path, shards: int) -> Note | None:
    """Who prepares `output`, once so many shards are finished."""
    attempts = list(output.parent.glob(f".{output.name}.*.attempt"))
    if not attempts or sum(1 for _ in attempts[0].glob("records/*.json")) < shards:
        return None
    descriptor = os.open(attempts[0] / "lease", os.O_RDONLY)
    try:
        return Note.read(descriptor)
    finally:
        os.close(descriptor)


def waits(rank: Rank, note: Note, progress: bool = False) -> bool:
    """Whether it has said for whom it waits; `progress`: and how far that one is."""
    line = rf"waits for rank {note.rank}, pid {note.pid} on {re.escape(HOST)}, which prepares \S+: "
    return re.search(line + (r"\d+ %" if progress else ""), rank.said) is not None


@pytest.fixture(scope="module")
def whole(folder: Path) -> str:
    """The content hash of what a single process prepares."""
    done = subprocess.run([sys.executable, *words(folder, folder / "whole")], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(manifest(folder / "whole")["files"]) > 20
    return str(json.loads(done.stdout.splitlines()[-1])["metrics"]["content_hash"])


@pytest.mark.reliability(7, "4 ranks of tokenize: one prepares, the others wait, say for whom, and reuse")
def test_of_four_ranks_one_prepares_and_the_others_wait_and_show_how_far_it_is(folder: Path, whole: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with job(4, words(folder, output), tmp_path) as ranks:
        note = until(lambda: holder(output, 2))
        until(lambda: all(waits(rank, note) for rank in ranks if rank.number != note.rank))
        gate(tmp_path).touch()
        ended = [rank.end() for rank in ranks]
    assert [code for code, _ in ended] == [0] * 4, [rank.said for rank in ranks]
    assert [report["metrics"]["reused"] for _, report in ended] == [number != note.rank for number in range(4)]
    assert {report["metrics"]["content_hash"] for _, report in ended} == {whole}
    assert left_behind(output) == []
    line = re.compile(
        rf"rank \d waits for rank {note.rank}, pid {note.pid} on {HOST}, which prepares {output}"
        r": (\d+ %, .* of .*B, \d+ of \d+ shards, (.*/s, )?)?last heartbeat \d+\.\d s ago"
    )
    shown = [sum(bool(line.fullmatch(text)) for text in rank.said.splitlines()) for rank in ranks]
    assert [count > 0 for count in shown] == [number != note.rank for number in range(4)], shown
    others = [rank for rank in ranks[1:] if rank.number != note.rank]  # the one that prepares shows its own progress when that takes long
    assert [text for rank in others for text in rank.said.splitlines() if not line.fullmatch(text)] == []
    assert "workers: 1 by --num-proc" in ranks[0].said or note.rank


@pytest.mark.reliability(8, "the preparing rank is killed, no agent: another one goes on and names it")
def test_a_killed_preparer_is_succeeded_by_a_rank_that_names_it(folder: Path, whole: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with job(3, words(folder, output), tmp_path) as ranks:
        note = until(lambda: holder(output, 2))
        others = [rank for rank in ranks if rank.number != note.rank]
        until(lambda: all(waits(rank, note) for rank in others))
        os.kill(note.pid, signal.SIGKILL)
        until(lambda: (next_one := holder(output, 0)) is None or next_one.pid != note.pid)
        gate(tmp_path).touch()
        ended = [rank.end() for rank in others]
    assert [code for code, _ in ended] == [0, 0], [rank.said for rank in others]
    assert sorted(report["metrics"]["reused"] for _, report in ended) == [False, True]
    assert {report["metrics"]["content_hash"] for _, report in ended} == {whole}
    rank, report = next((rank, report) for rank, (_, report) in zip(others, ended, strict=True) if not report["metrics"]["reused"])
    assert report["metrics"]["shards_resumed"] >= 2
    words_ = f"rank {note.rank}, pid {note.pid} on {HOST}, which was preparing {output}, has ended: rank {rank.number} continues"
    assert words_ in rank.said
    assert any(text.startswith(words_) for text in report["notes"])
    assert left_behind(output) == []


@pytest.mark.reliability(9, "the preparing rank is stopped: with the defaults the others say so and leave, it goes on when it wakes")
def test_a_stopped_preparer_is_reported_and_the_others_leave(folder: Path, tmp_path: Path) -> None:
    """When they say so, and that they leave after 20 s, is tested on clocks of their own in test_waiting.py and test_publish_lease.py."""
    output = tmp_path / "out"
    with job(3, words(folder, output), tmp_path) as ranks:
        note = until(lambda: holder(output, 2))
        others = [rank for rank in ranks if rank.number != note.rank]
        until(lambda: all(waits(rank, note) for rank in others))
        os.kill(note.pid, signal.SIGSTOP)
        until(lambda: all("\nerror: no progress" in f"\n{rank.said}" for rank in others))
        ended = [rank.end() for rank in others]
        assert [code for code, _ in ended] == [1, 1]
        for _, report in ended:
            assert report["error"]["code"] == "publish"
            assert f"s from rank {note.rank}, pid {note.pid} on {HOST}" in report["error"]["message"]
            silent = re.match(r"no progress for (\d+) s from rank ", report["error"]["message"])
            assert silent is not None
            assert int(silent[1]) >= 20
            assert report["error"]["message"].endswith(f"and holds {next(tmp_path.glob('.out.*.attempt'))}/lease")
            assert f"It is suspended. To resume it: kill -CONT {note.pid}. To end it: kill -9 {note.pid}" in report["error"]["hint"]
        gate(tmp_path).touch()
        os.kill(note.pid, signal.SIGCONT)
        code, report = ranks[note.rank].end()
        assert (code, report["metrics"]["reused"]) == (0, False)


@pytest.mark.reliability(8, "the preparing rank fails: all ranks end with its error, at once")
def test_what_the_preparer_fails_with_is_the_error_of_every_rank(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with job(3, words(folder, output, source="bad.jsonl"), tmp_path) as ranks:
        note = until(lambda: holder(output, 2))
        until(lambda: all(waits(rank, note) for rank in ranks if rank.number != note.rank))
        gate(tmp_path).touch()
        ended = [rank.end() for rank in ranks]
    assert [code for code, _ in ended] == [1] * 3
    error = ended[note.rank][1]["error"]
    assert "bad.jsonl:1001" in error["message"]
    for number, (_, report) in enumerate(ended):
        if number != note.rank:
            told = f"rank {note.rank}, pid {note.pid} on {HOST} could not prepare {output}: {error['message']}"
            assert report["error"] == {**error, "message": told}
            assert told in ranks[number].said


def torchrun(folder: Path, output: Path, *options: str) -> list[str]:
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone", *options]
    return [sys.executable, *run, *words(folder, output)]


@pytest.mark.slow
@pytest.mark.reliability(8, "torchrun: 4 ranks prepare once; with the preparer killed all end and the next start goes on")
def test_under_torchrun_a_killed_preparer_ends_the_job_and_the_next_one_goes_on(folder: Path, whole: str, tmp_path: Path) -> None:
    output, environment = tmp_path / "out", {**os.environ, "OMP_NUM_THREADS": "1"}
    shut = {**environment, GATE: str(gate(tmp_path))}
    with (tmp_path / "log").open("w") as log:
        first = subprocess.Popen(torchrun(folder, output), cwd=tmp_path, stdout=log, stderr=log, env=shut, start_new_session=True)
    try:
        note = until(lambda: holder(output, 2))
        os.kill(note.pid, signal.SIGKILL)
        assert first.wait(PATIENCE) != 0
    finally:
        first.kill()
        first.wait()
    assert not output.exists()

    logs = tmp_path / "logs"
    command = torchrun(folder, output, "--log-dir", str(logs), "--redirects", "3")
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=PATIENCE)
    assert second.returncode == 0, second.stderr
    reports = [json.loads(path.read_text().splitlines()[-1]) for path in sorted(logs.rglob("stdout.log"))]
    assert sorted(report["metrics"]["reused"] for report in reports) == [False, True, True, True]
    assert {report["metrics"]["content_hash"] for report in reports} == {whole}
    assert max(report["metrics"]["shards_resumed"] for report in reports) >= 2
    assert left_behind(output) == []


@pytest.mark.slow
@pytest.mark.reliability(7, "torchrun: 2 ranks of train on a raw source prepare once, and train")
def test_two_ranks_train_on_a_source_that_one_of_them_prepares(folder: Path, tmp_path: Path) -> None:
    shape = {
        "vocab_size": 4000,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "head_dim": 16,
        "max_position_embeddings": 64,
    }
    model = {"model_type": "qwen3", "num_attention_heads": 2, "num_key_value_heads": 2, **shape}
    (tmp_path / "small.json").write_text(json.dumps(model))
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--log-dir", str(tmp_path / "logs"), "--redirects", "3"]
    tokenize = words(folder, tmp_path / "unused")
    raw = ["-m", "ftcli", "train", "--dataset", str(folder / "data.jsonl"), *tokenize[4:6], *tokenize[8:]]
    options = [
        "--model-config",
        "small.json",
        "--output-dir",
        "run",
        "--max-steps",
        "2",
        "--save-strategy",
        "no",
        "--use-cpu",
        "--no-verify",
    ]

    def logs() -> dict[str, str]:
        return {path.parent.name: path.read_text() for path in (tmp_path / "logs").rglob("stderr.log")}

    process = subprocess.Popen(
        [sys.executable, *run, *raw, *options],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", GATE: str(gate(tmp_path))},
    )
    try:
        until(lambda: process.poll() is not None or any("waits for rank" in text for text in logs().values()))
        gate(tmp_path).touch()
        code = process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert code == 0, logs()
    assert sorted(logs()) == ["0", "1"]
    assert sum("waits for rank" in text for text in logs().values()) == 1, logs()
    assert json.loads((tmp_path / "run" / "report.json").read_text())["metrics"]["steps"] == 2
    assert left_behind(tmp_path / "run" / "prepared") == []
