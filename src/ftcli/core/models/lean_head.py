"""The next token's cross-entropy without the logits of a whole batch: some rows of logits at a time, turned into their gradient where they stand.

The usual way writes and reads an array of tokens × vocabulary eight times (logits, their logarithm, its gradient …), and for every position, learned or
not. Here only positions with a target are multiplied by the output layer, and a piece is done with before the next one: where all are targets, that saves
memory and hardly time. In float32 on a CPU a piece goes by blocks of ids (`lean_vocabulary.py`), which saves time as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ftcli.contracts import Task
from ftcli.core.batches.tasks import IGNORED, Pretrain
from ftcli.core.models import lean_vocabulary
from ftcli.core.models.scripted import scripted
from ftcli.core.models.step_memory import logits_at_once
from ftcli.errors import ModelError

Tensor = torch.Tensor
IN_CACHE = 2**18
"""Logits of a core that the passes between two products take at a time: a megabyte of float32 stays in its cache from one pass to the next. 1,020 targets of 8,192 ids,
one core of a Xeon with amx_bf16, in bfloat16: 40 to 45 ms in place of 54 to 57."""


class LinearCrossEntropy(torch.autograd.Function):
    """`hidden` [N, H], `weight` [V, H], `targets` [N] → the summed cross-entropy over `items`; the gradients are computed on the way.

    `kind` is the type of the products: hidden's own, or a narrower one. Everything else is in float32. A frozen `weight` (LoRA) gets no gradient.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, items: Tensor, kind: torch.dtype) -> Tensor:
        ahead = torch.empty_like(hidden)
        outer = torch.empty_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] and len(hidden) else None
        total = _in_pieces(hidden.to(kind), weight.to(kind), targets, 1.0 / items.to(torch.float32), ahead, outer)
        ctx.save_for_backward(ahead, None if outer is None else outer.to(weight.dtype))
        return (total / items).float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        ahead, outer = ctx.saved_tensors
        if grad.is_cpu and grad == 1:  # on a GPU the question would wait for it
            return ahead, outer, None, None, None
        return ahead * grad, None if outer is None else outer * grad, None, None, None


def _in_pieces(hidden: Tensor, weight: Tensor, targets: Tensor, share: Tensor | None, ahead: Tensor | None, outer: Tensor | None) -> Tensor:
    """What `lean_vocabulary.cross_entropy` gives, of any number of rows.

    Raises:
        ModelError: on a CPU, a target is no row of `weight`.
    """
    if hidden.is_cpu and len(targets):
        lowest, highest = (int(target) for target in targets.aminmax())
        if lowest < 0 or highest >= len(weight):
            raise ModelError(
                f"a target token has the id {lowest if lowest < 0 else highest:,}, but the model's output layer has {len(weight):,} rows",
                f"Use the model's own tokenizer; label tokens that should not be learned with {IGNORED}.",
            )
    total = torch.zeros((), dtype=torch.float64, device=hidden.device)
    kinds = {each.dtype for each in (hidden, weight, ahead, outer) if each is not None}
    way = lean_vocabulary.cross_entropy if hidden.is_cpu and kinds == {torch.float32} else _whole_rows
    step = logits_at_once("cpu" if hidden.is_cpu else "gpu", len(weight)) // len(weight)
    for start in range(0, len(hidden), step):
        some = slice(start, start + step)
        total += way(hidden[some], weight, targets[some], share, None if ahead is None else ahead[some], outer, more=start > 0)
    return total


def _whole_rows(
    hidden: Tensor, weight: Tensor, targets: Tensor, share: Tensor | None, ahead: Tensor | None, outer: Tensor | None, *, more: bool
) -> Tensor:
    """What `lean_vocabulary.cross_entropy` gives, where products are in a narrower type or on a GPU."""
    logits = hidden @ weight.t()
    total = _lost(logits, targets, _few(logits), share)
    if ahead is not None:
        ahead.copy_(logits @ weight)
    if outer is not None:
        product = logits.t() @ hidden
        if more:
            outer.add_(product)
        else:
            outer.copy_(product)
    return total


