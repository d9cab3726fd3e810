"""Model FLOPs utilisation by PaLM's formula, against datasheet peaks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

PEAKS = {
    "B200": 2250e12,
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
    "A10": 125e12,
    "A6000": 155e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""Dense bfloat16 FLOP/s with float32 accumulation, from the makers' datasheets; the first name that the device's name holds counts."""


def flops_per_token(model: PreTrainedModel, lengths: NDArray[np.int64]) -> float | None:
    """Forward and backward FLOPs of a token: 6 N + 12 L H Q T.

    N counts the weights that are multiplied (the output layer too, the embedding look-up not); T is the length of the text that a
    token stands in, on average: sum of squares over sum. The causal half is not taken off. None for a mixture of experts.

    Args:
        lengths: tokens of every document.
    """
    config: Any = model.config.get_text_config()
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        return None
    multiplied = sum(module.weight.numel() for module in model.modules() if isinstance(module, (nn.Linear, Conv1D)))
    heads: int = config.num_attention_heads
    width: int = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    seen = float((lengths.astype(np.float64) ** 2).sum() / max(1, lengths.sum()))
    return 6.0 * multiplied + 12.0 * int(config.num_hidden_layers) * width * seen


def peak_flops(device: str) -> float | None:
    """The device's peak, None when it is unknown."""
    return next((peak for name, peak in PEAKS.items() if name in device), None)


def utilisation(tokens_per_second: float | None, per_token: float | None, device: str | None, devices: int) -> float | None:
    """MFU of a run in bfloat16; None when a part is unknown."""
    peak = peak_flops(device) if device else None
    if tokens_per_second is None or per_token is None or peak is None:
        return None
    return tokens_per_second * per_token / (peak * devices)
