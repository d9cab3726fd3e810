"""Figures of an evaluation, summed over batches and processes without keeping a logit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ftcli.contracts import Task
from ftcli.core.batches.tasks import any_number, count_targets, measured
from ftcli.core.models.confusion import Confusion
from ftcli.core.storage.store import SplitData
from ftcli.errors import DataError

BY_LABELS = {
    "tokens": ("perplexity",),
    "classes": ("accuracy", "macro_f1"),
    "flags": ("micro_f1", "macro_f1", "exact_match"),
    "numbers": ("pearson", "rmse"),
}
"""Figures of an evaluation beside its loss."""
OF_TASK = {"classify": ("classes", "flags"), "regress": ("numbers",)}
FALLING = ("loss", "perplexity", "rmse")
"""Figures that are better the lower they are."""


def figures_of(task: Task | None, split: SplitData | None = None) -> tuple[str, ...]:
    """Names of the figures of an evaluation; of all that there might be, where the task or its data are not known."""
    if task is None:
        kinds: tuple[str, ...] = tuple(BY_LABELS)
    elif not task.needs_labels:
        kinds = ("tokens",)
    elif split is None:
        kinds = OF_TASK.get(task.name, tuple(BY_LABELS))
    else:
        kinds = ("flags" if split.flags is not None else "numbers" if split.numbers is not None else "classes",)
    return tuple(dict.fromkeys(("loss", *(name for kind in kinds for name in BY_LABELS[kind]))))


def _unfit(task: Task, words: str, logits: torch.Tensor) -> DataError:
    outputs = logits.shape[-1]
    return DataError(
        f"the labels of the task {task.name} are {words}, but the model has {outputs} output{'s' if outputs != 1 else ''}",
        "int64 labels are evaluated as classes, floats, one a row, as numbers: change the task's labels, or the outputs that its configure sets.",
    )


class HeldOut:
    """Sums of one evaluation. The loss is the mean over all targets, whatever the batches."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._sums: torch.Tensor | None = None
        self._classes: torch.Tensor | None = None
        self._flags: torch.Tensor | None = None
        self._rows: torch.Tensor | None = None
        self._numbers: torch.Tensor | None = None
        self.confusion = Confusion()

    def add(
        self, logits: torch.Tensor, labels: torch.Tensor, inputs: Mapping[str, Any] | None = None, loss: torch.Tensor | None = None
    ) -> None:
        """One batch: `logits` [rows, labels] with `labels` [rows] or [rows, labels], or [rows, width, vocabulary] with [rows, width].

        Args:
            inputs: what the model got; then mistakes are counted by pair of labels.
            loss: the batch's, summed, where a language model gave states for logits.
        """
        loss = self.task.loss(logits, labels, 1) if loss is None else loss
        sums = torch.stack([loss, count_targets(labels).to(loss.dtype)]).double()
        self._sums = sums if self._sums is None else self._sums + sums
        if measured(labels):
            if logits.numel() != labels.numel():
                raise _unfit(self.task, "numbers, one a row", logits)
            center = getattr(self.task, "center", 0.0)  # of years, say, whose squares would hide how they differ
            self._add_numbers(logits.squeeze(-1).double() - center, labels.double() - center)
        elif any_number(labels):
            self._add_flags(logits >= 0, labels > 0, inputs)
        elif labels.ndim == 1:
            guess, count = logits.argmax(-1), logits.shape[-1]
            hits = guess[guess == labels]
            each = [torch.bincount(which, minlength=count) for which in (hits, guess, labels)]
            if len(each[2]) > count:
                raise _unfit(self.task, f"classes up to {len(each[2]) - 1}", logits)
            counted = torch.stack(each)
            self._classes = counted if self._classes is None else self._classes + counted
            if inputs is not None:
                self.confusion.add(guess, labels, count, inputs)

    def _add_numbers(self, guess: torch.Tensor, true: torch.Tensor) -> None:
        sums = torch.stack([torch.ones_like(true), guess, true, guess * guess, true * true, guess * true]).sum(1)
        self._numbers = sums if self._numbers is None else self._numbers + sums

    def _add_flags(self, guess: torch.Tensor, held: torch.Tensor, inputs: Mapping[str, Any] | None) -> None:
        counted = torch.stack([guess & held, guess, held]).sum(1)
        rows = torch.stack([(guess == held).all(1).sum(), torch.tensor(len(held), device=held.device)])
        self._flags = counted if self._flags is None else self._flags + counted
        self._rows = rows if self._rows is None else self._rows + rows
        if inputs is not None:
            self.confusion.add_flags(guess, held, inputs)

    def metrics(self, total: Callable[[torch.Tensor | None], torch.Tensor | None]) -> dict[str, float]:
        """loss, and pearson with rmse of numbers, or accuracy with macro_f1, or micro_f1 with macro_f1 and exact_match (the share of rows with all labels right; a label is
        said from a probability of one half), or perplexity; empty after no batch. F1 is the mean over labels that were there or said.

        Args:
            total: sums a tensor over the processes, of which some may have had no batch, and so None.
        """
        sums, classes, flags, rows, numbers = (total(each) for each in (self._sums, self._classes, self._flags, self._rows, self._numbers))
        if sums is None:
            return {}
        loss, targets = sums.tolist()
        figures = {"loss": loss / max(1.0, targets)}
        if numbers is not None:
            return {**figures, "pearson": _pearson(*numbers.tolist()), "rmse": math.sqrt(figures["loss"])}
        if flags is not None and rows is not None:
            hits, guessed, true = flags.double()
            micro = 2 * hits.sum() / (guessed + true).sum().clamp_min(1)
            return {**figures, "micro_f1": float(micro), "macro_f1": _macro(hits, guessed + true), "exact_match": float(rows[0] / rows[1])}
        if classes is None:
            return {**figures, "perplexity": math.exp(min(figures["loss"], 700.0))}
        hits, guessed, true = classes.double()
        return {**figures, "accuracy": float(hits.sum() / true.sum()), "macro_f1": _macro(hits, guessed + true)}


def _pearson(count: float, guess: float, true: float, guesses: float, trues: float, both: float) -> float:
    """The correlation, from sums, of squares and of the product; 0 where one of the two does not vary."""
    spread_guess, spread_true = count * guesses - guess**2, count * trues - true**2
    if spread_guess <= 1e-12 * count * guesses or spread_true <= 1e-12 * count * trues:
        return 0.0
    return (count * both - guess * true) / math.sqrt(spread_guess * spread_true)


def _macro(hits: torch.Tensor, counted: torch.Tensor) -> float:
    """The mean F1 of the labels that were there or guessed; 0 where there was none."""
    present = counted > 0
    return float((2 * hits / counted)[present].mean()) if present.any() else 0.0
