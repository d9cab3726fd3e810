"""A plot of a page: its two drawings and what stands beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SERIES = ("s1", "s2", "s3", "s4", "s5", "s6")
WIDTHS = {"full": 860, "half": 430, "narrow": 340}
FONT_SIZE = 12

Span = Literal["full", "half"]


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend; `colour` is the name of a CSS variable, `value` a formatted figure."""

    colour: str
    label: str
    value: str = ""
    shape: Literal["box", "line", "dash"] = "box"


@dataclass(frozen=True, slots=True)
class Plot:
    """One figure of the page: `wide` and `narrow` are <svg> elements, `title` and `caption` plain text.

    Every plot is drawn twice, for a wide and for a narrow page: text scaled down to a phone cannot be read.
    """

    title: str
    caption: str
    wide: str
    narrow: str
    span: Span
    legend: tuple[Key, ...] = ()


def compact(value: float, _position: int | None = None) -> str:
    """A figure at an axis: 1500 → "1.5k"."""
    for scale, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g}{suffix}"
    return f"{value:.3g}".replace("e-0", "e-")
