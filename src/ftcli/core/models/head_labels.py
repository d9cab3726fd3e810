"""Labels that the head of loaded weights was learned for, against those of the data: it says one by its number, whatever that is called now."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ftcli.core.models.adapter_base import ADAPTER_CONFIG
from ftcli.errors import ModelError

UNNAMED = re.compile(r"LABEL_\d+")
"""What transformers calls a label that nobody has named."""
SHOWN = 8


def learned_for(name: str, config: Any) -> list[str]:
    """Names in id order; empty where they are not known, or the head says one thing only.

    Args:
        name: a model's folder or hub id, or an adapter's folder, whose own head is the one that counts.
        config: of the model, or of the adapter's base.
    """
    found = getattr(config, "id2label", None) or {}
    if (Path(name) / ADAPTER_CONFIG).is_file():
        found = {}
        with suppress(OSError, ValueError, AttributeError):
            found = json.loads((Path(name) / "config.json").read_text(encoding="utf-8")).get("id2label") or {}
    names = [str(found[number]) for number in sorted(found, key=int)]
    return [] if len(names) < 2 or any(map(UNNAMED.fullmatch, names)) else names


def settle(model: Any, name: str, before: Sequence[str], note: Callable[[str], None]) -> None:
    """Make the loaded head fit the data's labels: the same ones in another order change places, and others are said.

    Args:
        before: the labels that it was learned for.

    Raises:
        ModelError: they are the same in another order, and its layer cannot be told from others, or is an adapter's.
    """
    now = [str(model.config.id2label[number]) for number in sorted(model.config.id2label)]
    if not before or len(before) != len(now) or list(before) == now:
        return
    if sorted(before) != sorted(now):
        note(
            f"{name}: the head was trained for the labels {_shown(before)} and is now used for {_shown(now)}: until it is retrained it predicts as if they were"
            " the old ones"
        )
        return
    layer = None if (Path(name) / ADAPTER_CONFIG).is_file() else _layer(model, len(now))
    if layer is None:
        raise ModelError(
            f"{name}: the head was trained for the labels of these data in another order: {_shown(before)}",
            f"Prepare the data with --label-names {','.join(before)}.",
        )
    order = torch.tensor([before.index(one) for one in now])
    with torch.no_grad():
        for weights in (layer.weight, layer.bias):
            if weights is not None:
                weights.copy_(weights[order.to(weights.device)])
    note(f"{name}: the head's labels are reordered to match the data, {_shown(now)}; it was trained with {_shown(before)}")


def _layer(model: Any, labels: int) -> torch.nn.Linear | None:
    """The only layer outside of the base model that gives so many logits."""
    inside = f"{model.base_model_prefix}."
    found = [
        module
        for name, module in model.named_modules()
        if not name.startswith(inside) and isinstance(module, torch.nn.Linear) and tuple(module.weight.shape[:1]) == (labels,)
    ]
    return found[0] if len(found) == 1 else None


def _shown(names: Sequence[str]) -> str:
    more = f" … ({len(names)})" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
