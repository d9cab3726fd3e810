"""A checkpoint or a model is written aside, made durable and hashed, and appears whole.

    RUN/.saving-checkpoint-12/    being written; wiped when the next save begins
    RUN/checkpoint-12/            appears by one rename, its manifest already in it
    RUN/.removing-checkpoint-8/   an old checkpoint on its way out, no checkpoint any more

A crash at any point leaves every earlier checkpoint whole. The model lies in RUN itself, so that its files are renamed one by one, the
configuration last: without it nothing loads a model from the folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftcli.core.files.durable import exchange, free_bytes, size_of, sync, writing
from ftcli.core.files.manifest import describe, seal
from ftcli.errors import TrainError

SAVING, REMOVING = ".saving-", ".removing-"
MODEL_MANIFEST = "ftcli-model.json"
MODEL_SCHEMA = "ftcli.model/1"
ENTRANCES = ("adapter_config.json", "config.json")
"""What loading a model begins with."""


def aside(final: Path) -> Path:
    """Where `final` is written before it appears; the same on every rank."""
    return final.with_name(f"{SAVING}{final.name}")


def begin(final: Path) -> Path:
    """An empty folder to write `final` in."""
    folder = aside(final)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def sweep(run: Path) -> None:
    """Remove what an interrupted save or removal left behind."""
    for prefix in (SAVING, REMOVING):
        for folder in run.glob(f"{prefix}*"):
            shutil.rmtree(folder, ignore_errors=True)


def sealed(folder: Path, marker: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Make every file under `folder` durable, weights as readable as the folder, and write the manifest, which lists size and hash of each, last.

    Raises:
        PublishError: the file system refuses.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != marker)
    for path in paths:
        if path.suffix == ".safetensors":  # safetensors 0.8 lets only the owner read them, whatever the umask
            with suppress(OSError):  # a file system without such rights
                path.chmod(folder.stat().st_mode & 0o666)
    with ThreadPoolExecutor(1) as pool:  # the disk writes meanwhile: 1.8 of 6.9 s of the 9.6 GB of a run of 0.6 billion weights
        described = pool.map(lambda path: describe(path, str(path.relative_to(folder))), paths)
        for path in paths:
            sync(path)
        whole = {**document, "files": list(described)}
    (folder / marker).write_bytes(seal(whole))
    sync(folder / marker)
    for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        sync(inner)
    sync(folder)
    return whole


def appear(staged: Path, final: Path) -> None:
    """Make a sealed folder appear under its final name; a damaged one of that name is replaced."""
    if not final.exists():
        staged.rename(final)
    elif not exchange(staged, final):
        remove(final)
        staged.rename(final)
    sync(final.parent)
    shutil.rmtree(staged, ignore_errors=True)  # what was exchanged


def remove(folder: Path) -> None:
    """Remove a checkpoint so that a crash leaves it whole or not at all."""
    gone = folder.with_name(f"{REMOVING}{folder.name}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def publish_model(staged: Path, output: Path, document: Mapping[str, Any]) -> None:
    """Seal a model written to `staged` and move it to `output`; an older model there stops being one before its first file is replaced.

    Raises:
        PublishError, OSError: the file system refuses.
    """
    files = [entry["path"] for entry in sealed(staged, MODEL_MANIFEST, {"schema": MODEL_SCHEMA, **document})["files"]]
    older = [name for name in (*ENTRANCES, MODEL_MANIFEST) if (output / name).exists()]
    stale = [name for name in listed(output) if name not in files]
    for name in older:
        (output / name).unlink()
    if older:
        sync(output)
    for name in stale:
        (output / name).unlink(missing_ok=True)
    for name in (*sorted(set(files) - set(ENTRANCES)), MODEL_MANIFEST):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (staged / name).rename(output / name)
    sync(output)
    for name in ENTRANCES:
        if name in files:
            (staged / name).rename(output / name)
    sync(output)
    shutil.rmtree(staged, ignore_errors=True)


def withdraw(output: Path) -> None:
    """Make a model in `output` stop being one, that none stands beside what another run leaves there: first what loading begins with, then its weights.
    Its tokenizer stays, and the list of its files, by which the next model replaces them.

    Raises:
        PublishError: the file system refuses.
    """
    with writing(output):
        for name in ENTRANCES:
            (output / name).unlink(missing_ok=True)
        sync(output)
        for name in listed(output):
            if ".safetensors" in name:
                (output / name).unlink(missing_ok=True)


def refused(what: str, where: Path, staged: Path, error: BaseException, hint: str) -> TrainError:
    """What could not be written, with the bytes written and free. Removes the part that was written."""
    try:
        figures = f"; {size_of(staged):,} bytes of it were written, {free_bytes(where.parent):,} bytes are free there"
    except OSError as unknown:
        figures = f"; free bytes unknown ({unknown.strerror})"
    shutil.rmtree(staged, ignore_errors=True)
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return TrainError(f"the {what} {where} cannot be written: {reason}{figures}", hint)


def listed(output: Path) -> list[str]:
    """Files of the model that lies there, as far as it says."""
    try:
        return [str(entry["path"]) for entry in json.loads((output / MODEL_MANIFEST).read_bytes())["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
