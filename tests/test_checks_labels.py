"""The check of the labels beyond their range: columns that hold no classes, one label in several spellings, one label for nearly all, and the order of rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from verifying import LABELS, World

STAGE = ("data",)
SEQUENTIAL = {"train.train_sampling_strategy": "sequential"}


def _labelled(world: World, folder: Path, labels: Sequence[str]) -> dict[str, Any]:
    """The rows of `World.labelled` with these labels, over and over."""
    names = sorted(set(labels))
    rows = [(ids, names.index(labels[number % len(labels)])) for number, (ids, _) in enumerate(world.rows(world.labelled))]
    return {**world.run("classify"), **world.rewritten(folder / "s", {"train": rows}, label_names=names)}


def test_a_column_of_ids_fails(world: World, tmp_path: Path) -> None:
    values = _labelled(world, tmp_path, [f"ticket-{number * 37 % 240}" for number in range(240)])
    world.caught("S5: an id as label", values, "FT203", words="240 of 240 classes have a single training row", stages=STAGE)


def test_numbers_on_a_scale_are_called_so(world: World, tmp_path: Path) -> None:
    values = _labelled(world, tmp_path, [f"{number * 0.137:.3f}" for number in range(240)])
    check = world.caught("S5: numbers on a scale as label", values, "FT203", words="numbers on a scale", stages=STAGE)
    assert "low, middle, high" in check.fix


def test_a_few_rows_of_many_classes_are_classes(world: World, tmp_path: Path) -> None:
    world.quiet("120 classes of two rows", _labelled(world, tmp_path, [f"intent {number}" for number in range(120)]), stages=STAGE)


@pytest.mark.parametrize("spelled", ["Refund", "refund ", "REFUND"])
def test_one_label_in_two_spellings_warns(world: World, tmp_path: Path, spelled: str) -> None:
    values = _labelled(world, tmp_path, [*LABELS, spelled])
    world.caught(f"D2: 'refund' and {spelled!r}", values, "FT203", status="warn", words=f"{spelled!r}", stages=STAGE)


def test_a_single_digit_with_spaces_behind_it_is_no_other_label(world: World, tmp_path: Path) -> None:
    """As in one row of ChatbotData.csv."""
    data = _labelled(world, tmp_path, ["0", "1", "2"] * 40 + ["2   "])
    world.caught("a label with spaces", data, "FT203", status="warn", words="'2' and '2   '", stages=("data",))


def test_single_letters_may_differ_in_case(world: World, tmp_path: Path) -> None:
    world.quiet("labels a and A", _labelled(world, tmp_path, ["a", "A"]), stages=STAGE)


@pytest.mark.parametrize(("others", "status"), [(1, "warn"), (12, "info"), (30, "pass")])
def test_one_label_for_nearly_all_rows_is_said(world: World, tmp_path: Path, others: int, status: str) -> None:
    values = _labelled(world, tmp_path, ["refund" if number % (240 // others) else "login" for number in range(240)])
    if status == "warn":
        world.caught("D6: one label for 99.6 % of the rows", values, "FT203", status="warn", words="99.6%", stages=STAGE)
        values = {**values, "train.class_weights": "balanced"}
        status = "info"
    check = world.quiet(f"{others} of 240 rows with another label", values, stages=STAGE)["FT203"]
    assert check.status == status


def test_sorted_rows_that_are_not_shuffled_fail(world: World, tmp_path: Path) -> None:
    values = _labelled(world, tmp_path, [LABELS[number // 60] for number in range(240)])
    world.caught("D6: sorted rows in their order", {**values, **SEQUENTIAL}, "FT203", words="the rows are sorted by label", stages=STAGE)
    assert world.quiet("sorted rows, shuffled", values, stages=STAGE)["FT203"].status == "info"


def test_blocks_of_one_label_that_are_not_shuffled_fail(world: World, tmp_path: Path) -> None:
    values = {**_labelled(world, tmp_path, [LABELS[number // 20 % 4] for number in range(240)]), **SEQUENTIAL}
    world.caught("D6: blocks of 20 rows in their order", values, "FT203", words="12 runs", stages=STAGE)
    world.quiet("blocks under a batch", {**values, "train.per_device_train_batch_size": 32}, stages=STAGE)
    world.quiet("mixed rows in their order", {**_labelled(world, tmp_path / "mixed", LABELS), **SEQUENTIAL}, stages=STAGE)
    rare = [LABELS[1] if number % 20 == 7 else LABELS[0] for number in range(240)]  # runs of 10 rows, which chance makes as long
    small = {"train.per_device_train_batch_size": 4}
    world.quiet("one label is rare", {**_labelled(world, tmp_path / "rare", rare), **SEQUENTIAL, **small}, stages=STAGE)
