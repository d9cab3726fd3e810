"""Checkpoints: only a complete one of the same run is gone on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftcli.core import checkpoints
from ftcli.errors import TrainError
from stores import context, write_store

IDENTITY = {"data": "x", "train.learning_rate": 0.1, "train.max_steps": 3}


def _checkpoint(run: Path, step: int) -> Path:
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for name in (*checkpoints.NEEDED, "model.safetensors"):
        (folder / name).write_text("something")
    checkpoints.seal(folder, IDENTITY)
    return folder


def test_the_newest_is_that_of_the_highest_step(tmp_path: Path) -> None:
    notes: list[str] = []
    assert checkpoints.newest(tmp_path, notes.append) is None
    for step in (2, 10, 9):
        _checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-best").mkdir()
    assert checkpoints.newest(tmp_path, notes.append) == tmp_path / "checkpoint-10"
    assert not notes


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / checkpoints.MARKER).unlink(), "incomplete"),
        (lambda folder: (folder / checkpoints.MARKER).write_text("{"), "cannot be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: (folder / "model.safetensors").write_text("some"), "has 4 bytes instead of 9"),
    ],
)
def test_a_damaged_newest_is_passed_over_and_refused_by_name(tmp_path: Path, damage: Any, reason: str) -> None:
    good, bad = _checkpoint(tmp_path, 1), _checkpoint(tmp_path, 2)
    damage(bad)
    notes: list[str] = []
    assert checkpoints.choose("auto", tmp_path, notes.append) == good
    assert reason in notes[0]
    with pytest.raises(TrainError, match=reason):
        checkpoints.choose(str(bad), tmp_path, notes.append)
    assert checkpoints.choose(str(good), tmp_path, notes.append) == good


def test_a_checkpoint_without_its_optimizer_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    checkpoints.seal(folder, IDENTITY)
    assert checkpoints.damage(folder) == "it was saved without optimizer.pt"


def test_auto_without_a_checkpoint_starts_at_zero_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    notes: list[str] = []
    assert checkpoints.choose("auto", tmp_path, notes.append) is None
    assert "step 0" in notes[0]
    with pytest.raises(TrainError, match="does not exist"):
        checkpoints.choose(str(tmp_path / "checkpoint-7"), tmp_path, notes.append)


def test_what_would_break_exactness_is_listed_and_a_new_length_only_noted(tmp_path: Path) -> None:
    folder, notes = _checkpoint(tmp_path, 1), []
    checkpoints.compare(folder, IDENTITY, notes.append)
    assert not notes
    checkpoints.compare(folder, {**IDENTITY, "train.max_steps": 9}, notes.append)
    assert "was 3 in checkpoint-1 and is 9 now" in notes[0]
    with pytest.raises(TrainError, match=r"data was x, now y; train.learning_rate was 0.1, now 0.2"):
        checkpoints.compare(folder, {**IDENTITY, "data": "y", "train.learning_rate": 0.2}, notes.append)


def test_the_identity_holds_data_mode_processes_and_settings(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", {"train": [([5], None)]})
    found = checkpoints.identity(context(train__learning_rate=0.25), store, "pretrain")
    assert (found["mode"], found["processes"], found["train.learning_rate"]) == ("pretrain", 1, 0.25)
    assert found["data"] == store.fingerprint
    assert json.loads(json.dumps(found)) == found
