"""Settings to TrainingArguments: every field arrives, automatic choices are said, impossible ones refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import TrainingArguments

from ftcli.context import Context
from ftcli.core.batches.tasks import Classify, Pretrain, Regress
from ftcli.core.models.held_out import HeldOut, figures_of
from ftcli.core.storage.store import SplitData
from ftcli.core.training import arguments as arguments_module
from ftcli.core.training.arguments import bf16_choice, check_metric, make_arguments, trackers
from ftcli.errors import FtcliError, MissingExtraError, SettingsError, UsageError
from ftcli.settings_train import OWN, TrainSettings
from stores import context

OTHER_VALUES: dict[str, Any] = {
    "lr_scheduler_type": "cosine",
    "optim": "sgd",
    "eval_strategy": "steps",
    "save_strategy": "steps",
    "logging_strategy": "epoch",
    "log_level": "error",
    "log_level_replica": "error",
    "hub_strategy": "end",
    "include_num_input_tokens_seen": "all",
    "fsdp": None,  # needs several processes
    "fsdp_config": None,
    "deepspeed": None,  # needs the package
    "debug": None,  # refused
    "optim_target_modules": None,  # needs an optimizer that reads it, and its package
    "tf32": None,  # needs a GPU
    "fp16": None,  # needs a GPU
    "fp16_full_eval": None,
    "torch_compile": None,
    "torch_compile_backend": None,
    "torch_compile_mode": None,
    "accelerator_config": None,  # converted
    "label_smoothing_factor": None,  # refused
    "average_tokens_across_devices": True,
    "train_sampling_strategy": None,  # ours
    "load_best_model_at_end": None,  # contradicts the other values
    "gradient_checkpointing_kwargs": None,
    "activation_checkpointing_kwargs": {"use_reentrant": False},
    "liger_kernel_config": {"rope": True},
    "lr_scheduler_kwargs": {"num_cycles": 2},
    "use_liger_kernel": None,  # needs the package
    "torch_empty_cache_steps": 3,
    "data_seed": 5,
    "bf16_full_eval": None,
    "dataloader_multiprocessing_context": "spawn",
    "trackio_bucket_id": "x",
    "ddp_backend": None,  # needs several processes
    "use_cpu": True,
    "push_to_hub": False,
    "enable_jit_checkpoint": False,
    "optim_args": "momentum=0.9",
    "auto_find_batch_size": None,  # refused
    "ignore_data_skip": None,  # refused
    "dataloader_in_order": None,  # refused
    "gradient_checkpointing": True,
    "activation_checkpointing": None,
}


def _context(tmp_path: Path, **values: Any) -> Context:
    return context(**{"train__output_dir": tmp_path / "out", **values})


def _other(name: str) -> Any:
    """A value that is not the field's default."""
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    field = {field.name: field for field in dataclasses.fields(TrainingArguments)}[name]
    now = getattr(TrainingArguments(output_dir="x", use_cpu=True), name)
    kind = str(field.type)
    if isinstance(now, bool) or "bool" in kind:
        return not now
    if isinstance(now, float) or "float" in kind:
        return 0.5
    if isinstance(now, int) or "int" in kind:
        return (now or 0) + 7
    if "list" in kind:
        return ["loss"]
    return "something"


NOT_HERE = {name for name, value in OTHER_VALUES.items() if value is None}
PASSED_ON = sorted(set(TrainSettings.model_fields) - OWN - NOT_HERE - {"output_dir", "resume_from_checkpoint"})


