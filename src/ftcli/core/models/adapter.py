"""Training a part of the weights: LoRA by peft on a frozen base, or the head alone."""

from __future__ import annotations

import importlib.util
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ftcli.context import Context
from ftcli.contracts import Task
from ftcli.core.doctor.installed import require
from ftcli.core.models.adapter_base import ADAPTER_CONFIG, as_peft_asks, base_of
from ftcli.core.models.frozen import commit_of, refuse_other_base
from ftcli.errors import MissingExtraError, ModelError, UsageError
from ftcli.settings import Settings

HEADS = ("score", "classifier", "classification_head", "pre_classifier", "pooler")
"""Modules of classification heads, which are learned whole and saved with the adapter."""
NOT_LINEAR = ("Router", "GroupedLinear")
"""Ends of classes that are linear layers by name: they give more than a tensor (Phi-MoE, Llama 4), or compute in groups (DeepSeek V4)."""
MAMBA = frozenset(["falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"])
"""Types of which peft refuses `out_proj`."""


def is_adapter(settings: Settings) -> bool:
    """Whether the run starts from an adapter."""
    return settings.model.name_or_path is not None and base_of(settings.model.name_or_path) != settings.model.name_or_path


def check_choice(settings: Settings, task: Task | None) -> None:
    """Refuse choices that contradict each other, before a model is loaded.

    Args:
        task: None: not yet known.

    Raises:
        UsageError: they do.
        MissingExtraError: peft is not installed or too old, or bitsandbytes for 4 bits.
    """
    model = settings.model
    lora = model.lora_r is not None or is_adapter(settings)
    given = [name for name in ("lora_alpha", "lora_dropout", "lora_target_modules") if getattr(model, name) is not None]
    if given and model.lora_r is None:
        raise UsageError(f"model.{given[0]} without model.lora_r", "Add --lora-r, for example 16.")
    if model.lora_r is not None and is_adapter(settings):
        raise UsageError(
            f"{model.name_or_path} is already an adapter, and --lora-r asks for a new one",
            "Remove --lora-r to continue training it, or merge it first: ftcli merge ADAPTER --output-dir DIR.",
        )
    if lora:
        require("peft", "LoRA")
    if model.lora_r is not None and model.config is not None:
        raise UsageError(
            "LoRA on random weights learns almost nothing, and the base would not be saved",
            "Give a pretrained model: --model-name-or-path.",
        )
    if model.freeze_backbone and lora:
        raise UsageError("model.freeze_backbone: LoRA already freezes the backbone", "Leave --freeze-backbone out.")
    if model.freeze_backbone and task is not None and not task.needs_labels:
        raise UsageError(f"model.freeze_backbone: mode {task.name} has no separate head to train", "Leave --freeze-backbone out.")
    if model.freeze_backbone and model.config is not None:
        raise UsageError(
            "model.freeze_backbone: a head on a frozen backbone of random weights learns almost nothing",
            "Give a pretrained model: --model-name-or-path.",
        )
    if model.load_in_4bit:
        if not lora:
            raise UsageError("model.load_in_4bit: 4-bit weights cannot be trained directly", "Add --lora-r, for example 16.")
        if not torch.cuda.is_available():
            raise UsageError("model.load_in_4bit needs an NVIDIA GPU, and none was found", "Remove it: LoRA works without it.")
        if importlib.util.find_spec("bitsandbytes") is None:
            raise MissingExtraError("model.load_in_4bit needs the package bitsandbytes", "Run: pip install bitsandbytes")


def loading(settings: Settings) -> dict[str, Any]:
    """Arguments for `from_pretrained` of the base."""
    if not settings.model.load_in_4bit:
        return {}
    from transformers import BitsAndBytesConfig

    kind = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
    )
    return {"quantization_config": kind, "device_map": {"": torch.cuda.current_device()}}


def adapt(context: Context, model: PreTrainedModel, task: Task) -> Any:
    """The model with what is not learned frozen: a `PeftModel` for LoRA, else the same object. What is learned is noted.

    Raises:
        ModelError: the target modules are not in the model, or the adapter does not fit it.
    """
    settings = context.settings.model
    if settings.freeze_backbone:
        _freeze(model)
    elif is_adapter(context.settings):
        model = _loaded(context, model)
    elif settings.lora_r is not None:
        model = _fresh(context, model, task)
    else:
        return model
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    every = sum(parameter.numel() for parameter in model.parameters())
    context.note(f"{learned:,} of {every:,} weights are trained ({learned / every:.2%}); the others are frozen")
    if context.settings.train.gradient_checkpointing or context.settings.train.activation_checkpointing:
        model.enable_input_require_grads()  # else nothing before the first adapter needs a gradient, and reentrant checkpoints give none
    return model


