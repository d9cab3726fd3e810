"""Prepared data from an object store, as a directory of this machine: fetched once, compared with the manifest, opened like any other.

CACHE/sets/NAME-FINGERPRINT-HASH/              as `ftcli tokenize` published it; appears by one rename
CACHE/sets/.NAME-….fetching.attempt/           being fetched, under a lease; what is whole in it is kept for the next try
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from ftcli.context import Context
from ftcli.core.figures import size
from ftcli.core.files.durable import free_bytes, put, sync, writing
from ftcli.core.files.lease import Lease
from ftcli.core.files.manifest import Damage, check_published, damage_of
from ftcli.core.files.objects import url_of
from ftcli.core.publishing.ranks import Wait
from ftcli.core.publishing.remote_set import Shelf
from ftcli.errors import StoreError
from ftcli.records import MANIFEST_NAME
from ftcli.settings import update

SETS = "sets"
FETCHES = 4


def opened(context: Context) -> Context:
    """The same invocation, with the directory of this machine in place of prepared data in an object store; other sources stay as they are.

    Raises:
        StoreError: the data are damaged, do not fit here, or the store cannot be asked.
    """
    sources = context.settings.dataset.sources or []
    url = url_of(sources[0]) if len(sources) == 1 else None
    if url is None:
        return context
    shelf = Shelf.look(url)
    if shelf.manifest is None:
        return context
    local = fetch(context, shelf)
    return replace(context.with_settings(update(context.settings, {"dataset.sources": [str(local)]})), notes=context.notes)


def folder_of(context: Context, store: Path) -> Path:
    """A prepared directory as it is, or the copy of one in an object store.

    Raises:
        StoreError: nothing is published there, or as `opened`.
    """
    url = url_of(store)
    return store if url is None else fetch(context, published_at(url))


def published_at(url: str) -> Shelf:
    """
    Raises:
        StoreError: nothing is published there.
    """
    shelf = Shelf.look(url)
    if shelf.manifest is None:
        raise StoreError(
            f"{url} holds no data prepared by ftcli ({MANIFEST_NAME} is missing)", f"Publish them: ftcli tokenize … --output-dir {url}"
        )
    return shelf


def local_folder(context: Context, url: str, manifest: Mapping[str, Any]) -> Path:
    """Where the copy of a set lies."""
    name = url.rpartition("/")[2]
    return context.cache_dir.absolute() / SETS / f"{name}-{manifest['fingerprint'][:16]}-{manifest['content_hash'][:8]}"


def fetch(context: Context, shelf: Shelf) -> Path:
    """The copy of a published set, fetched now where there is none or it is damaged.

    Raises:
        StoreError: a file in the store is missing or is not what the manifest says; then nothing appears. Or there is no room.
    """
    assert shelf.manifest is not None
    final = local_folder(context, shelf.url, shelf.manifest)
    if _whole(final, shelf.manifest):
        return final
    with writing(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        working = final.with_name(f".{final.name}.fetching.attempt")
        patience = context.settings.runtime.lease_timeout
        with closing(Wait(context.progress, shelf.url, patience, does="fetches")) as wait:
            lease = Lease.take(working, final, wait=True, patience=patience, on_wait=wait.see)
        try:
            if not _whole(final, shelf.manifest):
                _fetch(context, shelf, working / "data", lease.beat)
                lease.check()
                shutil.rmtree(final, ignore_errors=True)  # damaged, or nothing
                (working / "data").rename(final)
                sync(final.parent)
        except BaseException as error:
            if isinstance(error, Exception):
                lease.fail(error)
            lease.release()
            raise
        lease.leave()
    return final


def damages(shelf: Shelf) -> Iterator[tuple[Mapping[str, Any], Damage | None]]:
    """Every file of a set with its damage, as `ftcli.core.files.manifest.compare_files`; all is read and nothing is kept."""
    assert shelf.manifest is not None
    manifest = shelf.manifest
    pool = ThreadPoolExecutor(FETCHES)
    try:
        yield from zip(manifest["files"], pool.map(lambda entry: _damage(shelf, entry, None), manifest["files"]), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _whole(folder: Path, manifest: Mapping[str, Any]) -> bool:
    with suppress(StoreError):
        there = check_published(folder)
        return bool(there["content_hash"] == manifest["content_hash"] and there["fingerprint"] == manifest["fingerprint"])
    return False


def _fetch(context: Context, shelf: Shelf, folder: Path, beat: Callable[[], None]) -> None:
    assert shelf.manifest is not None
    wanted = []
    for entry in shelf.manifest["files"]:
        if damage_of(folder, entry, full=True) is not None:
            wanted.append(entry)
        beat()
    total = sum(entry["bytes"] for entry in wanted)
    if (free := free_bytes(folder.parent)) < total:
        raise StoreError(
            f"{shelf.url}: {total:,} bytes would have to be fetched to {folder.parent.parent}, where only {free:,} bytes are free",
            "Free space there, or choose another folder: RUNTIME_CACHE_DIR.",
        )
    context.note(f"{shelf.url}: fetching {len(wanted):,} files ({size(total)}) to {folder.parent.parent}")
    context.progress.start("fetch", total, "B")
    pool = ThreadPoolExecutor(FETCHES)
    try:
        for entry, damage in zip(wanted, pool.map(lambda entry: _damage(shelf, entry, folder / entry["path"], beat), wanted), strict=True):
            if damage is not None:
                raise StoreError(
                    f"{shelf.place(shelf.manifest, entry['path'])} {damage.words}",
                    f"To list all damage: ftcli cache verify {shelf.url}. To repair it, remove that object and prepare the same data again.",
                )
            context.progress.advance(entry["bytes"])
    finally:
        pool.shutdown(cancel_futures=True)
        context.progress.close()
    for inner in {path.parent for path in folder.rglob("*")} | {folder}:
        sync(inner)
    put(shelf.content, folder.parent / MANIFEST_NAME, folder / MANIFEST_NAME)


def _damage(shelf: Shelf, entry: Mapping[str, Any], path: Path | None, beat: Callable[[], None] = lambda: None) -> Damage | None:
    """Read a file of a set and compare all of it; write it to `path`, if it is what the manifest says. `beat` is called with every block.

    Raises:
        StoreError: the store fails; PublishError: this disk does.
    """
    assert shelf.manifest is not None
    name, expected = entry["path"], entry["bytes"]
    one = shelf.store.info(shelf.place(shelf.manifest, name))
    if one is None:
        return Damage(name, "missing", expected, "nothing")
    if one.size != expected:
        return Damage(name, "size", expected, one.size)
    digest = xxhash.xxh3_128()
    if path is None:
        for block in shelf.store.blocks(one):
            digest.update(block)
    else:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.part")
            with part.open("wb") as file:
                for block in shelf.store.blocks(one):
                    digest.update(block)
                    file.write(block)
                    beat()
            sync(part)
    found = digest.hexdigest()
    if found != entry["xxh3"]:
        if path is not None:
            part.unlink()
        return Damage(name, "content", entry["xxh3"], found)
    if path is not None:
        part.replace(path)
    return None
