"""What of `TrainingArguments` is not offered, and which options libraries do not know: refused before anything is made."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import fields
from inspect import signature

from torch.utils.checkpoint import checkpoint
from transformers.trainer_pt_utils import AcceleratorConfig

from ftcli.core.batches.order import ORDERS
from ftcli.errors import SettingsError
from ftcli.settings_train import REFUSED, TrainSettings


def refuse_unsupported(train: TrainSettings) -> None:
    """Raises `SettingsError`: a setting asks for what ftcli does not do, or names what a library does not know."""
    if train.label_smoothing_factor:
        raise SettingsError("train.label_smoothing_factor is not supported: the loss is plain cross-entropy", "Leave it out.")
    if train.average_tokens_across_devices is False:
        raise SettingsError(
            "train.average_tokens_across_devices = false would make the loss depend on the number of processes",
            "Remove it: the loss is the mean over all targets of a step.",
        )
    for name, reason in REFUSED.items():
        if getattr(train, name):
            raise SettingsError(f"train.{name} is not supported: {reason}", "Leave it out.")
    if train.save_only_model and train.on_nonfinite == "rollback":
        raise SettingsError(
            "train.on_nonfinite = rollback needs full checkpoints to go back to, but train.save_only_model saves only weights",
            "Leave one of them out.",
        )
    if train.dataloader_in_order is False:
        raise SettingsError("train.dataloader_in_order = false makes the order of batches random", "Leave it out.")
    if train.auto_batch and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingsError(
            "train.auto_batch works only in one process: with several, one that runs out of memory would block the others",
            "Halve --per-device-train-batch-size (or --max-tokens-per-batch) and double --gradient-accumulation-steps, which is equivalent.",
        )
    for name in ("split_batches", "dispatch_batches"):
        if (train.accelerator_config or {}).get(name):
            raise SettingsError(
                f"train.accelerator_config = {{'{name}': true}} is not supported: each process reads its own rows, "
                "train.per_device_train_batch_size at a time",
                "Leave it out.",
            )
    _refuse_compilers(train)
    recompute = set(signature(checkpoint).parameters) - {"function", "args", "kwargs"} | {"preserve_rng_state"}
    for name, library, known, example in (
        ("gradient_checkpointing_kwargs", "torch.utils.checkpoint", recompute, "use_reentrant"),
        ("activation_checkpointing_kwargs", "torch.utils.checkpoint", recompute, "use_reentrant"),
        ("accelerator_config", "accelerate", {field.name for field in fields(AcceleratorConfig)}, "even_batches"),
    ):
        if unknown := sorted(set(getattr(train, name) or {}) - known):
            raise SettingsError(
                f"train.{name} = {getattr(train, name)}: {library} takes no option {unknown[0]}",
                f"It takes {', '.join(sorted(known))}; for example --{name.replace('_', '-')} '{{\"{example}\": false}}'.",
            )
    if train.max_tokens_per_batch and train.dataloader_drop_last:
        raise SettingsError(
            "train.dataloader_drop_last has no effect with train.max_tokens_per_batch, which fills every batch",
            "Leave one of them out.",
        )
    if train.train_sampling_strategy not in {None, *ORDERS}:
        raise SettingsError(
            f"train.train_sampling_strategy = {train.train_sampling_strategy!r} is not supported", f"Use {', '.join(ORDERS)}."
        )


def _refuse_compilers(train: TrainSettings) -> None:
    """Names that torch's compiler does not know, which it would say in the middle of the run."""
    if not train.torch_compile and train.torch_compile is not None:
        return
    offered: dict[str, Sequence[str]] = {}
    if train.torch_compile_backend is not None:
        from accelerate.utils import DynamoBackend
        from torch._dynamo import list_backends

        known = list_backends(exclude_tags=()) if train.torch_compile == "auto" else [backend.value.lower() for backend in DynamoBackend]
        offered["torch_compile_backend"] = sorted(set(known) - {"no"})
    if train.torch_compile_mode is not None:
        from torch._inductor import list_mode_options

        offered["torch_compile_mode"] = sorted(list_mode_options())
    for name, names in offered.items():
        if (value := getattr(train, name)).lower() not in names:
            near = difflib.get_close_matches(value, names, n=1)
            raise SettingsError(
                f"train.{name} = {value!r} is not supported",
                f"Choose from: {', '.join(names)}.{f' Did you mean {near[0]}?' if near else ''}",
            )
