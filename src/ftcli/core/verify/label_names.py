"""Whether the texts of a split hold the names of their labels, which would be the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ftcli.core.storage.store import SplitData

ROWS, TOKENS = 1_000, 1_024
"""Rows of a split that are read, and tokens of each."""
FEWEST, LETTERS = 30, 3
"""Rows that must be left, and letters that a name must have."""
NO_WORD = re.compile(r"[\W_]+")


def named(split: SplitData, names: Sequence[str], pieces: Sequence[bytes]) -> tuple[float, float] | None:
    """Share of rows whose text holds the name of their own label as words, and the share that holds the name of another row's label, as all do that name all
    choices. None where too few rows have a label with a name of letters.

    Args:
        pieces: bytes of every token.
    """
    assert split.labels is not None
    rows = np.arange(len(split))
    if len(rows) > ROWS:
        rows = np.sort(np.random.default_rng(0).choice(len(rows), size=ROWS, replace=False))
    words = [_words(name) for name in names]
    known = np.array([sum(map(str.isalpha, name)) >= LETTERS for name in words], np.bool_)
    rows = rows[known[split.labels[rows]]]
    labels = split.labels[rows]
    other = np.roll(labels, 1)
    for turn in range(2, 20):  # another label for every row
        other = np.where(other == labels, np.roll(labels, turn), other)
    rows, labels, other = rows[other != labels], labels[other != labels], other[other != labels]
    if len(rows) < FEWEST:
        return None
    ids = split.rows(rows).input_ids
    found, foreign_found = 0, 0
    for place, (own, foreign) in enumerate(zip(labels.tolist(), other.tolist(), strict=True)):
        tokens = ids.row(place)[:TOKENS].tolist()
        text = _words(b"".join([pieces[token] for token in tokens if 0 <= token < len(pieces)]).decode("utf-8", "replace"))
        found += words[own] in text
        foreign_found += words[foreign] in text
    return found / len(rows), foreign_found / len(rows)


def _words(text: str) -> str:
    return f" {NO_WORD.sub(' ', text.casefold()).strip()} "
