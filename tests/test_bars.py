"""Histograms and shares, drawn without matplotlib."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from matplotlib.ticker import MaxNLocator

from ftcli.core.reports import bars

LENGTHS = {"edges": [0, 10, 20, 30], "counts": [100, 40, 0]}


def drawn(svg: str) -> tuple[list[dict[str, str]], list[ET.Element]]:
    """The paths and rectangles of a drawing, and its texts."""
    elements = list(ET.fromstring(svg))
    return [element.attrib for element in elements if element.tag in {"path", "rect"}], [each for each in elements if each.tag == "text"]


@pytest.mark.parametrize("kind", ["wide", "narrow"])
def test_a_histogram_has_a_step_for_every_count_in_its_place(kind: str) -> None:
    plot = bars.histogram("lengths", "Lengths", LENGTHS, ("tokens", "rows"))
    width = {"wide": 860, "narrow": 340}[kind]
    shapes, texts = drawn(getattr(plot, kind))
    (shape,) = (each for each in shapes if each["style"] == "fill: var(--s1)")
    numbers = [tuple(map(float, point)) for point in re.findall(r"[ML] ([\d.]+) ([\d.]+)", shape["d"])]
    scale = (width - 54) / 30.3  # pixels a token: 46 left of the axes, 8 right of them, and a hundredth of air
    tops = [180 - 154 * count / 104 for count in (100, 40, 0)]
    expected = [(0, 180.0), (0, tops[0]), (10, tops[0]), (10, tops[1]), (20, tops[1]), (20, tops[2]), (30, tops[2]), (30, 180.0)]
    assert numbers == [pytest.approx((46 + token * scale, height), abs=0.01) for token, height in expected]
    assert [text.text for text in texts][-2:] == ["tokens", "rows"]
    assert {"0", "50", "100", {"wide": "24", "narrow": "8"}[kind]} <= {text.text for text in texts}
    assert f'viewBox="0 0 {width} 220"' in getattr(plot, kind)


def test_a_limit_is_a_line_across_and_an_entry_of_the_legend() -> None:
    plot = bars.histogram("lengths", "Lengths", LENGTHS, ("tokens", "rows"), limit=60)
    (line,) = (each["d"] for each in drawn(plot.wide)[0] if "--s2" in each["style"])
    assert re.fullmatch(r"M 844.0\d 180 L 844.0\d 26", line)
    assert [(key.label, key.value) for key in plot.legend] == [("limit", "60\xa0tokens")]


def test_shares_lie_side_by_side_and_fill_the_width() -> None:
    plot = bars.shares("time", "Time", {"read": 1.0, "encode": 3.0, "write": 0.0}, "s")
    shapes, _ = drawn(plot.wide)
    assert [(float(each["x"]), float(each["width"])) for each in shapes] == [(0, 213), (215, 643), (860, 0)]
    assert [key.value for key in plot.legend] == ["1 s · 25.0\xa0%".replace(" s", "\xa0s"), "3\xa0s · 75.0\xa0%", "0\xa0s · 0.0\xa0%"]


def test_names_and_words_of_users_are_escaped() -> None:
    plot = bars.shares("time", "<Time>", {"a & b": 1.0}, "s")
    assert ET.fromstring(plot.wide)[0].text == "<Time>"
    assert ET.fromstring(bars.histogram("x", "x", LENGTHS, ("<t>", "&")).wide)[-1].text == "&"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("low", "high"), [(0, 20.2), (0, 3), (0, 144), (0, 1e-4), (0.5, 77.5), (-31.7, 28.4), (0, 5_300_000), (0, 0.97), (-3, 4)]
)
def test_ticks_stand_where_those_of_the_other_plots_do(low: float, high: float, whole: bool) -> None:
    if whole and high - low < 2:
        pytest.skip("its rule is another one where no two whole numbers lie between")
    theirs = [tick for tick in MaxNLocator(8, integer=whole).tick_values(low, high) if low <= tick <= high]
    assert bars.ticks(low, high, 8, bars.X_STEPS, whole=whole) == pytest.approx(theirs)
    if not whole:
        theirs = [tick for tick in MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high) if low <= tick <= high]
        assert bars.ticks(low, high, 4, bars.Y_STEPS) == pytest.approx(theirs)


def test_numbers_that_are_all_the_same_are_drawn() -> None:
    assert "var(--s1)" in bars.histogram("x", "x", {"edges": [3, 3], "counts": [5]}, ("tokens", "rows")).wide
    assert "var(--s1)" in bars.histogram("x", "x", {"edges": [3, 4], "counts": [0]}, ("tokens", "rows")).wide
