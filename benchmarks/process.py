"""One command in a process of its own: wall and CPU seconds, and the memory of its whole process tree."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ftcli.core.processes.footprint import family, resident_bytes

INTERVAL = 0.2
PSS_EVERY = 5
"""Every fifth sample takes the proportional size too: the kernel walks all pages for it, which the measured process feels."""
ROOT = Path(__file__).resolve().parents[1]
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM")


class RunError(Exception):
    """A measured command failed; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Outcome:
    wall: float
    """Seconds from start to end, the interpreter's start included."""
    cpu: float
    """Seconds of user and system time, of all descendants that were waited for."""
    peak_rss_mb: float
    """Largest sum of resident sizes over the tree; shared pages count in every process that has them."""
    peak_pss_mb: float
    """Largest sum of proportional sizes: shared pages count once."""
    output: str
    """Standard output."""


@contextlib.contextmanager
def on_cpus(cpus: Collection[int]) -> Iterator[None]:
    """Processes started inside run on these CPUs only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def environment(work: Path, **more: str) -> dict[str, str]:
    """What a measured process gets: no settings of threads from outside, no network, caches of its own, and compiled modules, as an installed
    package has: pip compiled the others' (`PYTHONDONTWRITEBYTECODE` in an editable checkout cost every `ftcli tokenize` 0.3 s)."""
    kept = {name: value for name, value in os.environ.items() if name not in {*THREAD_VARIABLES, "PYTHONDONTWRITEBYTECODE"}}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**kept, "HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(work / "cache"), "PYTHONPATH": path, **more}


def python(*arguments: str | Path) -> list[str]:
    return [sys.executable, *map(str, arguments)]


def run(command: Sequence[str], cpus: Collection[int], env: Mapping[str, str], directory: Path) -> Outcome:
    """Run to the end.

    Raises:
        RunError: the command ended with another code than 0.
    """
    os.sync()  # what earlier runs wrote is not this run's load
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        with on_cpus(cpus):
            process = subprocess.Popen(command, env=env, cwd=directory, stdout=out, stderr=log, start_new_session=True)
        rss = pss = samples = 0
        try:
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    wall = time.perf_counter() - began
                    break
                pids = family(process.pid)
                rss = max(rss, resident_bytes(pids))
                if samples < PSS_EVERY or samples % PSS_EVERY == 0:  # a short command has no second look
                    resident, proportional = _walked_bytes(pids)
                    rss, pss = max(rss, resident), max(pss, proportional)
                samples += 1
                _wait(process.pid, INTERVAL)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        log.seek(0)
        output, messages = out.read().decode(), log.read().decode(errors="replace")
    if process.returncode:
        raise RunError(f"{' '.join(command)}\nended with {process.returncode}:\n{messages[-3000:]}{output[-1000:]}")
    return Outcome(wall, usage.ru_utime + usage.ru_stime, rss / 1e6, pss / 1e6, output)


def run_until(command: Sequence[str], cpus: Collection[int], env: Mapping[str, str], directory: Path, seconds: float) -> bool:
    """Start the command and kill its whole process group by SIGKILL after `seconds`; True if it was over before, successfully.

    Raises:
        RunError: it failed by itself.
    """
    with on_cpus(cpus), tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=env, cwd=directory, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False
        log.seek(0)
        if code:
            raise RunError(f"{' '.join(command)}\nended with {code}:\n{log.read().decode(errors='replace')[-3000:]}")
        return True


def _wait(pid: int, seconds: float) -> None:
    """Until the process ends (it stays to be waited for), at most `seconds`."""
    descriptor = os.pidfd_open(pid)
    try:
        select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)


def _walked_bytes(pids: Collection[int]) -> tuple[int, int]:
    """Resident and proportional size of the processes as the kernel counts both in one walk of their pages.

    The cheap counter of `resident_bytes` lags behind by some pages of every CPU: it was seen 0.1 MB under the proportional size.
    """
    found = {"Rss": 0, "Pss": 0}
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended meanwhile
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, _, size = line.partition(":")
                if name in found:
                    found[name] += int(size.split()[0]) * 1024
    return found["Rss"], found["Pss"]
