"""Student's t distribution for whole degrees of freedom, and the interval that it gives for a mean ratio."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def probability(t: float, freedom: int) -> float:
    """P(|T| < t) of Student's distribution with `freedom` degrees, by the finite series for whole degrees (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for number in range(odd, freedom - 1, 2):  # exponents of the cosine: odd ones from 1, even ones from 0
        total += term
        term *= square * (number + 1) / (number + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def quantile(share: float, freedom: int) -> float:
    """The t within which |T| lies with probability `share`: 2.776 for 0.95 and 4 degrees.

    Args:
        share: above 0 and under 1.
        freedom: 1 or more.
    """
    low, high = 0.0, math.pi / 2  # of the angle, so that the search has two ends
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(math.tan(middle) * math.sqrt(freedom), freedom) < share else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def ratio_interval(ratios: NDArray[np.float64], share: float = 0.95) -> tuple[float, float]:
    """Interval of the geometric mean of paired ratios, from Student's t of their logarithms; without bounds for a single pair."""
    if len(ratios) < 2:
        return 0.0, math.inf
    logs = np.log(ratios)
    reach = quantile(share, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    middle = float(logs.mean())
    return math.exp(middle - reach), math.exp(middle + reach)


def difference_interval(first: NDArray[np.float64], second: NDArray[np.float64], share: float = 0.95) -> tuple[float, float]:
    """Interval of second / first of two samples that are not paired (Welch, of the logarithms; degrees of freedom rounded down).

    Without bounds where a sample has a single value.
    """
    if min(len(first), len(second)) < 2:
        return 0.0, math.inf
    logs = np.log(first), np.log(second)
    parts = [float(values.var(ddof=1)) / len(values) for values in logs]
    middle = float(logs[1].mean() - logs[0].mean())
    if not sum(parts):
        return math.exp(middle), math.exp(middle)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True))
    reach = quantile(share, max(1, int(freedom))) * math.sqrt(sum(parts))
    return math.exp(middle - reach), math.exp(middle + reach)
