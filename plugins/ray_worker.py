"""What runs on the nodes of a Ray cluster: an actor whose shards are made in one process beside it. It imports nothing that tokenizes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any, TypeVar

from ftcli.core.processes.child import Child, ChildDied
from ftcli.core.processes.warm_worker import PRELOAD

from .ray_host import Host

LOOK_SECONDS = 0.1
Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True)
class Marker:
    """A file that whoever sees the directory finds, with a word in it that no other file has."""

    path: Path
    token: str
    patience: float
    """Seconds to look for it: a network file system may remember for a while that a name was not there."""

    def write(self) -> None:
        self.path.write_text(self.token, encoding="utf-8")

    def seen(self) -> bool:
        until = time.monotonic() + self.patience
        while True:
            with suppress(OSError, UnicodeDecodeError):
                if self.path.read_text(encoding="utf-8") == self.token:
                    return True
            if time.monotonic() >= until:
                return False
            time.sleep(LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class Sent:
    """A pickled function in the object store, fetched once a node: it may hold a tokenizer of 11 MB."""

    number: int
    """Not two of a run are the same."""
    refs: tuple[Any, ...]
    """One `ray.ObjectRef`; inside a tuple Ray leaves it as it is."""


@dataclass(frozen=True, slots=True)
class Entered:
    """A worker as it introduces itself."""

    node: str
    """Ray's id of the node."""
    pid: int
    """Of Ray's process."""
    sees: bool
    """Whether it sees what the marker marks; True without one."""


@dataclass(frozen=True, slots=True)
class Died:
    """The process that did the work ended."""

    how: str
    killed: bool
    """By SIGKILL, that is from outside."""
    pid: int
    lost: bool
    """What the others have loaded has gone with it: the actor is of no use any more."""


class Worker:
    """What makes shards, and the actor that owns it.

    The work is not done in Ray's own process: an engine that aborts would take the actor with it, and Ray does not say by which signal. So it
    is told as everywhere else, and what a shard needs is not imported twice.

    Shards are made in a copy of the process that has loaded what all workers of this machine need. The next copy takes 20 ms, another process
    1.5 s of CPU. What cannot be copied, because it has threads, is loaded in a process of this worker alone.

    Args:
        run: a word that the workers of one run have in common.
        threads: threads a worker's libraries compute with.
    """

    def __init__(self, run: str, threads: int) -> None:
        self._run, self._threads = run, threads
        self._host: Host | None = None
        self._own: Child | None = None
        """Instead of copies."""
        self._copy: Child | None = None
        self._kept = False
        """Whether a copy that had made a shard was offered to the others."""
        self._loads: list[Sent] = []
        self._number = 0
        self._function = b""
        with suppress(OSError):
            self._host = Host(run, threads)

    def enter(self, marker: Marker | None, loads: Sequence[Sent]) -> Entered:
        """Look for the marker, then load what the others have loaded. A load that fails here fails again, with words, in a shard."""
        import ray

        sees = marker is None or marker.seen()
        for sent in loads if sees else ():
            self._loaded(sent)
        return Entered(str(ray.get_runtime_context().get_node_id()), os.getpid(), sees)

    def work(self, sent: Sent, arguments: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
        """("progress", (bytes, rows, tokens, file)) any number of times, then ("done", result), ("failed", error) or ("died", Died).

        Without arguments it is called for what it loads; copies that are made later have that too.
        """
        if not arguments:
            yield self._loaded(sent)
            return
        child = self._at_work()
        child.call(self._fetched(sent), *arguments)
        kind = ""
        while kind != "done":
            try:
                kind, payload = child.receive()
            except ChildDied as died:
                self._end_copy()
                yield "died", Died(died.how, died.signal is SIGKILL, child.pid, lost=child is self._own)
                return
            except BaseException as error:  # noqa: BLE001 - the driver raises it; the child has made it fit to travel
                yield "failed", error
                return
            if kind == "done" and child is self._copy and not self._kept:
                self._offer(child)
            yield kind, payload

    def _loaded(self, sent: Sent) -> tuple[str, Any]:
        self._end_copy()
        self._kept = False
        answer = None
        if self._own is None:
            answer = self._of_host(lambda host: host.load(sent.number, partial(self._fetched, sent)))
        self._loads.append(sent)
        if answer is None or (answer.kind == "done" and not answer.copied):
            return self._by_itself()
        if answer.kind == "died":
            how, killed, pid = answer.payload
            return "died", Died(how, killed, pid, lost=True)
        return answer.kind, answer.payload

    def _of_host(self, question: Callable[[Host], Answered]) -> Answered | None:
        """None where there is no loader and none can be started."""
        for _ in range(2):  # it may have been killed, and waits for nobody
            with suppress(OSError, EOFError):
                if self._host is None:
                    self._host = Host(self._run, self._threads)
                    for sent in self._loads:
                        self._host.load(sent.number, partial(self._fetched, sent))
                return question(self._host)
            self._leave()
        return None

    def _by_itself(self) -> tuple[str, Any]:
        """What the last load gives in a process of this worker alone, which has no copies."""
        loads = self._loads[-1:]
        if self._own is None:
            self._leave()
            self._own, loads = Child(PRELOAD, self._threads), self._loads
        told: tuple[str, Any] = ("done", None)
        for sent in loads:
            try:
                told = "done", self._own.ask(self._fetched(sent))
            except ChildDied as died:
                return "died", Died(died.how, died.signal is SIGKILL, self._own.pid, lost=True)
            except BaseException as error:  # noqa: BLE001 - as in `work`
                told = "failed", error
        return told

    def _at_work(self) -> Child:
        if self._own is None and self._copy is None:
            self._copy = self._of_host(Host.copy)
            if self._copy is None:
                self._by_itself()
        return self._copy or self._own  # type: ignore[return-value]

    def _offer(self, child: Child) -> None:
        """The first copy of a machine that has made a shard makes no other: the engine's caches are filled there, and the next copies are made of it."""
        self._kept = True
        with suppress(OSError, EOFError):
            if self._host is not None and self._host.keep(child):
                self._copy = None

    def _end_copy(self) -> None:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.stop()
            copy.join()

    def _leave(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.close()

    def _fetched(self, sent: Sent) -> bytes:
        import ray

        if sent.number != self._number:
            self._function, self._number = ray.get(sent.refs[0]), sent.number
        return self._function
