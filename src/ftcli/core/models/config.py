"""A model's configuration from a config.json and overrides; never code that comes with it."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig

from ftcli.core.models.adapter_base import base_of, refuse_absent, revision_of, unavailable
from ftcli.errors import ModelError
from ftcli.settings import Settings

Note = Callable[[str], None]

LEFTOVERS = {"_name_or_path", "auto_map", "custom_pipelines", "task_specific_params", "transformers_version", "tokenizer_class"}
"""Keys that published files carry and that say nothing about the architecture."""


def planned(settings: Settings) -> Any:
    """The configuration of the planned run, from model.config or model.name_or_path, one of which is given; model.config_overrides applied.

    Raises:
        ModelError: it cannot be used.
    """
    model = settings.model
    if model.config is not None:
        return from_file(model.config, model.config_overrides, lambda _: None)
    config = published(settings)
    override(config, model.config_overrides)
    return config


def published(settings: Settings) -> Any:
    """The configuration of the weights of model.name_or_path, as they were saved with it.

    Raises:
        ModelError: it cannot be used.
    """
    model = settings.model
    source = str(model.name_or_path)
    refuse_absent(source)
    if not (Path(source) / "config.json").is_file():  # peft writes none beside an adapter
        source = base_of(source)
    try:
        return AutoConfig.from_pretrained(
            source, revision=model.revision or revision_of(str(model.name_or_path)), trust_remote_code=settings.tokenizer.trust_remote_code
        )
    except Exception as error:  # whatever a damaged file makes transformers raise
        raise unavailable(source, error) or ModelError(
            f"{model.name_or_path} has no usable configuration: {_first_line(error)}",
            "Check --model-name-or-path (a folder with config.json and model.safetensors, or a hub id).",
        ) from error


def from_file(path: Path, overrides: str | None, note: Note) -> Any:
    """The configuration of a config.json, `overrides` ("hidden_size=256,num_hidden_layers=4") applied.

    Keys that the model type does not know are left out and noted.

    Raises:
        ModelError: the file cannot be used, an override names no setting of the model type, or the values contradict each other.
    """
    if path.is_dir():
        path /= "config.json"
    values = _load(path)
    model_type = values.pop("model_type", None)
    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(str(model_type), list(CONFIG_MAPPING), n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise ModelError(
            f"{path}: model_type = {model_type!r} is not a model type of transformers", f"For example qwen3, llama or bert.{meant}"
        )
    values = {key: value for key, value in values.items() if key not in LEFTOVERS}
    plain = _build(model_type, values, path)
    known = _known(plain)
    unknown = sorted(key for key in values if key in vars(plain) and key not in known)
    if unknown:
        note(
            f"{path}: ignored {', '.join(unknown)}: {model_type} does not know {'it' if len(unknown) == 1 else 'them'}.{_nearest(unknown, known)}"
        )
    values = {key: value for key, value in values.items() if key not in unknown}
    if not overrides:
        return plain if not unknown else _build(model_type, values, path)
    changes = parse_overrides(overrides, plain)
    return _build(model_type, consistent({**_canonical(values, plain), **changes}, changes, plain, note), path)


def parse_overrides(overrides: str, config: Any) -> dict[str, Any]:
    """ "hidden_size=256,hidden_act=gelu" as values of the types that `config` has.

    Raises:
        ModelError: not NAME=VALUE, no such setting (the nearest is named), or a value of another type.
    """
    known = _known(config)
    found: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in overrides.split(","))):
        name, equals, text = (part.strip() for part in item.partition("="))
        if not equals:
            raise ModelError(f"config_overrides: {item!r} is not NAME=VALUE", "Example: hidden_size=256,num_hidden_layers=4")
        if name not in known:
            raise ModelError(f"config_overrides: {config.model_type} has no {name!r}", f"See its config.json.{_nearest([name], known)}")
        name = config.attribute_map.get(name, name)
        found[name] = _typed(name, text, getattr(config, name))
    return found


def override(config: Any, overrides: str | None) -> None:
    """Give the configuration of trained weights other values.

    Raises:
        ModelError: as `parse_overrides`, or the configuration takes no such value.
    """
    for name, value in parse_overrides(overrides or "", config).items():
        try:
            setattr(config, name, value)
        except Exception as error:  # every model type checks its values in its own way
            raise ModelError(f"config_overrides: {name} cannot be {value!r}: {_first_line(error)}", "Change the value.") from error


def consistent(values: dict[str, Any], changes: Mapping[str, Any], before: Any, note: Note) -> dict[str, Any]:
    """`values` with what depends on a change, and was not changed itself, brought in line."""
    layers = changes.get("num_hidden_layers")
    kinds = values.get("layer_types")
    if layers is not None and kinds is not None and len(kinds) != layers:
        if layers < len(kinds):
            values["layer_types"] = kinds[:layers]
        else:  # how a longer model goes on is the model type's own rule
            del values["layer_types"]
        note(f"layer_types follows num_hidden_layers = {layers}")
    heads = changes.get("num_attention_heads")
    groups = getattr(before, "num_key_value_heads", None)
    if heads is not None and groups and "num_key_value_heads" not in changes and heads % groups:
        values["num_key_value_heads"] = heads
        note(f"num_key_value_heads = {heads}: {groups} do not divide num_attention_heads = {heads}")
    return values


def cache_of(config: Any) -> bool | None:
    """`use_cache` of a model's configuration; None where its type has none (DistilBERT, ALBERT, ModernBERT, MPNet)."""
    found: bool | None = getattr(config, "use_cache", None)
    return found


