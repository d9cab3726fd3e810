"""Who holds a lease: the signed note in the lease file, which tells waiters whom they wait for, how far it is and why it failed."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from ftcli import errors
from ftcli.core.files.manifest import seal, unseal
from ftcli.errors import FtcliError

RANK_VARIABLES = ("RANK", "SLURM_PROCID")
BLOCK_BYTES = 4096
"""A note fills whole blocks, so that writing it again needs no more space: a holder can say that the disk is full."""
MOST_BYTES = 16 * BLOCK_BYTES


def this_rank() -> int | None:
    """Number of this process among those of its job, as torchrun (RANK) or Slurm (SLURM_PROCID) says; None: neither started it."""
    return next((int(text) for name in RANK_VARIABLES if (text := os.environ.get(name, "")).isdecimal()), None)


def this_job() -> str:
    """What all ranks of a job have in common: where they meet. Empty: this process is no rank."""
    return ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")).strip(":")


def _boot() -> str:
    """Identity of the running kernel; empty where it has none to tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _process(pid: int) -> tuple[str, int] | None:
    """State letter of a process of this machine and its start in clock ticks since boot, by which a recycled pid is known; None: none."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return words[0], int(words[19])


@dataclass(frozen=True, slots=True)
class Note:
    """What a holder says of itself. It is signed again with every heartbeat; any change of it is a sign of life."""

    token: str
    """Of this lease alone: another token in the file means that it was taken over."""
    rank: int | None
    pid: int
    host: str
    boot: str
    birth: int
    started: str
    command: str
    beats: int = 0
    steps: int = 0
    """Counts the work done; unlike `beats` it rests when the work hangs."""
    progress: Mapping[str, float] = field(default_factory=dict)
    """What `Lease.beat` was told last: done and total bytes, shards_done and shards."""
    ended: bool = False
    """Released in good order, by success, failure or interruption."""
    job: str = ""
    """Of `this_job`."""
    error: Mapping[str, str] | None = None
    """code, message and hint of what it failed with."""

    @classmethod
    def mine(cls) -> Self:
        """The first note of this process."""
        return cls(
            token=os.urandom(8).hex(),
            rank=this_rank(),
            pid=os.getpid(),
            host=socket.gethostname(),
            boot=_boot(),
            birth=(_process(os.getpid()) or ("", 0))[1],
            started=time.strftime("%Y-%m-%d %H:%M:%S"),
            command=" ".join(sys.orig_argv)[:300],
            job=this_job(),
        )

    @classmethod
    def read(cls, descriptor: int) -> Self | None:
        """The note in an open lease file; None when it is empty, half written, garbage or of another format."""
        try:
            document = unseal(os.pread(descriptor, MOST_BYTES, 0).rstrip(b"\n") + b"\n")
            return cls(**document)
        except (OSError, ValueError, TypeError, RecursionError):  # OSError: removed by another NFS client
            return None

    def write(self, descriptor: int) -> None:
        """One system call; what an older note leaves behind it is covered."""
        data = seal(asdict(self))
        size = max(len(data), os.fstat(descriptor).st_size)
        os.pwrite(descriptor, data.ljust(-(-size // BLOCK_BYTES) * BLOCK_BYTES, b"\n"), 0)

    @property
    def short(self) -> str:
        """rank, pid and host in words."""
        return f"{'' if self.rank is None else f'rank {self.rank}, '}pid {self.pid} on {self.host}"

    @property
    def words(self) -> str:
        return f"{self.short} (since {self.started})"

    @property
    def here(self) -> bool:
        """Whether its process ran under this kernel, whose locks this process sees."""
        return self.boot == _boot() and (bool(self.boot) or self.host == socket.gethostname())

    @property
    def state(self) -> str | None:
        """State letter of its process ("T" is stopped); None when it has ended, waited for by its parent or not, or runs on another machine."""
        process = _process(self.pid) if self.here and self.host == socket.gethostname() else None  # a container has pids of its own
        return process[0] if process and process[1] == self.birth and process[0] not in "ZX" else None

    def remedy(self, path: Path) -> str:
        """The commands that end or continue the process, or find the one that really holds the lock at `path`."""
        again = "then run the same command again: finished shards are kept."
        if self.host != socket.gethostname():
            return f"On {self.host}: kill -9 {self.pid}; {again}"
        if self.state is None:
            return f"That process has ended, but another one holds its lock: find it with fuser -v {path} and end it, {again}"
        if self.state in "Tt":
            return f"It is suspended. To resume it: kill -CONT {self.pid}. To end it: kill -9 {self.pid}; {again}"
        return f"To end it: kill -9 {self.pid}; {again}"

    def failure(self, output: Path) -> FtcliError | None:
        """What it failed with, as an error of the same kind for those that waited for it."""
        if self.error is None:
            return None
        kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FtcliError)]
        kind = next((kind for kind in kinds if kind.code == self.error["code"]), FtcliError)
        return kind(f"{self.short} could not prepare {output}: {self.error['message']}", self.error["hint"])


def as_error(error: Exception) -> dict[str, str]:
    """An exception as a note holds it."""
    if isinstance(error, FtcliError):
        return {"code": error.code, "message": error.message, "hint": error.hint}
    return {"code": "bug", "message": f"{type(error).__name__}: {error}", "hint": "See that process's own output."}
