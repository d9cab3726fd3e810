"""The tables of a report's page, made of its metrics and details."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftcli.core.figures import between, number, percent, quantity
from ftcli.records import to_json

LABELS_SHOWN = 500
ALONE = (
    ("Engine, tokens", "engine_tokens_per_second", "tokens/s"),
    ("Engine, text", "engine_text_mb_per_second", "MB/s"),
    ("Disk, writing with fsync", "disk_write_mb_per_second", "MB/s"),
    ("Disk, reading", "disk_read_mb_per_second", "MB/s"),
)
"""Rows of the table of `details["floor"]`: label, key, unit."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are formatted already; `kinds` has one letter a column: n(umber), t(ext), c(ode)."""

    title: str
    head: tuple[str, ...]
    kinds: str
    rows: Sequence[Sequence[str]]
    folded: bool = False
    stacked: bool = False
    """On a phone a row becomes a block with one line a cell, instead of a table that scrolls."""
    note: str = ""


def tables(metrics: Mapping[str, Any], details: Mapping[str, Any]) -> list[Table]:
    found: list[Table] = []
    if measurements := metrics.get("measurements"):
        bounds = ("median", "low", "high")
        rows = [[row["name"], *(quantity(row[key], row["unit"]) for key in bounds), number(row["n"])] for row in measurements]
        found.append(Table("Measurements", ("Name", "Median", "Low", "High", "Runs"), "tnnnn", rows, stacked=True))
    if ratios := metrics.get("ratios"):
        rows = [[row["name"], *(quantity(row[key], "×") for key in ("median", "low", "high")), row["verdict"]] for row in ratios]
        found.append(Table("Comparisons", ("Name", "Ratio", "Low", "High", "Verdict"), "tnnnt", rows, stacked=True))
    if limits := metrics.get("limits"):
        rows = [
            [row["name"], quantity(row["reached"], row["unit"]), quantity(row["best"], row["unit"]), percent(row["share"]), row["what"]]
            for row in limits
        ]
        titles = ("Name", "Reached", "Best here", "Share", "How the best was measured")
        note = "The best this machine can do, measured after the runs in the same process."
        found.append(Table("Against the limit", titles, "tnnnt", rows, stacked=True, note=note))
    if metrics.get("factors"):
        head, cells = factor_rows(metrics)
        note = (
            "Ratios of the time of a whole run; above 1 is slower. Alone: the base plus this one factor of the new configuration. Taken back: the new configuration "
            "with and without it. Share: of the total, on a log scale, the mean of both. Counted: computed from the number of texts, not timed."
        )
        found.append(Table("Where the difference comes from", head, "tnnnnt", cells, stacked=True, note=note))
        settings = [
            [key, _value(factor["base"].get(key)), _value(factor["new"].get(key)), factor["name"]]
            for factor in metrics["factors"]
            for key in factor["base"]
        ]
        settings += [
            [each["setting"], _value(each["base"]), _value(each["new"]), f"not measured: {each['why']}"] for each in metrics["unmeasured"]
        ]
        found.append(Table("What differs", ("Setting", "Base", "New", "Factor"), "ccct", settings, stacked=True))
    if metrics.get("interactions"):
        rows = [[" with ".join(each["pair"]), *_effect(each), each["verdict"]] for each in metrics["interactions"]]
        note = "Time with both over the product of each alone; 1 means they do not interact."
        found.append(Table("Interactions", ("Pair", "Ratio", "95 % interval", "Verdict"), "tnnt", rows, stacked=True, note=note))
    if cards := details.get("cards"):
        found.append(Table("The machines differ", ("What", "First", "Second"), "ttt", cards, stacked=True))
    if changed := details.get("changed"):
        found.append(Table("The work differs", ("Setting", "First", "Second"), "ccc", changed, stacked=True))
    if floor := details.get("floor"):
        note = f"Measured after the work: the engine with {quantity(floor['workers'], 'workers')} in parallel on rows in memory, the disk in the output's folder."
        rows = [[label, quantity(floor[key], unit)] for label, key, unit in ALONE]
        found.append(Table("This machine alone", ("What", "Rate"), "tn", rows, note=note))
    if confusion := details.get("confusion"):
        rows = [
            [
                one["true"] or "(not set)",
                one["predicted"] or "(not predicted)",
                number(one["rows"]),
                percent(one["share"]),
                one["example"] or "",
            ]
            for one in confusion["largest"]
        ]
        note = "Held-out rows of the first label that were predicted as the second; the share is of the first label's rows."
        if any(one["true"] is None or one["predicted"] is None for one in confusion["largest"]):
            note = "Held-out rows where a label was missed, as a share of the rows that have it; or wrongly predicted, as a share of the rows it was predicted for."
        found.append(
            Table("Largest confusions", ("Label", "Predicted", "Rows", "Share", "Example"), "ttnnt", rows, stacked=True, note=note)
        )
        rows = [
            [one["label"], number(one["rows"]), percent(one["recall"]), percent(one["precision"]), percent(one["f1"])]
            for one in confusion["classes"][:LABELS_SHOWN]
        ]
        found.append(Table("Labels with the lowest recall", ("Label", "Rows", "Recall", "Precision", "F1"), "tnnnn", rows))
    if splits := details.get("splits"):
        rows = [[name, number(split.get("rows")), number(split.get("tokens"))] for name, split in splits.items()]
        found.append(Table("Splits", ("Split", "Rows", "Tokens"), "tnn", rows))
    if sources := details.get("sources"):
        keys = ("rows_read", "rows_written", "rows_rejected", "rows_filtered")
        rows = [[source["path"], *(number(source.get(key)) for key in keys)] for source in sources]
        note = _further(details.get("further_sources"))
        found.append(Table("Sources", ("File", "Read", "Written", "Rejected", "Filtered"), "cnnnn", rows, note=note))
    if labels := details.get("labels"):
        pairs = list(zip(labels["names"], labels["counts"], strict=True))
        rows = [[str(name), number(count)] for name, count in pairs[:LABELS_SHOWN]]
        note = f"The first {LABELS_SHOWN} of {number(len(pairs))}." if len(pairs) > LABELS_SHOWN else ""
        found.append(Table("Labels", ("Label", "Rows"), "tn", rows, folded=True, note=note))
    if mended := details.get("mended"):
        copies = [[copy["source"], copy["copy"], copy["diff"]] for copy in mended["copies"]]
        changed = [[each["id"], each["before"], each["after"], each["summary"]] for each in mended["changed"]]
        found.append(Table("Fixed in a copy", ("Folder", "Copy", "Difference"), "ctt", copies, stacked=True))
        found.append(Table("The copy, verified again", ("Check", "Before", "After", "Verdict"), "cttt", changed, stacked=True))
    if audited := details.get("rows"):
        more = [key for key in ("mask", "positions", "targets") if any(key in row for row in audited)]
        rows = []
        for row in audited:
            ids = " ".join(map(str, row.get("ids", ())))
            added = [str(row.get(key, "")) for key in more]
            rows.append([number(row.get("row")), number(row.get("tokens")), str(row.get("label", "")), row["text"], ids, *added])
        note = "Decoded from the ids of the first batch: exactly what the model gets."
        if more:
            note += " ‖ separates packed documents; mask, positions and targets are what the collator added, run-length encoded (15×1: fifteen ones)."
        head = ("Row", "Tokens", "Label", "Text", "First ids", *(key.capitalize() for key in more))
        found.append(Table("The first batch, decoded", head, "nnttc" + "c" * len(more), rows, stacked=True, note=note))
    return found


