"""The documentation is complete, its generated parts are fresh, its links resolve, its commands parse, and its examples run."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from docpages import DOCS, PAGES, ROOT, Fence, anchors, fences, ftcli_words, links, needs_shell, page_fences
from ftcli import errors, testing
from ftcli.cli import output
from ftcli.cli.catalog import COMMANDS
from ftcli.cli.parse import parse
from ftcli.errors import FtcliError, UsageError
from ftcli.machine import detect
from ftcli.records import Report
from ftcli.settings import Settings, sections
from ftcli.sources import check_key, resolve


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- generated parts ---------------------------------------------------------------------------------------------------


def test_the_generated_parts_are_what_would_be_written_now(generate: ModuleType) -> None:
    assert [page.name for page in generate.stale()] == []


def test_no_field_that_is_refused_is_listed_as_passed_on(generate: ModuleType) -> None:
    lines = list(generate.settings())
    (passed,) = [line for line in lines if line.startswith("`lr_scheduler_kwargs`, ")]
    assert not [name for name in generate.REFUSED if f"`{name}`" in passed]
    assert all(any(line.startswith(f"- `{name}`: ") for line in lines) for name in generate.REFUSED)


def test_every_generated_part_stands_on_a_page(generate: ModuleType) -> None:
    shown = [part[1] for page in sorted(DOCS.glob("*.md")) for part in generate.PART.finditer(page.read_text(encoding="utf-8"))]

    assert sorted(shown) == sorted(generate.PARTS)


def test_a_stale_page_is_named_and_ends_the_check_with_1(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "profiles.md"
    page.write_text("before\n<!-- generated: profiles -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    monkeypatch.setattr(generate, "stale", lambda folder=tmp_path, check=generate.stale: check(folder))

    assert generate.main(["--check"]) == 1
    assert "profiles.md is stale" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "`highend`" in text


# -- completeness ------------------------------------------------------------------------------------------------------


def test_every_command_has_its_help_and_is_on_the_map() -> None:
    for command in COMMANDS:
        assert f"## ftcli {command}\n" in read("cli.md")
        assert f"`ftcli {command}" in read("index.md")


def test_every_section_and_every_setting_is_in_the_reference() -> None:
    page = read("settings.md")
    for section, model in sections().items():
        assert f"## {section}\n" in page
        for name in model.model_fields:
            assert f"`{section}.{name}`" in page or f"`{name}`" in page, f"{section}.{name}"


def test_every_packaged_profile_is_described() -> None:
    names = [entry.name.removesuffix(".toml") for entry in resources.files("ftcli.profiles").iterdir() if entry.name.endswith(".toml")]

    assert "highend" in names
    for name in names:
        assert f"`{name}`" in read("profiles.md")


@pytest.mark.parametrize("page", ["json.md", "errors.md"])
def test_every_exit_code_is_documented(page: str) -> None:
    for code in (0, 1, 2, 3, 4):
        assert re.search(rf"^\| {code} \|", read(page), re.MULTILINE), code


def test_every_error_is_in_the_tree_and_has_its_advice() -> None:
    page = read("errors.md")
    kinds = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, FtcliError)]

    assert len(kinds) >= 12
    for name in kinds:
        assert len(re.findall(rf"\b{name}\b", page)) >= 2, f"{name}: in the tree, and in words"


def test_every_variable_that_ftcli_sets_is_explained() -> None:
    from ftcli.environment import compute
    from ftcli.pluginmanager import Plugins

    wanted = compute(Plugins(allow=()), Settings(), detect())
    assert "OMP_NUM_THREADS" in wanted
    for variable in wanted:
        assert f"`{variable}`" in read("environment.md"), variable


def test_every_page_is_on_the_map() -> None:
    found = [target for target, _ in links(read("index.md"))]
    for page in DOCS.glob("*.md"):
        assert page.name == "index.md" or page.name in found, page.name


@pytest.mark.parametrize(("page", "korean"), [("../README.md", "../README.ko.md"), ("index.md", "ko/index.md")])
def test_the_korean_pages_have_the_commands_and_the_tables_of_the_english_ones(page: str, korean: str) -> None:
    def typed(name: str) -> list[tuple[str, str]]:
        return [(fence.language, fence.text) for fence in page_fences(DOCS / name)]

    def first_cells(name: str) -> list[str]:
        return [line.split("|")[1].replace("](docs/", "](").strip() for line in read(name).splitlines() if line.startswith("| [`ftcli")]

    assert typed(korean) == typed(page)
    assert first_cells(korean) == first_cells(page)
    assert [words.strip() for words in re.findall(r"^\| (`ftcli \S+`) \|", read(korean), re.MULTILINE)] == re.findall(
        r"^\| (`ftcli \S+`) \|", read(page), re.MULTILINE
    )


@pytest.mark.skipif(not (ROOT / "mkdocs.yml").is_file(), reason="the suite runs from the wheel: the repository is not around it")
def test_the_site_is_built_without_a_warning_and_has_every_page(tmp_path: Path) -> None:
    """`strict` in mkdocs.yml makes a warning (a broken link, a page outside of the menu) an error."""
    pytest.importorskip("material", reason="the group site is not installed: make site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true", "SITE_URL": "https://docs.example/"}
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    listed = (tmp_path / "site" / "sitemap.xml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix(".html").as_posix().replace("README.html", "index.html")
        language = re.search(r'<html lang="(\w+)"', (tmp_path / "site" / name).read_text(encoding="utf-8"))
        assert language is not None
        assert language[1] == ("ko" if name.startswith("ko/") else "en"), name
        assert f"<loc>https://docs.example/{name}</loc>" in listed


def test_a_page_that_nobody_placed_is_named(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("site_nav", DOCS / "site_nav.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.copytree(DOCS, tmp_path / "docs")
    assert module.nav(tmp_path / "docs") == module.nav()
    (tmp_path / "docs" / "new.md").write_text("# New\n", encoding="utf-8")
    with pytest.raises(LookupError, match="'new'"):
        module.nav(tmp_path / "docs")


def test_no_page_names_a_folder_of_the_machine_that_made_it() -> None:
    for page in PAGES:
        assert not re.search(r"(?<![\w.])/(home|work|tmp|root|Users)/", page.read_text(encoding="utf-8")), page.name


# -- links and commands ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (ROOT / "src").is_dir(), reason="the suite runs from the wheel: the repository is not around it")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_resolves(page: Path) -> None:
    for target, anchor in links(page.read_text(encoding="utf-8")):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text(encoding="utf-8")), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_on_the_page_is_one_that_ftcli_takes(page: Path) -> None:
    for fence in page_fences(page):
        for command in fence.commands() if fence.language == "console" else ():
            words = ftcli_words(command)
            if words is not None and fence.exit_code != UsageError.exit_code:
                refuse_unknown(words, fence.where)


def refuse_unknown(words: list[str], where: str) -> None:
    """Parse the words and validate every setting among them, without running anything."""
    if words[:1] in [["--version"], ["--help"], ["--install-completion"], ["--show-completion"]]:
        return
    assert words, f"{where}: no command"
    assert words[0] in COMMANDS, f"{where}: no command {words[0]}"
    try:
        parsed = parse(COMMANDS[words[0]], words[1:])
        given = parsed.settings()
        for raw, flag in parsed.given.get("set", ()):
            key, _, value = raw.partition("=")
            check_key(key, flag)
            given[key] = (value, flag)
        resolve(given, environ={})
    except FtcliError as error:
        pytest.fail(f"{where}: ftcli {' '.join(words)}: {error.message} {error.hint}")


@pytest.mark.parametrize("words", [["tokenise"], ["tokenize", "--nope"], ["train", "--set", "train.nope=1"], ["train", "--bf16=maybe"]])
def test_a_wrong_command_line_would_be_found(words: list[str]) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        refuse_unknown(words, "a page")


def test_fences_lines_and_links_are_read_as_a_reader_reads_them() -> None:
    text = "<!-- run: 3 -->\n<!-- with: A=1 B=x=y -->\n```console\n$ A=1 ftcli train --json \\\n    --bf16 | tail -1\nshown\n```\n[a](b.md#c) `[no](x.md)`\n```text\n[n](y.md)\n```\n"
    first, second = fences(text)

    assert (first.runs, first.exit_code, first.language, second.runs) == (True, 3, "console", False)
    assert (first.variables, second.variables) == ({"A": "1", "B": "x=y"}, {})
    assert first.commands() == ["A=1 ftcli train --json     --bf16 | tail -1"]
    assert first.shown() == ["shown"]
    assert ftcli_words(first.commands()[0]) == ["train", "--json", "--bf16"]
    assert ftcli_words("make demo") is None
    assert links(text) == [("b.md", "c")]
    assert anchors("# The `--json` document, all of it\n```text\n# no\n```\n") == {"the---json-document-all-of-it"}


# -- examples ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all pages: they make the same tokenizer, whose engines are proved once."""
    return tmp_path_factory.mktemp("cache")


