"""FT215: labels that do not go with their texts, in a held-out split or anywhere; and sound rows of other shares, few rows, other words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stores import Row
from verifying import LABELS, World, texts

STAGE = ("data",)
OTHER = 100


def _rows(count: int, seed: int, told: float = 0.7, shares: Sequence[float] = (0.4, 0.3, 0.2, 0.1)) -> list[Row]:
    """Texts of 12 tokens out of 10 to 89, of which three are of the label's own ten, in this part of the rows."""
    random = np.random.default_rng(seed)
    rows: list[Row] = []
    for label in random.choice(len(shares), count, p=shares).tolist():
        ids = random.integers(50, 90, 12)
        if random.random() < told:
            ids[random.choice(12, 3, replace=False)] = 10 + 10 * label + random.integers(0, 10, 3)
        rows.append((ids.tolist(), label))
    return rows


def _relabelled(rows: Sequence[Row], seed: int) -> list[Row]:
    labels = np.random.default_rng(seed).permutation([label for _, label in rows]).tolist()
    return [(ids, label) for (ids, _), label in zip(rows, labels, strict=True)]


def _check(world: World, folder: Path, splits: dict[str, Sequence[Row]], *ids: str, status: str, words: str = "") -> Any:
    values = {**world.run("classify"), **world.rewritten(folder / "s", splits)}
    if status == "warn":
        return world.caught(folder.name, values, "FT215", *ids, status=status, words=words, stages=STAGE)
    check = world.quiet(folder.name, values, stages=STAGE)["FT215"]
    assert check.status == status, check
    assert words in check.summary, check
    return check


def test_words_that_tell_the_label_everywhere_pass(world: World, tmp_path: Path) -> None:
    check = _check(world, tmp_path, {"train": _rows(2000, 1), "validation": _rows(300, 2), "test": _rows(300, 3)}, status="pass")
    assert check.evidence["right"] > 0.6
    assert check.evidence["test"]["right"] > 0.6
    again = _check(world, tmp_path / "again", {"train": _rows(2000, 1), "validation": _rows(300, 2), "test": _rows(300, 3)}, status="pass")
    assert again.evidence == check.evidence


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_split_with_another_label_map_warns(world: World, tmp_path: Path, split: str) -> None:
    splits = {"train": _rows(2000, 1), "validation": _rows(300, 2), "test": _rows(300, 3)}
    splits[split] = [(ids, (label + 1) % len(LABELS)) for ids, label in splits[split]]
    check = _check(world, tmp_path, splits, status="warn", words=f"of {split} (guessing")
    example = check.evidence["examples"][0]
    row = splits[split][example["row"]]
    assert example["label"] == LABELS[row[1]]
    assert example["its_words_say"] == LABELS[row[1] - 1]


def test_a_split_whose_labels_stand_a_row_away_warns(world: World, tmp_path: Path) -> None:
    _check(world, tmp_path, {"train": _rows(2000, 1), "test": _relabelled(_rows(300, 2), 5)}, status="warn")


def test_labels_of_train_that_were_shuffled_are_said(world: World, tmp_path: Path) -> None:
    words = "no words of a text tell its label better than guessing"
    _check(world, tmp_path, {"train": _relabelled(_rows(2000, 1), 5), "test": _rows(300, 2)}, status="info", words=words)


def _partly(rows: Sequence[Row], share: float) -> list[Row]:
    """With the labels of this part of the rows shuffled among them."""
    chosen = np.random.default_rng(6).random(len(rows)) < share
    moved = iter(_relabelled([row for row, there in zip(rows, chosen, strict=True) if there], 5))
    return [next(moved) if there else row for row, there in zip(rows, chosen, strict=True)]


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_train_whose_labels_were_shuffled_in_part_warns_where_held_out_rows_are_sound(world: World, tmp_path: Path, share: float) -> None:
    splits = {"train": _partly(_rows(4000, 1), share), "test": _rows(800, 2)}
    check = _check(world, tmp_path, splits, status="warn", words="of the labels of train do not belong to their texts")
    assert abs(float(check.summary.split("about ")[1].split("%")[0]) / 100 - share) < 0.15


def test_held_out_rows_that_train_has_are_not_taken_for_better_labels(world: World, tmp_path: Path) -> None:
    """All of test stands in train, whose words tell little: its labels are known by heart."""
    train = _rows(4000, 1, told=0.3)
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": train, "test": train[:600]})}
    assert world.verify(values, stages=STAGE, select=("FT215",))["FT215"].status == "pass"


def test_a_fifth_of_the_labels_shuffled_is_not_seen(world: World, tmp_path: Path) -> None:
    _check(world, tmp_path, {"train": _partly(_rows(4000, 1), 0.2), "test": _rows(800, 2)}, status="pass")


def test_a_split_of_other_shares_passes(world: World, tmp_path: Path) -> None:
    """Rare labels alone, which are told less often."""
    _check(world, tmp_path, {"train": _rows(2000, 1), "test": _rows(300, 2, shares=(0, 0, 0.3, 0.7))}, status="pass")


