"""A rank's signs of life: how far it is, for whoever watches it; its stack on demand; and how it ended."""

from __future__ import annotations

import errno
import faulthandler
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from ftcli.core.files.lease_holder import this_rank

VARIABLE = "FTCLI_LAUNCH"
"""The folder where the launcher and its ranks meet; set for ranks that `ftcli train` started itself."""
DUMP = signal.SIGQUIT
"""Signal upon which a launched rank writes its stack."""
BEAT_SECONDS = 0.5
ROOM_BYTES = 16_384
"""Kept for a record: the longest are ends with the message of an error."""
STACKS = "stacks"
"""Folder in the run's, for the stacks of ranks that stalled or lost another one."""
FAILED_ALONE = "rank"
"""Code of `RankError`: what a rank says that was only hit by the end of another one."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a rank writes about itself twice a second."""

    rank: int
    pid: int
    beats: int = 0
    marks: int = 0
    """Counts progress: batches, steps, parts of an evaluation or of a save."""
    watched: bool = False
    """Whether no progress is a fault: from the first step on, not while data and model are prepared."""
    where: str = "starting"


@dataclass(frozen=True, slots=True)
class End:
    """How a rank ended in good order.

    Args:
        code: the documented exit code.
        error: code, message and hint; None after success.
        told: whether it has written the run's report.
    """

    rank: int
    code: int
    error: Mapping[str, str] | None
    told: bool


def write(path: Path, record: Beat | End | None) -> None:
    """One system call, into the blocks that the file has from the first one on: a disk that fills up silences no rank.

    Args:
        record: None keeps room for one.
    """
    data = b"" if record is None else json.dumps(asdict(record)).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = max(len(data), os.fstat(descriptor).st_size, ROOM_BYTES)
        if os.pwrite(descriptor, data.ljust(size), 0) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def read(path: Path, kind: type[Any]) -> Any:
    """The record in a file; None where there is none, or only a part of it at this moment."""
    try:
        return kind(**json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError):
        return None


def beat_file(folder: Path, rank: int) -> Path:
    return folder / f"beat-{rank}.json"


def end_file(folder: Path, rank: int) -> Path:
    return folder / f"end-{rank}.json"


def stack_file(folder: Path, rank: int) -> Path:
    return folder / f"stack-{rank}.txt"


class Idle:
    """Seconds without progress, counted by looks: a machine that slept between two of them was not idle."""

    def __init__(self, longest_look: float) -> None:
        self._longest = longest_look
        self._seen: Any = object()
        self.seconds = 0.0

    def look(self, passed: float, seen: Any) -> float:
        """`seen` changes with every progress; returns the seconds since its last change."""
        self.seconds = 0.0 if seen != self._seen else self.seconds + min(passed, self._longest)
        self._seen = seen
        return self.seconds


class Pulse:
    """The signs of life of this process.

    Args:
        folder: where the launcher reads them; None: another launcher started this rank, and the rank watches itself alone.
    """

    def __init__(self, rank: int, folder: Path | None) -> None:
        self.rank = rank
        self.folder = folder
        self.marks = 0
        self.where = "starting"
        self.watched = False
        self.closing = False
        """The end is being written: a signal changes nothing any more."""
        self._thread: threading.Thread | None = None
        self._stack: Any = None
        self._beats = 0
        self._parent = os.getppid()
        self._done = threading.Event()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self | None:
        """The pulse of a rank; None outside a job of several."""
        rank, folder = this_rank(), environ.get(VARIABLE)
        if rank is None or (not folder and environ.get("WORLD_SIZE", "1") == "1"):
            return None
        return cls(rank, Path(folder) if folder else None)

    def start(self) -> None:
        """Begin to show signs of life to the launcher, and to obey its wish for a stack."""
        if self.folder is None or self._thread is not None:
            return
        self._stack = stack_file(self.folder, self.rank).open("w")
        faulthandler.register(DUMP, self._stack, all_threads=True)
        with suppress(OSError):  # then its end has to find room by itself
            write(end_file(self.folder, self.rank), None)
        self._run(self._beat)

    def watch_itself(self, limit: float, report: Callable[[float], None]) -> None:
        """Where nobody else does: call `report` with the seconds, from another thread, when `limit` of them have brought no progress."""
        if self.folder is not None or self._thread is not None:
            return
        idle = Idle(2 * BEAT_SECONDS)

        def look(passed: float) -> None:
            if idle.look(passed, (self.marks, self.watched)) >= limit and self.watched:
                self.watched = False
                report(idle.seconds)

        self._run(look)

    def mark(self, where: str) -> None:
        """Progress: `where` says what is done next."""
        self.marks += 1
        self.where = where

    def stop(self) -> None:
        """No more signs of life; for tests."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._stack is not None:
            faulthandler.unregister(DUMP)
            self._stack.close()

    def end(self, code: int, error: Mapping[str, str] | None, *, told: bool) -> int:
        """Leave word how this rank ends; returns the exit code for whoever started it.

        A launcher of torch takes any exit code but 0 for a reason to end all other ranks at once, in the middle of their reports. So a
        launched rank ends with 0, and the launcher reads the code from the file.
        """
        if self.folder is None:
            return code
        try:
            write(end_file(self.folder, self.rank), End(self.rank, code, error, told))
        except OSError:  # the launcher is gone, or there is no room for a word: the code has to do
            return code
        if self.orphan and all(read(path, End) for path in self.folder.glob("end-*.json")):  # the last one tidies up
            shutil.rmtree(self.folder, ignore_errors=True)
        return 0

    @property
    def orphan(self) -> bool:
        """Whether the launcher that started this rank was killed."""
        return self.folder is not None and os.getppid() != self._parent

    def _run(self, look: Callable[[float], None]) -> None:
        def loop() -> None:
            before = time.monotonic()
            while not self._done.wait(BEAT_SECONDS):
                now = time.monotonic()
                look(now - before)
                before = now

        self._thread = threading.Thread(target=loop, daemon=True, name="ftcli pulse")
        self._thread.start()

    def _beat(self, _passed: float) -> None:
        assert self.folder is not None
        self._beats += 1
        try:
            write(beat_file(self.folder, self.rank), Beat(self.rank, os.getpid(), self._beats, self.marks, self.watched, self.where))
        except FileNotFoundError:  # the launcher is gone, and its folder with it
            self._done.set()
        except OSError:  # no room, or no descriptor, at this moment: the next beat may have it
            pass
        if self.orphan:  # the launcher was killed: a run that nobody waits for ends with a checkpoint
            self._done.set()
            os.kill(os.getpid(), signal.SIGTERM)


_current: Pulse | None = None


def begin(environ: Mapping[str, str]) -> Pulse | None:
    """Make the pulse of this process, if it is a rank, and start it; one of an earlier command in this process is forgotten."""
    global _current  # noqa: PLW0603 - a process has one pulse, as it has one rank
    _current = Pulse.of(environ)
    if _current is not None:
        _current.start()
    return _current


def current() -> Pulse | None:
    """The pulse of this process; None outside a job."""
    return _current
