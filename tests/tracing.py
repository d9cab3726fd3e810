"""System calls counted and struck by strace: what the tests share that kill a program at every one of its calls."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

import naive_driver
import publish_driver
from timing import PATIENCE, until

STRACE = shutil.which("strace") is not None and subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True).returncode == 0
needs_strace = pytest.mark.skipif(not STRACE, reason="strace is not installed or may not trace here")

CALLS = (
    "openat,write,pwrite64,ftruncate,fsync,fdatasync,close,flock,?mkdir,mkdirat,"
    "?rename,renameat,renameat2,?unlink,unlinkat,?rmdir,?link,linkat"
)


@dataclass(frozen=True)
class Call:
    """The `number`-th `name` of a run, counted from the start of the trace as strace's `when` does."""

    name: str
    number: int
    line: str
    published: bool
    """Whether the call comes after the rename that publishes."""

    def struck(self, injection: str) -> list[str]:
        """Options of strace that put a fault at this call."""
        return ["-e", f"trace={self.name}", "-e", f"inject={self.name}:{injection}:when={self.number}"]


def points(lines: Sequence[str], output: Path) -> list[Call]:
    """Every call between the marks that changes the file system or ends a change; opening for reading and its close change nothing."""
    counts: Counter[str] = Counter()
    writable: set[str] = set()
    found, inside, is_published = [], False, False
    for line in lines:
        if begun := re.match(
            r"(\w+)\(", line
        ):  # also of a call that strace tells in two lines, because another thread had its word between
            counts[begun[1]] += 1
        if publish_driver.START in line:
            inside = True
        elif publish_driver.END in line:
            inside = False
        match = re.match(r"(\w+)\((.*)\) += (-?\d+)", line)
        if match is None:
            continue
        name, arguments, result = match.groups()
        writes = name not in {"openat", "close"} or (name == "openat" and re.search("O_WRONLY|O_RDWR|O_CREAT", arguments) is not None)
        if name == "openat" and writes:
            writable.add(result)
        elif name == "close":
            writes = arguments in writable
            writable.discard(arguments)
        if inside and writes and not (name == "write" and arguments.startswith("1,")):
            found.append(Call(name, counts[name], line, is_published))
        is_published = is_published or (name.startswith("rename") and f', "{output}"' in arguments)
    return found


def calls_of(log: Path) -> list[str]:
    """The lines of a trace without the process ids, of the first process alone."""
    lines = [line.split(maxsplit=1) for line in log.read_text().splitlines()]
    return [line for pid, line in lines if pid == lines[0][0]]


class Forked:
    """A program that forks a process for each line of words that it is told, which strace joins before it begins: what it imports is
    imported once for all, and strace stops at none of it (a run of the commit layer: 60 ms of CPU, and 290 from its start)."""

    def __init__(self, *program: str) -> None:
        self._program = program

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(self._program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.kill()
        self._server.communicate()

    def _say(self, words: str) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(f"{words}\n")

    def _hear(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())

    def begin(self, *words: str | Path) -> int:
        """The pid of a process that waits for `go`."""
        self._say(" ".join(map(str, words)))
        return self._hear()

    def go(self) -> None:
        self._say("")

    def end(self) -> int:
        """How it ended."""
        return self._hear()

    def traced(self, words: Sequence[str | Path], *options: str) -> int:
        """One process under strace with `options`; how it ended."""
        pid = self.begin(*words)
        tracer = subprocess.Popen(["strace", "-f", "-p", str(pid), *options], stderr=subprocess.DEVNULL)
        until(lambda: "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text(), 0.002)
        self.go()
        code = self.end()
        tracer.wait(PATIENCE)
        return code


class Naive(Forked):
    """`datasets.save_to_disk`."""

    def __init__(self) -> None:
        super().__init__(sys.executable, "-B", naive_driver.__file__)

    def run(self, output: Path, version: str, *options: str) -> int:
        """Save under strace with `options`; how it ended."""
        return self.traced([output, version], *options)

    def rehearse(self, output: Path, version: str) -> list[Call]:
        """Every point of a save."""
        log = output.with_name("strace.log")
        assert self.run(output, version, "-o", str(log), "-e", f"trace={CALLS}") == 0
        return points(calls_of(log), output)

    def kill(self, output: Path, version: str, call: Call) -> None:
        """A save that is killed at `call`."""
        code = self.run(output, version, "-o", os.devnull, *call.struck("signal=SIGKILL"))
        assert code == -signal.SIGKILL, f"{call} was not reached: {code}"
