"""The report of a command as one HTML file that needs nothing else, and as JSON.

`Report.details` holds what is behind plots and tables; every key is optional and its part is left out without it:

tokenize
    lengths         {"edges": n + 1 ints, "counts": n ints}: rows by tokens
    max_length      int, drawn as a line across the lengths
    labels          {"names": [...], "counts": [...]}
    splits          {"train": {"rows": int, "tokens": int}, ...}
    sources         [{"path", "rows_read", "rows_written", "rows_rejected", "rows_filtered"}, ...]: 200 files at most, those that lost rows first
    further_sources {"files", "rows_read", "rows_written", "rows_rejected", "rows_filtered"}: of the other files together
    rating          "very fast (23,184 examples/s; bands of …)"
    verdict         "23,184 examples/s: very fast; 71 % of the engine alone, …; the engine is the limit": stands for the rating where it is
    time            {"read": seconds, "encode", "write", "wait"}: of a worker, on average
    floor           `ftcli.core.benchmark.floor.Floor` as a dict: engine and disk alone, measured after the work
verify
    rows            [{"row": 3, "text": decoded, "label": "x", "tokens": 212, "ids": first few}, ...]: the audited first batch
    logits_histogram  {"edges", "counts"}
    pages           {"FT403": {"symptom", "cause", "found", "fix"}, ...}: of the checks that want something done
    mended          {"copies": [{"part", "source", "copy", "use", "reasons", "diff"}], "changed": [{"id", "before", "after", "summary", "fix"}], "left": [ids]}
train
    log             [{"step", "epoch", "loss", "grad_norm", "learning_rate", "eval_loss", "eval_accuracy", "eval_micro_f1", …}, ...]; unknown: None or absent
    expected_first_loss  float; `metrics["expected_first_loss"]` stands in
    time            {"data_wait": seconds, "forward": seconds, ..., "other": seconds}: parts that took any
    padding         {"real tokens": slots, "padding": slots}
    gpu             {name: figure or words, ...}
benchmark
    none: metrics["measurements"] holds `Measurement` records, metrics["ratios"] = [{"name", "median", "low", "high", "verdict"}, ...]
    with the verdict "faster", "slower" or "no difference"
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ftcli.core import figures
from ftcli.core.figures import number
from ftcli.core.reports import bars
from ftcli.core.reports.document import write_document
from ftcli.core.reports.headline import headline, lede
from ftcli.core.reports.plot import Key, Plot
from ftcli.core.reports.tables import Table, tables
from ftcli.core.reports.values import evidence, exact
from ftcli.errors import PublishError
from ftcli.masking import masked, masked_json
from ftcli.records import STAGES, Report, to_json

if TYPE_CHECKING:
    from ftcli.core.reports import plots
    from ftcli.core.reports.plots import Fall

PAGE = "report.html.jinja"
FALLS = "Time of a whole run as a multiple of the base's, adding the factors one by one, largest first."
NOISE = "alone within the noise: no difference was found"
STAGE_NAMES = {"env": "environment", "steps": "first steps"}


def write_report(report: Report, directory: Path, stem: str = "report") -> dict[str, str]:
    """Write `<stem>.json` and `<stem>.html`, each whole or not at all; the paths are in the JSON document as well.

    Raises:
        PublishError: the directory cannot be written.
    """
    paths = {"html": str(directory / f"{stem}.html"), "json": str(directory / f"{stem}.json")}
    report = replace(report, paths={**report.paths, **paths})
    write_document(Path(paths["json"]), rendered(report, "json"))  # first: the page is made from it and can be made again
    write_document(Path(paths["html"]), rendered(report, "html"))
    return paths


def rendered(report: Report, kind: Literal["json", "html"]) -> str:
    """The document as it is written."""
    if kind == "html":
        return render_html(report, datetime.now().astimezone())
    return masked_json(to_json(report), ensure_ascii=False, indent=2, allow_nan=False)


def filed(report: Report, directory: Path, stem: str, note: Callable[[str], None]) -> Report:
    """The report with the paths of what `write_report` wrote. Where it cannot be written the figures are what was asked for: that is noted."""
    try:
        return replace(report, paths={**report.paths, **write_report(report, directory, stem)})
    except PublishError as error:
        words = f"no report: {error.message}"
        note(words)
        return replace(report, notes=(*report.notes, masked(words)))


def get_ready() -> None:
    """Import and compile what a page takes, 0.05 s, while something else is waited for."""
    from ftcli.core.reports.page import template

    template(PAGE)


def render_html(report: Report, when: datetime | None = None) -> str:
    """The page; the same report and time give the same bytes."""
    from ftcli.core.reports.page import render_page

    doc = to_json(report)
    metrics, details = doc["metrics"], doc["details"]
    settings = [(key, _setting(item["value"]), item["origin"]) for key, item in sorted(doc["settings"].items())]
    return render_page(
        PAGE,
        doc=doc,
        when=when,
        lede=lede(doc),
        cards=headline(doc),
        rating=details.get("verdict") or details.get("rating"),
        stages=_stages(doc["checks"]),
        pages=details.get("pages") or {},
        plots=_plots(metrics, details),
        tables=tables(metrics, details),
        machine=_machine(doc["machine"]),
        gpu=[(key, evidence(value), "") for key, value in (details.get("gpu") or {}).items()],
        chosen=Table("Settings", ("Setting", "Value", "Origin"), "cct", [row for row in settings if row[2] != "default"], stacked=True),
        defaults=Table("Defaults", ("Setting", "Value"), "cc", [row[:2] for row in settings if row[2] == "default"], folded=True),
        plugins=_plugins(doc["plugins"]),
        files=[(name, path, "") for name, path in doc["paths"].items()],
        scalars=Table("All figures", ("Metric", "Value"), "cn", _scalars(metrics), folded=True),
    )


def _plots(metrics: Mapping[str, Any], details: Mapping[str, Any]) -> list[Plot]:
    """Every plot whose figures are there."""
    found: list[Plot] = []
    if lengths := _known(details.get("lengths")):
        found.append(bars.histogram("lengths", "Tokens per row", lengths, ("tokens", "rows"), limit=details.get("max_length")))
    if (labels := details.get("labels")) and labels["names"]:
        ranked = sorted(zip(labels["counts"], labels["names"], strict=True), key=lambda pair: -pair[0])
        (most, first), (least, last) = ranked[0], ranked[-1]
        caption = f"{number(len(ranked))} labels, from {first} ({number(most)} rows) to {last} ({number(least)} rows)."
        shown = range(0, len(ranked), 1 + len(ranked) // 1000)  # a plot has no more pixels than that
        steps = {"edges": [rank + 0.5 for rank in (*shown, len(ranked))], "counts": [ranked[rank][0] for rank in shown]}
        found.append(bars.histogram("labels", "Rows per label", steps, ("labels, by size", "rows"), caption=caption))
    if logits := _known(details.get("logits_histogram")):
        found.append(bars.histogram("logits", "Logits of the first batch", logits, ("logit", "values"), whole=False))
    if details.get("log"):
        found += _training_plots(metrics, details)
    for name, title, unit in (("time", "Where the time went", "s"), ("padding", "What the batches contained", "tokens")):
        if parts := {key.replace("_", " "): value for key, value in (details.get(name) or {}).items() if value is not None}:
            found.append(bars.shares(name, title, parts, unit))
    return found + _compared_plots(metrics)


def _compared_plots(metrics: Mapping[str, Any]) -> list[Plot]:
    if not any(metrics.get(key) for key in ("factors", "measurements", "ratios")):
        return []  # matplotlib takes 1 s of CPU to import
    from ftcli.core.reports import plots

    found: list[Plot] = []
    if metrics.get("factors"):
        falls = _falls(metrics, plots.Fall)
        legend = (Key("muted", NOISE),) if any(not fall.sure for fall in falls) else ()
        found.append(plots.waterfall("From the base to the new configuration", falls, FALLS, legend))
    measured = [row for row in metrics.get("measurements") or () if None not in (row["median"], row["low"], row["high"])]
    for index, unit in enumerate(dict.fromkeys(row["unit"] for row in measured)):
        rows = [row for row in measured if row["unit"] == unit]
        caption = "Mark: median. Bar: 95 % interval of the median. Faint dots: single runs."
        found.append(plots.intervals(f"measured-{index}", f"Measured in {'seconds' if unit == 's' else unit}", rows, unit, caption=caption))
    if ratios := [row for row in metrics.get("ratios") or () if None not in (row["median"], row["low"], row["high"])]:
        colours = {"faster": "good", "slower": "bad"}
        rows = [{**row, "colour": colours.get(row["verdict"], "muted")} for row in ratios]
        caption = "The dashed line is 1: no difference. An interval that includes it shows no difference."
        found.append(plots.intervals("ratios", "Compared", rows, "×", caption=caption, level=1.0))
    return found


def _falls(metrics: Mapping[str, Any], fall: type[Fall]) -> list[Fall]:
    """Bars of the waterfall: the base, every factor whose cumulative time was measured, the new configuration."""
    steps, at = [fall("base", 0.0, 1.0)], 1.0
    for factor in metrics["factors"]:
        if (reached := factor["cumulative"]["median"]) is not None:
            sure = bool(factor.get("counted")) or factor["alone"]["verdict"] in {"faster", "slower"}
            steps.append(fall(factor["name"], at, reached, sure))
            at = reached
    return [*steps, fall("new", 0.0, metrics["total"]["median"] or at)]


def _known(data: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A histogram without gaps, or None."""
    return data if data and None not in (*data["edges"], *data["counts"]) else None


