"""One run at a time in a folder: the second is told who is at work there, and a dead one is in nobody's way."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcli.commands.train import run
from ftcli.context import Quiet
from ftcli.core.files import lease_watch
from ftcli.core.files.lease_holder import Note, this_job
from ftcli.core.publishing import staging
from ftcli.core.training import checkpoints
from ftcli.core.training.callbacks import METRICS_FILE
from ftcli.core.training.run_lock import FOLDER, Claim
from ftcli.errors import PublishError, StoreError
from ftcli.testing import tiny_tokenizer
from runs import BRIEF, VOCABULARY, Bench
from stores import learnable
from timing import PATIENCE

HERE = rf"is in use by another training run, (rank 0, )?pid {os.getpid()} on {socket.gethostname()} \(since "
GONE = 4_194_303


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("claims"))
    made.store("texts", {"train": learnable(30, 3, VOCABULARY, 0)}, labels=3)
    (made.folder / "raw.jsonl").write_text('{"text": "a text"}\n' * 8)
    return made


@pytest.mark.fault
@pytest.mark.parametrize("source", ["texts", "raw.jsonl"])
@pytest.mark.parametrize("values", [{"runtime__overwrite": True}, {"train__resume_from_checkpoint": "auto"}])
def test_a_second_run_in_a_folder_is_refused_before_it_sweeps_or_writes(bench: Bench, source: str, values: dict[str, Any]) -> None:
    output = bench.folder / f"shared {source} {next(iter(values))}"
    for name in ("checkpoint-1", ".saving-checkpoint-2"):
        (output / name).mkdir(parents=True)
    with Claim(output, pytest.fail) as first:
        first.take()
        before = sorted(output.rglob("*"))
        with pytest.raises(PublishError, match=HERE) as caught:
            run(bench.context(bench.folder / source, output.name, **{**BRIEF, "runtime__overwrite": False, **values}))
        assert sorted(output.rglob("*")) == before
    assert f"kill -TERM {os.getpid()}" in caught.value.hint


@pytest.mark.parametrize("source", ["texts", "raw.jsonl"])
def test_a_run_holds_its_folder_until_its_end(bench: Bench, source: str) -> None:
    refused: list[str] = []
    output = bench.folder / f"held {source}"

    class Looking(Quiet):
        def start(self, *_: Any) -> None:
            with suppress(PublishError), Claim(output, pytest.fail) as other:
                other.take()
                refused.append("not")

        def advance(self, *_: Any, **__: Any) -> None:
            with pytest.raises(PublishError, match=HERE), Claim(output, pytest.fail) as other:
                other.take()
            refused.append("held")

    context = bench.context(bench.folder / source, output.name, **BRIEF, tokenizer__engine="hf", packing__max_length=64)
    context.progress = Looking()
    run(context)
    assert refused
    assert set(refused) == {"held"}
    assert not (output / FOLDER).exists()


def test_a_run_that_cannot_start_leaves_no_folder(bench: Bench) -> None:
    other = tiny_tokenizer(bench.folder / "other", vocab_size=300)
    with pytest.raises(StoreError):
        run(bench.context(bench.folder / "texts", "new/run", **BRIEF, tokenizer__path=str(other)))
    assert not (bench.folder / "new").exists()


@contextmanager
def holding(output: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder."""
    code = f"from ftcli.core.training.run_lock import Claim\nfrom pathlib import Path\nClaim(Path({str(output)!r}), print).take()\nprint(1)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "1\n"
        yield holder
        holder.kill()


@pytest.mark.fault
def test_the_folder_of_a_killed_run_is_taken_at_once_and_that_of_a_stopped_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_watch, "BEAT_SECONDS", PATIENCE)  # nobody waits for a heartbeat
    with holding(tmp_path / "run") as holder:
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(PublishError, match=f"pid {holder.pid} on "), Claim(tmp_path / "run", pytest.fail) as claim:
            claim.take()
        holder.kill()
        holder.wait(PATIENCE)
        with Claim(tmp_path / "run", pytest.fail) as claim:
            claim.take()
            claim.take()
    assert not (tmp_path / "run" / FOLDER).exists()


# -- without locks -----------------------------------------------------------------------------------------------------


@pytest.fixture
def lockless(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)


def _left(output: Path, **changes: Any) -> Path:
    """The lease of a run that ended without a word."""
    (output / FOLDER).mkdir(parents=True)
    path = output / FOLDER / "lease"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    replace(Note.mine(), **changes).write(descriptor)
    os.close(descriptor)
    return path


@pytest.mark.usefixtures("lockless")
def test_without_locks_a_run_goes_on_and_knows_another_one_by_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    with Claim(tmp_path / "run", notes.append) as claim:
        claim.take()
        monkeypatch.setattr(lease_watch, "BEAT_SECONDS", PATIENCE)  # this machine's own processes are looked up
        with pytest.raises(PublishError, match=HERE), Claim(tmp_path / "run", notes.append) as other:
            other.take()
    assert notes == [f"the file system of {tmp_path / 'run'} has no locks: another run is only recognized by its heartbeat"] * 2
    assert not (tmp_path / "run").exists()
    _left(tmp_path / "killed", pid=GONE)
    with Claim(tmp_path / "killed", notes.append) as claim:
        claim.take()


