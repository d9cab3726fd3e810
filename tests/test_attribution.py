"""Attribution against a model of costs whose truth is known: what was planted is found, ranked and given its share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ftcli.core.benchmark import attribution as core
from ftcli.core.benchmark.attribution import Cost, Plan, Setup, Volume, attribute
from ftcli.errors import TrainError

ONE = Volume(1_000.0, 1_000.0)
DECOYS = {"writer": (1.0, 1.0), "logging": (1.0, 1.01), "pin": (1.0, 1.0)}
PLANTED: Mapping[str, tuple[float, float]] = {
    "sleep in the collator": (1.0, 1.6),
    "one worker": (1.9, 1.0),
    "padding to 1,024": (1.0, 3.4),
    "slow tokenizer": (12.0, 1.0),
}
"""Factor on the seconds of preparing a text, and of training on it."""


class Model:
    """Seconds of a text by setup: a base cost, a factor for each setting, and noise of 3 % a run."""

    def __init__(self, factors: Mapping[str, tuple[float, float]], seed: int, noise: float = 0.03, pair: float = 1.0) -> None:
        self.factors, self.noise, self.pair = factors, noise, pair
        self.generator, self.asked = np.random.default_rng(seed), list[Setup]()

    def __call__(self, setup: Setup) -> Cost:
        self.asked.append(setup)
        prepare, train = 0.001, 0.002
        for name in setup:
            prepare, train = prepare * self.factors[name][0], train * self.factors[name][1]
        if {"a", "b"} <= setup:
            train *= self.pair
        drift, noise = self.generator.lognormal(0, self.noise / 2), self.generator.lognormal(0, self.noise, 2)
        return Cost(prepare * drift * noise[0], train * drift * noise[1])


def found(factors: Mapping[str, tuple[float, float]], seed: int, **more: Any) -> Mapping[str, Any]:
    _, table = attribute(Plan(tuple(factors), ONE, ONE), Model(factors, seed, **more), repeats=5)
    return table


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_slowdown_is_ranked_first_with_its_share_five_times_out_of_five(planted: str, seed: int) -> None:
    table = found({**DECOYS, planted: PLANTED[planted]}, seed)
    first = table["factors"][0]
    assert first["name"] == planted
    assert first["alone"]["verdict"] == first["taken_back"]["verdict"] == table["total"]["verdict"] == "slower"
    assert first["share"] == pytest.approx(1, abs=0.15)
    assert abs(table["unexplained"]["median"] - 1) < 0.15


@pytest.mark.parametrize("seed", range(5))
def test_of_several_each_has_its_share(seed: int) -> None:
    truth = {"sleep": (1.0, 1.8), "padding": (1.0, 1.35)}
    table = found({**DECOYS, **truth}, seed)
    model = Model({**DECOYS, **truth}, 0, noise=0.0)
    seconds = {setup: model(setup).of(ONE) for setup in map(frozenset, [(), ("sleep",), ("padding",), (*DECOYS, *truth)])}
    total = math.log(seconds[frozenset([*DECOYS, *truth])] / seconds[frozenset()])
    assert [each["name"] for each in table["factors"][:2]] == ["sleep", "padding"]
    for each in table["factors"][:2]:
        alone = math.log(seconds[frozenset([each["name"]])] / seconds[frozenset()])
        assert each["share"] == pytest.approx(alone / total, abs=0.15)
    assert table["factors"][-1]["cumulative"]["median"] == pytest.approx(table["total"]["median"], rel=0.1)


def test_equal_configurations_are_no_difference_19_times_out_of_20_and_have_no_shares() -> None:
    tables = [found({"a": (1.0, 1.0)}, seed) for seed in range(200)]
    assert sum(table["total"]["verdict"] == "no difference" for table in tables) >= 190
    assert all(table["factors"][0]["share"] is None for table in tables if table["total"]["verdict"] == "no difference")


def test_data_volume_is_counted_apart_from_the_speed_of_the_code() -> None:
    factors = {"padding": (1.0, 1.2)}
    plan = Plan(("padding",), ONE, Volume(10_000.0, 10_000.0), "data volume")
    _, table = attribute(plan, Model(factors, 0), repeats=5)
    volume, padding = table["factors"]
    assert (volume["name"], volume["counted"], volume["alone"]["median"]) == ("data volume", True, pytest.approx(10))
    assert volume["share"] == pytest.approx(math.log(10) / math.log(10 * 1.133), abs=0.05)
    assert padding["alone"]["median"] == pytest.approx((1 + 2 * 1.2) / 3, rel=0.1)
    assert table["total"]["median"] == pytest.approx(11.33, rel=0.1)
    assert table["unexplained"]["median"] == pytest.approx(1, abs=0.05)


def test_more_epochs_make_preparing_cheap_beside_training() -> None:
    plan = Plan(("a",), ONE, Volume(1_000.0, 3_000.0), "data volume")
    _, table = attribute(plan, Model({"a": (1.0, 1.0)}, 0, noise=0.001), repeats=4)
    assert table["factors"][0]["alone"]["median"] == pytest.approx((1 + 6) / 3, rel=0.02)


def test_two_factors_that_cost_more_together_are_said_to() -> None:
    table = found({"a": (1.0, 1.5), "b": (1.0, 1.5), "c": (1.0, 1.0)}, 1, pair=1.8)
    pair = next(each for each in table["interactions"] if each["pair"] == ["a", "b"])
    assert pair["verdict"] == "slower"
    assert pair["median"] > 1.3
    assert not [each for each in table["interactions"] if "c" in each["pair"] and each["verdict"] != "no difference"]


def test_rounds_go_forwards_and_backwards_and_every_setup_is_paired_with_the_base() -> None:
    model = Model({"a": (1.0, 2.0), "b": (1.0, 1.0)}, 0)
    rounds, _ = attribute(Plan(("a", "b"), ONE, ONE), model, repeats=4)
    a, b, both = map(frozenset, (["a"], ["b"], ["a", "b"]))
    assert model.asked[:4] == [frozenset(), a, b, both]
    assert model.asked[4:8] == [frozenset(), both, b, a]  # begins one further, and runs backwards
    assert {len(each) for each in rounds.costs.values()} == {4}


def test_the_runs_of_both_phases_are_told_before_them() -> None:
    model, phases = Model({"a": (1.0, 2.0), "b": (1.0, 1.5), "c": (1.0, 1.2), "d": (1.0, 1.1)}, 0), list[int]()
    attribute(Plan(("a", "b", "c", "d"), ONE, ONE), model, repeats=4, before_phase=phases.append)
    assert phases[0] == 10
    assert len(phases) == 2
    assert sum(phases) * 4 == len(model.asked)


def test_a_budget_ends_the_rounds_and_one_of_each_phase_is_always_done(monkeypatch: pytest.MonkeyPatch) -> None:
    model, now = Model({"a": (1.0, 2.0), "b": (1.0, 1.5), "c": (1.0, 1.2), "d": (1.0, 1.1)}, 0), [0.0]
    monkeypatch.setattr(core.time, "perf_counter", lambda: now[0])

    def cost(setup: Setup) -> Cost:
        now[0] += 1.0
        return model(setup)

    plan = Plan(("a", "b", "c", "d"), ONE, ONE)
    attribute(plan, cost, repeats=5, budget=0.001)
    assert now[0] == 10 + 2  # base, new, four alone, four taken back; base and the two largest (three of them are all but the smallest)
    now[0] = 0.0
    _, table = attribute(plan, cost, repeats=5, budget=200.0)
    assert 100 < now[0] <= 200
    assert table["factors"][0]["name"] == "a"


def test_two_factors_get_the_whole_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no second phase to keep a third of it for."""
    model, now = Model({"a": (1.0, 2.0), "b": (1.0, 1.5)}, 0, noise=0.3), [0.0]
    monkeypatch.setattr(core.time, "perf_counter", lambda: now[0])

    def cost(setup: Setup) -> Cost:
        now[0] += 1.0
        return model(setup)

    attribute(Plan(("a", "b"), ONE, ONE), cost, repeats=4, budget=30.0)
    assert now[0] == 28


