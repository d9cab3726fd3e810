"""Training that is interrupted, damaged or impossible: it goes on exactly, or stops with the reason."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.utils import logging as transformers_logging

import short_lean
from ftcli.cli.signals import termination_interrupts
from ftcli.commands.train import run
from ftcli.context import Context
from ftcli.core.batches.tasks import Classify
from ftcli.core.distributed.signals import WATCHED, Signals
from ftcli.core.models.held_out import HeldOut
from ftcli.core.publishing import staging
from ftcli.core.training import checkpoints
from ftcli.core.training import run as running
from ftcli.core.training import train as training
from ftcli.core.training.trainer import FtcliTrainer
from ftcli.errors import TrainError
from ftcli.records import Report
from ftcli.testing import run as command_line
from ftcli.testing import tiny_model, write_config
from reliability import FULL
from runs import VOCABULARY, Bench, StopAt, weights
from stores import learnable, packed

WHOLE = pytest.mark.skipif(not FULL, reason="FTCLI_FAULTS=full: the two other cells have its data and its accumulation")
STEPS = {"train__num_train_epochs": 2, "train__per_device_train_batch_size": 4, "train__learning_rate": 3e-3, "train__logging_steps": 4}


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    handlers = [signal.getsignal(number) for number in WATCHED]
    yield
    assert [signal.getsignal(number) for number in WATCHED] == handlers
    assert torch.get_num_threads() == threads
    assert transformers_logging.is_progress_bar_enabled()
    torch.set_rng_state(state)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench.make(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def stores(bench: Bench) -> dict[str, Path]:
    return {
        "grouped": bench.store("grouped", {"train": learnable(45, 3, VOCABULARY, 0), "test": learnable(12, 3, VOCABULARY, 1)}, labels=3),
        "packed": bench.store("packed", {"train": packed(45, 24, VOCABULARY, 0)}, max_length=24),
    }


def _stopped(context: Context, step: int) -> Report:
    context.progress = StopAt(step)
    return run(context)


@pytest.mark.reliability(14, "grouped and packed, accumulation, dropout; two interruptions each")
@pytest.mark.parametrize(
    ("data", "accumulation"),
    [("grouped", 1), ("packed", 3), *(pytest.param(*each, marks=WHOLE) for each in (("grouped", 3), ("packed", 1)))],
)
@pytest.mark.parametrize(
    "dropout",
    [
        pytest.param(
            0.0, marks=pytest.mark.skipif(not FULL, reason="FTCLI_FAULTS=full: what dropout draws is one more thing to go on with")
        ),
        0.1,
    ],
)
def test_a_resumed_run_ends_with_the_weights_of_one_that_was_never_stopped(
    bench: Bench, stores: dict[str, Path], accumulation: int, data: str, dropout: float
) -> None:
    name = f"{data} {accumulation} {dropout}"
    values = {**STEPS, "train__gradient_accumulation_steps": accumulation, "model__config_overrides": f"attention_dropout={dropout}"}
    whole = run(bench.context(stores[data], f"whole {name}", **values))
    middle = whole.metrics["steps"] // 2 + 1  # in the second epoch
    for stop in (2, middle):
        output = f"stopped {stop} {name}"
        report = _stopped(bench.context(stores[data], output, **values), stop)
        assert (report.status, report.metrics["steps"]) == ("interrupted", stop)
        assert report.error is not None
        assert report.error["code"] == "interrupted"
        assert Path(report.paths["checkpoint"]).name == f"checkpoint-{stop}"
        resumed = run(bench.context(stores[data], output, **values, train__resume_from_checkpoint="auto"))
        assert resumed.metrics["resumed_from"].endswith(f"checkpoint-{stop}")
        assert torch.equal(weights(bench.folder / output), weights(bench.folder / f"whole {name}"))
        for key in ("steps", "eval_loss", "first_loss", "first_grad_norm"):
            assert resumed.metrics[key] == whole.metrics[key]
        logged = [json.loads(line).get("step") for line in (bench.folder / output / "metrics.jsonl").read_text().splitlines()]
        assert logged == sorted(logged)


def test_a_checkpoint_between_two_lines_of_the_log_keeps_the_steps_that_neither_has_told(bench: Bench, stores: dict[str, Path]) -> None:
    """The next line was the mean since the checkpoint, and the share of clipped steps counted from there."""
    values = {**STEPS, "train__save_strategy": "steps", "train__save_steps": 18, "train__max_grad_norm": 2.5, "train__verify": False}
    whole = run(bench.context(stores["grouped"], "whole lines", **values))
    shutil.copytree(bench.folder / "whole lines", bench.folder / "lines")
    again = bench.context(stores["grouped"], "lines", **values, train__resume_from_checkpoint=str(bench.folder / "lines" / "checkpoint-18"))
    resumed = run(again)
    assert [entry["step"] for entry in resumed.details["log"] if "loss" in entry][-2:] == [20, 24]
    assert resumed.details["log"] == whole.details["log"]
    assert 0 < whole.metrics["clipped_share"] == resumed.metrics["clipped_share"] < 1


@pytest.mark.fault
@pytest.mark.reliability(17, "SIGINT in an evaluation")
def test_an_interrupt_in_an_evaluation_does_not_wait_for_its_end(
    bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(bench.context(stores["grouped"], "whole evaluation", **STEPS))
    batches = []
    original = Trainer._prepare_inputs

    def prepared(self: Trainer, inputs: Any) -> Any:
        if not torch.is_grad_enabled() or not self.model.training:
            batches.append(1)
            if len(batches) == 1:
                os.kill(os.getpid(), signal.SIGINT)
        return original(self, inputs)

    values = {**STEPS, "train__per_device_eval_batch_size": 1}
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_prepare_inputs", prepared)
        report = run(bench.context(stores["grouped"], "evaluation", **values))
    assert report.status == "interrupted"
    assert len(batches) < 3
    assert "SIGINT" in report.error["message"]  # type: ignore[index]
    run(bench.context(stores["grouped"], "evaluation", **values, train__resume_from_checkpoint="auto"))
    assert torch.equal(weights(bench.folder / "evaluation"), weights(bench.folder / "whole evaluation"))
    assert whole.metrics["eval_loss"]


@pytest.mark.fault
@pytest.mark.reliability(17, "a signal in a save")
@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_in_a_save_ends_the_run_with_that_checkpoint(
    bench: Bench, stores: dict[str, Path], number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    appear = staging.appear

    def struck(staged: Path, final: Path) -> None:
        os.kill(os.getpid(), number)
        appear(staged, final)

    monkeypatch.setattr(staging, "appear", struck)
    values = {**STEPS, "train__save_strategy": "steps", "train__save_steps": 2, "train__verify": False}
    output = f"in save {number.name}"
    report = run(bench.context(stores["packed"], output, **values))
    assert (report.status, report.metrics["steps"]) == ("interrupted", 2)
    assert number.name in report.error["message"]  # type: ignore[index]
    assert "--resume-from-checkpoint" in report.error["hint"]  # type: ignore[index]
    saved = list((bench.folder / output).glob("checkpoint-*"))
    assert [path.name for path in saved] == ["checkpoint-2"]
    assert checkpoints.damage(saved[0], full=True) == ""
    assert not list((bench.folder / output).glob(".saving*"))
    tally(signals=1)


PLUGIN = """
import os, signal
from ftcli import hookimpl