@pytest.mark.parametrize("name", PASSED_ON)
def test_every_field_arrives_under_its_own_name(tmp_path: Path, name: str) -> None:
    value = _other(name)
    takes_it = {
        "lr_scheduler_kwargs": {"train__lr_scheduler_type": "cosine"},
        "optim_args": {"train__optim": "sgd"},
        "dataloader_multiprocessing_context": {"loader__num_workers": 1},
    }.get(name, {})
    arguments = make_arguments(_context(tmp_path, **{f"train__{name}": value, **takes_it}), held_out=True)
    assert getattr(arguments, name) == value


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"train__prediction_loss_only": True}, "train.prediction_loss_only has no effect"),
        ({"train__liger_kernel_config": {"rope": True}}, "train.liger_kernel_config has no effect: train.use_liger_kernel is off"),
        ({"train__activation_checkpointing_kwargs": {"use_reentrant": False}}, "train.activation_checkpointing_kwargs has no effect"),
        ({"train__dataloader_multiprocessing_context": "spawn"}, "train.dataloader_multiprocessing_context has no effect"),
        ({"train__eval_do_concat_batches": False}, "train.eval_do_concat_batches has no effect"),
        ({"train__ddp_backend": "bogus"}, "train.ddp_backend has no effect: there is one process"),
        ({"train__hub_model_id": "me/mine"}, "train.hub_model_id has no effect: train.push_to_hub is off"),
    ],
)
def test_a_setting_that_changes_nothing_is_noted(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    asked = _context(tmp_path, **values)
    make_arguments(asked, held_out=True)
    assert any(words in note for note in asked.notes)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"train__optim_target_modules": ["all-linear"]}, "does not read train.optim_target_modules"),
        ({"train__use_liger_kernel": True}, "needs the package liger-kernel"),
        ({"train__seed": -1}, "train.seed = -1"),
        ({"train__data_seed": 2**32}, "train.data_seed"),
        ({"train__log_level": "bogus"}, "train.log_level = 'bogus'"),
        ({"train__eval_accumulation_steps": 0}, "train.eval_accumulation_steps = 0"),
        ({"train__logging_steps": 1.5}, "train.logging_steps = 1.5 is neither a number of steps nor a share"),
        ({"train__debug": "underflow_overflow"}, "train.debug is not supported"),
        ({"train__accelerator_config": {"split_batches": True}}, "'split_batches': true} is not supported"),
        ({"train__torch_compile": True, "train__torch_compile_backend": "inducter"}, "train.torch_compile_backend = 'inducter'"),
        ({"train__torch_compile": "auto", "train__torch_compile_backend": "inducter"}, "train.torch_compile_backend = 'inducter'"),
        ({"train__torch_compile_mode": "max"}, "train.torch_compile_mode = 'max' is not supported"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(FtcliError, match=re.escape(words)):
        make_arguments(_context(tmp_path, **values), held_out=True)


def test_the_defaults_that_are_ours(tmp_path: Path) -> None:
    arguments = make_arguments(_context(tmp_path), held_out=True)
    assert (arguments.eval_strategy, arguments.save_strategy) == ("epoch", "epoch")
    assert arguments.logging_first_step
    assert not arguments.logging_nan_inf_filter
    assert not arguments.remove_unused_columns
    assert arguments.disable_tqdm
    assert arguments.report_to == []
    assert arguments.use_cpu == (not torch.cuda.is_available())
    assert make_arguments(_context(tmp_path), held_out=False).eval_strategy == "no"


@pytest.mark.parametrize(
    ("metric", "greater", "expected"),
    [(name, None, False) for name in ("loss", "eval_loss", "perplexity", "eval_perplexity", "rmse", "eval_rmse")]
    + [("accuracy", None, True), ("eval_pearson", None, True), ("rmse", True, True)],
)
def test_the_best_model_is_that_of_the_lowest_error(tmp_path: Path, metric: str, greater: bool | None, expected: bool) -> None:
    """transformers takes whatever does not end with "loss" for better the greater it is, and kept the model of the worst perplexity."""
    values = {"train__metric_for_best_model": metric, "train__greater_is_better": greater}
    assert make_arguments(_context(tmp_path, **values), held_out=True).greater_is_better is expected


@pytest.mark.parametrize(
    ("metric", "figures", "hint"),
    [
        ("f1", ("loss", "accuracy", "macro_f1"), "Choose from: loss, accuracy, macro_f1. Did you mean macro_f1?"),
        ("eval_acuracy", ("loss", "accuracy"), "Did you mean accuracy?"),
        ("bleu", ("loss", "perplexity"), "Choose from: loss, perplexity."),
    ],
)
def test_a_figure_that_no_evaluation_has_is_refused_as_the_best_ones(metric: str, figures: tuple[str, ...], hint: str) -> None:
    with pytest.raises(SettingsError, match=metric) as refused:
        check_metric(metric, figures)
    assert refused.value.hint.endswith(hint)
    for known in (None, figures[0], f"eval_{figures[1]}"):
        check_metric(known, figures)


@pytest.mark.parametrize(
    ("task", "logits", "labels", "split"),
    [
        (Classify(), torch.ones(2, 3), torch.tensor([0, 1]), {"flags": None, "numbers": None}),
        (Classify(), torch.ones(2, 3), torch.ones(2, 3), {"flags": 1, "numbers": None}),
        (Regress(), torch.ones(2, 1), torch.tensor([0.0, 1.0]), {"flags": None, "numbers": 1}),
        (Pretrain(), torch.ones(2, 4, 8), torch.ones(2, 4, dtype=torch.int64), {"flags": None, "numbers": None}),
    ],
)
def test_the_figures_that_a_run_has_are_those_of_its_evaluation(task: Any, logits: torch.Tensor, labels: torch.Tensor, split: Any) -> None:
    evaluated = HeldOut(task)
    evaluated.add(logits, labels)
    found = set(evaluated.metrics(lambda sums: sums))
    assert set(figures_of(task, cast("SplitData", SimpleNamespace(**split)))) == found
    assert found <= set(figures_of(task)) <= set(figures_of(None))


@pytest.mark.parametrize(("wanted", "whole"), [(None, False), (True, True), (False, False), ("auto", False)])
def test_transformers_compiles_the_whole_model_only_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any, whole: bool
) -> None:
    for name in ("ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_DYNAMO_MODE"):
        monkeypatch.setenv(name, "")  # transformers sets them
    mode = {} if wanted is None else {"train__torch_compile_backend": "eager", "train__torch_compile_mode": "default"}
    arguments = make_arguments(_context(tmp_path, train__torch_compile=wanted, **mode), held_out=False)
    assert arguments.torch_compile is whole
    assert arguments.torch_compile_backend == ("eager" if whole else None)


