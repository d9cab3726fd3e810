"""How much memory a training step takes, from the configuration alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ftcli.core.models.layers import Layer, layers
from ftcli.core.models.sizing import TWO_MATRICES

if TYPE_CHECKING:
    from ftcli.core.models.trainable_weights import Learned

NORMED_QUERIES = frozenset(["apertus", "exaone4", "gemma3", "gemma3_text", "gemma4_text", "olmo2", "olmo3", "qwen3", "qwen3_5_text"])
"""Families that normalise queries and keys, and keep both in float32 for it."""
IN_PIECES = frozenset(["gelu_fast", "gelu_new", "quick_gelu"])
"""Activation functions that transformers computes step by step, each of which keeps its values."""
DROPOUTS = ("hidden_dropout_prob", "resid_pdrop", "dropout")
STATES = {"schedule_free_sgd": 1, "sgd": 0, "adafactor": 0, "ademamix": 3, "lion": 1, "lomo": 0, "rmsprop": 1, "adagrad": 1}
"""Values that an optimizer keeps for each weight, by the first of these that its name holds; Adam and everything else 2."""
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


def training_step(
    config: Any,
    learned: Learned,
    *,
    head: int | None,
    rows: int,
    width: int,
    optimizer: str,
    half: bool,
    half_weights: bool,
    recompute: bool,
    pieces_on: Literal["cpu", "gpu"] | None = None,
) -> Step:
    """Estimate of one step's memory.

    Gradients and optimizer states are those of the weights that are learned. Autocast (`half`) keeps a copy in 2 bytes of what backward passes
    through. Activations are those of `_saved`; with `recompute` only the input of each layer and one whole layer,
    and behind a frozen backbone, where backward ends, one layer. Logits: two copies in float32 and, under autocast, one in 2 bytes, for every position of a
    language model, or for as many as there are at once where its loss is computed in pieces.

    Args:
        head: labels, or None for a language model.
        rows, width: of the largest batch.
        half_weights: the weights themselves have 2 bytes.
        pieces_on: the device where a language model's loss is computed in pieces; None: all logits are there at once.
    """
    text = config.get_text_config()
    narrow = half and not half_weights
    hidden, tokens = int(text.hidden_size), rows * width
    saved = [_saved(text, layer, half=narrow, half_weights=half_weights) for layer in layers(text)]
    inputs = len(saved) * hidden * (2 if half_weights else 4)
    outputs = rows * head if head is not None else tokens * int(text.vocab_size)
    if head is None and pieces_on is not None:
        outputs = min(outputs, logits_at_once(pieces_on, int(text.vocab_size)))
    a_token = max(saved) if learned.kind == "head" else inputs + max(saved) if recompute else sum(saved)
    return Step(
        weights=learned.held + (2 * learned.copied if narrow else 0),
        gradients=learned.count * learned.size,
        optimizer=state_bytes(optimizer, learned),
        activations=tokens * a_token,
        logits=outputs * (10 if half or half_weights else 8),
    )


def state_bytes(optimizer: str, learned: Learned) -> int:
    """Bytes of the states that an optimizer keeps, on the device and in a checkpoint."""
    states = next((number for name, number in STATES.items() if name in optimizer), 2)
    bits = 8 if "8bit" in optimizer else 4 if "4bit" in optimizer else 8 * learned.size
    return states * learned.count * bits // 8


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
