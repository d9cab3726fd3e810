"""Room for threads, processes and memory: whether there is some, and whose limit it was when the system refused."""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from contextlib import suppress
from functools import cache

from ftcli.errors import FtcliError, LimitError

COMMAND = 16
"""Threads that a command is sure to need beside its first one: tokenizing on two cores has 18 at most, with its workers."""
READER = 4
"""Threads that a reader of pyarrow needs to go on: with fewer it waits for ever for the one that it could not start."""
_THREADS = re.compile("can't start new thread|Resource temporarily unavailable|ThreadPoolBuildError")
_MEMORY = re.compile("failed to map segment|cannot allocate memory|bad_alloc", re.IGNORECASE)
ADDRESSES = 3 << 29
"""Bytes of address space that a command needs: torch's and Arrow's libraries take 1 GB, and Arrow aborts where it gets no buffer."""
_OF_LIBRARIES = re.compile("can't start new thread|ThreadPoolBuildError|failed to map segment")
"""What an error that is told to people already may hold without knowing its cause. Others have an advice of their own, as where a batch does not fit."""
_NEAR = 64
"""A limit that leaves room for more is not the one that was met."""
LESS = "; --num-proc 1 and OMP_NUM_THREADS=1 need less."


def lacks(threads: int) -> bool:
    """Whether so many further threads cannot be started now; 50 µs for each of them. Where address space is limited fewer are tried: malloc keeps
    64 MB of it for each that there was."""
    gate = threading.Event()
    started: list[threading.Thread] = []
    threads = min(threads, READER) if _address_space() else threads
    try:
        for _ in range(threads):
            thread = threading.Thread(target=gate.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return True
    finally:
        gate.set()
        for thread in started:
            thread.join()
            while os.path.exists(f"/proc/self/task/{thread.native_id}"):  # noqa: PTH110 - it counts until the system has ended it
                time.sleep(0)
    return False


def require(threads: int) -> None:
    """
    Raises:
        LimitError: so many further threads cannot be started now.
    """
    if lacks(threads):
        raise _of_threads(f"{threads} more are needed")


@cache
def require_readers() -> None:
    """As `require`, for pyarrow's readers, once in a process: a try takes 1 ms, and there may be many shards."""
    require(READER)


def require_command() -> None:
    """
    Raises:
        LimitError: a command that computes could not even load its libraries, or would be aborted by one of them.
    """
    if (address := _address_space()) and _address_limit() < ADDRESSES:
        from ftcli.core.figures import memory

        raise LimitError(f"{address}: at least {memory(ADDRESSES)} are needed", "Raise it: ulimit -v unlimited")
    require(COMMAND)


def shortage(error: BaseException) -> LimitError | None:
    """What an error says to people that means that the system gave no thread, no process or no memory."""
    told = isinstance(error, FtcliError)
    if isinstance(error, LimitError) or (told and not _OF_LIBRARIES.search(str(error))):
        return None
    lines = (str(error) if told else f"{type(error).__name__}: {error}").splitlines()
    reason = next((line for line in lines if _MEMORY.search(line) or _THREADS.search(line)), lines[0] if lines else "")[
        :300
    ]  # numpy's has 25
    if isinstance(error, MemoryError) or _MEMORY.search(reason):
        address = _address_space()
        hint = "Raise it (ulimit -v unlimited)" if address else "Free some, or get more of it"
        return LimitError(f"memory ran out: {reason}{address and f'; {address}'}", f"{hint}{LESS}")
    return _of_threads(reason, LESS) if _THREADS.search(reason) else None


def _of_threads(reason: str, less: str = ".") -> LimitError:
    limits, ways = _limits()
    return LimitError(f"no further process or thread can be started: {reason}; {limits}", f"{ways}{less}")


def _limits() -> tuple[str, str]:
    """The limits on processes and threads that may have been met, with what there is of them, and what to do."""
    import psutil

    from ftcli.machine import cgroup_limits

    limit, user, have = resource.getrlimit(resource.RLIMIT_NPROC)[0], os.getuid(), 0
    if address := _address_space():
        return f"{address}, of which each thread takes some", "Raise it (ulimit -v unlimited)"
    if user and limit != resource.RLIM_INFINITY:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                have += process.num_threads() if process.uids().real == user else 0
        if limit - have < _NEAR:
            return (
                f"the user {user} may have {limit:,} at once (ulimit -u) and has {have:,}",
                "Stop processes this user does not need (ps -L -u $USER), or have the limit raised (ulimit -u, nproc in /etc/security/limits.conf)",
            )
    if most := cgroup_limits()[2]:
        return (
            f"the container or cgroup may have {most:,} at once (pids.max)",
            "Have it raised (docker run --pids-limit, TasksMax= of systemd)",
        )
    return "the machine has no more", "Stop processes that are not needed, or raise kernel.threads-max and kernel.pid_max"


def _address_space() -> str:
    """The limit on this process's address space, in words; "" where there is none."""
    limit = _address_limit()
    if limit < 0:
        return ""
    import psutil

    from ftcli.core.figures import memory

    return f"this process may have {memory(limit)} of address space (ulimit -v) and has {memory(psutil.Process().memory_info().vms)}"


def _address_limit() -> int:
    """Bytes; -1 where there is none."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return -1 if limit == resource.RLIM_INFINITY else limit
