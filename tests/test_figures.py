"""Figures as people read them."""

from __future__ import annotations

import pytest

from ftcli.core import figures


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (figures.number(None), "unknown"),
        (figures.number(True), "yes"),
        (figures.number(1234567), "1,234,567"),
        (figures.number(23184.6), "23,185"),
        (figures.number(196.04), "196.0"),
        (figures.number(5.634789), "5.63"),
        (figures.number(0.873145), "0.873"),
        (figures.number(2.84e-07), "2.84e-07"),
        (figures.number(3e20), "3.00e+20"),
        (figures.number(0.0), "0"),
        (figures.percent(0.00714), "0.7 %"),
        (figures.percent(0.00002), "0.002 %"),
        (figures.percent(None), "unknown"),
        (figures.size(999), "999 bytes"),
        (figures.size(3_912_004_112), "3.91 GB"),
        (figures.size(999_999), "1 MB"),
        (figures.memory(128 << 30), "128 GiB"),
        (figures.memory(1023 << 20), "1,023 MiB"),
        (figures.memory(None), "unknown"),
        (figures.megabytes(512.0), "512 MB"),
        (figures.megabytes(None), "unknown"),
        (figures.seconds(0.0132), "13.2 ms"),
        (figures.seconds(8.236), "8.24 s"),
        (figures.seconds(59.97), "1 min 00 s"),
        (figures.seconds(3725), "1 h 02 min"),
        (figures.seconds(None), "unknown"),
        (figures.quantity(2.517, "×"), "2.52×"),
        (figures.quantity(None, "examples/s"), "unknown"),
        (figures.between(9190.0, 9368.0, "examples/s"), "9,190 to 9,368 examples/s"),
        (figures.between(0.05, 1.25, "s"), "50 ms to 1.25 s"),
        (figures.between(0.97, 1.04, "×"), "0.97× to 1.04×"),
        (figures.between(90, 150, "s"), "1 min 30 s to 2 min 30 s"),
        (figures.between(12, 59.99, "s"), "12 s to 1 min 00 s"),
        (figures.between(3_700, 7_300, "s"), "1 h 01 min to 2 h 01 min"),
        (figures.between(1.5, 12, "s"), "1.5 to 12 s"),
        (figures.between(None, 1.25, "s"), "unknown to 1.25 s"),
    ],
)
def test_figures_read_well(shown: str, expected: str) -> None:
    assert shown.replace(figures.GAP, " ") == expected


@pytest.mark.parametrize(("count", "words"), [(1, "1 step"), (2, "2 steps"), (0, "0 steps"), (0.5, "0.5 steps"), (1400, "1,400 steps")])
def test_one_has_no_s(count: float, words: str) -> None:
    assert figures.counted(count, "step").replace("0.500", "0.5") == words
