"""What the configuration says of every layer, and of how long a text may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FEED_FORWARD = ("intermediate_size", "ffn_dim", "hidden_dim", "n_inner")
"""What families call the width of their feed-forward; without one it is four times the hidden size."""
COUNT_FROM_PAD = frozenset(
    [
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    ]
)
"""Families whose positions begin behind PAD's id, as RoBERTa's: of 514 a text may have 512."""
UNREADABLE = (AttributeError, TypeError, ValueError, LookupError)
"""What `layers` raises for a configuration that says it in a way of its own, or is not one of a transformer."""


@dataclass(frozen=True)
class Layer:
    """One layer of a transformer.

    Attributes:
        heads, shared: of queries; of keys and values.
        width: numbers of one head.
        reach: tokens that a token sees at most; None: its whole text; 0: a layer without attention (linear attention, Mamba, convolution).
        inner: numbers between the matrices of its feed-forward.
    """

    heads: int
    shared: int
    width: int
    reach: int | None
    inner: int


def layers(config: Any) -> list[Layer]:
    """The layers of a text model. They may differ (Gemma 4): transformers then refuses to name one number for all of them.

    Raises:
        AttributeError, TypeError, ValueError, LookupError: see `UNREADABLE`.
    """
    each = getattr(config, "per_layer_config", None)
    kinds = getattr(config, "layer_types", None) or []
    found = []
    for index in range(int(config.num_hidden_layers)):
        layer = config if each is None else each[index]
        heads = int(layer.num_attention_heads)
        width = getattr(layer, "head_dim", None) or int(config.hidden_size) // heads
        shared = getattr(layer, "num_key_value_heads", None) or heads
        kind = kinds[index] if index < len(kinds) else None
        inner = next((size for name in FEED_FORWARD if (size := getattr(layer, name, None))), 4 * int(config.hidden_size))
        if isinstance(inner, (list, tuple)):  # Gemma 3n has one for every layer
            inner = inner[index]
        found.append(Layer(heads=heads, shared=int(shared), width=int(width), reach=_reach(layer, kind), inner=int(inner)))
    return found


def repeats(config: Any) -> int:
    """How often a text passes through the same weights of a layer: ALBERT has one layer, or a few, for all."""
    groups = getattr(config, "num_hidden_groups", None)
    return max(1, int(config.num_hidden_layers) // int(groups)) if groups else 1


def shortest_window(config: Any) -> int | None:
    """Tokens that the layer with the shortest reach sees; None without such a layer, and for what is no transformer."""
    try:
        return min((layer.reach for layer in layers(config) if layer.reach), default=None)
    except UNREADABLE:
        return None


def remembers(model: Any) -> bool:
    """Whether a layer is no attention alone (a convolution, a state space, linear attention): what it keeps goes on into the next text of a row.

    Families that transformers cannot take back by a token say so; of convolutions and linear attention the configuration tells.
    """
    try:
        return bool(model._is_stateful) or any(layer.reach == 0 for layer in layers(model.config.get_text_config()))
    except UNREADABLE:
        return False


def positions(config: Any) -> int | None:
    """`max_position_embeddings`; None where a text may be of any length: -1 of XLNet, DeBERTa with relative positions only."""
    text = config.get_text_config()
    limit: int | None = getattr(text, "max_position_embeddings", None)
    return limit if limit is not None and limit > 0 and getattr(text, "position_biased_input", True) else None


def unlimited(config: Any) -> bool:
    """Whether a text may have any length by the configuration's own words; False where it says nothing of positions."""
    text = config.get_text_config()
    return positions(config) is None and (hasattr(text, "max_position_embeddings") or hasattr(text, "relative_attention_num_buckets"))


def text_places(config: Any, pad: int | None = None) -> int | None:
    """Tokens that a text may have, by the configuration; None where it may be of any length.

    Args:
        pad: PAD's id where another one than the configuration's will be set.
    """
    limit, text = positions(config), config.get_text_config()
    rotary = getattr(text, "position_embedding_type", "absolute") == "rotary"
    if limit is None or rotary or text.model_type.replace("_", "-") not in COUNT_FROM_PAD:
        return limit
    if pad is None:
        pad = 1 if text.pad_token_id is None else int(text.pad_token_id)
    return limit - 1 - pad


def places(model: Any) -> int | None:
    """Tokens that a text may have, by the model's positions."""
    limit = positions(model.config)
    embeddings: Any = getattr(model.base_model, "embeddings", None)
    if limit is not None and hasattr(embeddings, "create_position_ids_from_input_ids"):  # RoBERTa counts from PAD + 1
        limit -= embeddings.padding_idx + 1
    return limit


def _reach(layer: Any, kind: str | None) -> int | None:
    window = getattr(layer, "sliding_window", None) if getattr(layer, "use_sliding_window", True) else None
    if kind is None:
        return window or getattr(layer, "attention_chunk_size", None)
    if kind == "linear_attention" or not ("attention" in kind or kind == "hybrid"):
        return 0
    if "sliding" in kind:
        return window
    return getattr(layer, "attention_chunk_size", None) if "chunked" in kind else None
