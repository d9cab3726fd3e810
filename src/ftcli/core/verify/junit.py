"""Verdicts as JUnit XML, for what shows test results: a suite for each stage, a case for each check."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from ftcli.core.verify.rules import RANK
from ftcli.masking import masked
from ftcli.records import STAGES, Check, Report, to_json

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report, fail_on: int) -> str:
    """The document.

    Args:
        fail_on: the rank of `ftcli.core.verify.rules.RANK` from which a verdict is a failure; a warning below it stands in `system-out`.
    """
    root = ET.Element("testsuites", {"name": "ftcli verify", "time": f"{report.seconds:.3f}", **_counts(report.checks, fail_on)})
    stages = dict.fromkeys([*STAGES, *(check.stage for check in report.checks)])
    for stage in stages:
        if checks := [check for check in report.checks if check.stage == stage]:
            suite = ET.SubElement(root, "testsuite", {"name": stage, "time": f"{_seconds(checks):.3f}", **_counts(checks, fail_on)})
            for check in checks:
                _case(suite, check, fail_on)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, check: Check, fail_on: int) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": f"verify.{check.stage}", "name": check.id, "time": f"{check.seconds or 0:.3f}"})
    properties = ET.SubElement(case, "properties")
    for name, value in (("status", check.status), ("severity", check.severity), ("page", check.page)):
        if value:
            ET.SubElement(properties, "property", {"name": name, "value": value})
    outcome = _outcome(check, fail_on)
    if outcome:
        attributes = {"message": _text(check.summary)} | ({"type": check.status} if outcome != "skipped" else {})
        ET.SubElement(case, outcome, attributes).text = _text(check.fix)
    lines = [f"{check.status}: {check.summary}", *([f"fix: {check.fix}"] if check.fix else [])]
    lines += [f"{name}: {json.dumps(to_json(value), ensure_ascii=False)}" for name, value in check.evidence.items()]
    ET.SubElement(case, "system-out").text = _text("\n".join(lines))


def _outcome(check: Check, fail_on: int) -> str:
    if check.status in {"skipped", "error"}:
        return check.status
    return "failure" if RANK[check.status] >= fail_on else ""


def _counts(checks: Sequence[Check], fail_on: int) -> dict[str, str]:
    outcomes = [_outcome(check, fail_on) for check in checks]
    counts = {
        "tests": len(checks),
        "failures": outcomes.count("failure"),
        "errors": outcomes.count("error"),
        "skipped": outcomes.count("skipped"),
    }
    return {name: str(count) for name, count in counts.items()}


def _seconds(checks: Sequence[Check]) -> float:
    return sum(check.seconds or 0.0 for check in checks)


def _text(text: str) -> str:
    """Without secrets and without characters that XML cannot hold, which are escaped."""
    return _NOT_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), masked(text))
