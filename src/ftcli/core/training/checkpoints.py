"""Which checkpoints can be gone on from: a manifest, written last, lists a checkpoint's files with their hashes and what the run depends on."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.core.files.manifest import damage_of, unseal
from ftcli.core.models.frozen import BASE, CHECKPOINT, configuration_of, frozen_base
from ftcli.core.publishing import staging
from ftcli.core.storage.store import Store
from ftcli.errors import TrainError
from ftcli.machine import compute_threads
from ftcli.masking import masked
from ftcli.settings import Settings, get
from ftcli.versions import version

MARKER = CHECKPOINT
SCHEMA = "ftcli.checkpoint/2"
NEEDED = {
    "trainer_state.json": r"trainer_state\.json",
    "optimizer.pt": r"optimizer\.(pt|bin)|optimizer_\d+/.*|global_step\d+/.*",
    "scheduler.pt": r"scheduler\.pt|global_step\d+/.*",
    "rng_state.pth": r"rng_state(_\d+)?\.pth",
}
"""What a checkpoint is saved with, and the names it has under FSDP and DeepSpeed. Without optimizer and scheduler transformers starts over at the
peak learning rate, without the random state it drops other units, both in silence."""

EXACT = (
    "train.seed",
    "train.data_seed",
    "train.per_device_train_batch_size",
    "train.max_tokens_per_batch",
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
    "train.optim_target_modules",
    "train.neftune_noise_alpha",
    "train.ignore_data_skip",
    "train.dataloader_drop_last",
    "train.lean_step",
    "train.torch_compile",
    "train.torch_compile_backend",
    "train.torch_compile_mode",
    "train.use_liger_kernel",
    "train.liger_kernel_config",
    "train.tf32",
    "train.accelerator_config",
    "loader.collator",
    "loader.pad_to_multiple_of",
    "model.config_overrides",
    "model.dtype",
    "model.lora_r",
    "model.lora_alpha",
    "model.lora_dropout",
    "model.lora_target_modules",
    "model.load_in_4bit",
    "model.freeze_backbone",
    "train.class_weights",
    "train.metric_for_best_model",
    "train.greater_is_better",
)
"""Settings that a continued run cannot change: transformers ignores them (the learning rate, all that the saved optimizer holds) or the
batches become others."""
CONFIGURATION = "model.configuration"
MEANINGS = {
    "data": "the prepared data, and with them the rows and their order (`ftcli cache why` names what differs between two),",
    CONFIGURATION: "the configuration of the model",
    "model.base": "the base model that the adapters are trained on (a hash of its weights)",
    "precision": "the precision, which the device decides where train.bf16 is unset,",
    "threads": "the number of threads",
    "processes": "the number of processes, and with it the batch,",
    "train.learning_rate": "train.learning_rate, which the saved optimizer keeps,",
    "train.seed": "train.seed, and with it the order of rows,",
    "train.data_seed": "train.data_seed, and with it the order of rows,",
    "train.per_device_train_batch_size": "train.per_device_train_batch_size, and with it the rows of every step,",
    "train.max_tokens_per_batch": "train.max_tokens_per_batch, and with it the rows of every step,",
    "loader.collator": "loader.collator, and with it the order of rows,",
    "train.train_sampling_strategy": "train.train_sampling_strategy, and with it the order of rows,",
    "train.metric_for_best_model": "train.metric_for_best_model, of which the checkpoint keeps the best figure so far,",
    "train.ignore_data_skip": "train.ignore_data_skip, with which rows are trained on twice,",
}
"""What a difference means, where the setting's name does not say it."""
LENGTH = ("train.num_train_epochs", "train.max_steps")
KERNELS = ("model.attn_implementation", "train.full_determinism", "train.gradient_checkpointing")
"""Settings that choose other code for the same mathematics."""
BITS = ("versions.ftcli", "versions.torch", "versions.transformers", "threads", *KERNELS)
"""What changes the last bits of a sum: the run goes on, but not bitwise as it would have."""
HARMLESS = (*LENGTH, *BITS)
PRECISIONS = {"float32": "--no-bf16", "bfloat16": "--bf16", "float16": "--fp16"}
"""What a run computes in, and the flag that asks for it."""


