"""How evenly the labels occur, and weights that make up for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ftcli.context import Context
from ftcli.contracts import Task
from ftcli.core.batches.tasks import Classify
from ftcli.core.storage.label_flags import LabelFlags
from ftcli.core.storage.store import SplitData
from ftcli.errors import UsageError

UNEVEN = 10.0
"""Largest over smallest label from which weights are proposed."""


def balance(context: Context, task: Task, train: SplitData, names: list[str] | None) -> None:
    """Note how evenly the labels occur, and weigh the task's loss as `train.class_weights` says.

    Raises:
        UsageError: weights are asked for, and the task has no labels a row.
    """
    wanted = context.settings.train.class_weights
    labels = train.labels
    if train.flags is not None and isinstance(task, Classify):
        _balance_flags(context, task, train.flags, names)
        return
    if labels is None or not isinstance(task, Classify):
        if wanted == "balanced":
            raise UsageError(f"train.class_weights = balanced: mode {task.name} has no classes", "Leave it out.")
        return
    counts = np.bincount(labels, minlength=len(names or ()))
    there = np.flatnonzero(counts)
    most, least = there[counts[there].argmax()], there[counts[there].argmin()]
    known = names or [str(number) for number in range(len(counts))]
    words = (
        f"{len(there)} labels in train: the commonest, {known[most]!r}, has {counts[most]:,} rows ({counts[most] / len(labels):.1%}), "
        f"the rarest, {known[least]!r}, {counts[least]:,}"
    )
    if counts[most] == counts[least]:
        words = f"{len(there)} labels in train, {counts[most]:,} rows each"
    if wanted == "balanced":
        weights = balanced(counts)
        task.class_weights = weights
        context.note(f"{words}; their losses are weighed with {weights[most]:.3g} and {weights[least]:.3g}")
    else:
        uneven = counts[most] > UNEVEN * counts[least]
        context.note(f"{words}{'; --class-weights balanced gives every label the same say' if uneven else ''}")


def _balance_flags(context: Context, task: Classify, flags: LabelFlags, names: list[str] | None) -> None:
    """As `balance`, where a row has any number of labels."""
    counts, rows = flags.counts, len(flags)
    known = names or [str(number) for number in range(flags.width)]
    there = np.flatnonzero(counts)
    if not len(there):
        context.note("no train row has any label")
        return
    most, least = there[counts[there].argmax()], there[counts[there].argmin()]
    words = (
        f"{len(there)} labels in train, {counts.sum() / rows:.3g} a row: the commonest, {known[most]!r}, is in {counts[most] / rows:.1%} of the rows, "
        f"the rarest, {known[least]!r}, in {counts[least]:,}"
    )
    if context.settings.train.class_weights == "balanced":
        task.class_weights = balanced_sides(counts, rows)
        context.note(
            f"{words}; where they hold, their losses are weighed with {task.class_weights[1, most]:.3g} and {task.class_weights[1, least]:.3g}"
        )
    else:
        uneven = counts[most] > UNEVEN * counts[least]
        context.note(f"{words}{'; --class-weights balanced lets holding and not holding weigh the same' if uneven else ''}")


def balanced_sides(counts: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
    """Weights [2, labels] of a label where it does not hold and where it does: rows / (2 × such rows), so that both sides have the same say and
    over all rows the mean of each label's weights is 1. A label with one side only: 1.

    >>> balanced_sides(np.array([1, 4]), 4).tolist()
    [[0.6666666865348816, 1.0], [2.0, 1.0]]
    """
    sides = np.stack([rows - counts, counts])
    weights = np.ones(sides.shape, np.float32)
    both = (sides > 0).all(0)
    weights[:, both] = rows / (2 * sides[:, both])
    return weights


def balanced(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """A weight a label: rows / (labels × rows of the label), as scikit-learn's "balanced"; over all rows their mean is 1. Labels without rows: 1.

    >>> balanced(np.array([3, 1, 0])).tolist()
    [0.6666666865348816, 2.0, 1.0]
    """
    there = counts > 0
    weights = np.ones(len(counts), np.float32)
    weights[there] = counts.sum() / (there.sum() * counts[there])
    return weights
