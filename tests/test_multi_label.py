"""Any number of labels a row: from lists in the sources to a model that plain transformers takes for what it is."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset, load_from_disk
from pyarrow import parquet
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments, pipeline

from ftcli.commands import predict as predict_command
from ftcli.commands.train import run
from ftcli.core.batches.balance import balanced_sides
from ftcli.core.batches.collate import Dynamic
from ftcli.core.batches.tasks import Classify, count_targets
from ftcli.core.models.held_out import HeldOut
from ftcli.core.models.last_layer import LastLayer
from ftcli.core.storage.label_flags import LabelFlags
from ftcli.core.training.run import prepare as planned
from ftcli.core.verify.forward import inputs_of
from ftcli.errors import DataError, UsageError
from ftcli.records import MANIFEST_NAME
from ftcli.testing import tiny_model
from runs import ONE_STEP, VOCABULARY, Bench, step_of
from stores import context, rows_of, spec_for, split_of, told
from tokenizing import left_behind, prepare, without_plots

pytestmark = pytest.mark.usefixtures("one_thread", "nursery")

no_html = without_plots
TEXTS = ("a first text", "the second", "third one here", "fourth text", "fifth")
LABELS: tuple[tuple[str, ...], ...] = (("b", "a"), (), ("c",), ("a", "a"), ("b",))
FLAGS = [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def told_store(bench: Bench) -> Path:
    return bench.store("told", {"train": told(240, 4, VOCABULARY, 0), "validation": told(61, 4, VOCABULARY, 1)}, labels=4)


# -- tokenize ----------------------------------------------------------------------------------------------------------


def _sources(folder: Path) -> dict[str, Path]:
    """The same five rows in every format."""
    rows = [{"text": text, "label": list(labels)} for text, labels in zip(TEXTS, LABELS, strict=True)]
    found = {name: folder / f"rows.{name}" for name in ("jsonl", "json", "parquet", "pkl", "csv")} | {"ids": folder / "ids.parquet"}
    found["jsonl"].write_text("".join(json.dumps(row) + "\n" for row in rows))
    found["json"].write_text(json.dumps(rows))
    parquet.write_table(pa.table({"text": TEXTS, "label": pa.array(LABELS, pa.list_(pa.string()))}), found["parquet"])
    numbers = [["abc".index(label) for label in labels] for labels in LABELS]
    parquet.write_table(pa.table({"text": TEXTS, "label": pa.array(numbers, pa.large_list(pa.int32()))}), found["ids"])
    found["pkl"].write_bytes(pickle.dumps(rows))
    found["csv"].write_text("text,label\n" + "".join(f"{row['text']},{' | '.join(row['label'])}\n" for row in rows))
    return found


@pytest.mark.usefixtures("no_html")
@pytest.mark.parametrize("name", ["jsonl", "json", "parquet", "ids", "csv", pytest.param("pkl", marks=pytest.mark.slow)])
def test_lists_of_labels_become_a_vector_a_row_whatever_the_format(bench: Bench, tmp_path: Path, name: str) -> None:
    values = {"dataset__label_separator": "|"} if name == "csv" else {}
    report = prepare(bench.tokenizer, _sources(tmp_path)[name], tmp_path / "out", dataset__label_column="label", **values)
    train = load_from_disk(str(tmp_path / "out"))["train"]
    assert train["labels"][:] == FLAGS
    assert (train.features["labels"].length, train.features["labels"].feature.dtype) == (3, "float32")
    assert json.loads((tmp_path / "out" / MANIFEST_NAME).read_text())["label_names"] == (
        ["0", "1", "2"] if name == "ids" else ["a", "b", "c"]
    )
    assert "1 of 3 labels a row; 1 of 5 rows have none" in report.notes
    assert report.details["labels"]["counts"] == [2, 2, 1]


@pytest.mark.usefixtures("no_html")
def test_labels_follow_their_rows_through_splits_and_shards(bench: Bench, tmp_path: Path) -> None:
    rows = [{"text": f"text number {number}", "label": [str(label) for label in range(4) if number >> label & 1]} for number in range(64)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values: dict[str, Any] = {"dataset__label_column": "label", "dataset__shard_bytes": 1000, "dataset__validation_fraction": 0.3}
    prepare(bench.tokenizer, tmp_path / "rows.jsonl", tmp_path / "out", **values, dataset__batch_size=7)
    tokenizer, store = AutoTokenizer.from_pretrained(bench.tokenizer), load_from_disk(str(tmp_path / "out"))
    assert {name: len(split) for name, split in store.items()}.keys() == {"train", "validation"}
    for row in (row for split in store.values() for row in split):
        number = int(tokenizer.decode(row["input_ids"], skip_special_tokens=True).split()[-1])
        assert row["labels"] == [float(number >> label & 1) for label in range(4)]


@pytest.mark.usefixtures("no_html")
@pytest.mark.parametrize(
    ("bad", "values", "words"),
    [
        (["a", "z"], {"dataset.label_names": ["a", "b"]}, "the label 'z' is not among the label names"),
        (None, {}, "'label' is null; labels must be lists of strings"),
        (["a", None], {}, "an item of 'label' is null"),
        (["a", 1], {}, r"an item of 'label' is 1 \(a number\)"),
        ("a", {}, r"'label' is 'a' \(a string\); labels must be lists of strings"),
        ([["a"]], {}, r"an item of 'label' is \['a'\]"),
    ],
)
def test_a_row_whose_labels_cannot_be_used_is_named_or_put_aside(
    bench: Bench, tmp_path: Path, bad: Any, values: dict[str, Any], words: str
) -> None:
    rows = [{"text": "first", "label": []}, {"text": "good", "label": ["b", "a"]}, {"text": "bad", "label": bad}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"dataset__label_column": "label", **{key.replace(".", "__"): value for key, value in values.items()}}
    with pytest.raises(DataError, match=rf"rows\.jsonl.*{words}") as refused:
        prepare(bench.tokenizer, tmp_path / "rows.jsonl", tmp_path / "out", **given)
    assert "3" in refused.value.message
    prepare(bench.tokenizer, tmp_path / "rows.jsonl", tmp_path / "out", **given, dataset__on_bad="quarantine", dataset__max_bad=0.5)
    assert load_from_disk(str(tmp_path / "out"))["train"]["labels"][:] == [[0, 0], [1, 1]]
    assert left_behind(tmp_path / "out") == []


@pytest.mark.usefixtures("no_html")
def test_bad_items_of_a_parquet_list_are_said_of_their_row(bench: Bench, tmp_path: Path) -> None:
    labels = pa.array([[], ["a", "b"], ["b"], ["a", None]], pa.list_(pa.string()))
    parquet.write_table(pa.table({"text": ["one", "two", "three", "four"], "label": labels}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"row 4: an item of 'label' is null"):
        prepare(bench.tokenizer, tmp_path / "rows.parquet", tmp_path / "out", dataset__label_column="label")


@pytest.mark.usefixtures("no_html")
def test_lists_and_single_labels_do_not_mix(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"text": "x", "label": "a"}\n')
    (tmp_path / "two.jsonl").write_text('{"text": "y", "label": ["a", "b"]}\n')
    with pytest.raises(DataError, match=r"holds strings in .*one\.jsonl and lists of strings in .*two\.jsonl"):
        prepare(bench.tokenizer, [tmp_path / "one.jsonl", tmp_path / "two.jsonl"], tmp_path / "out", dataset__label_column="label")


# -- the store ---------------------------------------------------------------------------------------------------------


def test_vectors_are_read_by_row_across_chunks() -> None:
    parts = [np.eye(3, dtype=np.float32)[[0, 1]], np.eye(3, dtype=np.float32)[[2]], np.zeros((2, 3), np.float32)]
    column = pa.chunked_array([pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), 3) for part in parts])
    flags = LabelFlags.of_column(column.slice(1))
    whole = np.concatenate(parts)[1:]
    assert (len(flags), flags.width, flags.counts.tolist(), flags.without) == (4, 3, [0, 1, 1], 2)
    order = np.array([3, 0, 2, 1, 0])
    assert (flags.gather(order) == whole[order]).all()
    codes = flags.codes
    assert [[int(one == other) for other in codes] for one in codes] == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert next(flags.odd(), None) is None


def test_plain_trainer_trains_on_the_store_with_the_loss_of_ours(bench: Bench, told_store: Path, tmp_path: Path) -> None:
    ours = planned(bench.context(told_store, "plain", **ONE_STEP))
    arguments = TrainingArguments(
        str(tmp_path / "plain"),
        max_steps=1,
        per_device_train_batch_size=48,
        use_cpu=True,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        train_sampling_strategy="sequential",
    )
    train = pa.ipc.open_stream(next((told_store / "train").glob("*.arrow"))).read_all().slice(0, 48)
    collator = DataCollatorWithPadding(ours.tokenizer)
    rows = Dataset(train).remove_columns("length")
    assert collator([rows[0], rows[1]])["labels"].dtype == torch.float32
    trainer = Trainer(ours.model, arguments, data_collator=collator, train_dataset=rows, processing_class=ours.tokenizer)
    with torch.no_grad():
        batch = ours.collator(ours.train.rows(list(range(48))))
        wanted = ours.task.loss(ours.model.eval()(**{k: v for k, v in batch.items() if k != "labels"}).logits, batch["labels"], None)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(float(wanted), rel=1e-5)


# -- the loss ----------------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_transformers_over_rows_times_labels() -> None:
    model = tiny_model(labels=7)
    model.config.problem_type = "multi_label_classification"
    ids, labels = torch.randint(3, 384, (5, 10)), (torch.rand(5, 7) > 0.6).float()
    output = model(input_ids=ids, labels=labels)
    assert torch.allclose(Classify().loss(output.logits, labels, None), output.loss, atol=1e-6)
    assert count_targets(labels) == 35
    assert torch.allclose(Classify().loss(output.logits, labels, 70), output.loss / 2, atol=1e-6)
    assert Classify().loss(output.logits.bfloat16(), labels, 5).dtype == torch.float32
    idle = labels.clone()
    idle[3:] = -100
    assert count_targets(idle) == 21
    assert torch.allclose(Classify().loss(output.logits, idle, None), Classify().loss(output.logits[:3], labels[:3], None), atol=1e-6)
    assert float(Classify().loss(output.logits.detach(), torch.full_like(labels, -100.0), 35)) == 0


def test_balanced_weights_let_holding_and_not_holding_weigh_the_same_and_keep_the_law(bench: Bench, told_store: Path) -> None:
    labels = torch.tensor([[1.0, 0], [0, 0], [0, 0], [1, 0]])
    weights = balanced_sides(np.array([2, 0]), 4)
    assert weights.tolist() == [[1, 1], [1, 1]]
    task = Classify()
    task.class_weights = np.array([[0.5, 1], [4, 1]], np.float32)
    logits = torch.randn(4, 2)
    each = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    each[:, 0] *= torch.tensor([4, 0.5, 0.5, 4])
    assert torch.allclose(task.training_loss(logits, labels, 8), each.sum() / 8)
    found = {}
    for steps in (1, 4):
        split = {"train__gradient_accumulation_steps": steps, "train__per_device_train_batch_size": 48 // steps}
        found[steps] = step_of(bench.context(told_store, "law", **ONE_STEP, **split, train__class_weights="balanced"))
    plain, _ = step_of(bench.context(told_store, "law", **ONE_STEP, train__per_device_train_batch_size=48))
    assert found[1][0] == pytest.approx(found[4][0], rel=1e-5)
    assert found[1][0] != pytest.approx(plain, rel=1e-4)
    assert (found[1][1] - found[4][1]).norm() / found[1][1].norm() < 1e-4


# -- evaluation --------------------------------------------------------------------------------------------------------


def test_the_figures_of_an_evaluation_are_exact_whatever_its_batches() -> None:
    generator = torch.Generator().manual_seed(3)
    logits, held = torch.randn(37, 5, generator=generator), (torch.rand(37, 5, generator=generator) > 0.7).float()
    held[:, 4], logits[:, 4] = 0, -1
    guess, true = logits >= 0, held > 0
    f1 = [2 * int((guess & true)[:, one].sum()) / int(guess[:, one].sum() + true[:, one].sum()) for one in range(4)]
    for cut in ([37], [1] * 37, [20, 16, 1]):
        figures = HeldOut(Classify())
        for scores, labels in zip(logits.split(cut), held.split(cut), strict=True):
            figures.add(scores, labels, {"input_ids": torch.full((len(labels), 2), 7)})
        found = figures.metrics(lambda tensor: tensor)
        assert found["loss"] == pytest.approx(float(functional.binary_cross_entropy_with_logits(logits, held)), rel=1e-6)
        assert found["micro_f1"] == pytest.approx(2 * int((guess & true).sum()) / int(guess.sum() + true.sum()))
        assert found["macro_f1"] == pytest.approx(sum(f1) / 4)
        assert found["exact_match"] == pytest.approx(float((guess == true).all(1).float().mean()))
        assert "accuracy" not in found
        summary = figures.confusion.summary(lambda tensor: tensor)
        assert summary is not None
        report = summary.report(["a", "b", "c", "d", "e"], str)
        assert {one["label"]: (one["rows"], one["missed"], one["wrongly_said"]) for one in report["classes"]} == {
            name: (int(true[:, one].sum()), int((true & ~guess)[:, one].sum()), int((guess & ~true)[:, one].sum()))
            for one, name in enumerate("abcd")
        }
        assert sum(one["rows"] for one in report["largest"]) == int((guess != true).sum())
        assert all((one["true"] is None) != (one["predicted"] is None) for one in report["largest"])


# -- a run -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(bench: Bench, told_store: Path) -> tuple[Path, Any]:
    """A model that has learned which words mean which labels, and the report of its run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(bench.folder)
        report = run(
            bench.context(
                told_store,
                "trained",
                train__num_train_epochs=8,
                train__per_device_train_batch_size=16,
                train__learning_rate=5e-3,
                train__warmup_steps=0,
                train__logging_steps=5,
                train__eval_strategy="epoch",
                train__save_strategy="no",
                train__verify="off",
                runtime__report_dir=bench.folder / "reports",
            )
        )
    return bench.folder / "trained", report