@pytest.mark.usefixtures("lockless")
def test_without_locks_a_run_on_another_machine_is_known_by_its_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _left(tmp_path / "run", host="elsewhere", boot="other")
    monkeypatch.setattr(lease_watch, "BEAT_SECONDS", 0.05)
    with Claim(tmp_path / "run", [].append) as claim:
        claim.take()
    path = _left(tmp_path / "living", host="elsewhere", boot="other")
    monkeypatch.setattr(lease_watch, "BEAT_SECONDS", PATIENCE)
    with (
        _beating(path),
        pytest.raises(PublishError, match=r"is in use by another training run, pid .* on elsewhere"),
        Claim(path.parents[1], [].append) as claim,
    ):
        claim.take()


@pytest.mark.usefixtures("lockless")
def test_of_two_runs_that_come_at_once_without_locks_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_watch.Watch, "refuse_distance", lambda *_: None)  # each has looked before the other signed
    ended: list[str] = []
    signed, done = threading.Barrier(2), threading.Barrier(2)
    look = lease_watch.Watch.refuse_other
    monkeypatch.setattr(lease_watch.Watch, "refuse_other", lambda self, token: (signed.wait(PATIENCE), look(self, token)))

    def start() -> None:
        with Claim(tmp_path / "run", [].append) as claim:
            try:
                claim.take()
                ended.append("goes on")
            except PublishError:
                ended.append("refused")
            done.wait(PATIENCE)

    both = [threading.Thread(target=start) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(PATIENCE)
    assert sorted(ended) == ["goes on", "refused"]


@contextmanager
def _beating(path: Path) -> Iterator[None]:
    """Something that signs the lease."""
    stop = threading.Event()

    def live() -> None:
        descriptor = os.open(path, os.O_RDWR)
        note = Note.read(descriptor)
        assert note
        while not stop.wait(0.02):
            note = replace(note, beats=note.beats + 1)
            note.write(descriptor)
        os.close(descriptor)

    living = threading.Thread(target=live)
    living.start()
    try:
        yield
    finally:
        stop.set()
        living.join()


# -- ranks -------------------------------------------------------------------------------------------------------------


def test_before_the_ranks_can_speak_the_others_look_whether_another_job_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    output = tmp_path / "run"
    Claim(output, pytest.fail).take_early()
    assert not output.exists()
    path = _left(output, job=this_job())
    Claim(output, pytest.fail).take_early()
    path.unlink()
    path.parent.rmdir()
    _left(output, job="here:2", pid=os.getpid(), rank=0)
    with pytest.raises(PublishError, match=HERE):
        Claim(output, pytest.fail).take_early()


def test_a_folder_that_is_moved_away_while_a_run_writes_there_is_held_anew(tmp_path: Path) -> None:
    notes: list[str] = []
    output = tmp_path / "run"
    with Claim(output, notes.append) as claim:
        claim.take()
        claim.renew()
        output.rename(tmp_path / "moved")
        assert not notes
        claim.renew()
        assert notes == [f"{output} was moved or removed while this run writes there: from now on it writes into a new folder of that name"]
        (output / "checkpoint-1").mkdir()
        with pytest.raises(PublishError, match=HERE), Claim(output, pytest.fail) as other:
            other.take()
    assert [path.name for path in output.iterdir()] == ["checkpoint-1"]


def test_a_folder_that_another_run_has_taken_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    output = tmp_path / "run"
    with Claim(output, pytest.fail) as claim:
        claim.take()
        output.rename(tmp_path / "moved")
        with Claim(output, pytest.fail) as other:
            other.take()
            with pytest.raises(PublishError, match=HERE):
                claim.renew()
            assert other.hold()
            assert not claim.hold()


@pytest.mark.parametrize("taken", [False, True])
def test_a_run_whose_folder_is_moved_away_goes_on_in_a_new_one_unless_another_has_it(
    bench: Bench, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = bench.folder / f"moved {taken}"
    given = {**BRIEF, "train__max_steps": 2, "train__save_strategy": "steps", "train__save_steps": 1}
    save, saved = checkpoints.seal, list[Path]()
    with Claim(output, pytest.fail) as other:

        def moving(folder: Path, *parts: Any) -> None:
            save(folder, *parts)
            saved.append(folder)

        def appear(staged: Path, final: Path) -> None:
            published(staged, final)
            if len(saved) == 1:
                output.rename(bench.folder / f"moved {taken} away")
                if taken:
                    other.take()

        published = staging.appear
        monkeypatch.setattr(checkpoints, "seal", moving)
        monkeypatch.setattr(staging, "appear", appear)
        context = bench.context(bench.folder / "texts", output.name, **given)
        if taken:
            with pytest.raises(PublishError, match=HERE):
                run(context)
            assert [path.name for path in output.iterdir()] == [FOLDER]
        else:
            run(context)
            assert any("was moved or removed while this run writes there" in note for note in context.notes)
            assert (output / "checkpoint-2").is_dir()
            assert not (output / "checkpoint-1").exists()
            assert not (output / FOLDER).exists()
            steps = [line["step"] for line in map(json.loads, (output / METRICS_FILE).read_text().splitlines()) if "loss" in line]
            assert steps == [1, 2]
