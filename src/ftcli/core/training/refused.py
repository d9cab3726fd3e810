"""What of `TrainingArguments` a run refuses, without torch, so that quick checks can say it."""

from __future__ import annotations

import importlib.util
import os
import re

from ftcli.core.batches.order import ORDERS
from ftcli.errors import MissingExtraError, SettingsError
from ftcli.settings import Settings
from ftcli.settings_train import REFUSED

OPTIMIZERS = {
    "galore_.*": "galore_torch",
    "apollo_.*": "apollo_torch",
    "schedule_free_.*": "schedulefree",
    "lomo|adalomo": "lomo_optim",
    "grokadamw": "grokadamw",
    "stable_adamw": "optimi",
    "adamw_torch_[48]bit": "torchao",
    "adamw_torch_xla": "torch_xla",
    "adamw_torch_npu_fused": "torch_npu",
    "adamw_anyprecision": "torchdistx",
    ".*_(8bit|32bit|bnb)|ademamix": "bitsandbytes",
}
"""Which module transformers takes an optimizer from; the first that fits."""
ATTENTIONS = {
    "flash_attention_2": ("flash_attn", "kernels", "torch_npu"),
    "flash_attention_3": ("flash_attn_interface", "kernels"),
    "flash_attention_4": ("flash_attn", "kernels"),
}
"""Modules of which transformers needs one."""
PIP = {
    "optimi": "torch-optimi",
    "torchdistx": "git+https://github.com/pytorch/torchdistx",
    "flash_attn_interface": "flash-attn-3",
}
"""What to install where it is not the module's own name."""


def refuse_settings(settings: Settings) -> None:
    """
    Raises:
        SettingsError: a setting asks for what ftcli does not do, or two of them contradict each other.
        MissingExtraError: the optimizer or the attention needs a package that is not installed.
    """
    train = settings.train
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
    if train.max_tokens_per_batch and train.dataloader_drop_last:
        raise SettingsError(
            "train.dataloader_drop_last has no effect with train.max_tokens_per_batch, which fills every batch",
            "Leave one of them out.",
        )
    if train.train_sampling_strategy not in {None, *ORDERS}:
        raise SettingsError(
            f"train.train_sampling_strategy = {train.train_sampling_strategy!r} is not supported", f"Use {', '.join(ORDERS)}."
        )
    _refuse_missing(settings)


def _refuse_missing(settings: Settings) -> None:
    """Only what transformers would refuse for certain: what else a package needs, a version or a device, it says itself."""
    optim, attention = settings.train.optim, settings.model.attn_implementation or ""
    module = next((module for names, module in OPTIMIZERS.items() if re.fullmatch(names, optim)), None)
    if module is not None and not _installed(module):
        raise MissingExtraError(
            f"train.optim = {optim} needs the package {module}, which is not installed",
            f"pip install {PIP.get(module, module.replace('_', '-'))}, or choose another one (--optim adamw_torch_fused).",
        )
    if (modules := ATTENTIONS.get(attention)) and not any(map(_installed, modules)):
        raise MissingExtraError(
            f"model.attn_implementation = {attention} needs the package {modules[0]}, which is not installed",
            f"pip install {PIP.get(modules[0], modules[0].replace('_', '-'))}, or pip install kernels; "
            "or set model.attn_implementation to sdpa or eager, or leave it unset.",
        )


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
