"""Workers that hang: they have work, and for minutes they neither compute, nor wait for a disk, nor say a word."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LOOK_SECONDS, LOOKS = 30.0, 10
"""A worker hangs that was found still ten times in a row, 30 s apart. Looks are counted and not seconds, of which many pass while all are stopped."""


class HangDetector:
    """Ends what hangs by SIGALRM (`ftcli.core.alarm`), so that its shard is rescued or named. Where there is no /proc nothing is ended."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._still: dict[int, tuple[int, int]] = {}
        """Worker's pid → its CPU time when it was last looked at, and how often it was still since it last did anything."""

    def heard(self, pid: int) -> None:
        """It has said something."""
        self._still.pop(pid, None)

    def look(self, pids: Iterable[int]) -> None:
        """Look at those that have work, if it is time to."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        before, self._still = self._still, {}
        for pid in pids:
            used, waits = _seen(pid)
            last, times = before.get(pid, (-1, 0))
            self._still[pid] = used, times + 1 if waits and used == last else 0
            if self._still[pid][1] >= LOOKS:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGALRM)


def _seen(pid: int) -> tuple[int, bool]:
    """CPU time of a process in ticks, and whether all its threads wait, for something else than a disk; one that is stopped does not wait."""
    try:
        process = Path("/proc", str(pid))
        threads = [_fields(thread / "stat") for thread in (process / "task").iterdir()]
        used = _fields(process / "stat")[11:13]
    except OSError:  # it has ended
        return -1, False
    return sum(map(int, used)), all(fields[0] == "S" for fields in threads)


def _fields(path: Path) -> list[str]:
    """Those behind the name, which may hold anything."""
    return path.read_text().rpartition(")")[2].split()