def test_a_run_starts_at_ln_2_learns_and_reports_f1(trained: tuple[Path, Any]) -> None:
    _, report = trained
    metrics = report.metrics
    assert metrics["expected_first_loss"] == pytest.approx(math.log(2))
    assert metrics["first_loss"] == pytest.approx(math.log(2), rel=0.1)
    assert metrics["eval_micro_f1"] > 0.9
    assert metrics["eval_macro_f1"] > 0.9
    assert 0.5 < metrics["eval_exact_match"] <= 1
    assert metrics["eval_accuracy"] is metrics["chance_accuracy"] is metrics["majority_accuracy"] is None
    assert [check for check in report.checks if check.status not in {"pass", "info", "skipped"}] == []
    assert {one["label"] for one in report.details["confusion"]["classes"]} == {f"label {number}" for number in range(4)}
    assert any(words.startswith("lean step: ") and "last layer for pooled tokens only on, proved equal" in words for words in report.notes)


def test_plain_transformers_takes_the_model_for_what_it_is(trained: tuple[Path, Any], told_store: Path) -> None:
    folder, _ = trained
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert (model.config.problem_type, model.config.id2label[3]) == ("multi_label_classification", "label 3")
    ids, labels = told(1, 4, VOCABULARY, 7)[0]
    logits = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).logits
    text = "the order invoice"
    answers = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")(text, top_k=None, function_to_apply="sigmoid")
    with torch.no_grad():
        alone = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits.sigmoid()[0]
    assert {one["label"]: one["score"] for one in answers} == pytest.approx(
        {model.config.id2label[place]: float(share) for place, share in enumerate(alone)}, abs=1e-5
    )
    assert logits.shape == (1, 4)


