"""Labels of a plugin's task: what the loss cannot take is named before the first step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ftcli.core.batches.tasks import Classify, Pretrain, Regress
from ftcli.core.batches.watched_task import refuse_labels
from ftcli.core.models.held_out import HeldOut
from ftcli.core.storage.store import Ragged, Rows
from ftcli.errors import DataError, PluginError

FLOATS, INTS, NARROW = np.float32, np.int64, np.int32


@pytest.mark.parametrize(
    ("like", "own", "labels", "said"),
    [
        (Pretrain, False, lambda found: found.astype(FLOATS), "are float32 [2256], one a token"),
        (Classify, False, lambda found: found.astype(FLOATS), "are float32 [24], one a row"),
        (Classify, False, lambda found: found.astype(NARROW), "are int32 [24], one a row"),
        (Classify, False, lambda found: found[:, None], "are int64 [24, 1]"),
        (Classify, True, lambda found: found[:, None], "are int64 [24, 1]"),
        (Classify, True, lambda found: found[1:], "are int64 [23]"),
        (Classify, True, list, "are a list"),
        (Classify, True, lambda _: 1 / 0, "broke: ZeroDivisionError"),
        (Regress, False, lambda found: found.astype(INTS), "are int64 [24], one a row"),
        (Classify, False, lambda found: found, None),
        (Classify, False, lambda found: np.eye(4, dtype=FLOATS)[found], None),
        (Classify, True, lambda found: found.astype(FLOATS), None),  # it may be a regression
        (Classify, True, lambda found: found.astype(NARROW), None),
        (Regress, False, lambda found: found.astype(np.float64), None),
        (Regress, True, lambda found: found.astype(INTS), None),
        (Pretrain, True, lambda found: found, None),
        (Pretrain, True, lambda found: found.astype(FLOATS), None),
    ],
)
def test_labels_that_the_loss_of_a_plugins_task_cannot_take_are_the_plugins(
    monkeypatch: pytest.MonkeyPatch, like: type, own: bool, labels: Any, said: str | None
) -> None:
    """Floats, one a token, were trained on in silence; the others were a bug of ftcli, after the model was made."""
    given = {"loss": lambda self, logits, labels, items: logits.sum()} if own else {}
    task = type("Odd", (like,), {"labels": lambda self, rows: labels(like.labels(self, rows)), **given})()
    ids = Ragged(np.arange(24 * 94, dtype=np.int32), np.arange(25) * 94)
    rows = Rows(np.arange(24), ids, labels=np.arange(24) % 4, numbers=np.linspace(0, 1, 24, dtype=FLOATS))
    notes: list[str] = []
    if said is None:
        refuse_labels(task, "odd", "theirs", rows, notes.append)
    else:
        with pytest.raises(PluginError, match="labels of the task odd of plugin 'theirs'") as refused:
            refuse_labels(task, "odd", "theirs", rows, notes.append)
        assert said in refused.value.message
    assert bool(notes) == (said is None and like is Pretrain and labels(np.zeros(1, INTS)).dtype == FLOATS)
    refuse_labels(task, "odd", None, rows, notes.append)  # ftcli's own are tested


@pytest.mark.parametrize(
    ("outputs", "labels", "said"),
    [
        (3, torch.tensor([0.0, 1.0, 2.0]), "numbers, one a row, but the model has 3 outputs"),
        (1, torch.tensor([0, 1, 4]), "classes up to 4, but the model has 1 output"),
    ],
)
def test_labels_that_do_not_fit_the_models_outputs_are_said_where_they_are_evaluated(outputs: int, labels: torch.Tensor, said: str) -> None:
    """It was a bug of ftcli, after the training."""
    task = type("Own", (Classify,), {"loss": lambda self, logits, labels, items: logits.sum()})()
    with pytest.raises(DataError, match=said):
        HeldOut(task).add(torch.zeros(3, outputs), labels)
