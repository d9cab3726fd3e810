"""What a prepared directory says about itself: content hashes, sealed JSON, the manifest and its check."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, Literal

import xxhash

from ftcli.errors import StoreError
from ftcli.records import MANIFEST_NAME, MANIFEST_SCHEMA

EDGE_BYTES = 1 << 16
BLOCK_BYTES = 1 << 20
MANY_FILES = 512
"""From here on files are compared by several threads: a cold disk answers them together. 5,000 warm ones take 0.15 s either way."""
THREADS = 8
_REBUILD = "Prepare it again with the same settings and --overwrite."
_AGAIN = "Its disk or server failed: run the same command again. Only if the error persists, prepare the data again with --overwrite."
_UNREADABLE = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "You have no read permission: change the file's permissions."),
    errno.ENAMETOOLONG: "Check the path: the name is too long.",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit on open files (ulimit -n), then run the same command again."),
}


def unreadable_hint(code: int | None) -> str:
    """What to do about a file that an error keeps from being read; it may be as it was published."""
    return _UNREADABLE.get(code or 0, _AGAIN)


def hash_bytes(data: bytes) -> str:
    """xxh3_128 in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data)


def hash_file(path: Path) -> str:
    """xxh3_128 of a file's content in hexadecimal, in constant memory."""
    with path.open("rb", buffering=0) as file:
        return _digest(file)


def _digest(file: io.RawIOBase) -> str:
    digest = xxhash.xxh3_128()
    block = memoryview(bytearray(min(BLOCK_BYTES, os.fstat(file.fileno()).st_size + 1)))  # zeroing 1 MiB takes longer than a small file
    while count := file.readinto(block):
        digest.update(block[:count])
    return digest.hexdigest()


def fingerprint(document: Mapping[str, Any]) -> str:
    """xxh3_128 of the document as canonical JSON; the order of keys does not matter."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hash_bytes(text.encode())


def _edge(descriptor: int, size: int) -> str:
    """Hash of the first and last 64 KiB: finds swapped files and zeroed tails for the price of two reads."""
    head = os.pread(descriptor, EDGE_BYTES, 0)
    return hash_bytes(head + os.pread(descriptor, EDGE_BYTES, max(len(head), size - EDGE_BYTES)))


def describe(path: Path, name: str) -> dict[str, Any]:
    """What a manifest says about a file that it lists as `name`."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return {"path": name, "bytes": size, "xxh3": hash_file(path), "edge": _edge(file.fileno(), size)}


@dataclass(frozen=True, slots=True)
class Damage:
    """How a file differs from its entry."""

    path: str
    """Below the prepared directory."""
    kind: Literal["missing", "not a file", "size", "edge", "content", "manifest", "unreadable"]
    expected: str | int
    found: str | int
    code: int | None = None
    """errno of what cannot be read."""

    @property
    def passing(self) -> bool:
        """Whether it says nothing of the content. An input/output error does: of a disk that has lost it."""
        return self.kind == "unreadable" and self.code != errno.EIO

    @property
    def hint(self) -> str:
        return unreadable_hint(self.code) if self.kind == "unreadable" else _REBUILD

    @property
    def words(self) -> str:
        match self.kind:
            case "missing" | "not a file":
                return f"is {self.kind}"
            case "size":
                return f"has {self.found:,} bytes instead of {self.expected:,}"
            case "edge":
                return "differs in its first or last 64 KiB"
            case "content":
                return f"has the content hash {self.found} instead of {self.expected}"
            case "manifest":
                return str(self.found)
            case "unreadable":
                return f"cannot be read: {self.found}"


def damage_of(folder: Path, entry: Mapping[str, Any], *, full: bool, at: int | None = None) -> Damage | None:
    """Compare a file with its entry: presence, size, and the whole content (`full`) or its first and last 64 KiB.

    Args:
        at: an open descriptor of `folder`, which stays the same directory when another one takes its path.
    """
    name, size = entry["path"], entry["bytes"]
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO in its place must not block
    try:
        descriptor = os.open(name if at is not None else folder / name, flags, dir_fd=at)
    except (FileNotFoundError, NotADirectoryError):
        return Damage(name, "missing", size, "nothing")
    except OSError as error:
        return Damage(name, "unreadable", size, error.strerror or str(error), error.errno)
    try:
        stat = os.fstat(descriptor)
        if not S_ISREG(stat.st_mode):
            return Damage(name, "not a file", size, "something else")
        if stat.st_size != size:
            return Damage(name, "size", size, stat.st_size)
        if full:
            with open(descriptor, "rb", buffering=0, closefd=False) as file:
                found = _digest(file)
            return None if found == entry["xxh3"] else Damage(name, "content", entry["xxh3"], found)
        found = _edge(descriptor, size)
        return None if found == entry["edge"] else Damage(name, "edge", entry["edge"], found)
    except OSError as error:
        return Damage(name, "unreadable", size, error.strerror or str(error), error.errno)
    finally:
        os.close(descriptor)


