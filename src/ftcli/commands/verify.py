"""`ftcli verify`: the checks, on the machine, tokenizer, data, batches and model of the planned run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from ftcli.context import Context
from ftcli.core.probe import Probe
from ftcli.core.report import write_report
from ftcli.core.rules import RANK, chosen, run_checks, worst
from ftcli.errors import UsageError
from ftcli.records import Report, RunStatus

FAIL_ON = {"warn": 1, "fail": 2}


def run(context: Context, stages: tuple[str, ...], level: str, fail_on: str, select: tuple[str, ...], ignore: tuple[str, ...]) -> Report:
    """Run the selected checks; the report's status is "failed" when the worst verdict reaches `fail_on`.

    Raises:
        UsageError: an unknown stage, level, id or threshold, or nothing left to check.
        PluginError: a plugin's check cannot be placed.
        PublishError: the report cannot be written.
    """
    if fail_on not in FAIL_ON:
        raise UsageError(f"there is no threshold {fail_on!r}", f"--fail-on takes {' or '.join(FAIL_ON)}.")
    registry = context.plugins.registry("check")
    kinds = chosen(registry, stages, level, select, ignore)
    probe = Probe(context)
    context.progress.start("verify", len(kinds), "checks")
    checks = run_checks(probe, kinds, registry.owner, lambda check: context.progress.advance(1, check=check.id))
    context.progress.close()
    counts = Counter[str](check.status for check in checks)
    metrics: dict[str, Any] = {f"checks_{status}": counts[status] for status in RANK}
    details: dict[str, Any] = {}
    if rows := probe.ready("shown"):
        details["rows"] = rows
    if (forward := probe.ready("forward")) is not None:
        metrics |= {"first_loss": forward.loss, "expected_first_loss": probe.task.chance_loss(probe.model.config, probe.store)}
        if (gradients := probe.ready("gradients")) is not None:
            metrics["first_grad_norm"] = gradients.total
        details["logits_histogram"] = forward.histogram()
    status: RunStatus = "failed" if worst(checks) >= FAIL_ON[fail_on] else "ok"
    report = context.report("verify", metrics, status=status, checks=checks, details=details)
    return replace(report, paths=write_report(report, context.settings.runtime.report_dir, "verify"))
