"""The home folder, or what stands for it where there is none."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path


def home() -> Path:
    """The user's home folder; for one without HOME and without an entry in passwd (any uid in a container) a folder of its own in the temporary one."""
    try:
        return Path.home()
    except RuntimeError:
        return _stand_in(Path(tempfile.gettempdir()), os.getuid())


@lru_cache
def _stand_in(temporary: Path, user: int) -> Path:
    """The same from run to run, unless somebody else has made it: what is kept there is believed."""
    folder = temporary / f"ftcli-home-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if found.st_uid == user and not found.st_mode & 0o022 and not folder.is_symlink():
            return folder
        return Path(tempfile.mkdtemp(prefix="ftcli-home-", dir=temporary))
    except OSError:
        return folder  # nothing can be kept: whoever writes there says so
