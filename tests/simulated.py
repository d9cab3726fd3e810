"""Actors that run real code step by step on a real folder, and what a power loss may leave of that folder.

What a program has written but not synced may be lost, whole or in part, in any order:

- the content of a file is durable as of its last fsync; later bytes may be there, be missing, be cut or read as zeros;
- an entry of a folder (made, removed, renamed) is durable after an fsync of the folder; until then each change may be there or not,
  in any order, except that changes of one name happen in order and a rename or an exchange happens whole or not at all;
- syncing a file does not make its entry durable, nor does syncing a folder that of the folder itself.

That is weaker than what ext4 or XFS promise, and what POSIX allows.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from ftcli.core.files import durable
from ftcli.core.files.lease import Lease
from ftcli.core.publishing import publish

Key = tuple[int, str]
"""An entry: number of the folder and name in it."""

_local = threading.local()


class Killed(BaseException):
    """The process of this actor is gone: nothing that follows in it happens."""


@dataclass(slots=True)
class Node:
    """A file or (without data) a folder."""

    data: bytes | None
    synced: bytes = b""


class Disk:
    """A folder as the actors see it (it is a real one) and as it is on the medium."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.nodes = [Node(None)]
        self.entries: dict[Key, int] = {}
        self.durable: dict[Key, int] = {}
        self.pending: list[dict[Key, int | None]] = []
        """Changes of entries that no fsync has made durable, oldest first."""

    def find(self, path: str | Path) -> Key:
        """The entry of a path under the root."""
        *folders, name = Path(path).relative_to(self.root).parts
        number = 0
        for folder in folders:
            number = self.entries[number, folder]
        return number, name

    def change(self, change: dict[Key, int | None]) -> None:
        self.pending.append(change)
        _apply(change, self.entries)

    def make(self, path: str | Path, data: bytes | None) -> None:
        self.nodes.append(Node(data))
        self.change({self.find(path): len(self.nodes) - 1})

    def file(self, path: str | Path) -> Node:
        return self.nodes[self.entries[self.find(path)]]

    def sync(self, path: str | Path) -> None:
        number = 0 if Path(path) == self.root else self.entries[self.find(path)]
        node = self.nodes[number]
        if node.data is not None:
            node.synced = node.data
            return
        keys = {key for change in self.pending for key in change if key[0] == number}
        later = []
        for change in reversed(self.pending):  # what came before on the same names is durable too
            if keys & change.keys():
                keys |= change.keys()
            else:
                later.append(change)
        for change in self.pending:
            if change not in later:
                _apply(change, self.durable)
        self.pending = later[::-1]

    def lose_power(self, seed: int) -> None:
        """Leave on the real folder what a power loss may leave; from then on that is durable."""
        rolls = random.Random(seed)
        share = rolls.choice([0.0, 0.5, 1.0, rolls.random()])
        entries, lost = dict(self.durable), set[Key]()
        for change in self.pending:
            if lost & change.keys() or rolls.random() >= share:
                lost |= change.keys()
            else:
                _apply(change, entries)
        shutil.rmtree(self.root)
        old, self.nodes, self.entries, self.pending = self.nodes, [Node(None)], {}, []

        def restore(number: int, folder: Path, new: int) -> None:
            folder.mkdir()
            for (parent, name), child in entries.items():
                if parent != number:
                    continue
                node = old[child]
                data = None if node.data is None else _torn(node, rolls)
                self.nodes.append(Node(data, data or b""))
                self.entries[new, name] = here = len(self.nodes) - 1
                if data is None:
                    restore(child, folder / name, here)
                else:
                    (folder / name).write_bytes(data)

        restore(0, self.root, 0)
        self.durable = dict(self.entries)

    def check(self) -> None:
        """The real folder is what the recorded calls made of it: none was overlooked."""
        model: dict[Path, bytes | None] = {}

        def walk(number: int, folder: Path) -> None:
            for (parent, name), child in self.entries.items():
                if parent == number:
                    model[folder / name] = self.nodes[child].data
                    walk(child, folder / name)

        walk(0, self.root)
        assert model == {path: path.read_bytes() if path.is_file() else None for path in self.root.rglob("*")}


def _apply(change: dict[Key, int | None], entries: dict[Key, int]) -> None:
    for key, number in change.items():
        if number is None:
            entries.pop(key, None)
        else:
            entries[key] = number


def _torn(node: Node, rolls: random.Random) -> bytes:
    """What a power loss leaves of a file."""
    data, cut = node.data or b"", rolls.randint(0, len(node.data or b""))
    return data if node.synced == data else rolls.choice([node.synced, data, data[:cut], data[:cut] + bytes(len(data) - cut)])


