"""A few short rows of the run, which stand for all where what is looked at does not depend on their length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ftcli.core.ragged import to_offsets
from ftcli.core.storage.label_flags import LabelFlags, label_codes
from ftcli.core.storage.store import Ragged, Rows, SplitData
from ftcli.core.targets import IGNORED

DRAW = 600


class Few(SplitData):
    """Rows in memory that look like a split."""

    def __init__(self, rows: Rows) -> None:
        self.name = "few"
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self._rows.input_ids.lengths

    @property
    def labels(self) -> NDArray[np.int64] | None:
        return self._rows.labels

    @property
    def numbers(self) -> NDArray[np.float32] | None:
        return self._rows.numbers

    @property
    def flags(self) -> LabelFlags | None:
        return None if self._rows.flags is None else LabelFlags(self._rows.flags.shape[1], [self._rows.flags])

    @property
    def packed(self) -> bool:
        return self._rows.seq_lengths is not None

    def rows(self, index: NDArray[np.int64] | list[int]) -> Rows:
        """Rows by number, as those of a split."""
        wanted = np.asarray(index, dtype=np.int64)
        have = self._rows
        return Rows(
            have.index[wanted],
            _gather(have.input_ids, wanted),
            None if have.labels is None else have.labels[wanted],
            None if have.seq_lengths is None else _gather(have.seq_lengths, wanted),
            None if have.targets is None else _gather(have.targets, wanted),
            flags=None if have.flags is None else have.flags[wanted],
            types=None if have.types is None else _gather(have.types, wanted),
            numbers=None if have.numbers is None else have.numbers[wanted],
        )


def short_rows(split: SplitData, seed: int, count: int, longest: int) -> Rows:
    """Up to `count` short rows that differ from each other in the first `longest` tokens, to which they are cut; of several labels, if there are.

    Rows shorter than two tokens are left out, since a language model learns nothing from them.
    """
    generator = np.random.default_rng(seed)
    drawn = generator.choice(len(split), size=min(len(split), DRAW), replace=False)
    rows = split.rows(drawn[np.argsort(split.lengths[drawn], kind="stable")])
    beginnings: dict[bytes, int] = {}
    for place in range(len(rows)):
        ids = rows.input_ids.row(place)[:longest]
        if len(ids) >= 2 or rows.labels is not None or rows.flags is not None or rows.numbers is not None:
            beginnings.setdefault(ids.tobytes(), place)
    places = list(beginnings.values())
    each = rows.labels if rows.flags is None else label_codes(rows.flags)
    if each is not None:  # one label after the other, so that a few rows have as many labels as they can
        labels = each[np.array(places, dtype=np.int64)]
        turn = np.array([int((labels[:number] == label).sum()) for number, label in enumerate(labels)])
        places = [places[number] for number in np.lexsort((np.arange(len(places)), turn))]
    chosen = np.array(places[:count], dtype=np.int64)
    return cut(Few(rows).rows(chosen), longest)


def cut(rows: Rows, longest: int) -> Rows:
    """`longest` tokens of every row, and what is left of its documents: its beginning, or a later part where only that has something to learn."""
    starts = [0 if rows.targets is None else first_learned(rows.targets.row(row), longest) for row in range(len(rows))]
    documents = None
    if rows.seq_lengths is not None:
        documents = _ragged([_within(rows.seq_lengths.row(row), start, longest) for row, start in enumerate(starts)])
    ids, targets, types = (
        None if column is None else _ragged([column.row(row)[start : start + longest] for row, start in enumerate(starts)])
        for column in (rows.input_ids, rows.targets, rows.types)
    )
    assert ids is not None
    return Rows(rows.index, ids, rows.labels, documents, targets, flags=rows.flags, types=types, numbers=rows.numbers)


def first_learned(targets: NDArray[np.int32], longest: int) -> int:
    """Where `longest` tokens begin that have something to learn (the first token of a text is no target): at the beginning, where they do."""
    learned = np.flatnonzero(targets[1:] != IGNORED) + 1
    return 0 if not len(learned) or learned[0] < longest else int(learned[0]) - longest // 2


def _within(documents: NDArray[np.int32], start: int, longest: int) -> NDArray[np.int32]:
    """Lengths of a row's documents when only `longest` tokens from `start` on are left."""
    ends = np.clip(np.cumsum(documents) - start, 0, longest)
    cut = np.diff(ends, prepend=0)
    return cut[cut > 0].astype(np.int32)


def _gather(column: Ragged, wanted: NDArray[np.int64]) -> Ragged:
    return _ragged([column.row(int(row)) for row in wanted])


def _ragged(pieces: list[NDArray[np.int32]]) -> Ragged:
    values = np.concatenate(pieces) if pieces else np.zeros(0, np.int32)
    return Ragged(values, to_offsets(np.array([len(piece) for piece in pieces], dtype=np.int64)))
