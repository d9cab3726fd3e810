"""Class weights that keep the loss law, what is said of uneven labels, and which labels are taken for which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ftcli.commands.train import run
from ftcli.core.batches.balance import balanced
from ftcli.core.batches.tasks import Classify
from ftcli.core.models.confusion import Confusion
from ftcli.core.training.baselines import course_of
from ftcli.core.training.run import prepare
from ftcli.errors import UsageError
from runs import ONE_STEP, VOCABULARY, Bench, step_of
from stores import learnable, packed

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(tmp_path_factory.mktemp("balance"))


@pytest.fixture(scope="module")
def uneven(bench: Bench) -> Path:
    """48 rows, of which one in twelve has the label 3, and none the label 2."""
    rows = [(ids, 3 if number % 12 == 5 else label % 2) for number, (ids, label) in enumerate(learnable(48, 4, VOCABULARY, 0))]
    return bench.store("uneven", {"train": rows, "validation": rows[:20]}, labels=4)


def test_balanced_weights_give_every_label_the_same_say_and_the_loss_the_same_size() -> None:
    counts = np.array([30, 15, 0, 3])
    weights = balanced(counts)
    assert (weights * counts)[counts > 0] == pytest.approx([16, 16, 16])
    assert float((weights * counts).sum()) == pytest.approx(counts.sum())
    task, logits, labels = Classify(), torch.randn(6, 4), torch.tensor([0, 0, 1, 3, 3, 0])
    task.class_weights = weights
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    assert torch.allclose(task.training_loss(logits, labels, 6), (each * torch.from_numpy(weights)[labels]).sum() / 6)
    assert torch.allclose(task.loss(logits, labels, 6), each.mean())


def test_loss_and_gradient_with_weights_do_not_depend_on_the_accumulation(bench: Bench, uneven: Path) -> None:
    found = {}
    for steps in (1, 4, 12):
        split = {"train__gradient_accumulation_steps": steps, "train__per_device_train_batch_size": 48 // steps}
        found[steps] = step_of(bench.context(uneven, "law", **ONE_STEP, **split, train__class_weights="balanced"))
    plain, _ = step_of(bench.context(uneven, "law", **ONE_STEP, train__per_device_train_batch_size=48))
    loss, gradient = found[1]
    assert abs(loss - plain) > 1e-4
    for other_loss, other in found.values():
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert (other - gradient).norm() / gradient.norm() < 1e-4


def test_a_weighed_run_knows_how_many_labels_its_held_out_rows_have(bench: Bench) -> None:
    data = bench.store("judged", {"train": learnable(40, 4, VOCABULARY, 0), "validation": learnable(12, 3, VOCABULARY, 1)}, labels=4)
    course = course_of(prepare(bench.context(data, "judged run", train__class_weights="balanced")), 100)
    assert (course.weighed, course.held_out_labels) == (True, 3)


def test_how_uneven_the_labels_are_is_said_and_weights_are_proposed_or_shown(bench: Bench, uneven: Path) -> None:
    rows = [([10 + number, 20], 0 if number else 1) for number in range(24)]
    lonely = bench.store("lonely", {"train": rows}, labels=2)
    even = bench.store("even", {"train": [(ids, number % 2) for number, (ids, _) in enumerate(rows)]}, labels=2)
    for store, values, words in (
        (uneven, {}, "the rarest, 'label 3', 4"),
        (even, {"train__class_weights": "balanced"}, "2 labels in train, 12 rows each; their losses are weighed with 1 and 1"),
        (lonely, {}, "--class-weights balanced gives every label the same say"),
        (lonely, {"train__class_weights": "balanced"}, "their losses are weighed with 0.522 and 12"),
    ):
        context = bench.context(store, "said", **values)
        prepare(context)
        assert any(words in note for note in context.notes), context.notes
    packs = bench.store("packs", {"train": packed(8, 32, VOCABULARY, 3)}, max_length=32)
    with pytest.raises(UsageError, match="has no classes"):
        prepare(bench.context(packs, "packs run", train__class_weights="balanced"))


def test_mistakes_are_counted_by_pair_with_a_text_for_each() -> None:
    confusion = Confusion()
    ids = torch.arange(12).reshape(6, 2)
    mask = torch.ones_like(ids)
    mask[3, 1] = 0
    labels = torch.tensor([0, 1, 1, 2, 2, 2])
    for part in (slice(0, 3), slice(3, 6)):
        confusion.add(torch.tensor([0, 2, 1, 1, 1, 2])[part], labels[part], 3, {"input_ids": ids[part], "attention_mask": mask[part]})
    summary = confusion.summary(lambda sums: None if sums is None else 2 * sums)
    assert summary is not None
    found = summary.report(["a", "b", "c"], str)
    assert found["largest"] == [
        {"true": "c", "predicted": "b", "rows": 4, "share": pytest.approx(2 / 3), "example": "[6]"},
        {"true": "b", "predicted": "c", "rows": 2, "share": 0.5, "example": "[2, 3]"},
    ]
    assert [one["label"] for one in found["classes"]] == ["c", "b", "a"]
    assert found["classes"][1] == {"label": "b", "rows": 4, "recall": 0.5, "precision": pytest.approx(1 / 3), "f1": pytest.approx(0.4)}


def test_a_run_reports_the_confusions_of_its_last_evaluation(bench: Bench, uneven: Path) -> None:
    report = run(bench.context(uneven, "run", **{**ONE_STEP, "train__eval_strategy": "epoch", "train__learning_rate": 1e-3}))
    confusion = report.details["confusion"]
    wrong = sum(one["rows"] for one in confusion["largest"])
    assert wrong == pytest.approx(20 * (1 - report.metrics["eval_accuracy"]))
    assert all(one["example"] for one in confusion["largest"])
    page = (bench.folder / "run" / "report.html").read_text(encoding="utf-8")
    assert "Largest confusions" in page
    assert "Labels with the lowest recall" in page
