"""Timing that can be believed: warm-up, alternating runs, medians with intervals, paired ratios, and no win inside the noise."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftcli.records import Measurement

RESAMPLES = 2_000
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes that `ru_maxrss` counts in."""
LEAST_RUNS = 4
"""With fewer pairs the bootstrap interval of a median is the range of the samples, which a single outlier decides."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Something to time. `run` does the work once and returns how much of each unit it did ({"tokens": 4096, "rows": 8})."""

    name: str
    run: Callable[[], Mapping[str, float]]


def measure(
    variants: Sequence[Variant],
    *,
    repeats: int,
    warmup: int,
    budget: float | None = None,
    on_run: Callable[[str, float], None] = lambda _, __: None,
) -> tuple[list[Measurement], list[dict[str, Any]]]:
    """Run all variants in turn, round by round (A B A B …), so that drift of the machine meets all of them.

    Args:
        repeats: timed rounds.
        warmup: rounds before, not counted.
        budget: seconds after which no further round starts (one is always done).
        on_run: called with name and seconds after every run, warm-up too.

    Returns:
        Per variant and unit the work per second ("gigatoken tokens/s" …) and "seconds", then the ratio of every variant to the first.
    """
    seconds: dict[str, list[float]] = {variant.name: [] for variant in variants}
    work: dict[str, list[Mapping[str, float]]] = {variant.name: [] for variant in variants}
    begin = time.perf_counter()
    for round_ in range(warmup + repeats):
        if round_ > warmup and budget is not None and time.perf_counter() - begin > budget:
            break
        for variant in variants:
            clock = time.perf_counter()
            done = variant.run()
            elapsed = time.perf_counter() - clock
            on_run(variant.name, elapsed)
            if round_ >= warmup:
                seconds[variant.name].append(elapsed)
                work[variant.name].append(done)
    measurements = []
    for name, times in seconds.items():
        measurements.append(summarise(name, "seconds", times))
        measurements += [
            summarise(name, f"{unit}/s", [done[unit] / elapsed for done, elapsed in zip(work[name], times, strict=True)])
            for unit in work[name][0]
        ]
    first, *others = seconds
    unit = next(iter(work[first][0]))
    rate = {name: np.array([done[unit] for done in work[name]]) / np.array(times) for name, times in seconds.items()}
    return measurements, [ratio(f"{name} / {first}", rate[name] / rate[first], unit) for name in others]


def summarise(name: str, unit: str, samples: Sequence[float]) -> Measurement:
    """Median with its 95 % bootstrap interval."""
    low, high = interval(np.array(samples))
    return Measurement(name, unit, float(np.median(samples)), low, high, len(samples), tuple(samples))


def ratio(name: str, pairs: NDArray[np.float64], unit: str) -> dict[str, Any]:
    """Median of paired ratios with its interval and a verdict: "faster" and "slower" only when the interval does not hold 1."""
    low, high = interval(pairs)
    verdict = "no difference"
    if len(pairs) < LEAST_RUNS:
        verdict = f"not decided: {len(pairs)} of at least {LEAST_RUNS} runs"
    elif low > 1:
        verdict = "faster"
    elif high < 1:
        verdict = "slower"
    return {
        "name": name,
        "unit": f"{unit}/s",
        "median": float(np.median(pairs)),
        "low": low,
        "high": high,
        "n": len(pairs),
        "verdict": verdict,
    }


def interval(samples: NDArray[np.float64]) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the median; the same samples give the same interval."""
    generator = np.random.default_rng(0)
    medians = np.median(generator.choice(samples, (RESAMPLES, len(samples))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


def peak_rss_mb() -> float:
    """Largest resident size so far of this process and of any finished child, in MB (10⁶ bytes)."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * RSS_UNIT / 1e6