def test_bf16_is_chosen_by_what_the_cpu_has_and_the_reason_is_said(tmp_path: Path) -> None:
    for flags, chosen in (((), False), (("avx2", "avx512_bf16"), True), (("amx_bf16",), True)):
        run = _context(tmp_path, train__bf16=None, train__use_cpu=True)
        run.machine = dataclasses.replace(run.machine, cpu_flags=flags)
        assert make_arguments(run, held_out=False).bf16 is chosen
        assert any("bf16" in note for note in run.notes)
        assert bf16_choice(run, on_gpu=False)[0] is chosen


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train__fp16": True}, "float16 on a CPU"),
        ({"model__dtype": "float16"}, "float16 on a CPU"),
        ({"train__eval_strategy": "epoch"}, "no validation or test split"),
        ({"train__eval_steps": 5}, "train.eval_steps = 5.*no validation or test split"),
        ({"train__patience": 2}, "need evaluations"),
        ({"train__label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        ({"train__average_tokens_across_devices": False}, "average_tokens_across_devices"),
        ({"train__train_sampling_strategy": "batch_rebalance"}, "batch_rebalance"),
        ({"train__train_sampling_strategy": "sorted"}, "sorted"),
        ({"train__optim": "no_such"}, "train.optim = 'no_such' is not supported"),
        ({"train__save_strategy": "steps", "train__save_steps": 1.5}, "save_steps"),
        ({"tracking__report_to": ["no_such"]}, "no such tracker"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    if torch.cuda.is_available():
        values = {**values, "train__use_cpu": True}
    with pytest.raises(SettingsError, match=message):
        make_arguments(_context(tmp_path, **values), held_out=False)


def test_a_tracker_is_proposed_for_a_name_like_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        make_arguments(_context(tmp_path, train__use_cpu=True, tracking__report_to=["wanb"]), held_out=False)
    assert refused.value.hint.endswith("Did you mean 'wandb'?")


@pytest.mark.parametrize(
    ("values", "evaluations", "checkpoints"),
    [
        ({}, ("epoch", None), ("epoch", None)),
        ({"save_steps": 4}, ("epoch", None), ("steps", 4)),
        ({"eval_steps": 3}, ("steps", 3), ("epoch", None)),
        ({"save_strategy": "steps"}, ("epoch", None), ("steps", 500)),
        ({"eval_steps": 3, "load_best_model_at_end": True}, ("steps", 3), ("steps", 3)),
        ({"save_steps": 4, "load_best_model_at_end": True}, ("steps", 4), ("steps", 4)),
        ({"eval_steps": 3, "save_steps": 6, "load_best_model_at_end": True}, ("steps", 3), ("steps", 6)),
    ],
)
def test_a_number_of_steps_is_a_wish_for_steps(
    tmp_path: Path, values: dict[str, Any], evaluations: tuple[str, float | None], checkpoints: tuple[str, float | None]
) -> None:
    """`--save-steps 4` alone saved each epoch silently."""
    arguments = make_arguments(_context(tmp_path, **{f"train__{name}": value for name, value in values.items()}), held_out=True)
    assert (arguments.eval_strategy, arguments.save_strategy) == (evaluations[0], checkpoints[0])
    assert evaluations[1] in {None, arguments.eval_steps}
    assert checkpoints[1] in {None, arguments.save_steps}


def test_a_number_of_steps_that_is_not_used_is_said(tmp_path: Path) -> None:
    run = _context(tmp_path, train__save_strategy="epoch", train__save_steps=4)
    make_arguments(run, held_out=False)
    assert "train.save_steps = 4 has no effect: train.save_strategy = epoch" in run.notes


def test_an_output_folder_is_needed() -> None:
    with pytest.raises(UsageError, match="--output-dir is missing"):
        make_arguments(context(), held_out=False)


def test_patience_watches_the_held_out_loss(tmp_path: Path) -> None:
    arguments = make_arguments(_context(tmp_path, train__patience=2), held_out=True)
    assert arguments.metric_for_best_model == "eval_loss"
    assert not arguments.greater_is_better


def test_a_tracker_that_is_not_installed_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as refused:
        trackers(["azure_ml"])
    assert refused.value.hint == "Run: pip install azureml-mlflow"
    with pytest.raises(MissingExtraError) as refused:
        trackers(["wandb"])
    assert refused.value.hint == "Run: pip install wandb"
    assert trackers(["none"]) == trackers(None) == []


def test_loader_settings_without_workers_are_said_to_have_no_effect(tmp_path: Path) -> None:
    run = _context(tmp_path, loader__prefetch_factor=4, loader__persistent_workers=True)
    arguments = make_arguments(run, held_out=False)
    assert arguments.dataloader_prefetch_factor is None
    assert any("no effect" in note for note in run.notes)
    arguments = make_arguments(_context(tmp_path, loader__num_workers=2, loader__prefetch_factor=4), held_out=False)
    assert (arguments.dataloader_num_workers, arguments.dataloader_prefetch_factor) == (2, 4)


def test_what_transformers_refuses_is_an_error_for_people(tmp_path: Path) -> None:
    with pytest.raises(FtcliError, match="transformers rejects"):
        make_arguments(_context(tmp_path, train__load_best_model_at_end=True, train__eval_strategy="steps"), held_out=True)


def test_a_batch_on_its_way_to_a_gpu_does_not_hold_the_host_and_liger_leaves_the_loss_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(arguments_module, "TrainingArguments", lambda **values: (made.update(values), SimpleNamespace(n_gpu=1))[1])
    monkeypatch.setattr(arguments_module, "_refuse_what_cannot_be_made", lambda _: None)
    monkeypatch.setattr(arguments_module, "_follow_plateaus", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(arguments_module, "is_liger_kernel_available", lambda: True)
    wish = {"train__use_cpu": None, "train__use_liger_kernel": True, "train__bf16": True}
    make_arguments(_context(tmp_path, **wish), held_out=False)
    assert made["accelerator_config"] == {"non_blocking": True}
    assert made["liger_kernel_config"] == {"cross_entropy": False, "fused_linear_cross_entropy": False}
    own = {"train__accelerator_config": {"non_blocking": False}, "train__liger_kernel_config": {"cross_entropy": True, "rope": False}}
    make_arguments(_context(tmp_path, **wish, **own), held_out=False)
    assert made["accelerator_config"] == {"non_blocking": False}
    assert made["liger_kernel_config"] == {"cross_entropy": True, "fused_linear_cross_entropy": False, "rope": False}
    made.clear()
    make_arguments(_context(tmp_path, **wish, loader__pin_memory=False), held_out=False)
    assert "accelerator_config" not in made  # from pageable memory the copy waits anyway
