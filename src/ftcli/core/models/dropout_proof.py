"""Dropout beside a proof: nothing is dropped while figures are compared, and what is drawn in training is counted, so that no part leaves any out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedConfig, PreTrainedModel

ATTENTION = "attention"
A_ROW = "a row"


def _rates(model: nn.Module) -> list[tuple[Any, str, float]]:
    """Every number that may be a rate of dropout, and where it stands: in modules of torch, in layers of others, in configurations that are read on the way."""
    modules = list(model.modules())
    configs = {id(config): config for module in modules if isinstance(config := getattr(module, "config", None), PreTrainedConfig)}
    return [
        (holder, name, value)
        for holder in (*modules, *configs.values())
        for name, value in vars(holder).items()
        if isinstance(value, float) and value and ("drop" in name or (name == "p" and isinstance(holder, nn.modules.dropout._DropoutNd)))
    ]


def dropping(model: nn.Module) -> bool:
    """Whether anything may be dropped."""
    return bool(_rates(model))


@contextmanager
def silent(model: nn.Module) -> Iterator[None]:
    """Inside, dropout drops nothing, and the model computes as in training otherwise."""
    rates = _rates(model)
    try:
        for holder, name, _ in rates:
            setattr(holder, name, 0.0)
        yield
    finally:
        for holder, name, rate in rates:
            setattr(holder, name, rate)


@contextmanager
def same_numbers(device: torch.device) -> Iterator[None]:
    """Inside, the same numbers are drawn every time; those drawn later are what they would have been."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        yield


Drawn = Counter[tuple[str, Any]]
"""How often which operation drew, at which rate."""


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Drawn = Counter()

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        asked = func._schema.arguments
        given = {each.name: each.default_value for each in asked} | dict(zip((each.name for each in asked), args, strict=False)) | kwargs
        if given.get("dropout_p"):  # attention as one kernel
            self.found[ATTENTION, given["dropout_p"]] += 1
        elif "dropout_p" not in given and torch.Tag.nondeterministic_seeded in func.tags and given.get("train") is not False:
            shape = next((each.shape for each in args if isinstance(each, torch.Tensor)), ())
            kind = ATTENTION if len(shape) >= 4 else A_ROW if 1 in shape[1:] else str(func)
            self.found[kind, given.get("p")] += 1
        return func(*args, **kwargs)


def drawn(model: PreTrainedModel, compute: Callable[[], object]) -> Drawn:
    """What is drawn while the model computes in training mode; mode and random numbers stay as they were."""
    device, training = next(model.parameters()).device, model.training
    draws = _Draws()
    with same_numbers(device), torch.enable_grad(), draws:
        model.train()
        compute()
    model.train(training)
    return draws.found


def otherwise(own: Drawn, found: Drawn, *, apart: bool) -> str | None:
    """How what is drawn differs from what the model's own code draws; None: every place drops at the same rate.

    Args:
        apart: attention is a call a text, so that its number says nothing.
    """
    if any(kind == A_ROW for kind, *_ in own):
        return "noise is drawn for whole rows or tokens, and they are computed in other rows"
    if apart:
        own, found = (Counter({key: 1 if key[0] == ATTENTION else count for key, count in each.items()}) for each in (own, found))
    return None if own == found else "dropout is left out or drawn otherwise"
