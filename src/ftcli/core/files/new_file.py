"""A file that is written once, front to back, past the page cache, and described from what was written."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

import xxhash

from ftcli.core.files.manifest import EDGE_BYTES, hash_bytes

if TYPE_CHECKING:
    import pyarrow as pa

BUFFER = 2 << 20
"""Bytes of a write past the page cache: two processes wrote 0.85, 1.2, 0.8 and 0.9 GB/s together with 1, 2, 4 and 8 MiB."""
QUEUED = 8
"""Pieces that may wait for the thread: Arrow writes a record batch as about so many."""
_DIRECT = getattr(os, "O_DIRECT", 0)
_OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""Memory of which a forked process gets a copy; mmap's default is shared."""
_REFUSED = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
_spare: list[mmap.mmap] = []
"""Buffers of files that are closed: pages that this process has touched already."""


class NewFile:
    """What pyarrow writes to as to any file.

    From its first full buffer on a thread takes what is written, hashes it and has whole buffers go from memory to the disk by O_DIRECT. By the page cache every
    byte is copied once more, to pages that are new each time: 0.1 s of CPU for 420 MB where they are warm, 1.7 s in a virtual machine whose host has to find them
    first. A file of less than one buffer, the rest of a longer one, and every file where the file system has no such writes go by the page cache.

    Args:
        path: made anew; a file that is there loses its content.

    Raises:
        OSError: from `write` and `close`; it names the path.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.closed = path, False
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._size, self._refused = 0, not _DIRECT
        self._buffer, self._filled = _buffer(), 0
        self._digest, self._head, self._tail = xxhash.xxh3_128(), b"", b""
        self._pieces: Queue[bytes | pa.Buffer | None] = Queue(QUEUED)
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing: what is written is there when the file is closed."""

    def write(self, data: bytes | pa.Buffer) -> int:
        """Args: data: must not change any more."""
        assert not self.closed, f"{self.path} is closed, and another file may have its buffer"
        size = memoryview(data).nbytes
        self._size += size
        if self._thread is None and (self._size <= BUFFER or not self._start()):
            self._take(data)
        else:
            self._pieces.put(data)
        self._raise()
        return size

    def _start(self) -> bool:
        """Have a thread take the pieces; False where the system has no further one."""
        thread = Thread(target=self._work)
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread
        return self._thread is not None

    def _work(self) -> None:
        while (data := self._pieces.get()) is not None:
            self._take(data)

    def _take(self, data: bytes | pa.Buffer) -> None:
        """Write it, unless something was not written before it: nothing may follow a hole."""
        if self._error is None:
            try:
                self._add(data)
            except BaseException as error:  # noqa: BLE001 - raised where `write` was called
                self._error = error

    def _add(self, data: bytes | pa.Buffer) -> None:
        view = memoryview(data).cast("B")
        while view:
            if self._filled == BUFFER:
                self._put()
            part = view[: BUFFER - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._digest.update(part)
            self._filled, view = self._filled + len(part), view[len(part) :]

    def _put(self) -> None:
        """Write what the buffer holds."""
        self._head = self._head or self._buffer[: min(self._filled, EDGE_BYTES)]
        self._tail = (self._tail + self._buffer[max(0, self._filled - EDGE_BYTES) : self._filled])[-EDGE_BYTES:]
        direct = self._set_direct(self._filled == BUFFER < self._size)
        done = 0
        with memoryview(self._buffer) as view:
            while done < self._filled:
                try:
                    done += os.write(self._descriptor, view[done : self._filled])
                except OSError as error:
                    if error.errno not in _REFUSED or not direct:
                        raise
                    self._refused = True  # the file system takes the flag and not the write, or the disk was full within a block
                    direct = self._set_direct(False)
        self._filled = 0

    def _set_direct(self, wanted: bool) -> bool:
        """Set or unset O_DIRECT, where there is such a thing; whether it is set."""
        wanted = wanted and not self._refused
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | _DIRECT if wanted else flags & ~_DIRECT)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self._refused, wanted = True, False
        return wanted

    def _raise(self) -> None:
        if isinstance(self._error, OSError):
            raise OSError(self._error.errno, self._error.strerror, str(self.path)) from self._error
        if self._error is not None:
            raise self._error

    def _join(self) -> None:
        if self._thread is not None:
            self._pieces.put(None)
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Have everything written; durable is up to `ftcli.core.files.durable.sync`."""
        if self.closed:
            return
        self._join()
        if self._error is None:
            try:
                self._put()
            except OSError as error:
                self._error = error
        self.abandon()
        self._raise()

    def abandon(self) -> None:
        """Close it with whatever of it is written."""
        if self.closed:
            return
        self.closed = True
        self._join()
        _spare.append(self._buffer)
        os.close(self._descriptor)

    def described(self, name: str) -> dict[str, Any]:
        """As `ftcli.core.files.manifest.describe` says of the closed file, without reading it."""
        assert self.closed
        last = self._size - max(len(self._head), self._size - EDGE_BYTES)
        edge = hash_bytes(self._head + self._tail[len(self._tail) - last :])
        return {"path": name, "bytes": self._size, "xxh3": self._digest.hexdigest(), "edge": edge}


def read_ahead(paths: Iterable[Path]) -> None:
    """Have the system read files that went past its cache while nobody waits for them: asking takes 0.3 s for the 0.8 GB of 7 million rows, whose lengths alone
    took 0.5 to 1.9 s to open from the disk, and 0.1 to 0.3 s after this."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        with suppress(OSError), path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _buffer() -> mmap.mmap:
    return _spare.pop() if _spare else mmap.mmap(-1, BUFFER, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a forked process gets a copy
