"""Filling packs to the brim with lengths in the proportion in which they occur, so that what is left never loses its mix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

UNIT = 2**20
"""Weights of lengths are whole numbers that sum to about this: see `Mix`."""
LONGEST_SEARCH = 40
"""Iterations after which weights are used as they are; incident 1 at 1,024, the slowest of those measured, needs 20."""
CLOSE_ENOUGH = 0.004
"""Share of the tokens that the weights put into the wrong lengths at which the search ends: that much is left for best fit."""
USELESS = 0.2
"""Such a share left over says that no such mix of full packs exists."""
RESERVE = 0.03
"""Share of the tokens that is not put into full packs, so that the last of them still find the lengths that they lack: 0.2 to 0.7 % less
waste, measured on lengths of incident 1 and on lengths of two kinds."""
EARLY_CLOSE = 1 / 1024
"""Weight of a pack that ends a little short against a full one."""


@dataclass(frozen=True, slots=True)
class Mix:
    """A random process that fills packs: in a pack with room r the next document has length l with probability ∝ `weights[l] · ways[r − l]`.

    `weights` [lengths] and `ways` [max_length + 1] are whole numbers held as float64, small enough for every sum and product of theirs to
    be exact. So the packs depend neither on the order in which a library adds nor on the processor.
    """

    weights: Floats
    ways: Floats


def find_mix(sizes: Ints, counts: Ints, max_length: int) -> Mix | None:
    """Weights under which full packs use up lengths as they occur; None where full packs cannot.

    The weights are those of maximal entropy (each length's is raised while full packs use less of it than its share). `ways[r]` sums the
    weights of all sequences of documents that fill room r to within 1/256 of the pack; one pass over r computes it, and the use of all
    lengths is one convolution.

    Args:
        sizes: the distinct lengths, ascending, in 1..max_length.
        counts: documents of each.
    """
    share = sizes * counts / float((sizes * counts).sum())
    weights = counts.astype(np.float64)
    errors: list[float] = []
    change = np.ones(len(sizes))
    for _ in range(LONGEST_SEARCH):
        weights = np.maximum(np.rint(weights * (UNIT / math.fsum(weights))), 1.0)
        exact = _exact_ways(sizes, weights, max_length)
        ways = _closing(exact, max_length // 256)
        use = weights * sizes * _product(exact, ways)[max_length - sizes]
        total = math.fsum(use)
        if not total:
            return None
        errors.append(math.fsum(np.abs(use / total - share)))
        if errors[-1] < CLOSE_ENOUGH:
            break
        if len(errors) > 8 and errors[-1] > 0.9 * errors[-5]:
            break
        change = np.sqrt(
            change * np.clip(share / np.maximum(use / total, share / 64), 1 / 64, 64)
        )  # half the iterations of one without memory
        weights = weights * change
    return Mix(weights, ways) if errors[-1] < USELESS else None


def _exact_ways(sizes: Ints, weights: Floats, max_length: int) -> Floats:
    """Weight of all sequences of documents of exactly r tokens, r = 0..max_length, in units of 2⁻³⁰."""
    longest = int(sizes[-1])
    backwards = np.zeros(longest)
    backwards[longest - sizes] = weights
    result = np.zeros(longest + max_length + 1)  # preceded by zeros, so that every step is one product
    result[longest] = 2.0**30
    for room in range(1, max_length + 1):
        result[longest + room] = backwards.dot(result[room : longest + room]) // UNIT
    return result[longest:]


def _closing(exact: Floats, slack: int) -> Floats:
    """Ways to fill room r when up to `slack` tokens may stay empty."""
    sums = np.cumsum(exact)
    short = np.append(0.0, sums[:-1])
    short[slack + 1 :] -= sums[: len(sums) - slack - 1]
    return exact + np.rint(short * EARLY_CLOSE)


def _product(left: Floats, right: Floats) -> Floats:
    """Coefficients of the product of two power series of whole numbers up to 2³⁰; so few bits are kept that the FFT is exact."""
    left, right = (_shorter(series) for series in (left, right))
    width = 1 << (2 * len(left)).bit_length()
    product: Floats = np.fft.irfft(np.fft.rfft(left, width) * np.fft.rfft(right, width), width)[: len(left)]
    return np.rint(np.maximum(product, 0.0))


def _shorter(series: Floats) -> Floats:
    """Scaled to whole numbers whose squares sum to at most 2⁴⁴, so that the rounding error of an FFT stays under a half."""
    series = np.rint(series * 2.0**-9)
    squares = int((series.astype(np.int64) ** 2).sum())
    return np.rint(series * 2.0 ** -max(0, (squares.bit_length() - 43) // 2))


def fill(mix: Mix, sizes: Ints, counts: Ints, max_length: int) -> tuple[Ints, Ints]:
    """(length, pack) of every document that was placed, packs numbered from 0; at most `counts` of each length.

    The packs are filled together: those that have reached the same level are shared out over the next lengths by the mix, rounded so
    that what a length did not get here it gets at the next level.
    """
    weights, left, debt = mix.weights.copy(), counts.copy(), np.zeros(len(sizes))
    fitting = np.searchsorted(sizes, np.arange(max_length + 1), side="right").tolist()
    arrived = [0] * (max_length + 1)
    arrived[0] = int((sizes * counts).sum() * (1 - RESERVE)) // max_length
    steps: list[tuple[int, Ints, Ints]] = []
    for level in range(max_length):
        packs, some = arrived[level], fitting[max_length - level]
        if not packs or not some:
            continue
        chance = weights[:some] * mix.ways[max_length - level - sizes[:some]]
        total = chance.sum()
        if not total:
            continue
        wanted = debt[:some]
        wanted += chance * (packs / total)
        taken = _share_out(np.where(chance > 0, wanted, -np.inf), left[:some], packs)
        chosen = np.flatnonzero(taken)
        number = taken[chosen]
        wanted[chosen] -= number
        left[chosen] -= number
        weights[chosen[left[chosen] == 0]] = 0.0
        for size, many in zip(sizes[chosen].tolist(), number.tolist(), strict=True):
            arrived[level + size] += many
        steps.append((level, sizes[chosen], number))
    return _paths(steps, max_length)


def _share_out(wanted: Floats, left: Ints, packs: int) -> Ints:
    """Whole numbers near `wanted` that sum to `packs` and are at most `left`; less in sum where there is too little."""
    taken = np.minimum(np.floor(np.maximum(wanted, 0.0)), left).astype(np.int64)
    missing = packs - int(taken.sum())
    if missing > 0:
        rest = np.where(taken < left, taken - wanted, np.inf)
        order = np.argsort(rest, kind="stable")[:missing]
        taken[order[rest[order] < np.inf]] += 1
    elif missing < 0:
        order = np.argsort(-wanted, kind="stable")
        taken[order] = np.diff(np.minimum(np.cumsum(taken[order]), packs), prepend=0)
    return taken


def _paths(steps: list[tuple[int, Ints, Ints]], max_length: int) -> tuple[Ints, Ints]:
    """Steps between fill levels, joined to packs: the i-th pack that leaves a level is the i-th that came."""
    if not steps:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    start = np.repeat([level for level, _, _ in steps], [int(number.sum()) for _, _, number in steps])
    length = np.concatenate([np.repeat(size, number) for _, size, number in steps])
    end = start + length
    levels = np.arange(max_length + 2)
    came = np.argsort(end, kind="stable")
    place = np.arange(len(start)) - np.searchsorted(start, levels)[start] + np.searchsorted(end[came], levels)[start]
    pack = np.where(start > 0, came[np.minimum(place, len(came) - 1)], np.arange(len(start)))
    while not np.array_equal(earlier := pack[pack], pack):
        pack = earlier
    return length, pack