@hookimpl
def on_step(step):
    if step.step == 2:
        os.kill(os.getpid(), signal.{name})
"""


@pytest.mark.fault
@pytest.mark.reliability(17, "exit code of the command line")
def test_the_command_line_ends_with_code_3_and_says_how_to_go_on(
    bench: Bench, stores: dict[str, Path], tmp_path: Path, tally: Callable[..., None]
) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "struck.py").write_text(PLUGIN.format(name="SIGUSR1"))
    config = write_config(tmp_path / "qwen3.json", "qwen3")
    names = ("--dataset", stores["packed"], "--tokenizer-path", bench.tokenizer, "--model-config", config)
    words = ("--output-dir", tmp_path / "run", "--max-steps", "5", "--logging-steps", "1", "--no-verify", "--no-bf16", "--threads", "1")
    ended = command_line("train", *names, *words, "--plugins-dir", tmp_path / "plugins", "--json")
    assert ended.exit_code == 3, ended.stderr
    assert ended.report["status"] == "interrupted"
    assert "SIGUSR1 after step 3" in ended.report["error"]["message"]
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-3"]
    tally(signals=1)


@pytest.mark.fault
@pytest.mark.reliability(17, "plain Trainer", control=True)
def test_plain_trainer_loses_its_steps_to_a_signal(tmp_path: Path, tally: Callable[..., None]) -> None:
    class Struck(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.global_step == 2:
                os.kill(os.getpid(), signal.SIGINT)

    model = tiny_model()
    arguments = TrainingArguments(str(tmp_path), max_steps=4, per_device_train_batch_size=2, use_cpu=True, report_to=[], disable_tqdm=True)
    rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}] * 8
    with pytest.raises(KeyboardInterrupt):
        Trainer(model, arguments, train_dataset=rows, callbacks=[Struck()]).train()
    assert not list(tmp_path.glob("checkpoint-*"))
    tally("plain Trainer dies of it at step 2, without a checkpoint")


def _holding(folder: Path, secret: str) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_no_secret_is_in_a_checkpoint_or_beside_it(
    bench: Bench, stores: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"HF_TOKEN": "hf_canary0token", "WANDB_API_KEY": "wandb0canary0key", "MLFLOW_TRACKING_PASSWORD": "mlflow0canary0"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    values = {**STEPS, "train__max_steps": 2, "train__eval_strategy": "no", "train__verify": False}
    run(bench.context(stores["packed"], "secrets", **values, model__config_overrides="attention_dropout=0.0"))
    assert (bench.folder / "secrets" / "checkpoint-2" / "training_args.bin").exists()
    for value in secrets.values():
        assert _holding(bench.folder / "secrets", value) == []
    arguments = TrainingArguments(str(tmp_path), hub_token=secrets["HF_TOKEN"], report_to=[], use_cpu=True)
    Trainer(tiny_model(), arguments).save_model(str(tmp_path))
    assert _holding(tmp_path, secrets["HF_TOKEN"]) == ["training_args.bin"]  # so the look finds one where there is one


def test_early_stopping_counts_on_after_an_interruption(bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    worse = iter(range(1, 100))
    metrics = HeldOut.metrics
    monkeypatch.setattr(HeldOut, "metrics", lambda self, total: {**metrics(self, total), "loss": float(next(worse))})
    values = {**STEPS, "train__patience": 3, "train__eval_strategy": "steps", "train__eval_steps": 2, "train__verify": False}
    values |= {"train__save_strategy": "no"}
    _stopped(bench.context(stores["grouped"], "patience", **values), 5)
    report = run(bench.context(stores["grouped"], "patience", **values, train__resume_from_checkpoint="auto"))
    assert report.metrics["steps"] == 8  # the first evaluation was the best one, and three came after it


def test_an_interrupted_run_without_checkpoints_saves_one(bench: Bench, stores: dict[str, Path]) -> None:
    values = {**STEPS, "train__save_strategy": "no"}
    assert _stopped(bench.context(stores["packed"], "no saves", **values), 3).status == "interrupted"
    last = run(bench.context(stores["packed"], "no saves", **values, train__resume_from_checkpoint="auto"))
    assert (last.status, last.metrics["steps"]) == ("ok", 24)
    assert [path.name for path in (bench.folder / "no saves").glob("checkpoint-*")] == ["checkpoint-3"]


def test_a_run_that_had_ended_is_finished_without_another_step(bench: Bench, stores: dict[str, Path]) -> None:
    whole = run(bench.context(stores["grouped"], "ended", **STEPS))
    saved = weights(bench.folder / "ended")
    (bench.folder / "ended" / "model.safetensors").unlink()
    again = run(bench.context(stores["grouped"], "ended", **STEPS, train__resume_from_checkpoint="auto"))
    assert again.metrics["steps"] == whole.metrics["steps"] == 24
    assert again.metrics["eval_loss"] == whole.metrics["eval_loss"]
    assert torch.equal(weights(bench.folder / "ended"), saved)


def _losses(monkeypatch: pytest.MonkeyPatch, *losses: float) -> None:
    """Those of the evaluations to come, the last one for good."""
    given, metrics = iter(losses), HeldOut.metrics
    monkeypatch.setattr(HeldOut, "metrics", lambda self, total: {**metrics(self, total), "loss": next(given, losses[-1])})


def test_a_run_that_had_ended_with_its_best_model_ends_with_it_again(
    bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model was replaced by the last one silently, by whatever repeats the same command: a job that is requeued."""
    values = {**STEPS, "train__max_steps": 12, "train__save_steps": 4, "train__eval_strategy": "steps", "train__eval_steps": 4}
    values |= {"train__save_strategy": "steps", "train__load_best_model_at_end": True, "train__verify": False}
    _losses(monkeypatch, 3, 1, 2, 1)
    run(bench.context(stores["grouped"], "best", **values))
    best, logged = weights(bench.folder / "best"), (bench.folder / "best" / "metrics.jsonl").read_text()
    assert torch.equal(best, weights(bench.folder / "best" / "checkpoint-8"))
    assert not torch.equal(best, weights(bench.folder / "best" / "checkpoint-12"))
    for name, steps, words in (
        ("best", 12, "nothing left to train: step 12 of 12; the model is that of the best checkpoint"),
        ("moved", 8, "checkpoint-12 is at step 12, but 8 are asked for; steps are never undone"),
    ):
        (bench.folder / "best").rename(bench.folder / name)
        again = run(bench.context(stores["grouped"], name, **{**values, "train__max_steps": steps}, train__resume_from_checkpoint="auto"))
        assert torch.equal(weights(bench.folder / name), best)
        assert (again.metrics["steps"], again.metrics["eval_loss"]) == (12, 1)
        assert (bench.folder / name / "metrics.jsonl").read_text() == logged
        assert any(words in note for note in again.notes)
        assert not any("learning rate follows" in note for note in again.notes)


