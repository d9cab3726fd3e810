"""Progress on stderr: a moving line on a terminal, few lines in a pipe, nothing when quiet."""

from __future__ import annotations

import io
import re
import sys
import threading
from contextlib import closing, suppress

import pytest

from ftcli.cli import progress
from ftcli.context import Quiet
from timing import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the stages: set its first entry."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    return clock


def working(stage: progress._Stage, now: list[float], seconds: int, amount: float) -> None:
    """Every second `amount` bytes, 1,000 rows and half as many tokens as bytes."""
    for _ in range(seconds):
        now[0] += 1
        done = int(stage.done + amount)
        stage.advance(amount, {"rows": stage.figures.get("rows", 0) + 1000, "tokens": done // 2})


def test_progress_is_a_bar_on_a_terminal_lines_in_a_pipe_and_nothing_when_quiet() -> None:
    assert isinstance(progress.make(quiet=False, terminal=True), progress.Bar)
    assert isinstance(progress.make(quiet=False, terminal=False), progress.Lines)
    assert isinstance(progress.make(quiet=True, terminal=True), Quiet)


def test_rate_and_time_left_are_those_of_the_last_seconds(now: list[float]) -> None:
    stage = progress._Stage("tokenize", 10e9, "B")
    working(stage, now, 60, 100e6)
    assert stage.parts()["left"] == "40 s left"

    working(stage, now, 20, 10e6)  # the disk got slow
    parts = stage.parts()

    assert parts["rate"] == "10 MB/s"
    assert parts["tokens"] == "5M tokens/s"
    assert parts["left"] == "6 min 20 s left"
    assert parts["share"] == "62 %"
    assert parts["rows"] == "80,000 rows"


def test_one_long_wait_is_no_rate(now: list[float]) -> None:
    """A checkpoint of 16 s made it "16.5 s/step, 36 min 34 s left" of a run that did 3 steps a second."""
    stage = progress._Stage("train", 400, "steps")
    working(stage, now, 60, 3)
    now[0] += 16
    working(stage, now, 1, 3)
    assert stage.parts()["rate"] == "2.4 steps/s"
    working(stage, now, 20, 3)
    assert stage.parts()["rate"] == "3.0 steps/s"


def test_what_an_earlier_run_did_is_in_the_share_and_in_no_rate(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """Two steps after a checkpoint of step 10 were "12 steps in 48.3 s (4.02 s/step)", and the time left began far too short."""
    stage = progress._Stage("train", 400, "steps", 300)
    working(stage, now, 5, 2)
    parts = stage.parts()
    assert (parts["share"], parts["rate"], parts["left"]) == ("78 %", "2.0 steps/s", "45 s left")

    lines = progress.Lines()
    lines.start("train", 12, "steps", 10)
    for _ in range(2):
        now[0] += 4
        lines.advance(1)
    lines.close()
    begun, done = capsys.readouterr().err.splitlines()

    assert begun == "train: begun, 2 steps to do"
    assert done == "train: done, 2 steps in 8 s (4 s/step)"


def test_a_stall_shows_in_the_rate_without_any_news(now: list[float]) -> None:
    stage = progress._Stage("tokenize", 1e9, "B")
    working(stage, now, 20, 10e6)
    before = stage.rates()[0]
    now[0] += 15

    assert stage.rates()[0] < before * 0.6


@pytest.mark.parametrize(
    ("rate", "unit", "shown"),
    [
        (0.0, "steps", "0 steps/s"),
        (0.2, "steps", "5 s/step"),
        (0.001, "steps", "16 min 40 s/step"),
        (1.44, "steps", "1.4 steps/s"),
        (14.4, "steps", "14 steps/s"),
        (0.5, "B", "0 bytes/s"),
    ],
)
def test_a_slow_rate_is_seconds_a_unit(rate: float, unit: str, shown: str) -> None:
    assert progress.speed(rate, unit) == shown


def test_what_is_not_known_is_left_out() -> None:
    stage = progress._Stage("hash", None, "B")
    assert stage.parts() == {}
    stage.advance(5, {"loss": None, "workers": 1, "check": "FT001"})

    assert set(stage.parts()) == {"rate", "workers", "check"}
    assert stage.parts()["workers"] == "1 worker"
    assert stage.parts()["check"] == "check FT001"


FIGURES = {"rows": 1_234_567, "tokens": 9_000_000, "workers": 2, "memory_mb": 1234.5, "file": "/data/en/" + "part-00012" * 5 + ".jsonl"}


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_a_line_fits_the_terminal_and_what_matters_comes_first(now: list[float], width: int) -> None:
    stage = progress._Stage("tokenize", 1e9, "B")
    now[0] = 3
    stage.advance(4e8, dict(FIGURES))

    name, bar, told = progress.fitted("tokenize", stage.parts(), width, bar=True)

    assert len(f"{name} {'x' * bar} {told}") <= width
    shown = told.split("  ")
    assert shown == list(stage.parts().values())[: len(shown)]
    if width >= 40:
        assert shown[:3] == ["40 %", "133 MB/s", "4 s left"]
    if width == 200:
        assert shown[-1] == "…2part-00012part-00012.jsonl"
        assert "1.23 GB" in shown
        assert bar == progress.BAR


def test_a_pipe_gets_a_line_when_a_stage_ends_and_none_for_one_that_is_over_at_once(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    lines = progress.Lines()
    lines.advance(1)  # before any stage: nothing to add to

    lines.start("encode", 8_000_000, "B")
    now[0] = 4.0
    lines.advance(8_000_000, rows=1000, loss=None, file="a.jsonl", memory_mb=5.0, workers=2)
    lines.start("wait", None, "rows")
    lines.close()
    lines.close()

    assert capsys.readouterr().err.splitlines() == ["encode: done, 8 MB in 4 s (2 MB/s), rows 1,000"]


@pytest.mark.parametrize("kind", [progress.Lines, progress.Bar])
def test_a_stage_that_an_error_ended_is_not_done(
    capsys: pytest.CaptureFixture[str], now: list[float], kind: type[progress.Lines | progress.Bar]
) -> None:
    """The line before the error said "tokenize: done"."""
    shown = kind()

    def work(error: Exception | None) -> None:
        with closing(shown), suppress(KeyError):
            shown.start("tokenize", None, "rows")
            now[0] += 4
            shown.advance(8)
            if error is not None:
                raise error

    with pytest.raises(OSError, match="gone"):
        work(OSError("gone"))
    work(None)
    try:
        raise KeyError
    except KeyError:  # a second way, taken after an error that is dealt with
        work(None)

    stopped, *finished = [line for line in capsys.readouterr().err.splitlines() if "8 rows" in line][-3:]
    assert "tokenize: stopped, 8 rows in 4 s" in stopped
    assert [("stopped" in line, "8 rows in 4 s" in line) for line in finished] == [(False, True)] * 2


def test_a_long_stage_in_a_pipe_speaks_when_it_begins_and_every_half_minute(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    lines = progress.Lines()
    lines.start("tokenize", 10e9, "B")
    for second in range(1, 71):
        now[0] = second
        lines.advance(100e6, rows=second * 1000, tokens=second * 25_000_000, workers=2, memory_mb=812.0, file="data/en.jsonl")

    assert capsys.readouterr().err.splitlines() == [
        "tokenize: begun, 10 GB to do",
        "tokenize: 30 %, 100 MB/s, 1 min 10 s left, 30,000 rows, 25M tokens/s, 812 MB, 2 workers, en.jsonl",
        "tokenize: 60 %, 100 MB/s, 40 s left, 60,000 rows, 25M tokens/s, 812 MB, 2 workers, en.jsonl",
    ]


def test_a_terminal_gets_a_bar_that_vanishes_and_leaves_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "REDRAWS", 50.0)
    bar = progress.Bar()
    bar.advance(1)
    bar.start("encode [markup]", 10, "rows")
    bar.advance(4, loss=1.5)
    until(lambda: "40 %" in terminal.getvalue())
    bar.say("2 used: 2 cores by affinity")
    bar.start("pack", None, "rows")
    bar.advance(1)
    bar.close()
    bar.close()

    text = terminal.getvalue()
    assert "encode [markup]" in text
    assert "40 %" in text
    assert "loss 1.50" in text
    assert "2 used: 2 cores by affinity" in text
    assert "pack: 1 row in" in text
    assert threading.active_count() < 20


@pytest.mark.parametrize("width", [40, 100])
def test_a_bar_is_redrawn_a_few_times_a_second_on_one_line_without_colour_where_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for name, value in {"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)

    def frames() -> list[str]:
        drawn = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", part) for part in terminal.getvalue().split("\r")]
        return [part for part in drawn if part.startswith("tokenize ")]

    bar = progress.Bar()
    bar.start("tokenize", 1e9, "B")
    until(lambda: bar.advance(10_000, **FIGURES) or len(frames()) >= 4)
    assert bar._live is not None
    assert bar._live.refresh_per_second == 5
    bar.close()
    assert max(len(frame.rstrip("\n")) for frame in frames()[:-1]) <= width
    assert re.findall(r"\x1b\[[0-9;]*m", terminal.getvalue().replace("\x1b[0m", "")) == []

    monkeypatch.setattr(progress, "REDRAWS", 1e-6)  # its thread sleeps for days
    bar.start("tokenize", 1e9, "B")
    before = len(frames())
    for _ in range(1_000):
        bar.advance(10_000, **FIGURES)
    assert len(frames()) <= before + 1, "redrawn by its thread, not by those who work"
    bar.close()


def test_one_of_something_has_no_s() -> None:
    assert [progress.amount(1, "steps"), progress.amount(2, "steps"), progress.amount(0, "rows")] == ["1 step", "2 steps", "0 rows"]
