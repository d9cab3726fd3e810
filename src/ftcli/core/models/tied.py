"""Weights that are saved once and have several names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


def really_missing(model: torch.nn.Module, loaded: Any) -> Any:
    """What `load_state_dict(strict=False)` answered, without the missing names whose tensor was loaded under another name.

    A tied head is not in a model's file, so transformers' Trainer says of every tied model that `lm_head.weight` is missing when the best
    checkpoint is loaded.
    """
    held = model.state_dict(keep_vars=True)
    filled = {id(tensor) for name, tensor in held.items() if name not in loaded.missing_keys}
    missing = [name for name in loaded.missing_keys if name not in held or id(held[name]) not in filled]
    return SimpleNamespace(missing_keys=missing, unexpected_keys=loaded.unexpected_keys)
