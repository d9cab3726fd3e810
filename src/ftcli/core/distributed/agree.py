"""What all ranks of a job decide alike; alone, a process decides for itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import distributed

from ftcli.core.distributed.signals import Signals
from ftcli.errors import FtcliError

T = TypeVar("T")


def several() -> bool:
    """Whether this process is one of several ranks that can speak to each other."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def anyone(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on any rank; every rank must ask."""
    if not several():
        return flag
    shared = torch.tensor([flag], dtype=torch.int32, device=device)
    distributed.all_reduce(shared, op=distributed.ReduceOp.MAX)
    return bool(shared.item())


def stopped(signals: Signals) -> bool:
    """Whether a signal asked any rank to stop; from then on every rank knows. Every rank must ask.

    It is asked after every step, so that the flags travel over the CPUs (0.1 ms on one machine): on a GPU they would wait for all work
    that is queued there.
    """
    wanted = signals.received is not None
    if several():
        flag = torch.tensor([wanted], dtype=torch.int32)
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX, group=_over_cpus())
        wanted = bool(flag.item())
    if wanted:
        signals.hear("a signal to another process")
    return wanted


@cache
def _over_cpus() -> distributed.ProcessGroup | None:
    """A group of all ranks for tensors in main memory; None: the default one."""
    return None if distributed.get_backend() == "gloo" else distributed.new_group(backend="gloo")


def summed(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The sum over the ranks that have one; None when none has."""
    if not several():
        return tensor
    found = [each for each in gathered(None if tensor is None else tensor.cpu()) if each is not None]
    return torch.stack(found).sum(0) if found else None


def gathered(value: T) -> list[T]:
    """The values of all ranks in their order, on every rank."""
    if not several():
        return [value]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found


def first_decides(decide: Callable[[], T]) -> T:
    """What `decide` gives on rank 0, on every rank; an `FtcliError` of it is raised on every rank."""
    if not several():
        return decide()
    answer: list[Any] = [None]
    if distributed.get_rank() == 0:
        try:
            answer[0] = decide()
        except FtcliError as error:
            answer[0] = error
    distributed.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], FtcliError):
        raise answer[0]
    found: T = answer[0]
    return found