def test_one_round_decides_nothing() -> None:
    _, table = attribute(Plan(("a",), ONE, ONE), Model({"a": (1.0, 2.0)}, 0), repeats=1)
    assert table["total"]["verdict"].startswith("not decided")
    assert table["factors"][0]["share"] is None


def test_of_sums_and_pairs_those_that_cannot_run_are_left_out_and_the_others_stay() -> None:
    factors = {"a": (1.0, 2.0), "b": (1.0, 1.5), "c": (1.0, 1.0), "d": (1.0, 1.0)}
    model, told = Model(factors, 0), list[Setup]()

    def cost(setup: Setup) -> Cost:
        if setup == frozenset("ab"):
            raise TrainError("out of memory", "")
        return model(setup)

    rounds, table = attribute(Plan(tuple(factors), ONE, ONE), cost, repeats=4, on_failed=told.extend)
    assert told == [frozenset("ab")]
    by_name = {each["name"]: each for each in table["factors"]}
    assert (by_name["b"]["cumulative"]["verdict"], by_name["b"]["alone"]["n"]) == ("not measured", 4)
    assert not rounds.interrupted


def test_new_settings_that_cannot_run_are_an_error() -> None:
    def cost(setup: Setup) -> Cost:
        if len(setup) == 2:
            raise TrainError("out of memory", "")
        return Cost(0.0, 1.0)

    with pytest.raises(TrainError, match="out of memory"):
        attribute(Plan(("a", "b"), ONE, ONE), cost, repeats=4)
