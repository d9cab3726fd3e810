"""Two benchmark reports against each other: which figures became worse beyond the noise, and what differs between their machines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftcli.core.benchmark.factors import LEARNING, PLACES, RHYTHM
from ftcli.core.benchmark.measure import RESAMPLES, SURE, verdict_of
from ftcli.core.benchmark.pace import CROWDED
from ftcli.core.benchmark.student import difference_interval
from ftcli.core.figures import percent
from ftcli.errors import DataError, UsageError
from ftcli.records import REPORT_SCHEMA

CARD = ("cpu_model", "cores", "memory_bytes", "disk_kind", "gpus", "platform", "python")
"""What of a machine has to be equal for its figures to be compared without a word."""
UNDECIDED = "not decided: the machine changed"
OTHER_WORK = "not decided: the work differs"
ENCODING = ("dataset.", "tokenizer.", "packing.", "runtime.", "benchmark.rows")
OF_WORK = {
    "tokenize": ENCODING,
    "batch": (*ENCODING, "loader.", "train.mode", "train.per_device_train_batch_size", "train.max_tokens_per_batch"),
}
"""How settings begin of which a benchmark makes its work; everything counts for those that train."""
HOW_LONG = frozenset(f"benchmark.{name}" for name in ("repeats", "warmup", "budget", "narrow", "tolerance", "variants", "save_profile"))
"""Settings of a benchmark that say how long it measures, or which variants: those of both reports are compared."""
MOMENT = 0.1
"""By which the same work differs from one process to the next on an idle machine. Real comparisons of equal reports (8 runs each, 2 virtual cores)
that found a difference: 21 of 80 by their runs alone; of 80 others 6 beyond what the pace and other processes explain, none beyond this as well."""
Key = tuple[str, str]


def read_report(path: Path) -> Mapping[str, Any]:
    """A benchmark's JSON report.

    Raises:
        DataError: there is none, it cannot be read, or it holds no measurements.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path} cannot be read: {reason}", "Give the .json report of ftcli benchmark.") from error
    if not _whole(document):
        raise DataError(f"{path} is not a report of ftcli benchmark, or is damaged", "Give the .json report of ftcli benchmark.")
    return document  # type: ignore[no-any-return]  # a dict, by `_whole`


def _whole(document: Any) -> bool:
    """Whether everything that is read of a report has its shape."""
    if not isinstance(document, dict) or document.get("schema") != REPORT_SCHEMA or not isinstance(document.get("command"), str):
        return False
    parts = [document.get(name) or {} for name in ("metrics", "machine", "settings", "details")]
    if not document["command"].split() or not all(isinstance(part, dict) for part in parts):
        return False
    metrics, machine, settings, details = parts
    versions, pace, rows = machine.get("versions") or {}, details.get("pace") or {}, metrics.get("measurements")
    return (
        isinstance(versions, dict)
        and isinstance(pace, dict)
        and isinstance(details.get("data") or {}, dict)
        and _numbers(pace.get("cpu_seconds") or [])
        and _numbers([pace.get("others"), machine.get("load_average")])
        and all(isinstance(item, dict) and "value" in item for item in settings.values())
        and isinstance(rows, list)
        and bool(rows)
        and all(map(_measured, rows))
    )


def _measured(row: Any) -> bool:
    named = isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("name", "unit"))
    return named and _numbers(row.get("samples") or []) and _numbers([row.get("median")])


def _numbers(values: Any) -> bool:
    """Whether it is a list of numbers; unknown ones are null."""
    return isinstance(values, list) and all(isinstance(each, int | float | None) for each in values)


