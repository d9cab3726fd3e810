"""The check of the optimizer's numbers: each one off by powers of ten, and the values that are in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from ftcli.core.training import refused
from ftcli.errors import MissingExtraError
from ftcli.settings import Settings
from verifying import World

STAGE = ("settings",)


@pytest.mark.parametrize(
    ("values", "status", "words"),
    [
        ({"train.weight_decay": 1e4}, "fail", "removes 50% of every weight at each step"),
        ({"train.weight_decay": 1e6}, "fail", "removes 100%"),
        ({"train.weight_decay": 200.0, "train.max_steps": 1000}, "warn", "0.7% of the initial weights are left at the end"),
        ({"train.adam_epsilon": 1.0}, "fail", "adam_epsilon = 1 is larger"),
        ({"train.adam_epsilon": 1e-3}, "warn", "adam_epsilon = 0.001 is larger"),
        ({"train.max_grad_norm": 1e-9}, "fail", "clips every gradient"),
        ({"train.max_grad_norm": 1e-5}, "warn", "clips every gradient"),
        ({"train.adam_beta1": 1.0}, "fail", "adam_beta1 = 1 is not"),
        ({"train.adam_beta2": 1.5}, "fail", "adam_beta2 = 1.5 is not"),
        ({"train.adam_beta1": 0.9999}, "warn", "the gradients of 10,000 steps"),
        ({"train.adam_beta2": 0.1}, "warn", "adam_beta2 = 0.1"),
        ({"train.neftune_noise_alpha": 5000.0}, "fail", "noise larger than"),
        ({"train.neftune_noise_alpha": 60.0}, "warn", "noise larger than"),
        ({"train.optim": "sgd"}, "warn", "sgd at 5e-05"),
        ({"train.learning_rate": 0.05}, "warn", "adamw_torch_fused at 0.05"),
    ],
)
def test_a_number_that_leaves_nothing_of_an_update_is_found(world: World, values: dict[str, Any], status: str, words: str) -> None:
    cause = ", ".join(f"{key.removeprefix('train.')} = {value}" for key, value in values.items())
    world.caught(f"O7: {cause}", values, "FT054", status=status, words=words, stages=STAGE)


@pytest.mark.parametrize("name", ["label_smoothing_factor", "fp16_full_eval", "dataloader_in_order"])
def test_a_setting_that_train_refuses_fails_once_and_without_the_model(world: World, name: str) -> None:
    values = {**world.run("classify", "qwen3"), f"train.{name}": {"label_smoothing_factor": 0.1}.get(name, name == "fp16_full_eval")}
    checks = world.verify(values, level="quick", stages=STAGE)
    assert f"train.{name}" in checks["FT054"].summary
    world.caught(f"{name} is refused", values, "FT054", words=f"train.{name}", select=("FT054", "FT502"))


@pytest.mark.parametrize(
    "values",
    [
        {"train.weight_decay": 0.1, "train.learning_rate": 1e-3, "train.max_steps": 1_000_000},
        {"train.weight_decay": 1.0, "train.learning_rate": 1e-3, "train.max_steps": 100_000},
        {"train.weight_decay": 0.3, "train.learning_rate": 5e-5},
        {"train.adam_epsilon": 1e-5, "train.adam_beta1": 0.95, "train.adam_beta2": 0.95},
        {"train.adam_epsilon": 1.0, "train.optim": "adafactor"},
        {"train.max_grad_norm": 0.0},
        {"train.learning_rate": 0.01},
        {"train.learning_rate": 0.1, "model.freeze_backbone": True},
        {"train.optim": "adafactor", "train.learning_rate": 0.1},
        {"train.max_grad_norm": 0.1},
        {"train.neftune_noise_alpha": 15.0},
        {"train.optim": "sgd", "train.learning_rate": 0.01},
        {"train.optim": "sgd", "train.learning_rate": 5e-4, "train.optim_args": "momentum=0.9,nesterov=true"},
    ],
)
def test_numbers_in_use_are_quiet(world: World, values: dict[str, Any]) -> None:
    assert world.quiet(", ".join(f"{key} = {value}" for key, value in values.items()), values, stages=STAGE)["FT054"].status == "pass"


@pytest.mark.parametrize(
    ("values", "words", "fix"),
    [
        ({"train.optim": "adamw_bnb_8bit"}, "needs the package bitsandbytes", "pip install bitsandbytes"),
        ({"train.optim": "stable_adamw"}, "needs the package optimi", "pip install torch-optimi"),
        (
            {"model.attn_implementation": "flash_attention_2"},
            "needs the package flash_attn",
            "pip install flash-attn, or pip install kernels",
        ),
    ],
)
def test_a_package_that_is_not_installed_is_named(
    world: World, values: dict[str, Any], words: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused, "_installed", lambda module: module == "flash_attn_interface")
    check = world.caught(f"no package: {values}", values, "FT054", words=words, stages=STAGE)
    assert check.fix.startswith(fix)
    assert not check.summary.startswith("Optimizer")  # which attention is none of
    monkeypatch.setattr(refused, "_installed", lambda module: module in {"kernels", "bitsandbytes", "optimi"})
    world.quiet(f"installed: {values}", values, stages=STAGE)


def test_an_attention_of_the_hub_needs_no_package_that_is_known_here(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "_installed", lambda module: False)
    for name in ("sdpa", "eager", "flex_attention", "kernels-community/flash-attn2"):
        world.quiet(name, {"model.attn_implementation": name}, stages=STAGE)


@pytest.mark.parametrize("name", [each.value for each in OptimizerNames])
def test_an_optimizer_is_refused_where_transformers_misses_its_package(name: str, tmp_path: Path) -> None:
    words = ""
    try:
        Trainer.get_optimizer_cls_and_kwargs(TrainingArguments(str(tmp_path), optim=name))
    except (ImportError, ValueError) as error:
        words = str(error)
    missing = any(word in words for word in ("install", "failed to import"))
    settings = Settings.model_validate({"train": {"optim": name}})
    if missing:
        with pytest.raises(MissingExtraError, match=f"train.optim = {name} needs the package"):
            refused.refuse_settings(settings)
    else:
        refused.refuse_settings(settings)


def test_an_epoch_of_one_update_warns(world: World) -> None:
    values = world.run("classify", **{"train.gradient_accumulation_steps": 64})
    world.caught("O7: 64 accumulated batches of 30", values, "FT054", status="warn", words="and the run has 3", stages=STAGE)
    world.quiet("12 accumulated batches of 30", {**values, "train.gradient_accumulation_steps": 12}, stages=STAGE)
    world.quiet("64 of 30, in a run of so many steps", {**values, "train.max_steps": 3}, stages=STAGE)


def test_a_batch_of_all_rows_warns(world: World) -> None:
    values = world.run("classify", **{"train.per_device_train_batch_size": 2000})
    check = world.caught(
        "O7: 240 rows in one batch", values, "FT054", status="warn", words="one update of a whole epoch, and the run has 3", stages=STAGE
    )
    assert check.fix == "Lower --per-device-train-batch-size."
    world.quiet("240 rows in one batch, in a run of so many steps", {**values, "train.max_steps": 3}, stages=STAGE)
    world.quiet("240 rows in one batch, 30 times", {**values, "train.num_train_epochs": 30}, stages=STAGE)


def test_a_schedule_that_ends_at_once_warns(world: World) -> None:
    values = {"train.max_steps": 200, "train.lr_scheduler_type": "polynomial"}
    steep = {**values, "train.lr_scheduler_kwargs": {"power": 200.0}}
    world.caught("O5: a polynomial of power 200", steep, "FT053", status="warn", words="near 0 for nearly all of it", stages=STAGE)
    steep = {**values, "train.lr_scheduler_kwargs": {"power": 40.0}}
    world.caught("O5: a polynomial of power 40", steep, "FT053", status="warn", words="leaves 5.8 full-rate steps", stages=STAGE)
    world.quiet("a polynomial of power 4", {**values, "train.lr_scheduler_kwargs": {"power": 4.0}}, stages=STAGE)
