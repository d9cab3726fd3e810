"""The order in which a tokenizer's model learned its tokens: merges of BPE by rank, pieces of Unigram by score."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from operator import itemgetter
from statistics import StatisticsError, correlation
from typing import Any, NamedTuple

BYTE = re.compile(r"<0x[0-9A-F]{2}>")
NEAR = 0.01
"""Ranks, as a share of the merges, by which a part may come later: merges of the same score stand in any order (CodeShell: 701 tokens, by one rank)."""
OTHERWISE = 0.4
"""Share of neighbours that are out of order from which ids were not given by rank or score at all (RoBERTa's by frequency: 0.5); shuffled ones have 0.5."""
MERGES, IDS, SCORES, SAME = (
    "merges are out of order",
    "merges have ids out of order",
    "scores are out of order",
    "pieces have the same score",
)
SHARE = {MERGES: 0.001, IDS: 0.02, SCORES: 0.02, SAME: 0.5}
"""From which no training leaves them so. 58 real BPE models have no merge before its parts (one that was extended by hand 0.00005), with the second half of the merges shuffled
0.006 to 0.12; the ids of 60 fall from one merge to the next in at most 0.0009 (those given otherwise, in 0.48 and more), with the last tenth shuffled in 0.05. Scores of 12 real
Unigram models rise in 0 to 0.005, with the last tenth shuffled in 0.04; at most 0.045 of the pieces share one, and all where a conversion has lost them."""
FEWEST = 5
"""Tokens out of order; fewer are taken for added by hand."""


class Order(NamedTuple):
    """What is to be in order, of how many tokens, and how many of them are not, with one of them in words."""

    kind: str = ""
    learned: int = 0
    late: int = 0
    example: str = ""

    @property
    def broken(self) -> bool:
        return self.late > max(FEWEST, self.learned * SHARE.get(self.kind, 1))


def order(tokenizer: Any) -> Order:
    """What every trainer keeps: a merge comes behind those of its parts, and a piece has no higher score than that before it. Other models have no order."""
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    kind = type(model).__name__
    if kind not in {"BPE", "Unigram"}:
        return Order()
    document = json.loads(model.__getstate__())
    if kind == "BPE":
        made, numbered = _of_merges(document), _of_ids(document)
        return numbered if numbered.broken and not made.broken else made
    added = tokenizer.get_added_vocab()
    same = _of_equals([piece for piece in document["vocab"] if piece[0] not in added and not BYTE.fullmatch(piece[0])])
    return same if same.broken else _of_scores(document["vocab"])


def _products(document: dict[str, Any]) -> list[str]:
    prefix = document["continuing_subword_prefix"]
    return [left + right.removeprefix(prefix) for left, right in document["merges"]] if prefix else list(map("".join, document["merges"]))


def _of_merges(document: dict[str, Any]) -> Order:
    """A token counts as late if each of its merges has a part that is only made later. Such a merge was never learned there."""
    merges, products = document["merges"], _products(document)
    ranks = dict(zip(reversed(products), range(len(products) - 1, -1, -1), strict=True))
    near, rank_of = int(NEAR * len(merges)), ranks.get
    early = [rank for rank, (left, right) in enumerate(merges, near) if rank_of(left, 0) > rank or rank_of(right, 0) > rank]
    if not early:
        return Order(MERGES, len(ranks))
    made, unmade = Counter(products), Counter(products[rank - near] for rank in early)
    late = [token for token, count in unmade.items() if count == made[token]]
    if not late:
        return Order(MERGES, len(ranks))
    rank = ranks[late[0]]
    part = max(merges[rank], key=lambda piece: rank_of(piece, -1))
    return Order(MERGES, len(ranks), len(late), f"merge {rank:,} makes {late[0]!r} of {part!r}, which only merge {ranks[part]:,} makes")


def _of_ids(document: dict[str, Any]) -> Order:
    """Merges whose token has a lower id than that of the merge before it: trainers number tokens as they make them."""
    vocabulary = document["vocab"]
    numbered = [(vocabulary[token], token) for token in _products(document) if token in vocabulary]
    falling = [(before, behind) for before, behind in pairwise(numbered) if before[0] > behind[0]]
    if not falling or len(falling) > OTHERWISE * len(numbered):
        return Order(IDS, len(numbered))
    (high, one), (low, other) = max(falling, key=lambda pair: pair[0][0] - pair[1][0])
    return Order(IDS, len(numbered), len(falling), f"{other!r} ({low:,}) is merged behind {one!r} ({high:,})")


def _of_equals(pieces: list[list[Any]]) -> Order:
    """Pieces of several characters and of different lengths, that all have one score: which of them a text becomes is then left to chance."""
    several = [(piece, score) for piece, score in pieces if len(piece) > 1]
    if len({len(piece) for piece, _ in several}) < 2:
        return Order(SAME, len(several))
    (score, count), *_ = Counter(score for _, score in several).most_common(1)
    return Order(SAME, len(several), count, f"{score:g}")


def _of_scores(pieces: list[list[Any]]) -> Order:
    """Neighbours whose scores rise. Ids that were given otherwise are none: then long pieces still have other scores than short ones, unless shuffled."""
    scored = [(piece, score) for piece, score in pieces if score]
    rising = [(before, behind) for before, behind in pairwise(scored) if before[1] < behind[1]]
    if not rising or (len(rising) > OTHERWISE * len(scored) and _of_length(scored)):
        return Order(SCORES, len(scored))
    (one, low), (other, high) = max(rising, key=lambda pair: pair[1][1] - pair[0][1])
    return Order(SCORES, len(scored), len(rising), f"{one!r} has {low:.2f}, {other!r} behind it {high:.2f}")


def _of_length(scored: list[tuple[str, float]]) -> bool:
    """Whether the rank of a score goes with the length of its piece, by more than four standard deviations of chance (of 32,000 pieces 0.022; real: 0.04 to 0.4)."""
    lengths = [len(piece) for piece, _ in sorted(scored, key=itemgetter(1))]
    try:
        return bool(abs(correlation(lengths, range(len(lengths)))) > 4 / len(lengths) ** 0.5)
    except StatisticsError:  # all of one length
        return False
