"""What a worker asks of its machine's loader."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path

from ftcli.core.processes.child import Child
from ftcli.core.processes.copied import Copied, possible

from . import ray_loader
from .ray_loader import Answer

REACH_SECONDS = 10.0
"""To reach a loader, or to start one."""
POLL_SECONDS = 0.01
BACKLOG = 1024


class Host:
    """A connection to the loader of this run on this machine, which is started if there is none.

    Args:
        run: a word that the workers of one run have in common and nobody else has.
        threads: threads its libraries compute with.

    Raises:
        OSError: there is none and none can be started: not on Linux, or refused there, or no process, or no file is to be had.
    """

    def __init__(self, run: str, threads: int) -> None:
        if not possible():
            raise OSError("no copies here")
        self._pipe = _reached(_name(run, threads), threads)

    def load(self, number: int, function: Callable[[], bytes]) -> Answer:
        """Have it loaded what has this number, if it is not yet; the function gives it pickled. Raises OSError or EOFError: the loader is gone."""
        self._pipe.send(("load", number))
        answer: Answer | None = self._pipe.recv()
        if answer is None:
            self._pipe.send_bytes(function())
            answer = self._pipe.recv()
        assert answer is not None
        return answer

    def copy(self) -> Child | None:
        """A copy; None if there can be none. Raises OSError or EOFError: the loader is gone."""
        self._pipe.send(("copy",))
        pid: int | None = self._pipe.recv()
        if pid is None:
            return None
        pipe = Connection(recv_handle(self._pipe))
        try:
            return Child(tie=(pipe, Copied(pid, self)))
        except ProcessLookupError:  # dead and forgotten: the loader was killed just now
            pipe.close()
            raise

    def keep(self, child: Child) -> bool:
        """Give it a copy that has made a shard, to make the next ones of; False if it has one. Raises OSError or EOFError: the loader is gone."""
        self._pipe.send(("keep", child.pid))
        wanted: bool = self._pipe.recv()
        if wanted:
            send_handle(self._pipe, child.pipe.fileno(), child.pid)
            child.pipe.close()
        return wanted

    def exit_code(self, pid: int) -> int | None:
        """Of a copy that has ended; None where nobody knows."""
        with suppress(OSError, EOFError):
            self._pipe.send(("ended", pid))
            code: int | None = self._pipe.recv()
            return code
        return None

    def close(self) -> None:
        self._pipe.close()


def _name(run: str, threads: int) -> bytes:
    """An address without a file, which nobody has to remove. Who runs other code, or sees other processes by the same number, has another one."""
    same = (run, os.getuid(), Path("/proc/self/ns/pid").readlink(), sys.executable, sys.path, threads)
    return b"\0ftcli-loader-" + hashlib.sha256(repr(same).encode()).hexdigest().encode()


def _reached(name: bytes, threads: int) -> Connection:
    until = time.monotonic() + REACH_SECONDS
    while time.monotonic() < until:
        reached = socket.socket(socket.AF_UNIX)
        try:
            reached.connect(name)
        except ConnectionRefusedError:
            reached.close()
            _start(name, threads)
            continue
        if ray_loader.user(reached) == os.getuid():
            return Connection(reached.detach())
        reached.close()
        break
    raise OSError("no loader is to be had")


def _start(name: bytes, threads: int) -> None:
    """Nothing happens where another worker was faster: two cannot listen at one name."""
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            listening.bind(name)
        except OSError:  # not yet, perhaps
            time.sleep(POLL_SECONDS)
            return
        listening.listen(BACKLOG)
        try:
            ray_loader.start(listening, threads)
        except subprocess.CalledProcessError as error:
            raise OSError(str(error)) from error
