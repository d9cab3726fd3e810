"""How well the tokens of a text tell its label: complement naive Bayes over tokens and pairs of neighbours, of a fixed sample. Numpy alone, 0.3 s."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ftcli.core.ragged import row_hash, take_ranges, to_offsets
from ftcli.core.storage.near_duplicates import near_pairs
from ftcli.core.storage.store import Ragged, SplitData

Ints = NDArray[np.int64]
ROWS, HELD = 4_000, 1_000
"""Rows of train that are drawn, and of a held-out split. A quarter of the train rows is not learned but asked."""
TOKENS = 128
"""Tokens of a row that are looked at, from its first."""
FEATURES, CELLS = 2**15, 2**22
"""Tokens and pairs that are kept, those of the most texts first, and these times labels: 16 MB. What only one text has tells nothing."""
FEW = 5
"""Rows of a label among those asked of train under which nothing is expected of it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows of a split with their labels and what their tokens say, of labels that are common enough."""

    rows: Ints
    labels: Ints
    guesses: Ints
    known: float
    """Share of the different tokens and pairs of its texts that the learned rows have."""

    def right(self, classes: int) -> NDArray[np.float64]:
        """By label, the share of its rows that was told rightly; 0 where it has none."""
        found = np.bincount(self.labels[self.labels == self.guesses], minlength=classes)
        share: NDArray[np.float64] = found / np.maximum(1, np.bincount(self.labels, minlength=classes))
        return share

    @property
    def accuracy(self) -> float:
        return float((self.labels == self.guesses).mean())

    def chance(self, classes: int) -> float:
        """Accuracy of as many guesses of each label that know nothing of the text."""
        labels, guesses = (np.bincount(found, minlength=classes) / len(found) for found in (self.labels, self.guesses))
        return float(labels @ guesses)


class LabelWords:
    """What is learned of three quarters of a sample of train."""

    def __init__(self, train: SplitData, classes: int) -> None:
        assert train.labels is not None
        self.classes = classes
        rows, texts = _drawn(train, ROWS)
        held = np.zeros(len(rows), np.bool_)
        held[np.random.default_rng(1).permutation(len(rows))[: len(rows) // 4]] = True
        self.learned = int((~held).sum())
        self._texts = _take(texts, np.flatnonzero(~held))
        self._fit(self._texts, train.labels[rows[~held]])
        rows, texts = self._unlearned(rows[held], _take(texts, np.flatnonzero(held)))
        self.common = np.bincount(train.labels[rows], minlength=classes) >= FEW
        self.train = self._ask(rows, texts, train.labels[rows])

    def ask(self, split: SplitData) -> Asked:
        assert split.labels is not None
        rows, texts = self._unlearned(*_drawn(split, HELD))
        return self._ask(rows, texts, split.labels[rows])

    def _unlearned(self, rows: Ints, texts: Ragged) -> tuple[Ints, Ragged]:
        """Without those that were learned, be it with a word changed: their labels are known by heart."""
        alone = ~np.isin(row_hash(texts.values, texts.lengths, 1), row_hash(self._texts.values, self._texts.lengths, 1))
        alone[near_pairs(texts, self._texts).rows] = False
        return rows[alone], _take(texts, np.flatnonzero(alone))

    def _fit(self, texts: Ragged, labels: Ints) -> None:
        row, key = _features(texts)
        keys, place, counts = np.unique(key, return_inverse=True, return_counts=True)
        self._all = keys
        kept = np.sort(np.argsort(-counts, kind="stable")[: min(FEATURES, CELLS // self.classes)])
        kept = kept[counts[kept] > 1]
        self._keys = keys[kept]
        number = np.full(len(keys), -1, np.int64)
        number[kept] = np.arange(len(kept))
        place = number[place]
        row, place = row[place >= 0], place[place >= 0]
        found = np.bincount(labels[row] * len(kept) + place, minlength=self.classes * len(kept)).astype(np.float32)
        found = found.reshape(self.classes, len(kept))
        others = found.sum(0) - found + 1
        weights = -np.log(others / others.sum(1, keepdims=True))
        weights /= np.abs(weights).sum(1, keepdims=True)
        weights[np.bincount(labels, minlength=self.classes) == 0] = -np.inf
        self._weights = np.ascontiguousarray(weights.T)

    def _ask(self, rows: Ints, texts: Ragged, labels: Ints) -> Asked:
        row, key = _features(texts)
        known = float(np.isin(key, self._all).mean()) if len(key) else 0.0
        there = np.isin(key, self._keys)
        row, place = row[there], np.searchsorted(self._keys, key[there])
        order = np.argsort(row, kind="stable")
        ends = to_offsets(np.bincount(row, minlength=len(rows)))
        place = place[order]
        scores = [self._weights[place[first:last]].sum(0) for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
        guesses = np.array([int(score.argmax()) for score in scores], np.int64)
        asked = self.common[labels]
        return Asked(rows[asked], labels[asked], guesses[asked], known)


def _drawn(split: SplitData, most: int) -> tuple[Ints, Ragged]:
    """Rows of a split whose beginnings are different texts."""
    rows = np.arange(len(split))
    if len(split) > most:
        rows = np.sort(np.random.default_rng(0).choice(len(split), size=most, replace=False))
    ids = split.rows(rows).input_ids
    lengths = np.minimum(ids.lengths, TOKENS)
    texts = Ragged(take_ranges(ids.values, ids.offsets[:-1], lengths), to_offsets(lengths))
    first = np.sort(np.unique(row_hash(texts.values, lengths, 1), return_index=True)[1])
    return rows[first], _take(texts, first)


def _take(texts: Ragged, chosen: Ints) -> Ragged:
    lengths = texts.lengths[chosen]
    return Ragged(take_ranges(texts.values, texts.offsets[:-1][chosen], lengths), to_offsets(lengths))


def _features(texts: Ragged) -> tuple[Ints, Ints]:
    """Each token and each pair of neighbours of each text once, as the number of the text and a key."""
    row = np.repeat(np.arange(len(texts)), texts.lengths)
    ids = texts.values.astype(np.int64)
    same = row[1:] == row[:-1]
    pairs = ((ids[:-1] + 1) << 32 | ids[1:])[same]
    rows, keys = np.concatenate([row, row[1:][same]]), np.concatenate([ids, pairs])
    order = np.lexsort((keys, rows))
    rows, keys = rows[order], keys[order]
    first = np.ones(len(rows), np.bool_)
    first[1:] = (np.diff(rows) != 0) | (np.diff(keys) != 0)
    return rows[first], keys[first]
