"""Measurements: medians with intervals, alternating runs, and no win inside the noise."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ftcli.core import measure as core
from ftcli.core.measure import Variant, interval, measure, ratio, summarise


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
    assert measurements[0].median == pytest.approx(0.004, rel=0.1)


def test_real_seconds_are_measured():
    (seconds, _), _ = measure([Variant("a", lambda: time.sleep(0.02) or {"rows": 1.0})], repeats=1, warmup=0)
    assert (seconds.name, seconds.unit) == ("a", "seconds")
    assert 0.02 <= seconds.median < 10


def test_a_difference_inside_the_noise_is_no_difference_19_times_out_of_20():
    generator = np.random.default_rng(1)
    verdicts = [ratio("a / a", generator.lognormal(0, 0.05, 15), "rows")["verdict"] for _ in range(200)]
    assert verdicts.count("no difference") >= 180


def test_too_few_runs_decide_nothing():
    assert ratio("b / a", np.array([2.0, 2.0, 2.0]), "rows")["verdict"].startswith("not decided")


def test_a_budget_ends_the_rounds_but_one_is_always_done():
    measurements, _ = measure([Variant("a", lambda: time.sleep(0.01) or {"rows": 1.0})], repeats=50, warmup=0, budget=0.0)
    assert measurements[0].n == 1


def test_the_interval_is_reproducible_and_holds_the_median():
    samples = np.random.default_rng(2).normal(10, 1, 30)
    assert interval(samples) == interval(samples)
    low, high = interval(samples)
    assert low <= np.median(samples) <= high
    assert summarise("a", "s", samples.tolist()).median == np.median(samples)
