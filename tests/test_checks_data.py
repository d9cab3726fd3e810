"""Checks of the prepared data: what is healthy, and the smallest change that is not."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ftcli.commands import inspect
from ftcli.context import Context
from ftcli.core.held_out_rows import too_few
from ftcli.core.storage.store import Store
from ftcli.errors import StoreError
from stores import Row
from verifying import LABELS, World, texts

STAGE = ("data",)


@pytest.mark.parametrize("kind", ["classify", "pretrain", "packed"])
def test_data_prepared_by_tokenize_pass(world: World, kind: str) -> None:
    checks = world.quiet(f"{kind} data by tokenize", world.run(kind), stages=STAGE)
    assert checks["FT201"].evidence["fingerprint"]
    assert {name: check.status for name, check in checks.items()} == {
        "FT201": "pass",
        "FT202": "pass",
        "FT203": "pass" if kind == "classify" else "skipped",
        "FT204": "pass",
        "FT205": "pass",
        "FT206": "pass",
        "FT207": "pass",
        "FT208": "pass",
        "FT209": "skipped",
        "FT210": "skipped" if kind == "classify" else "pass",
        "FT211": "pass",
        "FT212": "skipped" if kind == "packed" else "pass",
        "FT213": "info",
        "FT214": "pass",
        "FT215": "skipped",
    }


def test_without_data_the_checks_are_skipped_with_the_reason(world: World) -> None:
    checks = world.verify({"tokenizer.path": str(world.bpe)}, stages=STAGE)
    assert {check.status for check in checks.values()} == {"skipped"}
    assert checks["FT203"].summary == "Labels: no --dataset"


def test_data_in_a_folder_that_may_not_be_entered_fail_one_check_and_break_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, prepared under umask 077: 38 checks "broke", and their author was to be told."""
    stat = Path.stat
    closed = world.labelled

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if path.parent == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    values = world.run("classify", "gpt2")
    monkeypatch.setattr(Path, "stat", refuse)
    checks = world.verify(values)
    assert [check.id for check in checks.values() if check.status in {"fail", "error"}] == ["FT201"]
    assert checks["FT201"].summary.endswith(f"{closed} cannot be read: Permission denied")
    assert "You have no read permission" in checks["FT201"].fix
    with pytest.raises(StoreError, match="cannot be read: Permission denied"):
        inspect.run(Context.make({"dataset.sources": [str(closed)]}))


@pytest.mark.parametrize("several", [False, True])
def test_sources_that_train_is_yet_to_prepare_are_no_fault(world: World, tmp_path: Path, several: bool) -> None:
    source = tmp_path / "answers.jsonl"
    source.write_text('{"text": "a"}\n')
    values = {"tokenizer.path": str(world.bpe), "dataset.sources": [str(source)] * (1 + several)}
    checks = world.verify(values, stages=STAGE)
    assert checks["FT201"].status == "info"
    assert "not prepared yet: ftcli train prepares them first" in checks["FT201"].summary
    assert {check.status for check in checks.values() if check.id != "FT201"} == {"skipped"}


