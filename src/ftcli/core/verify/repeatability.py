"""Whether the same comes out twice: the batch with one seed, and the forward pass in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from transformers import PreTrainedModel, set_seed

from ftcli.core.storage.store import Rows
from ftcli.core.verify.forward import inputs_of, relative_change, spread


def batch_repeats(collate: Callable[[Rows], Mapping[str, torch.Tensor]], rows: Rows, seed: int) -> str:
    """The name of a tensor that differs between two batches of the same rows and seed; empty where none does."""
    made = []
    for _ in range(2):
        set_seed(seed)
        made.append(collate(rows))
    one, other = made
    return next((name for name in one if name not in other or not _same(one[name], other[name])), "")


def forward_change(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> float:
    """Largest change of a logit between two forward passes in evaluation mode, in standard deviations. Dropout that is on shows here."""
    with torch.no_grad():
        one, other = (model(**inputs_of(batch)).logits.float() for _ in range(2))
    return relative_change(one, other, spread(one))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool((one == other).all())
