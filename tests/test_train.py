"""Training: the loss is the true one, the model learns, and what is written can be used by anyone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments, pipeline

from ftcli import hookimpl
from ftcli.commands.train import run
from ftcli.core.batches.tasks import IGNORED, Pretrain
from ftcli.core.models import flops
from ftcli.core.reports.headline import headline, lede
from ftcli.core.training.run import prepare
from ftcli.core.training.trainer import FtcliTrainer
from ftcli.core.verify.probe import Probe
from ftcli.errors import (
    DataError,
    FtcliError,
    MissingExtraError,
    ModelError,
    PluginError,
    PublishError,
    SettingsError,
    StoreError,
    TrainError,
    UsageError,
)
from ftcli.records import Step, to_json
from ftcli.testing import tiny_model
from rank_steps import RAGGED, answered
from runs import BRIEF, ONE_STEP, VOCABULARY, Bench, step_of
from stores import learnable, packed, told

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def classify(bench: Bench) -> Path:
    return bench.store("classify", {"train": learnable(240, 4, VOCABULARY, 0), "validation": learnable(60, 4, VOCABULARY, 1)}, labels=4)


@pytest.fixture(scope="module")
def pretrain(bench: Bench) -> Path:
    return bench.store("pretrain", {"train": packed(96, 32, VOCABULARY, 0), "validation": packed(9, 32, VOCABULARY, 1)}, max_length=32)


# -- the loss ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def global_batches(bench: Bench, classify: Path) -> dict[str, Path]:
    """Stores whose first 48 rows are the global batch."""
    return {
        "classify": classify,
        "classify, any number": bench.store("any number", {"train": told(48, 4, VOCABULARY, 0)}, labels=4),
        "pretrain, ragged": bench.store("ragged", {"train": RAGGED}),
        "pretrain, packed": bench.store("packs", {"train": packed(48, 32, VOCABULARY, 3)}),
        "sft, ragged": bench.store("answers", {"train": [(ids, answered(ids)) for ids, _ in RAGGED]}, task="sft"),
        "sft, packed": bench.store(
            "answer packs", {"train": [(ids, answered(ids), parts) for ids, _, parts in packed(48, 32, VOCABULARY, 3)]}, task="sft"
        ),
    }


@pytest.mark.parametrize("task", ["classify", "classify, any number", "pretrain, ragged", "pretrain, packed", "sft, ragged", "sft, packed"])
def test_loss_and_gradient_do_not_depend_on_how_a_global_batch_is_accumulated(
    bench: Bench, global_batches: dict[str, Path], task: str
) -> None:
    found = {}
    for steps in (1, 2, 4, 12):
        split = {"train__gradient_accumulation_steps": steps, "train__per_device_train_batch_size": 48 // steps}
        found[steps] = step_of(bench.context(global_batches[task], "step", **ONE_STEP, **split))
    loss, gradient = found[1]
    assert gradient.norm() > 1e-3
    for other_loss, other in found.values():
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert (other - gradient).norm() / gradient.norm() < 1e-4


@pytest.mark.parametrize("task", ["classify", "sft, ragged", "pretrain, packed"])
def test_loss_and_gradient_by_tokens_are_those_of_the_same_rows_in_one_batch(
    bench: Bench, global_batches: dict[str, Path], task: str
) -> None:
    by_tokens = {"train__gradient_accumulation_steps": 4, "train__max_tokens_per_batch": 160}
    context = bench.context(global_batches[task], "by tokens", **ONE_STEP, **by_tokens)
    batches = prepare(context).token_batches
    assert batches is not None
    sizes = [len(batch) for batch in batches][:4]
    assert task == "pretrain, packed" or len(set(sizes)) > 1
    loss, gradient = step_of(context)
    rows = {"train__per_device_train_batch_size": sum(sizes), "loader__collator": "packed" if "packed" in task else "dynamic"}
    expected, right = step_of(bench.context(global_batches[task], "by rows", **ONE_STEP, **rows))
    assert loss == pytest.approx(expected, rel=1e-5)
    assert (gradient - right).norm() / right.norm() < 1e-4


def test_plain_trainer_multiplies_the_loss_by_the_accumulation_steps(bench: Bench, classify: Path, tmp_path: Path) -> None:
    """The positive control of the test above: the fault is real in the installed transformers."""
    ours = prepare(bench.context(classify, "plain"))
    found = {}
    for steps in (1, 12):
        arguments = TrainingArguments(
            output_dir=str(tmp_path / str(steps)),
            max_steps=1,
            learning_rate=0.0,
            gradient_accumulation_steps=steps,
            per_device_train_batch_size=48 // steps,
            use_cpu=True,
            remove_unused_columns=False,
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        )
        rows = [{"input_ids": ids, "labels": label} for ids, label in learnable(48, 4, VOCABULARY, 0)]
        trainer = Trainer(model=ours.model, args=arguments, train_dataset=rows, processing_class=ours.tokenizer)
        trainer.train()
        found[steps] = trainer.state.log_history[0]["loss"]
    assert found[1] == pytest.approx(math.log(4), rel=0.1)
    assert found[12] / found[1] == pytest.approx(12, rel=0.01)


def test_the_loss_of_ragged_texts_is_the_mean_over_all_targets(bench: Bench, global_batches: dict[str, Path]) -> None:
    split = {"train__gradient_accumulation_steps": 12, "train__per_device_train_batch_size": 4}
    ours = prepare(bench.context(global_batches["pretrain, ragged"], "mean", **ONE_STEP, **split))
    total, targets, means = 0.0, 0, []
    with torch.no_grad():
        for ids, _ in RAGGED:
            row = torch.tensor([ids])
            loss = ours.model(input_ids=row, labels=row).loss
            total, targets = total + float(loss) * (len(ids) - 1), targets + len(ids) - 1
            means.append(float(loss))
    loss, _ = step_of(bench.context(global_batches["pretrain, ragged"], "mean", **ONE_STEP, **split))
    assert loss == pytest.approx(total / targets, rel=1e-5)
    assert abs(np.mean(means) - total / targets) > 1e-4  # a mean of means would show


@pytest.mark.parametrize("size", [1, 7, 60])
def test_the_held_out_loss_does_not_depend_on_the_batch_size(bench: Bench, size: int) -> None:
    rows = [(ids, None) for ids, _ in learnable(33, 4, VOCABULARY, 5)]
    store = bench.folder / "held out"
    if not store.exists():
        bench.store("held out", {"train": rows[:8], "test": rows})
    values = {**ONE_STEP, "train__learning_rate": 1e-12, "train__eval_strategy": "epoch", "train__per_device_eval_batch_size": size}
    report = run(bench.context(store, "held", **values))
    model = prepare(bench.context(store, "held", **values)).model
    total, targets = 0.0, 0
    with torch.no_grad():
        for ids, _ in rows:
            row = torch.tensor([ids])
            total, targets = total + float(model(input_ids=row, labels=row).loss) * (len(ids) - 1), targets + len(ids) - 1
    assert report.metrics["eval_loss"] == pytest.approx(total / targets, rel=1e-5)
    assert report.metrics["perplexity"] == pytest.approx(math.exp(total / targets), rel=1e-4)


def test_280_labels_start_at_ln_280_whatever_the_accumulation(bench: Bench) -> None:
    rows = [([10 + number % 300, 20 + number // 300, 30], number % 280) for number in range(480)]
    store = bench.store("labels", {"train": rows}, labels=280)
    for steps in (1, 12):
        split = {"train__gradient_accumulation_steps": steps, "train__per_device_train_batch_size": 48 // steps}
        report = run(bench.context(store, "labels run", **ONE_STEP, **split))
        assert report.metrics["first_loss"] == pytest.approx(math.log(280), rel=0.05)
        assert report.metrics["expected_first_loss"] == pytest.approx(math.log(280))
        assert report.checks[-1].status == "pass"
        assert report.metrics["padding_share"] == 0


# -- whole runs --------------------------------------------------------------------------------------------------------


def test_a_run_on_labels_that_do_not_belong_to_the_texts_says_so_at_its_end(bench: Bench) -> None:
    random = np.random.default_rng(5)
    shuffled = {
        split: [(ids, int(random.integers(4))) for ids, _ in learnable(rows, 4, VOCABULARY, rows)]
        for split, rows in (("train", 960), ("validation", 120))
    }
    values = {"train__learning_rate": 1e-3, "train__per_device_train_batch_size": 16, "train__logging_steps": 20, "train__verify": False}
    report = run(bench.context(bench.store("shuffled", shuffled, labels=4), "run shuffled", **values, train__num_train_epochs=1))
    assert [check.status for check in report.checks if check.id == "nothing-learned"] == ["warn"]
    assert any("ignoring the texts" in note for note in report.notes)


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("kind", ["qwen3", "bert"])
def test_a_classifier_learns_and_is_saved_for_anyone(bench: Bench, classify: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        "train__learning_rate": 3e-3,
        "train__num_train_epochs": 8,
        "train__per_device_train_batch_size": 16,
        "train__logging_steps": 5,
    }
    context = bench.context(classify, f"run {kind}", kind, **values)
    report = run(context)
    metrics, output = report.metrics, bench.folder / f"run {kind}"
    assert report.status == "ok"
    assert capsys.readouterr().out == ""  # stdout belongs to --json
    assert metrics["first_loss"] == pytest.approx(math.log(4), rel=0.2)
    assert metrics["final_loss"] < 0.3
    assert metrics["eval_accuracy"] > 0.6 > metrics["chance_accuracy"] == 0.25
    assert metrics["majority_accuracy"] < 0.5
    assert (metrics["steps"], metrics["epochs"], metrics["resumed_from"], metrics["mfu"]) == (120, 8.0, None, None)
    assert 0 < metrics["padding_share"] < 0.2
    assert 0 <= metrics["data_wait_share"] < 0.5
    assert metrics["real_tokens_per_second"] < metrics["slots_per_second"]
    assert metrics["peak_rss_mb"] > 100
    assert any("similar length" in note for note in report.notes)

    model = AutoModelForSequenceClassification.from_pretrained(output)
    assert model.config.id2label[3] == "label 3"
    assert model.config.use_cache  # as it was before training
    predict = pipeline("text-classification", model=str(output), tokenizer=str(output), device="cpu")
    assert predict("order")[0]["label"].startswith("label ")

    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["step"] == 1
    assert lines[0]["loss"] == metrics["first_loss"]
    assert [entry["step"] for entry in report.details["log"] if "loss" in entry] == [1, *range(5, 121, 5)]
    assert len([entry for entry in report.details["log"] if "eval_loss" in entry]) == 8
    written = json.loads((output / "ftcli-run.json").read_text())
    assert written["metrics"]["eval_accuracy"] == metrics["eval_accuracy"]
    assert written["paths"]["html"].endswith("report.html")
    assert Path(written["paths"]["html"]).is_file()
    assert report.details["padding"]["real tokens"] == 8 * sum(len(ids) for ids, _ in learnable(240, 4, VOCABULARY, 0))
    assert {"data_wait", "forward", "backward", "optimizer", "evaluation", "checkpoint", "logging", "other"} <= set(report.details["time"])
    assert sum(report.details["time"].values()) == pytest.approx(metrics["time_wall"], rel=0.02)
    assert metrics["time_forward"] + metrics["time_backward"] > metrics["time_data_wait"] > 0
    assert metrics["targets_per_second"] > 0


def test_packed_pretraining_starts_at_ln_vocabulary_and_learns(bench: Bench, pretrain: Path) -> None:
    values = {"train__learning_rate": 3e-3, "train__num_train_epochs": 8, "train__logging_steps": 5, "train__torch_empty_cache_steps": None}
    report = run(bench.context(pretrain, "run pretrain", **values))
    metrics = report.metrics
    assert metrics["first_loss"] == pytest.approx(math.log(VOCABULARY), rel=0.05)
    assert metrics["final_loss"] < metrics["first_loss"] - 0.5
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["eval_loss"]))
    assert report.details["asked"] == "plain"
    assert metrics["chance_accuracy"] is metrics["eval_accuracy"] is metrics["majority_accuracy"] is None
    assert AutoModelForCausalLM.from_pretrained(bench.folder / "run pretrain").config.use_cache
    assert len(AutoTokenizer.from_pretrained(bench.folder / "run pretrain")) == VOCABULARY


def test_what_is_trained_on_is_what_the_store_holds(bench: Bench, pretrain: Path) -> None:
    ours = prepare(bench.context(pretrain, "same"))
    batch = ours.collator(ours.train.rows([3, 4]))
    assert "attention_mask" not in batch
    assert (batch["labels"][:, 0] == IGNORED).all()
    assert ours.order == "random"


def test_the_order_of_rows_follows_collator_and_strategy(bench: Bench, classify: Path) -> None:
    assert prepare(bench.context(classify, "order")).order == "grouped"
    assert prepare(bench.context(classify, "order", loader__collator="dynamic")).order == "random"
    assert prepare(bench.context(classify, "order", train__train_sampling_strategy="sequential")).order == "sequential"
    assert (
        prepare(bench.context(classify, "order", loader__collator="dynamic", train__train_sampling_strategy="group_by_length")).order
        == "grouped"
    )


def test_batches_by_tokens_are_as_many_as_were_planned(bench: Bench, classify: Path) -> None:
    values = {"train__max_tokens_per_batch": 160, "train__gradient_accumulation_steps": 2, "train__num_train_epochs": 2}
    context = bench.context(classify, "planned", **values, train__learning_rate=3e-3, train__logging_steps=1)
    batches = prepare(context).token_batches
    assert batches is not None
    report = run(bench.context(classify, "planned", **values, train__learning_rate=3e-3, train__logging_steps=1))
    assert report.metrics["steps"] == 2 * math.ceil(len(batches) / 2)
    assert report.metrics["epochs"] == 2.0
    rates = [entry["learning_rate"] for entry in report.details["log"] if "loss" in entry]
    assert rates[-1] == pytest.approx(3e-3 / report.metrics["steps"]), "the schedule ends where the run does"
    assert report.details["padding"]["real tokens"] == 2 * sum(len(ids) for ids, _ in learnable(240, 4, VOCABULARY, 0))
    assert report.metrics["padding_share"] < 0.06  # 18 batches of 4 to 23 tokens
    (said,) = [note for note in report.notes if "at most 160 tokens" in note]
    assert f"{len(batches)} an epoch, of {240 / len(batches):.1f} rows on average" in said
    assert report.details["rows_per_step"] == pytest.approx(2 * 240 / len(batches))


def test_a_full_step_has_its_rows_where_there_are_fewer(bench: Bench) -> None:
    few = bench.store("few", {"train": learnable(9, 3, VOCABULARY, 0)}, labels=3)
    by_rows = {"train__per_device_train_batch_size": 6, "train__gradient_accumulation_steps": 4}
    assert run(bench.context(few, "few by rows", **ONE_STEP, **by_rows)).details["rows_per_step"] == 24
    by_tokens = run(bench.context(few, "few by tokens", **ONE_STEP, train__max_tokens_per_batch=4_000))
    assert by_tokens.details["rows_per_step"] == pytest.approx(4_000 / np.mean([len(ids) for ids, _ in learnable(9, 3, VOCABULARY, 0)]))


def test_the_best_model_is_kept_and_patience_ends_a_run(bench: Bench) -> None:
    # The validation labels are one further than the rule of the training rows: what is learned makes them worse.
    wrong = [(ids, (label + 1) % 4) for ids, label in learnable(60, 4, VOCABULARY, 1)]
    data = bench.store("wrong validation", {"train": learnable(240, 4, VOCABULARY, 0), "validation": wrong}, labels=4)
    values = {"train__learning_rate": 3e-3, "train__num_train_epochs": 30, "train__patience": 2, "train__load_best_model_at_end": True}
    report = run(bench.context(data, "best", **values))
    *losses, kept = [entry["eval_loss"] for entry in report.details["log"] if "eval_loss" in entry]
    assert len(losses) == losses.index(min(losses)) + 1 + 2, "two evaluations in vain"
    assert kept == report.metrics["eval_loss"] == pytest.approx(min(losses), rel=1e-6)
    stopped, model = (next(check for check in report.checks if check.id == name) for name in ("stopped-early", "kept-model"))
    at = {line: 30 * (line + 1) for line in range(len(losses))}
    best, last = at[losses.index(min(losses))], at[len(losses) - 1]
    assert stopped.summary == f"stopped early at step {last} of 900: eval_loss had not improved since step {best}"
    assert model.summary == f"the model of step {best} was kept (eval_loss {min(losses):.4g}); the last step's was {losses[-1]:.4g}"
    assert "overfitting" not in {check.id for check in report.checks}
    shown = lede(to_json(report))
    assert f"Stopped early at step {last} of 900" in shown
    assert f"The model of step {best} was kept" in shown


def test_patience_that_cannot_end_the_run_is_said_before_its_first_step(bench: Bench) -> None:
    data = bench.store("short", {"train": learnable(30, 4, VOCABULARY, 0), "validation": learnable(9, 4, VOCABULARY, 1)}, labels=4)
    asked = bench.context(data, "short", **ONE_STEP, train__patience=1, train__eval_strategy="epoch")
    run(asked)
    assert "train.patience = 1 cannot end this run: it needs 2 evaluations before the last step, but there are 0" in asked.notes


def test_patience_without_the_best_model_says_that_the_last_one_is_kept_and_that_the_run_overfits(bench: Bench) -> None:
    wrong = [(ids, (label + 1) % 4) for ids, label in learnable(60, 4, VOCABULARY, 1)]
    data = bench.store("wrong again", {"train": learnable(240, 4, VOCABULARY, 0), "validation": wrong}, labels=4)
    report = run(bench.context(data, "patient", train__learning_rate=3e-3, train__num_train_epochs=30, train__patience=2))
    said = {check.id: check.summary for check in report.checks}
    assert said["kept-model"].startswith("the model of the last step was kept (eval_loss ")
    assert "--load-best-model-at-end" in said["kept-model"]
    assert "nothing-learned" not in said
    assert {"overfitting", "held-out"} & set(said)


def test_a_test_split_is_scored_once_by_the_model_that_is_saved(bench: Bench) -> None:
    splits = {
        name: learnable(rows, 4, VOCABULARY, seed) for seed, (name, rows) in enumerate({"train": 240, "validation": 60, "test": 50}.items())
    }
    both = bench.store("tested", splits, labels=4)
    values = {"train__learning_rate": 3e-3, "train__num_train_epochs": 2, "train__verify": False}
    report = run(bench.context(both, "tested run", **values))
    alone = bench.store("test alone", {"train": splits["train"], "test": splits["test"]}, labels=4)
    same = run(bench.context(alone, "alone run", **values))
    assert same.metrics["test_loss"] is None, "evaluated on it anyway"
    for name in ("loss", "accuracy", "macro_f1"):
        assert report.metrics[f"test_{name}"] == pytest.approx(same.metrics[f"eval_{name}"], rel=1e-4)
    assert report.metrics["eval_loss"] != report.metrics["test_loss"]
    lines = [json.loads(line) for line in (bench.folder / "tested run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "test_loss" in line] == [60]
    assert "test_accuracy" in (bench.folder / "tested run" / "README.md").read_text()
    assert any(card.note.startswith("test split") for card in headline(to_json(report)))


def test_a_test_split_is_left_out_by_choice_or_without_evaluations_and_asked_for_where_there_is_none(bench: Bench, classify: Path) -> None:
    splits = {name: learnable(24, 4, VOCABULARY, 0) for name in ("train", "validation", "test")}
    data = bench.store("untested", splits, labels=4)
    silent = run(bench.context(data, "untested run", **BRIEF))
    assert silent.metrics["test_loss"] is None
    assert any("the test split (24 rows) is not scored" in note and "--do-predict" in note for note in silent.notes)
    asked = run(bench.context(data, "untested run", **BRIEF, train__do_predict=True))
    assert asked.metrics["test_loss"] > 0
    left = run(bench.context(data, "untested run", **{**BRIEF, "train__eval_strategy": "epoch"}, train__do_predict=False))
    assert (left.metrics["test_loss"], left.metrics["eval_loss"] is None) == (None, False)
    with pytest.raises(SettingsError, match="has none"):
        run(bench.context(classify, "no test", train__do_predict=True))
    empty = bench.store("empty test", {**splits, "test": []}, labels=4)
    assert run(bench.context(empty, "untested run", **BRIEF)).metrics["test_loss"] is None
    with pytest.raises(SettingsError, match=r"scores the test split, and that of .* is empty") as caught:
        run(bench.context(empty, "unscored run", **BRIEF, train__do_predict=True))
    assert "--test-fraction" in caught.value.hint
    assert "leave --do-predict out" in caught.value.hint


def test_a_test_row_that_the_model_has_no_positions_for_leaves_the_split_unscored_and_the_run_done(bench: Bench) -> None:
    splits = {name: learnable(24, 4, VOCABULARY, 0) for name in ("train", "validation", "test")}
    splits["test"] = [*splits["test"], (list(range(5, 70)), 0)]
    data = bench.store("long test", splits, labels=4, max_length=128)
    values = {**BRIEF, "train__eval_strategy": "epoch", "model__config_overrides": "max_position_embeddings=64"}
    report = run(bench.context(data, "long test run", **values))
    assert (report.metrics["test_loss"], report.metrics["eval_loss"] is None) == (None, False)
    assert any("test split is not scored: rows of test have up to 65 tokens" in note for note in report.notes)
    with pytest.raises(ModelError) as refused:
        run(bench.context(data, "long test run", **values, train__do_predict=True))
    assert "--no-do-predict" in refused.value.hint


def test_data_prepared_for_another_task_are_said(bench: Bench, classify: Path) -> None:
    context = bench.context(classify, "other task", train__mode="pretrain")
    assert prepare(context).task.name == "pretrain"
    assert any("prepared for classify" in note for note in context.notes)


class Ending(Pretrain):
    name = "ending"


class Endings:
    @hookimpl
    def register_tasks(self, register: Any) -> None:
        register("ending", Ending)


def test_data_prepared_for_a_plugins_task_are_trained_on_as_it_and_refused_without_the_plugin(bench: Bench) -> None:
    rows = [(ids, None) for ids, _ in learnable(24, 4, VOCABULARY, 0)]
    data = bench.store("ending", {"train": rows}, task="ending")
    with pytest.raises(SettingsError, match="= 'ending': no plugin provides this task"):
        prepare(bench.context(data, "without the plugin"))
    context = bench.context(data, "with the plugin")
    context.plugins._add(Endings(), "endings", "test", "0")
    assert prepare(context).task.name == "ending"
    assert Probe(context).task_name == "ending"


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda *_: "much", "is str, not one number"),
        (lambda _, logits, *__: logits, "is a tensor of shape"),
        (lambda *_: len(0), "broke: TypeError"),
        (lambda *_: 1 / 0, "broke: ZeroDivisionError: division by zero (test_train.py, line"),
    ],
)
def test_what_the_loss_of_a_plugins_task_does_wrong_is_the_plugins_and_no_bug_of_ours(
    bench: Bench, loss: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"wrong {said[:12]}"
    data = bench.store(name, {"train": [(ids, None) for ids, _ in learnable(24, 4, VOCABULARY, 0)]}, task="ending")
    context = bench.context(data, f"{name} run", **ONE_STEP)
    context.plugins._add(Endings(), "endings", "test", "0")
    monkeypatch.setattr(Ending, "loss", loss)
    with pytest.raises(PluginError, match="loss of the task ending of plugin 'endings'") as refused:
        run(context)
    assert said in refused.value.message
    assert "a tensor of one number" in refused.value.hint


# -- plugins -----------------------------------------------------------------------------------------------------------


class Listener:
    def __init__(self) -> None:
        self.steps: list[Step] = []

    @hookimpl
    def on_step(self, step: Step) -> None:
        self.steps.append(step)
        if step.step > 100:
            raise ZeroDivisionError("mine")


def test_plugins_see_every_logged_step_and_their_failure_is_theirs(bench: Bench, classify: Path) -> None:
    context, listener = bench.context(classify, "hook", train__max_steps=12, train__logging_steps=5), Listener()
    context.plugins._add(listener, "listener", "test", "0")
    run(context)
    assert [step.step for step in listener.steps] == [1, 5, 10, 12]
    assert listener.steps[0].loss == pytest.approx(math.log(4), rel=0.2)
    assert listener.steps[-1].grad_norm
    context = bench.context(classify, "hook two", train__max_steps=110, train__per_device_train_batch_size=2)
    context.plugins._add(Listener(), "listener", "test", "0")
    with pytest.raises(PluginError, match="'listener' failed in on_step at step 110"):
        run(context)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"dataset__sources": ["/nowhere/a", "/nowhere/b"]}, DataError, "/nowhere/a: no such file or directory"),
        ({"dataset__sources": None}, UsageError, "one prepared directory, 0 are given"),
        ({"dataset__sources": ["/nowhere/at/all"]}, DataError, "/nowhere/at/all: no such file or directory"),
        ({"train__output_dir": None}, UsageError, "--output-dir is missing"),
        ({"train__mode": "clasify"}, SettingsError, "no plugin provides this task"),
        ({"loader__collator": "packt"}, SettingsError, "no plugin provides this collator"),
        ({"loader__collator": "packed", "train__lean_step": "off"}, SettingsError, "needs the lean step"),
        ({"train__max_tokens_per_batch": 9}, SettingsError, "does not hold row [0-9]+ of train, which takes 23 tokens"),
        (
            {"train__per_device_train_batch_size": 241, "train__dataloader_drop_last": True},
            SettingsError,
            "has 240 rows, but a batch .* 241",
        ),
        ({"train__metric_for_best_model": "f1"}, SettingsError, "metric_for_best_model = 'f1': the evaluations of this run"),
        ({"train__metric_for_best_model": "rmse"}, SettingsError, "metric_for_best_model = 'rmse'"),
        ({"train__max_tokens_per_batch": 99, "train__dataloader_drop_last": True}, SettingsError, "has no effect with"),
        (
            {"train__lr_scheduler_type": "warmup_stable_decay", "train__verify": False},
            SettingsError,
            "cannot be created.*num_decay_steps",
        ),
        (
            {"train__optim_args": "foo=1", "train__verify": False},
            SettingsError,
            "does not read foo of train.optim_args",
        ),
        ({"train__optim_args": "foo", "train__verify": False}, SettingsError, "cannot be created.*'foo' is not name=value"),
        ({"train__optim": "lomo", "train__verify": False}, MissingExtraError, "train.optim = lomo needs the package lomo_optim"),
        (
            {"train__gradient_checkpointing": True, "train__gradient_checkpointing_kwargs": {"reentrant": False}},
            SettingsError,
            "takes no option reentrant",
        ),
        ({"train__accelerator_config": {"nonsense": 1}}, SettingsError, "accelerator_config = {'nonsense': 1}: accelerate takes no option"),
        ({"train__resume_from_checkpoint": "/nowhere"}, TrainError, "does not exist"),
    ],
)
def test_a_run_that_cannot_work_is_refused(
    bench: Bench, classify: Path, values: dict[str, Any], error: type[FtcliError], message: str
) -> None:
    with pytest.raises(error, match=message) as refused:
        run(bench.context(classify, "refused", **values))
    assert refused.value.hint
    assert not (bench.folder / "refused").exists() or not list((bench.folder / "refused").glob("checkpoint-*"))


def test_a_run_of_no_step_is_failed_and_publishes_no_random_weights(bench: Bench, classify: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FtcliTrainer, "train", lambda *_, **__: None)
    with pytest.raises(TrainError, match="no step was taken"):
        run(bench.context(classify, "no step", train__verify=False))
    assert not (bench.folder / "no step" / "config.json").exists()
    assert json.loads((bench.folder / "no step" / "report.json").read_text())["status"] == "failed"


def test_packed_rows_are_refused_for_classes_and_with_a_cache(bench: Bench, pretrain: Path) -> None:
    with pytest.raises(SettingsError, match="needs one label per row"):
        run(bench.context(pretrain, "refused", train__mode="classify"))
    with pytest.raises(UsageError, match="use_cache"):
        run(bench.context(pretrain, "refused", train__use_cache=True))


def test_another_tokenizer_is_refused(bench: Bench, classify: Path, tmp_path: Path) -> None:
    other = Bench.make(tmp_path)
    (other.tokenizer / "tokenizer_config.json").write_text(
        (other.tokenizer / "tokenizer_config.json").read_text().replace('"pad_token": "<pad>"', '"pad_token": "<eos>"')
    )
    with pytest.raises(StoreError, match="is a different one"):
        run(bench.context(classify, "refused", tokenizer__path=str(other.tokenizer)))


def test_a_second_run_in_the_same_folder_needs_a_word(bench: Bench, classify: Path) -> None:
    values = {"train__num_train_epochs": 1}
    run(bench.context(classify, "twice", **values))
    with pytest.raises(TrainError, match="holds an earlier run"):
        run(bench.context(classify, "twice", **values))
    (bench.folder / "twice" / "checkpoint-999").mkdir()
    run(bench.context(classify, "twice", **values, runtime__overwrite=True))
    assert [path.name for path in (bench.folder / "twice").glob("checkpoint-*")] == ["checkpoint-30"]


def test_a_run_that_fails_leaves_no_model_of_the_run_that_it_replaces(
    bench: Bench, classify: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report of the new run stood beside the model and the card of the old one."""
    folder, base = bench.folder / "replaced", bench.folder / "base"
    run(bench.context(classify, "base", **BRIEF))
    run(bench.context(classify, "replaced", **BRIEF))
    weights = (folder / "model.safetensors").read_bytes()

    def failed(*_: Any, **__: Any) -> None:
        raise TrainError("far enough", "")

    monkeypatch.setattr(FtcliTrainer, "train", failed)
    for settings in ({"model__config": folder / "config.json"}, {"model__config": None, "model__name_or_path": str(folder)}):
        with pytest.raises(TrainError, match="far enough"):
            run(bench.context(classify, "replaced", **BRIEF, **settings))
        assert (folder / "model.safetensors").read_bytes() == weights, "it is what the run starts from"
    for settings in ({}, {"model__config": None, "model__name_or_path": str(base)}):
        with pytest.raises(TrainError, match="far enough"):
            run(bench.context(classify, "replaced", **BRIEF, **settings))
        left = {path.name for path in folder.iterdir()}
        assert not left & {"config.json", "adapter_config.json", "model.safetensors", "README.md"}
        assert {"report.json", "tokenizer.json"} <= left
    monkeypatch.undo()
    run(bench.context(classify, "replaced", **BRIEF))
    assert AutoModelForSequenceClassification.from_pretrained(folder).config.num_labels == 4


