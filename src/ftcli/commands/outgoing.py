"""`ftcli tokenize --output-dir s3://…`: prepared in the cache folder, published in the store, kept here as if it had been fetched.

CACHE/outgoing/NAME-HASH/               prepared, and being published; the working directory of `tokenize` is beside it
CACHE/outgoing/.NAME-HASH.publishing.attempt/   one process at a time, others wait and find what it published
CACHE/outgoing/.NAME-HASH.KEY.parts/    what `--shard` makes on machines that share the cache folder; `--finish` publishes it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.core.figures import size
from ftcli.core.files.durable import writing
from ftcli.core.files.lease import Lease
from ftcli.core.files.manifest import hash_bytes, read_manifest
from ftcli.core.files.stamps import SourceHashes
from ftcli.core.prepare.recipe import Recipe
from ftcli.core.publishing.fetched_set import local_folder
from ftcli.core.publishing.output_location import ELSEWHERE, FINISH, refuse_part
from ftcli.core.publishing.ranks import Beating, Wait, silent
from ftcli.core.publishing.remote_set import Shelf
from ftcli.core.reading.receipt import makes_the_same
from ftcli.core.reports.report import write_report
from ftcli.errors import PublishError
from ftcli.records import MANIFEST_NAME, Report
from ftcli.settings import update

OUTGOING = "outgoing"

Prepare = Callable[[Context, Callable[[Recipe], None]], Report]
"""`tokenize` into a directory; the function is to be called when the fingerprint is settled, before the work."""


def run_outgoing(
    context: Context, url: str, prepare: Prepare, reused: Callable[[Mapping[str, Any]], Report], *, finish: bool = False
) -> Report:
    """Prepare and publish, or find that these data are published already.

    Args:
        reused: the report on data that are there, by their manifest.
        finish: what parts made is published.

    Raises:
        PublishError: another set is there or came there meanwhile, the store keeps no conditions, or it fails; what is finished is kept.
        FtcliError: as `ftcli tokenize`.
    """
    overwrite, local = context.settings.runtime.overwrite, _local(context, url)
    with writing(local):
        local.parent.mkdir(parents=True, exist_ok=True)
        working = local.with_name(f".{local.name}.publishing.attempt")
        patience = context.settings.runtime.lease_timeout
        with closing(Wait(context.progress, url, patience)) as wait:
            lease = Lease.take(working, local, wait=True, patience=patience, on_wait=wait.see)
    context = replace(context, progress=Beating(context.progress, lease.beat))
    try:
        shelf = Shelf.look(url, PublishError, damaged=overwrite)
        if (
            shelf.manifest
            and makes_the_same(context, SourceHashes(context.cache_dir), shelf.manifest)
            and not shelf.missing(shelf.manifest)
        ):
            return reused(shelf.manifest)
        shelf.prove()
        settled: list[Recipe] = []

        def check(recipe: Recipe) -> None:
            settled.append(recipe)
            if not overwrite:
                shelf.refuse(recipe.fingerprint, recipe.inputs, FINISH if finish else ELSEWHERE)

        report = prepare(_inside(context, local), check)
        with writing(local):
            return _published(context, shelf, local, report, settled[0].inputs if settled else {}, lease.beat)
    finally:
        lease.leave()


def run_outgoing_part(context: Context, url: str, make: Prepare) -> Report:
    """Make a part in the cache folder; the store is only asked whether it would take the set.

    Raises:
        PublishError: it would not.
        FtcliError: as `ftcli tokenize --shard`.
    """
    overwrite = context.settings.runtime.overwrite
    shelf = Shelf.look(url, PublishError, damaged=overwrite)
    shelf.prove()

    def check(recipe: Recipe) -> None:
        if shelf.manifest and not overwrite:
            refuse_part(url, shelf.manifest, recipe.inputs)

    return make(_inside(context, _local(context, url)), check)


def _local(context: Context, url: str) -> Path:
    return context.cache_dir.absolute() / OUTGOING / f"{url.rpartition('/')[2]}-{hash_bytes(url.encode())[:8]}"


def _inside(context: Context, local: Path) -> Context:
    """The same invocation with a directory for its output."""
    changes = {"dataset.output_dir": local, "runtime.overwrite": True}
    return replace(context.with_settings(update(context.settings, changes)), notes=context.notes)


def _published(context: Context, shelf: Shelf, local: Path, report: Report, inputs: Mapping[str, Any], beat: Callable[[], None]) -> Report:
    manifest = read_manifest(local) or {}
    context.progress.start("publish", None, "B")
    moved = shelf.publish(
        local,
        replace=context.settings.runtime.overwrite,
        inputs=inputs,
        on_file=lambda entry: context.progress.advance(entry["bytes"]),
        on_block=beat,
    )
    context.progress.close()
    whole = sum(entry["bytes"] for entry in manifest["files"])
    context.note(f"{shelf.url}: published {len(manifest['files']):,} files ({size(whole)}), {size(moved)} of them moved now")
    kept = local_folder(context, shelf.url, manifest)
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        local.rename(kept)
    report = replace(
        report, paths={**report.paths, "output": shelf.url, "manifest": f"{shelf.url}/{MANIFEST_NAME}"}, notes=tuple(context.notes)
    )
    if not silent(context.progress) and "json" in report.paths:
        write_report(report, context.settings.runtime.report_dir, "tokenize")  # once more: the first says where it was prepared
    return report
