"""One batch through the model in fp32: logits, loss, gradients, and what the logits alone imply."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from ftcli.contracts import Task
from ftcli.core.batches.tasks import IGNORED, any_number, measured
from ftcli.core.training.health import strangers_loss, strangers_square
from ftcli.errors import ModelError

HISTOGRAM_BINS = 40
LARGE = 1e-7
"""A gradient for which AdamW takes a step of the full learning rate: ten times its epsilon."""


@dataclass
class Forward:
    """What came out. `logits` fp32 [targets, classes] are those that a label is compared with; `labels` int64 [targets], or float [targets,
    classes] where a row has any number of labels."""

    model: PreTrainedModel
    batch: Mapping[str, torch.Tensor]
    task: Task
    logits: torch.Tensor
    labels: torch.Tensor
    loss: float

    @property
    def classes(self) -> int:
        return self.logits.shape[-1]

    @property
    def finite(self) -> bool:
        return bool(self.logits.isfinite().all())

    @property
    def implied_loss(self) -> float:
        """Loss that these logits give to labels drawn uniformly: mean(logsumexp z - mean z), ln(classes) for flat logits; or, of any number of
        labels, to those of other rows, ln 2 for flat logits."""
        if any_number(self.labels):
            return strangers_loss(self.logits, self.labels)
        if measured(self.labels):
            return strangers_square(self.logits.squeeze(-1), self.labels)
        return float((self.logits.logsumexp(-1) - self.logits.mean(-1)).mean())

    def expected_loss(self, chance: float) -> float:
        """`chance`; of numbers, what answering 0 gives for those of this batch, from which all of train's may be far."""
        return float(self.labels.float().square().mean()) if measured(self.labels) else chance

    @property
    def logit_std(self) -> float:
        """Standard deviation over the classes, averaged over the targets; of numbers, over the rows."""
        if measured(self.labels):
            return float(self.logits.std(correction=0))
        return float(self.logits.std(-1).mean())

    @property
    def effective_targets(self) -> float:
        """1 / sum of squared label shares: how many labels the batch really tests; of any number of labels, the rows."""
        if any_number(self.labels) or measured(self.labels):
            return float(len(self.labels))
        _, counts = np.unique(self.labels.cpu().numpy(), return_counts=True)
        return float(counts.sum() ** 2 / (counts.astype(float) ** 2).sum())

    def histogram(self) -> dict[str, list[float]]:
        """Counts of logit values; at most 200,000 of them are looked at."""
        values = self.logits.flatten()
        values = values[:: max(1, len(values) // 200_000)]
        finite = values[values.isfinite()]
        if not len(finite):
            return {"edges": [0.0, 1.0], "counts": [0.0]}
        counts, edges = torch.histogram(finite.cpu(), HISTOGRAM_BINS)
        return {"edges": [round(edge, 4) for edge in edges.tolist()], "counts": counts.tolist()}

    def gradients(self) -> Gradients:
        """Gradients of the batch's loss at every trainable parameter.

        Raises:
            ModelError: no parameter is trainable.
        """
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ModelError("every parameter is frozen (requires_grad = False)", "Keep some of them trainable.")
        self.model.zero_grad(set_to_none=True)
        with torch.enable_grad():
            logits = self.model(**inputs_of(self.batch)).logits
            torch.autograd.backward(self.task.loss(logits, self.batch["labels"], None))
        norms = {
            name: None if parameter.grad is None else float(parameter.grad.norm())
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        self.model.zero_grad(set_to_none=True)
        return Gradients(norms)


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradient norm of every trainable parameter; None where backward gave none."""

    norms: Mapping[str, float | None]

    @property
    def total(self) -> float:
        return math.sqrt(sum(norm**2 for norm in self.norms.values() if norm is not None))

    def dead(self) -> list[str]:
        """Parameters without a gradient, or with one that is zero or not finite."""
        return [name for name, norm in self.norms.items() if norm is None or norm == 0 or not math.isfinite(norm)]


def inputs_of(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The model's arguments: everything but the labels."""
    return {name: value for name, value in batch.items() if name != "labels"}


def arguments_of(model: PreTrainedModel) -> set[str]:
    """Names that the model's forward, or that of its backbone, takes; of an adapter the adapted model's."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return {name for part in (inner, inner.base_model) for name in inspect.signature(part.forward).parameters}


def forward(model: PreTrainedModel, batch: Mapping[str, torch.Tensor], task: Task) -> Forward:
    """Run the batch, which has a target, in the mode that the model is in (a probe's: evaluation), in its own type."""
    batch = {name: value.to(model.device) for name, value in batch.items()}
    with torch.no_grad():
        logits = model(**inputs_of(batch)).logits
        loss = float(task.loss(logits, batch["labels"], None))
    labels = batch["labels"]
    if logits.ndim == 3:
        logits, labels = logits[:, :-1], labels[:, 1:]
    kept = labels != IGNORED if not any_number(labels) else labels.ne(IGNORED).any(1)
    return Forward(model, batch, task, logits[kept].float(), labels[kept], loss)


def spread(logits: torch.Tensor) -> float:
    """Standard deviation of logits, but no less than a thousandth of the largest one, so that rounding (1e-7 of it) never looks like a change."""
    return max(float(logits.std(correction=0)), 1e-3 * float(logits.abs().max()), 1e-12)


def relative_change(alone: torch.Tensor, together: torch.Tensor, unit: float) -> float:
    """Largest difference of two logit tensors in units of their spread: clean models stay under 7e-6 in fp32, faults start at 1e-2."""
    return float((alone - together).abs().max()) / unit


def descend(
    result: Forward, make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer], steps: int, clip: float = 0.0
) -> tuple[list[float], float]:
    """Take steps of the optimizer that `make` makes on one batch, gradients clipped to the norm `clip` (0: not), and put the weights back.

    Returns:
        The loss before each step and after the last, in evaluation mode; the share that moved of the weights with a `LARGE` gradient.
    """
    model, batch = result.model, result.batch
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in parameters]
    reached = [torch.zeros_like(parameter, dtype=torch.bool) for parameter in parameters]
    optimizer = make(parameters)
    losses = [result.loss]
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.enable_grad():
            torch.autograd.backward(result.task.loss(model(**inputs_of(batch)).logits, batch["labels"], None))
        for had, parameter in zip(reached, parameters, strict=True):
            if parameter.grad is not None:
                had.logical_or_(parameter.grad.abs() > LARGE)
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        losses.append(forward(model, batch, result.task).loss)
    moved = total = 0
    with torch.no_grad():
        for parameter, old, had in zip(parameters, before, reached, strict=True):
            moved += int(((parameter != old) & had).sum())
            total += int(had.sum())
            parameter.copy_(old)
    model.zero_grad(set_to_none=True)
    return losses, moved / max(1, total)
