"""A prepared set in an object store: where it lies, what is there, and how another one takes its place.

    URL/ftcli-manifest.json        the set: put last, on the condition that nobody else has put one meanwhile
    URL/versions/HASH/train/…      its files, below the hash of all their contents: never written to again, whole when they are there

An object appears whole or not at all, so that a crash anywhere leaves the old manifest, the new one or none, and every file of it is there. Two
that publish at once put their files into different places or the same bytes into one, and the store lets one manifest win. Files that a replaced
manifest named stay: somebody may be reading them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ftcli.core.files.lease_holder import Note
from ftcli.core.files.manifest import check_published, manifest_of
from ftcli.core.files.mirror import is_plain
from ftcli.core.files.objects import CONDITIONAL, UNKNOWN, Object, ObjectStore
from ftcli.core.publishing.output_location import ELSEWHERE, other
from ftcli.errors import FtcliError, PublishError, StoreError
from ftcli.records import MANIFEST_NAME

VERSIONS = "versions"
PROBE = ".ftcli-probe"
UPLOADS = 4
TRIES = 5
"""How often a manifest is put that the store would not decide about, because somebody else was putting one."""
MINE = "the finished work is kept locally: the same command publishes it without preparing it again"


@dataclass(frozen=True, slots=True)
class Shelf:
    """What lies at a URL now."""

    url: str
    store: ObjectStore
    manifest: Mapping[str, Any] | None = None
    """None: nothing is published there."""
    content: bytes = b""
    """Of the manifest."""
    version: Object | None = None

    @classmethod
    def look(cls, url: str, kind: type[FtcliError] = StoreError, *, damaged: bool = False) -> Self:
        """
        Args:
            damaged: take a damaged manifest for none, to replace it.

        Raises:
            StoreError: the manifest is damaged; `kind`: the store cannot be asked.
        """
        store = ObjectStore(url, kind)
        found = store.read(f"{url}/{MANIFEST_NAME}")
        if found is None:
            return cls(url, store)
        content, version = found
        try:
            return cls(url, store, _checked(manifest_of(content, f"{url}/{MANIFEST_NAME}"), url), content, version)
        except StoreError:
            if not damaged:
                raise
            return cls(url, store, None, content, version)

    def place(self, manifest: Mapping[str, Any], name: str = "") -> str:
        """Where the files of a manifest lie, or one of them."""
        return "/".join([self.url, VERSIONS, str(manifest["content_hash"]), *([name] if name else [])])

    def missing(self, manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The files of a manifest that are not there, or with another size."""
        folder = self.place(manifest).partition("://")[2] + "/"
        there = {one.key.removeprefix(folder): one.size for one in self.store.below(self.place(manifest))}
        return [entry for entry in manifest["files"] if there.get(entry["path"]) != entry["bytes"]]

    def holds(self, manifest: Mapping[str, Any]) -> bool:
        """Whether the set is published there: the same inputs, the same bytes."""
        keys = ("fingerprint", "content_hash")
        return self.manifest is not None and all(self.manifest[key] == manifest[key] for key in keys)

    def refuse(self, fingerprint: str, inputs: Mapping[str, Any], hint: str = ELSEWHERE) -> None:
        """Raises `PublishError`: another set is there. To be asked before it is prepared."""
        if self.manifest is not None and self.manifest["fingerprint"] != fingerprint:
            raise other(self.url, self.manifest, fingerprint, inputs, hint)

    def prove(self) -> None:
        """Find out, with an object of our own, whether the store keeps conditions, and whether we may write.

        Raises:
            PublishError: it does not: two that publish at once would both be told that they won.
        """
        if self.store.scheme not in CONDITIONAL:
            raise PublishError(
                f"{self.url}: ftcli cannot write to {self.store.scheme}:// conditionally, so two runs could overwrite each other",
                "Publish to s3:// or to a directory.",
            )
        if self.version is None and (foreign := [one for one in self.store.below(self.url) if not self._own(one)]):
            raise PublishError(
                f"{self.url} holds {len(foreign):,} objects and no {MANIFEST_NAME}: ftcli did not create them", "Choose another output."
            )
        url = f"{self.url}/{PROBE}-{os.urandom(8).hex()}"
        first = self.store.put(b"1", url, None)
        try:
            kept = first == 0 and self.store.put(b"2", url, None) and self.store.put(b"3", url, f'"{"0" * 32}"')
        finally:
            self.store.remove(url)
        if not kept:
            raise PublishError(
                f"{self.url}: this store ignores conditions (If-None-Match, If-Match)"
                + (f"; it answers {first}" if first else ": it replaced an object although the condition forbade it"),
                "Two runs that publish at the same time could overwrite each other. Publish to a store with conditional writes, or to a directory and copy that.",
            )

    def _own(self, one: Object) -> bool:
        name = one.key.removeprefix(self.url.partition("://")[2] + "/")
        return name.startswith((f"{VERSIONS}/", PROBE)) or not name

    def publish(
        self,
        folder: Path,
        *,
        replace: bool,
        inputs: Mapping[str, Any],
        on_file: Callable[[Mapping[str, Any]], None] = lambda _: None,
        on_block: Callable[[], None] = lambda: None,
    ) -> int:
        """Put a prepared directory there; the bytes that had to be moved.

        Args:
            replace: another set there may be replaced.
            inputs: what the fingerprint covers, to say what differs where another one is there.
            on_file: called with each file that is there now, on_block with each part of one, in another thread.

        Raises:
            PublishError: another set is there, or came there meanwhile: then who has put it; or the store fails.
            StoreError: the directory is damaged.
        """
        manifest = check_published(folder)
        content = (folder / MANIFEST_NAME).read_bytes()
        now = self
        if not replace:
            now.refuse(manifest["fingerprint"], inputs)
        moved = 0
        pool = ThreadPoolExecutor(UPLOADS)
        try:
            for entry in pool.map(lambda entry: self._upload(folder, manifest, entry, on_block), self.missing(manifest)):
                moved += entry["bytes"]
                on_file(entry)
        finally:
            pool.shutdown(cancel_futures=True)
        me, url = Note.mine().short, f"{self.url}/{MANIFEST_NAME}"
        for _ in range(TRIES):
            if now.holds(manifest):
                return moved
            status = self.store.put(content, url, now.version.etag if now.version else None, me)
            if status == 0:
                return moved
            before, now = now, type(self).look(self.url, self.store.kind, damaged=True)
            if now.content == content:
                return moved  # it was ours: the answer to the first try was lost
            if now.version != before.version and not now.holds(manifest):
                raise self._lost(now, manifest)
            if status == UNKNOWN:
                break
        raise PublishError(f"{url}: the store refuses the conditional write", "Run the same command again.")

    def _upload(
        self, folder: Path, manifest: Mapping[str, Any], entry: Mapping[str, Any], on_block: Callable[[], None]
    ) -> Mapping[str, Any]:
        self.store.upload(folder / entry["path"], self.place(manifest, entry["path"]), on_block)
        return entry

    def _lost(self, now: Shelf, manifest: Mapping[str, Any]) -> PublishError:
        if now.version is None:
            return PublishError(f"{self.url}: somebody removed the manifest while this run worked", f"Find out who removed it; {MINE}.")
        there = (now.manifest or {}).get("fingerprint", "unknown")
        who = self.store.signer(f"{self.url}/{MANIFEST_NAME}") or "somebody"
        return PublishError(
            f"{self.url}: {who} published data with the fingerprint {there} while this run was working on {manifest['fingerprint']}",
            f"Choose another output, or replace it with --overwrite; {MINE}.",
        )


def _checked(manifest: dict[str, Any], url: str) -> dict[str, Any]:
    """The manifest, if every file of it would lie below the folder that it is fetched into."""
    odd = next((entry["path"] for entry in manifest["files"] if not is_plain(str(entry["path"]))), None)
    if odd is not None:
        raise StoreError(
            f"{url}/{MANIFEST_NAME} lists {odd!r}, which is not a file of a prepared directory", "Do not use it: ftcli did not write it."
        )
    return manifest