def test_a_run_that_patience_ended_is_finished_without_another_step(
    bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**STEPS, "train__patience": 1, "train__eval_strategy": "steps", "train__eval_steps": 2, "train__verify": False}
    values |= {"train__save_strategy": "steps", "train__save_steps": 2}
    _losses(monkeypatch, 1, 2)
    assert run(bench.context(stores["grouped"], "impatient", **values)).metrics["steps"] == 4
    again = run(bench.context(stores["grouped"], "impatient", **values, train__resume_from_checkpoint="auto"))
    assert again.metrics["steps"] == 4
    assert any("nothing left to train: step 4 of 24, where --patience ended the run" in note for note in again.notes)
    longer = run(bench.context(stores["grouped"], "impatient", **{**values, "train__patience": 3}, train__resume_from_checkpoint="auto"))
    assert longer.metrics["steps"] == 8


@pytest.mark.reliability(21, "changed settings, versions and threads, by a run")
def test_what_would_not_go_on_exactly_is_refused(bench: Bench, stores: dict[str, Path]) -> None:
    _stopped(bench.context(stores["grouped"], "changed", **STEPS), 2)
    for changed in ({"train__learning_rate": 1e-3}, {"train__per_device_train_batch_size": 5}, {"loader__collator": "dynamic"}):
        for verify, words in ((True, "FT091: .*cannot be resumed with|belongs to another run"), (False, "belongs to another run")):
            values = {**STEPS, **changed, "train__resume_from_checkpoint": "auto", "train__verify": verify}
            with pytest.raises(TrainError, match=words) as refused:
                run(bench.context(stores["grouped"], "changed", **values))
            assert "--no-verify" not in refused.value.hint, "it would be refused all the same"
    folder = bench.folder / "changed" / "checkpoint-2"
    kept = checkpoints.read(folder)["identity"]
    checkpoints.seal(folder, {**kept, "versions.torch": "0.4", "threads": 64})
    longer = bench.context(stores["grouped"], "changed", **{**STEPS, "train__num_train_epochs": 3}, train__resume_from_checkpoint="auto")
    assert run(longer).metrics["steps"] == 36
    assert any("follows the new length" in note for note in longer.notes)
    for words in ("versions.torch was 0.4 in checkpoint-2 and is", "the number of threads was 64 in checkpoint-2 and is 1 now"):
        assert any(words in note and "last bits" in note for note in longer.notes)


