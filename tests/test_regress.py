"""Numbers to be predicted: from columns of numbers to a model of one output that plain transformers takes for what it is."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import load_from_disk
from pyarrow import parquet
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

from ftcli.commands.train import run
from ftcli.commands.verify import run as verify
from ftcli.core.batches.collate import Dynamic
from ftcli.core.batches.tasks import Regress, count_targets
from ftcli.core.models.held_out import HeldOut
from ftcli.core.models.predict import load, predict
from ftcli.core.storage.store import Store
from ftcli.core.tokenizer.train_tokenizer import Kind
from ftcli.core.training.baselines import course_of
from ftcli.core.training.run import prepare as prepare_run
from ftcli.core.verify.overfit import telling
from ftcli.errors import DataError, UsageError
from ftcli.testing import tiny_model
from runs import VOCABULARY, Bench
from stores import spec_for
from tokenizing import manifest, prepare, small_tokenizers, without_plots

pytestmark = pytest.mark.usefixtures("one_thread", "nursery")

no_html = without_plots
small = small_tokenizers
NUMBERS = [4.5, 0.0, -2.25, 3.0, 1e-3]
COLUMNS: Mapping[str, Any] = {"train__mode": "regress", "dataset__label_column": "score"}


def scored(rows: int, seed: int) -> list[tuple[list[int], float]]:
    """Texts of random words whose second token says the number."""
    random = np.random.default_rng(seed)
    texts = []
    for _ in range(rows):
        place = int(random.integers(8))
        ids = random.integers(20, VOCABULARY, int(random.integers(4, 20))).tolist()
        ids[1] = 10 + place
        texts.append((ids, float(place) / 2))
    return texts


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def store(bench: Bench) -> Path:
    return bench.store("numbers", {"train": scored(400, 0), "validation": scored(80, 1)}, task="regress")


# -- tokenize ----------------------------------------------------------------------------------------------------------


def source(folder: Path, kind: str) -> Path:
    path = folder / f"rows.{kind.partition('-')[0]}"
    rows = [{"text": f"text number {place}", "score": number} for place, number in enumerate(NUMBERS)]
    whole = [{**row, "score": int(row["score"])} for row in rows]  # type: ignore[call-overload]
    if kind == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "parquet-whole":
        parquet.write_table(pa.Table.from_pylist(whole), path)
    elif kind == "pkl":
        path.write_bytes(pickle.dumps([whole[0] | rows[0], *rows[1:3], rows[3] | {"score": 3}, rows[4]]))
    elif kind == "csv":
        path.write_text("text,score\n" + "".join(f"{row['text']},{row['score']}\n" for row in rows))
    elif kind == "json":
        path.write_text(json.dumps(rows))
    else:  # a number without decimals among the others, and first
        path.write_text("".join(json.dumps(row if place != 3 else whole[3]) + "\n" for place, row in enumerate(rows)))
    return path


@pytest.mark.usefixtures("no_html")
@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "parquet-whole", "csv", pytest.param("pkl", marks=pytest.mark.slow)])
def test_numbers_of_every_source_are_stored_as_plain_trainer_takes_them(small: Mapping[Kind, Path], tmp_path: Path, kind: str) -> None:
    prepare(small["bpe"], source(tmp_path, kind), tmp_path / "out", **COLUMNS)
    train = load_from_disk(str(tmp_path / "out"))["train"]
    wanted = [float(int(number)) if kind == "parquet-whole" else number for number in NUMBERS]
    assert train["labels"][:] == np.array(wanted, np.float32).tolist()
    assert train.features["labels"].dtype == "float32"
    assert (manifest(tmp_path / "out")["task"], manifest(tmp_path / "out")["label_names"]) == ("regress", None)
    opened = Store.open(tmp_path / "out").split("train")
    assert opened.labels is None
    assert opened.numbers is not None
    assert opened.numbers.tolist() == train["labels"][:]


@pytest.mark.usefixtures("no_html")
def test_exact_decimals_of_a_table_are_numbers(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    prices = pa.array([Decimal("1.50"), Decimal("-2.25"), Decimal("3.10")], pa.decimal128(12, 2))
    parquet.write_table(pa.table({"text": ["a", "b", "c"], "score": prices}), tmp_path / "rows.parquet")
    prepare(small["bpe"], tmp_path / "rows.parquet", tmp_path / "out", **COLUMNS)
    assert load_from_disk(str(tmp_path / "out"))["train"]["labels"][:] == np.array([1.5, -2.25, 3.1], np.float32).tolist()


@pytest.mark.usefixtures("no_html")
@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_what_is_no_number_is_told_what_numbers_are_wanted(small: Mapping[Kind, Path], tmp_path: Path, name: str) -> None:
    if name.endswith("jsonl"):
        (tmp_path / name).write_text('{"text": "a", "score": true}\n')
    else:
        parquet.write_table(pa.table({"text": ["a", "b"], "score": [True, False]}), tmp_path / name)
    with pytest.raises(DataError, match="in mode regress labels must be numbers"):
        prepare(small["bpe"], tmp_path / name, tmp_path / "out", **COLUMNS)


@pytest.mark.usefixtures("no_html")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bad,high", r"'score' is 'high' \(a string\); in mode regress labels must be finite numbers"),
        ("bad,", "'score' is ''"),
        ("bad,nan", "'score' is 'nan'"),
        ("bad,inf", "'score' is 'inf'"),
        ("bad,1_0", "'score' is '1_0'"),
        ("bad,1e300", r"'score' is 1e\+300, out of the range of float32"),
        ("bad,1e39", r"'score' is 1e\+39, out of the range of float32"),
        ("bad,-100", "'score' is -100, which is reserved to mark rows that are ignored"),
    ],
)
def test_a_value_that_is_no_number_is_named_or_put_aside(small: Mapping[Kind, Path], tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "rows.csv").write_text(f"text,score\na,1\nb, 2.5\n{line}\nc,3\n")
    with pytest.raises(DataError, match=rf"rows\.csv:4 .*{words}"):
        prepare(small["bpe"], tmp_path / "rows.csv", tmp_path / "out", **COLUMNS)
    prepare(small["bpe"], tmp_path / "rows.csv", tmp_path / "out", **COLUMNS, dataset__on_bad="quarantine", dataset__max_bad=0.5)
    assert load_from_disk(str(tmp_path / "out"))["train"]["labels"][:] == [1.0, 2.5, 3.0]


@pytest.mark.usefixtures("no_html")
@pytest.mark.parametrize(
    ("rows", "change", "error", "words"),
    [
        ('{"text": "a", "score": "4.5"}', {}, DataError, "holds strings; mode regress takes numbers"),
        ('{"text": "a", "score": 1}\n{"text": "b", "score": null}', {}, DataError, "'score' is null"),
        ('{"text": "a", "score": 1}\n{"text": "b", "score": true}', {}, DataError, "'score' is true"),
        ('{"text": "a", "score": [1.5]}', {}, DataError, "'score' is"),
        ('{"text": "a", "score": 1.5}', {"dataset__label_names": ["a", "b"]}, UsageError, "predicts the number"),
        ('{"text": "a", "score": 1.5}', {"dataset__label_column": None}, UsageError, "the task regress needs labels"),
        ('{"text": "a", "score": 1.5}', {"packing__strategy": "bfd"}, UsageError, "contradict each other"),
    ],
)
def test_what_is_no_number_is_refused(
    small: Mapping[Kind, Path], tmp_path: Path, rows: str, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    (tmp_path / "rows.jsonl").write_text(rows + "\n")
    with pytest.raises(error, match=words):
        prepare(small["bpe"], tmp_path / "rows.jsonl", tmp_path / "out", **{**COLUMNS, **change})


@pytest.mark.usefixtures("no_html")
def test_a_column_of_decimals_without_the_mode_is_told_of_it(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    for kind in ("jsonl", "parquet"):
        with pytest.raises(DataError, match=r"'score' (holds double|is 4.5)") as refused:
            prepare(small["bpe"], source(tmp_path, kind), tmp_path / "out", dataset__label_column="score")
        assert "--mode regress" in refused.value.hint


# -- loss and figures --------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_torch_however_a_batch_is_cut() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, numbers = torch.randn(9, 1, generator=generator), torch.randn(9, generator=generator)
    whole = Regress().loss(logits, numbers, None)
    assert whole.item() == pytest.approx(functional.mse_loss(logits[:, 0], numbers).item(), rel=1e-6)
    parts = sum(Regress().loss(logits[start : start + 4], numbers[start : start + 4], 9) for start in (0, 4, 8))
    assert float(parts) == pytest.approx(whole.item(), rel=1e-6)
    marked = torch.cat([numbers[:5], torch.full((4,), -100.0)])
    assert int(count_targets(marked)) == 5
    assert Regress().loss(logits, marked, None).item() == pytest.approx(functional.mse_loss(logits[:5, 0], numbers[:5]).item(), rel=1e-6)


def test_correlation_and_error_are_those_of_all_rows_whatever_the_batches() -> None:
    generator = torch.Generator().manual_seed(1)
    numbers = torch.randn(100, generator=generator)
    logits = (0.5 * numbers + torch.randn(100, generator=generator))[:, None]
    held_out = HeldOut(Regress())
    for start in range(0, 100, 7):
        held_out.add(logits[start : start + 7], numbers[start : start + 7])
    figures = held_out.metrics(lambda sums: sums)
    assert figures["pearson"] == pytest.approx(float(np.corrcoef(logits[:, 0], numbers)[0, 1]), abs=1e-6)
    assert figures["rmse"] == pytest.approx(math.sqrt(float((logits[:, 0] - numbers).square().mean())), rel=1e-6)
    constant = HeldOut(Regress())
    constant.add(torch.full((8, 1), 2.5), numbers[:8])
    assert constant.metrics(lambda sums: sums)["pearson"] == 0.0


def test_years_correlate_as_what_they_are_after_1900_does() -> None:
    draw = torch.Generator().manual_seed(0)
    true = 2015 + 3 * torch.randn(200, generator=draw)
    guess = 2015 + (true - 2015) * 0.4
    task = Regress()
    task.center = float(true.mean())
    held = HeldOut(task)
    for some in range(0, 200, 50):
        held.add(guess[some : some + 50, None], true[some : some + 50])
    assert held.metrics(lambda sums: sums)["pearson"] == pytest.approx(1, abs=1e-4)
    assert held.metrics(lambda sums: sums)["rmse"] == pytest.approx(float((guess - true).square().mean().sqrt()), rel=1e-5)


def test_learning_by_heart_asks_for_more_than_the_mean() -> None:
    batch = telling({"labels": torch.tensor([10.0, 12.0, 11.0, 13.0])})
    assert batch["labels"].mean().item() == pytest.approx(0, abs=1e-6)
    assert batch["labels"].square().mean().item() == pytest.approx(1)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_what_knows_nothing_says_the_training_mean_of_the_held_out_rows_too(bench: Bench, store: Path) -> None:
    asked = prepare_run(bench.context(store, "baseline"))
    assert asked.held_out is not None
    assert (held_out := asked.held_out.numbers) is not None
    assert (numbers := asked.train.numbers) is not None
    course = course_of(asked, 100)
    assert course.unlearned == pytest.approx(float(numbers.var()), rel=1e-5)
    assert course.unlearned_elsewhere == pytest.approx(float(((held_out - numbers.mean()) ** 2).mean()), rel=1e-5)
    assert course.unlearned_elsewhere != pytest.approx(course.unlearned, rel=1e-3)


def test_the_first_loss_of_a_check_is_held_against_the_numbers_of_its_own_rows(bench: Bench, store: Path) -> None:
    report = verify(bench.context(store, "own rows", train__per_device_train_batch_size=12), (), "full", "fail", (), ())
    assert report.metrics["first_loss"] == pytest.approx(report.metrics["expected_first_loss"], rel=0.1)


def test_a_run_learns_numbers_and_its_model_is_a_plain_one(bench: Bench, store: Path) -> None:
    values = {"train__learning_rate": 5e-3, "train__num_train_epochs": 12, "train__per_device_train_batch_size": 16}
    context = bench.context(store, "run", **values)
    report = run(context)
    metrics, output = report.metrics, bench.folder / "run"
    assert any("mode regress: the prepared data have numeric labels" in note for note in report.notes)
    assert metrics["eval_pearson"] > 0.9
    assert metrics["eval_rmse"] == pytest.approx(math.sqrt(metrics["eval_loss"]), rel=1e-6)
    assert metrics["eval_rmse"] < 0.8
    assert metrics["expected_first_loss"] == pytest.approx(float(np.mean([number**2 for _, number in scored(400, 0)])), rel=1e-5)
    assert metrics["eval_accuracy"] is metrics["chance_accuracy"] is metrics["perplexity"] is None
    assert not [check.id for check in report.checks if check.status in {"warn", "fail", "error"}]
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(output).eval(), AutoTokenizer.from_pretrained(output)
    assert (model.config.problem_type, model.config.num_labels) == ("regression", 1)
    batch = Dynamic(spec_for(Regress()))(Store.open(store).split("train").rows([1, 2, 3]))
    assert model(**batch).loss.item() == pytest.approx(Regress().loss(model(**batch).logits, batch["labels"], None).item(), rel=1e-5)
    (answer,) = predict(load(str(output)), ["some text"], batch_size=2, max_new_tokens=1)
    with torch.no_grad():
        alone = model(**tokenizer("some text", return_tensors="pt", return_token_type_ids=False)).logits
    assert answer == {"score": pytest.approx(float(alone[0, 0]), abs=1e-5)}


@pytest.mark.slow
def test_a_resumed_run_has_the_weights_of_a_whole_one(bench: Bench, store: Path) -> None:
    values = {"train__max_steps": 8, "train__save_steps": 4, "train__verify": False, "train__eval_strategy": "no"}
    run(bench.context(store, "whole", **values))
    half = bench.folder / "whole" / "checkpoint-4"
    run(bench.context(store, "rest", **values, train__resume_from_checkpoint=str(half)))
    whole, rest = (AutoModelForSequenceClassification.from_pretrained(bench.folder / name).state_dict() for name in ("whole", "rest"))
    assert all(torch.equal(whole[name], rest[name]) for name in whole)


def test_every_check_of_a_sound_run_passes(bench: Bench, store: Path) -> None:
    report = verify(bench.context(store, "checked"), (), "full", "fail", (), ())
    statuses = {check.id: check for check in report.checks}
    assert not [(check.id, check.summary) for check in report.checks if check.status in {"fail", "error", "warn"} and check.stage != "env"]
    for name in ("FT203", "FT302", "FT403", "FT405", "FT407", "FT414", "FT501", "FT505"):
        assert statuses[name].status == "pass", (name, statuses[name].summary)


@pytest.mark.parametrize(
    ("change", "name", "status", "words"),
    [
        (lambda number: number * 1000, "FT203", "warn", "a new head predicts about 0"),
        (lambda number: number * 1e-5, "FT203", "warn", "are large compared to that"),
        (lambda number: 0.5 + number * 1e-3, "FT203", "warn", "are large compared to that"),
        (lambda number: number * 0.1, "FT203", "pass", "with a standard deviation of 0.0"),
        (lambda _: 2.0, "FT203", "fail", "every row of train has the label 2"),
        (lambda _: 0.1, "FT203", "fail", "every row of train has the label 0.1"),
    ],
)
def test_numbers_that_a_head_does_not_reach_are_named(
    bench: Bench, tmp_path: Path, change: Any, name: str, status: str, words: str
) -> None:
    rows = {split: [(ids, change(number)) for ids, number in scored(60, 3)] for split in ("train", "validation")}
    bench = Bench(tmp_path, bench.tokenizer)
    report = verify(bench.context(bench.store("odd", rows, task="regress"), "checked"), (), "quick", "fail", (name,), ())
    (check,) = [check for check in report.checks if check.id == name]
    assert (check.status, words in check.summary) == (status, True), check.summary


def test_the_store_trains_in_plain_trainer(small: Mapping[Kind, Path], tmp_path: Path) -> None:
    prepare(small["bpe"], source(tmp_path, "csv"), tmp_path / "out", **COLUMNS)
    model = tiny_model(vocab_size=700, labels=1)
    model.config.problem_type, model.config.pad_token_id = "regression", 0
    arguments = TrainingArguments(
        str(tmp_path / "plain"), max_steps=2, report_to="none", use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    rows = load_from_disk(str(tmp_path / "out"))["train"]
    trainer = Trainer(
        model, arguments, train_dataset=rows, data_collator=DataCollatorWithPadding(AutoTokenizer.from_pretrained(small["bpe"]))
    )
    assert np.isfinite(trainer.train().training_loss)
