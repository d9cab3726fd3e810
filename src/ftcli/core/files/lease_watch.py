"""A waiter's view of a lease: who holds it, since when it is silent, and when waiting for it makes no sense any more."""

from __future__ import annotations

import os
import time
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
UNSIGNED = "a process that has not signed yet"


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

    def __init__(self, path: Path, output: Path, patience: float | None) -> None:
        self._path, self._output, self._patience = path, output, patience
        self._begun = self._heard = self._worked = time.monotonic()
        self._pulse: object = None
        self._steps: object = None
        self._blocked = False

    def look(self) -> Sight:
        """Another process has the lock: who, and for how long silent.

        Raises:
            PublishError: it is silent or without progress for too long, or this process does not wait at all.
        """
        self._blocked = True
        note, pulse = _peek(self._path)
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
                raise PublishError(
                    f"{self._output} is being prepared by {who}",
                    "Wait until it has finished, or stop it and run the same command again: finished shards are kept.",
                )
        elif silent > self._patience or idle > max(HANG_SECONDS, self._patience):
            remedy = f"fuser -v {self._path} names it." if note is None else note.remedy(self._path)
            raise PublishError(
                f"no progress for {max(silent, idle):.0f} s from {who}, which prepares {self._output} and holds {self._path}", remedy
            )
        return Sight(note, silent, self._path)

    def refuse_failure(self, descriptor: int) -> None:
        """The lock is free, or its file is gone: raises the `FtcliError` that its holder ended with while this process waited for it."""
        note = Note.read(descriptor)
        failure = note.failure(self._output) if note is not None and self._blocked else None
        if failure is not None:
            raise failure

    def refuse_distance(self, descriptor: int) -> None:
        """This process has the lock: raises `PublishError` when one on another machine has it as well.

        Such a file system (NFS with nolock or local_lock, Lustre with localflock) grants every machine a lock of its own.
        """
        note = Note.read(descriptor)
        if note is None or note.ended or note.here:
            return
        until, (_, pulse) = time.monotonic() + 3 * BEAT_SECONDS, _peek(self._path)
        while time.monotonic() < until:
            if _peek(self._path)[1] != pulse:
                raise PublishError(
                    f"{self._output} is being prepared by {note.words}, and the locks of this file system do not reach from there to here",
                    "Mount it with locks for all machines (NFS without nolock and local_lock, Lustre with flock), or prepare the data on"
                    f" one machine before the job: {note.command}",
                )
            time.sleep(POLL_SECONDS)


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