class Actor:
    """A process that runs `work` until it has used up the calls that it was given."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.calls = 0
        self.dead = self.over = False
        self.error: BaseException | None = None
        self.descriptors: set[int] = set()
        """What it holds open: the kernel closes them, and drops their locks, when the process dies."""
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _local.actor = self
        self._go.acquire()
        try:
            if not self.dead:
                self.work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error
        finally:
            self.over = True
            self._paused.release()

    def gate(self) -> None:
        """Called before every call that changes something."""
        if not self.dead and self.calls == 0:
            self._paused.release()
            self._go.acquire()
        if self.dead:
            raise Killed
        self.calls -= 1

    def step(self, calls: int) -> None:
        """Let it make so many more calls."""
        if not self.over:
            self.calls = calls
            self._go.release()
            self._paused.acquire()

    def kill(self) -> None:
        self.dead = True
        self.step(0)
        self._thread.join()
        for descriptor in self.descriptors:
            os.close(descriptor)


def _path(path: Any, dir_fd: int | None = None) -> str:
    """The path of a descriptor, or of a name in the folder `dir_fd`."""
    if isinstance(path, int):
        return str(Path(f"/proc/self/fd/{path}").readlink())
    return os.fspath(path) if dir_fd is None else f"{_path(dir_fd)}/{os.fspath(path)}"


@contextmanager
def simulated(disk: Callable[[], Disk], skips: Callable[[str], bool]) -> Iterator[None]:
    """Calls of actors go through their gate and are recorded on `disk()`; `skips(path)`: an fsync of that path does nothing (a mutation)."""
    real: dict[str, Any] = {
        name: getattr(os, name) for name in ("mkdir", "rmdir", "unlink", "rename", "open", "fsync", "close", "ftruncate", "pwrite")
    }
    write_bytes, exchange, sleep = Path.write_bytes, durable.exchange, time.sleep

    def ours(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            actor: Actor | None = getattr(_local, "actor", None)
            if actor is None:
                return real[name](*arguments, **options)
            return change(actor, *arguments, **options)

        return call

    def mkdir(actor: Actor, path: Any, mode: int = 0o777) -> None:
        actor.gate()
        real["mkdir"](path, mode)
        disk().make(path, None)

    def remove(name: str) -> Callable[..., None]:
        def call(actor: Actor, path: Any, *, dir_fd: int | None = None) -> None:
            actor.gate()
            real[name](path, dir_fd=dir_fd)
            disk().change({disk().find(_path(path, dir_fd)): None})

        return call

    def rename(actor: Actor, source: Any, target: Any) -> None:
        actor.gate()
        real["rename"](source, target)
        one, other = disk().find(source), disk().find(target)
        disk().change({one: None, other: disk().entries[one]})

    def swap(one: Path, other: Path) -> bool:
        actor: Actor = _local.actor
        actor.gate()
        assert exchange(one, other)
        first, second = disk().find(one), disk().find(other)
        disk().change({first: disk().entries[second], second: disk().entries[first]})
        return True

    def opened(actor: Actor, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        new = flags & os.O_CREAT and not os.path.lexists(path)
        if new:
            actor.gate()
        descriptor: int = real["open"](path, flags, mode, dir_fd=dir_fd)
        if new:
            disk().make(path, b"")
        actor.descriptors.add(descriptor)
        return descriptor

    def close(actor: Actor, descriptor: int) -> None:
        actor.descriptors.discard(descriptor)
        real["close"](descriptor)

    def changed(name: str) -> Callable[..., Any]:
        def call(actor: Actor, descriptor: int, *arguments: Any) -> Any:
            actor.gate()
            answer = real[name](descriptor, *arguments)
            path = _path(descriptor)
            if not path.endswith(" (deleted)"):
                disk().file(path).data = Path(path).read_bytes()
            return answer

        return call

    def fsync(actor: Actor, descriptor: int) -> None:
        actor.gate()
        path = _path(descriptor)
        if not skips(path):
            disk().sync(path)

    def write(path: Path, data: bytes) -> int:
        actor: Actor | None = getattr(_local, "actor", None)
        if actor is None:
            return write_bytes(path, data)
        actor.gate()
        new = not path.exists()
        write_bytes(path, b"")
        if new:
            disk().make(path, b"")
        disk().file(path).data = b""
        actor.gate()
        write_bytes(path, data)
        disk().file(path).data = bytes(data)
        return len(data)

    def pause(seconds: float) -> None:
        actor: Actor | None = getattr(_local, "actor", None)
        if actor is None:
            sleep(seconds)
        else:
            actor.gate()

    changes: dict[str, Any] = {
        "mkdir": ours("mkdir", mkdir),
        "rmdir": ours("rmdir", remove("rmdir")),
        "unlink": ours("unlink", remove("unlink")),
        "remove": ours("unlink", remove("unlink")),
        "rename": ours("rename", rename),
        "replace": ours("rename", rename),
        "open": ours("open", opened),
        "close": ours("close", close),
        "ftruncate": ours("ftruncate", changed("ftruncate")),
        "pwrite": ours("pwrite", changed("pwrite")),
        "fsync": ours("fsync", fsync),
    }
    with (
        mock.patch.multiple(os, **changes),
        mock.patch.object(Path, "write_bytes", write),
        mock.patch.object(publish, "exchange", swap),
        mock.patch.object(Lease, "_sign_on", return_value=None),  # the heartbeat of a thread of its own
        mock.patch.object(time, "sleep", pause),
    ):
        yield