MADE = re.compile(r"ftcli (sample-data|train-tokenizer) .*--output (\w+)")
"""What nearly every page begins with. The same line gives the same folder, so that only the first page runs it."""


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Report]]:
    """Reports of the commands that this test runs in its own process."""
    seen: list[Report] = []
    write = output.write_human

    def record(report: Report, *rest: Any, **named: Any) -> None:
        seen.append(report)
        write(report, *rest, **named)

    monkeypatch.setattr(output, "write_human", record)
    return seen


RUNNING = [page for page in PAGES if any(fence.runs for fence in page_fences(page))]


def test_the_main_pages_have_examples_that_run() -> None:
    assert {"index.md", "tokenize.md", "train.md", "benchmark.md", "settings.md", "plugins.md"} <= {page.name for page in RUNNING}


WALKTHROUGHS = {"plugin-collator.md": "verify", "plugin-environment.md": "settings", "plugin-check.md": "verify"}
"""What a newcomer follows, with a command whose output shows the plugin at work."""


def test_each_walkthrough_begins_with_nothing_and_shows_the_effect_of_what_it_has_the_reader_write() -> None:
    for name, command in WALKTHROUGHS.items():
        found = page_fences(DOCS / name)
        assert all(fence.runs or "file" in fence.remarks for fence in found), f"{name}: a fence that nobody runs"
        plugin = next(place for place, fence in enumerate(found) if fence.remarks.get("file", "").startswith("plugins/"))
        shows = [
            fence
            for fence in found[plugin:]
            if fence.shown() and any((ftcli_words(each) or [""])[0] == command for each in fence.commands())
        ]
        assert any("--plugins-dir plugins" in fence.text for fence in shows), name


