"""The memory of a process tree."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from ftcli.core.processes import footprint
from ftcli.core.processes.footprint import Footprint, family, resident_bytes
from timing import bytecodes, until

HOLD = "import sys, subprocess; held = b'x' * {size}; {more}; print('ready', flush=True); sys.stdin.read()"


def holder(size: int, *, child: int = 0) -> subprocess.Popen[str]:
    """A process that holds `size` bytes, with a child that holds `child` bytes, until its stdin closes."""
    more = "pass"
    if child:
        inner = HOLD.format(size=child, more="pass")
        more = f"inner = subprocess.Popen([sys.executable, '-c', {inner!r}], stdout=subprocess.PIPE); inner.stdout.readline()"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(size=size, more=more)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("system", ["linux", "other"])
def test_children_and_their_children_count(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if system == "other":
        monkeypatch.setattr(footprint.Path, "exists", lambda _: False)
    before = resident_bytes(family(os.getpid()))
    with holder(30_000_000, child=50_000_000) as process:
        pids = family(os.getpid())
        size = resident_bytes(pids)
        assert process.pid in pids
        assert len(family(process.pid)) == 2
        process.communicate()

    assert 80e6 < size - before < 150e6
    assert family(process.pid) == []
    assert resident_bytes([process.pid]) == 0


def test_a_peak_stays_after_the_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "INTERVAL", 0.02)
    with Footprint() as seen:
        start = seen.now_mb
        with holder(60_000_000) as process:
            until(lambda: seen.peak_mb > start + 60)
            process.communicate()
        until(lambda: seen.now_mb < start + 40)

        assert seen.peak_mb > start + 60
        assert seen.peak_mb >= seen.largest_mb > 60


@pytest.mark.skipif(not psutil.LINUX, reason="elsewhere psutil looks through all processes")
def test_a_look_costs_the_same_however_many_processes_the_machine_has() -> None:
    """Of the processes that there are, the descendants of the one looked at alone are read."""
    with holder(1) as process:
        took = bytecodes(lambda: resident_bytes(family(process.pid)))
        with holder(1), holder(1) as other:
            assert bytecodes(lambda: resident_bytes(family(process.pid))) == took
            other.communicate()
        process.communicate()

    assert took < 20_000


def test_looking_takes_a_fiftieth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many large workers take long to look at: 0.3 s of every second."""
    seen = Footprint()
    clock, waits = 0.0, list[float]()

    def sample() -> None:
        nonlocal clock
        clock += 0.3

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 3

    monkeypatch.setattr(seen, "sample", sample)
    monkeypatch.setattr(seen._over, "wait", wait)
    monkeypatch.setattr(footprint.time, "perf_counter", lambda: clock)
    seen._watch()
    assert waits == [footprint.INTERVAL, pytest.approx(15), pytest.approx(15)]
