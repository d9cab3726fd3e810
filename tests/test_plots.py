"""Plots as inline SVG."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import matplotlib as mpl
import pytest

from ftcli.core.reports import plots, svg

pytestmark = pytest.mark.usefixtures("drawn")


def test_a_curve_over_decades_gets_a_logarithmic_scale_and_says_so() -> None:
    wide = [plots.Curve("gradient norm", "s4", [1, 2, 3], [200.0, 20.0, 0.5])]
    assert "Logarithmic scale." in plots.curves("norm", "Norm", wide, noisy=True).caption
    assert not plots.curves("norm", "Norm", wide).caption
    narrow = [plots.Curve("gradient norm", "s4", [1, 2, 3], [3.0, 2.0, 1.5])]
    assert not plots.curves("norm", "Norm", narrow, noisy=True).caption
    ratios = [{"name": "a", "median": 40.0, "low": 30.0, "high": 55.0, "samples": None}]
    assert ">50×<" in plots.intervals("r", "Ratios", ratios, "×", level=1.0).wide


def test_a_long_curve_is_drawn_under_its_moving_average() -> None:
    steps = list(range(90))
    plot = plots.curves("loss", "Loss", [plots.Curve("loss", "s1", steps, [5.0 + 0.1 * (-1) ** step for step in steps])], noisy=True)
    assert "moving average" in plot.caption
    assert plot.wide.count("stroke: var(--s1)") == 2


def test_one_point_is_a_dot() -> None:
    plot = plots.curves("loss", "Loss", [plots.Curve("loss", "s1", [1], [5.0])])
    assert "<use" in plot.wide


def test_a_matplotlibrc_of_the_user_changes_nothing() -> None:
    def draw() -> str:
        return plots.curves("loss", "Loss", [plots.Curve("loss", "s1", [1, 2], [5.0, 4.0])]).wide

    before = draw()
    with mpl.rc_context({"svg.fonttype": "path", "font.size": 30, "text.color": "red"}):
        assert draw() == before
        assert mpl.rcParams["font.size"] == 30


def test_a_korean_letter_counts_as_two_when_text_is_clipped() -> None:
    assert svg.clip("한국어", 6) == "한국어"
    assert svg.clip("한국어", 5) == "한국…"
    assert not svg.clip("", 3)


def test_threads_draw_the_same_plots() -> None:
    def draw(index: int) -> str:
        return plots.curves(f"loss-{index % 2}", "Loss", [plots.Curve("loss", "s1", [1, 2], [5.0, 4.0 + index % 2])]).wide

    alone = [draw(0), draw(1)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(draw, range(12))) == alone * 6


def test_ids_of_a_drawing_carry_its_name_and_unused_ones_go() -> None:
    body = '<metadata>x</metadata><g id="a"><path id="m1" d="M 1.23456 2"/><use xlink:href="#m1"/></g>'
    document = f'<?xml?><svg width="9pt" viewBox="0 0 9 9">{body}</svg>'
    assert svg.inline(document, "n", "A & B", "<d>") == (
        '<svg viewBox="0 0 9 9" role="img" aria-labelledby="n-title n-desc"><title id="n-title">A &amp; B</title>'
        '<desc id="n-desc">&lt;d&gt;</desc><g><path id="n-m1" d="M 1.23 2"/><use href="#n-m1"/></g></svg>'
    )
