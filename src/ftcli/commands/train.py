"""`ftcli train`: from prepared data to a trained model, with a report in the run's folder."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from ftcli.commands import tokenize
from ftcli.context import Context
from ftcli.core.distributed import group, pulse
from ftcli.core.distributed.signals import Signals
from ftcli.core.files.durable import refusal
from ftcli.core.files.objects import refuse_url
from ftcli.core.models.frozen import CHECKPOINT
from ftcli.core.processes.libraries import libraries
from ftcli.core.publishing.fetched_set import opened
from ftcli.core.reports.report import write_report
from ftcli.core.training.card import write_card
from ftcli.core.training.checkpoints import step_of
from ftcli.core.training.early_checks import refuse
from ftcli.core.training.hub_upload import push_model
from ftcli.core.training.run import Run, prepare
from ftcli.core.training.run_lock import Claim
from ftcli.core.training.train import fit
from ftcli.core.verify.planned_data import unprepared
from ftcli.core.verify.preflight import preflight, refuse_without_model
from ftcli.errors import DataError, InterruptedRun, PublishError, RankError, UsageError
from ftcli.machine import compute_threads
from ftcli.masking import masked_json
from ftcli.records import MANIFEST_NAME, RUN_NAME, Report, to_json
from ftcli.settings import update

SAME_WISH_SECONDS = 5.0
"""Signals to a rank within so long are one wish."""
STOPPING = "the run ends with a checkpoint when the step, the batch of an evaluation or the save under way is done; a second signal ends it at once"


def run(context: Context) -> Report:
    """Train, and write model, metrics and report to train.output_dir.

    A run that a signal stopped is reported as "interrupted" with its checkpoint.

    Raises:
        FtcliError: the run cannot start, or had to stop; then the report of what was done is in the run's folder.
    """
    output = context.settings.train.output_dir
    if output is not None:
        refuse_url(output, "a run")
    with Claim(output, context.note) as claim:
        return _run(_prepared(opened(context), claim), claim)


def _run(context: Context, claim: Claim) -> Report:
    threads = compute_threads(context.settings.runtime.threads, context.machine.cores)
    rank = pulse.current()
    apart, several = 0.0 if rank is None else SAME_WISH_SECONDS, rank is not None or group.world() > 1
    said = STOPPING if os.environ.get("RANK", "0") == "0" else None
    with libraries(threads.value), Signals(apart, begun=several, said=said) as signals:  # one of several ranks leaves with the others only
        prepared = prepare(context, claim, partial(refuse_without_model, context))
        checks = preflight(context, prepared)
        outcome = fit(prepared, signals)
        if rank is not None:
            rank.closing, rank.watched = True, False
    if not isinstance(outcome.failure, RankError):  # to leave is to wait for what is under way, and a lost rank does not answer
        group.leave()
    error = outcome.failure
    if outcome.status == "interrupted":
        resume = "Resume with the same command plus --resume-from-checkpoint auto, without --overwrite."
        step = outcome.metrics["steps"]
        who = "the end of its launcher" if rank is not None and rank.orphan else signals.received
        error = InterruptedRun(f"stopped by {who} after step {step}; {_left(outcome.paths.get('checkpoint'), step)}", resume)
    report = context.report(
        "train",
        outcome.metrics,
        status=outcome.status,
        checks=(*checks, *outcome.checks),
        paths=outcome.paths,
        details=outcome.details,
        error=error,
    )
    if prepared.arguments.process_index == 0 and claim.hold():
        report = _kept(context, prepared, report)
    if outcome.failure is not None:
        raise outcome.failure
    return report


def _left(checkpoint: str | None, step: int) -> str:
    """What a stopped run goes on from. While the best weights are evaluated again at its end, those of the last step are gone."""
    if checkpoint is None:
        return "there is no checkpoint: a resumed run starts from step 0"
    at = step_of(Path(checkpoint))
    return "the checkpoint is complete" if at == step else f"the newest checkpoint is that of step {at}: later steps will be repeated"


def _kept(context: Context, prepared: Run, report: Report) -> Report:
    """The report with the files it was written to. Where they cannot be written, the model and the checkpoints are what counts."""
    output = prepared.output
    try:
        report = replace(report, paths={**report.paths, **write_report(report, output, "report")})
        if report.status == "ok":
            report = replace(report, paths={**report.paths, "card": str(write_card(prepared, report))})
            if prepared.arguments.push_to_hub:
                before = len(context.notes)
                push_model(prepared.arguments, context.note)
                report = replace(report, notes=(*report.notes, *context.notes[before:]))
        _write(output / RUN_NAME, report)
    except (OSError, PublishError) as error:
        reason = error.message if isinstance(error, PublishError) else refusal(error, output).message
        context.note(f"{reason}; the report is not kept")
        report = replace(report, notes=(*report.notes, context.notes[-1]))
    return report


def _prepared(context: Context, claim: Claim) -> Context:
    """The same run on prepared data: those that are given, or made now under the output directory, once for all ranks and runs."""
    settings = context.settings
    sources, output = settings.dataset.sources or [], settings.train.output_dir
    if output is None or not unprepared(settings):
        return context
    claim.take_early()
    refuse(context, output)
    refuse_without_model(context)
    target = output / "prepared"
    made = (target / MANIFEST_NAME).exists()
    if not made:
        context.note(f"{', '.join(sources)}: not prepared yet, so they are tokenized into {target} first")
    going_on = made and settings.train.resume_from_checkpoint is not None and any(output.glob(f"checkpoint-*/{CHECKPOINT}"))
    # what a checkpoint was trained on has no other copy
    inner = context.with_settings(update(settings, {"dataset.output_dir": target} | ({"runtime.overwrite": False} if going_on else {})))
    try:
        tokenize.run(inner)
    except (DataError, PublishError, UsageError) as error:
        if going_on:
            error.hint = f"To continue with that run's data: --dataset {target}. For other data start a new run in another --output-dir."
        raise
    context.notes[:] = inner.notes
    return replace(context.with_settings(update(settings, {"dataset.sources": [str(target)]})), notes=context.notes)


def _write(path: Path, report: Report) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(masked_json(to_json(report), indent=1, ensure_ascii=False), encoding="utf-8")
    temporary.replace(path)
