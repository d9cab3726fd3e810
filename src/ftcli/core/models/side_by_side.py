"""A model that computes the texts of a batch side by side: packed ones without a mask, padded ones without their padding.

The base model's `forward` says where texts begin and end, and transformers' sdpa attention, when it is told so, attends inside of each. Padding is
taken out before the first layer, and zeros are put in its place behind the last one, so that heads find what they know: rows and widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ftcli.core.models import varlen
from ftcli.core.models.adapter_base import inner
from ftcli.core.models.layers import remembers, shortest_window
from ftcli.core.models.lean_mask import right_padded
from ftcli.core.models.varlen import DOCUMENTS, Documents, attend
from ftcli.core.targets import IGNORED

Tensor = torch.Tensor
CACHED = ("past_key_values", "inputs_embeds", "use_cache", "output_hidden_states", "output_attentions")
_unmasked: ContextVar[bool] = ContextVar("unmasked", default=False)
_told: ContextVar[Documents | None] = ContextVar("told", default=None)


@dataclass(frozen=True, slots=True)
class Texts:
    """What stands side by side in a run."""

    longest: int
    """Tokens of its longest row."""
    unpad: bool = False
    """Rows of one text each, whose padding is to be left out; else rows hold several texts."""
    needed: bool = True
    """The run was planned for rows without padding; else it goes on with padding where this cannot be."""


def why_not(model: Any, batches: Sequence[Mapping[str, Tensor]], texts: Texts, *, sixteen_bits: bool) -> str | None:
    """Why it cannot be tried.

    Args:
        batches: those of the proof; without several texts in a row they would prove nothing.
        sixteen_bits: whether attention gets 16-bit numbers, which the kernel of a GPU needs.
    """
    config = model.config.get_text_config()
    if remembers(model):
        return "some of its layers are no attention alone, and carry what they keep from text to text"
    if model.config._attn_implementation != "sdpa":
        return f"attention is {model.config._attn_implementation}, not sdpa"
    if base_of(model) is None:
        return "the model has no base"
    window = shortest_window(config)
    if window is not None and window < texts.longest:
        return f"attention reaches back {window} tokens, and rows have up to {texts.longest}"
    if _on_gpu(model) and not sixteen_bits:
        return "the GPU's kernel takes 16-bit numbers"
    several = texts.unpad or any(learned_texts(batch) > len(batch["labels"]) for batch in batches)
    return None if several else "no row of the sample holds several texts"


def _on_gpu(model: nn.Module) -> bool:
    return next(model.parameters()).is_cuda


def learned_texts(batch: Mapping[str, Tensor]) -> int:
    """Texts with a target: padding is none. Without positions nothing says where texts begin in a row."""
    if "position_ids" not in batch:
        return len(batch["labels"])
    lengths = Documents.of_positions(batch["position_ids"]).lengths
    return sum(bool(known.any()) for known in torch.split(batch["labels"].flatten().ne(IGNORED), lengths))


def base_of(model: Any) -> Any:
    """The module that gives states to the head, below adapters too; None: there is none."""
    own = inner(model)
    return None if own.base_model is own else own.base_model


def keep_out_of_compiled_code(*, out: bool) -> None:
    """From here on compiled code calls attention inside texts and compiles none of it, as a CPU's has other texts in every batch; or it takes it in.

    A GPU's is one kernel for any texts: with it a layer is one graph, and a batch of Qwen3-0.6B on an H200 takes 0.217 s in place of 0.251.
    """
    global attend  # noqa: PLW0603 - torch's compiler is too dear to import where nothing is compiled
    attend = torch.compiler.disable(varlen.attend) if out else varlen.attend  # type: ignore[no-untyped-call]


def forwards(model: Any, *, unpad: bool) -> dict[nn.Module, Any]:
    """A function for the base model."""
    AttentionInterface.register("sdpa", _attention)
    AttentionMaskInterface.register("sdpa", _mask)
    base = base_of(model)
    original = base.forward

    @wraps(original)
    def forward(
        input_ids: Tensor | None = None, attention_mask: Tensor | None = None, position_ids: Tensor | None = None, **more: Any
    ) -> Any:
        if input_ids is not None and not any(more.get(name) is not None and more[name] is not False for name in CACHED):
            if attention_mask is None and position_ids is not None:
                with _without_mask():
                    more[DOCUMENTS] = _told.get() or Documents.of_positions(position_ids)
                    return original(input_ids, position_ids=position_ids, **more)
            if unpad and attention_mask is not None and position_ids is None:
                documents = _told.get() or (Documents.of_mask(attention_mask) if right_padded(attention_mask) else None)
                if documents is not None and documents.places is not None:
                    return _unpadded(base, original, input_ids, documents, documents.places, more)
        if position_ids is not None:
            more["position_ids"] = position_ids
        return original(input_ids, attention_mask=attention_mask, **more)

    return {base: forward}


def _unpadded(base: Any, original: Any, ids: Tensor, documents: Documents, places: Tensor, more: Mapping[str, Any]) -> Any:
    positions = (places % ids.shape[1])[None]
    if more.get("token_type_ids") is not None:
        more = {**more, "token_type_ids": more["token_type_ids"].flatten()[places][None]}
    with _without_mask():
        out = original(ids.flatten()[places][None], position_ids=positions, **{**more, DOCUMENTS: documents})
    states = out.last_hidden_state
    if states.shape[1] == positions.shape[1]:  # the last layer may have computed one token a text only: those are rows already
        padded = states.new_zeros(ids.numel(), states.shape[-1]).index_copy(0, places, states[0]).view(*ids.shape, -1)
        out.last_hidden_state = padded
        if getattr(out, "pooler_output", None) is not None:  # of the first token of each row, as encoders have it
            out.pooler_output = base.pooler(padded)
    return out


@contextmanager
def told(lengths: NDArray[np.int64] | None, batch: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the model knows where the texts of the batch are, and need not look: on a GPU the host would wait there for all that it asked for before.

    Args:
        lengths: tokens of each text, row after row; None: it has to look.
    """
    if lengths is None:
        yield
        return
    ids = batch["input_ids"]
    token = _told.set(Documents.known(lengths, ids.shape[1] if "attention_mask" in batch else None, ids.device))
    try:
        yield
    finally:
        _told.reset(token)


@contextmanager
def _without_mask() -> Iterator[None]:
    token = _unmasked.set(True)
    try:
        yield
    finally:
        _unmasked.reset(token)


def _mask(*args: Any, **more: Any) -> Any:
    """transformers' `sdpa_mask`, but none where texts are told apart without one."""
    return None if _unmasked.get() else sdpa_mask(*args, **more)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, Any]:
    """transformers' `sdpa_attention_forward`, but inside each text where the base model says where they are."""
    documents: Documents | None = more.pop(DOCUMENTS, None)
    if documents is None:
        found: tuple[Tensor, Any] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more
        )
        return found
    if attention_mask is not None or any(more.get(name) is not None for name in ("position_bias", "softcap", "s_aux", "cache")):
        raise ValueError("attention with a bias of its own")
    causal = more.get("is_causal")
    causal = bool(getattr(module, "is_causal", True)) if causal is None else bool(causal)
    return attend(query, key, value, documents, scale=scaling, causal=causal, dropout=dropout), None
