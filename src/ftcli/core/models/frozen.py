"""Which weights a run holds frozen: the base of an adapter, by its content, wherever its folder lies."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftcli.core.files.manifest import hash_bytes, unseal
from ftcli.core.models.adapter_base import ADAPTER_CONFIG, base_of, revision_of
from ftcli.core.publishing.staging import MODEL_MANIFEST
from ftcli.errors import ModelError
from ftcli.settings import Settings

SAMPLE_BYTES = 4096
"""Read at the beginning, in the middle and at the end of every tensor. Training changes each value of a tensor that it changes, but for rows of an
embedding that no text has."""
SAID_OF_THE_FILE = ("_name_or_path", "transformers_version")
"""Keys of config.json that change when the same model is saved again."""
BASE = "model.base"
"""Of a run's identity and of its model's manifest."""
CHECKPOINT = "ftcli-checkpoint.json"
"""The manifest of a checkpoint, which holds the run's identity."""
FLOATS = {"F64": "float32", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Type in a safetensors file → type in which a model of such weights is saved."""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def frozen_base(settings: Settings) -> str | None:
    """Hash of configuration and weights of the base that adapters are trained on; None where all weights are in the checkpoints.

    It covers names, types and shapes of all tensors and a sample of their bytes, not how they are divided into files.

    Raises:
        FileNotFoundError: they are not on this machine (yet).
        OSError, ValueError, KeyError: they cannot be read.
    """
    name = settings.model.name_or_path
    if name is None or (settings.model.lora_r is None and base_of(name) == name):
        return None
    return content_of(base_of(name), settings.model.revision or revision_of(name))


def content_of(source: str, revision: str | None) -> str:
    """Hash of the configuration and the weights of a model on this machine.

    Raises:
        FileNotFoundError: they are not on this machine (yet).
        OSError, ValueError, KeyError: they cannot be read.
    """
    folder = _folder(source, revision)
    config = json.loads((folder / "config.json").read_bytes())
    tensors = {tensor: entry for path in _files(folder) for tensor, entry in _tensors(path)}
    document = {"config": {key: value for key, value in config.items() if key not in SAID_OF_THE_FILE}, "tensors": tensors}
    return hash_bytes(json.dumps(document, sort_keys=True).encode())[:16]  # a configuration may hold infinity


def configuration_of(settings: Settings) -> str | None:
    """What the run's model is built by, without what only says where it came from, as JSON with sorted keys; None of adapters, whose base is known by
    its content, and where nothing is named.

    Raises: as `frozen_base`.
    """
    model = settings.model
    if frozen_base(settings) is not None:
        return None
    if model.config is not None:
        path = model.config / "config.json" if model.config.is_dir() else model.config
    elif model.name_or_path is not None:
        path = _folder(model.name_or_path, model.revision) / "config.json"
    else:
        return None
    return json.dumps({key: value for key, value in json.loads(path.read_bytes()).items() if key not in SAID_OF_THE_FILE}, sort_keys=True)


def refuse_other_base(adapter: str) -> None:
    """Hold the base of an adapter against the one that it was learned on, as far as a run of ftcli has written that down.

    Raises:
        ModelError: another model lies where the base was.
    """
    learned = _learned_on(Path(adapter))
    if learned is None:
        return
    with suppress(OSError, ValueError, KeyError):  # what cannot be read is said by whoever loads it
        base = base_of(adapter)
        if (now := content_of(base, revision_of(adapter))) != learned:
            raise ModelError(
                f"{base} is not the model that the adapter {adapter} was trained on: its content was {learned}, and is now {now}",
                f"Restore that model, or set its path in {Path(adapter) / ADAPTER_CONFIG}; otherwise train the adapter again.",
            )


def _learned_on(folder: Path) -> str | None:
    """What `frozen_base` gave when a model or a checkpoint of an adapter was saved there."""
    for name in (MODEL_MANIFEST, CHECKPOINT):
        with suppress(OSError, ValueError, KeyError, TypeError):
            document = unseal((folder / name).read_bytes())
            return str(document.get("identity", document)[BASE])
    return None


def stored_type(source: str, revision: str | None) -> str:
    """The type that most of a model's weights have in its files, which may not be what its configuration says.

    Raises:
        OSError, ValueError, KeyError: they cannot be read, or are not on this machine.
    """
    sizes: Counter[str] = Counter()
    for path in _files(_folder(source, revision)):
        with path.open("rb") as file:
            header = _header(file.fileno())[0]
        for entry in header.values():
            begin, end = entry["data_offsets"]
            sizes[FLOATS.get(entry["dtype"], "")] += end - begin
    del sizes[""]
    return max(sizes, key=sizes.__getitem__)


def commit_of(source: str, revision: str | None) -> str | None:
    """The commit of a hub model that is on this machine; `revision` where that cannot be told, as of a folder."""
    if Path(source).is_dir():
        return revision
    try:
        return _folder(source, revision).name
    except FileNotFoundError:
        return revision


def _folder(source: str, revision: str | None) -> Path:
    """A folder of the user's, or that of a hub model's snapshot on this machine."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source, "config.json", revision=revision)
    if not isinstance(found, str):
        raise FileNotFoundError(source)
    return Path(found).parent


def _files(folder: Path) -> list[Path]:
    """The weights that transformers loads from there."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    return [folder / name for name in sorted(set(json.loads((folder / INDEX).read_bytes())["weight_map"].values()))]


def _tensors(path: Path) -> Iterator[tuple[str, list[Any]]]:
    """Type, shape and sample of every tensor of a safetensors file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header, first = _header(descriptor)
        for name, entry in header.items():
            begin, end = (first + offset for offset in entry["data_offsets"])
            starts = (begin, max(begin, (begin + end - SAMPLE_BYTES) // 2), max(begin, end - SAMPLE_BYTES))
            sample = b"".join(os.pread(descriptor, min(SAMPLE_BYTES, end - start), start) for start in starts)
            yield name, [entry["dtype"], entry["shape"], hash_bytes(sample)]
    finally:
        os.close(descriptor)


def _header(descriptor: int) -> tuple[dict[str, Any], int]:
    """What a safetensors file says of each tensor, and where their bytes begin."""
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    header: dict[str, Any] = json.loads(os.pread(descriptor, length, 8))
    header.pop("__metadata__", None)
    return header, 8 + length
