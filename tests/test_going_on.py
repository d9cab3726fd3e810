"""What transformers does at the ends of `train` is undone where a run goes on: best weights in a checkpoint, hooks that add up, an evaluation counted twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerState

from ftcli.commands.train import run as train
from ftcli.core.batches.slots import _halved
from ftcli.core.distributed.signals import Signals
from ftcli.core.training import finished_checkpoint, guarding
from ftcli.core.training.arguments import make_arguments
from ftcli.core.training.evaluating import Evaluating
from ftcli.core.training.run import prepare
from ftcli.core.training.train import fit
from ftcli.errors import SettingsError, TrainError
from runs import VOCABULARY, Bench, StopAt
from stores import learnable

pytestmark = pytest.mark.usefixtures("one_thread")

BASE = {
    "train__max_steps": 8,
    "train__per_device_train_batch_size": 4,
    "train__learning_rate": 0.05,
    "train__on_unhealthy": "warn",
    "train__lean_step": "off",
    "train__eval_strategy": "steps",
    "train__save_strategy": "steps",
    "train__eval_steps": 2,
    "train__save_steps": 2,
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("going on"))
    made.store("store", {"train": learnable(24, 3, VOCABULARY, 0), "validation": learnable(8, 3, VOCABULARY, 1)}, labels=3)
    return made


def go(bench: Bench, output: str, stop: int | None = None, **values: Any) -> Any:
    context = bench.context(bench.folder / "store", output, **{**BASE, **values})
    with Signals() as signals:
        return fit(prepare(replace(context, progress=StopAt(stop)) if stop else context), signals)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(str(folder / "model.safetensors"))


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def evaluations(outcome: Any) -> list[tuple[int, float]]:
    return [(entry["step"], entry["eval_loss"]) for entry in outcome.details["log"] if "eval_loss" in entry]


def checkpoints_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_an_interrupted_run_has_its_own_weights_in_its_checkpoint_whatever_is_best(bench: Bench) -> None:
    """At a limit of 1 transformers deletes it, and what was saved in its place were the best weights."""
    values = {"train__load_best_model_at_end": True, "train__save_total_limit": 1}
    whole = go(bench, "whole", **values)
    stopped = go(bench, "stopped", stop=5, **values)
    assert stopped.status == "interrupted"
    folder = bench.folder / "stopped"
    best = Path(json.loads((folder / "checkpoint-5" / "trainer_state.json").read_text())["best_model_checkpoint"]).name
    assert best in {"checkpoint-2", "checkpoint-4"}
    assert not same(weights(folder / "checkpoint-5"), weights(folder / best))
    resumed = go(bench, "stopped", **values, train__resume_from_checkpoint="auto")
    after = [pair for pair in evaluations(whole) if pair[0] > 5]
    assert [pair for pair in evaluations(resumed) if pair[0] > 5] == after
    assert "checkpoint-8" in checkpoints_of(bench.folder / "whole"), "a run that has ended is not trained on by the same command"


def test_a_signal_while_the_test_split_is_scored_leaves_a_checkpoint_from_which_it_is_scored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = {
        "train": learnable(24, 3, VOCABULARY, 0),
        "validation": learnable(8, 3, VOCABULARY, 1),
        "test": learnable(9, 3, VOCABULARY, 2),
    }
    data = bench.store("tested", splits, labels=3)
    values = {**BASE, "train__load_best_model_at_end": True, "dataset__sources": [str(data)]}

    def tested(output: str, **more: Any) -> Any:
        with Signals() as signals:
            return fit(prepare(bench.context(data, output, **{**values, **more})), signals)

    whole = tested("test whole")
    assert whole.metrics["steps"] == 8
    loading = Evaluating.get_test_dataloader

    def stopped_there(self: Any, dataset: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return loading(self, dataset)

    monkeypatch.setattr(Evaluating, "get_test_dataloader", stopped_there)
    assert tested("test stopped").status == "interrupted"
    assert not (bench.folder / "test stopped" / "config.json").exists()
    monkeypatch.undo()
    for _ in range(2):  # the second time nothing is left
        resumed = tested("test stopped", train__resume_from_checkpoint="auto")
        assert resumed.status == "ok"
        assert resumed.metrics["test_loss"] == whole.metrics["test_loss"]
    assert same(weights(bench.folder / "test stopped"), weights(bench.folder / "test whole"))
    lines = [json.loads(line) for line in (bench.folder / "test stopped" / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in lines if "test_loss" in line]) == 1


def test_a_signal_behind_the_best_weights_names_the_checkpoint_that_there_is(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With only the best saved, that of the last step was said to be complete, and was not there."""
    splits = {
        "train": learnable(24, 3, VOCABULARY, 0),
        "validation": learnable(8, 3, VOCABULARY, 1),
        "test": learnable(9, 3, VOCABULARY, 2),
    }
    data = bench.store("tested, best", splits, labels=3)
    loading = Evaluating.get_test_dataloader

    def stopped_there(self: Any, dataset: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return loading(self, dataset)

    monkeypatch.setattr(Evaluating, "get_test_dataloader", stopped_there)
    values = {**BASE, **WORST, "train__save_strategy": "best", "dataset__sources": [str(data)]}
    report = train(bench.context(data, "best alone", **values))

    (best,) = checkpoints_of(bench.folder / "best alone")
    assert (report.status, report.paths["checkpoint"]) == ("interrupted", str(bench.folder / "best alone" / best))
    assert report.error is not None
    assert report.error["message"].endswith(
        f"the newest checkpoint is that of step {best.rpartition('-')[2]}: later steps will be repeated"
    )


def test_noise_is_added_once_after_going_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    context = bench.context(
        bench.folder / "store",
        "noise",
        **{**BASE, "train__neftune_noise_alpha": 5.0, "train__on_nonfinite": "rollback", "train__max_steps": 6},
    )
    made = prepare(context)

    def judge(self: guarding.Guard, step: int, *_: Any) -> bool:
        seen.append((step, len(made.model.get_input_embeddings()._forward_hooks)))
        if step == 3 and not self.rollbacks:
            self.rollbacks += 1
            raise guarding.Rollback(2, range(3, 4), "test")
        return False

    monkeypatch.setattr(guarding.Guard, "judge", judge)
    with Signals() as signals:
        fit(made, signals)
    assert {step for step, _ in seen} >= {2, 3, 6}
    assert {hooks for _, hooks in seen} == {1}


def test_checkpoints_of_weights_alone_are_rotated_and_give_the_best(bench: Bench) -> None:
    values = {"train__save_only_model": True, "train__load_best_model_at_end": True, "train__save_total_limit": 1}
    outcome = go(bench, "alone", **values)
    folder = bench.folder / "alone"
    best = min(evaluations(outcome), key=lambda pair: pair[1])[0]
    assert outcome.status == "ok"
    assert checkpoints_of(folder) == sorted({f"checkpoint-{best}", "checkpoint-8"})
    assert same(weights(folder), weights(folder / f"checkpoint-{best}"))
    notes: list[str] = []
    context = bench.context(folder.parent / "store", "alone", **BASE, **values, train__resume_from_checkpoint="auto")
    from ftcli.core.training import checkpoints

    assert checkpoints.newest(context.settings.train.output_dir or folder, notes.append) is None
    assert all("was saved without optimizer.pt" in note for note in notes)


def test_an_evaluation_at_the_start_is_not_counted_again(bench: Bench) -> None:
    values = {
        "train__patience": 1,
        "train__eval_on_start": True,
        "train__learning_rate": 3e-3,
        "train__max_steps": 10,
        "train__save_total_limit": 9,
    }
    whole = go(bench, "whole start", **values)
    shutil.copytree(bench.folder / "whole start", bench.folder / "part start")
    for folder in (bench.folder / "part start").glob("checkpoint-*"):
        if int(folder.name.rpartition("-")[2]) > 4:
            shutil.rmtree(folder)
    resumed = go(bench, "part start", **values, train__resume_from_checkpoint="auto")
    assert (resumed.metrics["steps"], evaluations(resumed)) == (whole.metrics["steps"], evaluations(whole))


def test_a_longer_run_takes_its_first_step_at_the_rate_of_its_own_length(bench: Bench) -> None:
    """The optimizer's state has the rate 0 that the shorter run ended with."""
    values = {
        "train__logging_steps": 1,
        "train__eval_strategy": "no",
        "train__warmup_steps": 0,
        "train__save_total_limit": 9,
        "train__save_steps": 1,
    }
    go(bench, "longer", **values, train__max_steps=4)
    before = weights(bench.folder / "longer")
    resumed = go(bench, "longer", **values, train__max_steps=6, train__resume_from_checkpoint="auto")
    rates = {entry["step"]: entry["learning_rate"] for entry in resumed.details["log"]}
    assert rates[5] == pytest.approx(0.05 * 2 / 6)
    assert not same(weights(bench.folder / "longer" / "checkpoint-5"), before)
    assert "learning-rate" not in {check.id for check in resumed.checks}
    assert resumed.details["resumed_step"] == 4


def test_a_run_that_goes_on_judges_by_the_losses_before(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    own = guarding.Guard._reason

    def reason(self: guarding.Guard, loss: float, norm: float) -> str:
        seen.append(len(self._losses))
        return own(self, loss, norm)

    monkeypatch.setattr(guarding.Guard, "_reason", reason)
    go(bench, "guarded", stop=5, train__on_nonfinite="skip")
    go(bench, "guarded", train__on_nonfinite="skip", train__resume_from_checkpoint="auto")
    assert seen == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"train__bf16_full_eval": True}, "bf16_full_eval is not supported"),
        ({"train__save_only_model": True, "train__on_nonfinite": "rollback"}, "needs full checkpoints to go back to"),
    ],
)
def test_what_would_save_another_model_or_nothing_to_go_back_to_is_refused(bench: Bench, values: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        go(bench, "refused", **values)


@pytest.mark.parametrize("kind", ["reduce_lr_on_plateau", "greedy"])
@pytest.mark.parametrize(("metric", "mode"), [("accuracy", "max"), ("eval_loss", None)])
def test_a_schedule_that_follows_a_figure_knows_which_way_is_better(bench: Bench, kind: str, metric: str, mode: str | None) -> None:
    values = {**BASE, "train__lr_scheduler_type": kind, "train__metric_for_best_model": metric, "train__warmup_steps": 3}
    context = bench.context(bench.folder / "store", "plateau", **values)
    arguments = make_arguments(context, held_out=True)
    assert (arguments.lr_scheduler_kwargs or {}).get("mode") == mode
    assert any("has no warm-up" in note for note in context.notes)


@pytest.mark.parametrize(("sizes", "count"), [([1, 1, 9, 1], 8), ([5, 1, 1], 6), ([2, 2], 4), ([7], 7)])
def test_no_batch_is_empty_while_one_can_be_cut(sizes: list[int], count: int) -> None:
    found = np.diff(_halved(np.cumsum(sizes), count), prepend=0)
    assert len(found) == count
    assert found.min() >= 1
    assert found.sum() == sum(sizes)
    assert np.diff(_halved(np.array([1, 2]), 3), prepend=0).tolist().count(0) == 1, "more batches than rows"


def test_the_best_by_one_figure_is_not_the_best_by_another(bench: Bench) -> None:
    """The best loss was compared with accuracies, and the last evaluation was always the best one."""
    go(bench, "metric", 4)
    with pytest.raises(
        TrainError, match=r"metric_for_best_model, of which the checkpoint keeps the best figure so far, was .*, now accuracy"
    ):
        go(bench, "metric", train__resume_from_checkpoint="auto", train__metric_for_best_model="accuracy")


WORST = {"train__load_best_model_at_end": True, "train__metric_for_best_model": "loss", "train__greater_is_better": True}
"""The best evaluation is that of step 2, where the loss is highest."""


def test_the_best_of_another_run_is_not_taken(bench: Bench) -> None:
    """The state names the folder of its best checkpoint, in which by now another run had its own: its model was saved as this run's."""
    go(bench, "elsewhere", 4, **WORST)
    first = bench.folder / "elsewhere"
    shutil.copytree(first / "checkpoint-4", bench.folder / "aside" / "checkpoint-4")
    shutil.rmtree(first)
    go(bench, "elsewhere", 4, **WORST, train__seed=7)
    assert "checkpoint-2" in checkpoints_of(first)
    values = {**BASE, **WORST, "train__resume_from_checkpoint": str(bench.folder / "aside" / "checkpoint-4")}
    context = bench.context(bench.folder / "store", "alone", **values)
    with Signals() as signals:
        fit(prepare(context), signals)
    assert not same(weights(bench.folder / "alone"), weights(first / "checkpoint-2"))
    (note,) = [note for note in context.notes if note.startswith("the best checkpoint so far (step 2, loss ")]
    assert note.endswith(
        f"{first / 'checkpoint-2'} belongs to another run, which differs in train.seed: the best of the following ones is kept"
    )
    assert same(weights(bench.folder / "alone"), weights(bench.folder / "alone" / "checkpoint-6"))


def test_the_best_is_found_where_the_run_was_moved(bench: Bench) -> None:
    go(bench, "unmoved", **WORST)
    go(bench, "before", 5, **WORST)
    (bench.folder / "before").rename(bench.folder / "behind")
    resumed = go(bench, "behind", **WORST, train__resume_from_checkpoint="auto")
    assert same(weights(bench.folder / "behind"), weights(bench.folder / "unmoved"))
    assert same(weights(bench.folder / "behind"), weights(bench.folder / "behind" / "checkpoint-2"))
    assert any("the model of step 2 was kept" in check.summary for check in resumed.checks)


def test_only_checkpoints_are_removed_and_no_link_is_followed(bench: Bench, tmp_path: Path) -> None:
    values = {"train__max_steps": 2, "train__eval_strategy": "no", "train__save_strategy": "no"}
    output = bench.folder / "kept"
    output.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (output / "checkpoint-9").symlink_to(tmp_path / "elsewhere")
    (output / "checkpoint-best").symlink_to("checkpoint-5")
    (output / "checkpoint-5").mkdir()
    (output / "checkpoint-notes.txt").write_text("kept")
    go(bench, "kept", **values, runtime__overwrite=True)
    assert sorted(path.name for path in output.glob("checkpoint-*")) == ["checkpoint-best", "checkpoint-notes.txt"]
    assert (tmp_path / "elsewhere").is_dir()


def test_the_checkpoint_that_a_run_starts_from_is_not_removed(bench: Bench) -> None:
    go(bench, "own")
    base = min((bench.folder / "own").glob("checkpoint-*"))
    values = {"model__config": None, "model__name_or_path": str(base), "train__max_steps": 2, "train__learning_rate": 1e-3}
    with pytest.raises(TrainError, match="which overwriting --output-dir would delete"):
        go(bench, "own", **values, runtime__overwrite=True)
    assert (base / "model.safetensors").is_file()
    go(bench, "other", **values)


def test_of_a_run_that_has_ended_one_process_writes_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process reads the same state."""
    trainer: Any = SimpleNamespace(
        args=SimpleNamespace(load_best_model_at_end=False),
        watch=SimpleNamespace(note=str),
        is_world_process_zero=lambda: False,
        is_local_process_zero=lambda: True,
        _load_from_checkpoint=str,
    )
    monkeypatch.setattr(finished_checkpoint, "length", lambda _: 5)
    finished_checkpoint.take_end(trainer, Path("checkpoint-5"), TrainerState(global_step=5))
    assert (trainer.state.is_world_process_zero, trainer.state.is_local_process_zero) == (False, True)
