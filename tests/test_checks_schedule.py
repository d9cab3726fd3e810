"""The schedule in full-rate steps, hidden NaN, and what a resumed run would do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import get_scheduler

from ftcli.context import Context
from ftcli.core.storage.store import Store
from ftcli.core.training.checkpoints import MARKER, NEEDED, identity, seal
from ftcli.core.training.schedule import OPTIONS, Schedule
from verifying import World

STAGE = ("settings",)


TOLD: dict[str, list[dict[str, Any]]] = {
    "cosine": [{}, {"num_cycles": 2}],
    "cosine_with_restarts": [{}, {"num_cycles": 3}],
    "polynomial": [{}, {"power": 3, "lr_end": 0.0}, {"lr_end": 0.5}, {"power": 2, "lr_end": 1.5}],
    "inverse_sqrt": [{}, {"timescale": 7}],
    "cosine_with_min_lr": [{"min_lr_rate": 0.1}, {"min_lr": 0.5, "num_cycles": 1}],
    "cosine_warmup_with_min_lr": [{"min_lr_rate": 0.1}, {"min_lr": 0.5, "warmup_lr_rate": 0.3}],
    "warmup_stable_decay": [
        {"num_decay_steps": 5},
        {"num_decay_steps": 20, "num_stable_steps": 7, "min_lr_ratio": 0.1, "warmup_type": "cosine", "decay_type": "linear"},
        {"num_decay_steps": 9, "warmup_type": "1-sqrt", "decay_type": "1-sqrt"},
        {"num_decay_steps": 9, "num_cycles": 1.5},
    ],
}


@pytest.mark.parametrize(("name", "options"), [(name, options) for name in sorted(OPTIONS) for options in TOLD.get(name, [{}])])
@pytest.mark.parametrize(("steps", "warmup"), [(50, 0), (50, 10), (50, 40)])
def test_the_planned_rate_is_that_of_transformers(name: str, options: dict[str, Any], steps: int, warmup: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps, scheduler_specific_kwargs=options)
    planned = Schedule(steps, warmup, name, options, 2.0)
    assert planned.known
    rates = []
    for step in range(1, steps + 1):
        rates.append(scheduler.get_last_lr()[0])
        assert planned.share(step) * 2.0 == pytest.approx(rates[-1], abs=1e-6)
        optimizer.step()
        scheduler.step()
    assert planned.full_rate_steps(steps) == pytest.approx(sum(rates) / 2.0, rel=1e-4)
    assert planned.total == planned.full_rate_steps(steps)


def test_incident_2_had_done_2_84_steps_at_the_full_rate_where_its_log_said_step_20() -> None:
    schedule = Schedule(70_038, 7_004, "linear")
    assert schedule.share(200) == pytest.approx(0.0284, abs=1e-4)
    assert schedule.full_rate_steps(200) == pytest.approx(2.84, abs=0.01)
    assert schedule.full_rate_steps(20) == pytest.approx(0.027, abs=0.001)


def test_a_schedule_that_is_not_known_is_said_to_be_so() -> None:
    assert not Schedule(10, 0, "warmup_stable_decay").known
    assert not Schedule(10, 0, "cosine", {"min_lr": 1}).known
    assert not Schedule(10, 0, "cosine_with_min_lr", {"min_lr": 1}).known
    assert not Schedule(10, 0, "warmup_stable_decay", {"num_decay_steps": 5, "decay_type": "sudden"}).known
    assert Schedule(10, 5, "warmup_stable_decay").full_rate_steps(10) == pytest.approx(7)


@pytest.mark.parametrize("name", ["constant", "reduce_lr_on_plateau", "greedy"])
def test_a_schedule_without_a_warm_up_begins_at_the_full_rate_and_that_is_said(world: World, name: str) -> None:
    assert Schedule(100, 90, name).total == 100
    values = {**world.run("classify"), "train.max_steps": 100, "train.lr_scheduler_type": name}
    found = world.quiet("a warm-up that is not made", {**values, "train.warmup_steps": 90}, stages=STAGE)["FT053"]
    assert found.status == "info"
    assert "has no warm-up" in found.summary
    assert found.evidence["warmup_steps"] == 0
    assert world.quiet("none", values, stages=STAGE)["FT053"].status == "pass"


def test_a_polynomial_that_does_not_fall_is_refused(world: World) -> None:
    values = {**world.run("classify"), "train.max_steps": 100, "train.learning_rate": 1e-8, "train.lr_scheduler_type": "polynomial"}
    world.caught("a rate below the default end", values, "FT053", words="lr_end of 1e-07 is not below", stages=STAGE)
    world.quiet("an end below it", {**values, "train.lr_scheduler_kwargs": {"lr_end": 1e-9}}, stages=STAGE)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cosine_with_min_lr", {"min_lr": 0.1}),
        ("cosine_warmup_with_min_lr", {"min_lr_rate": 2000}),
        ("warmup_stable_decay", {"num_decay_steps": 40, "min_lr_ratio": 2000}),
    ],
)
def test_a_least_rate_above_the_learning_rate_fails(world: World, name: str, options: dict[str, float]) -> None:
    """The rate rose to 0.1 in a run at 5e-5, and nothing was said."""
    values = {**world.run("classify"), "train.max_steps": 100, "train.learning_rate": 5e-5, "train.lr_scheduler_type": name}
    world.caught(
        f"O5: {name} rises",
        {**values, "train.lr_scheduler_kwargs": options},
        "FT053",
        words="raises the learning rate to 2,000 times",
        stages=STAGE,
    )
    level = {key: value if key == "num_decay_steps" else 5e-5 if key == "min_lr" else 1 for key, value in options.items()}
    world.quiet("a level one", {**values, "train.lr_scheduler_kwargs": level}, stages=STAGE)


def test_a_first_evaluation_inside_the_warm_up_is_said(world: World) -> None:
    values = {
        **world.run("classify"),
        "train.max_steps": 200,
        "train.warmup_steps": 40,
        "train.eval_steps": 10,
        "train.eval_strategy": "steps",
    }
    check = world.quiet("an evaluation inside the warm-up", values, stages=STAGE)["FT053"]
    assert check.status == "info"
    assert check.evidence["full_rate_steps"]["first_eval"] == pytest.approx(1.1, abs=0.05)


def test_the_full_rate_steps_of_a_failing_warm_up_are_named(world: World) -> None:
    values = {**world.run("classify"), "train.max_steps": 100, "train.warmup_steps": 7004}
    check = world.caught("O5, warm-up 7004 of 100 steps", values, "FT053", words="amounts to 0.7 steps", stages=STAGE)
    assert check.evidence["full_rate_steps"]["end"] == pytest.approx(0.707, abs=0.01)


def test_a_schedule_that_decays_at_once_is_a_warning(world: World) -> None:
    values = {**world.run("classify"), "train.max_steps": 500, "train.warmup_steps": 2, "train.lr_scheduler_type": "warmup_stable_decay"}
    world.quiet("40 steps of decay", {**values, "train.lr_scheduler_kwargs": {"num_decay_steps": 40}}, stages=STAGE)
    told = {"num_decay_steps": 3, "num_stable_steps": 0}
    world.caught("O5, decay at once", {**values, "train.lr_scheduler_kwargs": told}, "FT053", status="warn", words="near 0", stages=STAGE)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("warmup_stable_decay", {}, "needs num_decay_steps"),
        ("warmup_stable_decay", {"num_decay_steps": 3, "decay_type": "sudden"}, "decay_type = 'sudden' is none of"),
        ("cosine_with_min_lr", {}, "needs min_lr or min_lr_rate"),
        ("linear", {"power": 2}, "takes no option power"),
    ],
)
def test_a_schedule_that_transformers_would_not_make_is_an_error(name: str, options: dict[str, Any], words: str, world: World) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    with pytest.raises((TypeError, ValueError)):
        get_scheduler(name, optimizer, num_warmup_steps=1, num_training_steps=9, scheduler_specific_kwargs=options)
    values = {**world.run("classify"), "train.max_steps": 100, "train.lr_scheduler_type": name, "train.lr_scheduler_kwargs": options}
    world.caught(f"O5, {name} of {options}", values, "FT053", words=words, stages=STAGE)


def test_a_filter_that_hides_nan_is_a_warning(world: World) -> None:
    world.quiet("no filter", {}, stages=STAGE)
    world.caught("K2, logging_nan_inf_filter", {"train.logging_nan_inf_filter": True}, "FT090", status="warn", words="0.0", stages=STAGE)


# -- resume ----------------------------------------------------------------------------------------------------------------------------------


def _checkpoint(world: World, values: dict[str, Any], output: Path, step: int = 4, precision: str | None = None) -> Path:
    """A checkpoint with the marker that a run with these values writes."""
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    for name in (*NEEDED, "model.safetensors"):
        (folder / name).write_text("{}")
    seal(folder, identity(Context.make(values), Store.open(Path(values["dataset.sources"][0])), "classify", precision))
    return folder


def _resuming(world: World, output: Path, **changes: Any) -> dict[str, Any]:
    return {**world.run("classify"), "runtime.threads": 1, "train.output_dir": output, "train.resume_from_checkpoint": "auto", **changes}


def test_a_checkpoint_of_the_same_run_passes(world: World, tmp_path: Path) -> None:
    values = _resuming(world, tmp_path / "run")
    _checkpoint(world, values, tmp_path / "run")
    resumed = world.quiet("a resumed run", values, stages=STAGE)["FT091"]
    assert resumed.status == "pass", resumed.summary
    longer = {**values, "train.num_train_epochs": 9.0}
    assert world.quiet("a resumed run, longer", longer, stages=STAGE)["FT091"].status == "info"
    assert world.quiet("nothing to resume", _resuming(world, tmp_path / "new"), stages=STAGE)["FT091"].status == "info"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train.learning_rate", 1e-3, "the saved optimizer keeps"),
        ("train.per_device_train_batch_size", 3, "the rows of every step"),
        ("train.data_seed", 7, "the order of rows"),
        ("train.adam_beta2", 0.9, "adam_beta2"),
        ("train.ignore_data_skip", True, "twice"),
        ("loader.collator", "dynamic", "the order of rows"),
    ],
)
def test_what_a_resumed_run_would_ignore_or_do_otherwise_is_named(world: World, tmp_path: Path, key: str, value: Any, words: str) -> None:
    values = _resuming(world, tmp_path / "run")
    _checkpoint(world, values, tmp_path / "run")
    refused = ("FT054",) if key == "train.ignore_data_skip" else ()  # in every run
    check = world.caught(f"K3, {key} changed", {**values, key: value}, "FT091", *refused, words=words, stages=STAGE)
    assert key in check.evidence["differences"]


def test_a_precision_that_is_asked_for_is_held_against_the_one_that_was_settled(world: World, tmp_path: Path) -> None:
    values = _resuming(world, tmp_path / "run")
    _checkpoint(world, values, tmp_path / "run", precision="float32")
    world.quiet("bf16 unset, which only the model settles", values, stages=STAGE)
    check = world.caught("K3, --bf16 added", {**values, "train.bf16": True}, "FT091", words="was float32, now bfloat16", stages=STAGE)
    assert "--no-bf16 asks for float32" in check.fix


def test_other_data_are_named(world: World, tmp_path: Path) -> None:
    values = _resuming(world, tmp_path / "run")
    _checkpoint(world, values, tmp_path / "run")
    other = {**values, **world.rewritten(tmp_path / "other", {"train": world.rows(world.labelled)[::-1]})}
    world.caught("K3, rows in another order", other, "FT091", words="the rows and their order", stages=STAGE)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", MARKER])
def test_a_checkpoint_without_its_optimizer_or_schedule_is_refused(world: World, tmp_path: Path, name: str) -> None:
    values = _resuming(world, tmp_path / "run")
    folder = _checkpoint(world, values, tmp_path / "run")
    (folder / name).unlink()
    world.caught(f"K3, {name} deleted", values, "FT091", words=f"{name} is missing", stages=STAGE)
    named = {**values, "train.resume_from_checkpoint": str(folder)}
    world.caught(f"K3, {name} deleted, checkpoint named", named, "FT091", words=f"{name} is missing", stages=STAGE)
    assert json.loads((folder / "trainer_state.json").read_text()) == {}


RARE = {"train.eval_strategy": "steps", "train.eval_steps": 50, "train.save_strategy": "steps", "train.save_steps": 50}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"train.patience": 3, "train.max_steps": 200}, "needs 4 evaluations before the last step, but there are 3"),
        ({"train.patience": 1, "train.max_steps": 50}, "needs 2 evaluations before the last step, but there are 0"),
        ({"train.load_best_model_at_end": True, "train.max_steps": 50}, "the only evaluation is at the end, step 50"),
        ({"train.load_best_model_at_end": True, "train.max_steps": 200, "train.eval_delay": 200}, "the only evaluation is at the end"),
    ],
)
def test_evaluations_too_few_for_what_is_asked_are_a_warning(world: World, asked: dict[str, Any], words: str) -> None:
    values = {**world.run("classify"), **RARE, **asked}
    world.caught("too few evaluations", values, "FT092", status="warn", words=words, stages=STAGE)
    assert world.quiet("enough", {**values, "train.max_steps": 251}, stages=STAGE)["FT092"].status == "pass"


def test_epochs_are_evaluations_too(world: World) -> None:
    values = {**world.run("classify"), "train.patience": 2, "train.eval_strategy": "epoch"}
    world.caught("3 epochs", {**values, "train.num_train_epochs": 3}, "FT092", status="warn", words="but there are 2", stages=STAGE)
    assert world.quiet("4 epochs", {**values, "train.num_train_epochs": 4}, stages=STAGE)["FT092"].evidence["evaluations"] == 4


@pytest.mark.parametrize(("steps", "warmup", "status"), [(1, 5, "fail"), (1, 1, "fail"), (2, 1, "warn"), (19, 12, "warn")])
def test_what_a_short_run_is_told_about_its_warm_up_helps(world: World, steps: int, warmup: int, status: str) -> None:
    """1 of 1 and 1 of 2 steps were proposed, and failed or warned again with the same words."""
    values = {**world.run("classify"), "train.max_steps": steps}
    told = {**values, "train.warmup_steps": warmup}
    check = world.caught(f"a warm-up of {warmup} of {steps} steps", told, "FT053", status=status, words="warm-up", stages=STAGE)
    assert check.fix == f"Leave --warmup-steps out: a run of {steps} step{'s' * (steps > 1)} needs none."
    world.quiet("left out", values, stages=STAGE)


@pytest.mark.parametrize(
    "asked",
    [
        {"train.patience": 3, "train.eval_strategy": "epoch"},
        {"train.patience": 28, "train.eval_strategy": "epoch"},
        {"train.patience": 3, "train.eval_strategy": "steps", "train.eval_steps": 100},
        {"train.patience": 3, "train.eval_strategy": "steps", "train.eval_steps": 10, "train.eval_delay": 12},
        {"train.load_best_model_at_end": True, **RARE},
        {"train.load_best_model_at_end": True, "train.eval_strategy": "epoch", "train.num_train_epochs": 1},
    ],
)
def test_evaluations_as_often_as_is_advised_are_enough(world: World, asked: dict[str, Any]) -> None:
    """Of 30 steps, every 100th was advised, whatever the run and patience were."""
    values = {**world.run("classify"), "train.max_steps": 30, **asked}
    check = world.caught("too few evaluations", values, "FT092", status="warn", stages=STAGE)
    advised = dict(re.findall(r"--([a-z-]+) (\w+)", check.fix))
    assert advised["eval-strategy"] == "steps"
    values |= {f"train.{name.replace('-', '_')}": int(value) if value.isdigit() else value for name, value in advised.items()}
    assert world.quiet("evaluated as advised", values, stages=STAGE)["FT092"].status == "pass"


@pytest.mark.parametrize(("patience", "delay", "words"), [(29, None, "30 steps are too few"), (3, 28, "--eval-delay")])
def test_a_run_too_short_for_its_patience_is_told_to_be_longer(world: World, patience: int, delay: int | None, words: str) -> None:
    values = {**world.run("classify"), "train.max_steps": 30, "train.patience": patience, "train.eval_strategy": "steps"}
    values |= {"train.eval_steps": 1, "train.eval_delay": delay}
    check = world.caught("a run too short", values, "FT092", status="warn", stages=STAGE)
    assert words in check.fix
    assert "train longer" in check.fix
    assert "--eval-steps" not in check.fix
