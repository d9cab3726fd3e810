"""`ftcli benchmark`: the stages of the pipeline under `measure()`, on the user's data and machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftcli.context import Context
from ftcli.core.benchmark.measure import LEAST_RUNS, Variant, measure
from ftcli.core.benchmark.pace import CROWDED, Pace
from ftcli.core.figures import percent
from ftcli.core.publishing.fetched_set import opened
from ftcli.core.reports.report import filed
from ftcli.errors import InterruptedRun, UsageError
from ftcli.records import Measurement, Report, RunStatus

ANEW = "A benchmark cannot be resumed: run it again for the rest, for example with a --budget in seconds."
UNSTEADY = 0.1
"""Drift of the fixed loop that is worth a note."""


def run(context: Context, action: str, what: Sequence[str] = ()) -> Report:
    """Measure one stage, or compare configurations.

    Args:
        action: tokenize (engines), batch (collators), train (optimizer steps by collator), sweep, attribute or compare.
        what: of sweep what to try (tokenize, batch, train), of attribute the two configurations, of compare the two reports.

    Raises:
        UsageError: an unknown action, or a part that the stage needs was not given.
    """
    asked = context.settings.benchmark
    if action != "compare" and asked.repeats < LEAST_RUNS and asked.budget is None:
        context.note(
            f"{asked.repeats} repeat{'s decide' if asked.repeats != 1 else ' decides'} nothing: a verdict needs at least {LEAST_RUNS} runs (--repeats {LEAST_RUNS})"
        )
    if action == "attribute":
        from ftcli.commands.attribute import measure_attribution

        pace = Pace()
        metrics, details, status = measure_attribution(context, what, pace)
        say_machine(context, pace)
        metrics = {"action": action, **metrics, "frequency_drift": pace.drift}
        return written(context, action, metrics, {**details, "pace": pace.to_details()}, status)
    if action == "compare":
        from ftcli.commands.compare import compare_reports

        metrics, details, worse = compare_reports(context, what)
        return written(context, action, {"action": action, **metrics}, details, "failed" if worse else "ok")
    if action == "sweep":
        from ftcli.commands.sweep import sweep

        pace = Pace()
        metrics, details, status = sweep(context, what, pace)
        say_machine(context, pace)
        metrics = {"action": action, **metrics, "frequency_drift": pace.drift}
        return written(context, f"sweep {what[0]}", metrics, {**details, "pace": pace.to_details()}, status)
    if what:
        raise UsageError(f"benchmark {action} takes no {what[0]!r}", f"Data are given as --dataset {what[0]}.")
    makers: Mapping[str, Callable[[Context], Sequence[Variant]]] = {"tokenize": _engines, "batch": _collators, "train": _steps}
    if action not in makers:
        raise UsageError(f"there is nothing to measure called {action!r}", f"Choose from: {', '.join(makers)}.")
    context = opened(context)
    settings = context.settings.benchmark
    variants = makers[action](context)
    rounds = settings.warmup + settings.repeats
    context.progress.start(f"benchmark {action}", None if settings.budget else rounds * len(variants), "runs")
    pace, complete = Pace(), list[int]()
    measurements, ratios = measure(
        variants,
        repeats=settings.repeats,
        warmup=settings.warmup,
        budget=settings.budget,
        narrow=settings.narrow,
        pace=pace,
        on_run=lambda name, seconds: context.progress.advance(1, variant=name, seconds=round(seconds, 3)),
        on_interrupted=complete.append,
    )
    context.progress.close()
    say_machine(context, pace)
    limits = [] if complete else _limits(context, variants, measurements)
    metrics = {"action": action, "measurements": measurements, "ratios": ratios, "limits": limits, "frequency_drift": pace.drift}
    details = {"pace": pace.to_details(), "data": {"data": variants[0].data}}
    return written(context, action, metrics, details, "interrupted" if complete else "ok")


def _limits(context: Context, variants: Sequence[Variant], measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Every variant beside what the machine can do at best."""
    rates: dict[str, float] = {}
    for row in measurements:
        rates.setdefault(row.name, row.median)  # the first unit
    found = [variant.beside(rates[variant.name]) for variant in variants if variant.beside is not None]
    if found:
        context.note(max(found, key=lambda limit: limit.share).words)
    return [limit.to_json() for limit in found]


def say_machine(context: Context, pace: Pace) -> None:
    """Notes on what the machine did to the figures: its load at the start, what other processes took, and its own pace between the rounds."""
    load = context.machine.load_average
    if load is not None and load > context.machine.cores:
        context.note(
            f"the machine was busy when this began (load {load:.1f} on {context.machine.cores} cores): the intervals include the effect"
        )
    if pace.others is not None and pace.others > CROWDED:
        context.note(f"other processes took {percent(pace.others)} of the CPU time meanwhile: the intervals include the effect")
    if pace.drift is not None and pace.drift > UNSTEADY:
        context.note(f"a fixed loop took up to {pace.drift:.0%} longer in some rounds than in others: the machine's speed varied")


def written(context: Context, action: str, metrics: Mapping[str, Any], details: Mapping[str, Any], status: RunStatus = "ok") -> Report:
    """The report, with its HTML and JSON in the report folder."""
    error = None
    if status == "interrupted":
        error = InterruptedRun(f"ftcli benchmark {action} was interrupted: the report has what was complete by then", ANEW)
    report = context.report(f"benchmark {action}", metrics, details=details, status=status, error=error)
    return filed(report, context.settings.runtime.report_dir, f"benchmark {action}".replace(" ", "-"), context.note)


def _engines(context: Context) -> Sequence[Variant]:
    from ftcli.core.benchmark.bench_tokenize import variants

    return variants(context)


def _collators(context: Context) -> Sequence[Variant]:
    from ftcli.core.benchmark.bench_batch import variants

    return variants(context)


def _steps(context: Context) -> Sequence[Variant]:
    from ftcli.core.benchmark.bench_train import variants

    return variants(context)
