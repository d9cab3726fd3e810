"""What lies below folders: prepared directories, and the working directories of runs that go on or are dead."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ftcli.context import Context
from ftcli.core.files.durable import size_of
from ftcli.core.files.lease import LEASE_NAME
from ftcli.core.publishing.output_location import ATTEMPT, PARTS, read_plan
from ftcli.errors import PublishError
from ftcli.records import MANIFEST_NAME

OWN = frozenset({"tmp", "data", "records", "labels", "parts"})
"""Folders that a job in parts makes before its plan."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A working directory that was not published."""

    path: Path
    output: Path
    bytes: int
    age: float
    """Seconds since its last sign of life."""
    held: bool
    """Whether a process works on it."""


def walk(context: Context, folders: Sequence[Path], *, links: bool = False) -> Iterator[tuple[Path, bool]]:
    """Prepared directories (True) and working directories (False) below the folders; what is inside of them is not looked at.

    Args:
        links: prepared directories to which a link leads as well, unless they were found already.
    """
    seen: set[Path] = set()
    linked: list[Path] = []

    def unread(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # gone meanwhile
            context.note(f"could not be searched: {error.filename}: {error.strerror}")

    for top in folders:
        for root, names, files in os.walk(top, onerror=unread):
            folder = Path(root)
            if (whole := MANIFEST_NAME in files) or is_attempt(folder):
                names.clear()
                if (place := folder.resolve()) not in seen:  # folders may be named twice, or one inside of another
                    seen.add(place)
                    yield folder, whole
            names.sort()
            linked += [folder / name for name in names if links and (folder / name).is_symlink()]
    for folder in linked:
        with suppress(OSError):
            if (folder / MANIFEST_NAME).is_file() and (place := folder.resolve()) not in seen:
                seen.add(place)
                yield folder, True


def is_attempt(folder: Path) -> bool:
    """Whether it is a working directory of ftcli: by its name and what lies in it, or empty. Its process may remove it at this moment."""
    with suppress(FileNotFoundError, PermissionError):
        if PARTS.fullmatch(folder.name):
            return _is_of_parts(folder)
        return ATTEMPT.fullmatch(folder.name) is not None and ((folder / LEASE_NAME).is_file() or not any(folder.iterdir()))
    return False


def _is_of_parts(folder: Path) -> bool:
    with suppress(PublishError):
        return bool(read_plan(folder))
    return all(place.name in OWN and place.is_dir() and not any(place.iterdir()) for place in folder.iterdir())


def attempt_at(folder: Path) -> Attempt:
    """What is known of a working directory without touching it."""
    match = ATTEMPT.fullmatch(folder.name) or PARTS.fullmatch(folder.name)
    assert match is not None
    newest = max(_times(folder), default=time.time())
    held = any(_is_held(lease) for lease in (folder / LEASE_NAME, *folder.glob(f"parts/*/{LEASE_NAME}")))
    return Attempt(folder, folder.with_name(match[1]), size_of(folder), time.time() - newest, held)


def _times(folder: Path) -> Iterator[float]:
    """Of what is in there, while others may be at work in it."""
    with suppress(FileNotFoundError):
        for path in (folder, *folder.rglob("*")):
            with suppress(FileNotFoundError):
                yield path.lstat().st_mtime


def _is_held(lease: Path) -> bool:
    """Whether a process has the lock; the file is not made or signed."""
    try:
        descriptor = os.open(lease, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
