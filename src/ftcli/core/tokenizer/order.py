"""The order in which a tokenizer's model learned its tokens: merges of BPE by rank, pieces of Unigram by score."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from operator import itemgetter
from statistics import StatisticsError, correlation
from typing import Any, NamedTuple

NEAR = 0.01
"""Ranks, as a share of the merges, by which a part may come later: merges of the same score stand in any order (CodeShell: 701 tokens, by one rank)."""
OTHERWISE = 0.4
"""Share of neighbours that are out of order from which ids were not given by score at all; shuffled scores have 0.5."""


class Order(NamedTuple):
    """How many tokens merges make, or how many pieces have a score, and how many of them stand out of order, with one of them in words."""

    kind: str = ""
    learned: int = 0
    late: int = 0
    example: str = ""


def order(tokenizer: Any) -> Order:
    """What every trainer keeps: a merge comes behind those of its parts, and a piece has no higher score than that before it. Other models have no order."""
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    kind = type(model).__name__
    if kind not in {"BPE", "Unigram"}:
        return Order()
    document = json.loads(model.__getstate__())
    return _of_merges(document) if kind == "BPE" else _of_scores(document["vocab"])


def _of_merges(document: dict[str, Any]) -> Order:
    """A token counts as late if each of its merges has a part that is only made later. Such a merge was never learned there."""
    merges, prefix = document["merges"], document["continuing_subword_prefix"]
    products = [left + right.removeprefix(prefix) for left, right in merges] if prefix else list(map("".join, merges))
    ranks = dict(zip(reversed(products), range(len(products) - 1, -1, -1), strict=True))
    near, rank_of = int(NEAR * len(merges)), ranks.get
    early = [rank for rank, (left, right) in enumerate(merges, near) if rank_of(left, 0) > rank or rank_of(right, 0) > rank]
    if not early:
        return Order("merges", len(ranks))
    made, unmade = Counter(products), Counter(products[rank - near] for rank in early)
    late = [token for token, count in unmade.items() if count == made[token]]
    if not late:
        return Order("merges", len(ranks))
    rank = ranks[late[0]]
    part = max(merges[rank], key=lambda piece: rank_of(piece, -1))
    return Order("merges", len(ranks), len(late), f"merge {rank:,} makes {late[0]!r} of {part!r}, which only merge {ranks[part]:,} makes")


def _of_scores(pieces: list[list[Any]]) -> Order:
    """Neighbours whose scores rise. Ids that were given otherwise are none: then long pieces still have other scores than short ones, unless shuffled."""
    scored = [(piece, score) for piece, score in pieces if score]
    rising = [(before, behind) for before, behind in pairwise(scored) if before[1] < behind[1]]
    if not rising or (len(rising) > OTHERWISE * len(scored) and _of_length(scored)):
        return Order("scores", len(scored))
    (one, low), (other, high) = max(rising, key=lambda pair: pair[1][1] - pair[0][1])
    return Order("scores", len(scored), len(rising), f"{one!r} has {low:.2f}, {other!r} behind it {high:.2f}")


def _of_length(scored: list[tuple[str, float]]) -> bool:
    """Whether the rank of a score goes with the length of its piece, by more than four standard deviations of chance (of 32,000 pieces 0.022; real: 0.04 to 0.4)."""
    lengths = [len(piece) for piece, _ in sorted(scored, key=itemgetter(1))]
    try:
        return bool(abs(correlation(lengths, range(len(lengths)))) > 4 / len(lengths) ** 0.5)
    except StatisticsError:  # all of one length
        return False
