"""Sources in an object store, as files: every object is copied once into the cache folder, and again when the store has another version.

    CACHE/objects/s3/BUCKET/KEY               the copy
    CACHE/objects/s3/BUCKET/.../.NAME.object  which version it is, and its stamp: a copy that somebody touched is made anew

So that everything behind reads, hashes, cuts and checks files, as always.
"""

from __future__ import annotations

import glob
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.core.figures import size
from ftcli.core.files.durable import free_bytes, put, writing
from ftcli.core.files.lease import Lease
from ftcli.core.files.lease_watch import Sight
from ftcli.core.files.objects import AGAIN, READS, Object, ObjectStore
from ftcli.core.files.stamps import Stamp
from ftcli.errors import DataError
from ftcli.settings import Settings, cache_folder

if TYPE_CHECKING:
    from ftcli.context import Progress

OBJECTS = "objects"
DOWNLOADS = 4


def mirrored(
    url: str, settings: Settings, progress: Progress | None = None, on_wait: Callable[[Sight], None] = lambda _: None
) -> tuple[str, str]:
    """Copy what a URL names (an object, all below a prefix, or a pattern) where the copies are not those versions already.

    Args:
        on_wait: called some times a second while another process copies from the same bucket.

    Returns:
        The file, folder or pattern that names the copies, and a note; "" where nothing had to be copied.

    Raises:
        DataError: there is no such object, it cannot be read, or the copies do not fit.
        MissingExtraError: the store's library is not installed.
    """
    store = ObjectStore(url)
    root = cache_folder(settings).absolute() / OBJECTS / store.scheme
    key = url.partition("://")[2]
    objects, magic = _named(store, url)
    if not objects:
        raise DataError(f"{url}: no object has this name or prefix", "Check the name (** in a pattern matches prefixes at any depth).")
    for one in objects:
        if not is_plain(one.key):
            raise DataError(
                f"{store.url(one)}: this name is not usable as a file name", "Give other objects, or copy this one to another name."
            )
    local = f"{glob.escape(str(root))}/{key}" if magic else str(root / key)
    with _alone(root, key.partition("/")[0], settings, on_wait) as lease:
        if [one.key for one in objects] != [key]:
            _forget([root / one.key for one in objects], local, root, magic=magic)
        wanted = [one for one in objects if _there(root / one.key) != one.version]
        if not wanted:
            return local, ""
        _make_way(store, root, [root / one.key for one in wanted])
        total = sum(one.size for one in wanted)
        if (free := free_bytes(root)) < total:
            raise DataError(
                f"{url}: {len(wanted):,} objects ({total:,} bytes) would have to be copied to {root}, where only {free:,} bytes are free",
                "Free space there, or choose another folder: RUNTIME_CACHE_DIR.",
            )
        _copy(store, root, wanted, progress, lease.beat)
    return local, f"{url}: copied {len(wanted):,} of {len(objects):,} objects ({size(total)}) to {root}"


def _named(store: ObjectStore, url: str) -> tuple[list[Object], bool]:
    """The objects that a URL names, and whether it is a pattern: *, ? and [ may stand in the name of an object or prefix."""
    bucket, _, key = url.partition("://")[2].partition("/")
    if not glob.has_magic(bucket) and (single := store.info(url)):
        return [single], False
    if glob.has_magic(bucket + key) and (matching := [one for one in store.matching(url) if not one.key.endswith("/")]):
        return matching, True
    return [] if glob.has_magic(bucket) else [one for one in store.below(url) if not one.key.endswith("/")], False


def origin(path: str, settings: Settings) -> Mapping[str, str]:
    """URL and version of the object that a file is a copy of; empty where it is none."""
    root = cache_folder(settings).absolute() / OBJECTS
    if not path.startswith(f"{root}/") or (version := _there(Path(path))) is None:
        return {}
    scheme, _, key = Path(path).relative_to(root).as_posix().partition("/")
    return {"url": f"{scheme}://{key}", "version": version}


def is_plain(name: str) -> bool:
    """Whether a name that somebody else chose stays below the folder that it is put in."""
    return bool(name) and "\0" not in name and not any(part in {"", ".", ".."} for part in name.split("/"))


