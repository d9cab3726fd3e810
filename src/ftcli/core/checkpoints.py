"""Which checkpoints can be gone on from: a marker, written last, lists a checkpoint's files and what the run depends on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.core.store import Store
from ftcli.errors import TrainError
from ftcli.settings import get

MARKER = "ftcli-checkpoint.json"
SCHEMA = "ftcli.checkpoint/1"
NEEDED = ("trainer_state.json", "optimizer.pt", "scheduler.pt")
"""Without the last two transformers starts over at the peak learning rate, in silence."""

EXACT = (
    "train.seed",
    "train.data_seed",
    "train.per_device_train_batch_size",
    "train.gradient_accumulation_steps",
    "train.learning_rate",
    "train.lr_scheduler_type",
    "train.warmup_steps",
    "train.optim",
    "train.weight_decay",
    "train.max_grad_norm",
    "train.train_sampling_strategy",
    "train.lr_scheduler_kwargs",
    "train.adam_beta1",
    "train.adam_beta2",
    "train.adam_epsilon",
    "train.optim_args",
    "train.ignore_data_skip",
    "train.dataloader_drop_last",
    "loader.collator",
    "loader.pad_to_multiple_of",
)
"""Settings that a continued run cannot change: transformers ignores them (the learning rate, all that the saved optimizer holds) or the
batches become others."""
MEANINGS = {
    "data": "the prepared data, and with them the rows and their order,",
    "processes": "the number of processes, and with it the batch,",
    "train.learning_rate": "train.learning_rate, of which the saved optimizer keeps the old one,",
    "train.seed": "train.seed, and with it the order of rows,",
    "train.data_seed": "train.data_seed, and with it the order of rows,",
    "train.per_device_train_batch_size": "train.per_device_train_batch_size, and with it the rows of every step,",
    "loader.collator": "loader.collator, and with it the order of rows,",
    "train.train_sampling_strategy": "train.train_sampling_strategy, and with it the order of rows,",
    "train.ignore_data_skip": "train.ignore_data_skip, by which rows are trained on twice,",
}
"""What a difference means, where the setting's name does not say it."""
LENGTH = ("train.num_train_epochs", "train.max_steps")


def identity(context: Context, store: Store, mode: str) -> dict[str, Any]:
    """What a continued run must have in common with the one before."""
    values = {key: _plain(get(context.settings, key)) for key in (*EXACT, *LENGTH)}
    return {"data": store.fingerprint, "mode": mode, "processes": int(os.environ.get("WORLD_SIZE", "1")), **values}


def seal(folder: Path, identity: Mapping[str, Any]) -> None:
    """Mark a written checkpoint as complete."""
    files = {
        str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MARKER
    }
    temporary = folder / f"{MARKER}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"schema": SCHEMA, "identity": dict(identity), "files": files}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MARKER)


def newest(run: Path, note: Callable[[str], None]) -> Path | None:
    """The newest complete checkpoint of a run; what is passed over is noted with the reason."""
    for folder in reversed(_all(run)):
        problem = damage(folder)
        if not problem:
            return folder
        note(f"{folder} is passed over: {problem}")
    return None


def damage(folder: Path) -> str:
    """Why a checkpoint cannot be used, in words; empty when it can."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        files: Mapping[str, int] = marker["files"]
    except FileNotFoundError:
        return f"it is incomplete, or not ftcli's ({MARKER} is missing)"
    except (OSError, ValueError, KeyError) as error:
        return f"{MARKER} cannot be read: {error}"
    for name, size in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes instead of {size:,}"
    if lacking := [name for name in NEEDED if name not in files]:
        return f"it was saved without {lacking[0]}"
    return ""


def choose(wanted: str, run: Path, note: Callable[[str], None]) -> Path | None:
    """The checkpoint to go on from: `wanted` is "auto" (None when there is none yet) or a folder.

    Raises:
        TrainError: the named checkpoint cannot be used.
    """
    if wanted == "auto":
        found = newest(run, note)
        note(f"going on from {found}" if found else f"{run} holds no complete checkpoint: starting at step 0")
        return found
    folder = Path(wanted)
    if not folder.is_dir():
        raise TrainError(
            f"the checkpoint {folder} does not exist", "Give a checkpoint folder, or auto for the newest in the output directory."
        )
    if problem := damage(folder):
        raise TrainError(f"the checkpoint {folder} cannot be used: {problem}", "Name another, or let --resume-from-checkpoint auto choose.")
    return folder


def compare(folder: Path, identity: Mapping[str, Any], note: Callable[[str], None]) -> None:
    """Raise `TrainError` when the run could not go on exactly: lists every difference. A changed length is only noted."""
    changed = differences(folder, identity)
    for key in LENGTH:
        if key in changed:
            old, new = changed.pop(key)
            note(f"{key} was {old} in {folder.name} and is {new} now: the learning rate follows the new length from here on")
    if changed:
        listed = "; ".join(f"{key} was {old}, now {new}" for key, (old, new) in changed.items())
        raise TrainError(
            f"{folder} belongs to another run: {listed}",
            "Give the old values to go on, or start a new run in another --output-dir.",
        )


def differences(folder: Path, identity: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What a complete checkpoint and a run do not have in common: key → (old, new)."""
    before: Mapping[str, Any] = json.loads((folder / MARKER).read_text(encoding="utf-8"))["identity"]
    return {key: (before.get(key), value) for key, value in identity.items() if before.get(key) != value}


def _all(run: Path) -> list[Path]:
    """Checkpoint folders in the order of their steps."""
    numbered = [(int(found[1]), path) for path in run.glob("checkpoint-*") if (found := re.fullmatch(r"checkpoint-(\d+)", path.name))]
    return [path for _, path in sorted(numbered)]


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
