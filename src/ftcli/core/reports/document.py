"""A document in a file that somebody named: looked at before the work, written whole or not at all."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ftcli.errors import PublishError, UsageError
from ftcli.masking import Clean, masked, printable

REPORT = "the report"
ELSEWHERE = "Free space there, or choose another place: --report-dir DIR, and --output FILE where a command has it."
ANOTHER = "Name another file, in a folder that this user may write to."


def check_document(path: Path, what: str = REPORT, *, read: Iterable[str | Path]) -> None:
    """Find out whether `write_document` can write there; makes nothing.

    Args:
        what: the document, in words.
        read: sources as they were given (FILE or SPLIT=FILE), none of which it may replace; what is no file is passed over.

    Raises:
        PublishError: something is in the way, a name is too long, or this user cannot write there.
        UsageError: it is a file that is read.
    """
    for source in [name for given in map(str, read) for name in (given, given.partition("=")[2])]:
        with suppress(OSError, ValueError):
            if path.is_file() and path.samefile(source):
                raise UsageError(f"output = {path} is the file with the texts, and would replace it", "Name another file.")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if own_stream(path) is not None:
            return
        if path.exists() and not path.is_file():  # a pipe is not opened: that would wait for its reader
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        place = Path(os.path.realpath(path))
        with suppress(FileNotFoundError):
            _temporary(place).lstat()
        nearest = next(folder for folder in place.parents if os.path.lexists(folder))
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise PublishError(f"{what} {path} cannot be written: {error.strerror}", ANOTHER) from error


def write_document(path: Path, text: str, what: str = REPORT, hint: str = ELSEWHERE) -> None:
    """Write it, whole or not at all. What a link leads to is replaced, not the link; a device or a pipe is written to, not replaced, and so is a file
    that is this process's own output.

    Args:
        what, hint: the document in words, and the way out where it cannot be written.

    Raises:
        PublishError: it cannot be written.
    """
    text = text if isinstance(text, Clean) else printable(masked(text))
    temporary = None
    try:
        if (stream := own_stream(path)) is not None:
            sys.stdout.flush()
            with open(stream, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as out:
                out.write(text)
            return
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        place = Path(os.path.realpath(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(place)
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        temporary.replace(place)
    except OSError as error:
        with suppress(OSError):
            if temporary is not None:
                temporary.unlink()
        raise PublishError(f"{what} {path} cannot be written: {error.strerror}", hint) from error


def own_stream(path: Path) -> int | None:
    """The descriptor of this process's stdout or stderr, where that leads to the file `path`: /dev/stdout, or the file that it was sent to."""
    if not path.is_file():
        return None
    for stream in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(stream), path.stat()):
                return stream
    return None


def _temporary(place: Path) -> Path:
    return place.with_name(f".{place.name}.{os.getpid()}.tmp")
