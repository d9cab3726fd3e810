"""One run at a time in a folder: its first rank holds a lease there, from before anything is written or swept until the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from ftcli.core.distributed import group
from ftcli.core.distributed.agree import first_decides
from ftcli.core.files.durable import writing
from ftcli.core.files.lease import LEASE_NAME, Lease
from ftcli.core.files.lease_holder import this_job
from ftcli.core.files.lease_watch import Watch, Work
from ftcli.errors import PublishError

FOLDER = "_running"
"""transformers leaves names that begin so out of what it pushes to the hub, and the note holds host and command."""
TRAINING = Work(
    "{output} is in use by another training run, {who}",
    "Wait until it ends, or stop it (kill -TERM {pid} on that machine lets it save a checkpoint) and continue with --resume-from-checkpoint auto;"
    " for a separate run choose another --output-dir.",
    "If that run is still needed, choose another --output-dir; otherwise stop it there, and mount the folder with locks for all machines"
    " (NFS without nolock and local_lock, Lustre with flock).",
)


class Claim:
    """The right to write in a run's folder, for a `with` block; nothing is held before it is taken.

    Args:
        output: the folder; None: none is given, which is refused elsewhere.
        note: told where the file system has no locks.
    """

    def __init__(self, output: Path | None, note: Callable[[str], None]) -> None:
        self._output = output
        self._note = note
        self._lease: Lease | None = None
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lease is not None:
            with suppress(OSError):  # what is left there says that this run has ended
                self._lease.leave()
        for folder in self._made:
            with suppress(OSError):  # something was written there
                folder.rmdir()

    def take(self) -> None:
        """Take it on the first rank, unless that has it; every rank must ask.

        Raises:
            PublishError: another run is at work there, which is told on every rank, or the folder cannot be written.
        """
        first_decides(self._take)

    def take_early(self) -> None:
        """Take it before the ranks can speak to each other; the other ranks look whether another job has it.

        Raises:
            PublishError: as `take`.
        """
        if self._output is None or group.world() == 1 or os.environ.get("RANK", "0") == "0":
            self._take()
        else:
            Watch(self._output / FOLDER / LEASE_NAME, self._output, None, TRAINING).refuse_other_job(this_job())

    def renew(self) -> None:
        """Take it again where the folder was moved away or removed meanwhile: what is saved then makes a new one, which nobody would hold.

        Raises:
            PublishError: another run is at work there.
        """
        lease = self._lease
        if lease is None or self._output is None:
            return
        with writing(self._output):
            if lease.held and lease.valid():
                return
        lease.release()
        self._lease = None
        try:
            self._take()
        except BaseException:
            self._lease = lease  # which is lost: whoever asks again is refused again
            raise
        self._note(f"{self._output} was moved or removed while this run writes there: from now on it writes into a new folder of that name")

    def hold(self) -> bool:
        """`renew`, and whether it may still be written there."""
        try:
            self.renew()
        except PublishError:
            return False
        return True

    def _take(self) -> None:
        output = self._output
        if output is None or self._lease is not None:
            return
        with writing(output):
            self._made = [folder for folder in (output, *output.parents) if not folder.exists()]
            output.mkdir(parents=True, exist_ok=True)
            self._lease = Lease.take(output / FOLDER, output, wait=False, work=TRAINING, lockless=self._without_locks)

    def _without_locks(self) -> None:
        self._note(f"the file system of {self._output} has no locks: another run is only recognized by its heartbeat")