@pytest.mark.parametrize(
    ("row", "given", "words"),
    [
        ({"body": "a"}, {}, "answers.jsonl:1 (byte 0): no column 'text'"),
        ({"text": "a"}, {"dataset.label_column": "y"}, "answers.jsonl:1 (byte 0): no column 'y'"),
        ({"text": "a"}, {"train.mode": "classify"}, "the task classify needs labels: --label-column is missing"),
        ({"text": 5}, {}, "answers.jsonl:1 (byte 0): "),
    ],
)
def test_sources_that_cannot_be_prepared_fail_before_they_are(
    world: World, tmp_path: Path, row: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    source = tmp_path / "answers.jsonl"
    source.write_text(json.dumps(row) + "\n")
    world.caught(
        f"sources of {row}",
        {"tokenizer.path": str(world.bpe), "dataset.sources": [str(source)], **given},
        "FT201",
        words=words,
        stages=STAGE,
    )


def test_a_folder_of_sources_is_prepared_by_train_too(world: World, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    checks = world.verify({"tokenizer.path": str(world.bpe), "dataset.sources": [str(tmp_path)]}, stages=STAGE)
    assert checks["FT201"].evidence == {"rows": 1, "files": 1}


@pytest.mark.fault
@pytest.mark.parametrize("where", ["first byte", "middle", "last byte", "shortened", "gone"])
def test_a_damaged_file_fails_once_and_the_rest_refers_to_it(world: World, tmp_path: Path, where: str) -> None:
    folder = tmp_path / "store"
    shutil.copytree(world.labelled, folder)
    file = next(folder.glob("train/*.arrow"))
    data = bytearray(file.read_bytes())
    if where == "gone":
        file.unlink()
    elif where == "shortened":
        file.write_bytes(data[:-8])
    else:
        data[{"first byte": 0, "middle": len(data) // 2, "last byte": -1}[where]] ^= 1
        file.write_bytes(data)
    values = {**world.run("classify"), "dataset.sources": [str(folder)]}
    world.caught(f"a damaged store file ({where})", values, "FT201", words=file.name, stages=STAGE)


@pytest.mark.fault
def test_damage_far_from_the_edges_of_a_large_file_is_found(world: World, tmp_path: Path) -> None:
    rows = world.rows(world.labelled)
    values = {**world.run("classify"), **world.rewritten(tmp_path / "large", {"train": rows * 20})}
    file = next((tmp_path / "large").glob("train/*.arrow"))
    data = bytearray(file.read_bytes())
    assert len(data) > 2 * 2**16
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    Store.open(tmp_path / "large")  # the cheap check of every opening looks at the edges only
    world.caught("one bit in the middle of 1 MB", values, "FT201", words=file.name, stages=STAGE)


def test_a_folder_that_is_no_prepared_data_fails(world: World, tmp_path: Path) -> None:
    values = {**world.run("classify"), "dataset.sources": [str(tmp_path)]}
    world.caught("an empty folder", values, "FT201", words="no data files in this directory", stages=STAGE)


def test_another_tokenizer_fails(world: World) -> None:
    values = {**world.run("classify"), "tokenizer.path": str(world.wordpiece)}
    check = world.caught("data by another tokenizer", values, "FT202", words="another tokenizer", stages=STAGE)
    assert check.evidence["prepared"] != check.evidence["here"]


def test_a_tokenizer_with_another_pad_token_is_another_one(world: World, tmp_path: Path) -> None:
    values = {**world.run("classify"), "tokenizer.path": world.tokenizer(tmp_path / "t", pad_token="<|endoftext|>")}
    world.caught("the same tokenizer with another PAD", values, "FT202", stages=STAGE)


@pytest.mark.parametrize("label", [-1, 4, 5000])
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_label_out_of_range_fails_and_is_named(world: World, tmp_path: Path, label: int, split: str) -> None:
    splits = {name: world.rows(world.labelled, name) for name in ("train", "test")}
    splits[split][7] = (splits[split][7][0], label)
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", splits)}
    world.caught(f"label {label} of 4 in {split}", values, "FT203", words=f"row 7 of {split} has the label {label}", stages=STAGE)


def test_data_without_labels_fail_for_classify(world: World) -> None:
    world.caught("classify without labels", {**world.run("pretrain"), "train.mode": "classify"}, "FT203", words="no labels", stages=STAGE)


def test_one_label_only_fails(world: World, tmp_path: Path) -> None:
    rows = [(ids, 2) for ids, _ in world.rows(world.labelled)]
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": rows})}
    world.caught("one label only", values, "FT203", words="'login'", stages=STAGE)


def test_classes_without_rows_warn(world: World, tmp_path: Path) -> None:
    rows = [(ids, 0 if label == 3 else label) for ids, label in world.rows(world.labelled)]
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": rows})}
    world.caught("a class without rows", values, "FT203", status="warn", words="1 of 4 classes", stages=STAGE)


def test_rows_sorted_by_label_are_noted(world: World, tmp_path: Path) -> None:
    rows = sorted(world.rows(world.labelled), key=lambda row: row[1])
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": rows})}
    check = world.quiet("rows sorted by label", values, stages=STAGE)["FT203"]
    assert check.status == "info"
    assert "sorted by label" in check.summary


def test_labels_of_data_for_pretraining_are_not_looked_at(world: World, tmp_path: Path) -> None:
    rows = [(ids, 2) for ids, _ in world.rows(world.labelled)]
    values = {**world.run("classify"), "train.mode": "pretrain", **world.rewritten(tmp_path / "s", {"train": rows})}
    assert world.verify(values, stages=STAGE)["FT203"].status == "skipped"


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_empty_row_fails_and_is_named(world: World, tmp_path: Path, split: str) -> None:
    splits = {name: world.rows(world.labelled, name) for name in ("train", "test")}
    splits[split][5] = ([], splits[split][5][1])
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", splits)}
    world.caught(f"an empty row in {split}", values, "FT204", words=f"row 5 of {split} has no tokens", stages=STAGE)


def test_a_row_longer_than_the_models_positions_fails(world: World) -> None:
    longest = int(Store.open(world.labelled).split("train").lengths.max())
    values = world.run("classify")
    fits, short = (world.config("qwen3", max_position_embeddings=positions) for positions in (longest, longest - 1))
    world.quiet("the longest row fills the positions", {**values, "model.config": fits}, stages=STAGE)
    check = world.caught(
        "one position too few", {**values, "model.config": short}, "FT204", words=f"has {longest - 1} positions", stages=STAGE
    )
    assert f"--max-length {longest - 1}" in check.fix


def test_positions_that_are_counted_from_pad_are_taken_off(world: World, tmp_path: Path) -> None:
    rows = [([5] * 510, 0), ([6] * 510, 1), ([7] * 510, 2), ([8] * 510, 3)]
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": rows}, max_length=512)}
    fits, short = (world.config("roberta", max_position_embeddings=positions) for positions in (511, 510))  # PAD is 0
    world.quiet("511 positions of RoBERTa for 510 tokens", {**values, "model.config": fits}, stages=STAGE)
    world.caught("510 positions of RoBERTa for 510 tokens", {**values, "model.config": short}, "FT204", words="509 positions", stages=STAGE)
    values.pop("tokenizer.path")
    assert (
        world.verify({**values, "model.config": fits}, stages=STAGE)["FT204"].evidence["positions"] == 509
    )  # PAD is 1 in the configuration


def test_a_model_that_cannot_be_read_fails_where_it_is_first_needed(world: World, tmp_path: Path) -> None:
    values = {**world.run("classify"), "model.config": tmp_path / "none.json"}
    world.caught("no model configuration", values, "FT204", words="does not exist", stages=STAGE)


def test_much_truncation_warns(world: World) -> None:
    cut = world.prepare("cut", world.bpe, {"dataset.label_column": "label", "packing.max_length": 16})
    values = {**world.run("classify"), "dataset.sources": [str(cut)]}
    check = world.caught("max_length 16", values, "FT204", status="warn", words="truncation cut", stages=STAGE)
    assert check.evidence["tokens_cut_share"] > 0.05
    assert check.evidence["longest"] == 16


def test_rows_that_were_left_out_warn(world: World) -> None:
    kept = world.prepare(
        "dropped", world.bpe, {"dataset.label_column": "label", "packing.max_length": 16, "packing.truncation_strategy": "drop"}
    )
    values = {**world.run("classify"), "dataset.sources": [str(kept)]}
    check = world.caught("rows above max_length 16 dropped", values, "FT204", "FT214", status="warn", words="were left out: ", stages=STAGE)
    assert check.evidence["rows_too_long"] > 0
    assert check.fix == "Raise --max-length."


def _lines(folder: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [f"train={path}"]


@pytest.mark.parametrize(("every", "minimum", "status"), [(3, 1, "warn"), (200, 1, "pass"), (3, 2, "pass")])
def test_rows_without_text_are_counted(world: World, tmp_path: Path, every: int, minimum: int, status: str) -> None:
    rows = [{"text": "" if number % every == 0 else text, "label": LABELS[number % 4]} for number, text in enumerate(texts(200, 6 + every))]
    options = {"dataset.label_column": "label", "packing.min_length": minimum}
    data = world.prepare(f"blank-{every}-{minimum}", world.bpe, options, sources=_lines(tmp_path, rows))
    values = {**world.run("classify"), "dataset.sources": [str(data)]}
    if status == "pass":
        world.quiet("few rows without text, or a minimum", values, stages=STAGE)
        return
    check = world.caught(
        "a third without text", values, "FT204", status="warn", words="(33.5%) were left out: 67 without text", stages=STAGE
    )
    assert "--text-column" in check.fix
    assert "--max-length" not in check.fix


def test_empty_lines_of_running_text_are_no_missing_rows(world: World, tmp_path: Path) -> None:
    rows = [{"text": "" if number % 3 == 0 else text} for number, text in enumerate(texts(200, 9))]
    data = world.prepare("paragraphs", world.bpe, {}, sources=_lines(tmp_path, rows))
    check = world.quiet("empty lines", {**world.run("pretrain"), "dataset.sources": [str(data)]}, stages=STAGE)["FT204"]
    assert (check.status, check.evidence["rows_too_short"]) == ("pass", 67)


@pytest.mark.parametrize("behind", [False, True])
def test_a_longer_row_is_advised_only_where_it_helps(world: World, tmp_path: Path, behind: bool) -> None:
    """Of conversations without an answer --max-length was to be raised."""
    rows = [
        {"prompt": f"{number} order" + " card" * (60 if behind and odd else 1), "completion": "" if odd and not behind else " late again"}
        for number, odd in enumerate([True, False, False] * 40)
    ]
    options = {"train.mode": "sft", "packing.max_length": 50, "tokenizer.add_eos": None if behind else False}
    data = world.prepare(f"unanswered-{behind}", world.bpe, options, sources=_lines(tmp_path, rows))
    values = {"tokenizer.path": str(world.bpe), "train.mode": "sft", "dataset.sources": [str(data)]}
    check = world.verify(values, stages=STAGE)["FT204"]
    assert check.status == "warn"
    assert ("40 with their answer cut off by truncation" if behind else "40 without an answer") in check.summary
    assert ("Raise --max-length" in check.fix, "Mode sft needs an answer" in check.fix) == (behind, not behind)


def test_the_share_of_rows_that_were_cut_is_said_of_answers(world: World, tmp_path: Path) -> None:
    rows = [{"prompt": f"order {number}", "completion": " card" * (9 + number % 2 * 30)} for number in range(80)]
    data = world.prepare("cut answers", world.bpe, {"train.mode": "sft", "packing.max_length": 42}, sources=_lines(tmp_path, rows))
    values = {"tokenizer.path": str(world.bpe), "train.mode": "sft", "dataset.sources": [str(data)]}
    check = world.verify(values, stages=STAGE)["FT204"]
    assert (check.status, "in 50.0% of the rows" in check.summary) == ("info", True), check.summary
    data = world.prepare("much cut", world.bpe, {"train.mode": "sft", "packing.max_length": 30}, sources=_lines(tmp_path, rows))
    check = world.verify({**values, "dataset.sources": [str(data)]}, stages=STAGE)["FT204"]
    assert (check.status, check.fix) == ("warn", "Raise --max-length, or use --truncation-strategy drop.")  # split is refused in mode sft


def test_rows_that_truncation_left_nothing_of_come_first_and_drop_is_not_advised_where_it_leaves_none(world: World, tmp_path: Path) -> None:
    """All that was said where 77 % of the rows were gone and the others cut: "truncation cut 60.6% of all tokens … use --truncation-strategy drop"."""
    rows = [{"prompt": f"{number} order" + " card" * (60 if number % 4 else 9), "completion": " late again" * 30} for number in range(80)]
    data = world.prepare("nothing left", world.bpe, {"train.mode": "sft", "packing.max_length": 30}, sources=_lines(tmp_path, rows))
    values = {"tokenizer.path": str(world.bpe), "train.mode": "sft", "dataset.sources": [str(data)]}
    check = world.verify(values, stages=STAGE)["FT204"]
    assert (check.status, check.fix) == ("warn", "Raise --max-length.")
    assert check.summary.startswith("60 of 80 rows (75.0%) were left out: 60 with their answer cut off by truncation; truncation cut "), (
        check.summary
    )


@pytest.mark.parametrize(("copies", "status"), [(1, "warn"), (2, "warn"), (3, "fail")])
def test_test_rows_that_stand_in_train_are_found(world: World, tmp_path: Path, copies: int, status: str) -> None:
    train, test = (world.rows(world.labelled, name) for name in ("train", "test"))
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": train, "test": [*train[:copies], *test[copies:]]})}
    check = world.caught(f"{copies} of 40 test rows in train", values, "FT205", status=status, words=f"({copies})", stages=STAGE)
    assert check.evidence["first_rows"] == list(range(copies))


def test_one_row_in_a_hundred_is_no_leak(world: World, tmp_path: Path) -> None:
    train = world.rows(world.labelled)
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": train[:140], "test": [*train[:1], *train[141:240]]})}
    assert world.quiet("1 of 100 test rows in train", values, stages=STAGE)["FT205"].evidence["rows"] == 1


def test_the_worst_of_several_held_out_splits_counts(world: World, tmp_path: Path) -> None:
    train, test = (world.rows(world.labelled, name) for name in ("train", "test"))
    splits = {"train": train, "validation": test, "test": train[:30]}
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", splits)}
    assert world.caught("a sound validation split, a leaking test split", values, "FT205", stages=STAGE).evidence["split"] == "test"


def test_without_held_out_rows_leakage_is_skipped(world: World, tmp_path: Path) -> None:
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": world.rows(world.labelled)})}
    assert world.verify(values, stages=STAGE)["FT205"].status == "skipped"


def test_few_packs_numbers_and_conversations_are_told_as_what_they_are() -> None:
    assert too_few(4, 900, packs=2) == "4 texts (2 packs) of 900 tokens, whose loss says more about these texts than about others"
    assert str(too_few(1, 90, packs=1, parts=True)).startswith("1 text or parts of texts (1 pack) of 90 tokens")
    conversations = too_few(3, 90, conversations=True)
    assert conversations == "3 conversations of 90 tokens, whose loss says more about these conversations than about others"
    assert too_few(17, 900, "correlation") == "17 rows, of which a correlation has a standard error of up to 0.25"
    assert too_few(2, 900, "correlation") == "2 rows, of which there is no correlation"
    assert too_few(25, 900, "exact_match") == "25 rows, of which the exact match has a standard error of up to 10 points"
    assert too_few(10, 1_000, packs=1) is too_few(30, 1, "correlation") is None


@pytest.mark.fault
def test_held_out_rows_that_say_nothing_are_caught(world: World, tmp_path: Path) -> None:
    train, held = world.rows(world.labelled), world.rows(world.labelled, "test")
    few = world.rewritten(tmp_path / "few", {"train": train, "validation": held[:8]})
    check = world.caught("8 held-out rows", {**world.run("classify"), **few}, "FT214", status="warn", words="has 8 rows", stages=STAGE)
    assert "--validation-fraction" in check.fix
    alike = world.rewritten(tmp_path / "alike", {"train": train, "validation": [(ids, 0) for ids, _ in held]})
    words = "all 40 rows of validation have the label"
    world.caught("held-out rows of one label", {**world.run("classify"), **alike}, "FT214", status="warn", words=words, stages=STAGE)
    empty = world.rewritten(tmp_path / "empty", {"train": train, "validation": []})
    checks = world.verify({**world.run("classify"), **empty}, stages=STAGE, select=("FT214",))
    assert checks["FT214"].status == "fail"
    both = world.rewritten(tmp_path / "both", {"train": train[8:], "validation": [(ids, 0) for ids, _ in held], "test": train[:8]})
    check = world.caught("two splits with a problem each", {**world.run("classify"), **both}, "FT214", status="warn", stages=STAGE)
    assert words in check.summary
    assert "the split test has 8 rows" in check.summary
    assert "--test-fraction" in check.fix
    assert "Hold out rows of all labels" in check.fix
    alone = world.rewritten(tmp_path / "alone", {"train": train})
    assert world.quiet("no held-out rows", {**world.run("classify"), **alone}, stages=STAGE)["FT214"].status == "info"
    untested = world.rewritten(tmp_path / "untested", {"train": train, "validation": held, "test": []})
    for name, data, words in (("no", alone, "there is none"), ("an empty", untested, "it is empty")):
        values = {**world.run("classify"), **data, "train.do_predict": True}
        world.caught(f"{name} test split to be scored", values, "FT214", words=f"scores the test split, and {words}", stages=STAGE)


def _numbers(world: World, folder: Path, train: Sequence[float], held: Sequence[float]) -> dict[str, Any]:
    """The rows of `World.labelled` with these numbers, over and over; held out are at most 40."""
    ids = [ids for ids, _ in world.rows(world.labelled)]
    splits: dict[str, list[Row]] = {
        "train": [(row, float(train[number % len(train)])) for number, row in enumerate(ids)],
        "validation": [(row, float(number)) for (row, _), number in zip(world.rows(world.labelled, "test"), held, strict=False)],
    }
    return {**world.run("classify"), **world.rewritten(folder, splits, task="regress", label_names=None)}


UNIFORM = [number / 97 for number in range(97)]
RARE = [0.01 * number for number in range(95)] + [1e6]


@pytest.mark.parametrize(
    ("train", "held", "words"),
    [
        (UNIFORM, [0.1] * 40, "all 40 rows of validation have the value 0.1"),
        (UNIFORM, [100 * number for number in UNIFORM], "validation are 20.1 on average"),
        (UNIFORM, [0.5 + number / 100 for number in UNIFORM], "with a standard deviation of 0.00119"),
        (UNIFORM, [7 + number for number in UNIFORM], "validation are 7.2 on average"),
    ],
)
def test_held_out_numbers_that_say_nothing_warn(world: World, tmp_path: Path, train: list[float], held: list[float], words: str) -> None:
    values = _numbers(world, tmp_path / "s", train, held)
    check = world.caught("held-out numbers of another kind", values, "FT214", status="warn", words=words, stages=STAGE)
    assert "--validation-fraction" in check.fix


@pytest.mark.parametrize(
    ("train", "held"),
    [
        (UNIFORM, UNIFORM[::2]),
        (UNIFORM[:80], UNIFORM[60:]),
        ([0.0] * 70 + UNIFORM[:26], UNIFORM[:8] + [0.0] * 32),
        (UNIFORM, [1e5, *UNIFORM[:39]]),
    ],
)
def test_held_out_numbers_like_those_of_train_pass(world: World, tmp_path: Path, train: list[float], held: list[float]) -> None:
    world.quiet("held-out numbers of one kind", _numbers(world, tmp_path / "s", train, held), stages=STAGE)


def test_rare_numbers_of_train_that_are_not_held_out_are_no_other_scale(world: World, tmp_path: Path) -> None:
    checks = world.verify(_numbers(world, tmp_path / "s", RARE, RARE[:40]), stages=STAGE, select=("FT214",))
    assert checks["FT214"].status == "pass", checks["FT214"].summary


@pytest.mark.parametrize(
    ("held", "words"), [((0.0,) * 4, "none of the labels"), ((0.0, 1.0, 0.0, 1.0), "'delivery', 'refund' and no other")]
)
def test_held_out_rows_with_the_same_labels_throughout_warn(world: World, tmp_path: Path, held: tuple[float, ...], words: str) -> None:
    ids = [ids for ids, _ in world.rows(world.labelled)]
    splits: dict[str, list[Row]] = {
        "train": [(row, tuple(float(number >> bit & 1) for bit in range(4))) for number, row in enumerate(ids)],
        "validation": [(row, held) for row, _ in world.rows(world.labelled, "test")],
    }
    values = {**world.run("classify"), **world.rewritten(tmp_path / "s", splits)}
    world.caught("held-out rows with the same labels", values, "FT214", status="warn", words=words, stages=STAGE)
    splits["validation"] = [
        (row[0], tuple(float(number % 3 == bit) for bit in range(4))) for number, row in enumerate(splits["validation"])
    ]
    world.quiet("other labels", {**world.run("classify"), **world.rewritten(tmp_path / "t", splits)}, stages=STAGE)