def identity(context: Context, store: Store, mode: str, precision: str | None = None) -> dict[str, Any]:
    """What a continued run must have in common with the one before.

    Args:
        precision: as settled for the run; None: before that, when only what the user asks for is known.
    """
    settings = context.settings
    values = {key: _plain(get(settings, key)) for key in (*EXACT, *LENGTH, *KERNELS)}
    told = {"precision": precision or _asked(settings)}
    with suppress(OSError, ValueError, KeyError):  # not here yet, where nothing has loaded it
        told[BASE] = frozen_base(settings) or "none"
        told[CONFIGURATION] = configuration_of(settings)
    return {
        "data": store.fingerprint,
        "mode": mode,
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        **{key: masked(value) if isinstance(value, str) else value for key, value in values.items()},
        **{f"versions.{name}": version(name) for name in ("ftcli", "torch", "transformers")},
        "threads": compute_threads(settings.runtime.threads, context.machine.cores).value,
        **{key: value for key, value in told.items() if value is not None},
    }


def seal(folder: Path, identity: Mapping[str, Any], kept: Mapping[str, Any] | None = None) -> None:
    """Make a written checkpoint durable, and mark it as complete by a manifest with size and hash of every file.

    Args:
        kept: what a run that goes on from it must know beside what `Trainer` saves.
    """
    staging.sealed(folder, MARKER, {"schema": SCHEMA, "identity": dict(identity), "kept": dict(kept or {})})


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        OSError, ValueError: there is none, or it is damaged.
    """
    document = unseal((folder / MARKER).read_bytes())
    if document.get("schema") != SCHEMA:
        raise ValueError(f"it has the format {document.get('schema')!r}, but this version of ftcli reads {SCHEMA!r}")
    return document


def newest(run: Path, note: Callable[[str], None], *, full: bool = True, before: float = math.inf) -> Path | None:
    """The newest complete checkpoint of a run, of step `before` at most; what is passed over is noted with the reason."""
    for folder in reversed(_all(run)):
        if step_of(folder) > before:
            continue
        problem = damage(folder, full=full)
        if not problem:
            return folder
        note(f"{folder} is passed over: {problem}")
    return None


def damage(folder: Path, *, full: bool = False, weights: bool = False) -> str:
    """Why a checkpoint cannot be used, in words; empty when it can.

    Args:
        full: compare every byte with its hash; otherwise sizes, and the first and last 64 KiB of each file.
        weights: it need not be one to go on from, where the run saves weights alone (`save_only_model`).
    """
    try:
        document = read(folder)
        files = document["files"]
    except FileNotFoundError:
        return f"it is incomplete, or was not written by ftcli ({MARKER} is missing)"
    except (OSError, ValueError, KeyError) as error:
        return f"{MARKER} cannot be read: {error}"
    for entry in files:
        if found := damage_of(folder, entry, full=full):
            return f"{found.path} {found.words}"
    if weights and document.get("kept", {}).get("weights_alone"):
        return ""
    names = [entry["path"] for entry in files]
    for name, pattern in NEEDED.items():
        if not any(re.fullmatch(pattern, found) for found in names):
            return f"it was saved without {name}"
    return ""


def rotate(run: Path, limit: int | None, best: str | None, note: Callable[[str], None]) -> None:
    """Remove the oldest complete checkpoints beyond `limit`, never the newest and the best. Damaged ones do not count, and stay for a look."""
    valid = [folder for folder in _all(run) if not damage(folder, weights=True)]
    kept = {valid[-1]} if valid else set()
    if best is not None:
        kept |= {folder for folder in valid if folder.name == Path(best).name}
    spare = [folder for folder in valid if folder not in kept]
    for folder in spare[: max(0, len(valid) - limit)] if limit else []:
        try:
            staging.remove(folder)
        except OSError as error:
            note(f"the old checkpoint {folder} cannot be removed: {error.strerror or error}")


def choose(wanted: str, run: Path, note: Callable[[str], None], *, full: bool = True) -> Path | None:
    """The checkpoint to go on from: `wanted` is "auto" (None when there is none yet) or a folder.

    Args:
        full: compare every byte, as whoever goes on from it should.

    Raises:
        TrainError: the named checkpoint cannot be used.
    """
    if wanted == "auto":
        found = newest(run, note, full=full)
        note(f"resuming from {found}" if found else f"{run} holds no complete checkpoint: starting at step 0")
        return found
    folder = Path(wanted)
    if not folder.is_dir():
        raise TrainError(
            f"the checkpoint {folder} does not exist", "Give a checkpoint folder, or auto for the newest in the output directory."
        )
    if problem := damage(folder, full=full):
        raise TrainError(
            f"the checkpoint {folder} cannot be used: {problem}", "Give another one, or let --resume-from-checkpoint auto choose."
        )
    return folder


def compare(folder: Path, identity: Mapping[str, Any], note: Callable[[str], None], *, ended: bool = False) -> None:
    """Raise `TrainError` when the run could not go on exactly: lists every difference. What is harmless, or known of one of them only, is noted.

    Args:
        ended: no step is left, so that another length changes nothing.
    """
    if unknown := sorted(identity.keys() ^ read(folder)["identity"].keys()):
        note(f"{folder.name} and this run cannot be compared in {', '.join(unknown)}, which one of them does not record")
    changed = differences(folder, identity)
    if identity.get("train.max_steps", -1) > 0 and "train.max_steps" not in changed:
        changed.pop("train.num_train_epochs", None)  # steps decide
    for key in LENGTH:
        if key in changed:
            old, new = changed.pop(key)
            if not ended:
                note(f"{key} was {old} in {folder.name} and is {new} now: from here on the learning rate follows the new length")
    for key in BITS:
        if key in changed:
            old, new = changed.pop(key)
            note(f"{MEANINGS.get(key, key)} was {old} in {folder.name} and is {new} now: the weights may differ in their last bits")
    if changed:
        raise TrainError(f"{folder} belongs to another run: {listed(changed)}", advice(changed))


def listed(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Differences in words; of a configuration, the values that differ."""
    return "; ".join(
        f"{MEANINGS[key]} differs in {_unlike(old, new)}" if key == CONFIGURATION else f"{MEANINGS.get(key, key)} was {old}, now {new}"
        for key, (old, new) in changed.items()
    )


