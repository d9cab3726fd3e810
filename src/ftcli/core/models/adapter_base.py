"""Which model an adapter belongs to, without torch."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ftcli.core import hub
from ftcli.errors import ModelError
from ftcli.records import RUN_NAME

ADAPTER_CONFIG = "adapter_config.json"
NOWHERE = (
    "couldn't connect to",
    "not a local folder",
    "cannot find the requested files in the local cache",
    "outgoing traffic has been disabled",
)
"""Words of transformers and huggingface_hub."""
UNCACHED = "does not appear to have a file named"
"""What transformers says of weights that a repository lacks, and of those that its cache lacks where the hub is not to be asked."""


@contextmanager
def as_peft_asks() -> Iterator[None]:
    """Inside, peft 0.21 may ask a model for `is_gradient_checkpointing`, whose end transformers 5.23 announces to whoever reads it, and says that it has
    set `fan_in_fan_out` itself, as GPT-2's layers need it: nothing a user can change."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False", category=UserWarning)
        yield


def inner(model: Any) -> Any:
    """The model that peft has wrapped; `model` itself where it has not."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def refuse_absent(name: str) -> None:
    """
    Raises:
        ModelError: `name`, or the base of the adapter there, can only be a folder here, no hub id, and there is none.
    """
    if (base := base_of(name)) != name and not Path(base).exists() and only_here(base):
        raise ModelError(
            f"the base model of the adapter {name} does not exist: {base}",
            f"Restore it, or set its new path as base_model_name_or_path in {Path(name) / ADAPTER_CONFIG}.",
        )
    if not Path(name).exists() and only_here(name):
        beside = Path(name).parent
        runs = sorted(config.parent.name for config in beside.glob("*/config.json"))[:8] if beside.is_dir() else []
        raise ModelError(
            f"{name}: there is no such folder here",
            f"{beside} has {', '.join(runs)}."
            if runs
            else "Give a folder with config.json and model.safetensors, or a hub id (Qwen/Qwen3-0.6B).",
        )


def only_here(name: str) -> bool:
    """Whether a name is that of a folder here: no hub id, or one whose owner is a folder here that holds runs and no other models. To ask the hub
    takes 25 s without a network."""
    owner, _, rest = name.partition("/")
    if "/" in rest or name.endswith("/") or name.startswith((".", "/", "~")):
        return True
    if not rest or not Path(owner).is_dir():
        return False
    from huggingface_hub import constants

    cached = Path(constants.HF_HUB_CACHE, f"models--{owner}--{rest}").is_dir()
    models = [config.parent for config in Path(owner).glob("*/config.json")]
    return not cached and bool(models) and all((folder / RUN_NAME).exists() for folder in models)


def unavailable(name: str, error: Exception) -> ModelError | None:
    """What to say where neither this machine nor the hub has a model; None where it is something else that transformers says."""
    text = " ".join(str(error).split())
    if Path(name).exists() or not any(words in text for words in (*NOWHERE, *([UNCACHED] if hub.offline() else ()))):
        return None
    return ModelError(
        f"{name} is neither a local folder nor available on the hub: {text[:200]}",
        hub.advice(),
    )


def base_of(folder: str) -> str:
    """The model that an adapter folder belongs to; `folder` itself where it is no adapter.

    Raises:
        ModelError: the adapter does not say.
    """
    found = described(folder)
    if found is None:
        return folder
    if not (base := found.get("base_model_name_or_path")):
        raise ModelError(f"{Path(folder) / ADAPTER_CONFIG} names no base model", "Add base_model_name_or_path to it.")
    return str(base)


def revision_of(folder: str) -> str | None:
    """The hub revision of the base that an adapter was learned on, as its configuration keeps it; None for main, and where `folder` is no adapter."""
    found = (described(folder) or {}).get("revision")
    return None if found is None else str(found)


def described(folder: str) -> dict[str, Any] | None:
    """The configuration of an adapter folder; None where `folder` is none.

    Raises:
        ModelError: it cannot be read.
    """
    path = Path(folder) / ADAPTER_CONFIG
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found.get("r")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read: {error!r}", "Copy the adapter again from where it was saved.") from error
    return found
