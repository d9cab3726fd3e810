"""Whether texts that share a batch or a pack see each other, on this model, collator and attention."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from ftcli.contracts import Collator
from ftcli.core.forward import Forward, inputs_of, relative_change, spread
from ftcli.core.ragged import to_offsets
from ftcli.core.store import Ragged, Rows

MOST_ROWS = 2
MOST_DOCUMENTS = 6


def padding_change(result: Forward, rows: Rows, places: NDArray[np.bool_]) -> tuple[float, int]:
    """Largest change of a row's logits between the collated batch and the row alone without padding, in standard deviations, and the row's number.

    Args:
        places: where the tokens stand in the batch, [rows, width].
    """
    model = result.model
    together = _logits(model, result.batch)
    worst, where, unit = 0.0, int(rows.index[0]), spread(together)
    for row in range(len(rows)):
        ids = torch.from_numpy(rows.input_ids.row(row).astype(np.int64))[None].to(model.device)
        alone = _logits(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})[0]
        beside = together[row] if together.ndim == 2 else together[row][torch.from_numpy(places[row])]
        change = relative_change(alone, beside, unit)
        if change > worst:
            worst, where = change, int(rows.index[row])
    return worst, where


def leak(model: PreTrainedModel, collator: Collator, rows: Rows) -> tuple[float, int] | None:
    """Largest change of a document's logits between its pack and a pack of its own, in standard deviations, and the row it is in.

    Attention is isolated in training mode too: `use_cache` is off in both. The first documents of the first rows with several are looked at;
    None: no row has several.
    """
    assert rows.seq_lengths is not None
    several = [place for place in range(len(rows)) if len(rows.seq_lengths.row(place)) > 1][:MOST_ROWS]
    if not several:
        return None
    worst, where = 0.0, int(rows.index[several[0]])
    for place in several:
        ids, documents = rows.input_ids.row(place), rows.seq_lengths.row(place)
        together = _pack(model, collator, ids, documents)
        starts = to_offsets(documents.astype(np.int64))
        for start, stop in islice(pairwise(starts), MOST_DOCUMENTS):
            if stop - start < 2:
                continue
            alone = _pack(model, collator, ids[start:stop], np.array([stop - start], np.int32))
            change = relative_change(alone[: stop - start], together[start:stop], spread(together))
            if change > worst:
                worst, where = change, int(rows.index[place])
    return worst, where


def _pack(model: PreTrainedModel, collator: Collator, ids: np.ndarray, documents: np.ndarray) -> torch.Tensor:
    """Logits [tokens, vocabulary] of one pack."""
    pack = Rows(np.zeros(1, np.int64), Ragged(ids, np.array([0, len(ids)])), None, Ragged(documents, np.array([0, len(documents)])))
    return _logits(model, {name: value.to(model.device) for name, value in collator(pack).items()})[0]


def _logits(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(**inputs_of(batch)).logits.float()
    return logits
