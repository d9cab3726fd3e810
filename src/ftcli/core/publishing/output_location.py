"""Where an output is to appear: what lies there and beside it, and whether anything can be made there at all."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from ftcli.core.files.durable import writing
from ftcli.core.files.manifest import read_manifest, unseal
from ftcli.core.publishing.inputs import DAY, differences
from ftcli.errors import PublishError, StoreError
from ftcli.records import MANIFEST_NAME

ATTEMPT = re.compile(r"\.(.+)\.[^.]+\.attempt")
"""Name of a working directory; the group is the output's."""
PARTS = re.compile(r"\.(.+)\.[^.]+\.parts")
"""Name of the working directory of a job in parts (`ftcli.core.prepare.parts`)."""
PLAN = "plan.json"
"""In its folder `parts`: how many there are, and of what."""
CHOOSE = "Choose another output directory."
ELSEWHERE = "Choose another output directory, or replace it with --overwrite."
FINISH = "To replace it, run the same command with --finish --overwrite. Until then the parts are kept for this output."
BELOW = "Give a directory below it, such as ./prepared."
PASSING = re.compile(r"cache-\w+\.arrow|tmp\w{8}|\.nfs.*|\.DS_Store|\._.*")
"""Names of files in prepared data that nobody misses: those of `datasets` (map, filter), NFS and macOS."""


def attempt_of(target: Path, fingerprint: str) -> Path:
    """The working directory of an output and a fingerprint."""
    return target.with_name(f".{target.name}.{fingerprint[:16]}.attempt")


def parts_of(target: Path, key: str) -> Path:
    """The working directory of an output that is made in parts."""
    return target.with_name(f".{target.name}.{key[:16]}.parts")


def read_plan(directory: Path) -> dict[str, Any]:
    """What a job in parts was cut into; raises `PublishError` where the file is missing or damaged."""
    plan = directory / "parts" / PLAN
    try:
        return unseal(plan.read_bytes())
    except (OSError, ValueError) as error:
        raise PublishError(f"{plan} is missing or damaged: {error}", f"Start over: rm -r {directory}") from error


def aside_of(target: Path) -> Path:
    """Where an old version waits between two renames, on a file system that cannot exchange directories."""
    return target.with_name(f".{target.name}.replaced-by-ftcli")


def attempts_beside(target: Path) -> list[Path]:
    """The working directories of an output, whatever their fingerprint."""
    names = (entry.name for entry in os.scandir(target.parent))
    return [target.with_name(name) for name in sorted(names) if (match := ATTEMPT.fullmatch(name)) and match[1] == target.name]


def parts_beside(target: Path) -> list[Path]:
    """The working directories in parts of an output, whatever their key."""
    names = (entry.name for entry in os.scandir(target.parent))
    return [target.with_name(name) for name in sorted(names) if (match := PARTS.fullmatch(name)) and match[1] == target.name]


def leftovers(output: Path) -> list[Path]:
    """What unfinished or dead runs have beside an output."""
    target = output.resolve()
    aside = aside_of(target)
    return [*attempts_beside(target), *([aside] if os.path.lexists(aside) else [])]


def refuse_foreign(output: Path) -> bool:
    """Whether a prepared directory is there. An absent or empty one is none.

    Raises:
        PublishError: what is there was not made by ftcli, or is the working directory or one above it.
    """
    target = output.resolve()
    if not os.path.lexists(target):
        return False
    if (here := Path.cwd()) == target or target in here.parents:
        raise PublishError(
            f"{output} is the current directory ({here}), but the output directory is created and replaced as a whole", BELOW
        )
    if not target.is_dir():
        raise PublishError(f"{output} exists and is not a directory", CHOOSE)
    entries = sum(1 for _ in target.iterdir())
    if entries and not (target / MANIFEST_NAME).is_file():
        raise PublishError(
            f"{output} holds {entries:,} {'entry' if entries == 1 else 'entries'} and no {MANIFEST_NAME}: ftcli did not create it and will not replace it",
            "Choose another output directory, or move this one away.",
        )
    return bool(entries)


