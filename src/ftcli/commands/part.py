"""`ftcli tokenize --shard 3/16`: the shards of one part, made and left for --finish to publish."""

from __future__ import annotations

from ftcli.context import Context
from ftcli.contracts import Executor
from ftcli.core.benchmark.measure import peak_rss_mb
from ftcli.core.files.durable import free_bytes
from ftcli.core.files.manifest import read_manifest
from ftcli.core.files.stamps import SourceHashes
from ftcli.core.prepare.engine_trials import Early
from ftcli.core.prepare.parts import Part, PartDesk, unfinished
from ftcli.core.prepare.recipe import Recipe
from ftcli.core.prepare.space import estimate
from ftcli.core.prepare.tally import Tally
from ftcli.core.prepare.work import make_shards
from ftcli.core.processes.footprint import Footprint
from ftcli.core.publishing.output_location import FINISH, other, refuse_part
from ftcli.errors import UsageError
from ftcli.machine import disk_kind
from ftcli.records import Report, to_json


def run_part(
    context: Context, executor: Executor, early: Early, recipe: Recipe, part: Part, hashes: SourceHashes, footprint: Footprint
) -> Report:
    """Make the shards of a part that no earlier run of it has finished.

    Args:
        recipe: settled with `Stamps`; its fingerprint is the key of the parts.

    Raises:
        DataError, TokenizerError, EngineError, PublishError: as `ftcli tokenize`; what is finished is kept.
    """
    shards = part.shards(recipe.plan)
    total = max(1, sum(shard.size for shard in recipe.plan.shards))
    size = sum(shard.size for shard in shards)
    need = estimate(context, recipe, free_bytes(recipe.output)) * size // total
    _say_who_sees_it(context, recipe)
    metrics = {"part": str(part), "shards": len(shards), "shards_resumed": 0, "reused": False}
    with PartDesk.open(context, recipe, part, need) as desk:
        seen = desk.look(recipe, hashes, context)
        if lost := hashes.keep():
            context.note(lost)
        if not shards:
            context.note(f"the part {part} is empty: there are only {len(recipe.plan.shards)} shards")
        else:
            labelled = recipe.plan.columns.label is not None and not recipe.plan.columns.number and not context.settings.dataset.label_names
            if labelled and not (desk.directory / "labels").exists():
                context.note("the labels of all sources are collected first; --label-names avoids that")
            work = make_shards(context, executor, early, recipe, shards, desk, footprint)
            tally = Tally.of([*work.resumed, *work.made])
            made = sum(recipe.plan.shards[record["shard"]].size for record in work.made)
            metrics |= {
                **tally.metrics(slots=None, workers=work.workload.workers, source_bytes=size),
                **Tally.of(work.made).speeds(seconds=work.seconds, source_bytes=made),
                "engine": work.workload.engine.name,
                "engine_proof": work.workload.engine.reason,
                "shards_resumed": len(work.resumed),
            }
        desk.finish(recipe, seen)
        left = unfinished(desk.directory, recipe, part.count)
        directory = desk.directory
    metrics |= {"parts_left": len(left), "peak_rss_mb": max(peak_rss_mb(), footprint.peak_mb)}
    context.note(
        f"the part {part} is finished; "
        + (
            f"{len(left)} of {part.count} parts are not"
            if left
            else f"all {part.count} are: run the same command with --finish in place of --shard"
        )
    )
    return context.report("tokenize", to_json(metrics), paths={"parts": str(directory)})


def refuse_today(context: Context, recipe: Recipe) -> None:
    """Raises `UsageError` where every part would write the date of its own clock into conversations."""
    if recipe.day and not context.settings.tokenizer.template_date:
        raise UsageError(
            "the chat template inserts today's date into conversations, so parts prepared on different days or in different time zones would differ",
            f"Give the same date to every --shard and to --finish: --template-date {recipe.day}",
        )


def refuse_other_data(context: Context, recipe: Recipe, part: Part | None, finish: bool) -> None:
    """Raises `PublishError` where other data are in the output that --finish would not replace: to a part before its work, to --finish while there are parts."""
    if (part is None and not finish) or context.settings.runtime.overwrite:
        return
    there = read_manifest(recipe.output.resolve()) or {}
    if there and part is not None:
        refuse_part(str(recipe.output), there, recipe.inputs)
    elif there and there.get("fingerprint") != recipe.fingerprint:
        raise other(str(recipe.output), there, recipe.fingerprint, recipe.inputs, FINISH)


def _say_who_sees_it(context: Context, recipe: Recipe) -> None:
    """A disk of this machine alone is named at once: the other parts would be made where --finish does not find them."""
    target = recipe.output.resolve()
    kind = disk_kind(next(folder for folder in target.parents if folder.exists()))
    if kind in {"ssd", "hdd", "memory"}:
        where = "in the memory" if kind == "memory" else f"on an {kind.upper()}"
        context.note(
            f"{recipe.output} lies {where} of this machine: all parts and --finish must run here, or use an output (for an object store: a --cache-dir) that all machines see"
        )
