"""Hugging Face datasets: a directory that `Dataset.save_to_disk` made, or a hub id. Both come down to Arrow files."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from ftcli.core import hub
from ftcli.errors import DataError
from ftcli.settings import Settings

from .columnar import ArrowIpc

ASKED_AGAIN = 300.0
"""Seconds after which a data set that the hub could not give is asked for again. Without a network every answer takes 25 s, and `ftcli verify` wants it
for the texts and for the rows."""
_refused: dict[str, tuple[float, DataError]] = {}
"""What the hub could not give: when this process knew, and why."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?")


class HuggingFace(ArrowIpc):
    """Claims directories of `save_to_disk` (one split or several) and hub ids "org/name" or "org/name:config".

    A hub dataset is fetched by `datasets.load_dataset` into its own cache; the code of a dataset is never run.
    """

    name = "hf"
    suffixes: tuple[str, ...] = ()

    def claims(self, item: str) -> bool:
        if os.path.isdir(item):  # noqa: PTH112 - never raises, unlike Path.is_dir on a name that is too long
            return (Path(item) / "dataset_dict.json").is_file() or (Path(item) / "state.json").is_file()
        return HUB_ID.fullmatch(item) is not None

    def expand(self, item: str, settings: Settings) -> dict[str | None, list[str]]:
        folder = Path(item)
        if not folder.is_dir():
            return _from_hub(item)
        names = folder / "dataset_dict.json"
        if not names.is_file():
            return {None: _data_files(folder)}
        return {split: _data_files(folder / split) for split in _described(names, "splits")}


def _data_files(folder: Path) -> list[str]:
    return [str(folder / entry["filename"]) for entry in _described(folder / "state.json", "_data_files")]


def _described(path: Path, key: str) -> list[Any]:
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))[key])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a dataset saved by datasets: {error!r}", "Save the dataset again with save_to_disk.") from None


def _from_hub(item: str) -> dict[str | None, list[str]]:
    when, known = _refused.get(item, (0.0, None))
    if known is not None and time.monotonic() - when < ASKED_AGAIN:
        raise DataError(known.message, known.hint)
    import datasets

    name, _, config = item.partition(":")
    try:
        loaded = datasets.load_dataset(name, config or None)
    except Exception as error:  # the library and its network stack raise dozens of kinds
        reason = next(iter(str(error).splitlines()), "")
        refused = DataError(
            f"{item}: no such local file, and the Hub did not return it: {type(error).__name__}: {reason}",
            f"{hub.advice()} To choose a configuration: ORG/NAME:CONFIG.",
        )
        _refused[item] = time.monotonic(), refused
        raise refused from error
    return {str(split): [file["filename"] for file in part.cache_files] for split, part in loaded.items()}
