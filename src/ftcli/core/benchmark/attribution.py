"""Which difference costs how much: one factor at a time from the base and taken back from the new one, in paired rounds.

Nothing here runs anything: what a configuration costs is asked of a function, so that the logic can be tested with a model of costs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftcli.core.benchmark.measure import LEAST_RUNS, SURE, interval, middle, verdict_of
from ftcli.core.benchmark.student import ratio_interval
from ftcli.errors import FtcliError

Setup = frozenset[str]
"""Names of the factors that are set as in the new configuration; all others as in the base."""
Floats = NDArray[np.float64]
MOST_PAIRS = 3
"""Pairs of factors whose interaction is measured, at most."""


@dataclass(frozen=True, slots=True)
class Volume:
    """How many texts a run prepares and how many it trains on, epochs counted."""

    prepared: float
    trained: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds for one text: preparing it once, training on it once."""

    prepare: float
    train: float

    def of(self, volume: Volume) -> float:
        """Seconds of a whole run."""
        return self.prepare * volume.prepared + self.train * volume.trained


@dataclass(slots=True)
class Rounds:
    """What each setup cost in each round; rounds of one setup are paired with the same rounds of another."""

    costs: dict[Setup, dict[int, Cost]] = field(default_factory=dict)
    interrupted: bool = False
    """Whether a signal ended them: what was measured until then is there."""

    def seconds(self, setup: Setup, volume: Volume, rounds: Iterable[int]) -> Floats:
        return np.array([self.costs[setup][number].of(volume) for number in rounds])

    def common(self, *setups: Setup) -> list[int]:
        """Rounds in which all of them were measured."""
        return sorted(set.intersection(*(set(self.costs.get(setup, {})) for setup in setups)))

    def trim(self, setups: Sequence[Setup]) -> None:
        """Drop the rounds in which one of them is missing."""
        whole = set(self.common(*setups))
        for setup, found in self.costs.items():
            self.costs[setup] = {number: cost for number, cost in found.items() if number in whole}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be attributed: timed factors, and the volumes (None where the volume does not differ)."""

    factors: tuple[str, ...]
    base_volume: Volume
    new_volume: Volume
    volume_name: str | None = None

    @property
    def everything(self) -> Setup:
        return frozenset(self.factors)

    @property
    def names(self) -> tuple[str, ...]:
        return (*([self.volume_name] if self.volume_name else []), *self.factors)

    def split(self, names: Iterable[str]) -> tuple[Setup, Volume]:
        """The setup to time, and the volume to count, with these factors new."""
        chosen = set(names)
        return frozenset(chosen - {self.volume_name}), self.new_volume if self.volume_name in chosen else self.base_volume


def first_setups(plan: Plan) -> list[Setup]:
    """The base, every factor alone, every factor taken back, and the new configuration."""
    singles = [frozenset([name]) for name in plan.factors]
    return list(dict.fromkeys([frozenset(), *singles, *(plan.everything - single for single in singles), plan.everything]))


def inseparable(plan: Plan, failed: Iterable[Setup]) -> tuple[str, ...]:
    """The factors that cannot be new alone, or as in the base alone: each of them needs another. All, where one seems to need itself."""
    known = set(failed)
    found = tuple(name for name in plan.factors if known & {frozenset([name]), plan.everything - {name}})
    return found if len(found) > 1 else plan.factors


def merged(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan with these factors as one."""
    return replace(plan, factors=(*(name for name in plan.factors if name not in names), joint(names)))


def joint(names: Sequence[str]) -> str:
    """The name of factors that are switched together."""
    return " + ".join(names)


def run_rounds(
    setups: Sequence[Setup],
    cost: Callable[[Setup], Cost],
    into: Rounds,
    *,
    failed: dict[Setup, FtcliError],
    repeats: int,
    until: float | None,
    narrow: Callable[[], bool],
    before_round: Callable[[], None],
) -> None:
    """Measure all setups once a round, in turn forwards and backwards, each round starting at another one. A round in which one fails is the last.

    Args:
        failed: gets the setups of that round that cannot be run, with why.
        repeats: rounds; with a deadline the fewest, unless it passes before.
        until: `time.perf_counter()` at which no further round begins that would end after it; one is always done.
        narrow: whether the intervals are narrow enough, asked after `repeats` rounds where there is a deadline.
    """
    first = 1 + max((number for found in into.costs.values() for number in found), default=-1)
    done, took = 0, 0.0
    while not failed and (done < repeats or until is not None):
        began = time.perf_counter()
        if done and until is not None and (began + took > until or (done >= max(repeats, LEAST_RUNS) and narrow())):
            break
        before_round()
        order = [*setups[done % len(setups) :], *setups[: done % len(setups)]]
        for setup in order if done % 2 == 0 else order[::-1]:
            try:
                into.costs.setdefault(setup, {})[first + done] = cost(setup)
            except FtcliError as error:
                failed[setup] = error
        done, took = done + 1, time.perf_counter() - began


