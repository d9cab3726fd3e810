"""What a process that waits for the preparer shows: a bar on a terminal, lines in a pipe, a warning, and who took over."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftcli.context import Context
from ftcli.core.files import lease_holder
from ftcli.core.files.lease_holder import Note, this_rank
from ftcli.core.files.lease_watch import Sight
from ftcli.core.publishing import ranks
from ftcli.core.publishing.publish import Attempt
from ftcli.core.publishing.ranks import Beating, Muted, open_attempt, silent, speak
from ftcli.testing import run, tiny_tokenizer
from publish_cases import interrupt

HALF = {"done": 6e6, "total": 12e6, "shards_done": 3, "shards": 6}


class Shown:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.said: list[str] = []

    def start(self, stage: str, total: float | None, unit: str, _before: float = 0.0) -> None:
        self.calls.append(("start", stage, total, unit))

    def advance(self, amount: float, **figures: Any) -> None:
        self.calls.append(("advance", amount, figures))

    def say(self, message: str) -> None:
        self.said.append(message)

    def close(self) -> None:
        self.calls.append("close")


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(ranks.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def sight(silent: float = 0.4, **progress: float) -> Sight:
    note = replace(Note.mine(), rank=0, pid=7, host="far", token="t", progress=progress)
    return Sight(note, silent, Path("out/lease"))


@contextmanager
def showing(progress: Any, patience: float = 20.0, blocked: list[int] | None = None) -> Iterator[ranks.Wait]:
    wait = ranks.Wait(progress, Path("out"), patience, lambda: (blocked if blocked is not None else []).append(1))
    yield wait
    wait.close()


def test_in_a_pipe_a_line_every_ten_seconds_says_for_whom_and_how_far_it_is(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    shown, blocked = Shown(), []
    with showing(Muted(shown), blocked=blocked) as wait:
        wait.see(sight())
        assert shown.said == []
        clock.now += 1.5
        wait.see(sight())
        assert shown.said == ["rank 2 waits for rank 0, pid 7 on far, which prepares out: last heartbeat 0.4 s ago"]
        clock.now += 9
        wait.see(sight(**HALF))
        assert len(shown.said) == 1
        clock.now += 1
        wait.see(sight(**HALF))
        clock.now += 10
        wait.see(sight(**{**HALF, "done": 9e6, "shards_done": 4}))
    progress = "rank 2 waits for rank 0, pid 7 on far, which prepares out: "
    assert shown.said[1:] == [
        progress + "50 %, 6 MB of 12 MB, 3 of 6 shards, last heartbeat 0.4 s ago",
        progress + "75 %, 9 MB of 12 MB, 4 of 6 shards, 300 kB/s, last heartbeat 0.4 s ago",
    ]
    assert (shown.calls, blocked) == ([], [1])


def test_on_a_terminal_a_bar_follows_the_preparer_and_its_successor(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", type("Terminal", (), {"isatty": lambda self: True})())
    shown = Shown()
    with showing(shown) as wait:
        for seen in (
            sight(),
            sight(),
            sight(**HALF),
            sight(**{**HALF, "done": 9e6}),
            Sight(None, 0.0, Path("out/lease")),
            replace(sight(**HALF), note=replace(sight(**HALF).note, token="next")),
        ):
            wait.see(seen)
            clock.now += 1.1
    name = "waiting for rank 0, pid 7 on far"
    shards = {"shards": "3 of 6"}
    assert shown.calls == [
        *(("start", name, None, "B"), ("advance", 0.0, {})),
        *(("start", name, 12e6, "B"), ("advance", 6e6, shards), ("advance", 3e6, shards)),
        *(("start", name, 12e6, "B"), ("advance", 6e6, shards), "close"),
    ]
    assert shown.said == []


def test_the_bars_of_several_ranks_do_not_draw_over_each_other(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setenv("RANK", "1")
    shown = Shown()
    with showing(shown) as wait:
        wait.see(sight())
        clock.now += 2
        wait.see(sight())
    assert (len(shown.said), shown.calls) == (1, [])


def test_silence_is_said_at_ten_seconds_and_again_and_forgotten_when_it_ends(clock: Clock) -> None:
    shown = Shown()
    with showing(shown, patience=40.0) as wait:
        for silent in (0.5, 9.9, 10.0, 15.0, 20.0, 0.1, 10.5):
            wait.see(sight(silent))
    warnings = [text for text in shown.said if text.startswith("no progress")]
    assert [text.split(" from ")[0] for text in warnings] == ["no progress for 10 s", "no progress for 20 s", "no progress for 10 s"]
    assert warnings[0] == (
        "no progress for 10 s from rank 0, pid 7 on far, which prepares out and holds out/lease:"
        " this process gives up after 40 s (runtime.lease_timeout)"
    )


def test_a_process_that_takes_over_says_from_whom_also_on_a_rank_that_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "5")
    shown = Shown()
    context = Context.make({})
    context.progress = Muted(shown)
    path = interrupt(tmp_path / "out") / "lease"
    with path.open("r+b") as lease:
        replace(Note.mine(), rank=1, pid=4, host="far").write(lease.fileno())
    with open_attempt(context, tmp_path / "out", "f", inputs={}, need_bytes=0) as attempt:
        assert attempt.done("a")
        words = f"rank 1, pid 4 on far, which was preparing {tmp_path / 'out'}, has ended: rank 5 continues from the shards it had finished"
        assert (shown.said, context.notes) == ([words], [words])
        attempt.publish({}, ["a"])
    with open_attempt(context, tmp_path / "out", "f", inputs={}, need_bytes=0) as again:
        assert again.ready
    assert shown.said == [words]


@pytest.mark.parametrize(
    ("variables", "rank"),
    [({}, None), ({"RANK": "0"}, 0), ({"RANK": "3", "SLURM_PROCID": "0"}, 3), ({"SLURM_PROCID": "2"}, 2), ({"RANK": "x"}, None)],
)
def test_the_rank_is_what_torchrun_or_slurm_says(variables: dict[str, str], rank: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert this_rank() == rank


def test_a_muted_rank_shows_nothing_of_its_own() -> None:
    shown = Shown()
    progress = Muted(shown)
    progress.start("tokenize", 1.0, "B")
    progress.advance(1.0)
    progress.say("a note")
    progress.close()
    assert (shown.calls, shown.said) == (["close"], [])


def test_a_muted_rank_that_does_the_work_itself_shows_what_it_said_and_all_that_follows() -> None:
    shown = Shown()
    progress = Muted(shown)
    progress.say("two workers")
    assert silent(Beating(progress, lambda: None))
    speak(Beating(progress, lambda: None))
    progress.say("begun")
    progress.start("tokenize", 1.0, "B")
    assert (shown.calls, shown.said) == ([("start", "tokenize", 1.0, "B")], ["two workers", "begun"])
    assert not silent(progress)
    speak(shown)


@pytest.mark.parametrize("variables", [{"RANK": "1", "WORLD_SIZE": "2"}, {"SLURM_PROCID": "3"}], ids=str)
def test_what_ranks_do_not_do_together_is_said_on_every_rank(variables: dict[str, str]) -> None:
    """`ftcli cache list` and `ftcli settings` printed nothing inside of a job, and of two runs that srun started the second had an empty log."""
    assert run("settings", env=variables).stdout
    assert run("settings", "--json", env=variables).report["status"] == "ok"
    refused = run("train", env={"SLURM_PROCID": "3"})
    assert refused.exit_code == 2
    assert "error: " in refused.stderr


def test_only_the_first_rank_reports_except_where_ranks_do_different_things() -> None:
    assert run("verify", "--level", "quick", "--json", env={"RANK": "1", "WORLD_SIZE": "2"}).stdout == ""
    refused = run("tokenize", "nowhere.jsonl", "--json", env={"RANK": "1"})
    assert refused.report["status"] == "failed"
    assert run("tokenize", "nowhere.jsonl", env={"RANK": "1"}).stdout == ""


def two_rows(folder: Path) -> list[str]:
    """What `tokenize` is given to prepare two rows in a folder."""
    source = folder / "data.jsonl"
    source.write_text('{"text": "one"}\n{"text": "two"}\n')
    places = ("--tokenizer-path", tiny_tokenizer(folder / "tokenizer"), "--output-dir", folder / "out")
    return [str(word) for word in (source, *places, "--tokenizer-engine", "hf")]


@pytest.mark.parametrize("variables", [{"SLURM_PROCID": "2"}, {"RANK": "1", "WORLD_SIZE": "2"}], ids=str)
def test_a_rank_with_an_output_of_its_own_says_and_files_what_it_made(variables: dict[str, str], tmp_path: Path) -> None:
    """`srun ftcli tokenize part-$SLURM_PROCID.jsonl …` said nothing on three of four ranks, and filed one report."""
    words, reports = two_rows(tmp_path), tmp_path / "reports"
    made = run("tokenize", *words, "--report-dir", str(reports), env=variables)
    assert "2 rows tokenized to" in made.stdout
    assert "workers: " in made.stderr
    assert (reports / "tokenize.json").exists()
    again = run("tokenize", *words, "--report-dir", str(tmp_path / "second"), env=variables)
    assert (again.exit_code, again.stdout) == (0, "")  # it would say what the rank that made them has said
    assert not (tmp_path / "second").exists()


def test_a_rank_that_makes_a_part_of_its_own_is_not_mute(tmp_path: Path) -> None:
    made = run("tokenize", *two_rows(tmp_path), "--shard", "1/2", env={"SLURM_PROCID": "1"})
    assert "part" in made.stdout
    assert "the part 1/2 is finished" in made.stderr


def test_a_system_without_proc_has_no_boot_and_no_process_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, **_: Any) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    note = Note.mine()
    assert (note.boot, note.birth, note.state) == ("", 0, None)
    assert note.here
    assert not replace(note, host="far").here
    assert lease_holder._process(1) is None


def test_an_attempt_that_nobody_left_has_no_predecessor(tmp_path: Path) -> None:
    interrupt(tmp_path / "out")
    with Attempt.open(tmp_path / "out", "f") as attempt:
        assert attempt.predecessor is None
