"""Writing that survives a crash, and the words for what the file system refuses."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ftcli.errors import PublishError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
KEPT = ": finished shards are kept"
_SPACE = f"Free space there or choose another output directory, then run the same command again{KEPT}."
_ACCESS = "Choose an output directory that you can write to, or change its permissions."
_FILES = "Raise the limit on open files (ulimit -n) or use fewer workers."
_LENGTH = f"The file-size limit (ulimit -f) or the file system's own limit does not allow it: raise the limit, then run the same command again{KEPT}."
_LOCKS = "This file system does not support locks: choose an output directory on a local disk, or mount it with locks."
_MOUNT = "The output directory cannot be a mount point: choose a directory inside it."
_TAKEN = "Something else was created there in the meantime: choose another output directory."
_OTHER = f"Check the disk, then run the same command again{KEPT}."
HINTS = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _LENGTH,
    errno.EROFS: "The file system is mounted read-only: choose another output directory.",
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.ENOLCK: _LOCKS,
    errno.EOPNOTSUPP: _LOCKS,
    errno.EBUSY: _MOUNT,
    errno.EXDEV: _MOUNT,
    errno.ENOENT: "Another run removed or took over the working directory: run the same command again. If the directory cannot be created at all, choose another one.",
    errno.ENAMETOOLONG: "Choose a shorter name: the working directory beside the output needs 26 bytes more.",
    errno.ENOTDIR: "Part of the path is a file: choose another output directory.",
    errno.EEXIST: _TAKEN,
    errno.ENOTEMPTY: _TAKEN,
}
WRITE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EMFILE, errno.ENFILE})
"""Errors that mean the output even where they do not say which file they are about."""


def free_bytes(path: Path) -> int:
    """Bytes this user may still write at `path` or at its nearest existing parent."""
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(nearest).free


def size_of(path: Path) -> int:
    """Bytes of a file or of all files under a folder; 0 when there is nothing. What others remove meanwhile does not count."""
    total = 0
    for folder, _, names in os.walk(path) if path.is_dir() else [(path.parent, (), [path.name])]:
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(folder, name).stat().st_size
    return total


def refusal(error: OSError, path: Path) -> PublishError:
    """What the file system refused at `path`, with the bytes written and free where space is the matter."""
    name = error.filename2 or error.filename  # of a copy: where to, not where from
    where = Path(name) if isinstance(name, str) else path
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        try:
            reason += f": {size_of(where):,} bytes of it written, {free_bytes(where):,} bytes free"
        except OSError as unknown:
            reason += f": free bytes unknown ({unknown.strerror})"
    return PublishError(f"cannot write {where}: {reason}", HINTS.get(error.errno or 0, _OTHER))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn every OSError of the block into a `PublishError` that names the file (or else `path`), the figures and the way out."""
    try:
        yield
    except OSError as error:
        raise refusal(error, path) from error


def sync(path: Path) -> None:
    """Make a file's content or a folder's entries durable."""
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def put(data: bytes, temporary: Path, final: Path) -> None:
    """Write a file whole and durably: nobody ever sees a part of it under its final name."""
    with writing(temporary):
        temporary.write_bytes(data)
        sync(temporary)
        temporary.replace(final)
        sync(final.parent)


def exchange(one: Path, other: Path) -> bool:
    """Swap two directories by one system call; False where the system or the file system has no such call."""
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(other))
