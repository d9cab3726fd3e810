"""`ftcli benchmark`: the stages of the pipeline under `measure()`, on the user's data and machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ftcli.context import Context
from ftcli.core.measure import Variant, measure
from ftcli.core.report import write_report
from ftcli.errors import UsageError
from ftcli.records import Report


def run(context: Context, action: str) -> Report:
    """Measure one stage.

    Args:
        action: tokenize (engines), batch (collators) or train (optimizer steps by collator).

    Raises:
        UsageError: an unknown action, or a part that the stage needs was not given.
    """
    makers: Mapping[str, Callable[[Context], Sequence[Variant]]] = {"tokenize": _engines, "batch": _collators, "train": _steps}
    if action not in makers:
        raise UsageError(f"there is nothing to measure called {action!r}", f"Measure {', '.join(makers)}.")
    settings = context.settings.benchmark
    variants = makers[action](context)
    rounds = settings.warmup + settings.repeats
    context.progress.start(f"benchmark {action}", rounds * len(variants), "runs")
    measurements, ratios = measure(
        variants,
        repeats=settings.repeats,
        warmup=settings.warmup,
        budget=settings.budget,
        on_run=lambda name, seconds: context.progress.advance(1, variant=name, seconds=round(seconds, 3)),
    )
    context.progress.close()
    load = context.machine.load_average
    if load is not None and load > context.machine.cores:
        context.note(
            f"the machine was busy when this began (load {load:.1f} on {context.machine.cores} cores): the intervals say how much that matters"
        )
    metrics = {"action": action, "measurements": measurements, "ratios": ratios}
    report = context.report(f"benchmark {action}", metrics)
    paths = write_report(report, context.settings.runtime.report_dir, f"benchmark-{action}")
    return context.report(f"benchmark {action}", metrics, paths=paths)


def _engines(context: Context) -> Sequence[Variant]:
    from ftcli.core.bench_tokenize import variants

    return variants(context)


def _collators(context: Context) -> Sequence[Variant]:
    from ftcli.core.bench_batch import variants

    return variants(context)


def _steps(context: Context) -> Sequence[Variant]:
    from ftcli.core.bench_train import variants

    return variants(context)
