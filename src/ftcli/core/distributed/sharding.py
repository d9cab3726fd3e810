"""FSDP and DeepSpeed: handed on to transformers, refused where they cannot work."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch

from ftcli.errors import MissingExtraError, SettingsError
from ftcli.settings_train import TrainSettings

ON = {"": True, "true": True, "full_shard": True, "false": False}
"""Words for `--fsdp`; other ones are strategies of older transformers, which it still takes."""


def sharding(train: TrainSettings, *, on_gpu: bool, ranks: int) -> dict[str, Any]:
    """The arguments of TrainingArguments.

    Raises:
        SettingsError: CPUs, a single process, both at once, or a file that cannot be read; says what to do.
        MissingExtraError: DeepSpeed is not installed.
    """
    fsdp: bool | str | None = None if train.fsdp is None else ON.get(train.fsdp.strip().lower(), train.fsdp)
    wanted = {"fsdp": fsdp, "deepspeed": train.deepspeed}
    chosen = [name for name, value in wanted.items() if value]
    if len(chosen) > 1:
        raise SettingsError("train.fsdp and train.deepspeed are both set", "Choose one: both divide the weights among the ranks.")
    if not chosen:
        if train.fsdp_config is not None:
            raise SettingsError("train.fsdp_config is set, and train.fsdp is not", "Add --fsdp full_shard.")
        return {}
    name = chosen[0]
    if name == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        raise MissingExtraError("--deepspeed needs the package deepspeed", "Run: pip install 'ftcli[deepspeed]'")
    if not on_gpu:
        raise SettingsError(
            f"train.{name} is set, but the run is on CPUs: it divides the weights among GPUs",
            "Leave it out: --nproc-per-node alone works here.",
        )
    if ranks == 1 and name == "fsdp":
        raise SettingsError("train.fsdp is set, but there is one process to shard over", "Add --nproc-per-node auto, or leave it out.")
    if name == "deepspeed":
        return {"deepspeed": _document(train.deepspeed, "train.deepspeed")}
    config = {} if train.fsdp_config is None else {"fsdp_config": _document(train.fsdp_config, "train.fsdp_config")}
    return {"fsdp": fsdp, **config}


def _document(value: dict[str, Any] | str | None, key: str) -> dict[str, Any]:
    """The mapping itself, or what a JSON file holds."""
    if not isinstance(value, str):
        return dict(value or {})
    try:
        found = json.loads(Path(value).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{key} = {value}: {error.strerror}", "Give a JSON file.") from error
    except ValueError as error:
        raise SettingsError(f"{key} = {value} is no JSON: {error}", "Give a JSON file.") from error
    if not isinstance(found, dict):
        raise SettingsError(f"{key} = {value} holds a {type(found).__name__}", "Give a JSON file with names and values.")
    return found


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor, the tensor itself otherwise."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
