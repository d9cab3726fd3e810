"""How large a model and its training step are, from the configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ftcli.core.models.layers import UNREADABLE, Layer, layers

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
NORMED_QUERIES = frozenset(["apertus", "exaone4", "gemma3", "gemma3_text", "gemma4_text", "olmo2", "olmo3", "qwen3", "qwen3_5_text"])
"""Families that normalise queries and keys, and keep both in float32 for it."""
IN_PIECES = frozenset(["gelu_fast", "gelu_new", "quick_gelu"])
"""Activation functions that transformers computes step by step, each of which keeps its values."""
DROPOUTS = ("hidden_dropout_prob", "resid_pdrop", "dropout")
LEARNED_POSITIONS = frozenset(
    ["bert", "camembert", "distilbert", "electra", "gpt2", "gpt_bigcode", "gpt_neo", "opt", "roberta", "xlm-roberta"]
)
STATES = {"sgd": 0, "adafactor": 0, "lion": 1, "lomo": 0}
"""Values that an optimizer keeps for each weight, by the beginning of its name; Adam and everything else 2."""
LOGITS_AT_ONCE = {"cpu": 2**22, "gpu": 2**27}
"""Of the next token's loss in pieces. 16 MB on a CPU: with a vocabulary of 8,192 that took 0.93 to 0.97 of the usual way's CPU seconds, pieces of 2 MB 1.1 to 1.3 times
them. On a GPU 1 GB: each piece reads and writes the gradient of the whole output layer, at this size a quarter of its passes over memory."""
ROWS_AT_ONCE = 256
"""Of such a piece at least: with 151,936 ids and the 32 rows of 16 MB a step on a CPU took twice as long (decision 0051)."""
RESCALING = ("final_logit_softcapping", "logit_scale", "logits_scaling")
BIASED_OUTPUTS = frozenset(["codegen", "gptj", "phi"])


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
        hidden, vocabulary = int(config.hidden_size), int(config.vocab_size)
        blocks = layers(config)
    except UNREADABLE:
        return None
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts", "is_encoder_decoder")):
        return None
    matrices = 2 if config.model_type in TWO_MATRICES else 3
    inside = sum(2 * layer.width * (layer.heads + layer.shared) + matrices * layer.inner + 4 for layer in blocks)
    embedding = vocabulary * hidden
    positions = int(config.max_position_embeddings) * hidden if config.model_type in LEARNED_POSITIONS else 0
    output = head * hidden if head is not None else 0 if getattr(config, "tie_word_embeddings", True) else embedding
    return embedding + positions + hidden * inside + output


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
    pieces_on: Literal["cpu", "gpu"] | None = None,
) -> Step | None:
    """Estimate of one step's memory; None where the number of weights is unknown.

    Weights, gradients and optimizer states: 4 bytes each (2 with `half_weights`), Adam keeps two states. Autocast (`half`) keeps a copy of the weights in 2 bytes.
    Activations are those of `_saved`; with `recompute` only the input of each layer and one whole layer. Logits: two copies in float32 and, under autocast,
    one in 2 bytes, for every position of a language model, or for as many as there are at once where its loss is computed in pieces.

    Args:
        head: labels, or None for a language model.
        rows, width: of the largest batch.
        pieces_on: the device where a language model's loss is computed in pieces; None: all logits are there at once.
    """
    count = parameters(config, head)
    if count is None:
        return None
    text = config.get_text_config()
    size = 2 if half_weights else 4
    kept = 2 if half or half_weights else 4
    states = next((number for name, number in STATES.items() if optimizer.startswith(name)), 2)
    state_bytes = states * count * (1 if "8bit" in optimizer else size)
    hidden, tokens = int(text.hidden_size), rows * width
    saved = [_saved(text, layer, half=half and not half_weights, half_weights=half_weights) for layer in layers(text)]
    inputs = len(saved) * hidden * (2 if half_weights else 4)
    outputs = rows * head if head is not None else tokens * int(text.vocab_size)
    if head is None and pieces_on is not None:
        outputs = min(outputs, logits_at_once(pieces_on, int(text.vocab_size)))
    return Step(
        weights=count * (size + (2 if half and not half_weights else 0)),
        gradients=count * size,
        optimizer=state_bytes,
        activations=tokens * (inputs + max(saved) if recompute else sum(saved)),
        logits=outputs * (8 + (2 if kept == 2 else 0)),
    )


def logits_at_once(device: Literal["cpu", "gpu"], vocabulary: int) -> int:
    """Logits of a piece of the next token's loss."""
    return max(LOGITS_AT_ONCE[device], ROWS_AT_ONCE * vocabulary)


def loss_in_pieces(config: Any) -> bool:
    """Whether a language model's loss can be expected to pass its proof in pieces; the run finds out."""
    text = config.get_text_config()
    changed = any(getattr(text, name, None) not in (None, 1) for name in RESCALING)
    return not changed and text.model_type not in BIASED_OUTPUTS


def _saved(config: Any, layer: Layer, *, half: bool, half_weights: bool) -> int:
    """Bytes of a token that a layer keeps for backward, without the attention matrix, which sdpa and flash attention do not keep.

    Counted for what transformers' layers hand to autograd (`saved_tensors_hooks`, fifteen families, within 16 %; a third less than this for OPT, whose ReLU keeps one
    tensor): autocast (`half`) keeps norms and the residual in 4 bytes beside the copies in 2 that are multiplied, and norms of weights in 2 bytes are computed in 4.
    Qwen3-0.6B on an H100: 83 kB a layer measured, 90 kB here.
    """
    hidden, inner, attention = int(config.hidden_size), layer.inner, layer.width * (layer.heads + layer.shared)
    if getattr(config, "hidden_act", getattr(config, "activation_function", None)) in IN_PIECES:
        inner *= 3
    gated = config.model_type not in TWO_MATRICES
    values = (5 if gated else 2) * hidden + 3 * attention + (4 if gated else 2) * inner
    dropped = 2 * hidden if any(getattr(config, name, None) for name in DROPOUTS) else 0
    normed = attention if config.model_type in NORMED_QUERIES else 0
    if half_weights:
        return 2 * (values + dropped) + 4 * hidden * gated + 5 * normed
    if half:
        own = (32 * hidden + 4 * attention + 8 * inner + 13 * normed // 2) if gated else 2 * values + 10 * hidden
        return own + 2 * dropped
    return 4 * (values + dropped) + 6 * normed
