"""benchmarks/ending.py: what was measured before a failure or an interruption is kept."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    not (Path(__file__).resolve().parents[1] / "benchmarks" / "ending.py").exists(), reason="the benchmarks are in the source tree only"
)


def measured(file: Path, monkeypatch: pytest.MonkeyPatch, last: Any) -> tuple[int, dict[str, Any]]:
    """The code and the file of a benchmark that measures one thing before `last` is called."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1]))
    from benchmarks.ending import ending

    document: dict[str, Any] = {"results": []}
    with ending(document, lambda kept: f"{len(kept['results'])} rows", file, (ZeroDivisionError,)) as outcome:
        document["results"].append(1)
        last()
        document["results"].append(2)
    return outcome.code, json.loads(file.read_text(encoding="utf-8"))


def test_a_benchmark_that_goes_well_ends_with_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, kept = measured(tmp_path / "a.json", monkeypatch, lambda: None)
    assert (code, kept["results"]) == (0, [1, 2])
    assert "error" not in kept
    assert kept["load_average_after"] >= 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_one_keeps_what_it_had_and_gives_the_signal_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    code, kept = measured(tmp_path / "a.json", monkeypatch, lambda: os.kill(os.getpid(), sent))
    assert (code, kept["results"], kept["error"]) == (130, [1], "interrupted: later measurements are missing")
    assert signal.getsignal(signal.SIGTERM) == before
    shown = capsys.readouterr()
    assert shown.out == "1 rows\n"
    assert "FAILED: interrupted" in shown.err


def test_a_failure_is_told_and_a_fault_of_the_benchmark_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, kept = measured(tmp_path / "a.json", monkeypatch, lambda: 1 // 0)
    assert (code, kept["results"], kept["error"]) == (1, [1], "integer division or modulo by zero")
    with pytest.raises(KeyError):
        measured(tmp_path / "b.json", monkeypatch, lambda: {}["a"])
    assert not (tmp_path / "b.json").exists()
