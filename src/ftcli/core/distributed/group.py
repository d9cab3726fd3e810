"""The process group of a run: made with the timeout that was asked for, and named when a rank leaves it."""

from __future__ import annotations

import os
import traceback
from datetime import timedelta
from pathlib import Path

from torch import distributed

from ftcli.core.distributed import pulse
from ftcli.errors import RankError, SettingsError

TIMEOUT = 1800
"""Seconds; that of TrainingArguments.ddp_timeout."""
LEFT = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting", "gloo", "NCCL")


def world() -> int:
    """Ranks of the job, as its launcher says."""
    text = os.environ.get("WORLD_SIZE", "1")
    return int(text) if text.isdecimal() else 1


def join(timeout: int | None, backend: str | None) -> None:
    """Make the group of a run on CPUs. transformers would make it too, and leave the timeout out.

    Raises:
        SettingsError: a backend that needs GPUs.
    """
    if world() == 1 or "RANK" not in os.environ or distributed.is_initialized():
        return
    if backend not in {None, "gloo"}:
        raise SettingsError(f"train.ddp_backend = {backend}, but the run uses CPUs", "Remove it: gloo is used on CPUs.")
    distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout or TIMEOUT))


def leave() -> None:
    """End the group and the threads that work for it.

    A thread that lets go of a collective's tensors while the interpreter is torn down can have its lock no more, and the process is aborted after all
    its work is done (seen once, on a machine under load).
    """
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def left(error: BaseException) -> bool:
    """Whether a rank's call failed because another rank is gone."""
    known = getattr(distributed, "DistError", None)
    return (known is not None and isinstance(error, known)) or (world() > 1 and any(words in str(error) for words in LEFT))


def loss_of_a_rank(error: BaseException, stacks: Path) -> RankError:
    """What a rank says that lost another one; its own stack goes into the folder."""
    rank = pulse.current()
    number = 0 if rank is None else rank.rank
    stacks.mkdir(parents=True, exist_ok=True)
    pulse.stack_file(stacks, number).write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    told = str(error).strip().splitlines()[-1].partition(". This is typically")[0]
    return RankError(
        f"rank {number} has lost another rank: {told}",
        f"See the other rank's output for the cause; this rank's stack is in {stacks}. Then resume with --resume-from-checkpoint auto.",
    )
