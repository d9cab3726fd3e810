"""A waiter's view of a lease: who holds it, since when it is silent, and when waiting for it makes no sense any more."""

from __future__ import annotations

import os
import pwd
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ftcli.core.files.lease_holder import Note
from ftcli.errors import PublishError

POLL_SECONDS = 0.05
BEAT_SECONDS = 1.0
PATIENCE_SECONDS = 20.0
"""Without a heartbeat for so long, a holder is taken for stopped: 20 beats, and the waiters have ended within 30 s."""
HANG_SECONDS = 600.0
"""With heartbeats and no work done for so long, it is taken for hung. The longest step between two counts is one text's or one shard's
proof or hash."""
GRACE_SECONDS = 0.2
"""Before refusing: a process that is just leaving, or clearing away an abandoned attempt, holds the lease for some milliseconds."""
WAY_ON = "Wait until it has ended, ask {owner} to stop it, or choose another output directory."
"""Where the holder is a process of another user."""
UNSIGNED = "a process that has not identified itself yet"


@dataclass(frozen=True, slots=True)
class Work:
    """What is done under a lease, for messages to others."""

    said: str
    """Of {output} and {who}."""
    instead: str
    """What they can do instead of waiting; {pid} is the holder's."""
    apart: str
    """What they can do where locks do not reach the holder's machine; {command} is what it runs."""


PREPARING = Work(
    "{output} is being prepared by {who}",
    "Wait until it has finished, or stop it and run the same command again: finished shards are kept.",
    "Mount it with locks for all machines (NFS without nolock and local_lock, Lustre with flock), or prepare the data on"
    " one machine before the job: {command}",
)


@dataclass(frozen=True, slots=True)
class Sight:
    """What a waiter sees of the holder now."""

    note: Note | None
    """None: it has not signed (yet), or its file is damaged."""
    silent: float
    """Seconds since its last sign of life that this process saw."""
    path: Path
    """The lease file."""


class Watch:
    """A waiter's view of one lease file over time."""

    def __init__(self, path: Path, output: Path, patience: float | None, work: Work = PREPARING) -> None:
        self._path, self._output, self._patience, self._work = path, output, patience, work
        self.lockless = False
        """The file system has no locks: heartbeats alone tell of a holder."""
        self._begun = self._heard = self._worked = time.monotonic()
        self._pulse: object = None
        self._steps: object = None
        self._blocked = False
        self._first: Note | None = None
        """What was signed at the first look. A failure may stand there of a run that has long ended: who has the lock now has not signed yet."""

    def look(self) -> Sight:
        """Another process has the lock: who, and for how long silent.

        Raises:
            PublishError: it is silent or without progress for too long, or this process does not wait at all.
        """
        note, pulse = _peek(self._path)
        if not self._blocked:
            self._blocked, self._first = True, note
        now = time.monotonic()
        if pulse != self._pulse:
            self._pulse, self._heard = pulse, now
        steps = None if note is None else (note.token, note.steps)
        if steps != self._steps:
            self._steps, self._worked = steps, now
        silent, idle = now - self._heard, now - self._worked
        who = UNSIGNED if note is None else note.words
        if self._patience is None:
            if now - self._begun > GRACE_SECONDS:
                raise self._refusal(note)
        elif silent > self._patience or idle > max(HANG_SECONDS, self._patience):
            owner = owner_of(self._path)
            remedy = f"Find it with fuser -v {self._path}." if note is None else note.remedy(self._path)
            raise PublishError(
                f"no progress for {max(silent, idle):.0f} s from {who}, which is preparing {self._output} and holds {self._path}",
                WAY_ON.format(owner=owner) if owner else remedy,
            )
        return Sight(note, silent, self._path)

    def refuse_failure(self, descriptor: int) -> None:
        """The lock is free, or its file is gone: raises the `FtcliError` that its holder ended with while this process waited for it."""
        note = Note.read(descriptor)
        failure = note.failure(self._output) if note is not None and self._blocked and note != self._first else None
        if failure is not None:
            raise failure

    def refuse_distance(self, descriptor: int) -> None:
        """This process has the lock: raises `PublishError` when one on another machine has it as well.

        Such a file system (NFS with nolock or local_lock, Lustre with localflock) grants every machine a lock of its own.
        """
        note = Note.read(descriptor)
        if note is None or note.ended or (note.here and not self.lockless):
            return
        if not self._lives(note):
            return
        refusal = self._refusal(note)
        if not self.lockless:
            refusal = PublishError(
                f"{refusal.message}, and locks on this file system do not work across the two machines",
                self._work.apart.format(command=note.command),
            )
        raise refusal

    def refuse_other(self, token: str) -> None:
        """Raises `PublishError` when another process signs there than the one with this token: without locks, two that come at once both sign."""
        note, _ = _peek(self._path)
        if note is not None and note.token != token:
            raise self._refusal(note)

    def refuse_other_job(self, job: str) -> None:
        """Raises `PublishError` when a process of another job holds it; needs no lock, and takes none."""
        with suppress(OSError):
            note, _ = _peek(self._path)
            if note is not None and not note.ended and note.job != job and self._lives(note):
                raise self._refusal(note)

    def _lives(self, note: Note) -> bool:
        """Whether the process of a note is at work: on this machine the kernel tells, of another one the next three heartbeats do."""
        if note.here and note.host == socket.gethostname():
            return note.state is not None
        until, (_, pulse) = time.monotonic() + 3 * BEAT_SECONDS, _peek(self._path)
        while time.monotonic() < until:
            if _peek(self._path)[1] != pulse:
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _refusal(self, note: Note | None) -> PublishError:
        who, pid = (UNSIGNED, "PID") if note is None else (note.words, note.pid)
        said = self._work.said.format(output=self._output, who=who)
        if owner := owner_of(self._path):
            return PublishError(f"{said}, a run of {owner}", WAY_ON.format(owner=owner))
        return PublishError(said, self._work.instead.format(pid=pid))


def owner_of(path: Path) -> str:
    """The user to whom a file belongs, whose processes this one may not stop; "" where it may, or that cannot be told."""
    with suppress(OSError):
        uid = path.stat().st_uid
        if os.geteuid() not in (0, uid):
            try:
                return f"user {pwd.getpwuid(uid).pw_name}"
            except KeyError:
                return f"user {uid}"
    return ""


def _peek(path: Path) -> tuple[Note | None, object]:
    """The note and whatever changes with it, opened anew: an NFS client asks the server on opening and answers from memory else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, None
    try:
        note, stat = Note.read(descriptor), os.fstat(descriptor)
        return note, (note, stat.st_ino, stat.st_mtime_ns)
    finally:
        os.close(descriptor)
