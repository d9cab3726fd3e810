"""A file that is written once, front to back, past the page cache, and described from what was written."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import xxhash

from ftcli.core.files.manifest import EDGE_BYTES, hash_bytes

if TYPE_CHECKING:
    import pyarrow as pa

BUFFER = 2 << 20
"""Bytes of a write past the page cache: two processes wrote 0.85, 1.2, 0.8 and 0.9 GB/s together with 1, 2, 4 and 8 MiB."""
STEP = 1 << 17
"""Bytes copied and hashed at a time, so that the hash reads them from a core's cache."""
_DIRECT = getattr(os, "O_DIRECT", 0)
_REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
_spare: list[mmap.mmap] = []
"""Buffers of files that are closed: pages that this process has touched already."""


class NewFile:
    """What pyarrow writes to as to any file.

    Whole buffers go from memory to the disk by O_DIRECT, in a thread, while the next one is filled. By the page cache every byte is copied once more, to pages
    that are new each time: 0.1 s of CPU for 420 MB where they are warm, 1.7 s in a virtual machine whose host has to find them first. A file of less than one
    buffer, the rest of a longer one, and every file where the file system has no such writes go by the page cache.

    Args:
        path: made anew; a file that is there loses its content.

    Raises:
        OSError: from any method; it names the path.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.closed = path, False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._filling, self._filled = _buffer(), 0
        self._written = 0
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._digest, self._head, self._tail = xxhash.xxh3_128(), b"", b""

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written + self._filled

    def flush(self) -> None:
        """Nothing: what is written is there when the file is closed."""

    def write(self, data: bytes | pa.Buffer) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), STEP):
            self._add(view[start : start + STEP])
        return len(view)

    def _add(self, part: memoryview) -> None:
        self._digest.update(part)
        while part:
            fits = min(len(part), BUFFER - self._filled)
            self._filling[self._filled : self._filled + fits] = part[:fits]
            self._filled, part = self._filled + fits, part[fits:]
            if self._filled == BUFFER:
                self._next()

    def _next(self) -> None:
        """Have the buffer written while another one is filled."""
        self._keep_edges()
        self._wait()
        full, self._filling = self._filling, _buffer()
        self._written, self._filled = self._written + BUFFER, 0
        thread = Thread(target=self._put, args=(full, self._written == BUFFER))
        try:
            thread.start()
        except RuntimeError:  # the system has no further one
            self._put(full, self._written == BUFFER)
        else:
            self._thread = thread

    def _keep_edges(self) -> None:
        part = self._filling[: self._filled] if self._filled < EDGE_BYTES else self._filling[self._filled - EDGE_BYTES : self._filled]
        self._tail = (self._tail + part)[-EDGE_BYTES:]
        if not self._written:
            self._head = self._filling[: min(self._filled, EDGE_BYTES)]

    def _put(self, full: mmap.mmap, first: bool) -> None:
        try:
            if first:
                self._past_the_cache(True)
            with memoryview(full) as view:
                self._all(view)
        except BaseException as error:  # noqa: BLE001 - raised by `_wait` in the thread that asked
            self._error = error
        _spare.append(full)

    def _past_the_cache(self, wanted: bool) -> None:
        """Set or unset O_DIRECT, where there is such a thing."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | _DIRECT if wanted else flags & ~_DIRECT)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise

    def _all(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            try:
                done += os.write(self._descriptor, view[done:])
            except OSError as error:
                if error.errno not in _REFUSED or not fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & _DIRECT:
                    raise
                self._past_the_cache(False)  # the file system takes the flag and not the write, or the disk was full within a block

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if isinstance(self._error, OSError):
            raise OSError(self._error.errno, self._error.strerror, str(self.path)) from self._error
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Have everything written; durable is up to `ftcli.core.files.durable.sync`."""
        if self.closed:
            return
        try:
            self._keep_edges()
            self._wait()
            with memoryview(self._filling) as view:
                self._past_the_cache(False)
                self._all(view[: self._filled])
            self._written, self._filled = self._written + self._filled, 0
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close it with whatever of it is written."""
        if self.closed:
            return
        self.closed = True
        if self._thread is not None:
            self._thread.join()
        _spare.append(self._filling)
        os.close(self._descriptor)

    def described(self, name: str) -> dict[str, Any]:
        """As `ftcli.core.files.manifest.describe` says of the closed file, without reading it."""
        assert self.closed
        size = self._written
        last = size - max(len(self._head), size - EDGE_BYTES)
        edge = hash_bytes(self._head + self._tail[len(self._tail) - last :])
        return {"path": name, "bytes": size, "xxh3": self._digest.hexdigest(), "edge": edge}


def read_ahead(paths: Iterable[Path]) -> None:
    """Have the system read files that went past its cache while nobody waits for them: of 7 million rows the lengths alone took 1.2 s to open, 0.2 s after this,
    which takes 10 ms for 0.8 GB."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        with suppress(OSError), path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _buffer() -> mmap.mmap:
    return _spare.pop() if _spare else mmap.mmap(-1, BUFFER, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a forked process gets a copy
