"""`ftcli cache`: what was prepared below a folder, whether it is still whole, why two differ, and what dead runs left behind."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.core.figures import number, seconds, size
from ftcli.core.files.lease import LEASE_NAME, Lease
from ftcli.core.files.lease_watch import owner_of
from ftcli.core.files.manifest import Damage, compare_files, read_manifest
from ftcli.core.files.objects import url_of
from ftcli.core.publishing.fetched_set import damages, published_at
from ftcli.core.publishing.inputs import changes
from ftcli.core.publishing.inventory import attempt_at, is_attempt, walk
from ftcli.core.publishing.output_location import PARTS, unlisted
from ftcli.core.publishing.remote_set import Shelf
from ftcli.errors import StoreError, UsageError
from ftcli.records import MANIFEST_NAME, Check, Report

FINGERPRINT = re.compile("[0-9a-f]{4,32}")
HINT = "Prepare it again with the same settings and --overwrite."
STORE_HINT = "Remove the damaged objects with the store's own tools, then run the same ftcli tokenize again: it puts what is missing."


def run(context: Context, action: str, folders: Sequence[Path], dry_run: bool) -> Report:
    """
    Args:
        action: list (ls), why, verify or clean (prune).
        folders: prepared directories (verify; two, or beginnings of fingerprints: why) or folders to look through; none: here.
        dry_run: clean says what it would remove.

    Raises:
        UsageError: verify without a directory, why without two, --dry-run where nothing is removed.
        StoreError: a folder is not there, or verify is given one that ftcli did not prepare.
    """
    action = {"ls": "list", "prune": "clean"}.get(action, action)
    if dry_run and action != "clean":
        raise UsageError(f"ftcli cache {action} removes nothing: --dry-run belongs to clean", "See: ftcli cache --help")
    if action == "verify":
        return _verify(context, folders)
    if action == "why":
        return _why(context, folders)
    for path in folders:
        if (url := url_of(path)) is not None:
            raise UsageError(f"ftcli cache {action} searches local folders, which {url} is not", "verify and why accept such an address.")
        if not path.is_dir():
            raise StoreError(f"{path} is no directory", "Give a folder to search.")
    return (_clean if action == "clean" else _list)(context, folders or [Path()], dry_run)


# -- verify ------------------------------------------------------------------------------------------------------------


def _verify(context: Context, folders: Sequence[Path]) -> Report:
    if not folders:
        raise UsageError("ftcli cache verify needs a prepared directory", "Example: ftcli cache verify prepared")
    places = [published_at(url) if (url := url_of(folder)) else folder for folder in folders]
    manifests = [dict(place.manifest or {}) if isinstance(place, Shelf) else _manifest(place) for place in places]
    clock = time.perf_counter()
    context.progress.start("verify", sum(entry["bytes"] for manifest in manifests for entry in manifest.get("files", ())), "B")
    checks, rows, files, read = [], [], 0, 0
    for place, manifest in zip(places, manifests, strict=True):
        folder, remote = (place.url, place) if isinstance(place, Shelf) else (str(place), None)
        found: list[Damage] = [manifest["damage"]] if "damage" in manifest else []
        compared = () if found else damages(remote) if remote else compare_files(Path(folder), manifest, full=True)
        for entry, damage in compared:
            context.progress.advance(entry["bytes"], damaged=len(found))
            if damage is not None:
                found.append(damage)
        files += len(manifest.get("files", ()))
        read += sum(entry["bytes"] for entry in manifest.get("files", ()))
        base = remote.place(manifest) if remote else folder
        rows += [[f"{base}/{damage.path}", damage.kind, str(damage.expected), str(damage.found)] for damage in found]
        checks.append(_verdict(folder, manifest, found, STORE_HINT if remote else HINT))
        if remote is None and (others := unlisted(Path(folder), manifest)):
            context.note(f"{folder}: {len(others):,} files do not belong to the prepared data, such as {others[0]}")
    context.progress.close()
    metrics = {"files": files, "bytes": read, "seconds": time.perf_counter() - clock, "damaged": len(rows)}
    table = {"head": ["damaged file", "kind", "expected", "found"], "rows": rows}
    return context.report(
        "cache", metrics, status="failed" if rows else "ok", checks=tuple(checks), details={"table": table} if rows else {}
    )


def _manifest(folder: Path) -> dict[str, Any]:
    """The manifest; where it is damaged, what is wrong with it under "damage".

    Raises:
        StoreError: the folder was not prepared by ftcli.
    """
    try:
        manifest = read_manifest(folder)
    except StoreError as error:
        if isinstance(cause := error.__cause__, OSError):
            return {"damage": Damage(MANIFEST_NAME, "unreadable", "a manifest", cause.strerror or str(cause), cause.errno)}
        found = error.message.removeprefix(f"{folder / MANIFEST_NAME} ")
        return {"damage": Damage(MANIFEST_NAME, "manifest", "a manifest as it was written", found)}
    if manifest is None:
        raise _no_data(folder)
    return manifest


def _no_data(folder: Path) -> StoreError:
    return StoreError(f"{folder} holds no data prepared by ftcli ({MANIFEST_NAME} is missing)", "List them: ftcli cache list FOLDER")


def _verdict(folder: str, manifest: Mapping[str, Any], found: Sequence[Damage], hint: str) -> Check:
    evidence = {"damages": [asdict(damage) for damage in found]}
    if found:
        unread = all(damage.kind == "unreadable" for damage in found)
        words = f"{len(found):,} {'not compared' if unread else 'damaged'}: {found[0].path} {found[0].words}"
        return Check(f"cache:{folder}", "data", "fail", words, evidence, found[0].hint if unread else hint)
    files = manifest["files"]
    whole = f"{len(files):,} files, {size(sum(entry['bytes'] for entry in files))}: all unchanged since publishing"
    return Check(f"cache:{folder}", "data", "pass", whole, {"content_hash": manifest["content_hash"]})


# -- why ---------------------------------------------------------------------------------------------------------------


def _why(context: Context, named: Sequence[Path]) -> Report:
    """Each input in which two prepared directories differ, with both values."""
    if len(named) != 2:
        raise UsageError(
            f"ftcli cache why compares two prepared directories, {len(named)} are given", "Example: ftcli cache why prepared other"
        )
    folders = [_named(context, path) for path in named]
    manifests = [published_at(url).manifest if (url := url_of(folder)) else read_manifest(folder) for folder in folders]
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest is None:
            raise _no_data(folder)
    one, other = (manifest or {} for manifest in manifests)
    fingerprints = [str(manifest["fingerprint"]) for manifest in (one, other)]
    found = changes(one, other)
    if fingerprints[0] == fingerprints[1]:
        same = one.get("content_hash") == other.get("content_hash")
        title = "Nothing differs: both have the fingerprint " + fingerprints[0]
        title += "." if same else ", but their files do not have the same content: see ftcli cache verify."
        found = []
    elif found is None:
        title = "The fingerprints differ, but one manifest, written by an older ftcli, does not record its inputs."
    elif found:
        title = f"{len(found):,} input{'' if len(found) == 1 else 's'} differ{'s' if len(found) == 1 else ''}."
    else:
        title = "The fingerprints differ, but no recorded input does: an ftcli version in between renamed one."
    rows = [list(row) for row in found or ()]
    metrics = {"fingerprints": fingerprints, "differences": len(rows)}
    wide = ["input", *(url_of(folder) or str(folder) for folder in folders)]
    lines = [
        title,
        *(
            line
            for name, *values in rows
            for line in ("", name, *(f"  {where}: {value}" for where, value in zip(wide[1:], values, strict=True)))
        ),
    ]
    return context.report("cache", metrics, details={"lines": lines, "differences": {"head": wide, "rows": rows}})


def _named(context: Context, path: Path) -> Path:
    """A prepared directory by its path, or by the beginning of its fingerprint where one below here has it.

    Raises:
        StoreError: there is none; UsageError: several different ones have that beginning.
    """
    if path.is_dir() or not FINGERPRINT.fullmatch(str(path)):
        return path
    found: dict[str, Path] = {}
    for folder, _ in walk(context, [Path()], links=True):
        with suppress(StoreError):
            manifest = read_manifest(folder)
            if manifest is not None and manifest["fingerprint"].startswith(str(path)):
                found.setdefault(manifest["fingerprint"], folder)
    if len(found) > 1:
        raise UsageError(f"{path} is a prefix of {len(found)} fingerprints: {', '.join(found)}", "Give a longer prefix.")
    if not found:
        raise StoreError(f"no data prepared below here has a fingerprint starting with {path}", "List them: ftcli cache ls FOLDER")
    return next(iter(found.values()))


# -- list and clean ----------------------------------------------------------------------------------------------------


def _list(context: Context, folders: Sequence[Path], _: bool) -> Report:
    rows, prepared, held = [], 0, 0
    for folder, whole in walk(context, folders, links=True):
        if whole:
            found = _prepared(folder)
            rows += found
            prepared += len(found)
        else:
            attempt = attempt_at(folder)
            held += attempt.held
            state = "being prepared" if attempt.held else "unfinished, in parts" if PARTS.fullmatch(folder.name) else "unfinished"
            rows.append([str(attempt.output), state, "", "", size(attempt.bytes), "", seconds(attempt.age)])
    table = {"head": ["directory", "state", "rows", "tokens", "size", "fingerprint", "age"], "rows": rows}
    metrics = {"prepared": prepared, "unfinished": len(rows) - prepared - held, "being_prepared": held}
    return context.report("cache", metrics, details={"table": table} if rows else {})


def _prepared(folder: Path) -> list[list[str]]:
    """Its row; none where another process has removed it meanwhile."""
    try:
        manifest = read_manifest(folder)
        age = time.time() - (folder / MANIFEST_NAME).stat().st_mtime
    except (StoreError, PermissionError):
        return [[str(folder), "damaged", "", "", "", "", ""]]
    except FileNotFoundError:
        manifest = None
    if manifest is None:
        return []
    splits = manifest["splits"].values()
    rows, tokens = (sum(split[key] for split in splits) for key in ("rows", "tokens"))
    whole = sum(entry["bytes"] for entry in manifest["files"])
    state = f"exported as {manifest['format']}" if "format" in manifest else "prepared"
    return [[str(folder), state, number(rows), number(tokens), size(whole), manifest["fingerprint"][:16], seconds(age)]]


def _clean(context: Context, folders: Sequence[Path], dry_run: bool) -> Report:
    """Remove the working directories that nobody holds. What is another user's is left alone, and what else cannot be removed fails the command at
    its end."""
    rows, freed, failed = [], 0, False
    for folder, _ in walk(context, folders):
        if not is_attempt(folder):
            continue
        remove = _remove_parts if PARTS.fullmatch(folder.name) else _remove
        try:
            attempt = attempt_at(folder)
            if attempt.held or not (_removable(folder) and (dry_run or remove(folder))):
                context.note(f"left alone: {folder}, a process works on it")
                continue
        except FileNotFoundError:  # its process has removed it meanwhile
            continue
        except OSError as error:
            owner = owner_of(folder)
            failed = failed or not owner
            context.note(f"left alone: {folder}, {f'it belongs to {owner}' if owner else error.strerror}")
            continue
        freed += attempt.bytes
        rows.append([str(folder), size(attempt.bytes), seconds(attempt.age)])
    table = {"head": ["would remove" if dry_run else "removed", "size", "age"], "rows": rows}
    metrics = {"removed": 0 if dry_run else len(rows), "abandoned": len(rows), "bytes": freed}
    return context.report("cache", metrics, status="failed" if failed else "ok", details={"table": table} if rows else {})


def _removable(folder: Path) -> bool:
    """True. Raises `PermissionError` where this user may not remove it: of a sticky folder (/tmp) only the owner may."""
    above = folder.parent.stat()
    owned = os.geteuid() in {0, folder.stat().st_uid, above.st_uid} or not above.st_mode & stat.S_ISVTX
    if not owned or not all(os.access(place, os.R_OK | os.W_OK | os.X_OK) for place in (folder, folder.parent)):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return True


def _remove(folder: Path) -> bool:
    lease = Lease.attempt(folder)
    if lease is not None:
        lease.remove()
    return lease is not None


def _remove_parts(folder: Path) -> bool:
    with ExitStack() as stack:
        for lease in folder.glob(f"parts/*/{LEASE_NAME}"):
            part = Lease.attempt(lease.parent)
            if part is None:
                return False
            stack.callback(part.release)
        shutil.rmtree(folder)
    return True
