"""Rows as `ftcli inspect` shows them: every token with its text, whether it is learned, documents, label, and what the length policy did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ftcli.core.storage.excerpt import document_starts
from ftcli.core.storage.store import Rows
from ftcli.core.targets import IGNORED

if TYPE_CHECKING:
    from ftcli.contracts import Task
    from ftcli.core.tokenizer.spelling import Spelling


@dataclass(frozen=True, slots=True)
class Looked:
    """Rows of one split.

    Args of every row: `labels` names, `notes` sentences, `places` where it comes from when it has no number.
    """

    split: str
    rows: Rows
    task: Task | None
    """None: what is learned is unknown."""
    label_names: Sequence[str | None] | None = None
    """A name a row."""
    label_ids: Sequence[int | None] | None = None
    notes: Mapping[int, list[str]] = field(default_factory=dict)
    """By place in `rows`."""
    places: Sequence[str] | None = None
    """File and part of it, of rows whose number is unknown."""
    total: int | None = None
    """Rows of the split, where that is known."""


def together(names: Iterable[str]) -> str:
    """Any number of labels in words."""
    return ", ".join(names) or "none"


def described(looked: Looked, spelling: Spelling | None) -> list[dict[str, Any]]:
    """One dictionary a row, for JSON, terminal and page:

    row         number in the split, or None; place: file and part of it then
    ids, texts  a token each; texts is None without a tokenizer
    special     places of special tokens
    labels      a token each, -100 where nothing is learned; None where the task does not learn tokens
    label, label_id    of any number of labels the names, joined, and no id
    documents   tokens of each
    types       of rows of two texts, 0 for each token of the first and 1 for each of the second; None of others
    notes       sentences
    """
    rows = looked.rows
    targets = None
    if looked.task is not None and not looked.task.needs_labels:
        targets = looked.task.labels(rows)
    found = []
    for place in range(len(rows)):
        ids = rows.input_ids.row(place).tolist()
        ends = document_starts(rows, place).tolist()
        numbered = looked.places is None
        start = int(rows.input_ids.offsets[place])
        found.append(
            {
                "split": looked.split,
                "row": int(rows.index[place]) if numbered else None,
                "place": None if looked.places is None else looked.places[place],
                "tokens": len(ids),
                "ids": ids,
                "texts": None if spelling is None else [text for low, high in pairwise(ends) for text in spelling.texts(ids[low:high])],
                "special": [] if spelling is None else [at for at, number in enumerate(ids) if spelling.is_special(number)],
                "labels": None if targets is None else targets[start : start + len(ids)].tolist(),
                "label": None if looked.label_names is None else looked.label_names[place],
                "label_id": None if looked.label_ids is None else looked.label_ids[place],
                "documents": np.diff(ends).tolist(),
                "types": None if rows.types is None else rows.types.row(place).tolist(),
                "notes": looked.notes.get(place, []),
            }
        )
    return found


def learned(row: Mapping[str, Any]) -> int | None:
    """Tokens of a described row that are learned; None where the task does not learn tokens."""
    return None if row["labels"] is None else sum(label != IGNORED for label in row["labels"])