def _training_plots(metrics: Mapping[str, Any], details: Mapping[str, Any]) -> list[Plot]:
    from ftcli.core.reports import plots

    log: list[Mapping[str, Any]] = details.get("log") or []

    def curve(key: str, label: str, colour: str, *, marks: bool = False) -> list[plots.Curve]:
        known = [row for row in log if row.get(key) is not None]
        return [plots.Curve(label, colour, [row["step"] for row in known], [row[key] for row in known], marks)] if known else []

    def level(label: str, value: float | None) -> plots.Level | None:
        return None if value is None else plots.Level(label, value)

    expected = details.get("expected_first_loss", metrics.get("expected_first_loss"))
    loss = curve("loss", "training loss", "s1") + curve("eval_loss", "held-out loss", "s2", marks=True)
    accuracy = curve("eval_accuracy", "held-out accuracy", "s3", marks=True)
    chance = level("chance", metrics.get("chance_accuracy"))
    norm, rate = curve("grad_norm", "gradient norm", "s4"), curve("learning_rate", "learning rate", "s5")
    found = []
    if loss:
        found.append(plots.curves("loss", "Loss", loss, level("expected first loss", expected), noisy=True, span="full"))
    if accuracy:
        found.append(plots.curves("accuracy", "Held-out accuracy", accuracy, chance, unit="%", span="full"))
    if shares := curve("eval_micro_f1", "micro F1", "s3", marks=True) + curve("eval_exact_match", "exact match", "s2", marks=True):
        found.append(plots.curves("shares", "Held-out labels", shares, unit="%", span="full"))
    if correlation := curve("eval_pearson", "Pearson correlation", "s3", marks=True):
        found.append(plots.curves("correlation", "Held-out correlation", correlation, span="full"))
    if norm:
        found.append(plots.curves("norm", "Gradient norm before clipping", norm, noisy=True))
    if rate:
        found.append(plots.curves("rate", "Learning rate", rate))
    return found


