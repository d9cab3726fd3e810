"""The process on a machine of a Ray cluster that loads what the workers of one run need there; they work in copies of it.

64 workers on a machine that each load for themselves are 64 times 1.5 s of CPU and 64 times the memory, and Ray's process around a worker takes
with it what was loaded inside. So the loader belongs to none of them: it ends when nobody has been connected for a while.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from signal import SIGKILL
from typing import Any, cast

from ftcli.core.processes.child import STOP_SECONDS, Child, ChildDied, other_threads
from ftcli.core.processes.copied import Copied
from ftcli.core.processes.warm_worker import PRELOAD

IDLE_SECONDS = 10.0
"""Ray's next process for a worker that was killed comes in 1 to 3 s."""
_CODE = """import os, sys
os.fork() and os._exit(0)
sys.path[:] = {path!r}
from ftcli.plugins.ray_loader import serve
serve({descriptor}, {threads})"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a load gave."""

    kind: str
    """`done`, `failed` or `died`."""
    payload: Any
    """The result; the exception; how it died, whether from outside, and its number."""
    copied: bool
    """Whether the process can be copied afterwards: it has one thread."""


def start(listening: socket.socket, threads: int) -> None:
    """Begin a loader at a socket that listens already.

    It is a child of nobody and has a session of its own: whoever ends a worker with all it has started leaves it alone.
    """
    code = _CODE.format(path=sys.path, descriptor=listening.fileno(), threads=threads)
    command = [sys.executable, "-P", "-c", code]
    subprocess.run(command, pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True, check=True)


def serve(descriptor: int, threads: int) -> None:
    """Answer workers until nobody is connected for IDLE_SECONDS."""
    clients: list[threading.Thread] = []
    with closing(Loader(threads)) as loader, socket.socket(fileno=descriptor) as listening:
        listening.settimeout(IDLE_SECONDS / 10)
        alone = time.monotonic()
        while clients or time.monotonic() - alone < IDLE_SECONDS:
            with suppress(TimeoutError):
                connection, _ = listening.accept()
                if user(connection) != os.getuid():
                    connection.close()
                    continue
                clients.append(threading.Thread(target=loader.answer, args=(Connection(connection.detach()),), daemon=True))
                clients[-1].start()
            clients = [client for client in clients if client.is_alive()]
            alone = time.monotonic() if clients else alone


def user(peer: socket.socket) -> int:
    """Whose process is at the other end: an address without a file is for everybody, and what comes from there is unpickled."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


class Loader:
    """A process with all that was loaded, and the copies of it.

    The first copy that has made a shard makes no other: the engine's caches are filled there, and copies are made of it from then on.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._original = Child(PRELOAD, threads)
        self._warm: Child | None = None
        self._loads: dict[int, tuple[bytes, Answer]] = {}
        """What was loaded and what became of it, by the number of what was sent."""
        self._lock = threading.Lock()
        """A process answers one after the other."""

    def answer(self, client: Connection) -> None:
        """All that one worker asks until it goes; its copies go with it."""
        copies: dict[int, Copied] = {}
        with client:
            with suppress(EOFError, OSError):
                while True:
                    what, *arguments = client.recv()
                    with self._lock:
                        _ANSWERS[what](self, client, copies, *arguments)
            with self._lock:
                for copy in copies.values():
                    copy.kill()
                    with suppress(subprocess.TimeoutExpired):
                        copy.wait(STOP_SECONDS)

    def close(self) -> None:
        """End everything that nobody works in."""
        self._end_warm()
        self._original.stop()
        self._original.join()

    def _load(self, client: Connection, _: dict[int, Copied], number: int) -> None:
        if number not in self._loads:
            client.send(None)
            function = client.recv_bytes()
            self._end_warm()  # it has not loaded this
            answer = self._loaded(function)
            if answer.kind == "died" and answer.payload[1]:  # from outside: the next one who asks may have more luck
                client.send(answer)
                return
            self._loads[number] = function, answer
        client.send(self._loads[number][1])

    def _copy(self, client: Connection, copies: dict[int, Copied]) -> None:
        child = self._copied(self._warm) or self._copied(self._original)
        if child is None:
            client.send(None)
            return
        with child.pipe:
            copies[child.pid] = cast("Copied", child.process)
            client.send(child.pid)
            send_handle(client, child.pipe.fileno(), child.pid)

    def _copied(self, child: Child | None) -> Child | None:
        if child is None:
            return None
        try:
            return child.copy()
        except ChildDied:
            if child is self._warm:
                self._end_warm()
                return None
        self._begin_again()
        with suppress(ChildDied):
            return self._original.copy()
        return None

    def _keep(self, client: Connection, copies: dict[int, Copied], pid: int) -> None:
        client.send(wanted := self._warm is None and pid in copies)
        if wanted:
            self._warm = Child(tie=(Connection(recv_handle(client)), copies.pop(pid)))

    def _ended(self, client: Connection, copies: dict[int, Copied], pid: int) -> None:
        copy = copies.pop(pid, None)
        client.send(None if copy is None else copy.wait())

    def _loaded(self, function: bytes) -> Answer:
        try:
            result = self._original.ask(function)
            copied = not self._original.ask(other_threads)
        except ChildDied as died:
            payload = died.how, died.signal is SIGKILL, self._original.pid
            self._begin_again()
            return Answer("died", payload, True)
        except BaseException as error:  # noqa: BLE001 - the driver raises it; the child has made it fit to travel
            return Answer("failed", error, True)
        return Answer("done", result, copied)

    def _begin_again(self) -> None:
        """The process with all that was loaded has died."""
        self._original.join()
        self._original = Child(PRELOAD, self._threads)
        with suppress(ChildDied):
            for function, answer in self._loads.values():
                if answer.kind == "done":
                    self._original.ask(function)

    def _end_warm(self) -> None:
        warm, self._warm = self._warm, None
        if warm is not None:
            warm.stop()
            warm.join()


_ANSWERS: dict[str, Callable[..., None]] = {"load": Loader._load, "copy": Loader._copy, "keep": Loader._keep, "ended": Loader._ended}
