"""`ftcli tokenize`: sources → a published directory that `datasets.load_from_disk` opens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ftcli.commands.outgoing import run_outgoing, run_outgoing_part
from ftcli.commands.part import refuse_other_data, refuse_today, run_part
from ftcli.context import Context
from ftcli.contracts import Distant, Engine, Executor
from ftcli.core.benchmark.floor import SHARES, beside_machine, verdict
from ftcli.core.benchmark.measure import peak_rss_mb
from ftcli.core.files.durable import WRITE_ERRORS, free_bytes, refusal
from ftcli.core.files.lease_holder import this_rank
from ftcli.core.files.mirror import origin
from ftcli.core.files.new_file import read_ahead
from ftcli.core.files.objects import output_of, url_of
from ftcli.core.files.stamps import SourceHashes
from ftcli.core.prepare.encode import shard_name
from ftcli.core.prepare.engine_trials import Apart, Early
from ftcli.core.prepare.executed import ended
from ftcli.core.prepare.job import Job
from ftcli.core.prepare.outcome import note_outcome, refuse_unusable
from ftcli.core.prepare.parts import Part, adopt
from ftcli.core.prepare.preloading import known_tokenizer, probable_engine
from ftcli.core.prepare.recipe import Recipe, settle
from ftcli.core.prepare.space import estimate
from ftcli.core.prepare.tally import BAND_TOKENS, Tally, listed, rating
from ftcli.core.prepare.work import Record, make_shards
from ftcli.core.prepare.workload import Workload, thread_count, worker_count, worker_threads
from ftcli.core.prepare.write import split_metadata
from ftcli.core.processes import warm_worker
from ftcli.core.processes.footprint import Footprint
from ftcli.core.publishing.inputs import recorded
from ftcli.core.publishing.output_location import check_place
from ftcli.core.publishing.publish import Attempt
from ftcli.core.publishing.ranks import open_attempt, silent, speak
from ftcli.core.publishing.shard import sidecar
from ftcli.core.publishing.source_versions import Stamps
from ftcli.core.reading.read import Plan
from ftcli.core.reading.receipt import renew, still_there
from ftcli.core.reading.reject import REJECTS, accept, join
from ftcli.core.reports.report import filed, get_ready
from ftcli.core.tokenizer.without_torch import Light, uncollected, without_torch
from ftcli.errors import DataError, UsageError
from ftcli.records import MANIFEST_NAME, Report, to_json


def run(context: Context, shard: str | None = None, finish: bool = False) -> Report:
    """Prepare data, or find that they are prepared already.

    Args:
        shard: "3/16": make one of 16 parts, which other machines may have a part in, and publish nothing.
        finish: publish what those parts made.

    Raises:
        UsageError: no source, tokenizer or output directory was given, or two choices contradict each other.
        DataError, TokenizerError, EngineError, PublishError: named in the message; finished shards are kept for the next run.
    """
    part = None if shard is None else Part.parse(shard)
    if part is not None and finish:
        raise UsageError(
            "--shard makes a part and --finish publishes all of them: one at a time", "Run every --shard first, then --finish."
        )
    url = None if context.settings.dataset.output_dir is None else output_of(context.settings.dataset.output_dir)
    if url is None:
        return _run(context, part, finish, lambda recipe: refuse_other_data(context, recipe, part, finish))
    if part is not None:
        return run_outgoing_part(context, url, lambda inner, check: _run(inner, part, False, check))
    return run_outgoing(
        context, url, lambda inner, check: _run(inner, None, finish, check), lambda manifest: _reused(context, manifest), finish=finish
    )


def _run(context: Context, part: Part | None, finish: bool, on_settled: Callable[[Recipe], None]) -> Report:
    hashes = SourceHashes(context.cache_dir)
    with uncollected():
        earlier = still_there(context, hashes)
    if earlier is not None:
        return _reused(context, earlier)
    if context.settings.dataset.output_dir is not None:
        check_place(context.settings.dataset.output_dir)
    if unkept := hashes.prepare():
        context.note(unkept)
    executor = context.plugins.registry("executor").get(context.settings.runtime.executor, "runtime.executor")()
    if isinstance(executor, Distant):
        warm_worker.drop()
    try:
        apart = Apart(context.plugins, thread_count(context))
        with (
            without_torch(context.cache_dir) as light,
            closing(Early(apart, executor, context.plugins)) as early,
            ended(context, executor),
            Footprint() as footprint,
        ):
            waits = part is None and bool(this_rank())  # of the ranks that prepare one output; each makes a part of its own
            recipe = _settle(context, executor, apart, early, Stamps(context.settings) if part or finish else hashes, light, waits=waits)
            if part is not None or finish:
                refuse_today(context, recipe)
            if not finish:
                on_settled(recipe)
            if part is not None:
                return run_part(context, executor, early, recipe, part, hashes, footprint)
            if finish:
                recipe = adopt(context, recipe, hashes, on_settled)
            get_ready()  # while the workers load the engine
            return _prepare(context, executor, early, recipe, footprint)
    except OSError as error:
        if error.errno in WRITE_ERRORS and context.settings.dataset.output_dir is not None:
            raise refusal(error, context.settings.dataset.output_dir) from error
        raise


def _settle(context: Context, executor: Executor, apart: Apart, early: Early, hashes: SourceHashes, light: Light, *, waits: bool) -> Recipe:
    """The recipe; meanwhile the workers start, and load the engine where it is known which one it will be.

    Args:
        waits: this process will probably wait for another one's work, and needs no workers yet.
    """

    def load() -> Any:
        return light.load(lambda: context.plugins.load_tokenizer(context.settings))

    known = known_tokenizer(context, load)
    engine = known and probable_engine(context, known)

    def get_ready(plan: Plan) -> None:
        if waits:
            return
        _start(context, executor, early, plan, engine or None)
        if known and engine:
            early.begin(engine.name, known.backend)
        else:
            apart.start()
        if plan.columns.chat is not None:
            early.begin_template(context.settings)

    return settle(context, get_ready, hashes, known, load)


def _start(context: Context, executor: Executor, early: Early, plan: Plan, engine: Engine | None = None) -> None:
    if context.room is None and isinstance(executor, Distant):
        context.room = executor.connect(context.settings)
    workers = worker_count(context, plan).value
    early.start(workers, worker_threads(context, workers), engine)


def _prepare(context: Context, executor: Executor, early: Early, recipe: Recipe, footprint: Footprint) -> Report:
    need = estimate(context, recipe, free_bytes(recipe.output))
    with open_attempt(context, recipe.output, recipe.fingerprint, inputs=recipe.inputs, need_bytes=need, on_block=early.stop) as attempt:
        if attempt.ready is not None:
            accept(attempt.ready, context.settings, recipe.output)
            renew(context, attempt.ready, recipe.receipt)
            return _reused(context, attempt.ready)
        speak(context.progress)
        _start(context, executor, early, recipe.plan)
        work = make_shards(context, executor, early, recipe, recipe.plan.shards, attempt, footprint)
        workload, job, names, resumed, made = work.workload, work.job, work.label_names, work.resumed, work.made
        recipe.check_sources()
        tally = Tally.of([*resumed, *made])
        rejects, first, advice = _rejects(recipe, attempt, [*resumed, *made], tally)
        refuse_unusable(recipe, tally, first, advice)
        note_outcome(context, recipe, tally, names)
        slots = sum(tally.rows.values()) * recipe.policy.max_length if recipe.policy.packed else None
        metrics = {
            **tally.metrics(slots=slots, workers=workload.workers, source_bytes=recipe.plan.bytes),
            **Tally.of(made).speeds(seconds=work.seconds, source_bytes=sum(recipe.plan.shards[record["shard"]].size for record in made)),
            "engine": workload.engine.name,
            "engine_proof": workload.engine.reason,
            "shards_resumed": len(resumed),
        }
        for name, content in _small_files(recipe, job, tally, names).items():
            attempt.write(name, content)
        manifest = attempt.publish(
            _manifest(context, recipe, workload, tally, names, metrics), [*map(shard_name, recipe.plan.shards), *rejects]
        )
    beside = beside_machine(context, executor, job, recipe.plan.shards, workload.workers, metrics, Tally.of(made).seconds, work.seconds)
    if sum(entry["bytes"] for entry in manifest["files"]) < context.machine.memory_available_bytes // 2:
        read_ahead(recipe.output / entry["path"] for entry in manifest["files"])
    return _report(context, manifest, reused=False, beside=beside, footprint=footprint)


def _reused(context: Context, manifest: Mapping[str, Any]) -> Report:
    output = context.settings.dataset.output_dir
    assert output is not None
    context.note(f"{url_of(output) or output} already holds these data (fingerprint {manifest['fingerprint']}): nothing to do")
    return _report(context, manifest, reused=True)


def _rejects(recipe: Recipe, attempt: Attempt, records: Sequence[Record], tally: Tally) -> tuple[list[str], list[str], str]:
    """Write the rejects file, if a row was rejected; names what publishes it, the first rejects and what to do about the first."""
    if not tally.counts["rows_rejected"]:
        return [], [], ""
    sidecar(attempt.directory, REJECTS).unlink(missing_ok=True)  # of an earlier run, whose sources may have been called otherwise
    with attempt.shard(REJECTS) as writer:
        count, first, advice = join(attempt.directory, records, recipe.plan.shards, writer.path(REJECTS))
        if count != tally.counts["rows_rejected"]:
            raise DataError(f"{count} rejects were written, {tally.counts['rows_rejected']} counted", "This is a bug in ftcli.")
        writer.commit([REJECTS], {})
    return [REJECTS], first, advice


def _small_files(recipe: Recipe, job: Job, tally: Tally, names: list[str] | None) -> dict[str, str]:
    """What makes the directory a `datasets.DatasetDict`: name → content."""
    files = {"dataset_dict.json": json.dumps({"splits": recipe.splits()})}
    for split in recipe.splits():
        parts = sorted(Path(name).name for (_, part), name in job.files.items() if part == split)
        metadata = split_metadata(
            files=parts,
            fingerprint=recipe.fingerprint,
            split=split,
            label_names=names,
            packed=recipe.policy.packed,
            rows=tally.rows[split],
            targets=recipe.template is not None,
            multi_label=recipe.plan.columns.multi_label,
            regression=recipe.plan.columns.number,
            types=recipe.policy.pair is not None and recipe.policy.pair.types,
            size=tally.output_bytes[split],
        )
        files |= {f"{split}/{name}": content for name, content in metadata.items()}
    return files


def _manifest(
    context: Context, recipe: Recipe, workload: Workload, tally: Tally, names: list[str] | None, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    policy = recipe.policy
    return {
        "splits": {split: {"rows": tally.rows[split], "tokens": tally.tokens[split]} for split in recipe.splits()},
        "label_names": names,
        "task": recipe.task,
        "max_length": policy.max_length,
        "packing": recipe.packing,
        "policy": policy,
        "chat_template": recipe.template,
        "tokenizer": {"path": recipe.tokenizer_path, "hash": recipe.backend.hash, "vocab_size": len(recipe.tokenizer)},
        "engine": workload.engine.proof,
        "inputs": recorded(recipe.inputs),
        "receipt": recipe.receipt,
        "sources": [{**to_json(file), **origin(file.path, context.settings)} for file in recipe.plan.files],
        "metrics": metrics,
        "details": {**tally.details(names, policy.max_length), "tokens_per_text": tally.tokens_per_text},
        "settings": context.resolved.origins,
        "plugins": context.plugins.describe(),
        "machine": context.machine,
        "notes": context.notes,
    }


def _report(
    context: Context,
    manifest: Mapping[str, Any],
    *,
    reused: bool,
    beside: Mapping[str, Any] | None = None,
    footprint: Footprint | None = None,
) -> Report:
    output = context.settings.dataset.output_dir
    assert output is not None
    details = {**listed(manifest["details"]), "peak_rss_mb_of_one_process": max(peak_rss_mb(), footprint.largest_mb if footprint else 0.0)}
    metrics = {**manifest["metrics"], "content_hash": manifest["content_hash"], "reused": reused, **dict.fromkeys(SHARES)}
    metrics["peak_rss_mb"] = max(details["peak_rss_mb_of_one_process"], footprint.peak_mb if footprint else 0.0)
    speed, length = metrics["examples_per_second"], details["tokens_per_text"]
    word = rating(speed, length, metrics["rows_read"])
    if word is not None:
        details["rating"] = word + (" when they were made" if reused else "")
    elif speed is not None and length > BAND_TOKENS:
        context.note(f"no rating: its bands of examples/s are for texts of about 200 tokens, these have {length:,.0f} on average")
    if beside is not None:
        metrics |= beside["shares"]
        details |= beside["details"]
        if speed is not None:
            details["verdict"] = verdict(
                speed, word and word.split(" (")[0], beside["shares"], details["time"], templated=bool(manifest["chat_template"])
            )
    place = url_of(output) or str(output)
    paths = {"output": place, "manifest": f"{place}/{MANIFEST_NAME}"}
    report = context.report("tokenize", to_json(metrics), paths=paths, details=details)
    if silent(context.progress):
        return report
    return filed(report, context.settings.runtime.report_dir, "tokenize", context.note)
