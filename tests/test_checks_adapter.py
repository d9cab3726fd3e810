"""What is verified is what will be trained: LoRA on a frozen base, the head alone, an adapter that is gone on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from verifying import World

STAGES = ("settings", "batch", "model", "steps")


def _run(world: World, kind: str, **changes: Any) -> dict[str, Any]:
    """A healthy run on weights of a folder."""
    folder = world.folder / f"{kind}-weights"
    if not folder.exists():
        values = json.loads(world.config("qwen3").read_text())
        torch.manual_seed(0)
        made = AutoModelForCausalLM if kind == "pretrain" else AutoModelForSequenceClassification
        made.from_config(AutoConfig.for_model(**values, num_labels=4)).save_pretrained(folder)
    return {**world.run(kind), "model.name_or_path": str(folder), "train.learning_rate": 1e-3, **changes}


@pytest.mark.parametrize("how", [{"model.lora_r": 4}, {"model.freeze_backbone": True}, {"model.lora_r": 4, "model.dtype": "bfloat16"}])
def test_a_part_of_the_weights_is_verified_as_it_is_trained(world: World, how: dict[str, Any]) -> None:
    checks = world.quiet(f"{how}", _run(world, "classify", **how), stages=STAGES)
    assert 0 < checks["FT405"].evidence["trained_share"] < 0.5
    assert "the others are frozen" in checks["FT405"].summary
    assert checks["FT503"].evidence["dtype"] == "float32"


@pytest.mark.parametrize("how", ["model.lora_r", "model.freeze_backbone"])
def test_what_checkpoints_ask_of_frozen_embeddings_is_no_tensor_that_the_optimizer_lacks(world: World, how: str) -> None:
    """Their output wants a gradient then, and was said to be one."""
    values = _run(world, "classify", **{how: 4 if how == "model.lora_r" else True, "train.gradient_checkpointing": True})
    check = world.verify(values, stages=("steps",), select=("FT504",))["FT504"]
    assert check.status == "pass", check


def test_lora_on_a_language_model_is_quiet_but_for_what_its_weights_know(world: World) -> None:
    checks = world.verify(_run(world, "pretrain", **{"model.lora_r": 4}), stages=STAGES)
    assert {name for name, check in checks.items() if check.status in {"warn", "fail", "error"}} == {
        "FT403"
    }  # the base has learned nothing


@pytest.mark.parametrize(
    ("what", "values", "check", "words"),
    [
        ("layers that the model has not", {"model.lora_target_modules": ["nothing"]}, "FT403", "LoRA cannot be put into"),
        ("dropout of 0.95", {"model.lora_dropout": 0.95}, "FT416", "drops 95%"),
    ],
)
def test_settings_of_lora_that_learn_nothing_fail(world: World, what: str, values: dict[str, Any], check: str, words: str) -> None:
    world.caught(f"O1: LoRA with {what}", _run(world, "classify", **{"model.lora_r": 4}, **values), check, words=words, stages=("model",))


def test_an_adapter_that_is_gone_on_from_is_loaded(world: World, tmp_path: Path) -> None:
    from peft import LoraConfig, TaskType, get_peft_model

    values = _run(world, "classify")
    base = AutoModelForSequenceClassification.from_pretrained(values["model.name_or_path"])
    adapter = get_peft_model(base, LoraConfig(r=4, task_type=TaskType.SEQ_CLS, modules_to_save=["score"], target_modules=["q_proj"]))
    with torch.no_grad():
        adapter.base_model.model.score.modules_to_save["default"].weight.fill_(float("nan"))
    adapter.save_pretrained(tmp_path / "adapter")
    broken = {**values, "model.name_or_path": str(tmp_path / "adapter")}
    world.caught("O1: an adapter whose head is no number", broken, "FT404", words="not finite", stages=("model",))
