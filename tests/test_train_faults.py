"""Training that is interrupted, damaged or impossible: it goes on exactly, or stops with the reason."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer
from transformers.utils import logging as transformers_logging

from ftcli.commands.train import run
from ftcli.context import Context, Quiet
from ftcli.core.signals import WATCHED, Signals
from ftcli.core.tasks import Classify
from ftcli.errors import TrainError
from ftcli.records import Report
from runs import VOCABULARY, Bench
from stores import learnable, packed

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


class StopAt(Quiet):
    """Sends this process a signal when the run has made so many steps."""

    def __init__(self, step: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.step, self.number, self.done = step, number, 0.0

    def advance(self, amount: float, **figures: Any) -> None:
        self.done += amount
        if self.done == self.step:
            os.kill(os.getpid(), self.number)


def _weights(folder: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in sorted(load_file(folder / "model.safetensors").items())])


def _stopped(context: Context, step: int, number: signal.Signals = signal.SIGTERM) -> Report:
    context.progress = StopAt(step, number)
    return run(context)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("data", ["grouped", "packed"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
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
        assert torch.equal(_weights(bench.folder / output), _weights(bench.folder / f"whole {name}"))
        for key in ("steps", "eval_loss", "first_loss", "first_grad_norm"):
            assert resumed.metrics[key] == whole.metrics[key]
        logged = [json.loads(line).get("step") for line in (bench.folder / output / "metrics.jsonl").read_text().splitlines()]
        assert logged == sorted(logged)


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
    assert torch.equal(_weights(bench.folder / "evaluation"), _weights(bench.folder / "whole evaluation"))
    assert whole.metrics["eval_loss"]


def test_an_interrupted_run_without_checkpoints_saves_one(bench: Bench, stores: dict[str, Path]) -> None:
    values = {**STEPS, "train__save_strategy": "no"}
    assert _stopped(bench.context(stores["packed"], "no saves", **values), 3).status == "interrupted"
    last = run(bench.context(stores["packed"], "no saves", **values, train__resume_from_checkpoint="auto"))
    assert (last.status, last.metrics["steps"]) == ("ok", 24)
    assert [path.name for path in (bench.folder / "no saves").glob("checkpoint-*")] == ["checkpoint-3"]


def test_a_run_that_had_ended_is_finished_without_another_step(bench: Bench, stores: dict[str, Path]) -> None:
    whole = run(bench.context(stores["grouped"], "ended", **STEPS))
    weights = _weights(bench.folder / "ended")
    (bench.folder / "ended" / "model.safetensors").unlink()
    again = run(bench.context(stores["grouped"], "ended", **STEPS, train__resume_from_checkpoint="auto"))
    assert again.metrics["steps"] == whole.metrics["steps"] == 24
    assert again.metrics["eval_loss"] == whole.metrics["eval_loss"]
    assert torch.equal(_weights(bench.folder / "ended"), weights)


def test_what_would_not_go_on_exactly_is_refused(bench: Bench, stores: dict[str, Path]) -> None:
    _stopped(bench.context(stores["grouped"], "changed", **STEPS), 2)
    for changed in ({"train__learning_rate": 1e-3}, {"train__per_device_train_batch_size": 5}, {"loader__collator": "dynamic"}):
        for verify, words in ((True, "FT091: .*cannot be gone on from|belongs to another run"), (False, "belongs to another run")):
            values = {**STEPS, **changed, "train__resume_from_checkpoint": "auto", "train__verify": verify}
            with pytest.raises(TrainError, match=words):
                run(bench.context(stores["grouped"], "changed", **values))
    longer = bench.context(stores["grouped"], "changed", **{**STEPS, "train__num_train_epochs": 3}, train__resume_from_checkpoint="auto")
    assert run(longer).metrics["steps"] == 36
    assert any("follows the new length" in note for note in longer.notes)


def test_a_damaged_newest_checkpoint_is_passed_over(bench: Bench, stores: dict[str, Path]) -> None:
    values = {**STEPS, "train__save_strategy": "steps", "train__save_steps": 4}
    whole = run(bench.context(stores["packed"], "undamaged", **values))
    _stopped(bench.context(stores["packed"], "damaged", **values), 9)
    state = bench.folder / "damaged" / "checkpoint-9" / "optimizer.pt"
    state.write_bytes(state.read_bytes()[:-100])
    context = bench.context(stores["packed"], "damaged", **values, train__resume_from_checkpoint="auto")
    assert run(context).metrics["resumed_from"].endswith("checkpoint-8")
    assert any("optimizer.pt has" in note for note in context.notes)
    assert torch.equal(_weights(bench.folder / "damaged"), _weights(bench.folder / "undamaged"))
    assert whole.status == "ok"


# -- numbers that are none ---------------------------------------------------------------------------------------------


def _broken(monkeypatch: pytest.MonkeyPatch, damage: Callable[[torch.Tensor], torch.Tensor], at: int) -> None:
    """Damage the loss of the `at`-th batch."""
    calls: list[int] = []
    plain = Classify.loss

    def loss(self: Classify, logits: torch.Tensor, labels: torch.Tensor, items: Any) -> torch.Tensor:
        found = plain(self, logits, labels, items)
        calls.append(1)
        return damage(found) if len(calls) == at else found

    monkeypatch.setattr(Classify, "loss", loss)


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
    with pytest.raises(TrainError, match="the weights hold values that are no numbers"):
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
        if folder.endswith("-4"):
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
    def full(self: Trainer, folder: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Trainer, "save_model", full)
    with pytest.raises(TrainError, match="the model cannot be written"):
        run(bench.context(stores["grouped"], "unwritten", **STEPS, train__max_steps=1, train__save_strategy="no"))


def test_too_little_memory_is_answered_with_numbers(bench: Bench, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory: tried to allocate 9 GiB")

    monkeypatch.setattr(Classify, "loss", full)
    with pytest.raises(TrainError, match="does not hold a batch of 4 rows: out of memory") as refused:
        run(bench.context(stores["grouped"], "memory", **STEPS))
    assert "--per-device-train-batch-size 2 --gradient-accumulation-steps 2" in refused.value.hint


def test_a_second_signal_acts_as_it_always_did() -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


RANKS = """
import sys, torch
sys.path.insert(0, {tests!r})
from pathlib import Path
from runs import Bench, ONE_STEP
from ftcli.core.run import prepare
from ftcli.core.signals import Signals
from ftcli.core.train import fit
torch.set_num_threads(1)
bench = Bench(Path({folder!r}), Path({folder!r}) / "tokenizer")
values = dict(ONE_STEP, train__per_device_train_batch_size={batch}, train__gradient_accumulation_steps={steps}, train__ddp_backend="gloo")
values["train__eval_strategy"] = "epoch"
ready = prepare(bench.context(Path({store!r}), {output!r}, **values))
outcome = fit(ready, Signals())
if ready.arguments.process_index == 0:
    weights = torch.cat([p.detach().flatten() for p in ready.model.parameters()])
    torch.save((outcome.metrics["first_loss"], outcome.metrics["eval_loss"], weights), {result!r})
"""


@pytest.mark.slow
def test_two_processes_train_and_evaluate_like_one(bench: Bench, stores: dict[str, Path], tmp_path: Path) -> None:
    found = []
    for processes, batch, steps in ((1, 12, 1), (2, 3, 2)):
        result = tmp_path / f"{processes}.pt"
        script = tmp_path / f"{processes}.py"
        names = {"tests": str(Path(__file__).parent), "folder": str(bench.folder), "store": str(stores["grouped"])}
        script.write_text(RANKS.format(**names, output=f"ranks {processes}", result=str(result), batch=batch, steps=steps))
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", str(script)]
        ended = subprocess.run([sys.executable, *words], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr[-3000:]
        found.append(torch.load(result))
    (loss, held_out, weights), (other_loss, other_held_out, other) = found
    assert other_loss == pytest.approx(loss, rel=1e-5)
    assert other_held_out == pytest.approx(held_out, rel=1e-5)
    assert torch.allclose(weights, other, atol=1e-6)
