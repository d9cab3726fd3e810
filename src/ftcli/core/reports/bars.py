"""Histograms and shares as inline SVG, written here: matplotlib takes 1 s of CPU to import and draw them, at the end of every `ftcli tokenize`.

They look as `ftcli.core.reports.plots` draws the other plots. The same numbers give the same bytes.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftcli.core.figures import number, percent, quantity
from ftcli.core.reports.plot import FONT_SIZE, SERIES, WIDTHS, Key, Plot, compact
from ftcli.core.reports.svg import labelled

HEIGHT, THIN = 220, 24
LEFT, BELOW, RIGHT, ABOVE = 46, 40, 8, 26
"""Pixels around the axes of a histogram."""
GAP = 2
"""Pixels between two shares."""
X_STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
Y_STEPS = (1.0, 2.0, 2.5, 5.0)
"""First digits of the distance between two ticks."""


def histogram(
    name: str,
    title: str,
    data: Mapping[str, Any],
    units: tuple[str, str],
    *,
    caption: str = "",
    limit: float | None = None,
    whole: bool = True,
) -> Plot:
    """Counts between edges (`data` = {"edges": n + 1 numbers, "counts": n}).

    `units` are those of x and y, `limit` is a line across, `whole` keeps ticks at whole numbers.
    """
    edges, counts = data["edges"], data["counts"]
    bounds = [edges[0], edges[-1], *(() if limit is None else (limit,))]
    low, high, top = min(bounds), max(bounds) + (max(bounds) - min(bounds)) * 0.01, max(1, *counts) * 1.04
    if high <= low:  # all of one number
        low, high = low - 0.5, low + 0.5

    def draw(width: int) -> str:
        across, down = width - LEFT - RIGHT, HEIGHT - ABOVE - BELOW

        def x(value: float) -> str:
            return _short(LEFT + across * (value - low) / (high - low))

        def y(value: float) -> str:
            return _short(ABOVE + down * (1 - value / top))

        floor, end = y(0), _short(width - RIGHT)
        levels = ticks(0, top, 4, Y_STEPS)
        lines = [_line(f"M {LEFT} {y(level)} L {end} {y(level)}", "line") for level in levels]
        steps = " ".join(
            f"L {x(first)} {y(count)} L {x(last)} {y(count)}" for first, last, count in zip(edges, edges[1:], counts, strict=False)
        )
        shape = f'<path d="M {x(edges[0])} {floor} {steps} L {x(edges[-1])} {floor} z" style="fill: var(--s1)"/>'
        across_it = [] if limit is None else [_line(f"M {x(limit)} {floor} L {x(limit)} {ABOVE}", "s2", 1.5)]
        axis = _line(f"M {LEFT} {floor} L {end} {floor}", "line", 0.8)
        places = ticks(low, high, max(4, width // 100), X_STEPS, whole=whole)
        words = [_text(x(place), _short(HEIGHT - BELOW + 12.61), "middle", compact(place)) for place in places]
        words += [_text(_short(LEFT - 3.5), _short(float(y(level)) + 4.55), "end", compact(level)) for level in levels]
        words += [_text(end, _short(HEIGHT - 6), "end", units[0]), _text("4", "14", "start", units[1])]
        return "\n".join((*lines, shape, *across_it, axis, *words))

    described = caption or f"{number(sum(counts))} {units[1]} between {number(edges[0])} and {number(edges[-1])} {units[0]}"
    legend = (Key("s2", "limit", quantity(limit, units[0]), "line"),) if limit is not None else ()
    return _plot(name, title, caption, described, draw, HEIGHT, legend)


def shares(name: str, title: str, parts: Mapping[str, float], unit: str, caption: str = "") -> Plot:
    """One bar cut into parts; the legend holds the figures."""
    total = sum(parts.values()) or 1
    legend = tuple(
        Key(SERIES[index % len(SERIES)], label, f"{quantity(value, unit)} · {percent(value / total)}")
        for index, (label, value) in enumerate(parts.items())
    )

    def draw(width: int) -> str:
        bars, left = [], 0.0
        for key, value in zip(legend, parts.values(), strict=True):
            size = width * value / total
            bar = f'x="{_short(left)}" y="0" width="{_short(max(size - GAP, 0.0))}" height="{THIN}"'
            bars.append(f'<rect {bar} style="fill: var(--{key.colour})"/>')
            left += size
        return "\n".join(bars)

    return _plot(name, title, caption, "; ".join(f"{key.label} {key.value}" for key in legend), draw, THIN, legend)


def ticks(low: float, high: float, most: int, steps: Sequence[float], *, whole: bool = False) -> list[float]:
    """Round numbers from `low` to `high`, evenly spaced, with at most `most` spaces between them.

    >>> ticks(0, 20.2, 8, X_STEPS, whole=True)
    [0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0]
    """
    least = (high - low) / most
    power = math.floor(math.log10(least))
    found = (step * 10.0**place for place in range(power, power + 20) for step in steps)
    step = next(step for step in found if step >= least * (1 - 1e-10) and (not whole or step == round(step)))
    slack = 1e-10 * max(1.0, abs(low / step), abs(high / step))
    return [place * step for place in range(math.ceil(low / step - slack), math.floor(high / step + slack) + 1)]


def _plot(name: str, title: str, caption: str, described: str, draw: Callable[[int], str], height: int, legend: tuple[Key, ...]) -> Plot:
    def svg(kind: str, width: int) -> str:
        return labelled(f'viewBox="0 0 {width} {height}"', f"{name}-{kind}", title, described, f"\n{draw(width)}\n")

    return Plot(title, caption, svg("wide", WIDTHS["full"]), svg("narrow", WIDTHS["narrow"]), "full", legend)


def _line(path: str, colour: str, width: float = 1) -> str:
    return f'<path d="{path}" style="fill: none; stroke: var(--{colour}); stroke-width: {width:g}; stroke-linecap: square"/>'


def _text(x: str, y: str, anchor: str, words: str) -> str:
    style = f"font-size: {FONT_SIZE}px; text-anchor: {anchor}; fill: var(--muted)"
    return f'<text style="{style}" x="{x}" y="{y}">{html.escape(words)}</text>'


def _short(value: float) -> str:
    """At most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
