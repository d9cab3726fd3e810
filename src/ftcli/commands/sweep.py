"""`ftcli benchmark sweep tokenize | batch | train`: the fastest settings for the same work, by successive halving."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.context import Context
from ftcli.core.benchmark import full_path, saved_profile, worker_counts
from ftcli.core.benchmark.ceilings import Ceilings, ceilings
from ftcli.core.benchmark.grids import PRESENT, Values, candidates, name_of, without
from ftcli.core.benchmark.halving import Found, rungs_runs, search, whole_budget
from ftcli.core.figures import between, number, percent, quantity
from ftcli.errors import SettingsError, UsageError
from ftcli.records import RunStatus
from ftcli.settings import Settings, get, update

if TYPE_CHECKING:
    from ftcli.core.benchmark.pace import Pace
    from ftcli.core.verify.probe import Probe

ROOM = 1.05
"""Slots for a token that a candidate may have beside those of the present settings: larger batches of similar lengths have 1 to 3 % more."""
STAGES = ("tokenize", "batch", "train")
SHOWN = 20
"""Rows of the table; the JSON report has every rate."""
Run = Callable[[Settings], Mapping[str, float]]
"""Does the work of one candidate; amounts by unit, the one that counts first, and "seconds"."""


def sweep(context: Context, what: Sequence[str], pace: Pace) -> tuple[dict[str, Any], dict[str, Any], RunStatus]:
    """Metrics, details and status of the report; the best settings are saved as a profile where `benchmark.save_profile` says so. `pace` looks at the machine between
    the runs.

    Raises:
        UsageError: what is to be swept is missing or unknown, or something that it needs was not given.
        TrainError: the present settings cannot be run.
    """
    if len(what) != 1 or what[0] not in STAGES:
        given = "" if not what else f", not {' '.join(what)!r}"
        raise UsageError(f"benchmark sweep needs one of {', '.join(STAGES)}{given}", "Write: ftcli benchmark sweep tokenize")
    settings = context.settings
    save = settings.benchmark.save_profile
    path = saved_profile.check_name(save, overwrite=settings.runtime.overwrite) if save else None
    if not settings.dataset.sources or not settings.tokenizer.path:
        raise UsageError(f"benchmark sweep {what[0]} needs --dataset and --tokenizer-path", "Give the same options as for the run.")
    with tempfile.TemporaryDirectory(prefix="ftcli-sweep-") as folder:
        grid, run, data = _work(context, what[0], Path(folder))
        context.note(
            f"{number(len(grid))} candidates, halved until two are left; the best is then compared with the present settings in pairs"
        )
        budget, repeats = settings.benchmark.budget, settings.benchmark.repeats
        planned = None if budget is not None else rungs_runs(len(grid)) + 2 * repeats
        context.progress.start(f"benchmark sweep {what[0]}", planned, "runs")
        pace.look()

        def ran(name: str, rate: float) -> None:
            context.progress.advance(1, variant=name, speed=round(rate))
            pace.look()

        found = search(
            list(grid),
            PRESENT,
            lambda name: run(update(settings, dict(grid[name]))),
            repeats=repeats,
            budget=budget,
            on_run=ran,
        )
        context.progress.close()
    reasons: dict[str, list[str]] = {}
    for name, why in found.dropped.items():
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        context.note(f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''} left out: {why}")
    if found.untried:
        context.note(_untried(found, len(grid), budget))
    swept = dict.fromkeys(key for values in grid.values() for key in values)
    best = {**{key: get(settings, key) for key in swept}, **grid[found.best]}
    metrics, details = _result(found, best)
    if sizes := [key for key in grid[found.best] if key.startswith("train.") and what[0] == "batch"]:
        context.note(f"{', '.join(sizes)}: that changes the optimizer steps, not only how fast batches come")
    status: RunStatus = "interrupted" if found.interrupted else "ok"
    if path is not None and save and metrics["rungs"] and status == "ok":
        saved_profile.write(path, f"Measured: benchmark sweep {what[0]}", _justified(context, found), best)
        context.note(f"saved: ftcli … --profile {save} ({path})")
        metrics["profile"] = str(path)
    elif save:
        context.note(f"{'interrupted' if found.interrupted else 'nothing was compared'}, so no profile {save} was saved")
    return metrics, {**details, "data": {"data": data}}, status


def _untried(found: Found, candidates: int, budget: float | None) -> str:
    """How many were not tried and why, in words."""
    words = f"{number(len(found.untried))} of {number(candidates)} candidates were not tried (those furthest from the present settings)"
    if budget is None or found.interrupted:
        return words
    whole = whole_budget(candidates, found.seconds, found.first)
    return (
        f"{words}: a run takes {quantity(found.seconds, 's')}, the first took {quantity(found.first, 's')}, and --budget {budget:g} holds "
        f"no more beside the last comparison; --budget {whole:.0f} would hold all"
    )


def _work(context: Context, what: str, folder: Path) -> tuple[dict[str, Values], Run, str]:
    """The candidates, how one is run, and the hash of what each works on."""
    if what == "batch":
        from ftcli.core.benchmark.bench_batch import fitting, loading
        from ftcli.core.verify.planned_data import prepared
        from ftcli.core.verify.probe import Probe

        probe: Probe = Probe(context)
        probe.give(store=prepared(context))
        unset = probe.collator_name if context.settings.loader.collator is None else ""
        collators = [None if name == unset else name for name in fitting(probe)]
        grid = candidates(context, what, engines=(), collators=collators, on_gpu=bool(context.machine.gpus))
        return grid, _no_fuller(lambda settings: loading(probe, settings)), probe.store.manifest["content_hash"]
    engines = list(dict.fromkeys([context.settings.tokenizer.engine, *context.plugins.registry("engine").names()]))
    grid = candidates(context, what, engines=engines, collators=(), on_gpu=bool(context.machine.gpus))
    texts, cores = full_path.cut(context, context.settings, folder / "texts", context.settings.benchmark.rows), context.machine.cores
    variables, options = full_path.environment(context), full_path.plugin_options(context)
    bounds = ceilings({key: (found.value, found.origin) for key, found in context.resolved.origins.items()})
    most = max(worker_counts.workers(update(context.settings, dict(values)), texts, cores, bounds) for values in grid.values())
    if what == "tokenize":
        if (few := worker_counts.too_few(texts, most)) or most == 1:
            grid = without(grid, worker_counts.WORKERS)
            context.note(f"the number of workers is not tried: {few or 'the sources are so small that one worker prepares them'}")

        def tokenize(settings: Settings) -> Mapping[str, float]:
            made, known = worker_counts.with_workers(settings, texts, cores, bounds, most)
            return _tokenized(made, texts, folder / "run", variables, options, known)

        return grid, tokenize, texts.mark

    def train(settings: Settings) -> Mapping[str, float]:
        made, known = worker_counts.with_workers(settings, texts, cores, bounds, most)
        scaled = full_path.scaled(made, texts, folder / "run" / "output", settings.benchmark.steps)
        measured = full_path.run_path(scaled, folder / "run", variables, options, known)
        return {"real tokens": measured.real_tokens_per_second, "seconds": 1.0}

    return grid, train, texts.mark


def _no_fuller(load: Run) -> Run:
    """Refuses candidates whose batches have more slots for the same tokens than those of the first run: they are made faster, and computed slower."""
    first: list[float] = []

    def run(settings: Settings) -> Mapping[str, float]:
        done = load(settings)
        slots = done["slots"] / done["real tokens"]
        first.append(slots)
        if slots > first[0] * ROOM:
            raise SettingsError(
                f"it leaves {percent(1 - 1 / slots)} of the slots empty, the present settings {percent(1 - 1 / first[0])}: the model would compute these slots",
                "To time the steps use ftcli benchmark train.",
            )
        return done

    return run


def _tokenized(
    settings: Settings,
    texts: full_path.Texts,
    folder: Path,
    variables: Mapping[str, str],
    options: tuple[str, ...],
    bounds: Ceilings = frozenset(),
) -> Mapping[str, float]:
    sources = {"dataset.sources": [str(texts.path)], "dataset.source_format": None}
    changes = {**sources, "dataset.output_dir": folder / "prepared", "runtime.floor": "never"}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        made = update(settings, {**changes, "runtime.report_dir": folder})
        metrics = full_path.run_child("tokenize", made, folder, variables, options, bounds)["metrics"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = metrics["tokens"] / metrics["tokens_per_second"]
    return {"tokens": metrics["tokens"], "rows": metrics["rows_written"], "seconds": seconds}


def _result(found: Found, best: Values) -> tuple[dict[str, Any], dict[str, Any]]:
    from ftcli.core.benchmark.measure import summarise

    medians = {name: summarise(name, found.unit, rates) for name, rates in found.rates.items() if rates}
    metrics = {
        "measurements": found.measurements or [medians[found.best]],
        "ratios": [found.ratio] if found.ratio else [],
        "best": dict(best),
        "candidates": len(found.rates),
        "rungs": [len(rung) for rung in found.rungs],
        "dropped": found.dropped,
        "untried": found.untried,
        "rates": {name: list(rates) for name, rates in found.rates.items() if rates},
    }
    ranked = sorted(medians.values(), key=lambda median: -median.median)
    rows = [[median.name, quantity(median.median, found.unit), number(median.n)] for median in ranked]
    shown = rows[:SHOWN] if len(rows) <= SHOWN else [*rows[: SHOWN - 1], [f"… and {number(len(rows) - SHOWN + 1)} slower ones", "", ""]]
    return metrics, {"title": _title(found, best), "table": {"head": ["candidate", "median", "runs"], "rows": shown}}


def _title(found: Found, best: Values) -> str:
    if found.interrupted and found.ratio is None:
        return "interrupted: the best was not yet compared with the present settings"
    if found.best != PRESENT:
        assert found.ratio is not None
        return f"best: {found.best} (faster, {quantity(found.ratio['median'], '×')} the present settings)"
    if found.ratio is not None:
        tried = found.ratio["name"].removesuffix(f" / {PRESENT}")
        return f"best: the present settings ({name_of(best)}); {tried} against them: {found.ratio['verdict']}, {quantity(found.ratio['median'], '×')}"
    if len(found.untried) + len(found.dropped) == len(found.rates) - 1:
        return "not decided: nothing but the present settings was tried"
    return f"best: the present settings ({name_of(best)}); nothing was faster"


def _justified(context: Context, found: Found) -> list[str]:
    """What was measured, in lines for the profile."""
    machine = context.machine
    load = "" if machine.load_average is None else f"; load {machine.load_average:.1f} at the start"
    lines = [f"Machine: {machine.cpu_model}, {machine.cores} cores, {machine.memory_bytes / 1e9:.0f} GB{load}."]
    if found.ratio is not None:
        ratio = found.ratio
        span = between(ratio["low"], ratio["high"], "×")
        lines.append(
            f"{ratio['name']}: {quantity(ratio['median'], '×')} ({span}, {ratio['n']} run{'s' if ratio['n'] != 1 else ''}) by {ratio['unit']}: {ratio['verdict']}."
        )
    if found.best == PRESENT:
        lines.append("Nothing was faster than these settings beyond the noise.")
    return [" ".join(line.split()) for line in lines]