def work_differs(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[list[str]]:
    """Rows of the settings that change the work, and of hashes of what was worked on, that are not the same: name, first, second. Those count that both
    reports hold."""
    old, new = ((each.get("details") or {}).get("data") or {} for each in (first, second))
    found = [[name, _words(old[name]), _words(new[name])] for name in sorted(set(old) & set(new)) if old[name] != new[name]]
    return [*_settings_differ(first, second), *found]


def _settings_differ(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[list[str]]:
    one, two = (each.get("settings") or {} for each in (first, second))
    counted = OF_WORK.get(str(first["command"]).split()[-1], "")
    unmeasured = PLACES | LEARNING | RHYTHM | HOW_LONG
    return [
        [key, _words(one[key]["value"]), _words(two[key]["value"])]
        for key in sorted(set(one) & set(two) - unmeasured)
        if one[key]["value"] != two[key]["value"] and key.startswith(counted) and not key.startswith("tracking.")
    ]


def compare(first: Mapping[str, Any], second: Mapping[str, Any], tolerance: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Ratios of the second report's figures to the first's, and the names that only one of them has.

    A rate is compared as it is and seconds the other way round, so that above 1 is always faster. Where a variant has rates its seconds
    are left out: the rates say the same.

    A difference is not decided where the machine can be its cause (`_explained`), and nothing where the settings make other work.

    Args:
        tolerance: share by which a figure may be slower without being a regression.

    Raises:
        UsageError: they measure different things or in different units.
        DataError: a figure is 0 or none.
    """
    actions = [str(each["command"]) for each in (first, second)]
    if actions[0] != actions[1]:
        raise UsageError(f"{actions[0]} and {actions[1]} measure different things", "Compare two reports of the same benchmark.")
    old, new = (_samples(each) for each in (first, second))
    shared = [key for key in old if key in new]
    if not shared:
        units = [", ".join(sorted({unit for _, unit in found})) for found in (old, new)]
        if {name for name, _ in old} & {name for name, _ in new}:
            raise UsageError(
                f"the reports measure in different units: {units[0]} and {units[1]}", "Compare two reports of the same benchmark."
            )
        names = [", ".join(dict.fromkeys(name for name, _ in found)) for found in (old, new)]
        raise UsageError(f"the reports have no variant in common: {names[0]} and {names[1]}", "Measure the same --variants.")
    with_rates = {name for name, unit in shared if unit != "seconds"}
    explained = _explained(first, second)
    rows = [_row(key, old[key], new[key], tolerance, explained) for key in shared if key[1] != "seconds" or key[0] not in with_rates]
    if other := [key for key, *_ in work_differs(first, second)]:
        verdict = f"{OTHER_WORK}: {', '.join(other)}"
        rows = [{**row, "verdict": verdict, "regression": False} for row in rows]
    return rows, [f"{name}, {unit}" for name, unit in (*old, *new) if ((name, unit) in old) != ((name, unit) in new)]


def crowded(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """When other processes took a good part of the CPUs' time, in words; empty where they did not, or where the reports do not say."""
    pairs = zip(("first", "second"), map(_others, (first, second)), strict=True)
    found = [f"{percent(share)} of it during the {name}" for name, share in pairs if share > CROWDED]
    return f"other processes used part of the CPU time, {' and '.join(found)} report" if found else ""


def _explained(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[float, float]:
    """Between which ratios of rates the machine can be the cause.

    Other processes can have taken from either report as much of its speed as they took of the CPUs. Where the fixed loop took r times as long,
    other work may have taken r² times: batches took 1.6 times as long where the loop took 1.4.
    """
    old, new = (_pace(each).get("cpu_seconds") or [1.0] for each in (first, second))
    pace = float(np.median(old) / np.median(new)) ** 2
    low, high = min(1.0, pace) * (1 - _others(second)), max(1.0, pace) / max(0.01, 1 - _others(first))
    return low * (1 - MOMENT), high * (1 + MOMENT)


def _others(document: Mapping[str, Any]) -> float:
    """Share of the CPUs' time in other processes; 0 where the report does not say."""
    return float(_pace(document).get("others") or 0.0)


def _pace(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `Pace.to_details` wrote; empty where the report does not say."""
    return (document.get("details") or {}).get("pace") or {}


def cards_differ(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[list[str]]:
    """Rows of what the machines differ in: figure, first, second. Versions count where both reports hold them."""
    one, two = (each.get("machine") or {} for each in (first, second))
    rows = [[key, _words(one.get(key)), _words(two.get(key))] for key in CARD if one.get(key) != two.get(key)]
    old, new = (each.get("versions") or {} for each in (one, two))
    names = sorted(set(old) | set(new)) if old and new else []
    return rows + [[name, old.get(name, "none"), new.get(name, "none")] for name in names if old.get(name) != new.get(name)]


def _samples(document: Mapping[str, Any]) -> dict[Key, NDArray[np.float64]]:
    found = {}
    for row in document["metrics"]["measurements"]:
        samples = np.array(row.get("samples") or [row["median"]], np.float64)
        if not (np.isfinite(samples) & (samples > 0)).all():
            raise DataError(
                f"{row['name']} has invalid figures in {row['unit']}: {samples.tolist()[:5]}", "Measure it again: ftcli benchmark."
            )
        found[row["name"], row["unit"]] = samples
    return found


def _row(key: Key, old: NDArray[np.float64], new: NDArray[np.float64], tolerance: float, explained: tuple[float, float]) -> dict[str, Any]:
    name, unit = key
    if unit == "seconds":
        old, new = 1 / old, 1 / new
    low, high = _bootstrap(old, new)
    student = difference_interval(old, new, SURE)
    runs = min(len(old), len(new))
    verdict = verdict_of(runs, (low, high), student)
    if (verdict == "faster" and min(low, student[0]) < explained[1]) or (verdict == "slower" and max(high, student[1]) > explained[0]):
        verdict = UNDECIDED
    worst = max(high, student[1] if math.isfinite(student[1]) else high)
    return {
        "name": name,
        "unit": "1/seconds" if unit == "seconds" else unit,
        "median": float(np.median(new) / np.median(old)),
        "low": low,
        "high": high,
        "n": runs,
        "verdict": verdict,
        "regression": verdict == "slower" and worst < 1 - tolerance,
    }


def _bootstrap(old: NDArray[np.float64], new: NDArray[np.float64]) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the ratio of the medians of two samples that are not paired."""
    generator = np.random.default_rng(0)
    medians = [np.median(generator.choice(values, (RESAMPLES, len(values))), axis=1) for values in (old, new)]
    low, high = np.quantile(medians[1] / medians[0], [0.025, 0.975])
    return float(low), float(high)


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
