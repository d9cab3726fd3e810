"""Packing: which documents share a row. Vectorised over documents of equal length; no Python per document."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftcli.contracts import Packs
from ftcli.core.prepare.patterns import fill, find_mix

Ints = NDArray[np.int64]

WASTE_ACCEPTED = 0.009
"""Best-fit decreasing that leaves no larger share of the slots empty is good enough: under 1 % is what is promised."""


class Single:
    """`none`: a document is a pack, also one without tokens."""

    name = "none"
    splits = False

    def pack(self, lengths: Ints, max_length: int) -> Packs:
        _check(lengths, max_length)
        count = len(lengths)
        return Packs(np.arange(count), np.zeros(count, np.int64), lengths.astype(np.int64), np.arange(count + 1))


class Concat:
    """`concat`: all documents in a row, cut every `max_length` tokens. Only the last pack may be short; documents are cut anywhere."""

    name = "concat"
    splits = True

    def pack(self, lengths: Ints, max_length: int) -> Packs:
        ends = np.cumsum(lengths, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        cuts = np.arange(0, total, max_length, dtype=np.int64)
        starts = ends - lengths
        parts = np.sort(np.concatenate([starts[lengths > 0], cuts]))  # np.union1d hashes: 9.8 s for 3,000,000 documents, against 0.7 s
        parts = parts[np.diff(parts, prepend=-1) > 0]
        document = np.searchsorted(ends, parts, side="right")
        part_lengths = np.diff(parts, append=total)
        return Packs(document, parts - starts[document], part_lengths, np.append(np.searchsorted(parts, cuts), len(parts)))


class BestFit:
    """`bfd`: documents stay whole. Best-fit decreasing, and where that wastes more than 0.9 %, packs filled to the brim first.

    Best-fit decreasing (the longest first, each into the fullest pack that still has room) uses up the short documents early. Where a pack
    holds few documents of similar lengths, what is left at the end fits badly: 4 % of incident 1's slots at 1,024 stay empty. There, full
    packs are made that use lengths in the proportion in which they occur (`ftcli.core.prepare.patterns`), best fit places the few documents left
    over, and the better of both results counts. Parts lie in document order inside a pack, packs in the order of their first
    documents. A document without tokens has no part.
    """

    name = "bfd"
    splits = False

    def pack(self, lengths: Ints, max_length: int) -> Packs:
        _check(lengths, max_length)
        documents = np.flatnonzero(lengths)
        count = len(documents)
        pack = _pack_whole(lengths[documents], max_length)
        first = np.full(int(pack.max()) + 1 if count else 0, count, np.int64)
        first[pack[::-1]] = np.arange(count - 1, -1, -1)  # the last write, the first document, stays
        place = np.empty(len(first), np.int64)
        place[np.argsort(first)] = np.arange(len(first))
        pack = place[pack]
        order = documents[_order(pack)]
        return Packs(order, np.zeros(count, np.int64), lengths[order].astype(np.int64), np.append(0, np.cumsum(np.bincount(pack))))


def _pack_whole(lengths: Ints, max_length: int) -> Ints:
    """The pack of each document (all longer than 0)."""
    pack = best_fit(lengths, max_length, np.zeros(0, np.int64))
    packs = int(pack.max(initial=-1)) + 1
    if int(lengths.sum()) >= (1 - WASTE_ACCEPTED) * packs * max_length:
        return pack
    sizes, counts = _runs(np.sort(lengths))
    if packs <= fewest_packs(sizes, counts, max_length) * (1 + WASTE_ACCEPTED / 4):
        return pack
    better = _pack_full(lengths, max_length)
    return pack if better is None or int(better.max()) + 1 >= packs else better


def _pack_full(lengths: Ints, max_length: int) -> Ints | None:
    """As many full packs as the mix of lengths allows, the rest by best fit; None where it allows none.

    Lengths are counted in grains of 1/128 of their mean, rounded up: 0.2 to 0.4 % of a pack, for which there are a few hundred distinct
    lengths instead of thousands with a few documents each.
    """
    grain = max(1, int(lengths.sum()) // len(lengths) // 128)
    grains = np.minimum(-(-lengths // grain), max_length // grain)  # what is cut here has its pack for itself
    order = _order(grains)
    sizes, counts = _runs(grains[order])
    mix = find_mix(sizes, counts, max_length // grain)
    if mix is None:
        return None
    size, pack = fill(mix, sizes, counts, max_length // grain)
    used = np.bincount(np.searchsorted(sizes, size), minlength=len(sizes))
    placed = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts) < np.repeat(used, counts)
    result = np.empty(len(order), np.int64)
    chosen, rest = order[placed], order[~placed]
    result[chosen] = pack[_order(size)]
    filled = np.bincount(result[chosen], weights=lengths[chosen]).astype(np.int64)
    result[rest] = best_fit(lengths[rest], max_length, max_length - filled)
    return result


def fewest_packs(sizes: Ints, counts: Ints, max_length: int) -> int:
    """A number of packs that no packing of whole documents can do without.

    The largest of three bounds: all tokens; the documents longer than half a pack, which share none, with what cannot lie beside them
    (Martello and Toth's L2); and for k to 64 the documents by how many (k + 1)-ths of a pack they are longer than (Fekete and Schepers).
    """
    tokens = sizes * counts
    bounds = [-(-int(tokens.sum()) // max_length)]
    large = sizes * 2 > max_length
    for least in [0, *sizes[~large].tolist()]:
        beside = large & (sizes <= max_length - least)
        room = int(counts[beside].sum()) * max_length - int(tokens[beside].sum())
        small = int(tokens[~large & (sizes >= least)].sum())
        bounds.append(int(counts[large].sum()) + max(0, -(-(small - room) // max_length)))
    for k in range(1, 65):
        whole, rest = np.divmod(sizes * (k + 1), max_length)
        parts = np.where(rest == 0, sizes * k, whole * max_length)  # in units of 1 / (k · max_length) of a pack
        bounds.append(-(-int((parts * counts).sum()) // (k * max_length)))
    return max(bounds)


def best_fit(lengths: Ints, max_length: int, rooms_left: Ints) -> Ints:
    """The pack of each document (all longer than 0): the longest first, each into the fullest pack that still has room for it.

    Exact, yet by lengths and not by documents: a pack that takes one document of length n is, while it has room, again the fullest that
    takes n, so all documents of a length are placed by walking once over the room that packs have left.

    Args:
        rooms_left: room in the packs that are there already; new ones are numbered after them, as they are opened.
    """
    order = _order(max_length - lengths)
    sizes, counts = _runs(lengths[order])
    result = np.empty(len(lengths), np.int64)
    by_room = _order(rooms_left)
    values, numbers = _runs(rooms_left[by_room])
    rooms: dict[int, list[Ints]] = {  # room left → packs that have it
        room: [packs] for room, packs in zip(values.tolist(), np.split(by_room, np.cumsum(numbers)), strict=False) if room
    }
    mask = sum(1 << room for room in rooms)  # bit r: some pack has room r
    opened, begin = len(rooms_left), 0
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        bins: list[Ints] = []
        left = count
        while left:
            above = mask >> size
            if above:
                room = size + (above & -above).bit_length() - 1
                mask ^= 1 << room
                packs = np.concatenate(rooms.pop(room))
            else:
                room = max_length
                packs = np.arange(opened, opened + -(-left // (room // size)))
                opened += len(packs)
            each = room // size
            needed = -(-left // each)
            if needed < len(packs):
                mask |= 1 << room
                rooms[room] = [packs[needed:]]
                packs = packs[:needed]
            last = left - (len(packs) - 1) * each if needed == len(packs) else each
            bins.append(np.repeat(packs[:-1], each))
            bins.append(np.repeat(packs[-1:], last))
            for group, rest in ((packs[:-1], room - each * size), (packs[-1:], room - last * size)):
                if rest and len(group):
                    mask |= 1 << rest
                    rooms.setdefault(rest, []).append(group)
            left -= (len(packs) - 1) * each + last
        result[order[begin : begin + count]] = np.concatenate(bins)
        begin += count
    return result


def _order(key: Ints) -> Ints:
    """Stable argsort of keys in 0..2**31 - 1: one sort of 64-bit values, four times as fast as numpy's stable argsort."""
    assert len(key) < 2**31
    return np.sort(key << 32 | np.arange(len(key), dtype=np.int64)) & (2**32 - 1)


def _runs(values: Ints) -> tuple[NDArray[Any], NDArray[Any]]:
    """(value, how often) of runs of equal values."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    return values[starts], np.diff(starts, append=len(values))


def _check(lengths: Ints, max_length: int) -> None:
    assert not len(lengths) or (lengths.min() >= 0 and lengths.max() <= max_length), "the length policy comes before packing"
