"""What runs on the nodes of a Ray cluster: an actor that holds one worker process. It imports nothing that tokenizes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

from ftcli.core.processes.child import Child, ChildDied
from ftcli.core.processes.reserve import PRELOAD

LOOK_SECONDS = 0.1


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
    """Of the process that loads; what does the work is a copy of it."""
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
    """One worker process and the actor that owns it.

    The work is not done in Ray's own process: an engine that aborts would take the actor with it, and Ray does not say by which signal. So it
    is told as everywhere else, and what a shard needs is not imported twice.

    Shards are made in a copy of the process that has loaded what they need. The next copy takes 20 ms, another process 1.5 s of CPU. The
    first copy that has made a shard makes no other: it has the engine's caches filled, and what makes the shards from then on is copied from it.
    """

    def __init__(self, threads: int) -> None:
        self._original = Child(PRELOAD, threads)
        self._copy: Child | None = None
        self._warm: Child | None = None
        """A copy that has made a shard."""
        self._number = 0
        self._function = b""

    def enter(self, marker: Marker | None, loads: Sequence[Sent]) -> Entered:
        """Look for the marker, then load what the others have loaded. A load that fails here fails again, with words, in a shard."""
        import ray

        sees = marker is None or marker.seen()
        for sent in loads if sees else ():
            with suppress(Exception):
                self._original.ask(self._fetched(sent))
        return Entered(str(ray.get_runtime_context().get_node_id()), self._original.pid, sees)

    def work(self, sent: Sent, arguments: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
        """("progress", (bytes, rows, tokens, file)) any number of times, then ("done", result), ("failed", error) or ("died", Died).

        Without arguments it is called for what it loads; copies that are made later have that too.
        """
        child = self._original
        try:
            if arguments:
                child = self._at_work()
            else:
                self._end_copy()
                self._end_warm()
        except ChildDied as died:
            yield "died", Died(died.how, died.signal is SIGKILL, child.pid, lost=True)
            return
        child.call(self._fetched(sent), *arguments)
        kind = ""
        while kind != "done":
            try:
                kind, payload = child.receive()
            except ChildDied as died:
                self._end_copy()
                yield "died", Died(died.how, died.signal is SIGKILL, child.pid, lost=child is self._original)
                return
            except BaseException as error:  # noqa: BLE001 - the driver raises it; the child has made it fit to travel
                yield "failed", error
                return
            if kind == "done" and child is self._copy and self._warm is None:
                self._warm, self._copy = child, None
            yield kind, payload

    def _at_work(self) -> Child:
        """A copy; the process itself where it has threads.

        Raises:
            ChildDied: it ended.
        """
        if self._copy is None and self._warm is not None:
            try:
                self._copy = self._warm.copy()
            except ChildDied:
                self._end_warm()
        self._copy = self._copy or self._original.copy()
        return self._copy or self._original

    def _end_copy(self) -> None:
        copy, self._copy = self._copy, None
        _end(copy)

    def _end_warm(self) -> None:
        warm, self._warm = self._warm, None
        _end(warm)

    def _fetched(self, sent: Sent) -> bytes:
        import ray

        if sent.number != self._number:
            self._function, self._number = ray.get(sent.refs[0]), sent.number
        return self._function


def _end(child: Child | None) -> None:
    if child is not None:
        child.stop()
        child.join()
