"""`TrainingArguments` from settings: every field under its own name, automatic choices with their reasons."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any

import torch
from transformers import SchedulerType, Trainer, TrainingArguments
from transformers.utils import is_liger_kernel_available

from ftcli.context import Context
from ftcli.core.distributed import group
from ftcli.core.distributed.sharding import sharding
from ftcli.core.models.held_out import FALLING
from ftcli.core.training.optimizer import made_of, refuse_ignored
from ftcli.core.training.schedule import UNWARMED, Schedule
from ftcli.core.training.unsupported_arguments import refuse_unsupported
from ftcli.errors import MissingExtraError, SettingsError, UsageError
from ftcli.masking import masked_values
from ftcli.settings_train import OWN

COMPILING = ("torch_compile", "torch_compile_backend", "torch_compile_mode")
ELSEWHERE = OWN | {
    "output_dir",
    "resume_from_checkpoint",
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
    "train_sampling_strategy",
    "fsdp",
    "fsdp_config",
    "deepspeed",
    *COMPILING,
}
"""Set fields of `train` that get special treatment below or in `ftcli.core.training.train`."""
HUB = ("hub_model_id", "hub_private_repo", "hub_strategy", "hub_always_push", "hub_revision")
UNREAD = {
    **dict.fromkeys(
        ("prediction_loss_only", "include_for_metrics", "batch_eval_metrics", "eval_do_concat_batches"),
        "an evaluation keeps running sums for its metrics, not predictions",
    ),
    "activation_checkpointing_kwargs": "train.activation_checkpointing is off",
    "liger_kernel_config": "train.use_liger_kernel is off",
    **dict.fromkeys(HUB, "train.push_to_hub is off, and nothing is uploaded"),
}
"""Settings that change nothing, and why."""
DEFAULTS = {field.name: field.default for field in fields(TrainingArguments)}
NEEDS = {
    "activation_checkpointing_kwargs": "activation_checkpointing",
    "liger_kernel_config": "use_liger_kernel",
    **dict.fromkeys(HUB, "push_to_hub"),
}
PACKAGES = {"tensorboard": ("tensorboard",), "azure_ml": ("azureml",), "comet_ml": ("comet_ml",), "dvclive": ("dvclive",)}
"""Import name of a tracker's library where it is not the tracker's own name."""
PIP = {"azureml": "azureml-mlflow", "comet_ml": "comet-ml"}


WHOLE = re.compile(r"--(?P<name>\w+) must be an integer if bigger than 1: (?P<value>\S+)")
UNLISTED = re.compile(r"(?P<value>.+) is not a valid \w+, please select one of \[(?P<offered>.+)\]")
"""How transformers refuses a value of an enumeration; it does not say which setting has it."""
LIGER_LOSSES = "cross_entropy", "fused_linear_cross_entropy"


def make_arguments(context: Context, *, held_out: bool) -> TrainingArguments:
    """The run's arguments.

    Args:
        held_out: whether there is a split to evaluate on.

    Raises:
        SettingsError: values contradict each other or the device.
        MissingExtraError: the library of a tracker, of the optimizer or of the attention is not installed.
    """
    settings = context.settings
    train, loader = settings.train, settings.loader
    if train.output_dir is None:
        raise UsageError("no output: --output-dir is missing", "Name a directory for checkpoints, the model and the report.")
    refuse_unsupported(settings)
    on_gpu = torch.cuda.is_available() and not train.use_cpu
    values = {name: value for name, value in train.model_dump().items() if value is not None and name not in ELSEWHERE}
    values |= _precision(context, on_gpu=on_gpu) | _evaluation(context, held_out=held_out)
    if not on_gpu and not torch.backends.mps.is_available():
        values["use_cpu"] = True
    if train.torch_compile not in {"auto", False}:  # transformers takes a backend or a mode for a wish to compile
        values |= {name: value for name in COMPILING if (value := getattr(train, name)) is not None}
    values |= sharding(train, on_gpu=on_gpu, ranks=group.world())
    if values.get("use_cpu"):
        group.join(train.ddp_timeout, train.ddp_backend)
    if train.gradient_checkpointing is not None:
        values.setdefault("activation_checkpointing", train.gradient_checkpointing)
    if train.gradient_checkpointing_kwargs is not None:
        values.setdefault("activation_checkpointing_kwargs", train.gradient_checkpointing_kwargs)
    if loader.num_workers:
        values |= {"dataloader_prefetch_factor": loader.prefetch_factor, "dataloader_persistent_workers": loader.persistent_workers}
    elif loader.prefetch_factor or loader.persistent_workers:
        context.note("loader.prefetch_factor and loader.persistent_workers have no effect: loader.num_workers is 0")
    if not loader.num_workers and values.pop("dataloader_multiprocessing_context", None):
        context.note("train.dataloader_multiprocessing_context has no effect: loader.num_workers is 0")
    if group.world() == 1 and values.pop("ddp_backend", None):
        context.note("train.ddp_backend has no effect: there is one process")
    for name, why in UNREAD.items():
        if values.get(name) not in (DEFAULTS[name], None, []) and not values.get(NEEDS.get(name, "")):
            context.note(f"train.{name} has no effect: {why}")
    defaults = {"logging_first_step": True, "logging_nan_inf_filter": False}
    for what in ("save", "eval"):
        steps, strategy = getattr(train, f"{what}_steps"), values[f"{what}_strategy"]
        if steps is not None and strategy != "steps":
            context.note(f"train.{what}_steps = {steps:g} has no effect: train.{what}_strategy = {strategy}")
    trackers(settings.tracking.report_to)
    fixed: dict[str, Any] = {
        "output_dir": str(train.output_dir),
        "report_to": [],  # `ftcli.core.training.trackers` tells them, so that none can end the run
        "run_name": masked_values(settings.tracking.run_name),  # trackers show it, training_args.bin keeps it
        "dataloader_num_workers": loader.num_workers,
        "dataloader_pin_memory": loader.pin_memory and on_gpu,
        "remove_unused_columns": False,
        "disable_tqdm": True,
    }
    if fixed["dataloader_pin_memory"]:  # a batch on its way need not end before the host goes on
        fixed["accelerator_config"] = {"non_blocking": True, **(train.accelerator_config or {})}
    if train.use_liger_kernel and not is_liger_kernel_available():
        raise MissingExtraError(
            "train.use_liger_kernel needs the package liger-kernel, which is not installed", "pip install liger-kernel, or leave it out."
        )
    if train.use_liger_kernel:  # the loss is ours; liger's looks for a language model's head in a classifier
        fixed["liger_kernel_config"] = {**dict.fromkeys(LIGER_LOSSES, False), **(train.liger_kernel_config or {})}
    try:
        arguments = TrainingArguments(**{**defaults, **values, **fixed})
    except Exception as error:
        raise _refused(" ".join(str(error).split()), values) from error
    _follow_plateaus(context, arguments)
    _refuse_what_cannot_be_made(arguments)
    if arguments.n_gpu > 1:
        context.note(f"{arguments.n_gpu} GPUs are visible, but one process uses only the first; --nproc-per-node auto uses all")
        arguments._n_gpu = 1
    return arguments


@contextmanager
def changed(arguments: TrainingArguments, **values: Any) -> Iterator[None]:
    """Inside, they have other values."""
    before = {name: getattr(arguments, name) for name in values}
    try:
        for name, value in values.items():
            setattr(arguments, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(arguments, name, value)


def _refused(words: str, values: Mapping[str, Any]) -> SettingsError:
    """What transformers says of the settings, by the setting's name where it only knows the value."""
    if told := WHOLE.fullmatch(words):
        return SettingsError(
            f"train.{told['name']} = {told['value']} is neither a number of steps nor a share of the run",
            "Give whole steps (100), or a share of the run under 1 (0.05).",
        )
    told = UNLISTED.fullmatch(words)
    name = next((name for name, value in values.items() if told and value == told["value"]), None)
    if told is None or name is None:
        return SettingsError(f"transformers rejects these train settings: {words}", "See: ftcli settings")
    offered = re.findall(r"'([^']+)'", told["offered"])
    near = difflib.get_close_matches(told["value"], offered, n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return SettingsError(f"train.{name} = {told['value']!r} is not supported", f"Choose from: {', '.join(offered)}.{meant}")


def trackers(names: list[str] | None) -> list[str]:
    """The wanted trackers, proved importable. Raises `MissingExtraError` with the pip command, or `SettingsError` for an unknown one."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    wanted = [name for name in names or [] if name != "none"]
    for name in wanted:
        if name not in INTEGRATION_TO_CALLBACK:
            near = difflib.get_close_matches(name, sorted(INTEGRATION_TO_CALLBACK), n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise SettingsError(
                f"tracking.report_to = {name!r}: no such tracker", f"Choose from: {', '.join(sorted(INTEGRATION_TO_CALLBACK))}.{meant}"
            )
        for package in PACKAGES.get(name, (name,)):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(f"--report-to {name} needs the package {package}", f"Run: pip install {PIP.get(package, package)}")
    return wanted


def bf16_choice(context: Context, *, on_gpu: bool) -> tuple[bool, str]:
    """Whether bfloat16 pays on the device, and why."""
    if on_gpu:
        capability = torch.cuda.get_device_capability()
        return capability >= (8, 0), f"the GPU has capability {capability[0]}.{capability[1]}, bfloat16 needs 8.0"
    flags = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in context.machine.cpu_flags]
    return bool(flags), f"the CPU has {flags[0]}" if flags else "the CPU has neither avx512_bf16 nor amx_bf16"


def _precision(context: Context, *, on_gpu: bool) -> dict[str, bool]:
    train = context.settings.train
    if not on_gpu and (train.fp16 or train.fp16_full_eval or context.settings.model.dtype == "float16"):
        raise SettingsError("float16 on a CPU is 30 to 100 times slower than float32", "Use --bf16, or let ftcli choose the precision.")
    if train.bf16 is not None or train.fp16:
        return {"bf16": bool(train.bf16)}
    chosen, reason = bf16_choice(context, on_gpu=on_gpu)
    words = "bfloat16 autocast with float32 weights" if chosen else "float32"
    if (weights := context.settings.model.dtype) in {"bfloat16", "float16"}:
        words = f"{'bfloat16 autocast with' if chosen else 'no autocast,'} weights in {weights}"
    context.note(f"{words}: {reason}")
    return {"bf16": chosen}


def _evaluation(context: Context, *, held_out: bool) -> dict[str, Any]:
    train = context.settings.train
    values = train.cadence(held_out=held_out)
    strategy = values["eval_strategy"]
    if strategy != "no" and not held_out:
        raise SettingsError(
            f"train.{'eval_strategy' if train.eval_strategy else 'eval_steps'} = {train.eval_strategy or train.eval_steps}, but the prepared data have no validation or test split",
            "Prepare them with --validation-fraction 0.05, or leave the strategy unset.",
        )
    if (train.patience or train.load_best_model_at_end or train.save_strategy == "best") and train.metric_for_best_model is None:
        values["metric_for_best_model"] = "eval_loss"
    if train.greater_is_better is None and _bare(train.metric_for_best_model) in FALLING:  # transformers: whatever does not end with "loss"
        values["greater_is_better"] = False
    if strategy == "no" and (train.patience or train.load_best_model_at_end or train.save_strategy == "best"):
        raise SettingsError(
            "train.patience, load_best_model_at_end and save_strategy = best need evaluations",
            "Set --eval-strategy epoch." if held_out else "The data have no held-out rows: prepare them with --validation-fraction 0.05.",
        )
    return values


def check_metric(metric: str | None, figures: Sequence[str]) -> None:
    """Raises `SettingsError` where no evaluation of the task has the figure by which the best model is found."""
    asked = _bare(metric)
    if asked is None or asked in figures:
        return
    near = next((name for name in figures if asked.lower() in name), None) or next(
        iter(difflib.get_close_matches(asked, figures, n=1)), None
    )
    meant = f" Did you mean {near}?" if near else ""
    raise SettingsError(
        f"train.metric_for_best_model = {metric!r}: the evaluations of this run have no such metric",
        f"Choose from: {', '.join(figures)}.{meant}",
    )


def _bare(metric: str | None) -> str | None:
    return metric and metric.removeprefix("eval_")


def _follow_plateaus(context: Context, arguments: TrainingArguments) -> None:
    """Schedules that follow a figure are told which way is better: torch takes every one for a loss. Those without a warm-up are named."""
    kind, kwargs = str(arguments.lr_scheduler_type.value), arguments.lr_scheduler_kwargs or {}
    follows = arguments.lr_scheduler_type in (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
    if follows and arguments.greater_is_better and "mode" not in kwargs:
        arguments.lr_scheduler_kwargs = {**kwargs, "mode": "max"}
    if arguments.warmup_steps and kind in UNWARMED:
        context.note(f"the schedule {kind} has no warm-up: warmup_steps = {arguments.warmup_steps:g} has no effect")


def _refuse_what_cannot_be_made(arguments: TrainingArguments) -> None:
    """What a Trainer would find out when the run's folder is begun already."""
    with made_of(arguments, "optim"):
        refuse_ignored(arguments)
    with made_of(arguments, "optim"), suppress(TypeError, ValueError):  # some need the model to say more
        Trainer.get_optimizer_cls_and_kwargs(arguments)
    kind = str(arguments.lr_scheduler_type.value)
    with made_of(arguments, "lr_scheduler_type"):
        if refused := Schedule(1, 0, kind, arguments.lr_scheduler_kwargs or {}, arguments.learning_rate).refused:
            raise ValueError(refused)
