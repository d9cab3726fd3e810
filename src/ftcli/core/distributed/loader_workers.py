"""Processes that load data for a DataLoader, and signals that are meant for the run.

Whoever ends a job signals all of its processes. torch has a loader die of SIGTERM at once, and the process that is to save its last checkpoint then fails with
"DataLoader worker is killed by signal" in the middle of the save.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from functools import cache
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any

from torch.multiprocessing import get_start_method, reductions
from torch.utils.data import DataLoader, get_worker_info

from ftcli.errors import FtcliError

CAUGHT = "Caught "
"""How torch begins what it says of an error in a process that loads data, which is alive."""


class _Process(ForkProcess):
    """It begins with SIGTERM blocked: Arrow makes new threads in a forked process, and any of them would take the signal."""

    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(ForkContext):
    Process = _Process


def outliving(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The same, whose processes begin so that `outlive_termination` can keep SIGTERM from them. Those that are not forked it cannot."""
    context = loader.multiprocessing_context
    forked = get_start_method() == "fork" if context is None else isinstance(context, ForkContext)
    if loader.num_workers and forked and hasattr(signal, "sigwaitinfo"):
        loader.multiprocessing_context = _Context()
    return loader


def outlive_termination() -> None:
    """In a process of such a loader, heed SIGTERM only from the process that it loads for, which `sigwaitinfo` tells. Elsewhere nothing."""
    if get_worker_info() is not None and signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        _heed_parent()


@cache
def _heed_parent() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a thread with a mask of its own may be there all the same
    threading.Thread(target=_heed, args=(os.getppid(),), daemon=True).start()


def of_a_loader(error: FtcliError) -> FtcliError:
    """The error as it was raised in a process that loads data: torch raises it again with the whole traceback for its words, and without its hint."""
    if not error.message.startswith(CAUGHT):
        return error
    words = error.message.rstrip().rpartition(f"{type(error).__name__}: ")[2]
    return type(error)(words, "To see the full error, load the data in the main process: --dataloader-num-workers 0.")


def of_a_dead_loader(error: Exception) -> bool:
    """Whether an error comes of the death of a process that loads data: torch says so, or cannot take over a tensor from who made it."""
    taking_over = (frame.f_code.co_filename == reductions.__file__ for frame, _ in traceback.walk_tb(error.__traceback__))
    said = str(error)
    return ("DataLoader worker" in said and not said.startswith(CAUGHT)) or (isinstance(error, (OSError, EOFError)) and any(taking_over))


def _heed(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