def between(plan: Plan, rounds: Rounds, low: Iterable[str], high: Iterable[str]) -> Floats:
    """Paired ratios of seconds: the run with the factors `high` over the one with `low`."""
    (first, first_volume), (second, second_volume) = plan.split(low), plan.split(high)
    common = rounds.common(first, second)
    return rounds.seconds(second, second_volume, common) / rounds.seconds(first, first_volume, common)


def effect(ratios: Floats) -> dict[str, Any]:
    """Median, interval and verdict of ratios of seconds: "slower" is above 1."""
    if not len(ratios):
        return {"median": None, "low": None, "high": None, "n": 0, "verdict": "not measured"}
    low, high = interval(ratios)
    rates = [(1 / high, 1 / low), *((1 / b, 1 / a if a else math.inf) for a, b in [ratio_interval(ratios, SURE)])]
    exact = bool(np.ptp(ratios) == 0 and ratios[0] == 1)  # a factor that is counted and changes nothing
    verdict = "no difference" if exact else verdict_of(len(ratios), *rates)
    return {"median": middle(ratios), "low": low, "high": high, "n": len(ratios), "verdict": verdict}


def contributions(plan: Plan, rounds: Rounds) -> dict[str, Floats]:
    """Per factor the logarithm of its ratio in each round: the mean of alone and taken back.

    For two factors that is their Shapley value, which leaves nothing unexplained; for more, what is left are interactions of three and more.
    """
    everything = set(plan.names)
    found = {}
    for name in plan.names:
        alone, back = between(plan, rounds, (), [name]), between(plan, rounds, everything - {name}, everything)
        count = min(len(alone), len(back))
        found[name] = (np.log(alone[:count]) + np.log(back[:count])) / 2
    return found


def ranking(plan: Plan, rounds: Rounds) -> list[str]:
    """Factors by the size of their contribution, the largest first."""
    weights = {name: abs(float(np.median(logs))) for name, logs in contributions(plan, rounds).items()}
    return sorted(weights, key=lambda name: -weights[name])


def second_setups(plan: Plan, rounds: Rounds) -> list[Setup]:
    """The base again, the factors one after another in the order of their size, and the pairs that seem to interact."""
    order = ranking(plan, rounds)
    prefixes = [plan.split(order[: count + 1])[0] for count in range(len(order))]
    pairs = [frozenset(pair) for pair in interacting(plan, rounds)]
    wanted = [setup for setup in dict.fromkeys([*prefixes, *pairs]) if setup not in rounds.costs]
    return [frozenset(), *wanted] if wanted else []


def interacting(plan: Plan, rounds: Rounds) -> list[tuple[str, str]]:
    """Pairs of timed factors that are worth measuring: both cost another amount alone than taken back, beyond the noise."""
    strength = {}
    for name in plan.factors:
        alone, back = between(plan, rounds, (), [name]), between(plan, rounds, set(plan.names) - {name}, plan.names)
        found = effect(alone / back)
        if found["verdict"] in {"faster", "slower"}:
            strength[name] = abs(math.log(found["median"]))
    pairs = sorted(combinations(strength, 2), key=lambda pair: -strength[pair[0]] * strength[pair[1]])
    return pairs[:MOST_PAIRS] if len(plan.factors) > 2 else []


def attribution(plan: Plan, rounds: Rounds) -> dict[str, Any]:
    """The table: total, factors by size, interactions, and what remains unexplained.

    `share` is a factor's part of the total in logarithms, since factors multiply; None where the total is no difference.
    """
    everything, order = set(plan.names), ranking(plan, rounds)
    total = between(plan, rounds, (), everything)
    logs = contributions(plan, rounds)
    whole, overall = math.log(middle(total)), effect(total)
    decided = overall["verdict"] in {"faster", "slower"}
    factors = [
        {
            "name": name,
            "counted": name == plan.volume_name,
            "alone": effect(between(plan, rounds, (), [name])),
            "taken_back": effect(between(plan, rounds, everything - {name}, everything)),
            "cumulative": effect(between(plan, rounds, (), order[: place + 1])),
            "share": float(np.median(logs[name])) / whole if decided and whole else None,
        }
        for place, name in enumerate(order)
    ]
    count = min([len(total), *(len(each) for each in logs.values())])
    rest = total[:count] / np.exp(sum((each[:count] for each in logs.values()), np.zeros(count)))
    return {
        "total": overall,
        "factors": factors,
        "interactions": [_interaction(plan, rounds, pair) for pair in combinations(plan.factors, 2) if _known(plan, rounds, pair)],
        "unexplained": {**effect(rest), "share": math.log(middle(rest)) / whole if decided and whole else None},
    }


