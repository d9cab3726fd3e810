"""A decoder classifier whose last layer works for the pooled tokens only.

A label is read off one token of a text. All tokens are needed as keys and values of the last layer, but as queries, and in its MLP, only the pooled
ones: the others' outputs are thrown away. Exact, since a token's output in the last layer reaches no other token. Of four layers it saves a
fifth of a step's arithmetic, of 28 a thirtieth.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutputWithPast

from ftcli.core.models.varlen import DOCUMENTS, Documents

Tensor = torch.Tensor
ELSE = ("past_key_values", "inputs_embeds", "labels", "use_cache", "output_hidden_states", "output_attentions")
"""Arguments that ask for more than logits: the model's own forward answers them."""
_pooled: ContextVar[Tensor | None] = ContextVar("pooled", default=None)
"""Where the batch is pooled that this thread computes; two may compute one each."""


def why_not(model: PreTrainedModel) -> str | None:
    """Why the model is none of those that this module knows; None: it is."""
    if not isinstance(model, GenericForSequenceClassification):
        return f"{type(model).__name__} is no classifier that reads one token of each text"
    base = model.base_model
    layers = getattr(base, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not isinstance(getattr(base, "norm", None), nn.Module):
        return f"{type(base).__name__} has other parts than layers and norm"
    attention, last = getattr(layers[-1], "self_attn", None), layers[-1]
    wanted = ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "scaling")
    if not all(hasattr(attention, name) for name in wanted) or not all(
        hasattr(last, name) for name in ("input_layernorm", "post_attention_layernorm", "mlp")
    ):
        return f"{type(last).__name__} has other parts than attention, MLP and two norms"
    return None


class LastLayer:
    """The two functions that stand in for the model's own: its forward and its last layer's."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.layer: Any = model.base_model.layers[-1]
        self._model_forward = model.forward
        self._layer_forward = self.layer.forward
        self.forwards = {model: self._forward(), self.layer: self._last()}

    def _forward(self) -> Any:
        model: Any = self.model

        @wraps(self._model_forward)
        def forward(input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **more: Any) -> Any:
            if input_ids is None or any(more.get(name) is not None and more[name] is not False for name in ELSE):
                return self._model_forward(input_ids=input_ids, attention_mask=attention_mask, **more)
            token = _pooled.set(pooled_places(input_ids, model.config.get_text_config().pad_token_id))
            try:
                rest = {name: value for name, value in more.items() if name not in ELSE and name != "return_dict"}
                out = model.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, **rest)
            finally:
                _pooled.reset(token)
            return SequenceClassifierOutputWithPast(logits=model.score(out.last_hidden_state[:, 0]))

        return forward

    def _last(self) -> Any:
        @wraps(self._layer_forward)
        def forward(hidden_states: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Tensor:
            pooled = _pooled.get()
            if pooled is None:
                return self._layer_forward(hidden_states, attention_mask=attention_mask, **more)  # type: ignore[no-any-return]
            return pooled_layer(self.layer, hidden_states, more.get(DOCUMENTS, attention_mask), more["position_embeddings"], pooled)

        return forward


def pooled_places(ids: Tensor, padding: int | None) -> Tensor:
    """Where transformers pools: the last token that is not PAD, [rows]."""
    if padding is None:
        return torch.full((len(ids),), ids.shape[1] - 1, device=ids.device)
    places = torch.arange(ids.shape[1], device=ids.device, dtype=torch.int32)
    return (places * (ids != padding)).argmax(-1)


def pooled_layer(layer: Any, x: Tensor, mask: Tensor | Documents | None, turns: tuple[Tensor, Tensor], pooled: Tensor) -> Tensor:
    """The layer's output at `pooled` [texts], as [texts, 1, hidden].

    Args:
        x: [texts, width, hidden], or [1, tokens, hidden] where the texts stand side by side.
        mask: [texts or 1, 1, width, width]; None (causal); or where the texts are.
        pooled: the place in each text.
    """
    attention, (cos, sin) = layer.self_attn, turns
    rows, width = x.shape[:2]
    if isinstance(mask, Documents):
        each, place = torch.zeros_like(pooled), mask.offsets[:-1] + pooled
    else:
        each, place = torch.arange(rows, device=x.device), pooled
    normed = layer.input_layernorm(x)
    heads = (len(place), -1, attention.head_dim)
    q = _normed(attention, "q_norm", attention.q_proj(normed[each, place]).view(heads))
    k = _normed(attention, "k_norm", attention.k_proj(normed).view(rows, width, *heads[1:]))
    v = attention.v_proj(normed).view(rows, width, *heads[1:])
    turned = (part.expand(rows, -1, -1)[each, place][:, None] for part in (cos, sin))
    q, k = _turn(q, *turned), _turn(k, cos[:, :, None], sin[:, :, None])
    if isinstance(mask, Documents):
        until = (mask.offsets[:-1] + pooled + 1).tolist()
        texts = [slice(*bounds) for bounds in zip(mask.offsets.tolist(), until, strict=False)]
        out = torch.stack([_seen(attention, q[[text]], k[:, part], v[:, part], None) for text, part in enumerate(texts)])
    else:
        if mask is None:
            seen = (torch.arange(width, device=x.device) <= pooled[:, None])[:, None, None]
        else:
            seen = mask.expand(rows, -1, -1, -1)[each, :, place][:, :, None]
        out = _seen(attention, q, k, v, seen)
    x = x[each, place] + attention.o_proj(out.reshape(len(place), -1))
    x = x + layer.mlp(layer.post_attention_layernorm(x))
    return x[:, None]


def _seen(attention: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """One query of each row, `q` [rows, heads, size], over `k` and `v` [rows, width, fewer heads, size]."""
    grouped, dropped = q.shape[1] != k.shape[2], getattr(attention, "attention_dropout", 0.0) if attention.training else 0.0
    return functional.scaled_dot_product_attention(
        q[:, :, None], k.transpose(1, 2), v.transpose(1, 2), mask, dropped, scale=attention.scaling, enable_gqa=grouped
    )


def _normed(attention: nn.Module, name: str, heads: Tensor) -> Tensor:
    norm: Any = getattr(attention, name, None)
    normed: Tensor = heads if norm is None else norm(heads)
    return normed


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def logits_of(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> Tensor:
    """What the model says of a batch without its labels."""
    logits: Tensor = model(**{name: value for name, value in batch.items() if name != "labels"})["logits"]
    return logits
