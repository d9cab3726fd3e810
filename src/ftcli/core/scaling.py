"""Whether a model's own loss follows `num_items_in_batch`: if not, a plain Trainer multiplies it by accumulation steps × processes."""

from __future__ import annotations

import inspect

import torch

from ftcli.core.forward import Forward


def loss_ratio(result: Forward) -> float | None:
    """loss(ten times the targets) / loss(the targets): 0.1 for a model that divides by `num_items_in_batch`, 1 for one that ignores it.

    None when its forward takes no such argument, so that Trainer divides by the accumulation steps itself.
    """
    takes = inspect.signature(result.model.forward).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes):
        return None
    items = len(result.labels)
    with torch.no_grad():
        few, many = (float(result.model(**result.batch, num_items_in_batch=torch.tensor(count)).loss) for count in (items, 10 * items))
    return many / few
