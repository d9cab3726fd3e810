"""The proof of a part of the lean step: logits, loss and every gradient of real rows beside those of the model's own code, and what both draw for dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from ftcli.contracts import Task
from ftcli.core.models.dropout_proof import drawn, dropping, otherwise, same_numbers, silent
from ftcli.core.models.last_layer import logits_of
from ftcli.core.models.lean_head import LeanHead


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest differences that rounding may cause."""

    logits: float
    """In standard deviations of the logits: the largest difference, or their root mean square where `rounded`."""
    gradient: float
    """Of a weight's gradient, of its norm."""
    tiny: float
    """Of the whole gradient's norm: what a weight's own gradient may differ by where it is next to nothing."""
    loss: float = 1e-5
    """Of the loss, of itself, where there are no logits to compare."""
    rounded: bool = False
    """Logits are 16-bit numbers. The largest difference is then a step of the largest logit (0.1 standard deviations of a Qwen3-0.6B after 30 steps),
    which says nothing; and they may differ by their own steps besides."""


EXACT = Limits(1e-4, 1e-4, 1e-7)
"""Float32. Found on Qwen3, Qwen2 and Llama of 2 to 28 layers: 1e-6 and 4e-6; a wrong mask, epsilon or activation: 1e-2 and more."""
HALF = Limits(3e-2, 0.1, 1e-2, loss=1e-2, rounded=True)
"""16 bits. Found on Qwen3-0.6B with and without LoRA on an H200: logits 3e-3, as much as the model's own code is off; texts that see each other: 0.13 and
more, of whose gradients the norm differs by half."""

ROUNDED = Limits(0.01, 0.02, 1e-3)
"""What a part under autocast may add to twice the rounding errors of the model's own code; logits in their norm, since the largest is chance."""

STRETCH, LINEAR = 2**12, 0.01
"""A power of two, so that what only multiplies gives the same digits; of what a cap of 30 makes of Gemma 2's states 0.99 is missing."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Of a configuration of a mixture of experts."""
T = TypeVar("T")
SAMPLE = 2**16
POSITIONS = 512
Batch = Mapping[str, torch.Tensor]
Forwards = Mapping[nn.Module, Callable[..., Any]]
Computed = tuple[torch.Tensor, dict[str, torch.Tensor], float]
"""Logits [at most `POSITIONS`, classes], of every weight's gradient at most `SAMPLE` elements, both evenly spread, so that a large model's fit beside it,
and the loss."""


