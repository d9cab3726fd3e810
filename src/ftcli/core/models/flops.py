"""Model FLOPs utilisation by PaLM's formula, against datasheet peaks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ftcli.core.models.layers import UNREADABLE, layers, repeats

PEAKS = {
    "GB200": 2500e12,
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "GH200": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A40": 150e12,
    "A10G": 70e12,
    "A10": 125e12,
    "A6000": 155e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""Dense bfloat16 FLOP/s with float32 accumulation, from the makers' datasheets; the first name that stands in the device's counts."""
ANOTHER = ("MIG", "Laptop", "Ti", "D")
"""Words of a slice of a card, and of a card of nearly the same name."""


def flops_per_token(model: PreTrainedModel, lengths: NDArray[np.int64]) -> float | None:
    """Forward and backward FLOPs of a token: 6 N + 12 H Q T for every layer (PaLM, appendix B).

    N counts the weights that are multiplied (the output layer too, the embedding look-up not). Of a weight that is frozen, as under LoRA, no
    gradient is computed: it counts 4, and 2 where nothing before it is trained, so that backward ends behind it; attention then counts 4
    there in place of 12. T is the length of the text that a token stands in, on average: sum of squares over sum, the same for
    packed rows, whose texts do not see each other; at most the window of a layer that has one, and 0 in a layer without attention. The causal half is not
    taken off. None for a mixture of experts, for a model without attention (RWKV, Mamba) and where the configuration does not say.

    Args:
        lengths: tokens of every document.
    """
    config: Any = model.config.get_text_config()
    heads: int | None = getattr(config, "num_attention_heads", None)
    if not heads or any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        return None
    try:
        blocks = layers(config)
    except UNREADABLE:  # a figure, which no run that is done may end for
        return None
    sizes = lengths.astype(np.float64)
    attended = 0.0
    for layer in blocks:
        seen = sizes if layer.reach is None else np.minimum(sizes, layer.reach)
        attended += layer.heads * layer.width * float((sizes * seen).sum() / max(1.0, sizes.sum()))
    products, reached = _products(model)
    return products + (4.0 + 8.0 * reached) * attended


def multiplied(model: PreTrainedModel) -> int:
    """Weights that every token is multiplied with, those of shared layers as often as it passes them."""
    return sum(times * module.weight.numel() for module, times in _passed(model) if isinstance(module, (nn.Linear, Conv1D)))


def _passed(model: PreTrainedModel) -> Iterator[tuple[nn.Module, int]]:
    """Every module with how often a token passes it: ALBERT's groups of layers stand for many."""
    often = repeats(model.config)
    for name, module in model.named_modules():
        yield module, often if "layer_groups." in name else 1


def _products(model: PreTrainedModel) -> tuple[float, float]:
    """FLOPs of a token in the products with weights, and the share of those weights that backward goes through; modules stand in their order."""
    total, through, trained = 0.0, 0, False
    for module, times in _passed(model):
        own = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        if isinstance(module, (nn.Linear, Conv1D)):
            count = times * module.weight.numel()
            total += (6.0 if module.weight.requires_grad else 4.0 if trained else 2.0) * count
            through += count if trained or own else 0
        trained = trained or own
    return total, through / max(1, multiplied(model))


def peak_flops(device: str) -> float | None:
    """The device's peak, None when it is unknown."""
    words = re.findall(r"\w+", device)
    if set(ANOTHER) & set(words):
        return None
    return next((peak for name, peak in PEAKS.items() if f" {name} " in f" {' '.join(words)} "), None)


def utilisation(tokens_per_second: float | None, per_token: float | None, device: str | None, devices: int) -> float | None:
    """MFU of a run in bfloat16; None when a part is unknown."""
    peak = peak_flops(device) if device else None
    if tokens_per_second is None or per_token is None or peak is None:
        return None
    return tokens_per_second * per_token / (peak * devices)