def learned_type(model: Any) -> str:
    """The type of the weights that are learned: model.dtype, what auto makes of the configuration or the weights' file, and float32 for LoRA."""
    learned = next((parameter for parameter in model.parameters() if parameter.requires_grad), None)
    return str(model.dtype if learned is None else learned.dtype).removeprefix("torch.")


def describe(model: Any, folder: Path) -> None:
    """Put the base's configuration, with the labels, beside a saved adapter: peft saves none. Its card, which says nothing, goes."""
    if (folder / ADAPTER_CONFIG).is_file() and hasattr(model, "get_base_model"):
        (folder / "README.md").unlink(missing_ok=True)
        base = model.get_base_model()
        config, quantizer = deepcopy(base.config), getattr(base, "hf_quantizer", None)
        if quantizer is not None and not quantizer.pre_quantized:  # by load_in_4bit: the base's files are not
            del config.quantization_config
        config.save_pretrained(folder)


def heads(model: PreTrainedModel) -> list[str]:
    """Names of the modules of a classification head, and of whatever was not in the weights that were loaded."""
    new = {
        key.rpartition(".")[0] for name in ("missing_keys", "mismatched_keys") for key in getattr(model, "ftcli_loaded", {}).get(name, ())
    }
    own = [name for name, _ in model.named_children() if name != model.base_model_prefix and name in HEADS]
    inside = [name for name in new if not any(name == one or name.startswith(f"{one}.") for one in own)]
    return [*own, *sorted(inside)]


def _freeze(model: PreTrainedModel) -> None:
    kept = heads(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = any(name.startswith(f"{head}.") for head in kept)


def _fresh(context: Context, model: PreTrainedModel, task: Task) -> Any:
    from peft import LoraConfig, TaskType, get_peft_model

    settings = context.settings.model
    saved = heads(model) if task.needs_labels else []
    if settings.load_in_4bit:
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model)  # type: ignore[no-untyped-call]
    assert settings.lora_r is not None
    config = LoraConfig(
        r=settings.lora_r,
        lora_alpha=2 * settings.lora_r if settings.lora_alpha is None else settings.lora_alpha,
        lora_dropout=settings.lora_dropout or 0.0,
        target_modules=(targets := _targets(context, model)),
        exclude_modules=_left_out(model) or None if targets == "all-linear" else None,
        modules_to_save=saved or None,
        task_type=TaskType.SEQ_CLS if task.needs_labels else TaskType.CAUSAL_LM,
        revision=commit_of(model.name_or_path, settings.revision),  # main moves on, and the adapter would be put on another base
    )
    if Path(model.name_or_path).is_dir():  # what peft keeps as the base's name, for whoever loads the adapter from wherever
        model.name_or_path = str(Path(model.name_or_path).absolute())
    try:
        with as_peft_asks():
            return get_peft_model(model, config)
    except ValueError as error:
        raise ModelError(
            f"LoRA cannot be put into {type(model).__name__}: {' '.join(str(error).split())[:300]}",
            "Choose modules that the model has, or --lora-target-modules all-linear.",
        ) from error


def _targets(context: Context, model: PreTrainedModel) -> str | list[str]:
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    wanted = context.settings.model.lora_target_modules or ["auto"]
    if wanted == ["auto"]:
        kind = str(model.config.model_type)
        chosen = KNOWN.get(kind)
        found: str | list[str] | None = chosen if chosen is None or isinstance(chosen, str) else list(chosen)
        context.note(
            f"LoRA on {found if isinstance(found, str) else ', '.join(found)}: peft's choice for {kind}"
            if found
            else f"LoRA on all linear layers: peft has no choice for {kind}"
        )
        return found or "all-linear"
    return "all-linear" if wanted == ["all-linear"] else wanted


def _left_out(model: PreTrainedModel) -> list[str]:
    """Names of linear layers that get no adapter: those that are none to peft, which fails on them; what Mamba's kernels read past an adapter; and those for
    images and sounds, which no text reaches."""
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    text = next((name for name, _ in model.named_modules() if name.split(".")[-1] == "language_model"), "")
    return [
        name
        for name, module in linear.items()
        if (text and "." in name and not name.startswith(f"{text}."))
        or type(module).__name__.endswith(NOT_LINEAR)
        or (model.config.model_type in MAMBA and name.endswith(".out_proj"))
    ]


def _loaded(context: Context, model: PreTrainedModel) -> Any:
    from peft import PeftModel

    folder = str(context.settings.model.name_or_path)
    refuse_other_base(folder)
    if context.settings.model.load_in_4bit:
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model)  # type: ignore[no-untyped-call]
    try:
        with as_peft_asks():
            adapted = PeftModel.from_pretrained(model, folder, is_trainable=True)
    except (ValueError, RuntimeError, OSError, KeyError) as error:
        raise ModelError(
            f"the adapter {folder} does not fit its base model: {' '.join(str(error).split())[:300]}",
            "Give the adapter of a run with the same task and labels.",
        ) from error
    context.note(f"continuing from the adapter {folder}")
    return adapted