@pytest.mark.parametrize(
    ("place", "words"), [("a file", "File exists"), ("a file/below/it", "Not a directory"), ("x" * 300, "File name too long")]
)
def test_a_folder_that_cannot_be_made_is_named_before_the_model_is_loaded(
    bench: Bench, classify: Path, place: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.folder / "a file").touch()
    if "file" in place:
        monkeypatch.setattr("ftcli.core.training.run.build", None)
    with pytest.raises(PublishError, match=f"cannot write .*: {words}") as refused:
        run(bench.context(classify, place, **BRIEF))
    assert refused.value.hint


# -- MFU ---------------------------------------------------------------------------------------------------------------


def test_flops_of_a_token_follow_palm() -> None:
    model = tiny_model()  # hidden 32, 4 heads and 2 groups of 8, inner 64, 2 layers, 384 words, tied
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64
    lengths = np.array([10, 30])
    assert flops.flops_per_token(model, lengths) == pytest.approx(6 * (2 * layer + 32 * 384) + 12 * 2 * 32 * (100 + 900) / 40)
    model.config.num_experts = 8
    assert flops.flops_per_token(model, lengths) is None


def test_utilisation_is_unknown_where_the_peak_is() -> None:
    assert flops.peak_flops("NVIDIA H200") == 989e12
    assert flops.peak_flops("NVIDIA L40S") == 362e12
    assert flops.peak_flops("NVIDIA L4") == 121e12
    assert flops.peak_flops("some CPU") is None
    assert flops.utilisation(1e5, 2.788e9, "NVIDIA H200", 1) == pytest.approx(0.2819, abs=1e-3)
    assert flops.utilisation(1e5, 2.788e9, "NVIDIA H200", 2) == pytest.approx(0.141, abs=1e-3)
    assert flops.utilisation(1e5, 2.788e9, None, 1) is None
    assert flops.utilisation(None, 1.0, "NVIDIA H200", 1) is None


def test_torch_computes_with_the_users_threads_and_as_before_afterwards(
    bench: Bench, classify: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def prepared(*_: Any) -> None:
        seen.append(torch.get_num_threads())
        raise TrainError("far enough", "")

    monkeypatch.setattr("ftcli.commands.train.prepare", prepared)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for threads in (None, 2):
        with pytest.raises(TrainError, match="far enough"):
            run(bench.context(classify, "threads", runtime__threads=threads))
    assert seen == [3, 2]
    assert torch.get_num_threads() == 1
