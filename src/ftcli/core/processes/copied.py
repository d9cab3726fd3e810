"""A process that one of our children forked."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import suppress
from typing import Protocol


def possible() -> bool:
    """Whether processes are watched and ended by a descriptor here: neither off Linux, nor before 5.3, nor where a container's filter refuses it."""
    try:
        descriptor = os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return False
    try:
        signal.pidfd_send_signal(descriptor, 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


class Original(Protocol):
    """Knows the process that forked, as `Child` does, or how to ask for it."""

    def exit_code(self, pid: int) -> int | None:
        """Of a copy that has ended; None where nobody knows."""
        ...


class Copied:
    """What `subprocess.Popen` is for a child of one's own.

    The process that forked it waits for it when asked, and not before: until then its pid is not given to another one.
    """

    def __init__(self, pid: int, original: Original) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._original = original
        self._ended = False
        self._descriptor = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code, as `Popen.wait` gives it; None where nobody knows it any more.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        if not self._ended:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self._ended = True
            os.close(self._descriptor)
            self.returncode = self._original.exit_code(self.pid)
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if not self._ended:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)