def _unlike(old: str, new: str) -> str:
    before, now = json.loads(old), json.loads(new)
    keys = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    return ", ".join(f"{key} (was {before.get(key)!r:.60}, now {now.get(key)!r:.60})" for key in keys)


def advice(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """What to do about differences that a run cannot go on with."""
    words = ["Use the old values to resume, or start a new run in another --output-dir."]
    if "precision" in changed:
        old = changed["precision"][0]
        words.append(f"{PRECISIONS.get(old, '--no-bf16')} asks for {old}.")
    if "model.base" in changed:
        words.append("A base that was moved is recognized by its content: set --model-name-or-path to its folder.")
    return " ".join(words)


def differences(folder: Path, identity: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What a complete checkpoint and a run do not have in common: key → (old, new). What the checkpoint does not say is not compared."""
    before: Mapping[str, Any] = read(folder)["identity"]
    return {key: (before[key], value) for key, value in identity.items() if key in before and before[key] != value}


def go_back(run: Path, before: int, note: Callable[[str], None]) -> Path | None:
    """The newest complete checkpoint of step `before` at most; newer ones, of a course that is given up, are removed."""
    folder = newest(run, note, before=before)
    if folder is not None:
        for newer in (path for path in _all(run) if step_of(path) > step_of(folder)):
            staging.remove(newer)
    return folder


def step_of(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def remove_all(run: Path, needed: Sequence[Path]) -> None:
    """Remove the checkpoints of an earlier run; a link to one is taken away, and what has another name stays.

    Raises:
        TrainError: something `needed` lies in one of them.
    """
    found = _all(run)
    for folder in found:
        if any(path.is_relative_to(folder.resolve()) for path in needed):
            raise TrainError(f"the run starts from {folder}, which overwriting --output-dir would delete", "Name another --output-dir.")
    for folder in found:
        if folder.is_symlink() or not folder.is_dir():
            folder.unlink()
        else:
            shutil.rmtree(folder)


def _all(run: Path) -> list[Path]:
    """Checkpoint folders in the order of their steps."""
    return sorted((path for path in run.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)), key=step_of)


def _asked(settings: Settings) -> str | None:
    """The precision that the user asks for; None: device and model decide."""
    train = settings.train
    if train.bf16 is None and not train.fp16:
        return None
    return "bfloat16" if train.bf16 else "float16" if train.fp16 else "float32"


def _plain(value: Any) -> Any:
    """The value as a manifest holds it; the order of a mapping's keys says nothing."""
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True, default=str)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
