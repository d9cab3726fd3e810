"""Successive halving: many candidates are measured a little, the better half more, until two are left, which are compared in pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ftcli.core.benchmark.measure import LEAST_RUNS, Variant, measure
from ftcli.errors import FtcliError
from ftcli.records import Measurement

SEARCH = 0.7
"""Largest share of the budget for the search; the rest is for the last comparison."""
COMPARED = 2.2 * LEAST_RUNS
"""Runs that the last comparison needs to decide anything, and a tenth for those that take longer."""


@dataclass(slots=True)
class Found:
    """What a search found. `rates` holds every candidate's samples, `dropped` why candidates could not run."""

    best: str
    rates: Mapping[str, Sequence[float]]
    unit: str = ""
    """What a rate counts: the first unit of a run."""
    rungs: list[list[str]] = field(default_factory=list)
    """The candidates that were measured in each rung."""
    measurements: list[Measurement] = field(default_factory=list)
    ratio: Mapping[str, Any] | None = None
    """Best candidate against the present settings; None where the present settings are the best candidate."""
    dropped: dict[str, str] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)
    """Candidates for which the budget had no room."""
    seconds: float = 0.0
    """What a run takes, its start included: the mean of all but the first."""
    first: float = 0.0
    """What the first run took, which warms up and is not counted."""
    interrupted: bool = False
    """Whether a signal ended the search: what was measured until then is there."""


def search(
    candidates: Sequence[str],
    present: str,
    run: Callable[[str], Mapping[str, float]],
    *,
    repeats: int,
    budget: float | None = None,
    on_run: Callable[[str, float], None] = lambda *_: None,
) -> Found:
    """Find the candidate with the highest rate.

    In rung k every candidate that is left runs 2ᵏ times, in turn forwards and backwards; the better half by the median of all its runs goes on.
    When two are left, or the search's part of the budget is spent, the best is compared with the present settings in `repeats` paired rounds. Only
    if it is faster beyond the noise it is the best; else the present settings are. The present settings run first, once to warm up; with a budget as many candidates are
    tried, from the first on, as have room if each takes as long, so that each of them can get to the last rung.

    Args:
        candidates: `present` among them.
        run: does a candidate's work once and returns how much of each unit it did (the first unit counts) with its own "seconds".
        budget: seconds for everything; without one no rung is cut short.

    A candidate that fails in the last comparison gives way to the next best. A signal ends the search with what it has found.

    Raises:
        FtcliError: the present settings cannot be run.
        KeyboardInterrupt: before they were measured.
    """
    begun, warm, runs = time.perf_counter(), 0.0, 0
    found = Found(present, rates := {name: list[float]() for name in candidates})
    dropped = found.dropped

    def once(name: str) -> None:
        nonlocal runs
        runs += 1
        try:
            done = run(name)
        except FtcliError as error:
            if name == present:
                raise
            dropped[name] = error.message
        else:
            found.unit = found.unit or f"{next(iter(done))}/s"
            rates[name].append(_rate(done))
            on_run(name, rates[name][-1])

    def rungs() -> list[str]:
        """Measure, and halve until two are left; those."""
        end, alive = float("inf"), [present, *(name for name in candidates if name != present)]
        if budget is not None:
            each = time.perf_counter() - warm
            end = begun + min(SEARCH * budget, budget - COMPARED * each)
            alive = alive[: _fitting(len(alive), int((end - warm) / each) if each else len(alive) ** 2)]
        while len(alive) > 2 or (len(alive) == 2 and not rates[alive[1]]):
            found.rungs.append(list(alive))
            for turn in range(2 ** (len(found.rungs) - 1)):
                for name in alive if turn % 2 == 0 else reversed(alive):
                    if name not in dropped and time.perf_counter() < end and len(rates[name]) < 2 ** len(found.rungs) - 1:
                        once(name)
            alive = [name for name in _ordered(alive, rates) if rates[name] and name not in dropped]
            if time.perf_counter() >= end:
                break
            alive = alive[: max(1, (len(alive) + 1) // 2)]
        return alive

    try:
        run(present)  # what only a first run does (an engine's proof, compiled kernels) is no part of what each of them takes
        warm = time.perf_counter()
        found.first = warm - begun
        once(present)
        alive = rungs()
        found.seconds = (time.perf_counter() - warm) / runs
        while (best := _ordered(alive or [present], rates)[0]) != present and not found.interrupted:
            left = None if budget is None else max(0.001, budget - (time.perf_counter() - begun))
            if _compared(found, best, run, repeats, left, on_run):
                break
            alive = [name for name in candidates if rates[name] and name not in dropped]
    except KeyboardInterrupt:
        if not rates[present]:
            raise
        found.interrupted = True
    found.untried = [name for name in candidates if not rates[name] and name not in dropped]
    return found


def rungs_runs(candidates: int) -> int:
    """Runs of a search without a budget, the warm-up and the last comparison apart; a candidate has run 2ᵏ − 1 times before rung k."""
    total, left, rung = 0, candidates, 0
    while left > 2 or rung == 0:
        total, left, rung = total + left * 2**rung, max(1, (left + 1) // 2), rung + 1
    return total


def whole_budget(candidates: int, each: float, first: float) -> float:
    """Seconds in which all of them are tried, if the first run takes `first` and every other `each`."""
    searched = first + rungs_runs(candidates) * each
    return max(searched / SEARCH, searched + COMPARED * each) + each  # one for rounding


def _fitting(candidates: int, runs: int) -> int:
    """How many candidates a number of runs lets through all their rungs; at least the first."""
    return next((count for count in range(candidates, 1, -1) if rungs_runs(count) <= runs), 1)


def _rate(done: Mapping[str, float]) -> float:
    unit = next(iter(done))
    return done[unit] / done["seconds"]


def _ordered(names: Sequence[str], rates: Mapping[str, Sequence[float]]) -> list[str]:
    return sorted(names, key=lambda name: -float(np.median(rates[name])) if rates[name] else 0.0)


def _compared(
    found: Found,
    best: str,
    run: Callable[[str], Mapping[str, float]],
    repeats: int,
    budget: float | None,
    on_run: Callable[[str, float], None],
) -> bool:
    """Compare the best candidate with the present settings, which `found` names, in turn; a run's own seconds count, not those of starting it.
    False where the candidate cannot be run."""
    present = found.best

    def told(name: str) -> Mapping[str, float]:
        try:
            done = run(name)
        except FtcliError as error:
            if name != present:
                found.dropped[name] = error.message
            raise
        on_run(name, _rate(done))
        return done

    def interrupted(_: int) -> None:
        found.interrupted = True

    variants = [Variant(name, partial(told, name)) for name in (present, best)]
    try:
        found.measurements, (found.ratio,) = measure(variants, repeats=repeats, warmup=0, budget=budget, on_interrupted=interrupted)
    except FtcliError:
        if best not in found.dropped:
            raise
        return False
    if found.ratio["verdict"] == "faster":
        found.best = best
    return True
