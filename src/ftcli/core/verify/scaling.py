"""Whether losses follow `num_items_in_batch`: the run's own, which must, and the model's, which a plain Trainer would use."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from ftcli.contracts import Task
from ftcli.core.batches.tasks import IGNORED, any_number, count_targets, measured
from ftcli.core.verify.forward import inputs_of


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """How the run's own loss behaves on one batch; 0.1, 1, 1, 1 and about 1 are sound."""

    ratio: float
    """loss(ten times the targets) / loss(the targets)."""
    parts: float
    """Sum of the losses of its rows, each divided by the targets of all / loss of the batch: 1 however a step is split."""
    own: float
    """loss(no count given) / loss(the targets)."""
    plain: float
    """loss(the targets) / plain cross-entropy of the same logits."""
    trained: float
    """What the run learns by, `training_loss`, where the task has one / loss."""


def own_loss(model: PreTrainedModel, batch: Mapping[str, torch.Tensor], task: Task) -> OwnLoss:
    """Measure the loss of the run's task."""
    with torch.no_grad():
        logits, labels = model(**inputs_of(batch)).logits, batch["labels"]
        items = int(count_targets(labels))
        whole = _number(task.loss(logits, labels, torch.tensor(items)))
        many = _number(task.loss(logits, labels, torch.tensor(10 * items)))
        parts = sum(_number(task.loss(logits[row : row + 1], labels[row : row + 1], torch.tensor(items))) for row in range(len(labels)))
        alone = _number(task.loss(logits, labels, None))
        plain = _number(_plain(logits.float(), labels))
        trained = _number(getattr(task, "training_loss", task.loss)(logits, labels, torch.tensor(items)))
    unit = whole or 1e-12
    return OwnLoss(many / unit, parts / unit, alone / unit, whole / (plain or 1e-12), trained / unit)


def _plain(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What torch's own functions make of them."""
    if any_number(labels):
        return functional.binary_cross_entropy_with_logits(logits, labels)
    if measured(labels):
        return functional.mse_loss(logits.squeeze(-1), labels)
    flat, targets = (logits, labels) if labels.ndim == 1 else (logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    return functional.cross_entropy(flat, targets, ignore_index=IGNORED)


def loss_ratio(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> float | None:
    """loss(ten times the targets) / loss(the targets): 0.1 for a model that divides by `num_items_in_batch`, 1 for one that ignores it.

    None when Trainer does not hand it the count, and divides by the accumulation steps itself: `accepts_loss_kwargs` is false, or the forward takes no
    such argument; or when the model has no loss of its own.
    """
    takes = inspect.signature(model.forward).parameters.values()
    accepts = getattr(model, "accepts_loss_kwargs", any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes))
    if not accepts:
        return None
    items = int(count_targets(batch["labels"]))
    try:
        with torch.no_grad():
            few, many = (_number(model(**batch, num_items_in_batch=torch.tensor(count)).loss) for count in (items, 10 * items))
    except Exception:  # noqa: BLE001 - a model may have no loss for such labels, and the run does not use it
        return None
    return many / few if few else None


def _number(loss: torch.Tensor) -> float:
    return float(loss.detach())