def test_a_damaged_newest_checkpoint_is_passed_over(bench: Bench, stores: dict[str, Path]) -> None:
    values = {**STEPS, "train__save_strategy": "steps", "train__save_steps": 4}
    whole = run(bench.context(stores["packed"], "undamaged", **values))
    _stopped(bench.context(stores["packed"], "damaged", **values), 9)
    state = bench.folder / "damaged" / "checkpoint-9" / "optimizer.pt"
    state.write_bytes(state.read_bytes()[:-100])
    context = bench.context(stores["packed"], "damaged", **values, train__resume_from_checkpoint="auto")
    assert run(context).metrics["resumed_from"].endswith("checkpoint-8")
    assert any("optimizer.pt has" in note for note in context.notes)
    assert torch.equal(weights(bench.folder / "damaged"), weights(bench.folder / "undamaged"))
    assert whole.status == "ok"


# -- numbers that are none ---------------------------------------------------------------------------------------------


def _broken(monkeypatch: pytest.MonkeyPatch, damage: Callable[[torch.Tensor], torch.Tensor], at: int) -> None:
    """Damage the loss of the `at`-th batch."""
    calls: list[int] = []
    plain = Classify.loss

    def loss(self: Classify, logits: torch.Tensor, labels: torch.Tensor, items: Any) -> torch.Tensor:
        found = plain(self, logits, labels, items)
        if items is None:  # no step: the lean one is proved first
            return found
        calls.append(1)
        return damage(found) if len(calls) == at else found

    monkeypatch.setattr(Classify, "loss", loss)


