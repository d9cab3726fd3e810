"""Successive halving: many candidates are measured a little, the better half more, until two are left, which are compared in pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ftcli.core.benchmark.measure import Variant, measure
from ftcli.errors import FtcliError
from ftcli.records import Measurement

SEARCH = 0.7
"""Share of the budget for the search; the rest is for the last comparison."""


@dataclass(slots=True)
class Found:
    """What a search found. `rates` holds every candidate's samples, `dropped` why candidates could not run."""

    best: str
    rates: Mapping[str, Sequence[float]]
    rungs: list[list[str]] = field(default_factory=list)
    """The candidates that were measured in each rung."""
    measurements: list[Measurement] = field(default_factory=list)
    ratio: Mapping[str, Any] | None = None
    """Best candidate against the present settings; None where the present settings are the best candidate."""
    dropped: dict[str, str] = field(default_factory=dict)


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
    if it is faster beyond the noise it is the best; else the present settings are.

    Args:
        candidates: `present` among them.
        run: does a candidate's work once and returns how much of each unit it did (the first unit counts) with its own "seconds".
        budget: seconds for everything; without one no rung is cut short.

    Raises:
        FtcliError: the present settings cannot be run.
    """
    begun, rates, dropped = time.perf_counter(), {name: list[float]() for name in candidates}, dict[str, str]()
    alive, rungs = list(candidates), list[list[str]]()

    def spent() -> bool:
        return budget is not None and time.perf_counter() - begun > SEARCH * budget

    def once(name: str) -> None:
        try:
            rates[name].append(_rate(run(name)))
        except FtcliError as error:
            if name == present:
                raise
            dropped[name] = error.message
        else:
            on_run(name, rates[name][-1])

    while len(alive) > 2 and not spent():
        rungs.append(list(alive))
        for turn in range(2 ** (len(rungs) - 1)):
            for name in alive if turn % 2 == 0 else reversed(alive):
                if name not in dropped and not (spent() and rates[name]):
                    once(name)
        alive = [name for name in _ordered(alive, rates) if name not in dropped]
        alive = alive[: max(1, (len(alive) + 1) // 2)]
    if not rates[present] and present not in alive:
        once(present)
    for name in alive:
        if not rates[name]:
            once(name)
    best = next(iter(_ordered([name for name in alive if name not in dropped] or [present], rates)))
    found = Found(best, rates, rungs, dropped=dropped)
    if best != present:
        left = None if budget is None else max(0.001, budget - (time.perf_counter() - begun))
        found.measurements, (found.ratio,) = _compared(present, best, run, repeats, left)
        if found.ratio["verdict"] != "faster":
            found.best = present
    return found


def _rate(done: Mapping[str, float]) -> float:
    unit = next(iter(done))
    return done[unit] / done["seconds"]


def _ordered(names: Sequence[str], rates: Mapping[str, Sequence[float]]) -> list[str]:
    return sorted(names, key=lambda name: -float(np.median(rates[name])) if rates[name] else 0.0)


def _compared(
    present: str, best: str, run: Callable[[str], Mapping[str, float]], repeats: int, budget: float | None
) -> tuple[list[Measurement], list[dict[str, Any]]]:
    """Both in turn; a run's own seconds count, not those of starting it."""
    variants = [Variant(name, partial(run, name)) for name in (present, best)]
    return measure(variants, repeats=repeats, warmup=0, budget=budget)