def _further(counts: Mapping[str, int] | None) -> str:
    """What to say of the files that have no row of their own."""
    if not counts:
        return ""
    read, written, rejected, filtered = (number(counts[f"rows_{name}"]) for name in ("read", "written", "rejected", "filtered"))
    files = f"Files that lost rows come first. {number(counts['files'])} further files"
    if read == written:
        return f"{files}, all of whose rows were written: {written}."
    return f"{files}: {read} rows read, {written} written, {rejected} rejected, {filtered} filtered."


def factor_rows(metrics: Mapping[str, Any]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Head and rows of the table of `benchmark attribute`, for the page and for the terminal."""
    head = ("Factor", "Alone", "Taken back", "Cumulative", "Share", "Verdict")
    rows = []
    for each in metrics["factors"]:
        counted = each.get("counted")
        cells = [" ".join(_effect(each[key])[: 1 if counted else 2]) for key in ("alone", "taken_back")]
        verdict = "counted" if counted else each["alone"]["verdict"]
        rows.append([each["name"], *cells, quantity(each["cumulative"]["median"], "×"), _share(each["share"]), verdict])
    rest, total = metrics["unexplained"], metrics["total"]
    rows.append(["unexplained", " ".join(_effect(rest)), "", "", _share(rest["share"]), rest["verdict"]])
    rows.append(["total", " ".join(_effect(total)), "", quantity(total["median"], "×"), "", total["verdict"]])
    return head, rows


def _effect(found: Mapping[str, Any]) -> list[str]:
    """Ratio, and its interval in brackets."""
    if found["median"] is None:
        return ["", ""]
    return [quantity(found["median"], "×"), f"({between(found['low'], found['high'], '×')})"]


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)


def _value(value: Any) -> str:
    return "unset" if value is None else value if isinstance(value, str) else json.dumps(to_json(value), ensure_ascii=False)
