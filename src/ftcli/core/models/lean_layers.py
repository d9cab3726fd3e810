"""Which decoder layers are of the kind that `lean_layer` computes, and the functions that stand in for theirs."""

from __future__ import annotations

from functools import wraps
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from transformers import PreTrainedModel

from ftcli.core.models.lean_layer import Shape, lean_layer
from ftcli.core.models.varlen import DOCUMENTS

Tensor = torch.Tensor
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
PRODUCTS = ("gate_proj", "up_proj", "down_proj")
_MADE: WeakSet[Any] = WeakSet()
"""What `forwards` gave, while it is in use; a mark on the function itself would be copied by `wraps` to what stands in for it."""


def is_lean(forward: Any) -> bool:
    """Whether it is one of `forwards`, which compute what the layer itself does; what stands in for them (the last layer's) is none."""
    return forward in _MADE


def why_not(model: PreTrainedModel) -> str | None:
    """Why no layer can be replaced; None: all can be tried."""
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        return f"{type(model.base_model).__name__} is no decoder of the kind of Llama and Qwen"
    if model.config._attn_implementation != "sdpa":
        return f"attention is {model.config._attn_implementation}, not sdpa"
    rope = getattr(model.config, "rope_parameters", None) or {}
    if "llama_4_scaling_beta" in rope:  # Ministral 3: nothing of it shows in rows shorter than `original_max_position_embeddings`
        return "queries are multiplied by what depends on their place"
    for number, layer in enumerate(layers):
        if reason := _other(layer):
            return f"layer {number} {reason}"
    return None


def forwards(model: PreTrainedModel) -> dict[nn.Module, Any]:
    """A function for every layer."""
    layers: Any = model.base_model.layers
    return {layer: _forward(layer) for layer in layers}


def _other(layer: Any) -> str | None:
    """How a layer differs from attention of four projections, an MLP of three and two norms, all float32 and trained."""
    attention: Any = getattr(layer, "self_attn", None)
    mlp: Any = getattr(layer, "mlp", None)
    parts: list[Any] = [getattr(attention, name, None) for name in PROJECTIONS] + [getattr(mlp, name, None) for name in PRODUCTS]
    if any(type(part) is not nn.Linear for part in parts):
        return "has other projections (LoRA, quantised, mixture of experts …)"
    if any(part.bias is not None for part in parts[3:]) or len({part.bias is None for part in parts[:3]}) > 1:
        return "has biases behind attention or MLP"
    if any(getattr(attention, name, None) is None for name in ("head_dim", "scaling")):
        return "does not say its head size"
    if not getattr(attention, "is_causal", True):
        return "looks ahead"
    norms: list[Any] = [getattr(layer, name, None) for name in ("input_layernorm", "post_attention_layernorm")]
    norms += [norm for name in ("q_norm", "k_norm") if (norm := getattr(attention, name, None)) is not None]
    if any(not hasattr(norm, "variance_epsilon") for norm in norms) or len(norms) % 2:
        return "has other norms than RMSNorm"
    if any(len(norm.weight) != attention.head_dim for norm in norms[2:]):
        return "has norms over all heads"
    modules = [*parts, *norms, layer, attention, mlp]
    if any(
        getattr(module, name)
        for module in modules
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    ):
        return "has hooks"
    known = {id(weight) for part in (*parts, *norms) for weight in part.parameters()}
    weights = list(layer.parameters())
    if {id(weight) for weight in weights} != known:
        return "has more weights than attention, MLP and norms"
    if not all(weight.requires_grad for weight in weights):
        return "has frozen weights"
    return None if isinstance(mlp.act_fn, nn.SiLU) or type(mlp.act_fn).__name__ == "SiLUActivation" else "has another activation than SiLU"


def _forward(layer: Any) -> Any:
    original = layer.forward
    attention, mlp = layer.self_attn, layer.mlp
    q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    norms = (layer.input_layernorm, layer.post_attention_layernorm, q_norm, k_norm)
    shape = Shape(
        heads=attention.q_proj.out_features // attention.head_dim,
        kv_heads=attention.k_proj.out_features // attention.head_dim,
        head_dim=attention.head_dim,
        scale=attention.scaling,
        norm_eps=tuple(0.0 if norm is None else norm.variance_epsilon for norm in norms),  # type: ignore[arg-type]
    )

    @wraps(original)
    def forward(hidden_states: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Tensor:
        turns = more.get("position_embeddings")
        if turns is None or more.get("past_key_values") is not None or not torch.is_grad_enabled():
            return original(hidden_states, attention_mask=attention_mask, **more)  # type: ignore[no-any-return]
        q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
        return lean_layer(
            hidden_states, *turns, more.get(DOCUMENTS, attention_mask), shape, layer.input_layernorm.weight, q.weight, k.weight, v.weight, q.bias, k.bias, v.bias,
            None if q_norm is None else q_norm.weight, None if k_norm is None else k_norm.weight, attention.o_proj.weight,
            layer.post_attention_layernorm.weight, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight,
        )  # fmt: skip

    _MADE.add(forward)
    return forward
