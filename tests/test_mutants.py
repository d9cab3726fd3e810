"""Every cause of the catalogue has a check, and every check that can warn or fail has a test that makes it do so. pytest -s prints which."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from ftcli.core.verify.catalogue import CAUSES, page_of
from ftcli.core.verify.rules import every
from ftcli.pluginmanager import Plugins

FOLDER = Path(__file__).parent
CHECK = re.compile(r"FT\d{3}")
BAD = {"warn", "fail"}
ELSEWHERE = ("test_incident2.py", "test_plan.py", "test_checkpoints.py", "test_engine_real.py", "test_verify.py")


def mutants() -> dict[str, list[str]]:
    """By check the tests that name it and plant a fault: they call `caught`, or compare a status with "warn" or "fail"."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted([*FOLDER.glob("test_checks_*.py"), *(FOLDER / name for name in ELSEWHERE)]):
        if not path.exists():
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                words = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
                calls = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
                if "caught" in calls or BAD & set(words):
                    for check in sorted({word for word in words if CHECK.fullmatch(word)}):
                        found[check].append(f"{path.name}::{node.name}")
    return found


def test_every_cause_has_a_check_and_every_check_a_mutant() -> None:
    kinds, planted = every(Plugins(allow=()).registry("check")), mutants()
    pages = {kind.id: page for kind in kinds if (page := page_of(kind)) is not None}
    for cause, words in CAUSES.items():
        by = [check for check, page in pages.items() if cause in page.causes]
        assert by, f"no check finds {cause}: {words}"
        print(f"{cause:4} {words}")
        for check in by:
            print(f"     {check} {'; '.join(planted.get(check, ['only informs']))}")
    assert [kind.id for kind in kinds if kind.severity != "info" and not planted.get(kind.id)] == []


def test_the_scan_finds_mutants_and_nothing_else() -> None:
    planted = mutants()
    assert "test_checks_data_texts.py::test_texts_that_do_not_end_with_eos_warn" in planted["FT210"]
    assert not any("quiet" in name or "sound" in name for name in planted["FT208"])
