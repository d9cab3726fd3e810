"""Checks of data with any number of labels a row: silent on a healthy run, and each fault has the check that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcli.core.storage.store import Store
from ftcli.core.verify.overfit import telling
from stores import Row
from verifying import World, texts


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def told(world: World) -> Path:
    """240 and 40 rows with any of four labels: every combination of them comes, also none."""
    made = []
    for number, (split, rows) in enumerate([("train", 240), ("test", 40)], 2):
        path = world.folder / f"told-{split}.jsonl"
        lines = [
            {"text": text, "label": [name for bit, name in enumerate(("billing", "delivery", "login", "refund")) if row % 16 >> bit & 1]}
            for row, text in enumerate(texts(rows, number))
        ]
        path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        made.append(f"{split}={path}")
    return world.prepare("told", world.bpe, {"dataset.label_column": "label"}, made)


def _run(world: World, told: Path, **changes: Any) -> dict[str, Any]:
    return world.run("classify", "qwen3", **{"dataset.sources": [str(told)], **changes})


def _rows(store: Path) -> list[Row]:
    split = Store.open(store).split("train")
    found = split.rows(list(range(len(split))))
    assert found.flags is not None
    return [(found.input_ids.row(row).tolist(), tuple(found.flags[row].tolist())) for row in range(len(found))]


@pytest.mark.parametrize("model", ["qwen3", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_a_healthy_run_raises_nothing_above_info(world: World, told: Path, model: str) -> None:
    checks = world.verify({**world.run("classify", model), "dataset.sources": [str(told)]})
    assert {id_: (check.status, check.summary) for id_, check in checks.items() if check.status not in {"pass", "info", "skipped"}} == {}
    assert "chance is ln 2 = 0.693" in checks["FT403"].summary
    assert "4 labels, 2 per row" in checks["FT203"].summary
    for id_ in ("FT203", "FT302", "FT303", "FT403", "FT406"):
        assert checks[id_].status in {"pass", "info"}, checks[id_]
    assert checks["FT410"].status == "skipped"


def test_labels_that_never_change_are_named(world: World, told: Path, tmp_path: Path) -> None:
    rows = [(ids, (*held[:2], 0.0, 1.0)) for ids, held in _rows(told)]
    broken = {**_run(world, told), **world.rewritten(tmp_path / "fixed", {"train": rows}, like=told)}
    check = world.verify(broken, select=["FT203"])["FT203"]
    assert (check.status, check.summary) == ("warn", "1 of 4 labels hold in no training row, first login")
    assert "(from --label-names or --label-columns, if given)" in check.fix
    same = [(ids, (0.0, 0.0, 1.0, 1.0)) for ids, _ in rows]
    broken = {**_run(world, told), **world.rewritten(tmp_path / "same", {"train": same}, like=told)}
    assert world.verify(broken, select=["FT203"])["FT203"].status == "fail"
    half = [(ids, (0.5, *held[1:])) for ids, held in rows]
    broken = {**_run(world, told), **world.rewritten(tmp_path / "half", {"train": half}, like=told)}
    check = world.verify(broken, select=["FT203"])["FT203"]
    assert (check.status, check.summary[:27]) == ("fail", "row 0 of train has 0.5 wher")


def test_equal_texts_with_other_labels_are_named(world: World, told: Path, tmp_path: Path) -> None:
    rows = _rows(told)
    twice = [*rows, *((ids, tuple(1 - one for one in held)) for ids, held in rows[:40])]
    broken = {**_run(world, told), **world.rewritten(tmp_path / "torn", {"train": twice}, like=told)}
    (check,) = (one for one in world.verify(broken, stages=["data"]).values() if "texts have other labels" in one.summary)
    assert check.status == "warn"
    assert check.evidence["texts_in_conflict"] == 40
    assert len(check.evidence["labels"][0]) + len(check.evidence["labels"][1]) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("batch['labels'] = 1 - batch['labels']", "row 0 of the batch has different labels"),
        ("batch['labels'] = batch['labels'].long()", "labels are int64"),
    ],
)
def test_a_collator_that_changes_the_labels_is_named(world: World, told: Path, change: str, words: str) -> None:
    check = world.verify(_run(world, told), plugins=world.collator(change), select=["FT302"])["FT302"]
    assert check.status == "fail"
    assert words in check.summary


def test_a_model_that_does_not_read_cannot_learn_rows_by_heart(world: World, told: Path) -> None:
    """All rows get one answer: labels that tell no rows apart do not count, so that saying "no" to all is not learning."""
    blind = world.model("model.score.register_forward_hook(lambda module, given, found: found.mean((0, 1), keepdim=True).expand_as(found))")
    checks = world.verify(_run(world, told), plugins=blind)
    assert "memorize" in checks["FT505"].summary, {id_: check.summary for id_, check in checks.items() if check.status == "fail"}
    assert checks["FT505"].status == "fail"


def test_by_heart_leaves_out_labels_that_tell_no_rows_apart() -> None:
    labels = torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 0, 1]])
    assert telling({"labels": labels})["labels"].tolist() == [[1, -100, -100], [0, -100, -100], [1, -100, -100]]
    for kept in (labels[:1], torch.tensor([1, 2])):
        assert telling({"labels": kept})["labels"] is kept


@pytest.mark.slow
def test_what_is_learned_is_seen_on_demand(world: World, told: Path) -> None:
    checks = world.verify(_run(world, told, **{"train.learnability_steps": 30}), select=["FT510"])
    assert "knowing only the label frequencies" in checks["FT510"].summary
    assert 0 < checks["FT510"].evidence["prior_entropy"] < 0.75
