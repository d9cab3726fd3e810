"""`ftcli` as a child that does not outlive whoever asked for it: nobody would read its answer, and it would keep the cores or the GPU."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence


def run(words: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`ftcli WORDS` in a fresh process, to its end, with what it printed.

    A pipe that nobody writes to is the tie: it closes when this process ends, however it ends. The command is interrupted then, as by SIGTERM.
    """
    theirs, ours = os.pipe()
    try:
        command = [sys.executable, "-m", "ftcli.core.processes.dies_with_parent", str(theirs), *words]
        return subprocess.run(command, env=dict(variables), pass_fds=[theirs], capture_output=True, text=True, check=False)
    finally:
        os.close(theirs)
        os.close(ours)


# -- in the child ------------------------------------------------------------------------------------------------------


def _watch(descriptor: int) -> None:
    os.read(descriptor, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_watch, args=(int(sys.argv.pop(1)),), daemon=True, name="whoever asked").start()
    runpy.run_module("ftcli", run_name="__main__", alter_sys=True)
