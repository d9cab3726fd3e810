"""Content hashes of sources, remembered for as long as the file system says that nobody touched the file.

A stamp is what the kernel changes with every write: device, inode, size, modification time and change time. A user can set the
modification time back (`cp -p`, `rsync -t`, `touch -r`), but not the change time. A hash is remembered only when the change time was
at least `RACY_NS` old at the moment of hashing: a write in the same clock tick as the stamp would not show. What a stamp cannot show
is in decision 0014: such hashes save time, and a rerun with an empty cache folder is always exact.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from stat import S_ISLNK
from threading import Lock
from typing import NamedTuple

from ftcli.core.files.durable import put, writing
from ftcli.core.files.manifest import hash_bytes, hash_file, seal, unseal
from ftcli.errors import DataError, PublishError

RACY_NS = 2 * 10**9
"""The coarsest clock of a file system in use (FAT) ticks every 2 s."""


class Stamp(NamedTuple):
    """What the file system says of one version of a file."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: str) -> Stamp:
        """
        Raises:
            OSError: there is no such file.
        """
        return cls.said_by(os.stat(path))  # noqa: PTH116 - a million small files are stamped

    @classmethod
    def said_by(cls, stat: os.stat_result) -> Stamp:
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


class Hashed(NamedTuple):
    """A file's xxh3_128 and its stamp from before it was hashed."""

    xxh3: str
    stamp: Stamp

    def holds(self, path: str) -> bool:
        """Whether `path` still has this content. A change time alone (chmod, a new hard link) is settled by hashing again."""
        try:
            now = Stamp.of(path)
        except OSError:
            return False
        return now == self.stamp or (now[:4] == self.stamp[:4] and _hash_of(path, now) == self.xxh3)


@lru_cache(maxsize=1024)
def _hash_of(path: str, stamp: Stamp) -> str:  # noqa: ARG001 - the stamp is the cache's key
    return hash_file(Path(path))


def check_unchanged(hashes: Mapping[str, Hashed], paths: Iterable[str]) -> None:
    """Raises `DataError`: a file is no longer what was hashed, so that what was read of it may belong to another fingerprint."""
    changed = next((path for path in paths if not hashes[path].holds(path)), None)
    if changed is not None:
        raise DataError(f"{changed} changed while it was read", "Run the same command again when nothing is writing to it.")


class SourceHashes:
    """Hashes files, and remembers them in `folder` (one small file a directory of sources); None remembers for this object only."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._tables: dict[str, dict[str, list[int | str]]] = {}
        self._changed: set[str] = set()
        self._real: dict[str, str] = {}
        self._lock = Lock()

    def take(self, path: str) -> Hashed:
        """The content hash of a file, remembered or made now; called from several threads.

        Raises:
            OSError: it cannot be read.
        """
        parent, name, stamp, known = self._look(path)
        if known is not None:
            return known
        begun = time.time_ns()
        hashed = Hashed(hash_file(Path(path)), stamp)
        if begun - stamp.ctime_ns >= RACY_NS and Stamp.of(path) == stamp:
            with self._lock:
                self._tables[parent][name] = [*stamp, hashed.xxh3]
                self._changed.add(parent)
        return hashed

    def known(self, path: str) -> tuple[int, Hashed | None]:
        """Size of a file, and its content hash where that is remembered; (0, None) where it cannot be looked at, for `take` to say why."""
        try:
            _, _, stamp, known = self._look(path)
        except OSError:
            return 0, None
        return stamp.size, known

    def _look(self, path: str) -> tuple[str, str, Stamp, Hashed | None]:
        """Real folder, name in it, stamp and remembered hash of a file, for the price of one look."""
        folder, name = os.path.split(path)
        status = os.lstat(path)
        if S_ISLNK(status.st_mode):
            folder, name = os.path.split(os.path.realpath(path))
            status = os.stat(path)  # noqa: PTH116 - as in Stamp.of
        stamp = Stamp.said_by(status)
        with self._lock:
            parent = self._real.get(folder) or self._real.setdefault(folder, os.path.realpath(folder))
            entry = self._table(parent).get(name)
        same = entry is not None and entry[:-1] == list(stamp)
        return parent, name, stamp, Hashed(str(entry[-1]), stamp) if same and entry else None

    def prepare(self) -> str:
        """Find out at once whether the folder can be written; if not, this object alone remembers. The words for why, or ""."""
        if self._folder is None:
            return ""
        try:
            with writing(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
                trial = self._folder / f".{os.getpid()}.trial"
                trial.touch()
                trial.unlink()
        except PublishError as error:
            self._folder = None
            return f"nothing is cached for the next run: {error.message}"
        return ""

    def keep(self) -> str:
        """Write down what is new; the words for what kept it from being kept, or ""."""
        if self._folder is None:
            return ""
        try:
            for parent in sorted(self._changed):
                with writing(self._folder):
                    self._folder.mkdir(parents=True, exist_ok=True)
                    there = {entry.name for entry in os.scandir(parent)}
                files = {name: entry for name, entry in self._tables[parent].items() if name in there}
                final = self._path(parent)
                temporary = final.with_suffix(f".{os.getpid()}.tmp")
                try:
                    put(seal({"folder": parent, "files": files}, readable=False), temporary, final)
                finally:
                    with suppress(OSError):
                        temporary.unlink()
        except PublishError as error:
            return f"the hashes of the sources are not cached for the next run: {error.message}"
        self._changed.clear()
        return ""

    def _table(self, parent: str) -> dict[str, list[int | str]]:
        if parent not in self._tables:
            document: Mapping[str, dict[str, list[int | str]]] = {}
            if self._folder is not None:
                with suppress(OSError, ValueError):  # absent, unreadable or damaged: the files are hashed
                    document = unseal(self._path(parent).read_bytes())
            self._tables[parent] = document.get("files", {})
        return self._tables[parent]

    def _path(self, parent: str) -> Path:
        assert self._folder is not None
        return self._folder / f"sources-{hash_bytes(os.fsencode(parent))}.json"
