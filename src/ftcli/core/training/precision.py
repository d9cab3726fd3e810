"""Whether a model computes in bfloat16 where ftcli chose it: a kind that cannot is trained in float32, and that is said."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments

from ftcli.errors import SettingsError

MOST_WEIGHTS = 500_000_000
"""A model that waits for its GPU is tried on the CPU, where a larger one takes seconds."""


def of(arguments: TrainingArguments) -> str:
    """What the run computes in: the type that autocast chooses, float32 without."""
    return "bfloat16" if arguments.bf16 else "float16" if arguments.fp16 else "float32"


def settle(arguments: TrainingArguments, model: PreTrainedModel, batch: dict[str, Any], *, asked: bool) -> str | None:
    """Turn `bf16` off, or refuse it where the user asked for it, where one forward pass over `batch` shows that the model's own code cannot do it; what was found, in words, or None.

    DeBERTa fills masked scores with float32's least number, which bfloat16 cannot hold. Other errors are left to the first step, which names
    them. Nothing is decided for sharded models. Weights, mode and random state are as before.

    Raises:
        SettingsError: the user asked for what the model cannot do.
    """
    waits = model.device != arguments.device and model.num_parameters() > MOST_WEIGHTS
    if not arguments.bf16 or arguments.fsdp or arguments.deepspeed or waits:
        return None
    inputs = {name: value.to(model.device) for name, value in batch.items() if isinstance(value, torch.Tensor) and name != "labels"}
    training, devices = model.training, [model.device] if model.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16):
            model.eval()(**inputs)
    except RuntimeError as error:
        if "bfloat16" not in str(error).lower():
            return None
        words = f"{type(model).__name__} cannot compute in bfloat16 ({' '.join(str(error).split())[:120]})"
        if asked:
            raise SettingsError(f"train.bf16 = true: {words}", "Remove it: ftcli chooses a precision the model supports.") from error
        arguments.bf16, arguments.mixed_precision = False, "no"
        return f"falling back to float32: {words}"
    finally:
        model.train(training)
    return None
