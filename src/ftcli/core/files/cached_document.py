"""A document that is kept in a file from run to run, and made anew where the file is damaged, of something else, or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftcli.core.files.durable import put
from ftcli.core.files.manifest import seal, unseal
from ftcli.errors import PublishError


def kept(path: Path, compute: Callable[[], dict[str, Any]], fits: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
    """What the file holds, where that fits; else what `compute` gives, for the next run as well. A file that cannot be used costs time only.

    Args:
        compute: gives what JSON can hold.
    """
    with suppress(OSError, ValueError):
        found = unseal(path.read_bytes())
        if fits(found):
            used(path)
            return found
    answer = compute()
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put(seal(answer, readable=False), temporary, path)
    except (OSError, PublishError):
        with suppress(OSError):
            temporary.unlink()
    return answer


def used(path: Path) -> None:
    """The last used stay, where some are forgotten. Another user's file may be read, and not be touched."""
    with suppress(OSError):
        path.touch()


def forget(folder: Path, pattern: str, most: int) -> None:
    """Remove all files of that name but the `most` last used ones."""
    with suppress(OSError):  # another run may be doing the same
        for path in sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)[most:]:
            path.unlink()
