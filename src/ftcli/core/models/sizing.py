"""How large a model and its training step are, from the configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TWO_MATRICES = frozenset(
    [
        "bert",
        "bloom",
        "codegen",
        "electra",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "mpt",
        "opt",
        "phi",
        "roberta",
        "starcoder2",
        "xlm-roberta",
    ]
)
"""Families whose feed-forward block has two matrices; in the others a third one gates."""
LEARNED_POSITIONS = frozenset(["bert", "electra", "gpt2", "gpt_bigcode", "gpt_neo", "opt", "roberta", "xlm-roberta"])
STATES = {"sgd": 0, "adafactor": 0, "lion": 1, "lomo": 0}
"""Values that an optimizer keeps for each weight, by the beginning of its name; Adam and everything else 2."""


@dataclass(frozen=True, slots=True)
class Step:
    """Bytes of one training step on one device."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int

    @property
    def lasting(self) -> int:
        """What is there in every step, whatever the batch."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        return self.lasting + self.activations + self.logits


def parameters(config: Any, head: int | None = None) -> int | None:
    """Weights of a dense transformer without biases and pooler; None for mixtures of experts and for what is no transformer.

    Args:
        config: of transformers.
        head: labels of a classification head; None: an output layer for the vocabulary.
    """
    config = config.get_text_config()
    try:
        hidden, layers, heads = int(config.hidden_size), int(config.num_hidden_layers), int(config.num_attention_heads)
        vocabulary = int(config.vocab_size)
    except (AttributeError, TypeError):
        return None
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts", "is_encoder_decoder")):
        return None
    width = getattr(config, "head_dim", None) or hidden // heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden
    matrices = 2 if config.model_type in TWO_MATRICES else 3
    layer = 2 * hidden * width * (heads + shared) + matrices * hidden * int(inner) + 4 * hidden
    embedding = vocabulary * hidden
    positions = int(config.max_position_embeddings) * hidden if config.model_type in LEARNED_POSITIONS else 0
    output = head * hidden if head is not None else 0 if getattr(config, "tie_word_embeddings", True) else embedding
    return embedding + positions + layers * layer + output


def training_step(
    config: Any,
    *,
    head: int | None,
    rows: int,
    width: int,
    optimizer: str,
    half: bool,
    half_weights: bool,
    recompute: bool,
) -> Step | None:
    """Estimate of one step's memory; None where the number of weights is unknown.

    Weights, gradients and optimizer states: 4 bytes each (2 with `half_weights`), Adam keeps two states. Autocast (`half`) keeps a copy of the weights in 2 bytes.
    Activations a token and layer, after Korthikanti et al. 2022 (arXiv:2205.05198, equation 2) without the attention matrix, which sdpa and flash attention do not
    keep, counted for the tensors that transformers' blocks save: 5 × hidden + 3 × queries + 3 × keys and values + 4 × feed-forward values; with `recompute`
    only the input of each layer and one whole layer. Logits: two copies in float32 and, under autocast, one in 2 bytes, for every position of a language model.

    Args:
        head: labels, or None for a language model.
        rows, width: of the largest batch.
    """
    count = parameters(config, head)
    if count is None:
        return None
    text = config.get_text_config()
    size = 2 if half_weights else 4
    kept = 2 if half or half_weights else 4
    states = next((number for name, number in STATES.items() if optimizer.startswith(name)), 2)
    state_bytes = states * count * (1 if "8bit" in optimizer else size)
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    each = getattr(text, "head_dim", None) or hidden // heads
    shared = getattr(text, "num_key_value_heads", None) or heads
    inner = int(getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * hidden)
    layers, tokens = int(text.num_hidden_layers), rows * width
    layer = 5 * hidden + 3 * heads * each + 3 * shared * each + 4 * inner
    values = layers * hidden + layer if recompute else layers * layer
    outputs = rows * head if head is not None else tokens * int(text.vocab_size)
    return Step(
        weights=count * (size + (2 if half and not half_weights else 0)),
        gradients=count * size,
        optimizer=state_bytes,
        activations=tokens * values * kept,
        logits=outputs * (8 + (2 if kept == 2 else 0)),
    )
