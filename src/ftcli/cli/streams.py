"""Writing to stdout and stderr when the other end may be gone, full or closed."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from ftcli.errors import PublishError
from ftcli.masking import Clean, masked, printable


def prepare() -> None:
    """Make stdout and stderr usable whatever the locale and the caller did to them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # started with the descriptor closed (`>&-`)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - lives as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a locale without Korean must not end a report


def emit(text: str, stream: TextIO) -> None:
    """Write and flush, without secrets and control characters. A reader that has left (head, less) is no error; the rest goes nowhere.
    What is said on stderr ends no work either: a run whose log is on a full disk goes on.

    Raises:
        PublishError: stdout cannot take it (a full disk).
    """
    try:
        stream.write(text if isinstance(text, Clean) else printable(masked(text)))
        stream.flush()
    except BrokenPipeError:
        detach(stream)
    except OSError as error:
        detach(stream)
        if stream is sys.stderr:
            return
        raise PublishError(
            f"the output cannot be written: {error.strerror}", "Free space there, or redirect the output elsewhere."
        ) from error


def detach(stream: TextIO) -> None:
    """Point a broken stream at nothing, so that the interpreter's last flush is quiet."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
