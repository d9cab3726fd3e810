"""Processes that load data for a DataLoader, and signals that are meant for the run."""

from __future__ import annotations

import os
import signal
import threading
from functools import cache

from torch.utils.data import get_worker_info


def outlive_termination() -> None:
    """In a process that loads data, heed SIGTERM only from the process that it loads for. Elsewhere nothing.

    Whoever ends a job signals all of its processes. torch has a loader die of that at once, and the process that is to save its last checkpoint then fails
    with "DataLoader worker is killed by signal" in the middle of the save. Which process has sent a signal only `sigwaitinfo` tells.
    """
    if get_worker_info() is not None and hasattr(signal, "sigwaitinfo"):
        _outlive()


@cache
def _outlive() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in the threads to come as well
    threading.Thread(target=_heed, args=(os.getppid(),), daemon=True).start()


def _heed(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
