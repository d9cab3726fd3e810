"""Runs with bad steps and too little memory: what goes on is the same training, what cannot go on says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from ftcli.commands.train import run
from ftcli.core.batches.tasks import Classify
from ftcli.core.training.guarding import be_seen
from ftcli.errors import SettingsError, TrainError
from ftcli.records import Check, Report
from ftcli.testing import tiny_model
from runs import VOCABULARY, Bench, StopAt, weights
from stores import learnable

STEPS = {
    "train__max_steps": 8,
    "train__per_device_train_batch_size": 4,
    "train__learning_rate": 3e-3,
    "train__logging_steps": 4,
    "train__save_strategy": "steps",
    "train__save_steps": 2,
    "train__verify": False,
}
NAN = float("nan")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("bench"))
    made.store("store", {"train": learnable(45, 3, VOCABULARY, 0)}, labels=3)
    return made


def _run(bench: Bench, output: str, **values: Any) -> Report:
    return run(bench.context(bench.folder / "store", output, **{**STEPS, **values}))


def _damaged(monkeypatch: pytest.MonkeyPatch, factor: float, *at: int) -> None:
    """Multiply the losses of these batches."""
    calls: list[int] = []
    plain = Classify.loss

    def loss(self: Classify, logits: torch.Tensor, labels: torch.Tensor, items: Any) -> torch.Tensor:
        found = plain(self, logits, labels, items)
        if items is None:  # no step: the lean one is proved first
            return found
        calls.append(1)
        return found * factor if len(calls) in at else found

    monkeypatch.setattr(Classify, "loss", loss)


def _bad(report: Report) -> Check:
    (check,) = [check for check in report.checks if check.id == "bad-step"]
    return check


@pytest.mark.fault
@pytest.mark.reliability(19, "NaN at step 6: skip and rollback")
def test_a_step_that_was_left_out_is_the_same_training_as_one_gone_back_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    _damaged(monkeypatch, NAN, 6)
    skipped = _run(bench, "skip", train__on_nonfinite="skip")
    assert (skipped.status, skipped.metrics["steps"]) == ("ok", 8)
    evidence = _bad(skipped).evidence
    assert (evidence["step"], evidence["loss"], len(evidence["rows"])) == (6, "nan", 4)
    assert any(f"rows {', '.join(map(str, evidence['rows']))}" in note for note in skipped.notes)
    logged = [json.loads(line) for line in (bench.folder / "skip" / "metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in logged if entry.get("loss") is not None] == [1, 4, 8]
    assert all(entry["loss"] < 2 for entry in logged if "loss" in entry)
    (ended,) = [entry["train_loss"] for entry in logged if "train_loss" in entry]  # the mean of 4, and of the 3 of 4 that were trained on
    first, then = (entry["loss"] for entry in logged if "loss" in entry and entry["step"] > 1)
    assert ended == pytest.approx((4 * first + 3 * then) / 7, rel=1e-3)

    monkeypatch.undo()
    _damaged(monkeypatch, NAN, 6)
    back = _run(bench, "rollback", train__on_nonfinite="rollback")
    assert any("gone back to" in note and "checkpoint-4" in note and "step 6 is left out" in note for note in back.notes)
    assert _bad(back).evidence["rows"] == evidence["rows"]
    assert torch.equal(weights(bench.folder / "skip"), weights(bench.folder / "rollback"))
    assert torch.isfinite(weights(bench.folder / "skip")).all()
    kept = json.loads((bench.folder / "rollback" / "checkpoint-8" / "ftcli-checkpoint.json").read_text())["kept"]
    assert kept["left_out"] == [6]
    tally(steps=2)


def test_a_run_of_nothing_but_skipped_steps_has_no_mean_loss(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was logged as 0, the best there is."""
    _damaged(monkeypatch, NAN, 1, 2)
    _run(bench, "nothing", train__on_nonfinite="skip", train__max_steps=2, train__save_strategy="no")
    logged = [json.loads(line) for line in (bench.folder / "nothing" / "metrics.jsonl").read_text().splitlines()]
    assert any("train_runtime" in entry for entry in logged)
    assert not any("loss" in entry or "train_loss" in entry for entry in logged)


