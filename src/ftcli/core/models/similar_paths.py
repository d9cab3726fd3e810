"""A name that is no folder here, but nearly that of one: whether it is a slip or a hub id."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ftcli.core.models.adapter_base import only_here

HUB_SECONDS = 5.0
UNKNOWN = (401, 404)
"""What the hub answers where there is no model of a name, or none for this user."""


def meant(name: str, files: Iterable[str]) -> str | None:
    """The folder here that `name` is a slip for, with one of `files` in it; None: there is none like it, or the hub has a model of that name."""
    near = _near(name, files)
    return None if near is None or (not only_here(name) and _on_hub(name)) else near


def _near(name: str, files: Iterable[str]) -> str | None:
    path = Path(name)
    here = Path(path.anchor)
    for part in path.relative_to(here).parts:
        if not (here / part).is_dir():
            folders: list[str] = []
            with suppress(OSError):
                folders = [entry.name for entry in here.iterdir() if entry.is_dir()]
            part = next(iter(difflib.get_close_matches(part, folders, n=1)), "")  # noqa: PLW2901
            if not part:
                return None
        here /= part
    return str(here) if any((here / file).is_file() for file in files) else None


def _on_hub(name: str) -> bool:
    """One question: to fetch a file is tried for 25 s without a network, and a tokenizer is several."""
    from huggingface_hub import HfApi, constants

    if Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}").is_dir():
        return True
    try:
        HfApi().model_info(name, timeout=HUB_SECONDS)
    except Exception as error:  # noqa: BLE001 - those of the library that it asks by
        answer = getattr(error, "response", None)
        return answer is not None and answer.status_code not in UNKNOWN
    return True
