"""How evenly the labels occur, and weights that make up for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ftcli.context import Context
from ftcli.contracts import Task
from ftcli.core.store import SplitData
from ftcli.core.tasks import Classify
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
    if labels is None or not isinstance(task, Classify):
        if wanted == "balanced":
            raise UsageError(f"train.class_weights = balanced: mode {task.name} has no label a row", "Leave it out.")
        return
    counts = np.bincount(labels, minlength=len(names or ()))
    there = np.flatnonzero(counts)
    most, least = there[counts[there].argmax()], there[counts[there].argmin()]
    known = names or [str(number) for number in range(len(counts))]
    words = (
        f"{len(there)} labels in train: the commonest, {known[most]!r}, has {counts[most]:,} rows ({counts[most] / len(labels):.1%}), "
        f"the rarest, {known[least]!r}, {counts[least]:,}"
    )
    if wanted == "balanced":
        weights = balanced(counts)
        task.class_weights = weights
        context.note(f"{words}; their losses are weighed with {weights[most]:.3g} and {weights[least]:.3g}")
    else:
        uneven = counts[most] > UNEVEN * counts[least]
        context.note(f"{words}{'; --class-weights balanced gives every label the same say' if uneven else ''}")


def balanced(counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """A weight a label: rows / (labels × rows of the label), as scikit-learn's "balanced"; over all rows their mean is 1. Labels without rows: 1.

    >>> balanced(np.array([3, 1, 0])).tolist()
    [0.6666666865348816, 2.0, 1.0]
    """
    there = counts > 0
    weights = np.ones(len(counts), np.float32)
    weights[there] = counts.sum() / (there.sum() * counts[there])
    return weights
