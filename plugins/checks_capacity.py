"""Checks of whether the planned run fits: shared memory of its workers, disk of its checkpoints, memory of its training step."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.models.trainable_weights import Learned
    from ftcli.core.verify.probe import Probe

GIB, MIB = 2**30, 2**20
BYTES_A_SLOT = 24
"""input_ids, attention_mask and labels of a token, int64."""
SMALLER = {
    "all": "Use a smaller model, LoRA (--lora-r 16), --optim adafactor, or several GPUs with FSDP or DeepSpeed.",
    "adapter": "Use a smaller model, a base in 16 bits (--dtype bfloat16) or 4 bits (--load-in-4bit), or several GPUs with FSDP or DeepSpeed.",
    "head": "Use a smaller model, or one in 16 bits (--dtype bfloat16).",
}
"""What helps where weights, gradients and optimizer alone do not fit."""


def shared_memory(probe: Probe) -> Check:
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, passed, warned
    from ftcli.machine import shared_memory as of_machine

    loader, free = probe.settings.loader, of_machine()
    if not loader.num_workers:
        return passed("no DataLoader workers: batches need no shared memory", free=free)
    if free is None:
        raise Missing("this system has no /dev/shm")
    rows = probe.settings.train.per_device_train_batch_size
    guessed = False
    try:
        width = _width(probe)
    except Missing:
        width, guessed = 1024, probe.settings.train.max_tokens_per_batch is None
    ahead = loader.num_workers * (loader.prefetch_factor or 2) + 1
    need = ahead * (probe.settings.train.max_tokens_per_batch or rows * width) * BYTES_A_SLOT
    evidence = {"free_mb": round(free / MIB, 1), "needed_mb": round(need / MIB, 1), "workers": loader.num_workers, "batches_ahead": ahead}
    words = f"{loader.num_workers} DataLoader workers hold up to {need / MIB:,.1f} MB of batches in /dev/shm, {free / MIB:,.0f} MB are free"
    if need > free:
        judge = warned if guessed else failed
        return judge(
            words, "Give the container more shared memory (docker run --shm-size 8g), or use --dataloader-num-workers 0.", **evidence
        )
    return passed(words, **evidence)


def space(probe: Probe) -> Check:
    from ftcli.core.models.step_memory import state_bytes
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, passed, warned

    train = probe.settings.train
    folder = train.output_dir
    if folder is None:
        raise Missing("no --output-dir")
    learned = _learned(probe)
    one = learned.kept + (0 if train.save_only_model else state_bytes(train.optim, learned))
    kept = 0 if train.save_strategy == "no" else (train.save_total_limit or 10) + 1
    held = min(kept, sum(path.is_dir() for path in Path(folder).glob("checkpoint-*")))  # of a run that goes on: they have their space
    need = one * (kept - held) + learned.kept
    least = (one if kept else 0) + learned.kept
    where = next(path for path in [Path(folder).absolute(), *Path(folder).absolute().parents] if path.exists())
    free = min(shutil.disk_usage(where).free, probe.machine.disk_free_bytes) if _same_disk(where) else shutil.disk_usage(where).free
    evidence = {
        "weights": learned.every,
        "learned": learned.count,
        "checkpoint_gb": round(one / GIB, 3),
        "checkpoints": kept,
        "held": held,
        "needed_gb": round(need / GIB, 3),
        "free_gb": round(free / GIB, 1),
    }
    saved = "adapter" if learned.kind == "adapter" else "model"
    more = f"{kept - held}{' more' if held else ''} checkpoint{'' if kept - held == 1 else 's'} of {one / GIB:.2f} GB and the {saved} need"
    words = f"{more if kept else f'the {saved} needs'} {need / GIB:.2f} GB, {free / GIB:.2f} GB are free at {folder}"
    fix = "Free space, keep fewer with --save-total-limit 1, or save no optimizer state with --set train.save_only_model=true."
    fix = fix if kept else "Free space, or name an --output-dir on another disk."
    if least > free:
        return failed(words, fix, **evidence)
    return warned(words, fix, **evidence) if need > 0.95 * free else passed(words, **evidence)


def step_memory(probe: Probe) -> Check:
    from ftcli.core.models.step_memory import loss_in_pieces, training_step
    from ftcli.core.models.trainable_weights import weights_type
    from ftcli.core.verify.verdict import noted, passed, warned

    train, machine = probe.settings.train, probe.machine
    config = _config(probe)
    on_gpu = bool(machine.gpus) and not train.use_cpu
    width = _width(probe)
    budget = train.max_tokens_per_batch
    rows = train.per_device_train_batch_size if budget is None else max(1, budget // width)
    whole = (
        train.lean_step == "off" or train.torch_compile is True or train.fp16 or train.fsdp or train.deepspeed or not loss_in_pieces(config)
    )
    learned = _learned(probe)
    step = training_step(
        config,
        learned,
        head=_labels(probe),
        rows=rows,
        width=width,
        optimizer=train.optim,
        half=bool(train.bf16 or train.fp16 or (train.bf16 is None and _has_bf16(probe))),
        half_weights=weights_type(probe.settings, config) in {"bfloat16", "float16"},
        recompute=bool(train.gradient_checkpointing),
        pieces_on=None if whole else "gpu" if on_gpu else "cpu",
    )
    device = machine.gpus[0].memory_bytes if on_gpu else machine.memory_available_bytes
    room = f"the {machine.gpus[0].name} has {device / GIB:.0f} GB" if on_gpu else f"{device / GIB:.0f} GB of memory are free"
    parts = {part: round(getattr(step, part) / GIB, 3) for part in ("weights", "gradients", "optimizer", "activations", "logits")}
    evidence: dict[str, Any] = {
        **parts,
        "total_gb": round(step.total / GIB, 3),
        "device_gb": round(device / GIB, 1),
        "rows": rows,
        "width": width,
        "learned": learned.count,
    }
    words = f"a training step takes about {step.total / GIB:.2f} GB ({step.lasting / GIB:.2f} of it for weights, gradients and optimizer), {room}"
    if not device:
        return noted(f"{words.rsplit(',', 1)[0]}; how much the GPU has is unknown", **evidence)
    if train.deepspeed or train.fsdp:
        return noted(f"{words}; how DeepSpeed or FSDP shard it is not estimated", **evidence)
    if step.lasting > device:
        return warned(words, SMALLER[learned.kind], **evidence)
    if step.total > device:
        size = "--per-device-train-batch-size" if budget is None else "--max-tokens-per-batch"
        fix = f"Lower {size} and raise --gradient-accumulation-steps by the same factor, or use --gradient-checkpointing."
        return warned(words, fix, **evidence)
    return passed(words, **evidence)


def _learned(probe: Probe) -> Learned:
    from ftcli.core.models.trainable_weights import learned
    from ftcli.core.verify.probe import Missing

    found = learned(probe.settings, _config(probe), _labels(probe))
    if found is None:
        raise Missing("the number of parameters cannot be derived from this configuration")
    return found


def _config(probe: Probe) -> Any:
    """The configuration; what is wrong with it is said by the checks of the data and the model."""
    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    try:
        return probe.config
    except FtcliError as error:
        raise Missing(error.message) from error


def _labels(probe: Probe) -> int | None:
    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    if probe.task_name == "regress":
        return 1
    if probe.task_name != "classify":
        return None
    try:
        return len(probe.store.label_names or []) or 2
    except (Missing, FtcliError):
        return 2


def _width(probe: Probe) -> int:
    """Slots of the widest row that the run can meet; what is wrong with the data is said by their checks."""
    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    try:
        longest = int(probe.train_split.lengths.max(initial=1))
        return max(longest, probe.store.max_length) if probe.settings.loader.collator == "fixed" else longest
    except FtcliError as error:
        raise Missing(error.message) from error


def _has_bf16(probe: Probe) -> bool:
    if probe.machine.gpus and not probe.settings.train.use_cpu:
        return not (probe.machine.gpus[0].capability or "8").startswith(("5.", "6.", "7."))
    return bool({"avx512_bf16", "amx_bf16"} & set(probe.machine.cpu_flags))


def _same_disk(path: Path) -> bool:
    return path.stat().st_dev == Path.cwd().stat().st_dev


CHECKS = (
    CheckKind("FT006", "env", "Shared memory", shared_memory),
    CheckKind("FT008", "env", "Space for checkpoints", space),
    CheckKind("FT009", "env", "Memory of a step", step_memory, severity="warn"),
)
