"""`ftcli benchmark compare A.json B.json`: whether a later report is worse beyond the noise, for continuous integration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.core.benchmark import report_comparison
from ftcli.core.figures import between, number, quantity
from ftcli.errors import UsageError


def compare_reports(context: Context, files: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Metrics, details, and whether something regressed.

    Raises:
        UsageError: not two files, or they measure different things or in different units.
        DataError: one of them is no report of a benchmark.
    """
    if len(files) != 2:
        raise UsageError(f"benchmark compare takes two reports, {len(files)} are given", "Write: ftcli benchmark compare A.json B.json")
    first, second = (report_comparison.read_report(Path(file)) for file in files)
    rows, alone = report_comparison.compare(first, second, context.settings.benchmark.tolerance)
    if alone:
        context.note(f"only in one report, so not compared: {'; '.join(alone)}")
    cards = report_comparison.cards_differ(first, second)
    if cards:
        context.note(
            "the reports come from different machines or versions: " + "; ".join(f"{key}: {old} and {new}" for key, old, new in cards)
        )
    changed = report_comparison.work_differs(first, second)
    if changed:
        words = "; ".join(f"{key}: {old} and {new}" for key, old, new in changed)
        context.note(f"the reports measured different work: {words}")
    busy = [f"{load:.1f}" for each in (first, second) if (load := (each.get("machine") or {}).get("load_average")) is not None]
    context.note(f"load when they began: {' and '.join(busy)}" if busy else "the reports do not record the load")
    if crowd := report_comparison.crowded(first, second):
        context.note(f"{crowd}: this cannot be told apart from a real difference; measure on an idle machine")
    regressions = [f"{row['name']}, {row['unit']}" for row in rows if row["regression"]]
    metrics = {
        "measurements": [],
        "ratios": rows,
        "regressions": len(regressions),
        "machines_differ": [key for key, *_ in cards],
        "settings_differ": [key for key, *_ in changed],
    }
    head = ["variant", "unit", "second / first", "95 % interval", "n", "verdict"]
    cells = [
        [
            row["name"],
            row["unit"],
            quantity(row["median"], "×"),
            between(row["low"], row["high"], "×"),
            number(row["n"]),
            f"{row['verdict']}: a regression" if row["regression"] else row["verdict"],
        ]
        for row in rows
    ]
    title = f"{len(regressions)} of {len(rows)} figures are worse beyond the noise" + (f": {'; '.join(regressions)}" if regressions else "")
    if changed:
        title = f"not decided: the work differs ({', '.join(key for key, *_ in changed)})"
    return metrics, {"title": title, "table": {"head": head, "rows": cells}, "cards": cards, "changed": changed}, bool(regressions)