@pytest.mark.fault
@pytest.mark.reliability(19, "no checkpoint to go back to, bad steps without end, a jump of the loss")
def test_what_cannot_go_on_stops_with_the_step(bench: Bench, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]) -> None:
    with monkeypatch.context() as patch:
        _damaged(patch, NAN, 2)
        with pytest.raises(TrainError, match=r"step 2: .* rows .* there is no checkpoint to go back to") as stopped:
            _run(bench, "nowhere", train__on_nonfinite="rollback", train__save_strategy="no")
        assert "--save-steps 1)" in stopped.value.hint
    with monkeypatch.context() as patch:
        _damaged(patch, NAN, 1)
        with pytest.raises(TrainError, match=r"step 1: .* there is no checkpoint to go back to") as stopped:
            _run(bench, "at_once", train__on_nonfinite="rollback", train__save_steps=1)
        assert "--on-nonfinite skip" in stopped.value.hint
        assert "the learning rate is not the cause" in stopped.value.hint
        assert "save" not in stopped.value.hint.lower()  # nothing can be saved before the first step
    with monkeypatch.context() as patch:
        _damaged(patch, NAN, *range(3, 99))
        with pytest.raises(TrainError, match=r"step 8: .*, as in the 5 steps before"):
            _run(bench, "always", train__on_nonfinite="skip")
        newest = json.loads((bench.folder / "always" / "ftcli-run.json").read_text())
        assert newest["status"] == "failed"
        assert torch.isfinite(weights(bench.folder / "always" / "checkpoint-6")).all()
    with monkeypatch.context() as patch:
        _damaged(patch, NAN, *range(1, 99))
        with pytest.raises(TrainError, match=r"step 6: .*, as in the 5 steps before") as stopped:
            _run(bench, "never", train__on_nonfinite="skip")
        assert "the learning rate is not the cause" in stopped.value.hint
    with monkeypatch.context() as patch:
        _damaged(patch, 100.0, 12)
        with pytest.raises(TrainError, match=r"step 12: the loss is .* times its usual value"):
            _run(bench, "jump", train__max_steps=14)
        assert sorted(path.name for path in (bench.folder / "jump").glob("checkpoint-*")) == ["checkpoint-10", "checkpoint-8"]
    tally(steps=4)


