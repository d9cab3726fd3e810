"""Student's distribution without scipy, against printed tables, and the intervals that it gives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ftcli.core.benchmark.student import difference_interval, probability, quantile, ratio_interval

TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 29: 2.045, 120: 1.980}
"""Two-sided 95 %, by degrees of freedom, as printed."""


@pytest.mark.parametrize(("freedom", "printed"), TABLE.items())
def test_quantiles_are_those_of_the_printed_table(freedom: int, printed: float) -> None:
    assert quantile(0.95, freedom) == pytest.approx(printed, abs=6e-4)
    assert probability(quantile(0.5, freedom), freedom) == pytest.approx(0.5)


def test_the_first_two_distributions_have_their_closed_forms() -> None:
    for t in (0.3, 1.0, 7.0):
        assert probability(t, 1) == pytest.approx(2 / math.pi * math.atan(t))
        assert probability(t, 2) == pytest.approx(t / math.sqrt(2 + t * t))


def test_the_interval_of_ratios_holds_their_geometric_mean_and_one_pair_has_none() -> None:
    pairs = np.array([1.1, 1.2, 1.3])
    low, high = ratio_interval(pairs)
    assert math.sqrt(low * high) == pytest.approx(float(np.exp(np.log(pairs).mean())))
    assert ratio_interval(pairs[:1]) == (0.0, math.inf)


def test_the_intervals_hold_the_truth_19_times_out_of_20() -> None:
    generator = np.random.default_rng(4)
    paired = unpaired = 0
    for _ in range(1_000):
        first, second = generator.lognormal(0, 0.1, 5), 1.5 * generator.lognormal(0, 0.2, 6)
        low, high = difference_interval(first, second)
        unpaired += low <= 1.5 <= high
        low, high = ratio_interval(second)
        paired += low <= 1.5 <= high
    assert 930 <= paired <= 970
    assert unpaired >= 930


def test_samples_without_spread_or_of_one_value_have_a_plain_interval() -> None:
    same = np.array([2.0, 2.0])
    assert difference_interval(same, 2 * same) == pytest.approx((2.0, 2.0))
    assert difference_interval(same[:1], same) == (0.0, math.inf)