@pytest.mark.slow
@pytest.mark.usefixtures("nursery")
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.name)
def test_the_examples_of_the_page_run_in_order(page: Path, tmp_path: Path, proofs: Path, reports: list[Report]) -> None:
    shutil.copy(ROOT / "optimize_env.sh", tmp_path)
    for fence in page_fences(page):
        if name := fence.remarks.get("file"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(fence.text, encoding="utf-8")
        if fence.runs:
            execute(fence, tmp_path, proofs)
    for report in reports:
        documented = metrics_of(report.command.split()[0])
        assert set(report.metrics) <= documented, f"json.md lacks {report.command}: {set(report.metrics) - documented}"


def execute(fence: Fence, folder: Path, proofs: Path) -> None:
    """Plain `ftcli` lines in this process, others in a shell; a fence whose lines change the shell in one, as a reader has; python by itself."""
    commands = fence.commands()
    if fence.language == "python":
        (folder / "the_fence.py").write_text(fence.text, encoding="utf-8")
        outside([sys.executable, "-m", "the_fence"], fence, folder, proofs)
        return
    assert commands, fence.where
    if any(command.startswith("source ") for command in commands):
        outside(shell(*commands), fence, folder, proofs)
        return
    printed: list[str] = []
    for command in commands:
        if needs_shell(command):
            outside(shell(command), fence, folder, proofs)
        else:
            printed += inside(command, fence, folder, proofs)
    for line in fence.shown() if printed else ():
        assert line in printed, f"{fence.where}: the page shows {line!r}\n" + "\n".join(printed)


def inside(command: str, fence: Fence, folder: Path, proofs: Path) -> list[str]:
    """The lines that a command prints in this process."""
    words = ftcli_words(command)
    assert words is not None
    made = MADE.match(command)
    kept = proofs / "made" / re.sub(r"\W+", "-", command)
    if made and kept.exists():
        shutil.copytree(kept, folder / made[2])
        return []
    result = testing.run(*words, env={"XDG_CACHE_HOME": str(proofs), **fence.variables}, cwd=folder)
    assert result.exit_code == fence.exit_code, f"{fence.where}: {command}\n{result.stdout}\n{result.stderr}"
    if made:
        shutil.copytree(folder / made[2], kept)
    return [*result.stdout.splitlines(), *result.stderr.splitlines()]


def shell(*commands: str) -> list[str]:
    return ["bash", "-euo", "pipefail", "-c", "\n".join(commands)]


def outside(command: list[str], fence: Fence, folder: Path, proofs: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, "XDG_CACHE_HOME": str(proofs), **fence.variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == fence.exit_code, f"{fence.where}: {command[-1]}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize(
    ("language", "text", "code"),
    [
        ("console", "$ ftcli settings --nope", "0"),
        ("console", "$ ftcli settings", "2"),
        ("console", "$ true | false", "0"),
        ("console", "no command", "0"),
        ("console", "$ ftcli profiles\nwhat it does not print", "0"),
        ("python", "raise SystemExit(3)", "0"),
    ],
)
def test_an_example_that_does_not_end_as_promised_is_found(language: str, text: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        execute(Fence(DOCS / "a-page.md", 1, language, {"run": code}, text), tmp_path, tmp_path)


def metrics_of(command: str) -> set[str]:
    """Names that json.md lists for a command."""
    parts = re.split(r"^### ", read("json.md"), flags=re.MULTILINE)
    part = next((part for part in parts if part.startswith(f"{command}\n")), "")
    return {name for row in re.findall(r"^\| (`[^|]+) \|", part, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}


def test_json_lists_the_metrics_of_every_command() -> None:
    for command in COMMANDS:
        assert metrics_of(command), command
    assert "first_loss" in metrics_of("train")
    assert "first_loss" not in metrics_of("tokenize")