@contextmanager
def _alone(root: Path, bucket: str, settings: Settings, on_wait: Callable[[Sight], None]) -> Iterator[Lease]:
    """One process at a time copies from a bucket: ranks that start together find the copies of the first."""
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        working, patience = root / f".{bucket}.copying.attempt", settings.runtime.lease_timeout
        lease = Lease.take(working, root / bucket, wait=True, patience=patience, on_wait=on_wait)
        try:
            yield lease
        finally:
            lease.leave()


def _copy(store: ObjectStore, root: Path, wanted: Sequence[Object], progress: Progress | None, beat: Callable[[], None]) -> None:
    if progress is not None:
        progress.start("copy", sum(one.size for one in wanted), "B")
    pool = ThreadPoolExecutor(DOWNLOADS)
    try:
        for one in pool.map(lambda one: _download(store, one, root, beat), wanted):
            if progress is not None:
                progress.advance(one.size)
    finally:
        pool.shutdown(cancel_futures=True)
        if progress is not None:
            progress.close()


def _download(store: ObjectStore, listed: Object, root: Path, beat: Callable[[], None]) -> Object:
    """One object, of one version: written aside and renamed. `beat` is called with every block."""
    final = root / listed.key
    url = store.url(listed)
    part = final.with_name(f".{final.name}.part")
    with writing(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(READS):
            one = store.info(url)
            if one is None:
                raise DataError(f"{url} was removed while it was being copied", AGAIN)
            with part.open("wb") as file:
                for block in store.blocks(one):
                    file.write(block)
                    beat()
            if store.unchanged(one):
                break
        else:
            raise DataError(
                f"{url} keeps changing while it is read", "Wait until nothing is writing to it, then run the same command again."
            )
        part.replace(final)
        record = {"version": one.version, "stamp": Stamp.of(str(final))}
        put(json.dumps(record).encode(), part, _record(final))
    return one


def _there(path: Path) -> str | None:
    """The version that a copy is of; None: there is no copy, or somebody touched it."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record: dict[str, Any] = json.loads(_record(path).read_bytes())
        if list(Stamp.of(str(path))) == record["stamp"]:
            return str(record["version"])
    return None


def _record(path: Path) -> Path:
    return path.with_name(f".{path.name}.object")


def _make_way(store: ObjectStore, root: Path, paths: Sequence[Path]) -> None:
    """Remove copies of objects that became prefixes, and of prefixes that became objects.

    Raises:
        DataError: the store has both: no file lies below a file.
    """

    def url(path: Path) -> str:
        return f"{store.scheme}://{path.relative_to(root).as_posix()}"

    def refuse(file: Path, below: str) -> DataError:
        return DataError(
            f"{url(file)} is both an object and a prefix of others, such as {below}: they cannot be copied into one cache folder",
            "Copy one of them to another name, or read only one, with its own --cache-dir.",
        )

    files = set(paths)
    folders = {folder: path for path in paths for folder in path.parents if root in folder.parents}
    for folder, path in folders.items():
        if folder in files or (folder.is_file() and store.info(url(folder))):
            raise refuse(folder, url(path))
        if folder.is_file():
            folder.unlink()
            _record(folder).unlink(missing_ok=True)
    for path in paths:
        if path.is_dir():
            inside = f"{path.relative_to(root).as_posix()}/"  # s3fs lists the object itself, too
            if there := [one for one in store.below(url(path)) if one.key.startswith(inside) and not one.key.endswith("/")]:
                raise refuse(path, store.url(there[0]))
            shutil.rmtree(path)


def _forget(objects: Sequence[Path], local: str, root: Path, *, magic: bool) -> None:
    """Remove copies of what the store has no more under this name, and the folders that they leave empty."""
    known = set(map(str, objects))
    found = glob.glob(local, recursive=True) if magic else [str(path) for path in Path(local).rglob("*")]  # noqa: PTH207 - an absolute pattern
    for name in found:
        path = Path(name)
        if name not in known and _record(path).is_file():
            path.unlink(missing_ok=True)
            _record(path).unlink()
            with suppress(OSError):  # others lie there
                for folder in takewhile(lambda folder: folder != root, path.parents):
                    folder.rmdir()