def _known(plan: Plan, rounds: Rounds, pair: tuple[str, str]) -> bool:
    return len(plan.factors) > 2 and frozenset(pair) in rounds.costs


def _interaction(plan: Plan, rounds: Rounds, pair: tuple[str, str]) -> dict[str, Any]:
    """How much more (or less) two factors cost together than one by one."""
    together = between(plan, rounds, (), pair)
    alone = [between(plan, rounds, (), [name]) for name in pair]
    count = min(len(together), *map(len, alone))
    return {"pair": list(pair), **effect(together[:count] / (alone[0][:count] * alone[1][:count]))}


def widest(plan: Plan, rounds: Rounds) -> float:
    """Half-width over middle of the widest interval of what was measured first."""
    everything = set(plan.names)
    sets: list[tuple[Iterable[str], Iterable[str]]] = [((), everything)]
    sets += [pair for name in plan.factors for pair in (((), [name]), (everything - {name}, everything))]
    bounds = [interval(between(plan, rounds, *pair)) for pair in sets]
    return max((high - low) / (high + low) for low, high in bounds)


def attribute(
    plan: Plan,
    cost: Callable[[Setup], Cost],
    *,
    repeats: int,
    budget: float | None = None,
    narrow: float = 0.02,
    before_round: Callable[[], None] = lambda: None,
    before_phase: Callable[[int], None] = lambda _: None,
    on_failed: Callable[[Mapping[Setup, FtcliError]], None] = lambda _: None,
    on_merged: Callable[[Plan, Sequence[str], FtcliError], None] = lambda *_: None,
) -> tuple[Rounds, Mapping[str, Any]]:
    """Measure in two phases (alone and taken back; then cumulative and pairs) and make the table.

    Factors that cannot be run apart are measured as one. A run that fails later, and a signal, end the rounds: what was measured counts.

    Args:
        budget: seconds; a third of them is kept for the second phase, which two factors do not need.
        narrow: see `ftcli.core.benchmark.measure.measure`.
        before_phase: told how many setups a round of the phase has.
        on_failed: told the runs that failed and are left out.
        on_merged: told the plan that goes on, the factors that are one in it, and why.

    Raises:
        FtcliError: the base or the new configuration cannot be run.
        KeyboardInterrupt: before the first round was complete.
    """
    begin, rounds = time.perf_counter(), Rounds()
    try:
        while True:
            failed: dict[Setup, FtcliError] = {}
            until = None if budget is None else begin + budget * (2 / 3 if len(plan.factors) > 2 else 1)
            first = first_setups(plan)
            before_phase(len(first))
            narrowed = partial(_narrowed, plan, rounds, narrow)
            run_rounds(first, cost, rounds, failed=failed, repeats=repeats, until=until, narrow=narrowed, before_round=before_round)
            if all(setup in rounds.costs for setup in first):
                break
            if error := failed.get(frozenset()) or failed.get(plan.everything):
                raise error
            names, rounds = inseparable(plan, failed), Rounds()
            plan = merged(plan, names)
            on_merged(plan, names, next(iter(failed.values())))
        rounds.trim(first)
        on_failed(failed)
        more, until = second_setups(plan, rounds), None if budget is None else begin + budget
        while more:
            before_phase(len(more))
            failed = {}
            run_rounds(more, cost, rounds, failed=failed, repeats=repeats, until=until, narrow=lambda: True, before_round=before_round)
            more = [setup for setup in more if setup not in failed] if failed else []
            on_failed(failed)
    except KeyboardInterrupt:
        if not rounds.common(*first_setups(plan)):
            raise
        rounds.interrupted = True
    return rounds, attribution(plan, rounds)


def _narrowed(plan: Plan, rounds: Rounds, narrow: float) -> bool:
    return widest(plan, rounds) <= narrow
