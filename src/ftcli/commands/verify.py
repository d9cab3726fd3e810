"""`ftcli verify`: the checks, on the machine, tokenizer, data, batches and model of the planned run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.contracts import CheckKind
from ftcli.core.publishing.fetched_set import opened
from ftcli.core.reports.document import check_document, write_document
from ftcli.core.reports.report import filed, rendered
from ftcli.core.tokenizer.without_torch import Light, without_torch
from ftcli.core.verify.catalogue import page_of
from ftcli.core.verify.mend import Mended, mend, proposed
from ftcli.core.verify.pages import check_page, path_of
from ftcli.core.verify.probe import Probe
from ftcli.core.verify.rules import QUICK_STAGES, RANK, chosen, every, run_checks, worst
from ftcli.errors import UsageError
from ftcli.records import Check, Report, RunStatus
from ftcli.registry import Registry

FAIL_ON = {"warn": 1, "error": 2, "fail": 2}
FORMATS = ("table", "json", "junit", "html")
MENDED = "mended"
"""Folder for copies that --fix makes, below that of the reports."""


def run(
    context: Context,
    stages: tuple[str, ...],
    level: str,
    fail_on: str,
    select: tuple[str, ...],
    ignore: tuple[str, ...] = (),
    *,
    stage: tuple[str, ...] = (),
    format: str = "table",  # noqa: A002 - the option's name
    output: Path | None = None,
    fix: bool = False,
    explain: str | None = None,
) -> Report:
    """Run the selected checks; the report's status is "failed" when the worst verdict reaches `fail_on`.

    Args:
        stage: more stages.
        ignore: ids or their beginnings, beside those of `train.ignore_checks`.
        format: "junit" and "html" are printed in place of the table, or written to `output`.
        fix: make safe edits in copies and verify these; the status stays that of what was given.
        explain: the id of a check whose page is printed; nothing is checked then.

    Raises:
        UsageError: an unknown stage, level, id, format or threshold, or nothing left to check.
        PluginError: a plugin's check cannot be placed.
        PublishError: the report, or a copy, cannot be written.
    """
    if fail_on not in FAIL_ON:
        raise UsageError(f"there is no threshold {fail_on!r}", "--fail-on takes warn or error (or fail, which is the same as error).")
    if format not in FORMATS:
        raise UsageError(f"there is no format {format!r}", f"--format takes {', '.join(FORMATS)}.")
    if output is not None and format == "table":
        raise UsageError("--output does not work with the format table", "Add --format junit, html or json; the table goes to stdout.")
    registry = context.plugins.registry("check")
    if explain is not None:
        return context.report("verify", {}, details={"lines": _explained(registry, explain)})
    kinds = chosen(registry, (*stage, *stages), level, select, (*ignore, *(context.settings.train.ignore_checks or ())))
    if output is not None:
        check_document(output, read=context.settings.dataset.sources or ())
    context = opened(context)
    with without_torch(context.cache_dir) as light:
        light.hides = light.hides and all(kind.stage in QUICK_STAGES for kind in kinds)
        first = look(context, kinds, registry, light)
        mended, last = _mend(context, first, kinds, registry, light) if fix else ([], first)
    details = {**first.details, "pages": _pages(kinds, first.checks)}
    if fix:
        details["mended"] = _told(mended, first.checks, last.checks)
    status: RunStatus = "failed" if worst(first.checks) >= FAIL_ON[fail_on] else "ok"
    report = context.report("verify", first.metrics, status=status, checks=first.checks, details=details)
    report = filed(report, context.settings.runtime.report_dir, "verify", context.note)
    return _formatted(report, format, output, FAIL_ON[fail_on])


@dataclass(frozen=True, slots=True)
class Look:
    probe: Probe
    checks: tuple[Check, ...]
    metrics: dict[str, Any]
    details: dict[str, Any]


def look(context: Context, kinds: Sequence[CheckKind], registry: Registry[CheckKind], light: Light) -> Look:
    """Run the checks once, and gather what they built."""
    probe = Probe(context, light)
    context.progress.start("verify", len(kinds), "checks")
    found = run_checks(probe, kinds, registry.owner, lambda check: context.progress.advance(1, check=check.id))
    context.progress.close()
    own = {plugin.name for plugin in context.plugins.describe() if plugin.origin == "built-in"}
    pages = {
        kind.id: path_of(kind.id) if registry.owner(kind.id) in own else f"ftcli verify --explain {kind.id}"
        for kind in kinds
        if page_of(kind) is not None
    }
    checks = tuple(replace(check, page=pages.get(check.id, "")) for check in found)
    counts = Counter[str](check.status for check in checks)
    metrics: dict[str, Any] = {f"checks_{status}": counts[status] for status in RANK}
    details: dict[str, Any] = {}
    if rows := probe.ready("shown"):
        details["rows"] = rows
    if (forward := probe.ready("forward")) is not None:
        expected = forward.expected_loss(probe.task.chance_loss(probe.model.config, probe.store))
        metrics |= {"first_loss": forward.loss, "expected_first_loss": expected}
        if (gradients := probe.ready("gradients")) is not None:
            metrics["first_grad_norm"] = gradients.total
        details["logits_histogram"] = forward.histogram()
    return Look(probe, checks, metrics, details)


def _mend(
    context: Context, first: Look, kinds: Sequence[CheckKind], registry: Registry[CheckKind], light: Light
) -> tuple[list[Mended], Look]:
    """Copies with safe edits, and the checks run on them: the tokenizer first, because the configuration follows it."""
    mended: list[Mended] = []
    last = first
    for part in ("tokenizer", "model"):
        edits = [edit for edit in proposed(last.probe, kinds, last.checks, registry.owner) if edit.part == part]
        made = mend(context, edits, context.settings.runtime.report_dir / MENDED)
        if made:
            mended += made
            last = look(_using(context, mended), kinds, registry, light)
    return mended, last


def _pages(kinds: Sequence[CheckKind], checks: Sequence[Check]) -> dict[str, Any]:
    """What is written about the checks that want something done, for the HTML page."""
    bad = {check.id for check in checks if RANK[check.status]}
    written = {kind.id: page for kind in kinds if kind.id in bad and (page := page_of(kind)) is not None}
    return {name: {"symptom": page.symptom, "cause": page.cause, "found": page.found, "fix": page.fix} for name, page in written.items()}


def _using(context: Context, mended: Sequence[Mended]) -> Context:
    """The same run with the copies."""
    settings = context.settings
    for each in mended:
        for key, value in each.settings.items():
            section, _, name = key.partition(".")
            changed = getattr(settings, section).model_copy(update={name: Path(value) if key == "model.config" else value})
            settings = settings.model_copy(update={section: changed})
    return context.with_settings(settings)


def _told(mended: Sequence[Mended], before: Sequence[Check], after: Sequence[Check]) -> dict[str, Any]:
    """What --fix did, for the report."""
    then = {check.id: check for check in before}
    changes = [(then[check.id], check) for check in after if check.status != then[check.id].status]
    return {
        "copies": [
            {
                "part": each.part,
                "source": str(each.source),
                "copy": str(each.copy),
                "use": each.settings,
                "reasons": {edit.key: edit.reason for edit in each.edits},
                "diff": each.diff,
            }
            for each in mended
        ],
        "changed": [
            {"id": new.id, "before": old.status, "after": new.status, "summary": new.summary, "fix": new.fix} for old, new in changes
        ],
        "left": [check.id for check in after if check.status in {"warn", "fail", "error"}],
    }


def _formatted(report: Report, kind: str, output: Path | None, fail_on: int) -> Report:
    """The report with a document in place of the table, or with the file that was written."""
    if kind == "table" or (kind == "json" and output is None):
        return report
    if kind == "junit":
        from ftcli.core.verify.junit import junit

        text = junit(report, fail_on)
    else:
        text = (
            Path(report.paths[kind]).read_text(encoding="utf-8")
            if kind in report.paths
            else rendered(report, "html" if kind == "html" else "json")
        )
    if output is None:
        return replace(report, details={**report.details, "lines": text.splitlines()})
    write_document(output, text)
    return replace(report, paths={**report.paths, kind: str(output)})


def _explained(registry: Registry[CheckKind], name: str) -> list[str]:
    kinds: Mapping[str, CheckKind] = {kind.id: kind for kind in every(registry)}
    name = name if name in kinds else name.upper()
    if name not in kinds:
        raise UsageError(f"there is no check {name!r}", f"Ids: {', '.join(kinds)}.")
    page = page_of(kinds[name])
    if page is None:
        owner = registry.owner(name)
        raise UsageError(f"plugin {owner!r} has no page for its check {name}", "Ask its author for a page (CheckKind.page).")
    return check_page(kinds[name], page).splitlines()
