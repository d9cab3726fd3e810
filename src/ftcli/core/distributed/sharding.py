"""FSDP and DeepSpeed: handed on to transformers, refused where they cannot work."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import deepspeed

from ftcli.errors import MissingExtraError, SettingsError, adding
from ftcli.settings_train import TrainSettings

GATHER = "stage3_gather_16bit_weights_on_model_save"
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
        raise SettingsError("train.fsdp and train.deepspeed are both set", "Choose one: both shard the weights over the ranks.")
    if not chosen:
        if train.fsdp_config is not None:
            raise SettingsError("train.fsdp_config is set, but train.fsdp is not", "Add --fsdp full_shard.")
        return {}
    name = chosen[0]
    document = _document(train.deepspeed, "train.deepspeed") if name == "deepspeed" else {}
    if name == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        raise MissingExtraError("--deepspeed needs the package deepspeed", adding("deepspeed"))
    if not on_gpu:
        raise SettingsError(
            f"train.{name} is set, but the run uses CPUs: it shards weights over GPUs",
            "Remove it: --nproc-per-node alone works on CPUs.",
        )
    if ranks == 1 and name == "fsdp":
        raise SettingsError("train.fsdp is set, but there is only one process to shard over", "Add --nproc-per-node auto, or remove it.")
    if name == "deepspeed":
        return {"deepspeed": _gathered(document)}
    config = {} if train.fsdp_config is None else {"fsdp_config": _document(train.fsdp_config, "train.fsdp_config")}
    return {"fsdp": fsdp, **config}


def _gathered(config: dict[str, Any]) -> dict[str, Any]:
    """ZeRO stage 3 with the weights in one piece when they are saved: without that no model is written, and transformers only warns.

    Raises:
        SettingsError: the file asks for a run without a model.
    """
    zero = config.get("zero_optimization") or {}
    if zero.get("stage") != 3:
        return config
    zero = {GATHER: True, **zero}
    if zero[GATHER] is False:
        raise SettingsError(
            f"train.deepspeed has zero_optimization.{GATHER} = false: the run would end without a saved model",
            "Remove it: ftcli sets it to true. While saving, rank 0 needs memory for one copy of the weights.",
        )
    return {**config, "zero_optimization": zero}


def _document(value: dict[str, Any] | str | None, key: str) -> dict[str, Any]:
    """The mapping itself, or what a JSON file holds."""
    if not isinstance(value, str):
        return dict(value or {})
    try:
        found = json.loads(Path(value).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{key} = {value}: {error.strerror}", "Give a JSON file.") from error
    except ValueError as error:
        raise SettingsError(f"{key} = {value} is not JSON: {error}", "Give a JSON file.") from error
    if not isinstance(found, dict):
        raise SettingsError(f"{key} = {value} holds a {type(found).__name__}, not an object", "Give a JSON file that holds one object.")
    return found


@contextmanager
def undivided(arguments: TrainingArguments) -> Iterator[None]:
    """Inside, a model is made whole under ZeRO stage 3 too, where transformers would make it in parts: what is proved of it needs its weights.
    DeepSpeed divides it when training begins."""
    config = getattr(arguments, "hf_deepspeed_config", None)
    if config is None:
        yield
        return
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed.set_hf_deepspeed_config(config)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that FSDP or ZeRO stage 3 has divided, the tensor itself otherwise."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else getattr(tensor, "ds_tensor", tensor)
    return local


def full(value: Any) -> Any:
    """A sharded tensor whole, on every rank, which all have to ask for; anything else as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
