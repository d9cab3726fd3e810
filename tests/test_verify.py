"""`ftcli verify` as a command: its report, its files, its exit code, what it imports, and what it says of real tokenizers and models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from ftcli import testing
from ftcli.commands import verify
from ftcli.context import Context
from ftcli.errors import PublishError, UsageError
from ftcli.pluginmanager import Plugins
from ftcli.records import Report, to_json
from verifying import MACHINE, VARIABLES, World

ROOT = Path(__file__).resolve().parent.parent


def _verify(
    values: dict[str, Any],
    folder: Path,
    level: str = "full",
    fail_on: str = "fail",
    stages: Sequence[str] = (),
    select: Sequence[str] = (),
    **options: Any,
) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        context = replace(Context.make({**values, "runtime.report_dir": folder}), machine=MACHINE)
        return verify.run(context, tuple(stages), level, fail_on, tuple(select), (), **options)


# -- the report ----------------------------------------------------------------------------------------------------------------------------


def test_a_sound_run_is_ok_and_the_report_holds_rows_logits_and_figures(world: World, tmp_path: Path) -> None:
    report = _verify(world.run("classify", "qwen3"), tmp_path)
    assert report.status == "ok"
    assert report.error is None
    assert sum(report.metrics[f"checks_{status}"] for status in ("pass", "info", "skipped")) == len(report.checks)
    assert report.metrics["first_loss"] == pytest.approx(report.metrics["expected_first_loss"], rel=0.05)
    assert report.metrics["first_grad_norm"] > 0
    assert len(report.details["rows"]) == 12
    assert report.details["rows"][0]["label"] in {"billing", "delivery", "login", "refund"}
    assert sum(report.details["logits_histogram"]["counts"]) == 12 * 4
    assert report.machine == MACHINE
    assert any("random weights" in note for note in report.notes)
    assert report.plugins


def test_the_page_and_the_document_are_written_where_the_report_says(world: World, tmp_path: Path) -> None:
    report = _verify(world.run("classify"), tmp_path / "reports")
    assert report.paths == {"html": str(tmp_path / "reports" / "verify.html"), "json": str(tmp_path / "reports" / "verify.json")}
    document = json.loads(Path(report.paths["json"]).read_text(encoding="utf-8"))
    assert document["checks"] == to_json(report.checks)
    assert document["paths"] == report.paths
    page = Path(report.paths["html"]).read_text(encoding="utf-8")
    for check in report.checks:
        assert check.id in page


def test_a_failure_fails_the_report_and_says_what_to_do(world: World, tmp_path: Path) -> None:
    report = _verify({**world.run("classify"), "tokenizer.path": str(world.wordpiece)}, tmp_path, select=("FT202",))
    assert report.status == "failed"
    assert [check.status for check in report.checks] == ["fail"]
    assert report.checks[0].fix in Path(report.paths["html"]).read_text(encoding="utf-8")


@pytest.mark.parametrize(("fail_on", "status"), [("warn", "failed"), ("error", "ok"), ("fail", "ok")])
def test_the_threshold_decides_whether_a_warning_fails(world: World, tmp_path: Path, fail_on: str, status: str) -> None:
    report = _verify({"dataset.num_proc": 99}, tmp_path, fail_on=fail_on, select=("FT051",))
    assert report.checks[0].status == "warn"
    assert report.status == status


@pytest.mark.parametrize(
    "options",
    [{"fail_on": "info"}, {"level": "slow"}, {"stages": ("modle",)}, {"select": ("FT9",)}, {"format": "xml"}, {"output": Path("x")}],
)
def test_a_wrong_option_is_a_usage_error(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        _verify({}, tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_a_run_whose_model_breaks_is_reported_without_its_figures(world: World, tmp_path: Path) -> None:
    report = _verify(world.run("classify", "qwen3", **{"model.config": world.config("qwen3", vocab_size=10)}), tmp_path)
    assert report.status == "failed"
    assert "first_loss" not in report.metrics
    assert "logits_histogram" not in report.details
    assert len(report.details["rows"]) == 12


def test_figures_without_a_number_become_null(world: World, tmp_path: Path) -> None:
    context = Context.make(
        {**world.run("classify", "qwen3"), "runtime.report_dir": tmp_path}, world.model('model.score.weight.data[:] = float("nan")')
    )
    report = verify.run(context, ("model",), "full", "fail", (), ())
    document = json.loads(Path(report.paths["json"]).read_text(encoding="utf-8"))
    assert document["metrics"]["first_loss"] is None
    assert {check["id"] for check in document["checks"] if check["status"] == "fail"} == {"FT404"}


def test_a_report_folder_that_cannot_be_written_costs_the_report_and_not_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = _verify({}, tmp_path / "file", stages=("env",))
    assert report.checks
    assert not report.paths
    assert any("no report: " in note and "cannot be written" in note for note in report.notes)


def test_a_file_that_cannot_be_written_is_refused_before_the_first_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    context = Context.make({"runtime.report_dir": tmp_path / "reports"})
    with pytest.raises(PublishError, match=r"the report .*verify\.xml cannot be written: Not a directory"):
        verify.run(context, ("env",), "full", "fail", (), (), format="junit", output=tmp_path / "file" / "verify.xml")
    assert not (tmp_path / "reports").exists()


def test_every_check_moves_the_progress(tmp_path: Path) -> None:
    class Bar:
        seen: list[str] = []  # noqa: RUF012

        def start(self, stage: str, total: float | None, unit: str) -> None:
            self.seen.append(f"{stage} {total}")

        def advance(self, amount: float, **figures: Any) -> None:
            self.seen.append(figures["check"])

        def say(self, message: str) -> None: ...

        def close(self) -> None:
            self.seen.append("end")

    context = replace(Context.make({"runtime.report_dir": tmp_path}), progress=Bar())
    verify.run(context, ("env",), "full", "fail", (), ())
    assert Bar.seen == ["verify 9", *(f"FT00{number}" for number in range(1, 10)), "end"]


# -- the command line ----------------------------------------------------------------------------------------------------------------------


def test_exit_codes_and_the_document_on_stdout(world: World, tmp_path: Path) -> None:
    words = ["verify", "--tokenizer-path", world.bpe, "--dataset", world.labelled, "--select", "FT1,FT2", "--json"]
    good = testing.run(*words, cwd=tmp_path)
    assert good.exit_code == 0, good.stderr
    assert good.report["status"] == "ok"
    assert good.report["paths"]["html"] == "ftcli-reports/verify.html"
    assert (tmp_path / "ftcli-reports" / "verify.html").is_file()
    words[2] = world.wordpiece
    bad = testing.run(*words, cwd=tmp_path)
    assert bad.exit_code == 1
    assert [check["id"] for check in bad.report["checks"] if check["status"] == "fail"] == ["FT202"]
    assert testing.run("verify", "--stages", "modle", cwd=tmp_path).exit_code == 2


def test_stages_are_words_or_a_list_and_both_add_up(tmp_path: Path) -> None:
    def ran(*words: str) -> set[str]:
        result = testing.run("verify", *words, "--json", "--level", "quick", cwd=tmp_path)
        assert result.exit_code == 0, result.stderr
        return {check["stage"] for check in result.report["checks"]}

    assert ran("env", "settings") == ran("--stages", "env,settings") == ran("env", "--stages", "settings") == {"env", "settings"}
    assert ran() == {"env", "settings", "tokenizer", "data"}
    wrong = testing.run("verify", "modle", cwd=tmp_path)
    assert wrong.exit_code == 2
    assert "Did you mean 'model'" in wrong.stderr


def test_every_verdict_has_severity_page_and_seconds(tmp_path: Path) -> None:
    checks = testing.run("verify", "env", "--json", cwd=tmp_path).report["checks"]
    assert checks
    for check in checks:
        assert check["severity"] in {"info", "warn", "fail"}
        assert check["page"] == f"docs/checks/{check['id']}.md"
        assert check["seconds"] >= 0
        assert (ROOT / check["page"]).is_file()


def test_junit_and_html_are_printed_or_written_in_place_of_the_table(tmp_path: Path) -> None:
    words = ("verify", "env", "--set", "runtime.report_dir=reports")
    printed = testing.run(*words, "--format", "junit", cwd=tmp_path)
    assert printed.exit_code == 0
    assert ET.fromstring(printed.stdout.encode()).get("tests") == ET.fromstring(printed.stdout.encode())[0].get("tests")
    page = testing.run(*words, "--format", "html", cwd=tmp_path)
    assert page.stdout.startswith("<!DOCTYPE html>")
    assert page.stdout.splitlines() == (tmp_path / "reports" / "verify.html").read_text(encoding="utf-8").replace("\xa0", " ").splitlines()
    for kind in ("junit", "html", "json"):
        written = testing.run(*words, "--format", kind, "--output", f"made/verify.{kind}", cwd=tmp_path)
        assert re.search(r"FT001  ", written.stdout), "the table is printed where the document goes to a file"
        assert (tmp_path / "made" / f"verify.{kind}").stat().st_size > 100
    assert testing.run(*words, "--format", "json", cwd=tmp_path).report["command"] == "verify"
    assert testing.run(*words, "--output", "x", cwd=tmp_path).exit_code == 2


def test_the_evidence_of_a_verdict_is_in_every_format(tmp_path: Path) -> None:
    words = ("verify", "settings", "--select", "FT051", "--num-proc", "99", "--fail-on", "warn")
    table = testing.run(*words, cwd=tmp_path)
    assert table.exit_code == 1
    assert re.search(r"^ +cores \d+$", table.stdout, re.MULTILINE)
    assert "ftcli verify --explain FT051" in table.stdout
    assert re.search(r"cores: \d+", testing.run(*words, "--format", "junit", cwd=tmp_path).stdout)
    html = testing.run(*words, "--format", "html", cwd=tmp_path).stdout
    assert "<dt>cores</dt>" in html
    assert "More workers make it slower." in html
    assert testing.run(*words, "--json", cwd=tmp_path).report["checks"][0]["evidence"]["cores"] > 0


def test_the_table_shows_verdicts_and_fixes(world: World, tmp_path: Path) -> None:
    result = testing.run("verify", "--tokenizer-path", world.wordpiece, "--dataset", world.labelled, "--level", "quick", cwd=tmp_path)
    assert re.search(r"fail +FT202 +the data were prepared with another tokenizer", result.stdout)
    assert "→ Prepare them again with this tokenizer" in result.stdout


# -- what it imports -----------------------------------------------------------------------------------------------------------------------

LOADER = """
import ftcli

