"""How many weights a model has, from the configuration alone."""

from __future__ import annotations

from typing import Any

from ftcli.core.models.layers import UNREADABLE, layers, repeats

TWO_MATRICES = frozenset(
    [
        "albert",
        "bert",
        "biogpt",
        "bloom",
        "camembert",
        "codegen",
        "convbert",
        "data2vec-text",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "megatron-bert",
        "mpnet",
        "mpt",
        "openai-gpt",
        "opt",
        "phi",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roformer",
        "starcoder2",
        "xglm",
        "xlm-roberta",
        "xlm-roberta-xl",
    ]
)
"""Families whose feed-forward block has two matrices; in the others a third one gates."""
LEARNED_POSITIONS = frozenset(
    ["albert", "bert", "camembert", "distilbert", "electra", "gpt2", "gpt_bigcode", "gpt_neo", "opt", "roberta", "xlm-roberta"]
)


def parameters(config: Any, head: int | None = None) -> int | None:
    """Weights of a dense transformer without biases and pooler; None for mixtures of experts and for what is no transformer.

    Args:
        config: of transformers.
        head: labels of a classification head; None: an output layer for the vocabulary.
    """
    config = config.get_text_config()
    try:
        hidden = int(config.hidden_size)
        blocks = layers(config)
        outside = embedded(config, head)
    except UNREADABLE:
        return None
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts", "is_encoder_decoder")):
        return None
    matrices = 2 if config.model_type in TWO_MATRICES else 3
    inside = sum(2 * layer.width * (layer.heads + layer.shared) + matrices * layer.inner + 4 for layer in blocks)
    return outside + hidden * inside // repeats(config)


def embedded(config: Any, head: int | None) -> int:
    """Weights outside of the layers: embeddings of tokens and positions, and the output layer or the head.

    Raises:
        AttributeError, TypeError, ValueError: the configuration says it in a way of its own.
    """
    config = config.get_text_config()
    hidden, vocabulary = int(config.hidden_size), int(config.vocab_size)
    width = int(getattr(config, "embedding_size", None) or hidden)  # ALBERT and ELECTRA embed in fewer, and widen
    positions = int(config.max_position_embeddings) * width if config.model_type in LEARNED_POSITIONS else 0
    widening = 0 if width == hidden else width * hidden
    output = head * hidden if head is not None else 0 if getattr(config, "tie_word_embeddings", True) else vocabulary * hidden
    return vocabulary * width + positions + widening + output
