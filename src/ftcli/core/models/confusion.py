"""Which labels a classifier takes for which, or misses and says wrongly: counted over an evaluation, with a text for the commonest mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

MOST_LABELS = 2_048
"""Labels up to which every pair is counted: 32 MB of counts."""
EXAMPLES = 400
"""Rows with mistakes that are kept, each of another pair."""
TOKENS = 48
"""Of an example."""
SHOWN = 20


MISSED, WRONG = -1, -2
"""In place of the label that was said, or that was true: none."""


class Confusion:
    """Counts of (true, predicted) over one evaluation of one process."""

    def __init__(self) -> None:
        self._counts: torch.Tensor | None = None
        self._flags: torch.Tensor | None = None
        self._examples: dict[tuple[int, int], list[int]] = {}

    def add(self, guess: torch.Tensor, labels: torch.Tensor, count: int, inputs: Mapping[str, Any]) -> None:
        """One batch: `guess` and `labels` [rows], of `count` labels."""
        if count > MOST_LABELS:
            return
        counted = torch.bincount(labels * count + guess, minlength=count * count)
        self._counts = counted if self._counts is None else self._counts + counted
        if len(self._examples) >= EXAMPLES:
            return
        for row in torch.nonzero(guess != labels).flatten().tolist():
            self._keep((int(labels[row]), int(guess[row])), row, inputs)

    def add_flags(self, guess: torch.Tensor, held: torch.Tensor, inputs: Mapping[str, Any]) -> None:
        """One batch of rows with any number of labels: `guess` and `held` bool [rows, labels]."""
        counted = torch.stack([guess & held, guess & ~held, ~guess & held, ~guess & ~held]).sum(1)
        self._flags = counted if self._flags is None else self._flags + counted
        if len(self._examples) >= EXAMPLES:
            return
        for row, label in torch.nonzero(guess != held)[: 4 * EXAMPLES].tolist():
            self._keep((label, MISSED) if held[row, label] else (WRONG, label), row, inputs)

    def _keep(self, pair: tuple[int, int], row: int, inputs: Mapping[str, Any]) -> None:
        if pair not in self._examples and len(self._examples) < EXAMPLES:
            ids, mask = inputs["input_ids"][row], inputs.get("attention_mask")
            self._examples[pair] = (ids if mask is None else ids[mask[row].bool()])[:TOKENS].tolist()

    def summary(self, total: Callable[[torch.Tensor | None], torch.Tensor | None]) -> Summary | FlagSummary | None:
        """Of all processes; None where nothing was counted. Every process must call it.

        Args:
            total: sums a tensor over the processes, of which some may have had no batch, and so None.
        """
        counts, flags = total(self._counts), total(self._flags)
        if flags is not None:
            return FlagSummary(flags.cpu(), dict(self._examples))
        if counts is None:
            return None
        width = round(len(counts) ** 0.5)
        return Summary(counts.reshape(width, width).cpu(), dict(self._examples))


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts [true, predicted] and examples of this process."""

    counts: torch.Tensor
    examples: dict[tuple[int, int], list[int]]

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


@dataclass(frozen=True, slots=True)
class FlagSummary:
    """Counts [rightly said, wrongly said, missed, rightly not said] of every label, and examples of this process."""

    counts: torch.Tensor
    examples: dict[tuple[int, int], list[int]]

    def report(self, names: Sequence[str], decode: Callable[[list[int]], str]) -> dict[str, Any]:
        """As `Summary.report`; a mistake is a label that was missed ("predicted" is None), with its share of the rows that have the label, or
        said wrongly ("true" is None), with its share of those it was said of."""
        hits, wrong, missed, _ = self.counts.tolist()
        mistakes = [(count, (WRONG, label), count + hits[label]) for label, count in enumerate(wrong) if count]
        mistakes += [(count, (label, MISSED), count + hits[label]) for label, count in enumerate(missed) if count]
        mistakes.sort(key=lambda one: -one[0])
        largest = [
            {
                "true": None if true < 0 else names[true],
                "predicted": None if said < 0 else names[said],
                "rows": count,
                "share": count / of,
                "example": None if (true, said) not in self.examples else decode(self.examples[true, said]),
            }
            for count, (true, said), of in mistakes[:SHOWN]
        ]
        classes: list[dict[str, Any]] = [
            {
                "label": names[label],
                "rows": hit + missed[label],
                "recall": hit / (hit + missed[label]),
                "precision": hit / (hit + wrong[label]) if hit + wrong[label] else None,
                "f1": 2 * hit / (2 * hit + wrong[label] + missed[label]),
                "wrongly_said": wrong[label],
                "missed": missed[label],
            }
            for label, hit in enumerate(hits)
            if hit + missed[label]
        ]
        classes.sort(key=lambda one: (one["recall"], one["label"]))
        return {"largest": largest, "classes": classes}
