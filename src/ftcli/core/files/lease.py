"""The exclusive lease of a working directory.

A lease is an `flock` on a file: the kernel drops it with the process, so a killed holder needs no clean-up and a stopped one
keeps it. What is written in the file (`ftcli.core.files.lease_holder.Note`) tells the waiters who holds it and how far it is; a thread of the
holder signs it anew every second, so that a long shard is no silence, and a stopped process is one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcli.core.files.lease_holder import Note, as_error
from ftcli.core.files.lease_watch import (
    BEAT_SECONDS,
    GRACE_SECONDS,
    PATIENCE_SECONDS,
    POLL_SECONDS,
    PREPARING,
    WAY_ON,
    Sight,
    Watch,
    Work,
    owner_of,
)
from ftcli.errors import PublishError

LEASE_NAME = "lease"
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
ABANDONED_SECONDS = 86_400
"""An attempt of another machine is taken for abandoned after a day without a heartbeat."""

_open_leases: dict[int, Lease] = {}
"""By descriptor."""


def _drop_in_child() -> None:
    """A forked worker must not keep its parent's lease alive: an `flock` ends with the last descriptor of it."""
    for descriptor in _open_leases:
        os.close(descriptor)
    _open_leases.clear()


os.register_at_fork(after_in_child=_drop_in_child)