@pytest.mark.fault
@pytest.mark.reliability(19, "plain Trainer", control=True)
def test_plain_trainer_trains_on_with_weights_that_are_no_numbers(tmp_path: Path, tally: Callable[..., None]) -> None:
    class Damaged(Trainer):  # type: ignore[misc]
        def compute_loss(self, *arguments: Any, **named: Any) -> Any:
            loss = super().compute_loss(*arguments, **{**named, "return_outputs": False})
            return loss * (NAN if self.state.global_step == 1 else 1)

    arguments = TrainingArguments(
        str(tmp_path), max_steps=4, save_steps=4, per_device_train_batch_size=2, use_cpu=True, report_to=[], disable_tqdm=True
    )
    Damaged(tiny_model(), arguments, train_dataset=[{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 8).train()
    assert not torch.isfinite(weights(tmp_path / "checkpoint-4")).all()
    tally("plain Trainer ends without an error and saves NaN")


def _small_memory(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    plain = Classify.loss

    def loss(self: Classify, logits: torch.Tensor, labels: torch.Tensor, items: Any) -> torch.Tensor:
        if len(labels) > rows:
            raise RuntimeError(f"DefaultCPUAllocator: not enough memory: you tried to allocate {len(labels)} GB.")
        return plain(self, logits, labels, items)

    monkeypatch.setattr(Classify, "loss", loss)


@pytest.mark.fault
@pytest.mark.reliability(20, "memory for two rows of four, --auto-batch; interrupted and gone on")
def test_a_batch_that_does_not_fit_is_computed_in_pieces_and_is_the_same_training(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    values = {"train__gradient_accumulation_steps": 2, "train__max_steps": 4}
    _run(bench, "roomy", **values)
    _small_memory(monkeypatch, 2)
    report = _run(bench, "pieces", **values, train__auto_batch=True)
    assert torch.allclose(weights(bench.folder / "pieces"), weights(bench.folder / "roomy"), atol=1e-5)
    (check,) = [check for check in report.checks if check.id == "auto-batch"]
    assert check.evidence["rows_at_a_time"] == 2
    assert "the batch of a step stayed 8" in check.summary
    assert any("step 1: memory does not hold 4 rows" in note for note in report.notes)
    stopped = bench.context(bench.folder / "store", "stopped", **{**STEPS, **values}, train__auto_batch=True)
    stopped.progress = StopAt(3)
    assert run(stopped).status == "interrupted"
    resumed = _run(bench, "stopped", **values, train__resume_from_checkpoint="auto")
    assert not any("memory does not hold" in note for note in resumed.notes)  # it knows from the checkpoint
    assert torch.equal(weights(bench.folder / "stopped"), weights(bench.folder / "pieces"))
    tally(steps=4)


def test_pieces_of_batches_by_tokens_are_as_wide_as_fits_and_the_same_training(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"train__max_tokens_per_batch": 96, "train__max_steps": 4}
    _run(bench, "roomy tokens", **values)
    _small_memory(monkeypatch, 3)
    report = _run(bench, "pieces of tokens", **values, train__auto_batch=True)
    assert torch.allclose(weights(bench.folder / "pieces of tokens"), weights(bench.folder / "roomy tokens"), atol=1e-5)
    (check,) = [check for check in report.checks if check.id == "auto-batch"]
    assert f"at most {check.evidence['tokens_at_a_time']} tokens;" in check.summary
    stopped = bench.context(bench.folder / "store", "stopped tokens", **{**STEPS, **values}, train__auto_batch=True)
    stopped.progress = StopAt(3)
    assert run(stopped).status == "interrupted"
    resumed = _run(bench, "stopped tokens", **values, train__resume_from_checkpoint="auto")
    assert not any("memory does not hold" in note for note in resumed.notes)
    assert torch.equal(weights(bench.folder / "stopped tokens"), weights(bench.folder / "pieces of tokens"))


@pytest.mark.fault
@pytest.mark.reliability(20, "without --auto-batch: advice with numbers")
def test_too_little_memory_is_answered_with_options_of_the_same_training(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    _small_memory(monkeypatch, 2)
    with pytest.raises(
        TrainError, match=r"a batch of 4 rows \(4 × .* slots\) does not fit into the device's memory: .*not enough memory"
    ) as refused:
        _run(bench, "advice")
    assert "--per-device-train-batch-size 2 --gradient-accumulation-steps 2 is equivalent" in refused.value.hint
    with pytest.raises(TrainError, match=r"a batch of at most 96 tokens \(.* slots\) does not fit into the device's memory: ") as refused:
        _run(bench, "advice on tokens", train__max_tokens_per_batch=96)
    assert "--max-tokens-per-batch 48 --gradient-accumulation-steps 2 trains on about as many tokens per step" in refused.value.hint
    assert "--auto-batch on exactly the same rows" in refused.value.hint
    _small_memory(monkeypatch, 0)
    with pytest.raises(TrainError, match=r"a batch of 4 rows .*does not fit into the device's memory"):
        _run(bench, "none at all", train__auto_batch=True)
    tally(steps=2)


@pytest.mark.fault
@pytest.mark.reliability(20, "auto_find_batch_size of transformers", control=True)
def test_trainers_own_way_changes_the_batch_of_a_step(tmp_path: Path, tally: Callable[..., None]) -> None:
    seen: list[int] = []

    class Small(Trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            if len(inputs["input_ids"]) > 4:
                raise RuntimeError("CUDA out of memory.")
            seen.append(len(inputs["input_ids"]))
            return super().training_step(model, inputs, *rest)

    arguments = TrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=8, auto_find_batch_size=True, use_cpu=True, report_to=[], disable_tqdm=True
    )
    rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 32
    Small(tiny_model(), arguments, train_dataset=rows).train()
    assert seen == [4, 4]
    tally("auto_find_batch_size: a step has 4 rows instead of 8")


@pytest.mark.parametrize("name", ["ignore_data_skip", "auto_find_batch_size", "enable_jit_checkpoint"])
def test_what_would_break_a_promise_is_refused_at_the_start(bench: Bench, name: str) -> None:
    with pytest.raises(SettingsError, match=f"train.{name} is not supported: "):
        _run(bench, "refused", **{f"train__{name}": True})


def test_batches_out_of_order_and_pieces_on_several_processes_are_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="makes the order of batches random"):
        _run(bench, "refused", train__dataloader_in_order=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SettingsError, match="block the others"):
        _run(bench, "refused", train__auto_batch=True)


@pytest.mark.parametrize("every", [4, 6])
def test_a_replay_whose_logged_step_is_left_out_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """The line of a step without a gradient holds the loss of those before it: "the gradient is zero and the loss 1.1" stopped it, at every resume."""
    _damaged(monkeypatch, NAN, 12 if every == 6 else 4)
    values = {"train__max_steps": 14, "train__logging_steps": every, "train__on_nonfinite": "rollback"}
    back = _run(bench, f"logged {every}", **values)
    assert (back.status, back.metrics["steps"]) == ("ok", 14)
    logged = [json.loads(line) for line in (bench.folder / f"logged {every}" / "metrics.jsonl").read_text().splitlines()]
    left_out = _bad(back).evidence["step"]
    assert [entry.get("grad_norm") for entry in logged if entry["step"] == left_out and entry.get("loss") is not None][-1:] == [None]


def test_the_rarest_class_by_weight_is_no_jump_of_the_loss(bench: Bench) -> None:
    rows = [row for row in learnable(400, 4, VOCABULARY, 1) if row[1] != 3]
    rare = [row for row in learnable(40, 4, VOCABULARY, 2) if row[1] == 3][:2]
    bench.store("rare", {"train": [*rows[:200], rare[0], *rows[200:], rare[1]]}, labels=4)
    values = {**STEPS, "train__max_steps": 70, "train__save_strategy": "no", "train__class_weights": "balanced"}
    assert run(bench.context(bench.folder / "rare", "weighed", **values)).status == "ok"


def _step_of_a_scaler(model: torch.nn.Module) -> None:
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.AdamW(model.parameters())
    scaler.scale(torch.zeros((), requires_grad=True))
    scaler.unscale_(optimizer)
    model.zero_grad(set_to_none=True)
    scaler.step(optimizer)


def test_a_scaler_of_float16_sees_a_step_that_is_left_out() -> None:
    model = torch.nn.Linear(2, 2)
    before = [weight.detach().clone() for weight in model.parameters()]
    with pytest.raises(AssertionError, match="No inf checks"):
        _step_of_a_scaler(model)
    be_seen(model)
    _step_of_a_scaler(model)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