def test_predict_gives_the_labels_over_a_threshold(trained: tuple[Path, Any]) -> None:
    folder, _ = trained
    found = {}
    for threshold in (0.001, 0.5, 0.999):
        report = predict_command.run(context(), str(folder), ("the order",), None, 1, 1, threshold, False)
        (one,) = report.details["predictions"]
        assert one["holds"] == [each["label"] for each in one["labels"] if each["probability"] >= threshold]
        found[threshold] = len(one["holds"])
    assert found[0.001] >= found[0.5] >= found[0.999]
    assert found[0.001] > found[0.999]
    with pytest.raises(UsageError, match=r"threshold = 1\.5"):
        predict_command.run(context(), str(folder), ("the order",), None, 1, 1, 1.5, False)


# -- pooling -----------------------------------------------------------------------------------------------------------


def test_a_row_is_pooled_at_its_last_token_alone_and_padded_on_either_side(trained: tuple[Path, Any]) -> None:
    """By the collator and by the saved tokenizer, with and without the lean step's last layer; a wrong PAD id is the positive control."""
    model, tokenizer = (family.from_pretrained(trained[0]) for family in (AutoModelForSequenceClassification, AutoTokenizer))
    texts = ["the order invoice is late again", "refund", "where is my card"]
    ids = tokenizer(texts)["input_ids"]
    assert len(set(map(len, ids))) == 3
    with torch.no_grad():
        alone = torch.cat([model.eval()(input_ids=torch.tensor([row])).logits for row in ids])

        def differences() -> list[float]:
            found = []
            for side in ("right", "left"):
                spec = spec_for(Classify(), padding_side=side, pad_token_id=tokenizer.pad_token_id)
                ours = inputs_of(Dynamic(spec)(rows_of(ids, labels=[0, 1, 2])))
                tokenizer.padding_side = side
                theirs = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
                assert (ours["input_ids"] == theirs["input_ids"]).all()
                found += [float((model(**batch).logits - alone).abs().max()) for batch in (ours, theirs)]
            return found

        assert max(differences()) < 1e-5
        for module, forward in LastLayer(model).forwards.items():
            module.forward = forward
        assert max(differences()) < 1e-5
        model.config.pad_token_id = 9
        assert differences()[0] > 1e-3


@pytest.mark.parametrize("side", ["right", "left"])
def test_an_encoder_pools_its_first_place_so_that_runs_pad_on_the_right(side: str) -> None:
    model, ids = tiny_model("bert", labels=3).eval(), [[5, 6, 7, 8, 9], [12, 13]]
    with torch.no_grad():
        batch = inputs_of(Dynamic(spec_for(Classify(), padding_side=side))(rows_of(ids, labels=[0, 1])))
        alone = torch.cat([model(input_ids=torch.tensor([row])).logits for row in ids])
        assert torch.allclose(model(**batch).logits, alone, atol=1e-5) == (side == "right")


def test_a_split_of_vectors_has_no_single_labels(tmp_path: Path) -> None:
    split = split_of(tmp_path, told(3, 4, VOCABULARY, 0))
    assert split.labels is None
    assert not split.targeted
    assert split.rows([2, 0]).flags.shape == (2, 4)
