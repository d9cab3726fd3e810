"""What a run's log is held against: what is known of its rows and labels without a look at the texts."""

from __future__ import annotations

import numpy as np

from ftcli.core.held_out_rows import too_few
from ftcli.core.storage.label_flags import entropy
from ftcli.core.training.outcome import majority
from ftcli.core.training.run import Run
from ftcli.core.training.schedule import planned
from ftcli.core.training.trends import Course


def course_of(run: Run, steps: int) -> Course:
    """What the log is held against. Weighed losses stand still at chance."""
    arguments, fresh, labels = run.arguments, run.context.settings.model.config is not None, run.train.labels
    chance = run.task.chance_loss(run.model.config, run.store)
    unlearned: float | None = chance if fresh else None
    held_out = None
    weighed = getattr(run.task, "class_weights", None) is not None
    if run.task.needs_labels and labels is not None:
        shares = np.bincount(labels) / len(labels)
        unlearned = chance if weighed else -float((shares[shares > 0] * np.log(shares[shares > 0])).sum())
        share = majority(run)
        held_out = None if share is None or run.held_out is None else (share, len(run.held_out))
    elif run.train.numbers is not None:
        unlearned = float(run.train.numbers.var(dtype=np.float64))
    elif run.train.flags is not None:
        unlearned = chance if weighed else entropy(run.train.flags.counts, len(run.train.flags))
    # skipped steps, and a scheduler of its own
    schedule = None if arguments.fp16 or arguments.deepspeed else planned(arguments, steps)
    rows = run.held_out
    few = (
        rows is not None
        and too_few(int(rows.text_counts.sum()), int(rows.lengths.sum()), "accuracy" if run.task.needs_labels else None) is not None
    )
    optimizer, spread, there = str(run.context.settings.train.optim), spread_elsewhere(run), labels_there(run)
    return Course(chance, unlearned, arguments.learning_rate, optimizer, schedule, held_out, spread, there, weighed, few)


def labels_there(run: Run) -> int:
    """How many labels the held-out rows have; 0 where rows have none, or any number of them."""
    return 0 if run.held_out is None or run.held_out.labels is None else len(np.unique(run.held_out.labels))


def spread_elsewhere(run: Run) -> float | None:
    """Mean square of the held-out numbers' distance from the mean of those in training: the loss of always saying that mean."""
    if run.held_out is None or run.held_out.numbers is None or run.train.numbers is None:
        return None
    return float(np.square(run.held_out.numbers - run.train.numbers.mean(dtype=np.float64)).mean())