def computed(model: PreTrainedModel, task: Task, batch: Batch, head: LeanHead | None = None, *, drops: bool = False) -> Computed:
    """Logits of some of the positions that count, of every gradient a sample, and the loss; the model's own gradients and mode stay as they were.

    Args:
        head: in its place; computes the loss, so that there are no more logits than these.
        drops: dropout is at work, with the same numbers in every call, and what is drawn later is as without the call; else there is none.
    """
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    labels, training, device = batch["labels"], model.training, batch["labels"].device
    kind = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    with torch.enable_grad(), same_numbers(device) if drops else silent(model), nullcontext() if head is None else head.at_work(kind):
        given = logits_of(model.train(), batch)
        loss = (task if head is None else head).loss(given, labels, None)
        found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    model.train(training)
    gradients = {name: torch.zeros(1) if each is None else _sample(each) for name, each in zip(weights, found, strict=True)}
    mask = batch.get("attention_mask")
    counted = given.detach() if given.ndim == 2 or mask is None else given.detach()[mask.bool()]
    some = counted.flatten(0, -2)[:: -(-counted[..., 0].numel() // POSITIONS) | 1]
    return some if head is None else head.logits(some), gradients, float(loss.detach())


def _sample(gradient: torch.Tensor) -> torch.Tensor:
    step = -(-gradient.numel() // SAMPLE) | 1  # odd, so that not one column of a matrix is taken
    return gradient.flatten()[::step].clone()


def tried(
    model: PreTrainedModel,
    task: Task,
    batches: Sequence[Batch],
    truths: Sequence[Computed],
    forwards: Forwards,
    limits: Limits = EXACT,
    head: LeanHead | None = None,
    *,
    apart: bool = False,
) -> str | None:
    """Why the replacements cannot be used; None: they give the same. They are taken out again.

    Args:
        head: computes the loss, in `truths` too or as one of the replacements.
        apart: the replacements attend to one text at a time.
    """
    found = _with(forwards, lambda: [computed(model, task, batch, head) for batch in batches])
    if isinstance(found, str):
        return found
    for truth, each in zip(truths, found, strict=True):
        if head is not None and head.layer in forwards and not abs(each[2] - truth[2]) <= limits.loss * abs(truth[2]):
            return f"the loss is {each[2]:.6g} instead of {truth[2]:.6g}"
        if words := difference(truth, each, limits):
            return words
    return _drawn_otherwise(model, batches[0], forwards, head, apart=apart) if dropping(model) else None


def bent(model: PreTrainedModel, batch: Batch, head: LeanHead) -> str | None:
    """Whether the model does more to its logits than to multiply them: done to states it would be something else.

    Logits of random weights are small, so that a cap of 30 (Gemma 2) hardly shows in them: in 16 bits the proof of the loss passes. Of states 4,096 times as large it does.
    """

    def states() -> list[torch.Tensor]:
        found = []
        with torch.no_grad(), silent(model), head.at_work(None), head.measuring():
            for head.stretch in (1, STRETCH):
                found.append(logits_of(model, batch).float())
        return found

    try:
        found = _with(head.forwards, states)
    finally:
        head.stretch = 1
    if isinstance(found, str):
        return found
    gap = float((found[1] / STRETCH - found[0]).norm() / found[0].norm())
    return None if gap <= LINEAR else "the model does more to its logits than to multiply them (a cap)"


def seen(model: PreTrainedModel, batch: Batch, forwards: Forwards, head: LeanHead | None) -> str | None:
    """Whether a text sees what stands before it: with another first text, not a bit of the others may change.

    What leaks is little where weights are fresh, and in 16 bits less than rounding: short convolutions of Falcon-H1 changed logits by 0.005 standard deviations.
    Of a mixture of experts nothing is asked: another text sends other numbers of tokens to each, and products of other shapes round otherwise.
    """
    if any(getattr(model.config.get_text_config(), name, None) for name in EXPERTS):
        return None
    ids, mask, places = batch["input_ids"], batch.get("attention_mask"), batch.get("position_ids")
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    first = torch.zeros_like(real)
    begins = [] if places is None else (places[0] == 0).nonzero().flatten().tolist()
    first[0, : begins[1] if len(begins) > 1 else None] = True
    first &= real
    rest = real & ~first
    if not first.any() or not rest.any():
        return None
    others = ids[rest].unique()  # type: ignore[no-untyped-call]
    changed = ids.clone()
    changed[first] = others[(torch.searchsorted(others, ids[first]) + 1) % len(others)]

    def states() -> list[torch.Tensor]:
        with torch.no_grad(), silent(model), head.at_work(None) if head else nullcontext(), head.measuring() if head else nullcontext():
            return [logits_of(model, {**batch, "input_ids": each}) for each in (ids, changed)]

    found = _with(forwards, states)
    if isinstance(found, str):
        return found
    one, other = (each[1:] if each.ndim == 2 else each[rest] for each in found)
    return None if torch.equal(one, other) else "a text changes with what stands before it"


def _drawn_otherwise(model: PreTrainedModel, batch: Batch, forwards: Forwards, head: LeanHead | None, *, apart: bool) -> str | None:
    """How the replacements draw otherwise than what stands now."""

    def compute(head: LeanHead | None) -> None:
        with nullcontext() if head is None else head.at_work(None):
            logits_of(model, batch)

    own = drawn(model, lambda: compute(None if head is not None and head.layer in forwards else head))
    found = _with(forwards, lambda: drawn(model, lambda: compute(head)))
    return found if isinstance(found, str) else otherwise(own, found, apart=apart)


def rounded(
    model: PreTrainedModel,
    task: Task,
    batches: Sequence[Batch],
    truths: Sequence[Computed],
    forwards: Forwards,
    head: LeanHead | None = None,
) -> str | None:
    """Why the replacements, proved equal in float32, cannot be used under autocast: their rounding errors beside those of what stands now."""
    with torch.autocast("cpu", torch.bfloat16):
        now = [computed(model, task, batch, None if head is not None and head.layer in forwards else head) for batch in batches]
        found = _with(forwards, lambda: [computed(model, task, batch, head) for batch in batches])
    if isinstance(found, str):
        return found
    return next((words for three in zip(truths, now, found, strict=True) if (words := coarser(*three))), None)


def _with(forwards: Forwards, compute: Callable[[], T]) -> T | str:
    """What comes out with the replacements, which are taken out again; or why nothing does."""
    before = {module: module.__dict__.get("forward") for module in forwards}
    put(forwards)
    try:
        return compute()
    except Exception as error:  # noqa: BLE001 - a model that looks like those known and is not: its own code stands
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    finally:
        take(list(forwards))
        for module, forward in before.items():
            if forward is not None:
                module.forward = forward


def _spread(logits: torch.Tensor) -> float:
    """Standard deviation of the logits; of a head of one output the largest, because texts that end alike have nearly the same."""
    found = logits.float().abs().max() if logits.shape[-1] == 1 else logits.float().std()
    return max(float(found), 1e-30)


def _mean(values: torch.Tensor) -> float:
    """Root mean square."""
    return float(values.square().mean().sqrt())


def difference(truth: Computed, found: Computed, limits: Limits = EXACT) -> str | None:
    """What differs by more than rounding; None: nothing."""
    if truth[0].shape != found[0].shape:
        return f"logits of the shape {tuple(found[0].shape)} instead of {tuple(truth[0].shape)}"
    gap, spread = (truth[0].float() - found[0].float()).abs(), _spread(truth[0])
    size, allowed = float(gap.max()), limits.logits * spread
    if limits.rounded:
        size, allowed = _mean(gap), allowed + torch.finfo(truth[0].dtype).eps * _mean(truth[0].float())
    if not size <= allowed:
        return f"logits differ by {size / spread:.1g} standard deviations"
    whole = float(torch.stack([each.norm() for each in truth[1].values()]).norm())
    for name, gradient in truth[1].items():
        apart = float((gradient - found[1][name]).norm())
        if not apart <= limits.gradient * float(gradient.norm()) + limits.tiny * whole:
            return f"the gradient of {name} differs by {apart / max(float(gradient.norm()), 1e-30):.1g}"
    return None


def coarser(truth: Computed, now: Computed, found: Computed) -> str | None:
    """Whose rounding errors are beyond `ROUNDED`; None: nobody's."""
    spread = _spread(truth[0]) * truth[0].numel() ** 0.5
    errors = [float((each[0].float() - truth[0].float()).norm()) for each in (now, found)]
    if not errors[1] <= 2 * errors[0] + ROUNDED.logits * spread:
        return f"in bfloat16 logits are off by {errors[1] / max(spread, 1e-30):.1g} where the model's own code is by {errors[0] / max(spread, 1e-30):.1g}"
    whole = float(torch.stack([each.norm() for each in truth[1].values()]).norm())
    for name, gradient in truth[1].items():
        errors, size = [float((each[1][name] - gradient).norm()) for each in (now, found)], float(gradient.norm())
        if not errors[1] <= 2 * errors[0] + ROUNDED.gradient * size + ROUNDED.tiny * whole:
            size = max(size, 1e-30)
            return f"in bfloat16 the gradient of {name} is off by {errors[1] / size:.1g} where the model's own code is by {errors[0] / size:.1g}"
    return None


def put(forwards: Forwards) -> None:
    for module, forward in forwards.items():
        module.forward = forward


def take(modules: list[nn.Module]) -> None:
    for module in modules:
        module.__dict__.pop("forward", None)