def test_a_split_of_harder_rows_passes(world: World, tmp_path: Path) -> None:
    _check(world, tmp_path, {"train": _rows(2000, 1), "test": _rows(300, 2, told=0.3)}, status="pass")


@pytest.mark.parametrize("seed", range(4))
def test_forty_held_out_rows_are_not_accused(world: World, tmp_path: Path, seed: int) -> None:
    _check(world, tmp_path, {"train": _rows(600, seed, told=0.4), "test": _rows(40, 10 + seed, told=0.4)}, status="pass")


def test_a_split_of_other_words_is_not_judged(world: World, tmp_path: Path) -> None:
    """Another language, say: nothing that was learned stands in it."""
    test = [([token + OTHER for token in ids], label) for ids, label in _rows(300, 2)]
    _check(world, tmp_path, {"train": _rows(2000, 1), "test": test}, status="pass", words="other words")


def test_rows_in_many_variants_do_not_accuse_the_others(world: World, tmp_path: Path) -> None:
    """Ten variants of each of 200 texts whose words tell nothing: those set aside are known by heart, the held-out ones are not."""
    random = np.random.default_rng(7)
    texts = [(random.integers(10, 390, 24).tolist(), label) for _, label in _rows(200, 1)]
    train = [([token for token in ids if random.random() > 0.2], label) for ids, label in texts for _ in range(10)]
    test = [(random.integers(10, 390, 24).tolist(), label) for _, label in _rows(200, 2)]
    checks = world.verify({**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": train, "test": test})}, stages=STAGE)
    assert checks["FT215"].status == "pass", checks["FT215"]
    assert checks["FT215"].evidence["test"]["other_words"]


def test_of_few_rows_or_many_labels_it_says_nothing(world: World, tmp_path: Path) -> None:
    few = world.verify({**world.run("classify"), **world.rewritten(tmp_path / "few", {"train": _rows(299, 1)})}, stages=STAGE)["FT215"]
    assert (few.status, "too few" in few.summary) == ("skipped", True)
    options = {"label_names": [str(number) for number in range(40)]}
    many = world.verify({**world.run("classify"), **world.rewritten(tmp_path / "many", {"train": _rows(399, 1)}, **options)}, stages=STAGE)[
        "FT215"
    ]
    assert (many.status, "40 labels" in many.summary) == ("skipped", True)
    assert world.verify(world.run("pretrain"), stages=STAGE)["FT215"].status == "skipped"


def test_an_empty_split_and_labels_out_of_range_break_nothing(world: World, tmp_path: Path) -> None:
    empty = {"train": _rows(400, 1), "validation": [], "test": _rows(60, 2)}
    only = {"stages": STAGE, "select": ("FT215",)}
    check = world.verify({**world.run("classify"), **world.rewritten(tmp_path / "empty", empty)}, **only)["FT215"]
    assert (check.status, "validation" in check.evidence) == ("pass", False), check
    for name, label in (("above", 4), ("below", -1)):
        wrong = {"train": _rows(400, 1), "test": [*_rows(60, 2), ([11, 12], label)]}
        check = world.verify({**world.run("classify"), **world.rewritten(tmp_path / name, wrong)}, **only)["FT215"]
        assert (check.status, "out of range" in check.summary) == ("skipped", True), check
    alone = [([10 + number], number % 2) for number in range(380)]
    check = world.verify({**world.run("classify"), **world.rewritten(tmp_path / "alone", {"train": alone})}, **only)["FT215"]
    assert check.status == "pass", check


def _named(world: World, folder: Path, where: str, tail: str) -> dict[str, Any]:
    """Texts with labels of their own, and `tail` behind those of some splits, with the name of the label in it."""
    folder.mkdir(exist_ok=True)
    made = []
    for number, split in enumerate(("train", "test")):
        lines = [(text, LABELS[row % 4]) for row, text in enumerate(texts(60, 20 + number))]
        path = folder / f"{split}.jsonl"
        rows = [{"text": text + tail.format(label.upper()) * (split in where), "label": label} for text, label in lines]
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        made.append(f"{split}={path}")
    data = world.prepare(f"named-{folder.parent.name}-{folder.name}", world.bpe, {"dataset.label_column": "label"}, sources=made)
    return {"tokenizer.path": str(world.bpe), "dataset.sources": [str(data)], "train.mode": "classify"}


def test_names_of_labels_in_the_texts_are_said(world: World, tmp_path: Path) -> None:
    values = _named(world, tmp_path / "train", "train", " category: {}")
    check = world.caught("train texts end with their label", values, "FT215", status="warn", words="100.0% of train", stages=STAGE)
    assert check.evidence["named_test"]["own"] < 0.3
    check = world.quiet("all texts end with their label", _named(world, tmp_path / "all", "train test", " category: {}"), stages=STAGE)[
        "FT215"
    ]
    assert (check.status, "few that of another" in check.summary) == ("info", True)
    every = f" - which of {', '.join(LABELS)}?"
    assert (
        world.quiet("all texts name all labels", _named(world, tmp_path / "every", "train test", every), stages=STAGE)["FT215"].status
        == "skipped"
    )
