"""A check's answer in one line: `passed("…", cores=2)`. The runner fills in id and stage."""

from __future__ import annotations

from typing import Any

from ftcli.records import Check, CheckStatus


def passed(summary: str, **evidence: Any) -> Check:
    return _check("pass", summary, "", evidence)


def noted(summary: str, **evidence: Any) -> Check:
    """Worth knowing, nothing to do."""
    return _check("info", summary, "", evidence)


def warned(summary: str, fix: str, **evidence: Any) -> Check:
    return _check("warn", summary, fix, evidence)


def failed(summary: str, fix: str, **evidence: Any) -> Check:
    return _check("fail", summary, fix, evidence)


def _check(status: CheckStatus, summary: str, fix: str, evidence: dict[str, Any]) -> Check:
    return Check("", "", status, summary, evidence, fix)