def _stages(checks: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Checks by stage, in the order of the pipeline, then any other."""
    names = dict.fromkeys(chain(STAGES, (check["stage"] for check in checks)))
    stages = [(STAGE_NAMES.get(name, name), [check for check in checks if check["stage"] == name]) for name in names]
    return [(name, found) for name, found in stages if found]


def _machine(machine: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    """Label, figure and how it was found."""
    if machine is None:
        return []
    gpus = "; ".join(f"{gpu['name']} ({figures.memory(gpu['memory_bytes'] or None)})" for gpu in machine["gpus"])
    lines: dict[str, tuple[str, str]] = {
        "cores": ("Cores", number(machine["cores"])),
        "memory_bytes": ("Memory", figures.memory(machine["memory_bytes"])),
        "memory_available_bytes": ("Memory available", figures.memory(machine["memory_available_bytes"])),
        "gpus": ("GPUs", gpus or "none"),
        "cpu_model": ("Processor", machine["cpu_model"]),
        "cpu_flags": ("Processor flags", ", ".join(machine["cpu_flags"]) or "none that matter"),
        "disk_kind": ("Disk", machine["disk_kind"]),
        "disk_free_bytes": ("Disk free", figures.size(machine["disk_free_bytes"])),
        "load_average": ("Load average", number(machine["load_average"])),
        "platform": ("Platform", machine["platform"]),
        "python": ("Python", machine["python"]),
        "versions": ("Libraries", ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items()) or "unknown"),
    }
    return [(label, value, machine["how"].get(key, "")) for key, (label, value) in lines.items()]


def _plugins(plugins: Sequence[Mapping[str, Any]]) -> Table:
    rows = [[plugin["name"], plugin["version"], plugin["origin"], ", ".join(plugin["hooks"]), plugin["file_hash"]] for plugin in plugins]
    return Table("Plugins", ("Plugin", "Version", "Origin", "Hooks", "Hash"), "tttcc", rows, folded=True, stacked=True)


def _scalars(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, exact(value)) for name, value in metrics.items() if not isinstance(value, (list, dict))]


def _setting(value: Any) -> str:
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
