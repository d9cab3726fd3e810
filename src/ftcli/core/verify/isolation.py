"""Whether texts that share a batch or a pack see each other, on this model, collator and attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from ftcli.core.ragged import to_offsets
from ftcli.core.storage.store import Ragged, Rows
from ftcli.core.verify.forward import Forward, inputs_of, relative_change, spread

MOST_ROWS = 2
MOST_DOCUMENTS = 6
MOST_TOKENS = 512
"""Tokens of the documents that are compared, so that a long pack of a large model costs seconds."""
MOST_WORK = 2 * 10**10
"""Tokens × parameters of the rows that are looked at alone: 10 s of two cores. 200 tokens of a model of 100 million parameters."""


def padding_change(
    result: Forward, rows: Rows, places: NDArray[np.bool_], collate: Callable[[int], Mapping[str, torch.Tensor]] | None = None
) -> tuple[float, int, int]:
    """Largest change of a row's logits between the collated batch and the row alone without padding, in standard deviations; the row's place in the
    batch, and how many rows were looked at: all, or of a large model the shortest, which have most padding, and the longest.

    Args:
        places: where the tokens stand in the batch, [rows, width].
        collate: the batch that the run makes of a row alone, which is then taken as it is, padding and all.
    """
    model = result.model
    together = _logits(model, result.batch)
    worst, where, unit = 0.0, 0, spread(together)
    looked_at = _affordable(rows.input_ids.lengths, sum(parameter.numel() for parameter in model.parameters()))
    for row in looked_at:
        ids = torch.from_numpy(rows.input_ids.row(row).astype(np.int64))[None].to(model.device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if rows.types is not None:
            inputs["token_type_ids"] = torch.from_numpy(rows.types.row(row).astype(np.int64))[None].to(model.device)
        if collate is not None:
            inputs = {name: value.to(model.device) for name, value in collate(row).items()}
        alone = _logits(model, inputs)[0]
        if collate is not None and together.ndim == 3:
            alone = alone[: len(rows.input_ids.row(row))]  # padding is on the right
        beside = together[row] if together.ndim == 2 else together[row][torch.from_numpy(places[row])]
        change = relative_change(alone, beside, unit)
        if change > worst:
            worst, where = change, row
    return worst, where, len(looked_at)


def _affordable(lengths: NDArray[np.int64], parameters: int) -> list[int]:
    order = np.argsort(lengths, kind="stable")
    spent = np.cumsum(lengths[order]) * parameters
    most = max(4, int((spent <= MOST_WORK).sum()))
    return sorted({*order[:most].tolist(), int(order[-1])})


def leak(model: PreTrainedModel, collator: Callable[[Rows], Mapping[str, torch.Tensor]], rows: Rows) -> tuple[float, int, int] | None:
    """Largest change of a document's logits between its pack and a pack of its own, in standard deviations; the row it is in and its number there.

    `use_cache` is what the run sets, in both. The first documents of the first rows with several are looked at; None: no row has several.
    """
    assert rows.seq_lengths is not None
    several = [place for place in range(len(rows)) if len(rows.seq_lengths.row(place)) > 1][:MOST_ROWS]
    if not several:
        return None
    worst, where, which = 0.0, int(rows.index[several[0]]), 0
    for place in several:
        documents = rows.seq_lengths.row(place)
        starts = to_offsets(documents.astype(np.int64))
        most = min(len(documents), max(2, int((starts[1:] <= MOST_TOKENS).sum())))
        together = _pack(model, collator, rows, place, (0, most))
        for number, (start, stop) in enumerate(islice(pairwise(starts), min(most, MOST_DOCUMENTS))):
            if stop - start < 2:
                continue
            alone = _pack(model, collator, rows, place, (number, number + 1))
            change = relative_change(alone[: stop - start], together[start:stop], spread(together))
            if change > worst:
                worst, where, which = change, int(rows.index[place]), number
    return worst, where, which


def _pack(
    model: PreTrainedModel, collator: Callable[[Rows], Mapping[str, torch.Tensor]], rows: Rows, place: int, part: tuple[int, int]
) -> torch.Tensor:
    """Logits [tokens, vocabulary] of a pack of some documents, from one to another, of a row."""
    assert rows.seq_lengths is not None
    documents = rows.seq_lengths.row(place)
    start, stop = to_offsets(documents.astype(np.int64))[list(part)]

    def of(column: Ragged | None) -> Ragged | None:
        return None if column is None else _one(column.row(place)[start:stop])

    ids = _one(rows.input_ids.row(place)[start:stop])
    pack = Rows(np.zeros(1, np.int64), ids, seq_lengths=_one(documents[slice(*part)]), targets=of(rows.targets), types=of(rows.types))
    return _logits(model, {name: value.to(model.device) for name, value in collator(pack).items()})[0]


def _one(values: NDArray[Any]) -> Ragged:
    return Ragged(values, np.array([0, len(values)]))


def _logits(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(**inputs_of(batch)).logits.float()
    return logits
