"""The commit layer: a prepared directory is complete or it is not there.

Work happens in an attempt directory beside the output, under a lease:

    .NAME.FINGERPRINT.attempt/
        lease            flock; who holds it and how far it is (`ftcli.core.files.lease`)
        tmp/             files being written; wiped when an attempt opens
        data/            finished files under their final names: becomes the output by one rename
        records/X.json   written last: shard X is finished, with size and hash of each of its files

A crash at any system call leaves the old output, the new one or none; the next attempt of the same fingerprint goes on with
the finished shards. Only the standard library and xxhash are imported, so that tests can kill it at every system call.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ftcli.core.files.durable import exchange, free_bytes, put, size_of, sync, writing
from ftcli.core.files.lease import Lease
from ftcli.core.files.lease_holder import Note
from ftcli.core.files.lease_watch import PATIENCE_SECONDS, Sight, owner_of
from ftcli.core.files.manifest import MANY_FILES, damage_of, describe, fingerprint, published, seal
from ftcli.core.publishing.output_location import aside_of, attempt_of, attempts_beside, refuse_added, refuse_foreign, refuse_other
from ftcli.core.publishing.shard import ShardWriter, finished, forget, make_folders, read_sidecar, sidecar
from ftcli.errors import FtcliWarning, PublishError, StoreError
from ftcli.records import MANIFEST_NAME, MANIFEST_SCHEMA, to_json

KEPT = " Running it again uses what this run finished, which is kept in {directory}; otherwise remove that folder."


def _warn(words: str) -> None:
    warnings.warn(FtcliWarning(words), stacklevel=2)


def _left(error: OSError) -> str:
    return f"could not remove {error.filename}: {error.strerror}; remove it by hand"


class Attempt:
    """Work on one output directory, by one process at a time.

    `with Attempt.open(output, fingerprint) as attempt:` leave at once if `attempt.ready`; write the shards for which `done` is
    None (`ShardWriter(attempt.directory, name)` in any process) and the small files (`write`), then `publish`. Leaving the block
    without publishing keeps finished shards for the next attempt.
    """

    def __init__(self, output: Path, fingerprint: str, replace: bool, lease: Lease, inputs: Mapping[str, Any]) -> None:
        self.output = output
        self.fingerprint = fingerprint
        self.directory = lease.directory
        self.ready: dict[str, Any] | None = None
        """The output's manifest when it was complete and of this fingerprint on opening: nothing is left to do."""
        self._target = output.resolve()
        self._aside = aside_of(self._target)
        self._data = self.directory / "data"
        self._replace = replace
        self._inputs = inputs
        self._lease = lease
        self._written: dict[str, dict[str, Any]] = {}
        self._settled = False
        self.on_left: Callable[[str], None] = _warn
        """Told of each thing that could not be removed at the end."""

    @classmethod
    def open(
        cls,
        output: Path,
        fingerprint: str,
        *,
        replace: bool = False,
        inputs: Mapping[str, Any] | None = None,
        need_bytes: int | None = None,
        wait: bool = False,
        patience: float = PATIENCE_SECONDS,
        on_wait: Callable[[Sight], None] = lambda _: None,
    ) -> Attempt:
        """Take the lease of this output and fingerprint and check early what can be checked early.

        Args:
            replace: the output may be replaced if ftcli made it.
            inputs: what the fingerprint covers, to say what differs where another one is refused.
            need_bytes: estimate of the bytes the output will take.
            wait: wait for another process that works on the same, instead of refusing.
            patience: seconds without a heartbeat of the other process after which waiting ends.
            on_wait: called some times a second while waiting.

        Raises:
            PublishError: the output is in the way, somebody else works on it, or space or permission is missing.
            FtcliError: what the other process failed with while this one waited.
            StoreError: the output has this fingerprint but is damaged, and `replace` is False.
        """
        assert re.fullmatch(r"[\w-]+", fingerprint), fingerprint
        with writing(output):
            target = output.resolve()
            made = [folder for folder in target.parents if not folder.exists()]
            target.parent.mkdir(parents=True, exist_ok=True)
            for folder in made:
                sync(folder.parent)
            directory = attempt_of(target, fingerprint)
            lease = Lease.take(directory, output, wait=wait, patience=patience, on_wait=on_wait)
            attempt = cls(output, fingerprint, replace, lease, to_json(inputs or {}))
            try:
                with writing(output):
                    attempt._prepare(need_bytes)
            except BaseException as error:
                attempt._end(error)
                raise
        return attempt

    @property
    def predecessor(self) -> Note | None:
        """Who worked on it before and died of it; None after an orderly end."""
        return self._lease.predecessor

    def _prepare(self, need_bytes: int | None) -> None:
        if self._aside.exists() and not self._target.exists():
            self._aside.rename(self._target)  # an attempt died between the two renames of a file system without exchange
        shutil.rmtree(self.directory / "tmp", ignore_errors=True)
        for name in ("tmp", "data", "records"):
            (self.directory / name).mkdir(exist_ok=True)
        try:
            self.ready = published(self._target, self.fingerprint)
        except StoreError:
            if not self._replace:
                raise
        self._settled = self.ready is not None
        if self.ready is not None:
            sync(self._target.parent)  # whoever made it may have died before its rename was durable
        else:
            self._refuse_obstacle()
            self._refuse_shortage(need_bytes or 0)

    def _refuse_obstacle(self) -> None:
        """The output may be absent, an empty directory, or ours with leave to replace it."""
        if refuse_foreign(self.output):
            if not self._replace:
                refuse_other(self.output, self.fingerprint, self._inputs)
            refuse_added(self.output)

    def _refuse_shortage(self, need_bytes: int) -> None:
        need_bytes -= size_of(self._data)
        if free_bytes(self.directory) < need_bytes:
            self._remove_others()
        free = free_bytes(self.directory)
        if free < need_bytes:
            raise PublishError(
                f"{self.output} needs about {need_bytes:,} more bytes, but only {free:,} are free there",
                "Free space or choose another output directory; finished shards are kept.",
            )

    def beat(self, **progress: float) -> None:
        """Tell those who wait that work goes on, and how far it is (see `Note.progress`); cheap enough to call on every batch.

        Raises:
            PublishError: another process took over.
        """
        self._lease.beat(**progress)

    def shard(self, name: str) -> ShardWriter:
        return ShardWriter(self.directory, name)

    def done(self, name: str) -> dict[str, Any] | None:
        """The record of a finished shard whose files are all there with their whole content; else None, and its remains are removed."""
        return finished(self.directory, name)

    def forget(self, name: str) -> None:
        """Remove what was made of a shard, unless another process took over: without any, leaving the block removes the attempt."""
        if self._lease.valid():
            forget(self.directory, name)

    def write(self, file_name: str, content: str | bytes) -> None:
        """Add a small file (`train/state.json`) to the output."""
        data = content.encode() if isinstance(content, str) else content
        with writing(self.directory):
            final = make_folders(self._data, file_name)
            put(data, self.directory / "tmp" / final.name, final)
            self._written[file_name] = describe(final, file_name)

    def publish(self, manifest: Mapping[str, Any], shards: Iterable[str]) -> dict[str, Any]:
        """Make the output appear by one rename (an exchange if it replaces an older one) and return its manifest.

        Args:
            manifest: what the caller has to say; schema, fingerprint, content_hash and files are added.
            shards: names of the shards it consists of, all finished. Whatever else lies in the attempt is removed.

        Raises:
            PublishError: a shard is not finished or changed since, the output is in the way, or the file system refuses.
        """
        assert not {"schema", "fingerprint", "content_hash", "files", "seal"} & set(manifest)
        with writing(self.output):
            files = sorted([*self._finished(shards), *self._written.values()], key=lambda entry: str(entry["path"]))
            self._sweep([entry["path"] for entry in files])
            document = {
                "schema": MANIFEST_SCHEMA,
                "fingerprint": self.fingerprint,
                **to_json(manifest),
                "content_hash": fingerprint({entry["path"]: entry["xxh3"] for entry in files}),
                "files": files,
            }
            put(
                seal(document, readable=len(document.get("sources") or ()) < MANY_FILES),
                self.directory / "tmp" / MANIFEST_NAME,
                self._data / MANIFEST_NAME,
            )
            for folder, _, _ in os.walk(self._data, topdown=False):
                sync(Path(folder))
            try:
                self._appear()
            except PublishError as error:
                if self._lease.valid() and any((self.directory / "records").glob("*.json")):
                    error.hint += KEPT.format(directory=self.directory)
                raise
            self._settled = True
            sync(self._target.parent)
        return document

    def _finished(self, shards: Iterable[str]) -> Iterable[dict[str, Any]]:
        for name in shards:
            record = read_sidecar(sidecar(self.directory, name))
            if record is None:
                raise PublishError(f"{self.output}: shard {name} is not finished", "Run the same command again.")
            for entry in record["files"]:
                if damage := damage_of(self._data, entry, full=False):
                    hint = damage.hint if damage.passing else "Run the same command again: the shard is rebuilt."
                    raise PublishError(f"{self._data / entry['path']} {damage.words}", hint)
                yield entry

    def _sweep(self, names: Sequence[str]) -> None:
        """Remove what an earlier, interrupted attempt left in `data`."""
        assert len(set(names)) == len(names), "two shards share a file"
        keep = {self._data / name for name in names}
        folders = {parent for path in keep for parent in path.parents}
        for path in sorted(self._data.rglob("*"), reverse=True):  # what is inside a folder comes before it
            if path.is_dir() and path not in folders:
                path.rmdir()
            elif not path.is_dir() and path not in keep:
                path.unlink()

    def _appear(self) -> None:
        self._refuse_obstacle()
        self._lease.check()
        if not self._replace or not (self._target / MANIFEST_NAME).exists():
            try:
                self._data.rename(self._target)  # fails, rather than replaces, if a directory with content appeared meanwhile
            except OSError:
                self._refuse_obstacle()  # it has the words for it
                raise
        elif not exchange(self._data, self._target):
            if self._aside.exists():
                shutil.rmtree(self._aside)
            self._target.rename(self._aside)
            try:
                self._data.rename(self._target)
            except OSError:
                self._aside.rename(self._target)
                raise

    def _remove_others(self) -> list[str]:
        """Remove attempts of other fingerprints of this output that nobody works on; what stays, in words."""
        left = []
        for directory in attempts_beside(self._target):
            if directory != self.directory:
                try:
                    lease = Lease.attempt(directory)
                    if lease is not None:
                        lease.remove()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    owner = owner_of(directory)
                    left.append(f"could not remove {directory}: it belongs to {owner}" if owner else _left(error))
        return left

    def close(self) -> None:
        """Release the lease. The attempt directory stays only if it holds finished shards of unpublished work."""
        if not self._lease.held:
            return
        left = []
        try:
            if not self._lease.valid():
                return  # what lies there now is another process's
            if self._settled:
                left += self._remove_others()
                if self._aside.exists():
                    shutil.rmtree(self._aside)
            if self._settled or not any((self.directory / "records").glob("*.json")):
                self._lease.remove()
            else:
                shutil.rmtree(self.directory / "tmp")
        except OSError as error:
            left.append(_left(error))
        finally:
            self._lease.release()
        for words in left:
            self.on_left(words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if isinstance(error, Exception):  # an interruption is not the work's fault: the next one goes on
            self._lease.fail(error)
        self.close()