@ftcli.hookimpl
def load_tokenizer(settings):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(settings.tokenizer.path)
"""
QUICK = """
import json, sys
from pathlib import Path
from ftcli.commands import verify
from ftcli.context import Context
from ftcli.pluginmanager import Plugins

values, plugin = json.loads(sys.argv[1]), sys.argv[2]
report = verify.run(Context.make(values, Plugins(Path(plugin), allow=())), (), "quick", "fail", (), ())
print(json.dumps({"heavy": sorted({"torch", "datasets"} & set(sys.modules)), "ran": [check.id for check in report.checks if check.status != "skipped"]}))
"""


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_the_quick_level_does_not_import_torch(world: World, tmp_path: Path, with_tokenizer: bool) -> None:
    """The plugin stands in for `AutoTokenizer`, with which transformers itself imports torch."""
    (tmp_path / "loader.py").write_text(LOADER)
    values = {"dataset.sources": [str(world.labelled)], "runtime.report_dir": str(tmp_path)}
    if with_tokenizer:
        values["tokenizer.path"] = str(world.bpe)
    command = [sys.executable, "-c", QUICK, json.dumps(values), str(tmp_path / "loader.py")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ, cwd=tmp_path)
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["heavy"] == []
    assert {"FT001", "FT201", "FT203", "FT204", "FT205"} <= set(found["ran"])
    assert ("FT202" in found["ran"]) == with_tokenizer


# -- documentation -------------------------------------------------------------------------------------------------------------------------


def test_the_documentation_names_every_check_with_stage_title_and_worst_verdict() -> None:
    lines = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8").splitlines()
    table = {cells[1]: cells for line in lines if line.startswith("| FT") for cells in [[cell.strip() for cell in line.split("|")]]}
    kinds = dict(Plugins(allow=()).registry("check").items())
    assert sorted(table) == sorted(kinds)
    for name, kind in kinds.items():
        assert table[name][2:4] == [kind.stage, kind.title]
        assert table[name][5] == kind.severity
        assert table[name][4]
        assert table[name][6]


def test_the_check_of_the_documentation_works(world: World, tmp_path: Path) -> None:
    source = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    values, plugins = world.run("classify"), world.plugins(source)
    assert world.verify(values, stages=("data",), plugins=plugins)["XY001"].summary == "at most 137 tokens a row"
    values |= world.rewritten(tmp_path / "s", {"train": [([5] * 513, 0), ([6], 1), ([7], 2), ([8], 3)]})
    world.caught("a check of a plugin fails", values, "XY001", words="a row has 513 tokens", stages=("data",), plugins=plugins)


# -- real tokenizers and configurations ----------------------------------------------------------------------------------------------------

NO_PAD = {"gpt2", "mistral-7b-v0.1", "phi-2"}
PAD_IS_EOS = {"deepseek-coder", "phi-3-mini"}
FITTING = {
    "bert-base-uncased": "bert-base-uncased",
    "gpt2": "gpt2",
    "mistral-7b-v0.3": "mistral-7b-v0.1",
    "phi-1": "phi-2",
    "qwen2-1.5b": "qwen2.5",
    "qwen3-0.6b": "qwen3",
    "qwen3-4b": "qwen3",
    "qwen3-embedding-0.6b": "qwen3",
    "t5-small": "t5-small",
}
TINY = "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=16"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is found out about a tokenizer once: half of the CPU time of its checks."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.real
@pytest.mark.parametrize("mode", ["classify", "pretrain"])
def test_real_tokenizers_warn_and_fail_for_real_causes_only(world: World, real_data: Path, cache: Path, mode: str) -> None:
    folders = sorted(folder for folder in (real_data / "tokenizers").iterdir() if folder.is_dir())
    assert folders
    for folder in folders:
        checks = world.verify({"tokenizer.path": str(folder), "train.mode": mode, "runtime.cache_dir": cache}, stages=("env", "tokenizer"))
        bad = {name: check.status for name, check in checks.items() if check.status in {"warn", "fail", "error"}}
        expected = {}
        if folder.name in NO_PAD and mode == "classify":
            expected = {"FT102": "fail"}
        elif folder.name in PAD_IS_EOS and mode == "pretrain":
            expected = {"FT103": "warn"}
        elif folder.name == "slow-byt5":
            expected = {"FT101": "warn"}
        elif folder.name == "spm-only-mistral" and checks["FT101"].status == "fail":  # passes where sentencepiece is installed
            assert "spm-only-mistral cannot be loaded without" in checks["FT101"].summary
            assert "pip install" in checks["FT101"].fix
            expected = {"FT101": "fail"}
        elif folder.name == "spm-only-mistral" and mode == "classify":
            expected = {"FT102": "fail"}
        if folder.name == "phi-3-mini":  # transformers makes a LlamaTokenizer of it, whose normaliser differs
            expected["FT106"] = "warn"
        assert bad == expected, (folder.name, {name: checks[name].summary for name in bad})


@pytest.mark.real
@pytest.mark.parametrize("config", sorted(FITTING))
def test_a_real_configuration_and_its_tokenizer_fit(world: World, real_data: Path, cache: Path, config: str) -> None:
    values = {"tokenizer.path": str(real_data / "tokenizers" / FITTING[config]), "model.config": real_data / "configs" / config}
    checks = world.verify({**values, "runtime.cache_dir": cache}, stages=("tokenizer", "model"))
    assert checks["FT401"].status == "pass"
    assert checks["FT402"].status in {"pass", "info"}
    assert checks["FT104"].status in {"pass", "info"}


@pytest.mark.real
def test_a_real_configuration_and_a_foreign_tokenizer_do_not_fit(world: World, real_data: Path) -> None:
    values = {"tokenizer.path": str(real_data / "tokenizers" / "qwen3"), "model.config": real_data / "configs" / "gpt2"}
    world.caught("qwen3's tokenizer, gpt2's configuration", values, "FT401", words="151,669 ids", stages=("model",))


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "tokenizer", "overrides"),
    [("qwen3-0.6b", "qwen3", TINY), ("bert-base-uncased", "bert-base-uncased", TINY.rsplit(",", 2)[0])],
)
def test_banking77_is_found_sound(world: World, real_data: Path, config: str, tokenizer: str, overrides: str) -> None:
    folder = real_data / "classification" / "banking77"
    data = world.prepare(
        f"banking-{config}",
        real_data / "tokenizers" / tokenizer,
        {"dataset.text_column": "text", "dataset.label_column": "category"},
        sources=[f"train={folder / 'train.csv'}", f"test={folder / 'test.csv'}"],
    )
    values = {
        "tokenizer.path": str(real_data / "tokenizers" / tokenizer),
        "dataset.sources": [str(data)],
        "model.config": real_data / "configs" / config,
        "model.config_overrides": overrides,
    }
    checks = world.quiet(f"banking77, {config}", values)
    assert checks["FT403"].evidence["loss"] == pytest.approx(4.3438, rel=0.05)
    assert checks["FT205"].evidence["rows"] < 0.01 * 3080
