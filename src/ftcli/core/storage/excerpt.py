"""A few short rows of the audited ones, so that what needs no full batch costs little: gradients of the inputs, seeds, scaling."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ftcli.core.ragged import to_offsets
from ftcli.core.storage.few_rows import Few, cut, first_learned
from ftcli.core.storage.store import Ragged, Rows

MOST_ROWS = 3
MOST_TOKENS = 96
"""Of a row. Every audited model reaches that far in one layer or two; the smallest sliding window in transformers' defaults is 128."""
MOST_DOCUMENTS = 4
DOCUMENT_TOKENS = 24


def excerpt(rows: Rows) -> Rows:
    """Three short rows of different lengths, cut after `MOST_TOKENS`; of packed rows the beginnings of the first documents of one pack."""
    return _documents(rows) if rows.seq_lengths is not None else _rows(rows)


def _rows(rows: Rows) -> Rows:
    lengths = rows.input_ids.lengths
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 2] if (lengths > 2).any() else order
    _, first = np.unique(lengths[order], return_index=True)
    chosen = order[np.sort(first)][:MOST_ROWS]
    return cut(Few(rows).rows(chosen), MOST_TOKENS)


def _documents(rows: Rows) -> Rows:
    assert rows.seq_lengths is not None
    most = max(range(len(rows)), key=lambda row: len(rows.seq_lengths.row(row)))  # type: ignore[union-attr]
    ids, starts = rows.input_ids.row(most), to_offsets(rows.seq_lengths.row(most).astype(np.int64))
    targets = None if rows.targets is None else rows.targets.row(most)
    begins = [
        (start + (0 if targets is None else first_learned(targets[start:stop], DOCUMENT_TOKENS)), stop)
        for start, stop in pairwise(starts.tolist())
    ]
    places = [(start, min(stop, start + DOCUMENT_TOKENS)) for start, stop in begins if stop - start > 2]
    places = places[:MOST_DOCUMENTS] or [(0, min(len(ids), DOCUMENT_TOKENS))]
    pieces = [ids[start:stop] for start, stop in places]
    documents = np.array([len(piece) for piece in pieces], np.int32)
    return Rows(
        rows.index[most : most + 1],
        _joined([np.concatenate(pieces)]),
        None if rows.labels is None else rows.labels[most : most + 1],
        _joined([documents]),
        None if targets is None else _joined([np.concatenate([targets[start:stop] for start, stop in places])]),
        flags=None if rows.flags is None else rows.flags[most : most + 1],
    )


def document_starts(rows: Rows, row: int) -> NDArray[np.int64]:
    """Where the documents of a row begin, and its end."""
    lengths = [len(rows.input_ids.row(row))] if rows.seq_lengths is None else rows.seq_lengths.row(row)
    return to_offsets(np.asarray(lengths, np.int64))


def _joined(parts: list[NDArray[np.int32]]) -> Ragged:
    return Ragged(np.concatenate(parts), to_offsets(np.array([len(part) for part in parts], np.int64)))