def unlisted(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Files below a prepared directory that its manifest does not list."""
    known = {entry["path"] for entry in manifest.get("files", ())} | {MANIFEST_NAME}
    return sorted(name for path in folder.rglob("*") if not path.is_dir() and (name := path.relative_to(folder).as_posix()) not in known)


def refuse_added(output: Path) -> None:
    """Raises `PublishError`: in prepared data that are to be replaced lie files that ftcli did not write, caches of `datasets` and leftovers of file systems aside."""
    target = output.resolve()
    try:
        manifest = read_manifest(target) or {}
    except StoreError:  # damaged: nobody knows what it listed
        return
    if added := [name for name in unlisted(target, manifest) if not PASSING.fullmatch(PurePosixPath(name).name)]:
        raise PublishError(
            f"{output} holds {len(added):,} {'file' if len(added) == 1 else 'files'} that ftcli did not write there, such as {added[0]}: "
            "replacing the directory would delete them",
            "Move them away, or choose another output directory.",
        )


def refuse_other(output: Path, fingerprint: str, inputs: Mapping[str, Any]) -> None:
    """Raises `PublishError`: prepared data, or an export, are there, of another fingerprint; names both and what differs."""
    raise other(str(output), read_manifest(output.resolve()) or {}, fingerprint, inputs)


def refuse_part(output: str, there: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """Raises `PublishError`: it is certain that --finish would not replace data with the manifest `there`, though nobody has hashed all sources yet.

    Args:
        inputs: settled with `source_versions.Stamps`.
    """
    files = [{**file, "xxh3": None} for file in there.get("sources", ())]
    if words := differences({**there, "sources": files}, {**inputs, "sources": [[*file[:3], None] for file in inputs["sources"]]}):
        raise PublishError(
            f"{output} holds other prepared data ({'; '.join(words)}), and --finish would not replace them",
            "Choose another output directory for all parts, or give --overwrite to each --shard and to --finish.",
        )


def other(output: str, there: Mapping[str, Any], fingerprint: str, inputs: Mapping[str, Any], hint: str = ELSEWHERE) -> PublishError:
    """Why data with the manifest `there` are not replaced."""
    words = differences(there, inputs)
    if (day := (there.get("inputs") or {}).get(DAY)) and day != inputs.get(DAY, day):
        hint = f"To use the date of those data: --template-date {day}. {hint}"
    what = f"an export in the format {there['format']} with" if "format" in there else "prepared data with"
    return PublishError(
        f"{output} holds {what} another fingerprint: {there.get('fingerprint')}, but this run's is {fingerprint}"
        + (f" ({'; '.join(words)})" if words else ""),
        hint,
    )


def check_place(output: Path) -> None:
    """Find out whether a directory can be made at `output`, before sources are hashed; leaves nothing behind.

    Where prepared data are already, nothing is tried: they may be what is asked for, and that needs no permission to write.

    Raises:
        PublishError: something is in the way, a name is too long, or this user cannot write there.
    """
    with writing(output):
        if refuse_foreign(output):
            return
        target = output.resolve()
        nearest = next(folder for folder in target.parents if os.path.lexists(folder))
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
        longest = max(target.relative_to(nearest).parts, key=lambda part: len(os.fsencode(part)))
        # as long as a working directory's, and cleared away like one
        _try(nearest, f".{longest}.{os.urandom(8).hex()}.attempt", output)


def check_folder(folder: Path) -> None:
    """Find out whether files can be written in a folder, which need not exist, before anything is loaded; leaves nothing behind.

    Raises:
        PublishError: something is in the way, or this user cannot write there.
    """
    with writing(folder):
        target = folder.resolve()
        nearest = next(place for place in (target, *target.parents) if os.path.lexists(place))
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
        _try(nearest, f".ftcli.{os.urandom(8).hex()}.attempt", folder)


def _try(nearest: Path, name: str, wanted: Path) -> None:
    trial = nearest / name
    try:
        trial.mkdir()
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (in {nearest})", str(wanted)) from error
    with suppress(FileNotFoundError):
        trial.rmdir()
