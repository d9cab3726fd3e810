"""Verdicts as JUnit XML."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from ftcli.core.verify.junit import junit
from ftcli.records import Check, Report

CHECKS = (
    Check("FT001", "env", "pass", "2 cores", {"cores": 2}, severity="info", page="docs/checks/FT001.md", seconds=0.25),
    Check("FT102", "tokenizer", "warn", "no PAD", {"rows": [3, 7]}, "Add one.", severity="fail", seconds=0.5),
    Check("FT103", "tokenizer", "skipped", "no --dataset"),
    Check("FT301", "batch", "fail", "broken \x00 & <b> \ud800", {"text": "한국어 \x1b]"}, "Mend & go."),
    Check("XY001", "batch", "error", "the check of plugin 'mine' broke"),
)


def _tree(fail_on: int) -> ET.Element:
    return ET.fromstring(junit(Report("verify", "ok", 1.5, {}, checks=CHECKS), fail_on).encode())


def test_stages_are_suites_and_checks_are_cases_in_order() -> None:
    root = _tree(2)
    assert [suite.get("name") for suite in root] == ["env", "tokenizer", "batch"]
    assert [case.get("name") for case in root.iter("testcase")] == [check.id for check in CHECKS]
    assert root.get("tests") == "5"
    assert [suite.get("time") for suite in root] == ["0.250", "0.500", "0.000"]


@pytest.mark.parametrize(("fail_on", "failed"), [(1, ["FT102", "FT301"]), (2, ["FT301"])])
def test_a_warning_is_a_failure_where_it_fails_the_run(fail_on: int, failed: list[str]) -> None:
    root = _tree(fail_on)
    assert [case.get("name") for case in root.iter("testcase") if case.find("failure") is not None] == failed
    assert root.get("failures") == str(len(failed))
    assert (root.get("errors"), root.get("skipped")) == ("1", "1")
    assert [case.get("name") for case in root.iter("testcase") if case.find("error") is not None] == ["XY001"]


def test_severity_evidence_and_fix_are_there_and_no_character_breaks_the_document() -> None:
    cases = {case.get("name"): case for case in _tree(2).iter("testcase")}
    properties = {each.get("name"): each.get("value") for each in cases["FT001"].iter("property")}
    assert properties == {"status": "pass", "severity": "info", "page": "docs/checks/FT001.md"}
    assert "rows: [3, 7]" in (cases["FT102"].findtext("system-out") or "")
    failure = cases["FT301"].find("failure")
    assert failure is not None
    assert failure.get("message") == "broken \\x00 & <b> \\ud800"
    assert failure.text == "Mend & go."
    assert "한국어" in (cases["FT301"].findtext("system-out") or "")


def test_secrets_of_the_environment_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    text = junit(Report("verify", "ok", 1.5, {}, checks=(Check("A", "env", "warn", "hf_very_secret", {"a": "hf_very_secret"}, "b"),)), 1)
    assert "very_secret" not in text
