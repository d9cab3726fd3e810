"""A job in parts, for machines that share a file system and nothing else: an array of tasks makes them, one command publishes them.

The parts work in one directory beside the output. It is laid out like an attempt (`ftcli.core.publishing.publish`), so that taking it over is a rename:

    .NAME.KEY.parts/
        tmp/, data/, records/, labels/
        parts/plan.json        how many parts there are, and the inputs that KEY stands for
        parts/3-of-16/         lease; sources.json, written last: the part is finished, with what it saw of every source (`source_versions`)

KEY covers what the fingerprint covers, with name, size and modification time of a source in place of its content: no part reads what is
another one's to read. Each hashes the files that begin in its shards, and the fingerprint is settled from those hashes when all are there.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ftcli.context import Context
from ftcli.core.files.durable import free_bytes, put, sync, writing
from ftcli.core.files.lease import Lease
from ftcli.core.files.manifest import fingerprint, seal, unseal
from ftcli.core.files.stamps import Hashed, SourceHashes, check_unchanged
from ftcli.core.prepare.encode import shard_name
from ftcli.core.prepare.recipe import Recipe
from ftcli.core.publishing.inputs import differences, recorded
from ftcli.core.publishing.output_location import PLAN, attempt_of, parts_beside, parts_of, read_plan
from ftcli.core.publishing.ranks import Wait
from ftcli.core.publishing.shard import finished, forget, sidecar
from ftcli.core.publishing.source_versions import Sighting, Sightings, agree, as_json, from_json
from ftcli.core.reading.read import Plan, hash_sources
from ftcli.core.reading.receipt import make_receipt
from ftcli.errors import PublishError, UsageError
from ftcli.records import ShardPlan, to_json

SOURCES = "sources.json"
HELD = 256  # leases of parts that --finish keeps, of which one keeps `ftcli cache prune` off: each is an open file and a thread
SHOWN = 8
"""Parts that a message names."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of `count` parts; numbers start at 1, as in --array=1-16."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Raises:
            UsageError: it is not like 3/16.

        >>> Part.parse("3/16")
        Part(number=3, count=16)
        """
        match = re.fullmatch(r"\s*(\d+)/(0*[1-9]\d*)\s*", text, re.ASCII)
        number, count = (int(match[1]), int(match[2])) if match else (0, 16)
        if not 1 <= number <= count:
            raise UsageError(
                f"--shard {text!r} is not a valid part: parts are 1/{count} to {count}/{count}",
                f"For a Slurm array: sbatch --array=1-{count}, and --shard $SLURM_ARRAY_TASK_ID/{count}.",
            )
        return cls(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def folder(self) -> str:
        return f"{self.number}-of-{self.count}"

    def shards(self, plan: Plan) -> list[ShardPlan]:
        """Its share: consecutive shards, so that most files are read by one part alone."""
        return [shard for shard, owner in zip(plan.shards, _owners(plan, self.count), strict=True) if owner == self.number]

    def files(self, plan: Plan) -> dict[int, bool]:
        """Numbers of the files that it reads or hashes → whether it is the one to hash it: where a file begins."""
        first: dict[str, int] = {}
        read: set[str] = set()
        for shard, owner in zip(plan.shards, _owners(plan, self.count), strict=True):
            for piece in shard.pieces:
                first.setdefault(piece.path, owner)
                if owner == self.number:
                    read.add(piece.path)
        mine = ((number, file.path, first.get(file.path, 1) == self.number) for number, file in enumerate(plan.files))
        return {number: owns for number, path, owns in mine if owns or path in read}


def _owners(plan: Plan, count: int) -> list[int]:
    """The part of each shard: as many bytes to each as whole shards allow."""
    total, before, owners = max(1, sum(shard.size for shard in plan.shards)), 0, []
    for shard in plan.shards:
        owners.append(min(count, (2 * before + shard.size) * count // (2 * total) + 1))
        before += shard.size
    return owners


class PartDesk:
    """Work on one part, by one process at a time."""

    def __init__(self, directory: Path, part: Part, lease: Lease) -> None:
        self.directory = directory
        self.part = part
        self._lease = lease

    @classmethod
    def open(cls, context: Context, recipe: Recipe, part: Part, need_bytes: int) -> Self:
        """Take the part's lease, and clear away what an earlier process left half made of its shards.

        Args:
            recipe: settled with `Stamps`.
            need_bytes: estimate of the bytes that the part will take.

        Raises:
            PublishError: the process that has this part is silent; space or permission is missing; they are cut into another number of parts.
        """
        directory = parts_of(recipe.output.resolve(), recipe.fingerprint)
        with writing(recipe.output):
            directory.parent.mkdir(parents=True, exist_ok=True)
            for name in ("", "tmp", "data", "records", "parts"):
                (directory / name).mkdir(exist_ok=True)
            sync(directory.parent)
            _claim(directory, part, recipe)
            patience = context.settings.runtime.lease_timeout
            with closing(Wait(context.progress, recipe.output, patience)) as wait:
                lease = Lease.take(directory / "parts" / part.folder, recipe.output, wait=True, patience=patience, on_wait=wait.see)
            desk = cls(directory, part, lease)
            try:
                own = {shard_name(shard) for shard in part.shards(recipe.plan)}
                for scratch in (directory / "tmp").iterdir():
                    if scratch.name.rpartition(".")[0] in own:
                        shutil.rmtree(scratch, ignore_errors=True)
                if free_bytes(directory) < need_bytes and not any((directory / "records").iterdir()):
                    raise PublishError(
                        f"{recipe.output} needs about {need_bytes:,} bytes for the part {part}, only {free_bytes(directory):,} are free there",
                        "Free space or choose another output directory.",
                    )
            except BaseException as error:
                desk.end(error)
                raise
        return desk

    def look(self, recipe: Recipe, hashes: SourceHashes, context: Context) -> Sightings:
        """Hash the files that begin here, and note the versions of all that are read; shards that were made of other versions are forgotten.

        Raises:
            DataError: a file cannot be read, or changed since it was planned.
        """
        plan, files = recipe.plan, self.part.files(recipe.plan)
        owned = [number for number, owns in files.items() if owns]
        taken = dict(zip(owned, hash_sources([plan.found[number] for number in owned], hashes, context.progress), strict=True))
        paths = {number: plan.files[number].path for number in files}
        seen = {
            number: Sighting.of(path, plan.hashes[path].stamp, context.settings, taken[number].xxh3 if number in taken else None)
            for number, path in paths.items()
        }
        check_unchanged(plan.hashes, list(paths.values()))
        before = _sightings(self.directory, self.part) or {}
        stale = {paths[number] for number, sighting in seen.items() if number in before and not before[number].same(sighting)}
        for shard in self.part.shards(plan):
            if any(piece.path in stale for piece in shard.pieces):
                forget(self.directory, shard_name(shard))
        if stale:
            shutil.rmtree(self.directory / "labels", ignore_errors=True)
            context.note(
                f"{len(stale)} sources of this part have changed since it read them, such as {min(stale)}: their shards are rebuilt"
            )
        self._write(seen, complete=False)
        return seen

    def finish(self, recipe: Recipe, seen: Sightings) -> None:
        """Say that all shards of the part are made, of these versions of the sources; raises `DataError` when one changed meanwhile."""
        check_unchanged(recipe.plan.hashes, [recipe.plan.files[number].path for number in seen])
        self._write(seen, complete=True)

    def _write(self, seen: Sightings, *, complete: bool) -> None:
        folder = self.directory / "parts" / self.part.folder
        put(seal({"complete": complete, "files": as_json(seen)}, readable=False), folder / f"{SOURCES}.tmp", folder / SOURCES)

    def done(self, name: str) -> dict[str, Any] | None:
        return finished(self.directory, name)

    def beat(self, **progress: float) -> None:
        self._lease.beat(**progress)

    def end(self, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            self._lease.fail(error)
        self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)


def unfinished(directory: Path, recipe: Recipe, count: int) -> dict[Part, int]:
    """The parts that are not finished → how many of their shards are missing."""
    there = {entry.name for entry in os.scandir(directory / "records")}  # one look for all: a job has 100,000 shards
    missing = Counter(
        owner
        for shard, owner in zip(recipe.plan.shards, _owners(recipe.plan, count), strict=True)
        if sidecar(directory, shard_name(shard)).name not in there
    )
    parts = (Part(number, count) for number in range(1, count + 1))
    return {part: missing[part.number] for part in parts if missing[part.number] or _sightings(directory, part, complete=True) is None}


def adopt(context: Context, recipe: Recipe, hashes: SourceHashes, check: Callable[[Recipe], None]) -> Recipe:
    """Make finished parts the attempt from which publishing goes on, as if one process had made their shards.

    Args:
        recipe: settled with `Stamps`.
        check: called with what is to be returned, while the parts still are parts.

    Returns:
        the recipe with the sources' content hashes, and so with the fingerprint.

    Raises:
        PublishError: parts are missing, or none are there; names them, and which processes are at work. Or other data are in the output.
        DataError: two parts read different sources, or they changed since.
    """
    target = recipe.output.resolve()
    directory = parts_of(target, recipe.fingerprint)
    if not directory.is_dir():
        whole = _with_hashes(context, recipe, hash_sources(recipe.plan.found, hashes, context.progress))
        if attempt_of(target, whole.fingerprint).is_dir():  # an earlier --finish took them over, and did not come to its end
            check(whole)
            return whole
        others = _others(recipe)
        raise PublishError(
            f"{recipe.output}: no part of this job exists" + (f", only of {others}" if others else ""),
            "--finish takes the same sources and options as each --shard 1/N … N/N before it, and an output directory (for an object store: a --cache-dir) that all of them see.",
        )
    count, patience = int(read_plan(directory)["count"]), context.settings.runtime.lease_timeout
    everybody = [Part(number, count) for number in range(1, count + 1)]
    seen: dict[int, dict[str, Sighting]] = {}
    _refuse_unfinished(directory, recipe, count)
    with ExitStack() as held:  # until they are the attempt: nobody removes them meanwhile
        try:
            for part in everybody:  # its process has written everything, and is just leaving
                lease = Lease.take(directory / "parts" / part.folder, recipe.output, wait=True, patience=patience)
                if part.number <= HELD:
                    held.callback(lease.release)
                else:
                    lease.release()
                for number, sighting in (_sightings(directory, part, complete=True) or {}).items():
                    seen.setdefault(number, {})[str(part)] = sighting
        except FileNotFoundError:  # another --finish had them, and took them over
            return adopt(context, recipe, hashes, check)
        if unfinished(directory, recipe, count):  # one was begun again over other sources
            held.close()
            _refuse_unfinished(directory, recipe, count)
        agreed = [agree(file.path, seen[number], hashes, context.settings) for number, file in enumerate(recipe.plan.files)]
        whole = _with_hashes(context, recipe, agreed)
        check(whole)
        _become(attempt_of(target, whole.fingerprint), directory, recipe, count)
    context.note(f"{count} parts exist, with {len(recipe.plan.shards)} shards")
    return whole


def _become(attempt: Path, directory: Path, recipe: Recipe, count: int) -> None:
    with writing(recipe.output):
        if attempt.exists():  # a run of all in one place was begun as well: its shards are fewer
            lease = Lease.attempt(attempt)
            if lease is None:
                raise PublishError(
                    f"{recipe.output} is being prepared by another process, besides its {count} parts",
                    f"Stop it: fuser -v {attempt}/lease",
                )
            lease.remove()
        directory.rename(attempt)
        sync(attempt.parent)


def _with_hashes(context: Context, recipe: Recipe, hashed: Sequence[Hashed]) -> Recipe:
    files = tuple(replace(file, xxh3=one.xxh3) for file, one in zip(recipe.plan.files, hashed, strict=True))
    plan = replace(recipe.plan, files=files, hashes={file.path: one for file, one in zip(files, hashed, strict=True)})
    inputs = {**recipe.inputs, "sources": to_json([[file.format, file.split, file.bytes, file.xxh3] for file in files])}
    receipt = make_receipt(context, plan.found, hashed, recipe.day)
    return replace(recipe, plan=plan, inputs=inputs, fingerprint=fingerprint(inputs), receipt=receipt)


def _claim(directory: Path, part: Part, recipe: Recipe) -> None:
    """Write down into how many parts the job is cut; whoever comes first decides."""
    plan = directory / "parts" / PLAN
    if not plan.exists():
        sources = [dict(zip(("format", "split", "bytes", "xxh3"), file, strict=True)) for file in recipe.inputs["sources"]]
        temporary = plan.with_name(f"{os.urandom(6).hex()}.tmp")
        put(seal({"count": part.count, "inputs": recorded(recipe.inputs), "sources": sources}, readable=False), temporary, temporary)
        with suppress(FileExistsError):
            os.link(temporary, plan)
        temporary.unlink()
        sync(plan.parent)
    count = read_plan(directory)["count"]
    if count != part.count:
        raise PublishError(
            f"{recipe.output} is being prepared in {count} parts, but --shard {part} is of {part.count}",
            f"Continue with --shard {part.number}/{count}, or begin anew: rm -r {directory}",
        )


def _sightings(directory: Path, part: Part, *, complete: bool = False) -> dict[int, Sighting] | None:
    """What a part saw of its sources; None where it has not written it, or has not come to its end and `complete` asks for that."""
    with suppress(OSError, ValueError):
        document = unseal((directory / "parts" / part.folder / SOURCES).read_bytes())
        return from_json(document["files"]) if document["complete"] or not complete else None
    return None


def _refuse_unfinished(directory: Path, recipe: Recipe, count: int) -> None:
    left, words = unfinished(directory, recipe, count), []
    if not left:
        return
    for part, shards in list(left.items())[:SHOWN]:
        lease = None
        with suppress(OSError):
            lease = Lease.attempt(directory / "parts" / part.folder)
        at_work = lease is None and (directory / "parts" / part.folder / "lease").exists()
        if lease is not None:
            lease.release()
        words.append(f"{part} ({shards} of {len(part.shards(recipe.plan))} shards missing{', at work now' if at_work else ''})")
    more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    others = _others(recipe, directory)
    raise PublishError(
        f"{recipe.output}: {len(left)} of {count} parts are not finished: {', '.join(words)}{more}"
        + (f". Parts of another job lie in {others}" if others else ""),
        f"Run each of them, such as --shard {next(iter(left))}, then --finish again: nothing is published before all parts exist.",
    )


def _others(recipe: Recipe, but: Path | None = None) -> str:
    """Where parts of this output lie that were started with other options or sources, and how those differ."""
    output, words = recipe.output.resolve(), []
    for directory in parts_beside(output) if output.parent.is_dir() else ():
        if directory != but:
            with suppress(PublishError):
                differ = differences(read_plan(directory), recipe.inputs, stamped=True)
                words.append(f"{directory.name}, where {'; '.join(differ) or 'nothing differs'}")
    return " and ".join(words)