@pytest.mark.reliability(19, "NaN stops the run at its step")
def test_nan_stops_the_run_at_its_step_and_is_never_saved(bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _broken(monkeypatch, lambda loss: loss * float("nan"), at=6)
    values = {**STEPS, "train__save_strategy": "steps", "train__save_steps": 2, "train__eval_strategy": "no"}
    with pytest.raises(TrainError, match="step 6: the loss is nan"):
        run(bench.context(stores["grouped"], "nan", **values))
    output = bench.folder / "nan"
    assert sorted(path.name for path in output.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    assert not (output / "model.safetensors").exists()
    written = json.loads((output / "ftcli-run.json").read_text())
    assert written["status"] == "failed"
    assert "step 6" in written["error"]["message"]
    assert written["metrics"]["steps"] == 5


def test_a_run_that_may_go_on_with_nan_still_saves_no_broken_weights(
    bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _broken(monkeypatch, lambda loss: loss * float("nan"), at=6)
    values = {**STEPS, "train__on_unhealthy": "warn", "train__save_strategy": "no", "train__eval_strategy": "no"}
    context = bench.context(stores["grouped"], "nan warn", **values)
    with pytest.raises(TrainError, match="the weights contain NaN or infinity"):
        run(context)
    assert any("step 6" in note for note in context.notes)
    assert not (bench.folder / "nan warn" / "model.safetensors").exists()


def test_an_inflated_first_loss_stops_the_run_at_once(bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _broken(monkeypatch, lambda loss: loss * 12, at=1)
    with pytest.raises(TrainError, match=r"12.* times uniform guessing") as refused:
        run(bench.context(stores["grouped"], "inflated", **STEPS))
    assert "--on-unhealthy warn" in refused.value.hint
    written = json.loads((bench.folder / "inflated" / "ftcli-run.json").read_text())
    assert {check["id"]: check["status"] for check in written["checks"]}["first-loss"] == "fail"
    assert written["metrics"]["steps"] == 1


def test_an_inflated_first_loss_is_only_said_where_that_is_wanted(
    bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _broken(monkeypatch, lambda loss: loss * 12, at=1)
    report = run(bench.context(stores["grouped"], "inflated too", **STEPS, train__max_steps=2, train__on_unhealthy="warn"))
    found = next(check for check in report.checks if check.id == "first-loss")
    assert found.status == "fail"
    assert found.summary in " ".join(report.notes)


def test_a_long_warm_up_is_said(bench: Bench, stores: dict[str, Path]) -> None:
    report = run(bench.context(stores["grouped"], "warm", **STEPS, train__warmup_steps=700, train__verify=False))
    assert any("never reaches its peak" in note for note in report.notes)
    assert report.checks[0].id == "warm-up"


# -- machines ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_last_good_checkpoint(bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    values = {**STEPS, "train__save_strategy": "steps", "train__save_steps": 2}
    original = Trainer._save_optimizer_and_scheduler

    def full(self: Trainer, folder: str) -> None:
        if folder.endswith("checkpoint-4"):
            raise OSError(28, "No space left on device")
        original(self, folder)

    monkeypatch.setattr(Trainer, "_save_optimizer_and_scheduler", full)
    with pytest.raises(TrainError, match="No space left on device") as refused:
        run(bench.context(stores["grouped"], "full", **values))
    assert "auto" in refused.value.hint
    assert [path.name for path in (bench.folder / "full").glob("checkpoint-*")] == ["checkpoint-2"]
    monkeypatch.setattr(Trainer, "_save_optimizer_and_scheduler", original)
    assert run(bench.context(stores["grouped"], "full", **values, train__resume_from_checkpoint="auto")).status == "ok"


def test_a_model_that_cannot_be_written_is_an_error(bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Trainer, folder: str, **_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Trainer, "save_model", full)
    with pytest.raises(TrainError, match=r"the model in .*unwritten cannot be written: .*No space left.*bytes are free there") as refused:
        run(bench.context(stores["grouped"], "unwritten", **STEPS, train__max_steps=1, train__save_strategy="no"))
    assert refused.value.hint == "Free space there; then --resume-from-checkpoint auto starts anew: there is no checkpoint yet."


def test_too_little_memory_is_answered_with_numbers(bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory: tried to allocate 9 GiB")

    short_lean.decide(whole=True)  # the first loss is that of the proof
    monkeypatch.setattr(Classify, "loss", full)
    with pytest.raises(TrainError, match="a batch of 4 rows does not fit into the device's memory: out of memory") as refused:
        run(bench.context(stores["grouped"], "memory", **STEPS))
    assert "--per-device-train-batch-size 2 --gradient-accumulation-steps 2" in refused.value.hint


def test_a_second_signal_acts_as_it_always_did() -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_wish_is_answered_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with Signals(said="it ends soon", begun=False) as signals:
        signals.begin()
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == "SIGTERM"
        assert capfd.readouterr().err == "SIGTERM received: it ends soon\n"


def test_a_run_that_is_stopped_says_so_before_its_step_ends(
    bench: Bench, stores: dict[str, Path], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    original = FtcliTrainer.training_step

    def long(self: Any, *given: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        heard.append(capfd.readouterr().err)
        return original(self, *given, **named)

    monkeypatch.setattr(FtcliTrainer, "training_step", long)
    assert run(bench.context(stores["grouped"], "said", **STEPS, train__verify=False)).status == "interrupted"
    assert len(heard) == 1
    assert heard[0].startswith("SIGTERM received: the run ends with a checkpoint when ")


@pytest.mark.reliability(17, "a signal before the first step")
@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("place", ["the model is built", "the lean step is proved"])
def test_a_signal_before_the_first_step_ends_the_run_at_once(
    bench: Bench, stores: dict[str, Path], number: signal.Signals, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had waited for the rest of the loading and for a first step, and had saved a checkpoint of that."""
    module, name = {"the model is built": (running, "build"), "the lean step is proved": (training, "lean")}[place]
    original = getattr(module, name)

    def struck(*given: Any, **named: Any) -> Any:
        os.kill(os.getpid(), number)
        return original(*given, **named)

    monkeypatch.setattr(module, name, struck)
    output = f"early {number.name} {place}"
    with termination_interrupts(), pytest.raises(KeyboardInterrupt):
        run(bench.context(stores["packed"], output, **STEPS, train__verify=False))
    assert not list(bench.folder.glob(f"{output}/*"))


def test_until_a_run_has_begun_a_signal_is_no_wish() -> None:
    with Signals(begun=False) as signals:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert signals.received is None
    with Signals(begun=False) as signals:
        signals.begin()
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == "SIGINT"
