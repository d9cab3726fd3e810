"""Which labels a classifier takes for which: counted over an evaluation, with a text for the commonest mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

MOST_LABELS = 2_048
"""Labels up to which every pair is counted: 32 MB of counts."""
EXAMPLES = 400
"""Rows with mistakes that are kept, each of another pair."""
TOKENS = 48
"""Of an example."""
SHOWN = 20


class Confusion:
    """Counts of (true, predicted) over one evaluation of one process."""

    def __init__(self) -> None:
        self._counts: torch.Tensor | None = None
        self._examples: dict[tuple[int, int], list[int]] = {}

    def add(self, guess: torch.Tensor, labels: torch.Tensor, count: int, inputs: Mapping[str, Any]) -> None:
        """One batch: `guess` and `labels` [rows], of `count` labels."""
        if count > MOST_LABELS:
            return
        counted = torch.bincount(labels * count + guess, minlength=count * count)
        self._counts = counted if self._counts is None else self._counts + counted
        if len(self._examples) >= EXAMPLES:
            return
        mask = inputs.get("attention_mask")
        for row in torch.nonzero(guess != labels).flatten().tolist():
            pair = int(labels[row]), int(guess[row])
            if pair not in self._examples and len(self._examples) < EXAMPLES:
                ids = inputs["input_ids"][row]
                self._examples[pair] = (ids if mask is None else ids[mask[row].bool()])[:TOKENS].tolist()

    def summary(self, total: Callable[[torch.Tensor | None], torch.Tensor | None]) -> Summary | None:
        """Of all processes; None where nothing was counted. Every process must call it.

        Args:
            total: sums a tensor over the processes, of which some may have had no batch, and so None.
        """
        counts = total(self._counts)
        if counts is None:
            return None
        width = round(len(counts) ** 0.5)
        return Summary(counts.reshape(width, width).cpu(), dict(self._examples))


class Summary:
    """Counts [true, predicted] and examples of this process."""

    def __init__(self, counts: torch.Tensor, examples: dict[tuple[int, int], list[int]]) -> None:
        self.counts = counts
        self.examples = examples

    def report(self, names: Sequence[str], decode: Callable[[list[int]], str]) -> dict[str, Any]:
        """`largest`: the commonest mistakes, with their share of the true label's rows; `classes`: labels with the lowest recall first."""
        true, guessed, hits = self.counts.sum(1), self.counts.sum(0), self.counts.diagonal()
        wrong = self.counts.clone()
        wrong.fill_diagonal_(0)
        width = len(true)
        largest = []
        for place in wrong.flatten().argsort(descending=True, stable=True)[:SHOWN].tolist():
            row, column = divmod(place, width)
            if not wrong[row, column]:
                break
            example = self.examples.get((row, column))
            largest.append(
                {
                    "true": names[row],
                    "predicted": names[column],
                    "rows": int(wrong[row, column]),
                    "share": float(wrong[row, column] / true[row]),
                    "example": None if example is None else decode(example),
                }
            )
        classes: list[dict[str, Any]] = [
            {
                "label": names[row],
                "rows": int(true[row]),
                "recall": float(hits[row] / true[row]),
                "precision": float(hits[row] / guessed[row]) if guessed[row] else None,
                "f1": float(2 * hits[row] / (true[row] + guessed[row])),
            }
            for row in range(width)
            if true[row]
        ]
        classes.sort(key=lambda one: (one["recall"], one["label"]))
        return {"largest": largest, "classes": classes}