def _few(logits: Tensor) -> int:
    return max(1, IN_CACHE * torch.get_num_threads() // logits.shape[1]) if logits.is_cpu else len(logits)


@scripted
def _lost(logits: Tensor, targets: Tensor, few: int, share: Tensor | None) -> Tensor:
    """The summed cross-entropy, in float64; the logits become their gradient where `share`, a row's part of the loss, is given, and are used up in any case.

    Args:
        few: rows at a time.
    """
    total = torch.zeros([], dtype=torch.float64, device=logits.device)
    for start in range(0, len(logits), few):
        part, wanted = logits[start : start + few], targets[start : start + few].unsqueeze(1)
        scores = part.float()
        right = scores.gather(1, wanted)
        most = scores.amax([1], keepdim=True)
        sums = scores.sub_(most).exp_().sum(1, keepdim=True)
        total += (sums.log() + most - right).sum(dtype=torch.float64)
        if share is not None:
            scores.mul_(share / sums).scatter_add_(1, wanted, (-share).expand(wanted.shape))
            if part.dtype != scores.dtype:
                part.copy_(scores)
    return total


def why_not(model: PreTrainedModel, task: Task) -> str | None:
    """Why the loss cannot be computed in pieces; None: it can be tried."""
    layer: Any = model.get_output_embeddings()
    if task.needs_labels or getattr(type(task), "loss", None) is not Pretrain.loss or hasattr(task, "training_loss"):
        return "its loss is not next-token prediction"
    if type(layer) is not nn.Linear or layer.bias is not None:
        return "the output layer is not a plain matrix"
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return "the output layer has hooks" if any(hooks) else None


class LeanHead:
    """While `armed` the model gives, for its logits, the states that the output layer would get; `loss` goes on from there.

    Without gradients it gives logits all the same, but inside `measuring`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.layer: Any = model.get_output_embeddings()
        self.armed = False
        self._measuring = False
        self.stretch = 1
        """What the states are multiplied with: only for a question about what the model does with them (`lean_proof.bent`)."""
        self.kind: torch.dtype | None = None
        """Of the products, where they are narrower than the weights; the loss is computed where autocast has ended."""
        original = self.layer.forward

        @wraps(original)
        def forward(hidden: Tensor) -> Tensor:
            if not self.armed or not (self._measuring or torch.is_grad_enabled()):
                logits: Tensor = original(hidden)
                return logits
            return hidden if self.stretch == 1 else hidden * self.stretch

        self.forwards = {self.layer: forward}

    @contextmanager
    def at_work(self, kind: torch.dtype | None) -> Iterator[None]:
        """Inside, `loss` computes what the model gives, with products of this type."""
        before, self.armed, self.kind = (self.armed, self.kind), True, kind
        try:
            yield
        finally:
            self.armed, self.kind = before

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """An evaluation's batch, of which nothing but the loss is wanted."""
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False

    def logits(self, hidden: Tensor) -> Tensor:
        """Of some states, which a step under autocast gives in float32 whatever the weights."""
        with torch.no_grad():
            found: Tensor = self.layer(hidden.to(self.layer.weight.dtype))
        return found

    def loss(self, hidden: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        """`hidden` [rows, width, H], `labels` [rows, width] not shifted; the same number as `Pretrain.loss` of the logits."""
        targets = labels[:, 1:].flatten()
        places = (targets != IGNORED).nonzero().squeeze(1)
        before = hidden[:, :-1].flatten(0, 1)
        if len(places) < len(targets):
            targets, before = targets[places], before[places]
        count = torch.as_tensor(len(targets) if items is None else items, dtype=torch.float64, device=hidden.device).clamp_min(1)
        weight = self.layer.weight
        kind = self.kind or weight.dtype
        with torch.autocast(hidden.device.type, enabled=False):
            before = before.to(weight.dtype)
            if not torch.is_grad_enabled():
                return (_in_pieces(before.to(kind), weight.to(kind), targets, None, None, None) / count).float()
            total: Tensor = LinearCrossEntropy.apply(before, weight, targets, count, kind)  # type: ignore[no-untyped-call]
        return total
