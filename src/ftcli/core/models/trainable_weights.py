"""Which of a model's weights a run learns, how many and in how many bytes, from the configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ftcli.core.models.adapter_base import described
from ftcli.core.models.layers import layers
from ftcli.core.models.sizing import TWO_MATRICES, embedded, parameters
from ftcli.settings import Settings


@dataclass(frozen=True, slots=True)
class Learned:
    """
    Attributes:
        kind: all weights, adapters on a frozen base, or the head on a frozen backbone.
        every: weights of the model itself.
        count: weights that are learned.
        copied: weights that backward passes through in the type of autocast; a frozen base of 4 bits stays as it is.
        held: bytes of all weights on the device.
        size: bytes of a weight that is learned.
        kept: bytes of the weights in a checkpoint, and in what the run leaves.
    """

    kind: Literal["all", "adapter", "head"]
    every: int
    count: int
    copied: int
    held: int
    size: int
    kept: int


def learned(settings: Settings, config: Any, head: int | None) -> Learned | None:
    """None where the number of weights cannot be told.

    Adapters are counted as if they were put on every linear layer, which is the most there can be: 1 % to 2 % of the base at rank 16. They are learned and
    saved in float32 whatever the base's type, with a copy of the head. A base of 4 bits keeps its embeddings in float32, as peft prepares it.

    Args:
        config: of transformers.
        head: labels of a classification head; None: a language model.
    """
    every = parameters(config, head)
    if every is None:
        return None
    model = settings.model
    size = 2 if weights_type(settings, config) in {"bfloat16", "float16"} else 4
    hidden = int(config.get_text_config().hidden_size)
    of_head = 0 if head is None else hidden * (head + hidden)  # BERT's pooler and RoBERTa's dense layer are square
    rank = lora_rank(settings)
    if rank is not None:
        count = of_head + rank * _around(config)
        outside = min(every, embedded(config, head))
        base = (every - outside) // 2 + 4 * outside if model.load_in_4bit else size * every
        return Learned("adapter", every, count, count if model.load_in_4bit else every + count, base + 4 * count, 4, 4 * count)
    if model.freeze_backbone:
        count = min(of_head, every)
        return Learned("head", every, count, count, size * every, size, size * every)
    return Learned("all", every, every, every, size * every, size, size * every)


def weights_type(settings: Settings, config: Any) -> str | None:
    """What model.dtype says, and for auto what the configuration says; "auto" where that says nothing."""
    if settings.model.dtype != "auto":
        return settings.model.dtype
    found = getattr(config, "dtype", None)
    return "auto" if found is None else str(found).removeprefix("torch.")


def lora_rank(settings: Settings) -> int | None:
    """Of the run's adapters; None: it has none. Other adapters than LoRA's, which say no rank, are taken for such of rank 16."""
    model = settings.model
    if model.lora_r is not None or model.name_or_path is None or (adapter := described(model.name_or_path)) is None:
        return model.lora_r
    return int(adapter.get("r") or 16)


def _around(config: Any) -> int:
    """Numbers that go into all linear layers and out of them: an adapter has this many weights for each of its ranks."""
    text = config.get_text_config()
    hidden, matrices = int(text.hidden_size), 2 if text.model_type in TWO_MATRICES else 3
    return sum(
        2 * (hidden + layer.width * layer.heads) + 2 * (hidden + layer.width * layer.shared) + matrices * (hidden + layer.inner)
        for layer in layers(text)
    )
