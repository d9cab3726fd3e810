"""What large models get of a batch: less, said in the evidence, and enough to tell sound from broken."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ftcli.core.storage.store import Ragged, Rows
from ftcli.core.verify import budget
from ftcli.core.verify.budget import affordable, told, within
from stores import rows_of
from test_checks_steps import CANNOT, STEPS
from verifying import World, texts


def test_rows_that_fit_are_left_as_they_are() -> None:
    rows = rows_of([[1, 2, 3], [4]])
    assert within(rows, 6) is rows
    assert told(rows, rows) == {}


def test_too_many_places_leave_the_beginnings_of_fewer_rows() -> None:
    rows = rows_of([list(range(row, row + 100)) for row in range(8)])
    few = within(rows, 64)
    assert few.input_ids.lengths.tolist() == [16] * 4
    assert few.input_ids.row(2).tolist() == list(range(2, 18))
    assert told(few, rows) == {"cut_for_time": {"rows": 4, "of_rows": 8, "tokens": 64, "of_tokens": 800}}
    assert len(within(rows, 1)) == 2  # never one row alone of several, and never a row without a target
    assert within(rows, 1).input_ids.lengths.tolist() == [2, 2]


def test_a_pack_is_cut_with_its_documents() -> None:
    ids, documents = np.arange(100, dtype=np.int32), np.array([30, 50, 20], np.int32)
    pack = Rows(np.array([0]), Ragged(ids, np.array([0, 100])), None, Ragged(documents, np.array([0, 3])))
    few = within(pack, 64)
    assert few.seq_lengths is not None
    assert (few.input_ids.lengths.tolist(), few.seq_lengths.row(0).tolist()) == ([64], [30, 34])


def test_what_is_left_of_an_answer_behind_a_long_prompt_has_something_to_learn() -> None:
    ids = np.arange(100, dtype=np.int32)
    targets = np.where(ids < 70, np.int32(-100), ids)
    whole, documents = np.array([0, 100]), Ragged(np.array([60, 40], np.int32), np.array([0, 2]))
    few = within(Rows(np.array([0]), Ragged(ids, whole), None, documents, Ragged(targets, whole)), 32)
    assert few.targets is not None
    assert few.seq_lengths is not None
    assert few.input_ids.row(0).tolist() == list(range(54, 86))
    assert (few.targets.row(0) >= 0).sum() == 16
    assert few.seq_lengths.row(0).tolist() == [6, 26]


def test_the_first_batch_has_packs_of_several_texts_where_there_are(world: World, tmp_path: Path) -> None:
    from ftcli.context import Context
    from ftcli.core.verify.probe import Probe

    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in [*(["order parcel " * 100] * 60), *texts(6, 5)]), encoding="utf-8")
    given = {"packing.strategy": "bfd", "packing.max_length": 128, "packing.truncation_strategy": "keep_start"}
    packed = world.prepare("mostly-single", world.bpe, given, sources=[f"train={path}"])
    values = {**world.run("packed", "qwen3"), "dataset.sources": [str(packed)]}
    rows = Probe(Context.make(values)).rows
    assert rows.seq_lengths is not None
    assert rows.seq_lengths.lengths.min() > 1


@pytest.mark.parametrize("kind", ["classify", "pretrain", "packed"])
def test_sound_steps_stay_sound_when_they_are_cut_and_say_so(world: World, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(budget, "WORK", 1.0)
    checks = world.quiet(f"{kind}: steps cut for time", world.run(kind, "qwen3"), stages=STEPS, select=("FT501", "FT505"))
    assert all(check.evidence["cut_for_time"]["tokens"] <= 128 for check in checks.values()), checks
    assert checks["FT505"].evidence["steps_at_most"] == 16


@pytest.mark.parametrize("cause", CANNOT)
def test_a_model_that_cannot_learn_is_caught_by_what_is_left(world: World, monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    monkeypatch.setattr(budget, "WORK", 1.0)
    checks = world.verify(world.run("classify", "qwen3"), stages=STEPS, select=("FT505",), plugins=world.model(CANNOT[cause]))
    assert checks["FT505"].status == "fail", checks["FT505"]


def test_a_larger_model_gets_fewer_places(world: World) -> None:
    from ftcli.context import Context
    from ftcli.core.verify.probe import Probe

    model = Probe(Context.make(world.run("classify", "qwen3"))).model
    assert affordable(model, passes=1, least=1) == pytest.approx(2 * affordable(model, passes=2, least=1), abs=1)
    assert affordable(model, passes=1e15, least=128) == 128
