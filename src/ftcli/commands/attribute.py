"""`ftcli benchmark attribute BASE NEW`: which of the differences between two configurations costs how much."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ftcli.context import Context
from ftcli.core.benchmark import factors, full_path, worker_counts
from ftcli.core.benchmark.attribution import Cost, Plan, Setup, attribute, first_setups
from ftcli.core.benchmark.ceilings import Ceilings
from ftcli.core.benchmark.factors import Difference
from ftcli.core.benchmark.full_path import Measured, Texts
from ftcli.core.benchmark.measure import ratio, summarise
from ftcli.core.benchmark.pace import Pace
from ftcli.core.figures import number, percent, quantity
from ftcli.core.files.manifest import hash_bytes
from ftcli.core.reports.tables import factor_rows
from ftcli.errors import FtcliError, UsageError
from ftcli.records import RunStatus
from ftcli.settings import get, update, walk

VOLUME = "data volume"


def measure_attribution(context: Context, files: Sequence[str], pace: Pace) -> tuple[dict[str, Any], dict[str, Any], RunStatus]:
    """Metrics, details and status of the report.

    Args:
        files: two configurations, or the `ftcli-run.json` of two runs.

    Raises:
        UsageError: not two files, or they differ in nothing.
        TrainError: one of the configurations cannot be run.
    """
    if len(files) != 2:
        raise UsageError(
            f"benchmark attribute compares two configurations, but {len(files)} are given",
            "Write: ftcli benchmark attribute BASE.toml NEW.toml",
        )
    paths = [Path(file) for file in files]
    base, new = (factors.read_settings(path, _given(context)) for path in paths)
    difference = factors.compare(base, new)
    factors.refuse_nothing(difference, paths)
    with tempfile.TemporaryDirectory(prefix="ftcli-attribute-") as folder:
        bench = Bench(context, difference, Path(folder), frozenset[Any]().union(*map(factors.read_ceilings, paths)))
        for key, (old, now, why) in bench.difference.unmeasured.items():
            context.note(f"not measured: {key} ({old} and {now}): {why}")
        factors.refuse_nothing(bench.difference, paths)
        tried = {
            name: bench.run(setup) for name, setup in (("base", frozenset[str]()), ("new", bench.everything))
        }  # warm-up, and whether they run
        plan = bench.plan = bench.planned(tried["base"], tried["new"])
        refuse_equal(context, bench.difference, plan)
        settings = context.settings.benchmark
        context.note(
            f"{len(first_setups(plan))} configurations per round, each in a fresh process: {number(settings.rows)} texts at most, {settings.steps} steps; "
            f"preparation and steps are timed, startup is not"
        )
        rounds, table = attribute(
            plan,
            bench.cost,
            repeats=settings.repeats,
            budget=settings.budget,
            narrow=settings.narrow,
            before_round=pace.look,
            before_phase=bench.begin_phase,
            on_failed=bench.leave_out,
            on_merged=bench.merge,
        )
        marks = bench.marks()
        pace.look()
        context.progress.close()
    plan, difference = bench.plan, bench.difference
    pairs = rounds.common(frozenset(), plan.everything)
    rates = [plan.base_volume.trained / rounds.seconds(frozenset(), plan.base_volume, pairs)]
    rates.append(plan.new_volume.trained / rounds.seconds(plan.everything, plan.new_volume, pairs))
    measurements = [
        summarise(name, unit, [getattr(found, field) for found in bench.found[setup]])
        for unit, field in (("real tokens/s", "real_tokens_per_second"),)
        for name, setup in (("base", frozenset[str]()), ("new", plan.everything))
    ]
    measurements += [
        summarise(name, "seconds", rounds.seconds(setup, volume, pairs).tolist())
        for name, setup, volume in (
            ("base, whole run", frozenset[str](), plan.base_volume),
            ("new, whole run", plan.everything, plan.new_volume),
        )
    ]
    whole = 1 / (rounds.seconds(plan.everything, plan.new_volume, pairs) / rounds.seconds(frozenset(), plan.base_volume, pairs))
    values = {factor.name: {"base": factor.base, "new": factor.new, "kind": factor.kind} for factor in difference.factors}
    found = [{**each, **values.get(each["name"], {"base": {}, "new": {}, "kind": "volume"})} for each in table["factors"]]
    metrics = {
        "measurements": measurements,
        "ratios": [ratio("new / base, whole run", np.asarray(whole), "runs")],
        "total": table["total"],
        "factors": found,
        "interactions": table["interactions"],
        "unexplained": table["unexplained"],
        "unmeasured": [{"setting": key, "base": old, "new": now, "why": why} for key, (old, now, why) in difference.unmeasured.items()],
        "volume": {"base": asdict(plan.base_volume), "new": asdict(plan.new_volume), "counted": bench.exact},
    }
    head, rows = factor_rows(metrics)
    details = {"title": _title(metrics), "table": {"head": list(head), "rows": rows}, "data": marks}
    return metrics, details, "interrupted" if rounds.interrupted else "ok"


def refuse_equal(context: Context, difference: Difference, plan: Plan) -> None:
    """Say where settings of the volume change none.

    Raises:
        UsageError: there is nothing else.
    """
    if plan.volume_name is not None or (volume := next((each for each in difference.factors if each.kind == "volume"), None)) is None:
        return
    words = ", ".join(f"{key} ({old} and {volume.new[key]})" for key, old in volume.base.items())
    if not plan.factors:
        raise UsageError(
            f"no difference between the configurations changes a run: {words}, and both train on the same number of texts",
            "Compare configurations that differ in what a run does; train.max_steps overrides the epochs.",
        )
    context.note(f"no difference: {words}: both train on the same number of texts")


class Bench:
    """Runs configurations between the two, with the texts of each cut once."""

    plan: Plan
    """What is measured now; it changes where factors turn out to need each other."""

    def __init__(self, context: Context, difference: Difference, folder: Path, ceilings: Ceilings) -> None:
        self.context, self.folder, self.ceilings = context, folder, ceilings
        self.variables = full_path.environment(context)
        self.options = full_path.plugin_options(context)
        self.found: dict[Setup, list[Measured]] = {}
        rows = context.settings.benchmark.rows
        data = any(factor.kind == "data" for factor in difference.factors)
        self._base_texts = full_path.cut(context, difference.base, folder / "base", rows)
        self._new_texts = full_path.cut(context, difference.new, folder / "new", rows) if data else self._base_texts
        self._most, self.difference = self._hands(difference)
        self.everything: Setup = frozenset(factor.name for factor in factors.measured(self.difference))
        self.exact = self._base_texts.exact and self._new_texts.exact
        if not self.exact:
            context.note("the number of texts is estimated from their bytes")

    def _hands(self, difference: Difference) -> tuple[int, Difference]:
        """The most workers that one of both runs has, and the difference without their number where the texts are too few to tell."""
        sides = ((difference.base, self._base_texts), (difference.new, self._new_texts))
        counts = [worker_counts.workers(settings, texts, self.context.machine.cores, self.ceilings) for settings, texts in sides]
        few = next(filter(None, (worker_counts.too_few(texts, max(counts)) for _, texts in sides if not texts.prepared)), None)
        if few is None:
            return max(counts), difference
        if any(factor.name == worker_counts.WORKERS for factor in difference.factors) and counts[0] != counts[1]:
            return max(counts), factors.without(difference, worker_counts.WORKERS, few)
        self.context.note(f"texts are prepared with fewer workers than in the whole run: {few}")
        return max(counts), difference

    def marks(self) -> dict[str, str]:
        """What both configurations are and work on, as hashes."""
        unlike = factors.PLACES | factors.LEARNING | factors.RHYTHM
        sides = {"base": (self.difference.base, self._base_texts), "new": (self.difference.new, self._new_texts)}
        found: dict[str, str] = {}
        for name, (settings, texts) in sides.items():
            keys = [f"{section}.{field}" for section, field, _ in walk() if section not in ("benchmark", "tracking")]
            values = [(key, str(get(settings, key))) for key in keys if key not in unlike]
            found |= {f"the {name} configuration": hash_bytes(repr(values).encode()), f"the data of {name}": texts.mark}
        return found

    def begin_phase(self, setups: int) -> None:
        """Show how far the phase is: first every difference by itself, then their sums and pairs, which only the first shows the need for."""
        settings = self.context.settings.benchmark
        what = "benchmark attribute" if not self.found else "benchmark attribute, sums and pairs"
        self.context.progress.start(what, None if settings.budget else setups * settings.repeats, "runs")

    def _texts(self, setup: Setup) -> Texts:
        data = [factor.name for factor in self.difference.factors if factor.kind == "data"]
        return self._new_texts if set(data) & setup else self._base_texts

    def run(self, setup: Setup) -> Measured:
        """The configuration, as it is measured."""
        whole, texts = update(self.difference.base, factors.switched(self.difference, setup)), self._texts(setup)
        made, ceilings = worker_counts.with_workers(whole, texts, self.context.machine.cores, self.ceilings, self._most)
        made = full_path.scaled(made, texts, self.folder / "run" / "output", self.context.settings.benchmark.steps)
        return full_path.run_path(made, self.folder / "run", self.variables, self.options, ceilings)

    def cost(self, setup: Setup) -> Cost:
        measured = self.run(setup)
        self.found.setdefault(setup, []).append(measured)
        self.context.progress.advance(1, variant=" + ".join(sorted(setup)) or "base", speed=round(measured.real_tokens_per_second))
        return measured.cost

    def leave_out(self, failed: Mapping[Setup, FtcliError]) -> None:
        for setup, error in failed.items():
            self.context.note(f"left out: {' + '.join(sorted(setup)) or 'the base'}: {error.message}")

    def merge(self, plan: Plan, names: Sequence[str], why: FtcliError) -> None:
        """Go on with factors that cannot be run apart as one."""
        self.plan, self.difference = plan, factors.merged(self.difference, names)
        self.found.clear()
        self.context.note(f"measured together, because one cannot run without the other: {', '.join(names)} ({why.message})")

    def planned(self, base: Measured, new: Measured) -> Plan:
        first = full_path.volume_of(self.difference.base, self._base_texts, base)
        second = full_path.volume_of(self.difference.new, self._new_texts, new)
        names = tuple(factor.name for factor in factors.measured(self.difference))
        return Plan(names, first, second, VOLUME if first != second else None)


def _given(context: Context) -> dict[str, Any]:
    """Settings from this command line, which count for both configurations."""
    return {
        key: value.value
        for key, value in context.resolved.origins.items()
        if value.origin.startswith(("--", "argument")) and not key.startswith("benchmark.") and key != "runtime.report_dir"
    }


def _title(metrics: dict[str, Any]) -> str:
    total, first = metrics["total"], metrics["factors"][0]
    words = f"the new configuration takes {quantity(total['median'], '×')} the base's time"
    if first["share"] is None:
        return f"{words}: {total['verdict']}."
    return f"{words}; {percent(first['share'])} of that (in logarithms) is {first['name']}."
