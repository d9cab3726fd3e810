"""The model of a run: random weights from a configuration, or loaded and proved complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from ftcli.context import Context
from ftcli.contracts import Task
from ftcli.core.files.pointers import refuse_pointer
from ftcli.core.models.adapter import check_choice, loading
from ftcli.core.models.adapter_base import base_of, refuse_absent, revision_of, unavailable
from ftcli.core.models.config import from_file, override
from ftcli.core.models.head_labels import learned_for, settle
from ftcli.core.storage.store import Store
from ftcli.errors import FtcliError, ModelError, UsageError
from ftcli.settings import Settings

HEADS = ("pooler", "score", "classifier", "classification_head", "pre_classifier", "lm_head", "cls.", "logits_proj", "embed_out")
"""Parts of a parameter's name by which a head is known where it stands inside the base model."""

LOADED = ("missing_keys", "mismatched_keys", "unexpected_keys")
"""What transformers says of loaded weights: `model.ftcli_loaded`, for `verify`."""
OWN_CODE = "The model brings its own Python code. Read it, then add --trust-remote-code on the command line."
POOLED_BY_SUMMARY = frozenset({"xlnet", "xlm", "flaubert"})
"""Families whose classifiers pool by `summary_type`, which but for "first" looks at padding too. XLNet's is "last"."""
WRAPPERS = ("_orig_mod.", "module.", "_fsdp_wrapped_module.", "base_model.model.")
"""Beginnings that torch.compile, DataParallel, FSDP and peft put before the names of weights."""


def build(context: Context, task: Task, store: Store, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model for `task`, configured for the store's labels and the tokenizer, in the wanted type, on the CPU.

    Raises:
        UsageError: neither or both of model.config and model.name_or_path are given.
        ModelError: the configuration or the weights cannot be used; names key and reason.
    """
    settings = context.settings
    check_given(settings)
    check_choice(settings, task)
    set_seed(settings.train.seed)
    model = (_from_config if settings.model.config else _from_weights)(context, task, store, tokenizer)
    family = task.model_class()
    known = getattr(family, "_model_mapping", None)  # a plugin's task may build a class of its own
    if known is not None and type(model.config) not in known and not hasattr(model.config, "auto_map"):
        context.note(
            f"what is saved is loaded by {type(model).__name__}.from_pretrained: {family.__name__} does not know {model.config.model_type}"
        )
    if getattr(model.config.get_text_config(), "output_router_logits", False):
        context.note("output_router_logits is on, but the loss is only the task's: the router's auxiliary loss is not added")
    return model


def check_given(settings: Settings) -> None:
    """Raises `UsageError` unless one model is given."""
    if (settings.model.config is None) == (settings.model.name_or_path is None):
        none = settings.model.config is None
        raise UsageError(
            "no model: neither --model-config nor --model-name-or-path is given"
            if none
            else "two models: both --model-config and --model-name-or-path are given",
            "Give --model-config FILE.json for random weights, or --model-name-or-path for pretrained ones.",
        )


def check_kind(config: Any, task: Task | None) -> None:
    """Raises `ModelError` for a model that `task`, or none that is known yet, does not train."""
    if config.is_encoder_decoder:
        raise ModelError(
            f"{config.model_type} is an encoder-decoder model, which {'train' if task is None else f'mode {task.name}'} does not support",
            "Use a decoder (qwen3, llama, gpt2 …) or, to classify, an encoder (bert, modernbert …).",
        )
    if _rows(config) is None:
        raise ModelError(f"{config.model_type} has no vocabulary: it is no model of tokens", "Use one, for example qwen3, llama or bert.")
    if getattr(config, "languages", None) and getattr(config, "default_language", "") is None:  # XMOD's adapters, one a language
        raise ModelError(
            f"{config.model_type} has adapters for {len(config.languages)} languages, and default_language is not set: it cannot tell which to use",
            f"Name that of the texts, for example: --config-overrides default_language={config.languages[0]}",
        )
    pools = task is not None and task.needs_labels and config.model_type in POOLED_BY_SUMMARY
    if pools and (pooled := getattr(config, "summary_type", "last")) != "first":
        raise ModelError(
            f"{config.model_type} pools by summary_type = {pooled}, which takes the end of a row for text: rows are padded on the right here, so "
            "padding would be pooled",
            "Use an encoder that pools the first token or leaves padding out (bert, deberta-v2, modernbert …).",
        )


def check_vocabulary(config: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises `ModelError` where the tokenizer has an id that the embedding has no row for."""
    rows = _rows(config)
    if rows is not None and len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer has {len(tokenizer):,} ids, but the model's embedding has {rows:,} rows: some ids would have no vector",
            f"With --model-config add --config-overrides vocab_size={len(tokenizer)}; a pretrained model needs the tokenizer it was trained with.",
        )


def embedding_rows(model: PreTrainedModel) -> int:
    """Ids that the model has a vector for. Perceiver gives a matrix of something else as its input embedding."""
    table = getattr(model.get_input_embeddings(), "weight", None)
    return int(_rows(model.config) or 0) if table is None else len(table)


def _rows(config: Any) -> int | None:
    rows: int | None = getattr(config.get_text_config(), "vocab_size", None)
    return rows


