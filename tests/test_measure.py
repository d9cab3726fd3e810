"""Measurements: medians with intervals, alternating runs, and no win inside the noise."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from ftcli.core.benchmark import measure as core
from ftcli.core.benchmark import pace as pace_module
from ftcli.core.benchmark.measure import Variant, interval, measure, middle, ratio, summarise
from ftcli.core.benchmark.pace import Pace


def test_runs_alternate_and_the_warm_up_is_not_counted():
    order: list[str] = []
    variants = [Variant(name, lambda name=name: order.append(name) or {"rows": 1.0}) for name in "ab"]
    measurements, ratios = measure(variants, repeats=3, warmup=1)
    assert "".join(order) == "abababab"
    assert {m.n for m in measurements} == {3}
    assert [r["name"] for r in ratios] == ["b / a"]


def test_a_planted_slowdown_is_called_slower_with_its_ratio(monkeypatch: pytest.MonkeyPatch):
    """On a clock of the test's own: how long a real sleep takes is the machine's business."""
    now, noise = [0.0], np.random.default_rng(3)
    monkeypatch.setattr(core.time, "perf_counter", lambda: now[0])

    def work(seconds: float) -> dict[str, float]:
        now[0] += seconds * noise.lognormal(0, 0.05)
        return {"rows": 1.0}

    variants = [Variant("fast", lambda: work(0.004)), Variant("slow", lambda: work(0.012))]
    measurements, (found,) = measure(variants, repeats=6, warmup=1)
    assert found["verdict"] == "slower"
    assert found["median"] == pytest.approx(1 / 3, rel=0.25)
    assert [m.unit for m in measurements] == ["rows/s", "seconds"] * 2
    assert measurements[1].median == pytest.approx(0.004, rel=0.1)


def test_real_seconds_are_measured():
    (_, seconds), _ = measure([Variant("a", lambda: time.sleep(0.02) or {"rows": 1.0})], repeats=1, warmup=0)
    assert (seconds.name, seconds.unit) == ("a", "seconds")
    assert seconds.median >= 0.02


@pytest.mark.parametrize("runs", [4, 5, 15])
def test_a_difference_inside_the_noise_is_no_difference_19_times_out_of_20(runs: int):
    """A/A on simulated rates; the bootstrap alone, which was the rule once, fails where runs are few."""
    generator = np.random.default_rng(1)
    pairs = [generator.lognormal(0, 0.05, runs) / generator.lognormal(0, 0.05, runs) for _ in range(400)]
    verdicts = [ratio("a / a", each, "rows")["verdict"] for each in pairs]
    assert verdicts.count("no difference") >= 380
    if runs == 4:
        assert sum(low <= 1 <= high for low, high in map(interval, pairs)) < 380


def test_a_difference_above_the_noise_is_found():
    generator = np.random.default_rng(2)
    for factor, verdict in ((1.3, "faster"), (0.7, "slower")):
        found = [ratio("b / a", factor * generator.lognormal(0, 0.05, 5), "rows")["verdict"] for _ in range(100)]
        assert found.count(verdict) >= 95


def test_too_few_runs_decide_nothing():
    assert ratio("b / a", np.array([2.0, 2.0, 2.0]), "rows")["verdict"].startswith("not decided")


def test_a_budget_ends_the_rounds_but_one_is_always_done():
    measurements, _ = measure([Variant("a", lambda: time.sleep(0.01) or {"rows": 1.0})], repeats=50, warmup=0, budget=0.0)
    assert measurements[0].n == 1


class Clock:
    """Seconds that pass when something says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, noise: float) -> None:
        self.now, self.noise = 0.0, np.random.default_rng(0).normal(0, noise, 10_000)
        self.runs = 0
        monkeypatch.setattr(core.time, "perf_counter", lambda: self.now)

    def run(self) -> dict[str, float]:
        self.runs += 1
        self.now += 1.0 + self.noise[self.runs]
        return {"rows": 1.0}


@pytest.mark.parametrize(("noise", "budget", "rounds"), [(0.001, 1_000.0, (5, 5)), (0.05, 1_000.0, (20, 300)), (0.1, 20.0, (9, 10))])
def test_with_a_budget_rounds_go_on_until_intervals_are_narrow_or_it_is_spent(monkeypatch, noise, budget, rounds):
    clock = Clock(monkeypatch, noise)
    measurements, _ = measure([Variant("a", clock.run), Variant("b", clock.run)], repeats=5, warmup=0, budget=budget)
    assert rounds[0] <= measurements[0].n <= rounds[1]
    assert clock.now <= budget + 3


def test_the_machine_is_looked_at_before_every_timed_round_and_at_the_end(monkeypatch):
    looks = iter([(1.0, 2.0)] * 9 + [(1.1, 2.0)] * 3)
    monkeypatch.setattr(pace_module, "_loop", lambda: next(looks))
    monkeypatch.setattr(pace_module, "_cpus", lambda: [0])
    pace = Pace()
    measure([Variant("a", lambda: {"rows": 1.0})], repeats=3, warmup=2, pace=pace)
    assert len(pace.cpu) == 4
    assert pace.drift == pytest.approx(0.1)
    assert pace.to_details()["wall_seconds"] == [2.0] * 4
    assert Pace().drift is None


def test_every_cpu_is_looked_at_and_none_is_kept(monkeypatch):
    before, ran = os.sched_getaffinity(0), []
    monkeypatch.setattr(pace_module, "_loop", lambda: ran.append(os.sched_getaffinity(0)) or (1.0 + len(ran), 2.0))
    pace = Pace()
    pace.look()
    assert ran == [{cpu} for cpu in pace_module._spread(sorted(before)) for _ in range(pace_module.TRIES)]
    assert pace.cpu == [pytest.approx(2.0 + (len(ran) / pace_module.TRIES - 1) * pace_module.TRIES / 2)]
    assert os.sched_getaffinity(0) == before


def test_the_loop_of_the_machine_s_own_pace_takes_time():
    pace = Pace()
    pace.look()
    assert pace.cpu[0] > 0
    assert pace.wall[0] > 0


def test_the_interval_is_reproducible_and_holds_the_median():
    samples = np.random.default_rng(2).normal(10, 1, 30)
    assert interval(samples) == interval(samples)
    low, high = interval(samples)
    assert low <= np.median(samples) <= high
    assert summarise("a", "s", samples.tolist()).median == np.median(samples)


@pytest.mark.parametrize("pairs", [[2.0], [1.0, 4.0], [0.3, 0.5, 0.9], [0.2, 0.4, 0.9, 3.0]])
def test_ratios_turned_round_have_the_turned_median(pairs: list[float]) -> None:
    ratios = np.array(pairs)
    assert middle(1 / ratios) == pytest.approx(1 / middle(ratios), rel=1e-12)
    assert ratio("a / b", ratios, "runs")["median"] == middle(ratios)
