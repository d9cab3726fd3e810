"""A check's answer in one line: `passed("…", cores=2)`. The runner fills in id and stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.records import Check, CheckStatus

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe


def passed(summary: str, **evidence: Any) -> Check:
    return _check("pass", summary, "", evidence)


def noted(summary: str, **evidence: Any) -> Check:
    """Worth knowing, nothing to do."""
    return _check("info", summary, "", evidence)


def warned(summary: str, fix: str, **evidence: Any) -> Check:
    return _check("warn", summary, fix, evidence)


def failed(summary: str, fix: str, **evidence: Any) -> Check:
    return _check("fail", summary, fix, evidence)


def collator_fix(probe: Probe) -> str:
    """What to do where the first batch is not what the rows and the task say."""
    name, owner = probe.collator_name, probe.context.plugins.outsider("collator", probe.collator_name)
    if owner is None:
        return f"The collator {name} is ftcli's own: compare the labels of the task, and report it if they are right."
    return f"The collator {name} of plugin {owner!r} is wrong: mend it, or use one of ftcli's."


def _check(status: CheckStatus, summary: str, fix: str, evidence: dict[str, Any]) -> Check:
    return Check("", "", status, summary, evidence, fix)
