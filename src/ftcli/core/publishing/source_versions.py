"""Which version of each source was read, where several machines read the same sources and none of them reads all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from ftcli.core.files.manifest import hash_bytes
from ftcli.core.files.mirror import origin
from ftcli.core.files.stamps import Hashed, SourceHashes, Stamp
from ftcli.errors import DataError
from ftcli.settings import Settings

HINT = (
    "All parts and --finish must read the same files: put the sources on a file system that all machines share, or copy them to each machine"
    " before the first part."
)


class Stamps(SourceHashes):
    """Name, size and modification time in place of a content hash: what a plan is told by before anybody has read the sources.

    Of a copy of an object the object's version: every machine may have a copy of its own.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(None)
        self._settings = settings

    def take(self, path: str) -> Hashed:
        """
        Raises:
            OSError: there is no such file.
        """
        stamp = Stamp.of(path)
        version = version_of(path, self._settings) or stamp.mtime_ns
        return Hashed(hash_bytes(f"{stamp.size} {version} {os.path.basename(path)}".encode()), stamp)  # noqa: PTH119 - a million paths


class Sighting(NamedTuple):
    """A file as one part saw it. Inode and change time are the server's: all machines that share a file system see the same.

    A copy of an object has the object's version for its inode, and no times.
    """

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    xxh3: str | None
    """None: another part hashes this file."""

    @classmethod
    def of(cls, path: str, stamp: Stamp, settings: Settings, xxh3: str | None = None) -> Self:
        version = version_of(path, settings)
        return cls(*stamp[1:], xxh3) if version is None else cls(int(version[:15], 16), stamp.size, 0, 0, xxh3)

    def same(self, other: Sighting) -> bool:
        """Whether it is the same version of the same file. A change time alone (chmod, a new hard link) is settled by both hashes."""
        return self[:4] == other[:4] or (self.alike(other) and self.xxh3 is not None and self.xxh3 == other.xxh3)

    def alike(self, other: Sighting) -> bool:
        """Whether nothing but the change time differs, which a `touch -r` after a write does not show either."""
        return self[:3] == other[:3]


Sightings = Mapping[int, Sighting]
"""By the number of the file in the plan."""


def as_json(sightings: Sightings) -> list[list[Any]]:
    return [[number, *sighting] for number, sighting in sorted(sightings.items())]


def from_json(entries: Iterable[Sequence[Any]]) -> dict[int, Sighting]:
    return {int(number): Sighting(*rest) for number, *rest in entries}


def version_of(path: str, settings: Settings) -> str | None:
    """The version of the object that a file is a copy of; None where it is none."""
    return origin(path, settings).get("version")


def agree(path: str, seen: Mapping[str, Sighting], hashes: SourceHashes, settings: Settings) -> Hashed:
    """The content hash of a source that the parts have read, where it was one content for all of them and still is.

    Args:
        seen: the part ("3/16") → what it saw; one of them at least has the hash.

    Raises:
        DataError: two parts read different files, or it changed since; names part and file.
        OSError: it is gone.
    """
    owner, hashed = next((part, sighting) for part, sighting in seen.items() if sighting.xxh3 is not None)
    assert hashed.xxh3 is not None
    for part, sighting in seen.items():
        if not sighting.alike(hashed):
            raise DataError(f"parts {owner} and {part} read different files under the name {path}", HINT)
    stamp = Stamp.of(path)
    here = (
        Hashed(hashed.xxh3, stamp) if Sighting.of(path, stamp, settings).same(hashed) else hashes.take(path)
    )  # a copy, or a new change time
    if here.xxh3 != hashed.xxh3:
        raise DataError(f"{path} is not what part {owner} read: its content differs", HINT)
    # who read the same file later than the part that hashed it read the same content, since it has that content now
    early = [part for part, sighting in seen.items() if sighting.ctime_ns < hashed.ctime_ns]
    late = [part for part, sighting in seen.items() if sighting.ctime_ns > hashed.ctime_ns and stamp.inode != hashed.inode]
    if odd := early or late:
        raise DataError(
            f"{path} was modified (chmod, a hard link, a write) between parts {owner} and {odd[0]}: ftcli cannot tell whether both read the same content",
            f"Run the same command with --shard {odd[0]} again, then --finish.",
        )
    return here