def _render(document: Mapping[str, Any], readable: bool) -> bytes:
    text = json.dumps(document, indent=1 if readable else None, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode(errors="backslashreplace")  # a lone surrogate (an undecodable file name) becomes its JSON escape


def seal(document: Mapping[str, Any], *, readable: bool = True) -> bytes:
    """The document as JSON that carries its own hash.

    Args:
        readable: with a line for every value, which takes Python's own encoder: 2.8 ms for the record of a shard with 3,000 different lengths,
            1.2 ms without. `unseal` renders it once more.
    """
    return _render({**document, "seal": fingerprint(document)}, readable)


def unseal(data: bytes) -> dict[str, Any]:
    """The document inside `seal`'s bytes.

    Raises:
        ValueError: a single bit differs from what was sealed.
    """
    document = json.loads(data)
    if not isinstance(document, dict) or _render(document, readable=data.startswith(b"{\n")) != data:
        raise ValueError("it was changed after ftcli wrote it")
    if document.pop("seal", None) != fingerprint(document):
        raise ValueError("its checksum does not match its content")
    return document


def is_prepared(directory: Path) -> bool:
    """Whether data were prepared there, whole or damaged.

    Raises:
        StoreError: this user may not look.
    """
    try:
        return (directory / MANIFEST_NAME).exists()
    except OSError as error:
        raise StoreError(f"{directory} cannot be read: {error.strerror}", unreadable_hint(error.errno)) from error


def read_manifest(directory: Path, at: int | None = None) -> dict[str, Any] | None:
    """The manifest of a published directory; None when there is no directory or no manifest in it.

    Args:
        at: an open descriptor of `directory`, which stays the same directory when another one takes its path.

    Raises:
        StoreError: the manifest is damaged, unreadable or of another format version.
    """
    path = directory / MANIFEST_NAME
    try:
        descriptor = os.open(MANIFEST_NAME if at is not None else path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=at)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - it is open already
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}", unreadable_hint(error.errno)) from error
    return manifest_of(content, path)


def manifest_of(content: bytes, where: Path | str) -> dict[str, Any]:
    """The manifest that a file or object holds.

    Raises:
        StoreError: it is damaged or of another format version.
    """
    try:
        manifest = unseal(content)
    except ValueError as error:
        raise StoreError(f"{where} is damaged: {error}", _REBUILD) from error
    if manifest.get("schema") != MANIFEST_SCHEMA:
        raise StoreError(
            f"{where} has the format {manifest.get('schema')!r}, but this version of ftcli reads {MANIFEST_SCHEMA!r}",
            f"Use the version of ftcli that wrote it. {_REBUILD}",
        )
    return manifest


def compare_files(
    directory: Path, manifest: Mapping[str, Any], *, full: bool, at: int | None = None
) -> Iterator[tuple[Mapping[str, Any], Damage | None]]:
    """Every listed file with its damage, in the order of the manifest; the arguments are those of `damage_of`."""
    files = manifest["files"]
    if not full and len(files) < MANY_FILES:
        yield from ((entry, damage_of(directory, entry, full=full, at=at)) for entry in files)
        return
    from concurrent.futures import ThreadPoolExecutor  # 10 ms, which the small directories of the fault tests do not need

    pool = ThreadPoolExecutor(THREADS)
    try:
        yield from zip(files, pool.map(lambda entry: damage_of(directory, entry, full=full, at=at), files), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def check_files(directory: Path, manifest: Mapping[str, Any], *, full: bool = False, at: int | None = None) -> None:
    """Compare every file that the manifest lists.

    Raises:
        StoreError: a file differs; names the first one and the difference.
    """
    for _, damage in compare_files(directory, manifest, full=full, at=at):
        if damage is not None:
            raise StoreError(f"{directory / damage.path} {damage.words}", damage.hint)


def check_published(directory: Path, full: bool = False) -> dict[str, Any]:
    """Compare every listed file with the manifest and return the manifest.

    Args:
        full: compare whole contents; otherwise presence, size and the first and last 64 KiB.

    Raises:
        StoreError: nothing is published there, or a file differs; names the first such file and the difference.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        raise StoreError(f"{directory} holds no data prepared by ftcli ({MANIFEST_NAME} is missing)", "Run `ftcli tokenize` first.")
    check_files(directory, manifest, full=full)
    return manifest


def published(directory: Path, fingerprint: str) -> dict[str, Any] | None:
    """The manifest when `directory` holds complete data of this fingerprint; needs no permission to write.

    Raises:
        StoreError: data of this fingerprint are there, but damaged.
    """
    manifest = read_manifest(directory)
    if manifest is None or manifest["fingerprint"] != fingerprint:
        return None
    check_files(directory, manifest)
    return manifest
