"""The projects under examples/: built, installed and used as others would; ftcli without them is what it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftcli.pluginmanager import BUILT_INS
from ftcli.testing import TEXTS, Result, run, tiny_tokenizer, write_config

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = {"ftcli-ladder": "ladder", "ftcli-house-rules": "house-rules"}
"""Folder → name of its entry point."""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (ROOT / "examples").is_dir(), reason="the examples are not here")]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders into which pip has put each project from its wheel."""
    found = {}
    for name in PROJECTS:
        folder = tmp_path_factory.mktemp(name)
        shutil.copytree(ROOT / "examples" / name, folder / "source")  # a build leaves folders behind
        call(sys.executable, "-m", "build", "--quiet", "--wheel", "--no-isolation", "--outdir", folder / "dist", folder / "source")
        (wheel,) = (folder / "dist").glob("*.whl")
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps")
        call(*pip, "--target", folder / "site", wheel)
        found[name] = folder / "site"
    return found


def call(*words: str | Path, **variables: str) -> str:
    """What a program prints; it must end well."""
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | variables
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class World:
    """A tokenizer, texts, data prepared from them and a model's configuration."""

    folder: Path

    def tokenize(self) -> Result:
        return run(
            *("tokenize", self.folder / "texts.txt", "--tokenizer-path", self.folder / "tokenizer", "--tokenizer-engine", "hf"),
            *("--max-length", "300", "--output-dir", self.folder / "store", "--report-dir", self.folder / "reports", "--json"),
        )

    def train(self, *words: str | Path) -> Result:
        """Two steps."""
        return run(
            *("train", "--mode", "pretrain", "--dataset", self.folder / "store", "--tokenizer-path", self.folder / "tokenizer"),
            *("--model-config", self.folder / "config.json", "--output-dir", self.folder / "run", "--overwrite", "--max-steps", "2"),
            *("--report-dir", self.folder / "reports", "--json", *words),
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    tiny_tokenizer(folder / "tokenizer")
    write_config(folder / "config.json")
    (folder / "texts.txt").write_text("".join(f"{text * (1 + number % 3)}\n" for number, text in enumerate(TEXTS * 4)), encoding="utf-8")
    made = World(folder)
    assert made.tokenize().exit_code == 0
    return made


@pytest.fixture
def installed(sites: dict[str, Path], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The project is installed for this test."""
    name: str = request.param
    monkeypatch.syspath_prepend(str(sites[name]))
    yield PROJECTS[name]
    sys.modules.pop(name.replace("-", "_"), None)


@pytest.mark.parametrize("name", PROJECTS)
def test_the_wheel_holds_what_its_tests_need_and_they_pass_with_it(name: str, sites: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / name / "tests", tmp_path / "tests")

    shown = call(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", tmp_path, PYTHONPATH=str(sites[name]))

    assert " passed" in shown
    assert not {"failed", "skipped"} & set(shown.split())


@pytest.mark.parametrize("name", PROJECTS)
def test_ftcli_finds_an_installed_plugin_by_its_entry_point(name: str, sites: dict[str, Path]) -> None:
    shown = call(sys.executable, "-m", "ftcli", "plugins", "--json", PYTHONPATH=str(sites[name]))

    plugins = json.loads(shown.splitlines()[-1])["plugins"]
    found = [plugin for plugin in plugins if plugin["origin"] != "built-in"]
    assert [(plugin["name"], plugin["version"], plugin["origin"]) for plugin in found] == [
        (PROJECTS[name], "0.1.0", f"entry point {PROJECTS[name]} of {name}")
    ]
    assert found[0]["hooks"]


@pytest.mark.parametrize("installed", ["ftcli-ladder"], indirect=True)
def test_the_ladder_trains_as_the_collator_that_it_stands_beside(installed: str, world: World) -> None:
    plain = world.train("--no-verify", "--collator", "bucketed").report
    found = world.train("--no-verify", "--collator", "ladder").report

    assert found["status"] == "ok", found["error"]
    assert installed in [plugin["name"] for plugin in found["plugins"]]
    assert found["metrics"]["final_loss"] == pytest.approx(plain["metrics"]["final_loss"], rel=1e-4)
    assert found["metrics"]["padding_share"] > plain["metrics"]["padding_share"]

    checked = run(
        *(
            "verify",
            "--select",
            "FT301",
            "--select",
            "FT302",
            "--mode",
            "pretrain",
            "--collator",
            "ladder",
            "--dataset",
            world.folder / "store",
        ),
        *("--tokenizer-path", world.folder / "tokenizer", "--report-dir", world.folder / "reports", "--json"),
    )
    assert {check["status"] for check in checked.report["checks"]} == {"pass"}


@pytest.mark.parametrize("installed", ["ftcli-house-rules"], indirect=True)
def test_a_broken_house_rule_stops_a_run_and_a_kept_one_does_not(installed: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    refused = world.train()

    assert refused.exit_code == 1
    assert "HOUSE01: tracking.report_to = None (default), wanted: a tracker" in refused.report["error"]["message"]
    assert "Add --report-to mlflow." in refused.report["error"]["message"]
    assert "HF_HUB_OFFLINE=1: all that this run reads lies here" in " ".join(refused.report["notes"])

    verified = run("verify", "--select", "HOUSE01", "--report-to", "mlflow", "--report-dir", world.folder / "reports", "--json")
    assert [(check["id"], check["status"]) for check in verified.report["checks"]] == [("HOUSE01", "pass")]
    assert verified.report["checks"][0]["page"] == "ftcli verify --explain HOUSE01"
    assert "--config team.toml" in run("verify", "--explain", "HOUSE01").stdout


@pytest.mark.parametrize("installed", ["ftcli-ladder", "ftcli-house-rules"], indirect=True)
def test_prepared_data_are_the_same_with_and_without_the_plugin(installed: str, world: World) -> None:
    again = world.tokenize().report

    assert installed in [plugin["name"] for plugin in again["plugins"]]
    assert again["metrics"]["reused"] is True


def test_ftcli_without_them_is_what_it_was(world: World) -> None:
    listed = run("plugins", "--json").report["plugins"]
    refused = world.train("--no-verify", "--collator", "ladder")
    unknown = run("verify", "--select", "HOUSE01")

    assert len(listed) == len(BUILT_INS)
    assert refused.report["error"]["message"] == "loader.collator = 'ladder': no plugin provides this collator"
    assert "no check's id begins with 'HOUSE01'" in unknown.stderr
