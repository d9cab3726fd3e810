"""The files of one shard, written by any process that knows the attempt directory."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType, TracebackType
from typing import Any, Self

from ftcli.core.files.durable import WRITE_ERRORS, refusal, sync, writing
from ftcli.core.files.manifest import damage_of, describe, seal, unseal
from ftcli.core.files.new_file import NewFile
from ftcli.errors import PublishError
from ftcli.records import MANIFEST_NAME, to_json


def make_folders(folder: Path, file_name: str) -> Path:
    """`folder/file_name` with the folders between them made; `folder` itself must exist, else FileNotFoundError."""
    path = PurePosixPath(file_name)
    assert str(path) == file_name not in {".", MANIFEST_NAME}, file_name
    assert not path.is_absolute() and ".." not in path.parts, file_name  # noqa: PT018 - one rule: it stays inside
    for parent in reversed(path.parents[:-1]):
        (folder / parent).mkdir(exist_ok=True)
    return folder / file_name


class ShardWriter:
    """Writes the files of one shard from any process: all it knows is the attempt directory. Picklable before its first use.

    `with ShardWriter(directory, "train-00001") as shard:` write to `shard.path("train/data-00001.arrow")`, then `commit`.
    Leaving the block without a commit removes what was written.

    Raises:
        PublishError: the disk is full, the attempt is gone, or the shard was finished before with another content.
    """

    def __init__(self, directory: Path, name: str) -> None:
        assert re.fullmatch(r"[\w-][\w.-]*", name), name
        self.directory = directory
        self.name = name
        self._scratch: Path | None = None

    def path(self, file_name: str) -> Path:
        """Where to write the file that `commit` will give the name `file_name` (relative to the output, with `/`)."""
        with writing(self.directory):
            if self._scratch is None:
                scratch = self.directory / "tmp" / f"{self.name}.{os.urandom(6).hex()}"  # two workers may hold one shard
                scratch.mkdir()
                self._scratch = scratch
            return make_folders(self._scratch, file_name)

    def commit(self, files: Sequence[str], record: Mapping[str, Any]) -> dict[str, Any]:
        """`place` and `settle`: when this returns, the shard is finished whatever happens."""
        document = self.place(files, record)
        self.settle(document)
        return document

    def place(self, files: Sequence[str], record: Mapping[str, Any], made: Mapping[str, NewFile] = MappingProxyType({})) -> dict[str, Any]:
        """Give the files their final names, and write down that the shard is finished.

        From here on the shard outlives this process; only a power loss may still take some of it, which `finished` finds.

        Args:
            files: names given to `path`, all closed.
            record: JSON-like facts of the shard (counts); `files` is added: path, bytes, xxh3 and edge of each.
            made: those of the files that know this of themselves; the others are read.
        """
        assert "files" not in record
        data, proof = self.directory / "data", sidecar(self.directory, self.name)
        with writing(self.directory):
            sources = {name: self.path(name) for name in files}
            document = {
                **to_json(record),
                "files": [made[name].described(name) if name in made else describe(path, name) for name, path in sources.items()],
            }
            earlier = read_sidecar(proof)
            if earlier is not None and earlier["files"] != document["files"]:
                raise PublishError(
                    f"shard {self.name} was finished before with different content: preparing it is not deterministic",
                    f"Remove {self.directory} and run again; if it happens again, a plugin or a source changes between runs.",
                )
            finals = {name: make_folders(data, name) for name in files}
            for name, source in sources.items():
                source.replace(finals[name])
            temporary = self.path(f"{self.name}.json")
            temporary.write_bytes(seal(document, readable=False))
            temporary.replace(proof)
            self.discard()
        return document

    def settle(self, document: Mapping[str, Any]) -> None:
        """Make durable what `place` has returned; waits for the disk and computes nothing. Raises as `settle` does."""
        settle(self.directory, self.name, document)

    def discard(self) -> None:
        """Remove what was written and not committed."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)  # what stays is wiped when an attempt opens
            self._scratch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        refused = None
        if isinstance(error, OSError):
            ours = isinstance(error.filename, str) and Path(error.filename).is_relative_to(self.directory)
            if ours or error.errno in WRITE_ERRORS:
                refused = refusal(error, self._scratch or self.directory)
        self.discard()
        if refused is not None:
            raise refused from error


def sidecar(directory: Path, name: str) -> Path:
    """The file whose presence says that shard `name` is finished."""
    return directory / "records" / f"{name}.json"


def read_sidecar(path: Path) -> dict[str, Any] | None:
    """A finished shard's record; None when there is none or it is damaged."""
    try:
        return unseal(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def settle(directory: Path, name: str, record: Mapping[str, Any]) -> None:
    """Make a placed shard durable: its files, their names, then the record and its name.

    Raises:
        PublishError: the disk refuses. The shard is forgotten: an error is told once, and what is read of it after that comes from memory.
    """
    proof = sidecar(directory, name)
    finals = [directory / "data" / entry["path"] for entry in record["files"]]
    with writing(directory):
        try:
            for path in (*finals, *sorted({final.parent for final in finals}), proof, proof.parent):
                sync(path)
        except PublishError:
            forget(directory, name)
            raise


def finished(directory: Path, name: str) -> dict[str, Any] | None:
    """The record of a finished shard whose files are all there with their whole content; else None, and its remains are removed.

    Who wrote it may have been killed before it was durable: now it is.

    Raises:
        PublishError: a file cannot be read at this moment, or the disk refuses; then nothing is removed for the former.
    """
    proof, data = sidecar(directory, name), directory / "data"
    with writing(directory):
        record = read_sidecar(proof)
        damages = (damage_of(data, entry, full=True) for entry in record["files"]) if record else ()
        damage = next((found for found in damages if found), None)
        if damage and damage.passing:
            raise PublishError(f"{data / damage.path} {damage.words}", damage.hint)
        if record and not damage:
            settle(directory, name, record)
            return record
        forget(directory, name)
    return None


def forget(directory: Path, name: str) -> None:
    """Remove what was made of a shard: it is made again."""
    proof, data = sidecar(directory, name), directory / "data"
    record = read_sidecar(proof)
    proof.unlink(missing_ok=True)
    for entry in record["files"] if record else ():
        (data / entry["path"]).unlink(missing_ok=True)
