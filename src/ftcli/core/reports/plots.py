"""Curves, intervals and waterfalls as inline SVG: the only module that imports matplotlib, without pyplot.

Colours are drawn as sentinels and become CSS variables, text stays text in the page's font, so that a plot follows the page
into dark mode. The same numbers give the same bytes.
"""

from __future__ import annotations

import io
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ftcli.core.figures import between, quantity, seconds
from ftcli.core.reports.plot import FONT_SIZE, WIDTHS, Key, Plot, Span, compact
from ftcli.core.reports.svg import SENTINELS, clip, inline, verbatim

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it tells that it builds its font list, once, on every rank

ROW_HEIGHT = 54
LOG_RANGE = 20  # a curve that spans more than this factor shows only its highest part on a linear scale
SMOOTH_FROM = 60  # points; fewer are readable as they are

Draw = Callable[[Axes, int], None]
_lock = threading.Lock()  # matplotlib's rcParams belong to the process


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one line; `marks` draws a dot at each."""

    label: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """A value to compare with, drawn as a dashed line."""

    label: str
    value: float


def curves(
    name: str,
    title: str,
    series: Sequence[Curve],
    level: Level | None = None,
    *,
    unit: str = "",
    noisy: bool = False,
    span: Span = "half",
) -> Plot:
    """Lines over steps. Of `noisy` ones a long line is faint under its moving average, a wide range gets a logarithmic scale."""
    values = [value for curve in series for value in curve.y] + ([level.value] if level else [])
    low, high = min(values), max(values)
    logarithmic = noisy and low > 0 and high / low > LOG_RANGE
    averaged = [noisy and not curve.marks and len(curve.y) >= SMOOTH_FROM for curve in series]

    def draw(ax: Axes, _width: int) -> None:
        if level:
            ax.axhline(level.value, color=SENTINELS["muted"], linewidth=1.2, dashes=(4, 3))
        for curve, faint in zip(series, averaged, strict=True):
            line: dict[str, Any] = {"color": SENTINELS[curve.colour], "solid_joinstyle": "round"}
            dots: dict[str, Any] = {"marker": "o", "markersize": 4.5, "markeredgewidth": 0} if curve.marks or len(curve.y) < 3 else {}
            ax.plot(curve.x, curve.y, linewidth=0.8 if faint else 2, alpha=0.4 if faint else None, **line, **dots)
            if faint:
                ax.plot(curve.x, _moving_average(curve.y), linewidth=2, **line)
        if logarithmic:
            _log_scale(ax, "y", low, high)
        else:
            ax.set_ylim(*_margin(low, high))
        if unit == "%":
            ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g}%"))
        ax.annotate(verbatim("step"), (1, 0), (0, -34), "axes fraction", "offset points", ha="right", color=SENTINELS["muted"])

    told = "; ".join(f"{curve.label} from {between(curve.y[0], curve.y[-1], unit)}" for curve in series)
    legend = [Key(curve.colour, curve.label, shape="line") for curve in series]
    legend += [Key("muted", level.label, quantity(level.value, unit), "dash")] if level else []
    remarks = ["Faint: as logged; strong: moving average."] * any(averaged) + ["Logarithmic scale."] * logarithmic
    shown = tuple(legend) if len(legend) > 1 else ()
    height, margins = 250 if span == "full" else 200, (46, 40, 8, 8)
    return _plot(name, title, " ".join(remarks), told, draw, span=span, height=height, legend=shown, margins=margins)


def intervals(
    name: str, title: str, rows: Sequence[Mapping[str, Any]], unit: str, *, caption: str = "", level: float | None = None
) -> Plot:
    """A row each: faint dots (`samples`), a bar (`low` to `high`), a mark (`median`) in the CSS variable `colour`."""
    values = [value for row in rows for value in (row["median"], row["low"], row["high"], *(row.get("samples") or ()))]
    low, high = min(*values, *_some(level)), max(*values, *_some(level))
    logarithmic = level is not None and low > 0 and high / low > 4
    height = ROW_HEIGHT * len(rows) + 34

    def draw(ax: Axes, width: int) -> None:
        if level is not None:
            ax.axvline(level, color=SENTINELS["muted"], linewidth=1.2, dashes=(4, 3), zorder=0)
        for index, row in enumerate(rows):
            y, colour = len(rows) - index - 0.56, SENTINELS[row.get("colour", "s1")]
            samples = row.get("samples") or ()
            ax.plot(samples, [y] * len(samples), "o", color=colour, alpha=0.3, markersize=6, markeredgewidth=0)
            ax.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=3, solid_capstyle="round")
            ax.plot(row["median"], y, "o", color=colour, markersize=10, markeredgecolor=SENTINELS["ground"], markeredgewidth=2)
            value = quantity(row["median"], unit)
            room = max(8, int((width - 28) / 6.7) - len(value) - 2)
            for x, text, side in ((0, clip(row["name"], room), "left"), (1, value, "right")):
                ax.text(x, y + 0.24, verbatim(text), transform=ax.get_yaxis_transform(), ha=side, color=SENTINELS["ink"])
        if logarithmic:
            _log_scale(ax, "x", low, high)
        else:
            ax.set_xlim(*_margin(low, high))
            ax.xaxis.set_major_locator(MaxNLocator(max(3, width // 110)))
        if unit in ("×", "s"):
            ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×" if unit == "×" else seconds(x)))
        ax.set_ylim(0, len(rows))
        ax.set_yticks([])
        ax.grid(visible=True, axis="x")
        ax.spines["bottom"].set_visible(False)

    told = (f"{row['name']} {quantity(row['median'], unit)}, {between(row['low'], row['high'], unit)}" for row in rows)
    return _plot(name, title, caption, "; ".join(told), draw, span="full", height=height, margins=(14, 26, 14, 4))


@dataclass(frozen=True, slots=True)
class Fall:
    """A bar of a waterfall. One that begins at 0 is a whole, the others are changes of the one above; `sure` is whether one is beyond the noise."""

    label: str
    first: float
    last: float
    sure: bool = True

    @property
    def colour(self) -> str:
        if not self.sure:
            return "muted"
        return "s1" if not self.first else "bad" if self.last > self.first else "good"


def waterfall(title: str, falls: Sequence[Fall], caption: str, legend: tuple[Key, ...]) -> Plot:
    """A bar each from one ratio to the next."""
    high = max(max(fall.first, fall.last) for fall in falls)
    height = ROW_HEIGHT * len(falls) + 34

    def draw(ax: Axes, width: int) -> None:
        for index, fall in enumerate(falls):
            y, first, last = len(falls) - index - 0.66, fall.first, fall.last
            ax.barh(y, last - first, left=first, height=0.36, color=SENTINELS[fall.colour])
            if index + 1 < len(falls):
                ax.plot([last, last], [y - 0.18, y - 0.82], color=SENTINELS["muted"], linewidth=1)
            value = quantity(last, "×") if not first else f"{'+' if last >= first else '−'}{quantity(abs(last - first), '×')}"
            room = max(8, int((width - 28) / 6.7) - len(value) - 2)
            for x, text, side in ((0, clip(fall.label, room), "left"), (1, value, "right")):
                ax.text(x, y + 0.26, verbatim(text), transform=ax.get_yaxis_transform(), ha=side, color=SENTINELS["ink"])
        ax.set_xlim(0, high * 1.02)
        ax.set_ylim(0, len(falls))
        ax.set_yticks([])
        ax.xaxis.set_major_locator(MaxNLocator(max(3, width // 110)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
        ax.grid(visible=True, axis="x")

    told = "; ".join(
        f"{fall.label} from {quantity(fall.first, '×')} to {quantity(fall.last, '×')}{'' if fall.sure else ' (within the noise)'}"
        for fall in falls
    )
    return _plot("factors", title, caption, told, draw, span="full", height=height, legend=legend, margins=(14, 26, 14, 4))


def _plot(
    name: str,
    title: str,
    caption: str,
    described: str,
    draw: Draw,
    *,
    span: Span,
    height: int,
    legend: tuple[Key, ...] = (),
    margins: tuple[int, int, int, int],
) -> Plot:
    """`margins` are pixels left, below, right and above the axes."""

    def svg(kind: str, width: int) -> str:
        document = _document(draw, width, height, margins)
        return inline(document, f"{name}-{kind}", title, described)

    return Plot(title, caption, svg("wide", WIDTHS[span]), svg("narrow", WIDTHS["narrow"]), span, legend)


def _document(draw: Draw, width: int, height: int, margins: tuple[int, int, int, int]) -> str:
    left, bottom, right, top = margins
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "ftcli",
        "font.size": FONT_SIZE,
        "text.parse_math": False,
        "text.color": SENTINELS["ink"],
        "axes.edgecolor": SENTINELS["line"],
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "axes.spines.left": False,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.xmargin": 0.01,
        "grid.color": SENTINELS["line"],
        "grid.linewidth": 1,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.labelcolor": SENTINELS["muted"],
        "ytick.labelcolor": SENTINELS["muted"],
        "xtick.color": SENTINELS["line"],
        "ytick.color": SENTINELS["line"],
    }
    text = io.StringIO()
    with _lock, mpl.rc_context():
        mpl.rcdefaults()  # a matplotlibrc of the user is for his plots
        mpl.rcParams.update(style)
        figure = Figure(figsize=(width / 72, height / 72))
        ax = figure.add_axes((left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height))
        ax.xaxis.set_major_locator(MaxNLocator(max(4, width // 100)))
        ax.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        ax.xaxis.set_major_formatter(FuncFormatter(compact))
        ax.yaxis.set_major_formatter(FuncFormatter(compact))
        draw(ax, width)
        figure.savefig(text, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return text.getvalue()


def _log_scale(ax: Axes, which: Literal["x", "y"], low: float, high: float) -> None:
    axis = ax.xaxis if which == "x" else ax.yaxis
    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    steps = (1.0,) if math.log10(high / low) > 2 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(compact))
    (ax.set_xlim if which == "x" else ax.set_ylim)(low / 1.15, high * 1.15)


def _margin(low: float, high: float) -> tuple[float, float]:
    """Limits with some air; zero belongs to the picture unless the values are close together and far from it."""
    pad = (high - low or abs(high) or 1) * 0.06
    return (0 if 0 <= low < 0.5 * high else low - pad), high + pad


def _moving_average(values: Sequence[float]) -> list[float]:
    """Mean over a window of a thirtieth of the points, centred, narrower at both ends."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    reach = max(2, len(values) // 60)
    spans = [(max(0, i - reach), min(len(values), i + reach + 1)) for i in range(len(values))]
    return [float((sums[stop] - sums[start]) / (stop - start)) for start, stop in spans]


def _some(value: float | None) -> Iterable[float]:
    return () if value is None else (value,)