def set_cache(config: Any, value: bool | None) -> None:
    """Give a configuration what `cache_of` said of it; None takes away what was set meanwhile."""
    if value is None:
        vars(config).pop("use_cache", None)
    else:
        config.use_cache = value


def _load(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"), object_hook=_number)
    except FileNotFoundError as error:
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() and os.access(path.parent, os.R_OK) else []
        near = difflib.get_close_matches(path.name, beside, n=1)
        hint = f"Did you mean {str(path.parent / near[0])!r}?" if near else "Set --model-config to a config.json."
        raise ModelError(f"the model configuration {path} does not exist", hint) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"the model configuration {path} cannot be read: {error}", "Set --model-config to a config.json.") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} does not contain a JSON object", "Set --model-config to a config.json.")
    return values


def _number(value: dict[str, Any]) -> Any:
    """Numbers that JSON has no word for, as transformers writes them: {"__float__": "Infinity"}."""
    return float(value["__float__"]) if value.keys() == {"__float__"} else value


def _build(model_type: str, values: Mapping[str, Any], path: Path) -> Any:
    try:
        return AutoConfig.for_model(model_type, **values)
    except Exception as error:  # every model type checks its values in its own way
        raise ModelError(
            f"{path} with its overrides is not a valid {model_type} configuration: {_first_line(error)}", "Change the value."
        ) from error


def _known(config: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(config)} | set(config.attribute_map)


def _canonical(values: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Names as the class stores them, so that an override and a synonym in the file cannot both be there."""
    return {config.attribute_map.get(key, key): value for key, value in values.items()}


def _typed(name: str, text: str, now: Any) -> Any:
    wrong = f"config_overrides: {name} = {text!r} is not"
    if isinstance(now, bool):
        if text.lower() not in {"true", "false"}:
            raise ModelError(f"{wrong} true or false", f"It is {str(now).lower()} now.")
        return text.lower() == "true"
    if isinstance(now, (int, float)):
        try:
            return type(now)(text)
        except ValueError as error:
            kind = "a whole number" if isinstance(now, int) else "a number"
            raise ModelError(f"{wrong} {kind}", f"It is {now} now.") from error
    if isinstance(now, str):
        return text
    try:  # unset, a list or a table
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _nearest(names: list[str], known: set[str]) -> str:
    near = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.88) for name in names}
    return "".join(f" Did you mean {found[0]!r} for {name!r}?" for name, found in near.items() if found)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
