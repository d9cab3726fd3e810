"""The table of the reliability tests, as a pytest plugin: what ran, at how many points, what came out, and what the control showed.

A test belongs to it by `@pytest.mark.reliability(number, "short sentence of the case")`; with `control=True` it is a positive
control, which shows the naive way failing in the same harness. The fixture `tally` adds figures. Two options:

    --reliability 1-13,22   only the tests of these numbers; a number without a test or without a control fails the session, one whose
                            tests are all skipped does not: the table says so
    --reliability-json FILE the table as JSON
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

FULL = os.environ.get("FTCLI_FAULTS") == "full"
"""Read here, because the tests run without FTCLI_* variables."""

SEED = int(os.environ.get("FTCLI_FAULTS_SEED") or (time.time_ns() % 1_000_000_007 if FULL else 20_261_120))
"""Of every random moment and place; printed with the table."""
os.environ["FTCLI_FAULTS_SEED"] = str(SEED)  # the workers of pytest-xdist inherit it

WHAT = {
    1: "SIGKILL at every system call of the commit layer",
    2: "SIGKILL of tokenize at random times, rerun",
    3: "Power loss on ext4",
    4: "Model of the commit protocol",
    5: "Disk full",
    6: "Read-only, no permission",
    7: "Several processes, one output",
    8: "Preparing rank killed",
    9: "Preparing rank stopped",
    10: "Stale lock or marker",
    11: "Changed inputs and settings",
    12: "Damaged published data",
    13: "Replaced under a reader",
    14: "Interrupted and gone on",
    15: "Crash at every call of a save",
    16: "Damaged newest checkpoint",
    17: "Signals in a step, an evaluation, a save",
    18: "A rank stalls",
    19: "NaN, infinity, a jump of the loss",
    20: "Too little memory",
    21: "Changed since the checkpoint",
    22: "Worker process killed",
    23: "Disk full in a checkpoint",
    24: "Corpus of bad files",
    25: "Fuzzed readers",
    26: "Hostile input",
    27: "Secrets",
    28: "Parts of a job on several machines",
    29: "Any number of ranks",
    30: "Workers and nodes of a cluster killed",
    31: "A node without the output's file system",
    32: "Killed while it publishes in an object store",
    33: "Two that publish in one place of an object store",
}
KEY = "reliability"


def size(short: int, full: int) -> int:
    """How many points, examples or rounds: `full` with FTCLI_FAULTS=full, else `short`."""
    return full if FULL else short


@dataclass(slots=True)
class Row:
    """One number of the table."""

    number: int
    what: str
    cases: int = 0
    figures: dict[str, int] = field(default_factory=dict)
    """Sums of what the tests gave to `tally`: {"points": 168, "wrong": 0}."""
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    controls: list[str] = field(default_factory=list)
    """What each control showed."""
    control_cases: int = 0
    control_skipped: bool = False
    seconds: float = 0.0

    @property
    def result(self) -> str:
        if self.failed:
            return f"FAILED: {len(self.failed)}"
        if not self.cases:
            return "skipped" if self.skipped else "MISSING"
        return f"passed, {len(self.skipped)} skipped" if self.skipped else "passed"

    @property
    def control(self) -> str:
        impossible = self.control_skipped or (self.skipped and not self.cases)
        return "; ".join(self.controls) or ("skipped" if impossible else "MISSING")

    @property
    def good(self) -> bool:
        return not self.failed and "MISSING" not in {self.result, self.control}

    def cells(self) -> tuple[str, ...]:
        figures = ", ".join(f"{count:,} {unit}" for unit, count in self.figures.items())
        cases = f"{self.cases} {'case' if self.cases == 1 else 'cases'}"
        return str(self.number), self.what, f"{cases}; {figures}" if figures else cases, self.result, self.control, f"{self.seconds:.0f}"


class Table:
    """Collects the reports of a session, also those that pytest-xdist brings from its workers."""

    def __init__(self, required: frozenset[int]) -> None:
        self.required = required
        self.rows: dict[int, Row] = {}

    def row(self, number: int) -> Row:
        return self.rows.setdefault(number, Row(number, WHAT.get(number, "")))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        mine: dict[str, Any] = dict(report.user_properties)
        given = mine.get(KEY)
        if given is None:
            return
        row = self.row(given["number"])
        row.seconds += report.duration
        if report.failed:
            row.failed.append(report.nodeid)
        elif report.skipped:
            row.skipped.append(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.nodeid)
            row.control_skipped |= given["control"]
        elif report.when == "call" and given["control"]:
            row.control_cases += 1
            words = given.get("words") or given["case"]
            if words not in row.controls:
                row.controls.append(words)
        elif report.when == "call":
            row.cases += 1
            for unit, count in given["figures"].items():
                row.figures[unit] = row.figures.get(unit, 0) + count

    def missing(self) -> list[int]:
        return sorted(number for number in self.required if not self.row(number).good)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        path = session.config.getoption("--reliability-json")
        if not self.reporting(session.config):
            return
        if self.missing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if path:
            rows = [asdict(row) | {"result": row.result} for _, row in sorted(self.rows.items())]
            Path(path).write_text(json.dumps({"full": FULL, "seed": SEED, "rows": rows}, indent=1) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        missing = self.missing()  # makes rows of numbers without a test
        if not self.reporting(config) or not (self.required or len(self.rows) > 1):
            return
        terminalreporter.section(f"reliability, {'full' if FULL else 'short'} form, seed {SEED}")
        for line in self.lines():
            terminalreporter.write_line(line)
        if missing:
            terminalreporter.write_line(f"not shown to hold: {', '.join(map(str, missing))}", red=True)

    @staticmethod
    def reporting(config: pytest.Config) -> bool:
        """Not in a worker of pytest-xdist, and not where tests are only listed."""
        return not hasattr(config, "workerinput") and not config.getoption("--collect-only")

    def lines(self) -> Iterator[str]:
        """The table in Markdown, aligned but for the last but one column, which is as long as what it says."""
        head = ("#", "what", "cases", "result", "control: the naive way in the same harness", "s")
        body = [row.cells() for _, row in sorted(self.rows.items())]
        widths = [max(len(cells[column]) for cells in (head, *body)) for column in range(len(head))]
        for cells in (head, tuple("-" * width for width in widths), *body):
            yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def numbers(text: str) -> frozenset[int]:
    """The numbers of "1-13,22"."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def mark_of(item: pytest.Item) -> dict[str, Any] | None:
    mark = item.get_closest_marker(KEY)
    if mark is None:
        return None
    number, case = mark.args
    return {"number": number, "case": case, "control": bool(mark.kwargs.get("control")), "figures": {}}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("reliability")
    group.addoption("--reliability", metavar="NUMBERS", default="", help="run these reliability tests (1-13,22), each with its control")
    group.addoption("--reliability-json", metavar="FILE", help="write the table of reliability tests as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Table(numbers(config.getoption("--reliability"))), "reliability-table")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = numbers(config.getoption("--reliability"))
    if not wanted:
        return
    chosen = [item for item in items if (mark := mark_of(item)) is not None and mark["number"] in wanted]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = mark_of(item)
    if mark is not None:
        item.user_properties.append((KEY, mark))


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Give figures to the table: `tally(points=119, wrong=0)`, in a control `tally("save_to_disk: 5 of 14 kills loaded wrong rows")`."""
    given: dict[str, Any] = dict(request.node.user_properties).get(KEY, {"figures": {}})

    def add(words: str = "", **figures: int) -> None:
        if words:
            given["words"] = words
        for unit, count in figures.items():
            given["figures"][unit] = given["figures"].get(unit, 0) + count

    return add
