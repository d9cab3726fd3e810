"""Right padding without a mask, for models that look back only.

A token that looks back never sees what stands behind its text, so a mask of right padding changes no output that is used. Without one, attention knows that
it is causal: no mask of rows × width × width is built and converted in every layer, and what lies ahead is not computed.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

Tensor = torch.Tensor


def why_not(model: PreTrainedModel, padded: list[Tensor]) -> str | None:
    """Why it cannot be tried.

    Args:
        padded: the masks of the batches for the proof; without padding in them it would prove nothing.
    """
    if model.config._attn_implementation != "sdpa":
        return f"attention is {model.config._attn_implementation}, not sdpa"
    if model.base_model is model:
        return "the model has no base"
    return None if any(bool((mask == 0).any()) for mask in padded) else "no row of the sample has padding"


def forwards(model: PreTrainedModel) -> dict[nn.Module, Any]:
    """A function for the base model, which every head calls."""
    base: Any = model.base_model
    original = base.forward

    @wraps(original)
    def forward(input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **more: Any) -> Any:
        cached = more.get("past_key_values") is not None or more.get("use_cache")
        if attention_mask is not None and not cached and right_padded(attention_mask):
            attention_mask = None
        return original(input_ids, attention_mask=attention_mask, **more)

    return {base: forward}


def right_padded(mask: Tensor) -> bool:
    """Whether ones stand before zeros in every row of a mask [rows, width], and every row begins with one."""
    return mask.ndim == 2 and bool((mask[:, 0] == 1).all()) and bool((mask[:, 1:] <= mask[:, :-1]).all())
