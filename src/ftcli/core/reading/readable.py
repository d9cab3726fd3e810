"""Whether a file can be read twice and by several processes, and whether a link stays in the folder that was named."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from ftcli.errors import DataError

OPEN_FILE = re.compile("/dev/(stdin|fd/)|/proc/(self|thread-self|[0-9]+)/(task/[0-9]+/)?fd/")
"""Another file in every process: where it is redirected from one, nothing else tells."""


def check_file(path: str) -> int:
    """The size of a file in bytes.

    Raises:
        DataError: `path` is no regular file that can be read: reading a FIFO or device would hang.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - a million small files are looked at
    except OSError as error:
        if Path(path).is_symlink():
            raise DataError(
                f"{path}: a link to {Path(path).readlink()}, which cannot be followed ({error.strerror})", "Fix the link."
            ) from None
        raise DataError(f"{path}: {error.strerror}", "Check the path and its permissions.") from None
    mode = status.st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}
        raise DataError(f"{path}: {kinds.get(stat.S_IFMT(mode), 'a device')}, not a file", "Write the data to a file: it is read twice.")
    if OPEN_FILE.match(path):
        raise DataError(f"{path}: an open file of this process, which its workers cannot read", "Name the file itself.")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path}: cannot be read: permission denied", "Check its permissions.")
    return status.st_size


def home_of(folder: str) -> str:
    """Where links inside a directory may lead: into itself, and from a snapshot of the hub's cache to the files beside it."""
    real = os.path.realpath(folder)
    cache, snapshots, _ = real.partition("/snapshots/")
    return cache if snapshots else real


def leads_out(path: str, home: str) -> bool:
    """Whether `path` is a link to a file outside of `home`: a directory from somewhere else must not bring in what is private here."""
    return os.path.islink(path) and not os.path.realpath(path).startswith(home.rstrip("/") + "/")  # noqa: PTH114