def _from_config(context: Context, task: Task, store: Store, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    settings = context.settings
    assert settings.model.config is not None
    config = from_file(settings.model.config, settings.model.config_overrides, context.note)
    _configure(config, task, store, tokenizer)
    for name in ("bos_token_id", "eos_token_id"):  # a family's default (2 for llama) is another token, or ends a text where none does
        setattr(config.get_text_config(), name, getattr(tokenizer, name))
    model = _guarded(
        f"no {task.name} model can be built from {settings.model.config}",
        lambda: task.model_class().from_config(config, dtype=_dtype(settings, config.dtype), **_options(settings)),
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    context.note(f"{type(model).__name__} with {parameters:,} random weights from {settings.model.config}, seed {settings.train.seed}")
    return model


def _from_weights(context: Context, task: Task, store: Store, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    settings = context.settings
    refuse_absent(str(settings.model.name_or_path))
    refuse_pointers(str(settings.model.name_or_path))
    source = base_of(str(settings.model.name_or_path))
    revision = settings.model.revision or revision_of(str(settings.model.name_or_path))
    where: dict[str, Any] = {"revision": revision, "trust_remote_code": settings.tokenizer.trust_remote_code}
    config = _guarded(f"{source} has no usable configuration", lambda: AutoConfig.from_pretrained(source, **where), source)
    override(config, settings.model.config_overrides)
    before = learned_for(str(settings.model.name_or_path), config) if task.needs_labels else []
    _configure(config, task, store, tokenizer)
    model, loaded = _guarded(
        f"no {task.name} model can be loaded from {source}",
        lambda: task.model_class().from_pretrained(
            source,
            config=config,
            dtype=_dtype(settings, "auto"),
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **where,
            **_options(settings),
            **loading(settings),
        ),
        source,
    )
    _check_loaded(context, source, model, loaded)
    model.ftcli_loaded = {
        name: sorted(str(key[0] if isinstance(key, tuple) else key) for key in loaded[name]) for name in loaded if name in LOADED
    }
    if source != str(settings.model.name_or_path) or not (loaded["missing_keys"] or loaded["mismatched_keys"]):
        settle(model, str(settings.model.name_or_path), before, context.note)
    return model


def refuse_pointers(name: str) -> None:
    """Of a model's folder; of an adapter's, its base's too.

    Raises:
        ModelError: weights or configuration there are Git LFS pointers.
    """
    _refuse_pointers_in(name)  # before the adapter's configuration, which may be one, is read
    if (base := base_of(name)) != name:
        _refuse_pointers_in(base)


def _refuse_pointers_in(folder: str) -> None:
    for pattern in ("*.safetensors", "*.safetensors.index.json", "config.json", "adapter_config.json"):
        for file in sorted(Path(folder).glob(pattern)):
            refuse_pointer(file, ModelError)


def _check_loaded(context: Context, source: str, model: PreTrainedModel, loaded: dict[str, Any]) -> None:
    """New weights are fine in the head, and said; anywhere else the model would be half random."""
    missing = sorted(map(str, loaded["missing_keys"]))
    mismatched = {str(key): (tuple(old), tuple(new)) for key, old, new in loaded["mismatched_keys"]}
    lost = [key for key in (*missing, *mismatched) if not _in_head(key, model.base_model_prefix)]
    if lost:
        reason = f"shape {mismatched[lost[0]][0]} instead of {mismatched[lost[0]][1]}" if lost[0] in mismatched else "missing"
        hint = "Check that the weights belong to this configuration, and that no config override changes a shape."
        wrapped = next((start for start in WRAPPERS for key in loaded["unexpected_keys"] if str(key).startswith(start)), None)
        if wrapped:
            hint = f"The names in the file start with {wrapped}: a wrapped model was saved. Save the inner model, or rename the weights."
        raise ModelError(f"{source}: {len(lost)} weights of the base model are missing from the file, first {lost[0]} ({reason})", hint)
    if missing or mismatched:
        context.note(f"{source}: new random head ({', '.join([*missing, *mismatched])}); all other weights were loaded")
    if unused := sorted(map(str, loaded["unexpected_keys"])):
        context.note(f"{source}: {len(unused)} weights that do not exist in this model were ignored, first {unused[0]}")


def _in_head(key: str, prefix: str) -> bool:
    return not key.startswith(f"{prefix}.") or any(part in key for part in HEADS)


def _configure(config: Any, task: Task, store: Store, tokenizer: PreTrainedTokenizerBase) -> None:
    check_kind(config, task)
    task.configure(config, store, tokenizer)
    check_vocabulary(config, tokenizer)


def _options(settings: Settings) -> dict[str, Any]:
    return {} if settings.model.attn_implementation is None else {"attn_implementation": settings.model.attn_implementation}


def _dtype(settings: Settings, automatic: Any) -> Any:
    """The wanted type; `automatic` is what auto means, float32 where even that says nothing."""
    name = settings.model.dtype or "float32"
    return (automatic or torch.float32) if name == "auto" else getattr(torch, name)


def _guarded(what: str, make: Any, source: str | None = None) -> Any:
    try:
        return make()
    except FtcliError:
        raise
    except Exception as error:  # transformers raises a dozen kinds here, all caused by files and flags of the user
        absent = None if source is None else unavailable(source, error)
        raise absent or ModelError(f"{what}: {' '.join(str(error).split())[:400]}", _hint(str(error))) from error


def _hint(message: str) -> str:
    if "trust_remote_code" in message:
        return OWN_CODE
    if "safetensors" in message:
        return (
            "Only safetensors weights are loaded, since a .bin file can run code. Convert it: model.save_pretrained() writes safetensors."
        )
    if "Unrecognized configuration class" in message:
        return "Choose a model type that has such a head."
    if any(word in message.lower() for word in ("attn_implementation", "attention implementation", "flash", "sdpa", "flex_attention")):
        return "Set model.attn_implementation to sdpa or eager, or leave it unset."
    return (
        "Check --model-name-or-path (a folder with config.json and model.safetensors, or a hub id), --model-config or --config-overrides."
    )
