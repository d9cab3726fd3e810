"""What formats of bare tokens have in common: where texts end, how wide an id is, and what there is no place for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ftcli.contracts_export import ExportJob
from ftcli.core.storage.store import Rows, Store
from ftcli.errors import StoreError, UsageError


def texts(rows: Rows) -> NDArray[np.int64]:
    """Tokens of every text, in order: packed rows hold several."""
    return rows.input_ids.lengths if rows.seq_lengths is None else rows.seq_lengths.values.astype(np.int64)


def batches(store: Store, split: str, job: ExportJob) -> Iterator[Rows]:
    """The rows of a split as they lie in its files; tells the progress bar when a batch was dealt with.

    Raises:
        StoreError: the texts of packed rows do not add up to their rows.
    """
    for rows in store.split(split).batches():
        if int(texts(rows).sum()) != len(rows.input_ids.values):
            raise StoreError(
                f"{store.path}: the texts of packed rows in {split} do not add up to the rows' lengths", "Prepare the data again."
            )
        yield rows
        job.advance(len(rows))


def vocabulary(store: Store) -> int | None:
    """Entries of the tokenizer's vocabulary; None when the manifest does not tell."""
    size = store.manifest["tokenizer"].get("vocab_size")
    return None if size is None else int(size)


def narrowed(rows: Rows, kind: DTypeLike, split: str) -> NDArray[Any]:
    """The ids of all rows, joined, as little-endian `kind`.

    Raises:
        StoreError: an id does not fit.
    """
    ids = rows.input_ids.values
    limit = np.iinfo(np.dtype(kind)).max
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) > limit):
        where = int(np.flatnonzero((ids < 0) | (ids > limit))[0])
        row = int(rows.index[np.searchsorted(rows.input_ids.offsets, where, side="right") - 1])
        raise StoreError(
            f"row {row} of {split} has the id {int(ids[where])}, outside the vocabulary that the data were prepared with",
            "Prepare the data again with the tokenizer that made these ids.",
        )
    narrow: NDArray[Any] = ids.astype(np.dtype(kind).newbyteorder("<"))
    return narrow


def refuse_labels(store: Store, job: ExportJob, name: str, *, tokens_too: bool = False) -> None:
    """Raises `UsageError`: the rows have labels, and the format has no place for them. `tokens_too`: for a label a token it has one."""
    for split in () if job.tokens_only else job.splits:
        data = store.split(split)
        if data.labels is not None or data.flags is not None or data.numbers is not None or (data.targeted and not tokens_too):
            several = data.flags is not None or data.numbers is not None
            kind = "one label per token" if data.targeted else "labels or a number per row" if several else "one label per row"
            raise UsageError(
                f"{store.path} has {kind}, but {name} stores tokens only: what the model learns would silently change",
                f"Use --format jsonl{'' if several else ' or mds'}, or drop the labels with --tokens-only.",
            )