class Lease:
    """The right to work in `directory`, held until `release` or the end of the process."""

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self.predecessor = Note.read(descriptor)
        """Who held it before and neither released nor removed it: it died. None after an orderly end."""
        if self.predecessor is not None and self.predecessor.ended:
            self.predecessor = None
        self._descriptor = descriptor
        self._pid = os.getpid()
        self._note = Note.mine()
        self._checked = time.monotonic()
        self._guard = threading.Lock()
        self._stop = threading.Event()
        _open_leases[descriptor] = self

    @classmethod
    def take(
        cls,
        directory: Path,
        output: Path,
        *,
        wait: bool,
        patience: float = PATIENCE_SECONDS,
        on_wait: Callable[[Sight], None] = lambda _: None,
        work: Work = PREPARING,
        lockless: Callable[[], None] | None = None,
    ) -> Lease:
        """Make `directory` and take its lease.

        Args:
            output: what is prepared there, for messages.
            wait: wait for the holder to finish or die instead of refusing.
            patience: seconds without a heartbeat after which waiting ends.
            on_wait: called some times a second while waiting.
            work: what is done under it, for messages.
            lockless: called where the file system has no locks, and heartbeats alone are to tell of a holder; None: then `OSError`.

        Raises:
            PublishError: another process holds it (and, when waiting, is silent or hangs), or locks do not reach its machine; names it.
            FtcliError: the holder failed while this process waited for it; the same error.
        """
        watch = Watch(directory / LEASE_NAME, output, patience if wait else None, work)
        while True:
            with suppress(FileExistsError):  # not exist_ok, which fails when the last holder removes it at this moment
                directory.mkdir()
            try:
                descriptor = _open(directory / LEASE_NAME)
            except FileNotFoundError:
                continue
            except PermissionError:
                if not (owner := owner_of(directory)):
                    raise
                _outwait(directory, owner, watch, on_wait)
                continue
            lease = None
            try:
                while not (locked := _locked(descriptor, watch, lockless)) and _at(directory, descriptor):
                    on_wait(watch.look())
                    time.sleep(POLL_SECONDS)
                watch.refuse_failure(descriptor)
                if locked and _at(directory, descriptor):
                    watch.refuse_distance(descriptor)
                    lease = cls(directory, descriptor)
                    lease._begin()
                    if watch.lockless:
                        time.sleep(GRACE_SECONDS)
                        watch.refuse_other(lease._note.token)
                    return lease
            except BaseException:
                if lease is None:
                    os.close(descriptor)
                else:
                    lease.release()
                raise
            os.close(descriptor)

    @classmethod
    def attempt(cls, directory: Path) -> Lease | None:
        """The lease, unsigned, if nobody holds it, else None. For clearing away what is abandoned.

        Raises:
            FileNotFoundError: the last holder removed `directory` in the meantime.
        """
        path = directory / LEASE_NAME
        descriptor = _open(path)
        try:
            free = _lock(descriptor)
            if free and not _at(directory, descriptor):  # the file that we opened was removed before we locked it
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            note = Note.read(descriptor)
            elsewhere = note is not None and not note.here and not note.ended
            free = free and not (elsewhere and time.time() - os.fstat(descriptor).st_mtime < ABANDONED_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        if free:
            return cls(directory, descriptor)
        os.close(descriptor)
        return None

    def _begin(self) -> None:
        """Sign, and go on signing in a thread."""
        os.ftruncate(self._descriptor, 0)
        self._note.write(self._descriptor)
        threading.Thread(target=self._sign_on, name="ftcli-lease", daemon=True).start()

    def _sign_on(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            with suppress(OSError):  # a full disk or a lost server is the work's to report; waiters see silence
                self._sign(beats=self._note.beats + 1)

    def _sign(self, **changes: Any) -> None:
        """Write the note anew while this process has the lease."""
        with self._guard:
            if self.held and self.valid():
                self._note = replace(self._note, **changes)
                self._note.write(self._descriptor)
                os.utime(self._descriptor)  # NFS writes the note through at once for it, and holds it back otherwise

    def valid(self) -> bool:
        """Whether nobody took the lease over: its file is still the one at its path, and no other holder has signed it."""
        if not _at(self.directory, self._descriptor):
            return False
        there = Note.read(self._descriptor)
        return there is None or there.token == self._note.token

    def beat(self, **progress: float) -> None:
        """Count one step of work, and tell how far it is; cheap enough to call on every batch.

        It counts for all leases of this process: what is done under one is done for those who wait for another.

        Raises:
            PublishError: the lease was lost, which can only happen to a process that was stopped or cut off for a while.
        """
        if not self.held:
            return
        for lease in tuple(_open_leases.values()):
            lease._count(progress if lease is self else {})
        now = time.monotonic()
        if now - self._checked >= BEAT_SECONDS:
            self._checked = now
            self.check()

    def _count(self, progress: Mapping[str, float]) -> None:
        with self._guard:
            self._note = replace(self._note, steps=self._note.steps + 1, progress={**self._note.progress, **progress})

    def check(self) -> None:
        """Raises `PublishError` when the lease was lost. To be called right before anything becomes visible."""
        if not self.valid():
            raise PublishError(
                f"{self.directory} was removed or taken over by another process",
                "Run the same command again: it uses what is already there.",
            )

    def fail(self, error: Exception) -> None:
        """Tell those who wait what the work failed with; to be called before `remove` or `release`."""
        with suppress(OSError):  # then the next of them tries, and fails for itself
            self._sign(error=as_error(error), ended=True)

    @property
    def held(self) -> bool:
        """Whether this process holds it: False after `release`, and in a forked child."""
        return self._descriptor >= 0 and os.getpid() == self._pid

    def release(self) -> None:
        if not self.held:
            return
        self._stop.set()
        with suppress(OSError):  # then the next holder says that this one is gone, which is true
            if not self._note.ended:
                self._sign(ended=True)
        with self._guard:
            _open_leases.pop(self._descriptor, None)
            os.close(self._descriptor)
            self._descriptor = -1

    def leave(self) -> None:
        """`remove`, or `release` alone where another process took it over: what lies there now is its work."""
        try:
            if self.held and self.valid():
                self.remove()
        finally:
            self.release()

    def remove(self) -> None:
        """Remove the directory and release. The lease goes last, so that whoever makes a new one finds the directory empty."""
        try:
            for path in self.directory.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
            (self.directory / LEASE_NAME).unlink(missing_ok=True)
        finally:
            self.release()
        try:
            self.directory.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):  # else the next process has moved in
                raise


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except (IsADirectoryError, NotADirectoryError) as error:
        way = path if path.is_dir() else path.parent
        raise PublishError(f"{way} is in the way: ftcli did not create it", f"Remove it: rm -r {shlex.quote(str(way))}") from error


def _outwait(directory: Path, owner: str, watch: Watch, on_wait: Callable[[Sight], None]) -> None:
    """Wait until the lease of another user, which this one may read alone, is gone.

    Raises:
        PublishError, FtcliError: as `Lease.take`; or its holder has ended and left it.
    """
    for _ in range(2):  # a holder that comes has made its file some moments before it locks it
        try:
            descriptor = os.open(directory / LEASE_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise PublishError(
                f"{directory} belongs to a run of {owner}, and you have no access to it", WAY_ON.format(owner=owner)
            ) from error
        try:
            while not _lock(descriptor, fcntl.LOCK_SH) and _at(directory, descriptor):
                on_wait(watch.look())
                time.sleep(POLL_SECONDS)
            watch.refuse_failure(descriptor)
            if not _at(directory, descriptor):
                return
        finally:
            os.close(descriptor)
        time.sleep(GRACE_SECONDS)
    raise PublishError(
        f"{directory} was left behind by a run of {owner} that has ended", f"Ask {owner} to remove it, or choose another output directory."
    )


def _lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock it, if nobody else has."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _locked(descriptor: int, watch: Watch, lockless: Callable[[], None] | None) -> bool:
    """`_lock`, but where the file system has none and `lockless` is to know."""
    try:
        return watch.lockless or _lock(descriptor)
    except OSError as error:
        if lockless is None or error.errno not in NO_LOCKS:
            raise
    lockless()
    watch.lockless = True
    return True


def _at(directory: Path, descriptor: int) -> bool:
    """Whether the open file is still the one at its path."""
    try:
        there = (directory / LEASE_NAME).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(there, os.fstat(descriptor))
