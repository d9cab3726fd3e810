"""Rows that are nearly the same as another one: MinHash over neighbouring tokens, candidates compared exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ftcli.core.ragged import to_offsets
from ftcli.core.storage.store import Ragged

SAME = 0.8
"""Jaccard similarity of the sets of token pairs from which two rows count as nearly the same: one word of 20 changed gives 0.8."""
LEAST_TOKENS = 12
"""Shorter rows are compared whole only: one word of ten changed is another text."""
BANDS, DEPTH = 8, 2
"""Pairs of 0.8 become candidates with a probability of 1 - (1 - 0.8²)⁸ = 99.97 %, those of 0.3 with 53 %."""
MOST_A_BAND, MOST_A_ROW = 4, 4
"""Candidates that a row takes from a band, and that are compared for a row: those that share the most bands."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """`rows[i]` of the one set is nearly `others[i]` of the other, by `similarity[i]`; each row at most once, with its most similar."""

    rows: NDArray[np.int64]
    others: NDArray[np.int64]
    similarity: NDArray[np.float64]


def near_pairs(rows: Ragged, others: Ragged, width: int = 2, least: int = LEAST_TOKENS) -> Pairs:
    """Rows that have a nearly equal row in `others`. Memory: 30 bytes a token of the larger set.

    Python works once a candidate, at most `MOST_A_ROW` times a row.

    Args:
        width: tokens that are compared together; see `scale`.
        least: tokens that a row must have.
    """
    mine, theirs = _shingles(rows, width), _shingles(others, width)
    best: dict[int, tuple[float, int]] = {}
    for row, other in _candidates(_keys(mine), _keys(theirs), rows.lengths, others.lengths, max(least, width)):
        similarity = _jaccard(mine.row(row), theirs.row(other))
        if similarity >= SAME and similarity > best.get(row, (0.0, 0))[0]:
            best[row] = (similarity, other)
    found = sorted(best)
    return Pairs(
        np.array(found, np.int64),
        np.array([best[row][1] for row in found], np.int64),
        np.array([best[row][0] for row in found], np.float64),
    )


def scale(bytes_a_token: float) -> tuple[int, int]:
    """`width` and `least` for a tokenizer: as much text as 2 and 12 tokens of 5 bytes. GPT-2 cuts a Hangul into two or three tokens."""
    return max(2, round(10 / max(0.5, bytes_a_token))), max(LEAST_TOKENS, round(60 / max(0.5, bytes_a_token)))


@dataclass(frozen=True, slots=True)
class _Shingles:
    values: NDArray[np.uint64]
    offsets: NDArray[np.int64]

    def row(self, index: int) -> NDArray[np.uint64]:
        return self.values[self.offsets[index] : self.offsets[index + 1]]


def _shingles(rows: Ragged, width: int) -> _Shingles:
    """Every `width` neighbouring tokens of a row as one number."""
    ids = rows.values[rows.offsets[0] : rows.offsets[-1]].astype(np.uint64)
    lengths = rows.lengths
    count = max(0, len(ids) - width + 1)
    numbers = np.zeros(count, np.uint64)
    for place in range(width):
        numbers = numbers * np.uint64(0xBF58476D1CE4E5B9) + ids[place : place + count] + np.uint64(1)
    left = np.repeat(rows.offsets[1:] - rows.offsets[0], lengths)[:count] - np.arange(count)
    return _Shingles(numbers[left >= width], to_offsets(np.maximum(lengths - width + 1, 0)))


def _keys(shingles: _Shingles) -> NDArray[np.uint64]:
    """MinHash signatures folded into bands, uint64 [BANDS, rows]. Rows without a pair share one key, and are passed over later."""
    generator = np.random.default_rng(20_260_101)
    odd = generator.integers(1, 2**63, (BANDS, DEPTH), np.uint64) * np.uint64(2) + np.uint64(1)
    mask = generator.integers(0, 2**63, (BANDS, DEPTH), np.uint64)
    filled = np.flatnonzero(np.diff(shingles.offsets) > 0)
    keys = np.zeros((BANDS, len(shingles.offsets) - 1), np.uint64)
    if not len(filled):
        return keys
    starts = shingles.offsets[filled]
    mixed = shingles.values * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    for band in range(BANDS):
        key = np.zeros(len(filled), np.uint64)
        for depth in range(DEPTH):
            hashed = (mixed ^ mask[band, depth]) * odd[band, depth]
            key = key * np.uint64(0xBF58476D1CE4E5B9) + np.minimum.reduceat(hashed, starts)
        keys[band, filled] = key
    return keys


def _candidates(
    mine: NDArray[np.uint64], theirs: NDArray[np.uint64], lengths: NDArray[np.int64], others: NDArray[np.int64], least: int
) -> list[tuple[int, int]]:
    """(row, other) that share a band and whose lengths allow `SAME`, those with the most bands first, `MOST_A_ROW` a row."""
    rows = np.flatnonzero(lengths >= least)
    long = np.flatnonzero(others >= least)
    found = []
    for band in range(BANDS):
        order = long[np.argsort(theirs[band, long], kind="stable")]
        keys = theirs[band, order]
        low = np.searchsorted(keys, mine[band, rows], "left")
        count = np.searchsorted(keys, mine[band, rows], "right") - low
        for step in range(MOST_A_BAND):
            there = count > step
            found.append(rows[there] * len(others) + order[low[there] + step])
    pairs, bands = np.unique(np.concatenate(found), return_counts=True) if found else (np.zeros(0, np.int64), np.zeros(0, np.int64))
    row, other = np.divmod(pairs, max(1, len(others)))
    fits = np.minimum(lengths[row], others[other]) >= SAME * np.maximum(lengths[row], others[other]) - 1
    row, other, bands = row[fits], other[fits], bands[fits]
    order = np.lexsort((-bands, row))
    row, other = row[order], other[order]
    rank = np.arange(len(row)) - np.searchsorted(row, row, "left")
    kept = rank < MOST_A_ROW
    return list(zip(row[kept].tolist(), other[kept].tolist(), strict=True))


def _jaccard(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float:
    shared = len(np.intersect1d(one, other))
    return shared / (len(np.unique(one)) + len(np.unique(other)) - shared)
