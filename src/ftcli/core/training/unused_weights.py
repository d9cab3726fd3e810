"""Whether DistributedDataParallel has to look for weights without a gradient in every step: it need not where one pass reaches all."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments

from ftcli.contracts import Task

ROUTED = ("num_experts", "num_local_experts", "n_routed_experts")
"""Settings of models in which a weight's use depends on the tokens."""


def settle(arguments: TrainingArguments, model: PreTrainedModel, task: Task, batch: dict[str, torch.Tensor]) -> str | None:
    """Turn `ddp_find_unused_parameters` off where a pass over `batch` proves that it is needless; what was done, in words, or None.

    transformers turns it on for every model, which costs a walk over the graph in every step. Nothing is decided for one process, where
    the user has decided, for sharded models, and for models that send tokens to experts.
    """
    if arguments.world_size == 1 or arguments.ddp_find_unused_parameters is not None or arguments.fsdp or arguments.deepspeed:
        return None
    if arguments.activation_checkpointing or any(getattr(model.config.get_text_config(), name, None) for name in ROUTED):
        return None
    try:
        lacking = without_gradient(model, task, batch)
    except (RuntimeError, MemoryError) as error:  # what is really wrong is named by the first step
        return f"train.ddp_find_unused_parameters stays on: {' '.join(str(error).split())[:120]}"
    if lacking:
        return f"train.ddp_find_unused_parameters stays on: {lacking[0]} gets no gradient ({len(lacking)} weights)"
    arguments.ddp_find_unused_parameters = False
    return "train.ddp_find_unused_parameters = false: one pass gives every weight a gradient"


def without_gradient(model: PreTrainedModel, task: Task, batch: dict[str, Any]) -> list[str]:
    """Names of trainable weights that one pass does not reach. Weights, gradients and random state are as before."""
    inputs = {name: value.to(model.device) for name, value in batch.items() if isinstance(value, torch.Tensor)}
    labels = inputs.pop("labels")
    devices = [model.device] if model.device.type == "cuda" else []
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    with torch.random.fork_rng(devices), torch.enable_grad():
        loss = task.loss(model(**inputs)["logits"], labels, 1)
        found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return [name for name, gradient in zip(weights, found, strict=True) if gradient is None]
