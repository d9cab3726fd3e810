"""Texts that stand within other texts, wherever these were cut: numbers of windows of neighbouring tokens, a sample by the numbers themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ftcli.core.ragged import to_offsets
from ftcli.core.storage.store import Ragged

WIDE, NARROW = 128, 60
"""Bytes of text in a window, and in the narrowest one that says anything: shorter phrases stand in many texts."""
PARTS = 4
"""So many times as long as a window a row has to be: a window in so many crosses a cut, and stands in no row."""
EVERY, MANY_TOKENS = (4, 16), 4_000_000
"""One window in so many is compared, of data with more tokens than that the second."""
FEWEST = 3
"""Windows of a text that must be compared for it to be judged."""
COMMON = 2
"""Texts that a window may stand in and still tell one from others. Without it 10 % of the parts of Windows' API pages stood in other pages."""
OWN = 0.25
"""Part of a text's windows that must be its own for it to be judged."""
CHUNK = 1 << 18
"""Tokens that are worked on together: they stay in the cache."""
BASE = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Windows:
    """`numbers[i]` stands in text `rows[i]`; equal windows have equal numbers, wherever they stand."""

    numbers: NDArray[np.uint64]
    rows: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Known:
    """The windows that texts are looked for by, each once and ascending."""

    width: int
    every: int
    never: int | None
    numbers: NDArray[np.uint64]
    common: NDArray[np.bool_]
    """Whether it stands in so many texts that it tells nothing: licences, headings of forms, rules of tables."""


def width_for(max_length: int, bytes_a_token: float) -> int:
    """Tokens of a window for rows of at most `max_length` tokens; 0 where these are too short to be compared by windows."""
    width = max(1, min(round(WIDE / max(0.5, bytes_a_token)), max_length // PARTS))
    return width if width * bytes_a_token >= NARROW else 0


def every_for(tokens: int) -> int:
    return EVERY[tokens > MANY_TOKENS]


def windows(texts: Ragged, width: int, every: int, never: int | None = None) -> Windows:
    """The windows of texts whose number is divisible by `every`. 40 ns a token.

    Args:
        never: a token that is like no other, not even itself (the unknown one): windows with it are left out.
    """
    ids = texts.values[texts.offsets[0] : texts.offsets[-1]]
    ends = texts.offsets[1:] - texts.offsets[0]
    powers, inverses = _powers(BASE, CHUNK + width), _powers(pow(BASE, -1, 2**64), CHUNK)
    numbers, places = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for first in range(0, len(ids) - width + 1, CHUNK):
        part = ids[first : first + CHUNK + width - 1]
        sums = np.zeros(len(part) + 1, np.uint64)
        np.cumsum(_codes(part) * powers[: len(part)], out=sums[1:])
        found = (sums[width:] - sums[:-width]) * inverses[: len(part) - width + 1]
        found ^= found >> np.uint64(32)
        chosen = np.flatnonzero((found & np.uint64(every - 1)) == 0)
        if never is not None:
            unknown = to_offsets((part == never).astype(np.int64))
            chosen = chosen[unknown[chosen + width] == unknown[chosen]]
        numbers.append(found[chosen])
        places.append(chosen + first)
    place = np.concatenate(places)
    rows = np.searchsorted(ends, place, "right")
    inside = place + width <= ends[rows] if len(rows) else np.zeros(0, np.bool_)
    return Windows(np.concatenate(numbers)[inside], rows[inside])


def known_windows(texts: Ragged, width: int, every: int, never: int | None = None) -> Known:
    found = windows(texts, width, every, never)
    order = np.argsort(found.numbers, kind="stable")  # rows of equal ones stay ascending
    numbers, rows = found.numbers[order], found.rows[order]
    again = numbers[1:] == numbers[:-1]
    begins = np.flatnonzero(np.append(True, ~again)[: len(numbers)])
    another = np.append(True, ~again | (rows[1:] != rows[:-1]))[: len(numbers)].astype(np.int64)
    texts_with = np.add.reduceat(another, begins) if len(begins) else np.zeros(0, np.int64)
    return Known(width, every, never, numbers[begins], texts_with > COMMON)


def within(texts: Ragged, known: Known, share: float) -> NDArray[np.bool_]:
    """By text, whether at least `share` of its windows are known, of those that are not common; nobody can say it of a text that has few others."""
    mine = windows(texts, known.width, known.every, known.never)
    place = np.minimum(np.searchsorted(known.numbers, mine.numbers), max(0, len(known.numbers) - 1))
    same = known.numbers[place] == mine.numbers if len(known.numbers) else np.zeros(len(place), np.bool_)
    common = known.common[place] & same if len(known.numbers) else same
    every = np.bincount(mine.rows, minlength=len(texts))
    own = np.bincount(mine.rows, ~common, minlength=len(texts))
    there = np.bincount(mine.rows, same & ~common, minlength=len(texts))
    found: NDArray[np.bool_] = (own >= np.maximum(FEWEST, OWN * every)) & (there >= share * own)
    return found


def _codes(ids: NDArray[np.int32]) -> NDArray[np.uint64]:
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(29)
    return mixed * np.uint64(0x94D049BB133111EB)


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)
