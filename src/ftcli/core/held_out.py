"""Figures of an evaluation, summed over batches and processes without keeping a logit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ftcli.contracts import Task
from ftcli.core.confusion import Confusion
from ftcli.core.tasks import count_targets


class HeldOut:
    """Sums of one evaluation. The loss is the mean over all targets, whatever the batches."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._sums: torch.Tensor | None = None
        self._classes: torch.Tensor | None = None
        self.confusion = Confusion()

    def add(self, logits: torch.Tensor, labels: torch.Tensor, inputs: Mapping[str, Any] | None = None) -> None:
        """One batch: `logits` [rows, labels] with `labels` [rows], or [rows, width, vocabulary] with [rows, width].

        Args:
            inputs: what the model got; then mistakes are counted by pair of labels.
        """
        loss = self.task.loss(logits, labels, 1)
        sums = torch.stack([loss, count_targets(labels).to(loss.dtype)]).double()
        self._sums = sums if self._sums is None else self._sums + sums
        if labels.ndim == 1:
            guess, count = logits.argmax(-1), logits.shape[-1]
            hits = guess[guess == labels]
            counted = torch.stack([torch.bincount(which, minlength=count) for which in (hits, guess, labels)])
            self._classes = counted if self._classes is None else self._classes + counted
            if inputs is not None:
                self.confusion.add(guess, labels, count, inputs)

    def metrics(self, total: Callable[[torch.Tensor | None], torch.Tensor | None]) -> dict[str, float]:
        """loss, and accuracy with macro_f1 or perplexity; empty after no batch.

        Args:
            total: sums a tensor over the processes, of which some may have had no batch, and so None.
        """
        sums, classes = total(self._sums), total(self._classes)
        if sums is None:
            return {}
        loss, targets = sums.tolist()
        figures = {"loss": loss / max(1.0, targets)}
        if classes is None:
            return {**figures, "perplexity": math.exp(min(figures["loss"], 700.0))}
        hits, guessed, true = classes.double()
        present = (guessed + true) > 0
        f1 = (2 * hits / (guessed + true))[present].mean()
        return {**figures, "accuracy": float(hits.sum() / true.sum()), "macro_f1": float(f1)}
