"""What is written about the checks: every built-in one has a page, every cause has a check, and a plugin brings its own text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from docpages import DOCS, anchors, links
from ftcli import testing
from ftcli.contracts import CheckKind, Page
from ftcli.core.verify.catalogue import CAUSES, SYMPTOMS, page_of, read_page
from ftcli.core.verify.pages import check_page, index_page, loss_entries
from ftcli.core.verify.rules import every
from ftcli.core.verify.verdict import passed
from ftcli.errors import PluginError
from ftcli.pluginmanager import Plugins

KINDS = every(Plugins(allow=()).registry("check"))
PAGE = Page("It hurts.", "Somebody did it.", "We *measured* it.", "Undo it.", ("[a](https://example.org)",), ("F1",), ("multiple",))
TOML = """
causes = ["F1"]
loss = ["multiple"]
symptom = "It hurts."
cause = "Somebody did it."
found = "We *measured* it."
fix = "Undo it."
references = ["[a](https://example.org)"]
"""


def _kind(**changes: Any) -> CheckKind:
    return CheckKind("XY001", "model", "Own", lambda probe: passed("fine"), ("store",), **changes)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
def test_every_built_in_check_has_its_text(kind: CheckKind) -> None:
    page = page_of(kind)
    assert page is not None, f"write plugins/pages/{kind.id}.toml"
    for text in (page.symptom, page.cause, page.found, page.fix):
        assert text.rstrip()[-1] in ".!`)|", f"a sentence ends: {text[-40:]!r}"
    assert all(re.fullmatch(r"\[[^\]]+\]\(https://[^\s)]+\)", reference) for reference in page.references)


def test_every_text_belongs_to_a_check() -> None:
    files = {path.stem for path in (Path(__file__).parent.parent / "plugins" / "pages").glob("*.toml")}
    assert len(files) >= 32
    assert files == {kind.id for kind in KINDS}


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_a_check_that_finds_it(cause: str) -> None:
    assert [kind.id for kind in KINDS if (page := page_of(kind)) and cause in page.causes], CAUSES[cause]


def test_every_symptom_of_the_loss_leads_to_a_check() -> None:
    used = {name for kind in KINDS if (page := page_of(kind)) for name in page.loss}
    assert used == set(SYMPTOMS)


# -- where a text may lie ------------------------------------------------------------------------------------------------------------------


def test_a_check_carries_its_text_itself_or_in_a_file_beside_its_module(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "XY001.toml").write_text(TOML)
    (tmp_path / "house.py").write_text(
        "import ftcli\nfrom ftcli.contracts import CheckKind\nfrom ftcli.core.verify.verdict import passed\n"
        "def run(probe):\n    return passed('fine')\n"
        "@ftcli.hookimpl\ndef register_checks(register):\n    register('XY001', CheckKind('XY001', 'env', 'Own', run))\n"
    )
    beside = Plugins(tmp_path / "house.py", allow=()).registry("check").get("XY001")
    assert page_of(beside) == PAGE
    assert page_of(_kind(page=PAGE)) == PAGE
    assert page_of(_kind()) is None
    assert page_of(CheckKind("XY001", "env", "Own", print)) is None
    shown = testing.run("verify", "--explain", "XY001", "--plugins-dir", tmp_path, cwd=tmp_path)
    assert shown.exit_code == 0
    assert "# XY001 Own" in shown.stdout
    report = testing.run("verify", "env", "--select", "XY001,FT005", "--json", "--plugins-dir", tmp_path, cwd=tmp_path).report
    assert {check["id"]: check["page"] for check in report["checks"]} == {
        "FT005": "docs/checks/FT005.md",
        "XY001": "ftcli verify --explain XY001",
    }


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["F1"]', '["F99"]', "causes = .'F99'."),
        ('["multiple"]', '"multiple"', "loss = 'multiple'"),
        ('symptom = "It hurts."', "", "symptom is missing"),
        ('fix = "Undo it."', 'fix = " "', "fix is missing"),
        ("cause =", "couse =", "cause is missing"),
        ("found =", "note = 1\nfound =", "unknown key 'note'"),
        ("found = ", "found = [", "XY001.toml"),
    ],
)
def test_a_text_that_is_not_as_it_must_be_is_refused_with_file_and_key(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in TOML
    (tmp_path / "XY001.toml").write_text(TOML.replace(old, new))
    with pytest.raises(PluginError, match=words):
        read_page(tmp_path / "XY001.toml")


# -- pages ---------------------------------------------------------------------------------------------------------------------------------


def test_a_page_says_symptom_cause_rule_fix_and_references() -> None:
    text = check_page(_kind(after=("FT404",), mend=lambda probe, verdict: []), PAGE)
    assert text.startswith("# XY001 Own\n\nStage `model`, fails the run at worst. Needs `store`.\n")
    assert "Finds: the loss is multiplied by accumulation steps × processes (F1).\n" in text
    assert "Runs after FT404" in text
    assert "`ftcli verify --fix` fixes it" in text
    for part in ("Symptom\n\nIt hurts.", "Cause\n\nSomebody", "How it is found\n\nWe", "What to do\n\nUndo", "References\n\n- [a]"):
        assert f"## {part}" in text


def test_the_index_and_the_page_of_losses_name_the_check_under_its_cause_and_symptom() -> None:
    entries = [(_kind(), PAGE)]
    assert "| F1 | the loss is multiplied by accumulation steps × processes | [XY001](XY001.md) |" in index_page(entries)
    assert "| F2 |" in index_page(entries)
    lines = list(loss_entries(entries))
    assert lines[0] == f"## {SYMPTOMS['multiple']}"
    assert "| Somebody did it. | [XY001 Own](checks/XY001.md) | Undo it. |" in lines
    assert "## What no check can see before training" in lines
    assert f"## {SYMPTOMS['nan']}" not in lines


def test_the_written_pages_link_to_what_is_there() -> None:
    pages = sorted((DOCS / "checks").glob("*.md"))
    assert len(pages) > len(KINDS)
    for page in [*pages, DOCS / "why-is-my-loss-wrong.md"]:
        for target, anchor in links(page.read_text(encoding="utf-8")):
            path = (page.parent / target) if target else page
            assert path.is_file(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), f"{page.name}: {target}#{anchor}"


def test_a_page_is_found_in_lower_case(tmp_path: Path) -> None:
    shown = [testing.run("verify", "--explain", name, cwd=tmp_path).stdout for name in ("FT403", "ft403")]
    assert shown[0]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(("name", "words"), [("FT9", "no check 'FT9'"), ("FT40", "no check 'FT40'")])
def test_a_page_of_no_check_is_refused(tmp_path: Path, name: str, words: str) -> None:
    result = testing.run("verify", "--explain", name, cwd=tmp_path)
    assert result.exit_code == 2
    assert words in result.stderr
