"""What of `TrainingArguments` a run refuses, without torch, so that quick checks can say it."""

from __future__ import annotations

import os

from ftcli.core.batches.order import ORDERS
from ftcli.errors import SettingsError
from ftcli.settings_train import REFUSED, TrainSettings


def refuse_settings(train: TrainSettings) -> None:
    """Raises `SettingsError`: a setting asks for what ftcli does not do, or two of them contradict each other."""
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
