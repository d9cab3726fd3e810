"""The table of the reliability tests: what is missing is shown and fails, what ran is counted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import reliability

TESTS = """
import pytest

@pytest.mark.reliability(1, "a case")
@pytest.mark.parametrize("points", [3, 4])
def test_one(points, tally):
    tally(points=points, wrong=0)

@pytest.mark.reliability(1, "the naive way", control=True)
def test_control(tally):
    tally("save_to_disk: 2 of 3 kills loaded wrong rows")

@pytest.mark.reliability(2, "without a control")
def test_two():
    pass

@pytest.mark.reliability(5, "not here")
@pytest.mark.skip(reason="needs root")
def test_five():
    pass

@pytest.mark.reliability(4, "here")
def test_four():
    pass

@pytest.mark.reliability(4, "not here")
@pytest.mark.skip(reason="needs root")
def test_four_too():
    pass

@pytest.mark.reliability(6, "broken")
def test_six():
    assert False

def test_other():
    assert False
"""


def run(folder: Path, *options: str) -> tuple[int, str, dict[int, dict[str, Any]]]:
    (folder / "test_it.py").write_text(TESTS)
    ini = folder / "pytest.ini"
    ini.write_text("[pytest]\nmarkers =\n    reliability: see tests/reliability.py\n")
    report = folder / "table.json"
    plugins = ["-p", "reliability", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ini, *plugins, "--reliability-json", report, *options, folder / "test_it.py"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(Path(reliability.__file__).parent), "COLUMNS": "200"},
    )
    return done.returncode, done.stdout, {row["number"]: row for row in json.loads(report.read_text())["rows"]}


def test_the_table_counts_cases_sums_figures_and_shows_the_control(tmp_path: Path) -> None:
    code, out, rows = run(tmp_path, "--reliability", "1")
    assert code == 0, out
    assert "3 passed, 6 deselected" in out
    assert rows[1]["cases"] == 2
    assert rows[1]["figures"] == {"points": 7, "wrong": 0}
    assert "| 2 cases; 7 points, 0 wrong | passed | save_to_disk: 2 of 3 kills loaded wrong rows" in out


@pytest.mark.parametrize(
    ("number", "words"),
    [(2, "MISSING"), (3, "0 cases | MISSING"), (4, "1 skipped | MISSING"), (6, "FAILED: 1")],
    ids=["control", "test", "control beside a skipped case", "failed"],
)
def test_a_number_without_a_control_a_test_or_success_fails_the_session(number: int, words: str, tmp_path: Path) -> None:
    code, out, rows = run(tmp_path, "--reliability", f"1,{number}")
    assert code == 1
    assert f"not shown to hold: {number}" in out
    assert words in re.sub(" +", " ", next(line for line in out.splitlines() if line.startswith(f"| {number} |")))
    assert rows[number]["result"] in {"passed", "MISSING", "passed, 1 skipped", "FAILED: 1"}


def test_what_this_machine_cannot_do_is_shown_as_skipped(tmp_path: Path) -> None:
    code, out, rows = run(tmp_path, "--reliability", "1,5")
    assert code == 0, out
    assert rows[5]["result"] == "skipped"
    assert rows[5]["skipped"] == ["Skipped: needs root"]


def test_numbers_are_given_as_ranges() -> None:
    assert reliability.numbers("1-3,22") == {1, 2, 3, 22}
    assert reliability.numbers("") == frozenset()
