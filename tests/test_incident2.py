"""Incident 2 replayed: 280 classes, the real Qwen3 tokenizer, the configuration of Qwen3-4B made small, and each suspected cause in turn."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ftcli.commands import tokenize
from ftcli.context import Context
from ftcli.core.corpus.sample import generate
from test_checks_steps import NOT_DIVIDED
from verifying import BAD, World

ROOT = Path(__file__).resolve().parents[1]
FULL = ("settings", "tokenizer", "data", "batch", "model", "steps")
pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def program() -> ModuleType:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("the benchmarks are in the source tree only")
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module("benchmarks.incident2")
    finally:
        sys.path.remove(str(ROOT))


@pytest.fixture(scope="module")
def run(world: World, real_data: Path, program: ModuleType) -> dict[str, Any]:
    """The planned run, healthy: 280 labels, 12 accumulation steps."""
    folder = world.folder / "incident2"
    folder.mkdir()
    for split, rows, seed in (("train", 1200, 1), ("test", 150, 2)):
        lines = [json.dumps({"text": text, "label": label}) for text, label in generate(rows, seed, 280)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    qwen = str(real_data / "tokenizers" / "qwen3")
    given = {"dataset.label_column": "label", "tokenizer.path": qwen, "packing.max_length": 512}
    common = {
        "dataset.num_proc": 1,
        "tokenizer.engine": "hf",
        "runtime.report_dir": folder / "reports",
        "runtime.cache_dir": folder / "cache",
    }
    made = [f"{split}={folder / split}.jsonl" for split in ("train", "test")]
    values = {**given, **common, "dataset.sources": made, "dataset.output_dir": folder / "prepared"}
    tokenize.run(Context.make(values, environ={}))
    return {
        "tokenizer.path": qwen,
        "dataset.sources": [str(folder / "prepared")],
        "model.config": real_data / "configs" / "qwen3-4b" / "config.json",
        "model.config_overrides": program.SMALL.replace("hidden_size=64", "hidden_size=32"),
        "train.gradient_accumulation_steps": 12,
        "train.max_steps": 2000,
    }


def test_the_healthy_run_raises_nothing_and_the_suspects_are_refuted(world: World, run: dict[str, Any]) -> None:
    checks = world.verify(run, stages=FULL)
    assert {name: check.summary for name, check in checks.items() if check.status in BAD} == {}
    first = checks["FT403"].evidence["loss"]
    assert first == pytest.approx(math.log(280), rel=0.02)
    assert "plain Trainer would report 12" in checks["FT406"].summary  # what a plain Trainer would do
    assert checks["FT502"].evidence["ratio"] == pytest.approx(1, abs=1e-3)
    assert checks["FT103"].status == "pass"
    for name, changes in {
        "pad_to_multiple_of=8": {"loader.pad_to_multiple_of": 8},
        "the dynamic collator": {"loader.collator": "dynamic"},
        "the fixed collator": {"loader.collator": "fixed"},
    }.items():
        only = ("FT403",) if "fixed" in name else ()  # twelve times the slots: what else it could be is in test_checks_batch
        found = world.quiet(f"incident 2, refuted: {name}", {**run, **changes}, stages=("batch", "model"), select=only)
        assert found["FT403"].evidence["loss"] == pytest.approx(first, rel=1e-3)


def test_labels_that_are_not_those_of_the_head_are_named(world: World, run: dict[str, Any], tmp_path: Path) -> None:
    prepared = Path(run["dataset.sources"][0])
    rows = world.rows(prepared)
    beyond = [(ids, 280 if number == 7 else label) for number, (ids, label) in enumerate(rows)]
    values = {**run, **world.rewritten(tmp_path / "beyond", {"train": beyond}, like=prepared)}
    world.caught("incident 2: a label beyond the head's", values, "FT203", words="row 7 of train has the label 280", stages=("data",))
    one = [(ids, 3) for ids, _ in rows]
    values = {**run, **world.rewritten(tmp_path / "one", {"train": one}, like=prepared)}
    world.caught("incident 2: one label for all", values, "FT203", words="all rows have the label", stages=("data",))


def test_pad_that_is_eos_is_refuted(world: World, run: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = world.tokenizer(tmp_path / "pad-is-eos", Path(run["tokenizer.path"]), pad_token="<|im_end|>")
    prepared = Path(run["dataset.sources"][0])
    store = world.rewritten(tmp_path / "store", {name: world.rows(prepared, name)[:200] for name in ("train", "test")}, like=prepared)
    values = {**run, **store, "tokenizer.path": tokenizer}
    checks = world.quiet("incident 2, refuted: PAD is EOS", values, stages=("tokenizer", "batch", "model"))
    assert checks["FT103"].status == "info"
    same = world.verify({**run, **store}, stages=("model",), select=("FT403",))
    assert checks["FT403"].evidence["loss"] == pytest.approx(same["FT403"].evidence["loss"], rel=1e-5)


def test_a_loss_that_is_not_divided_is_the_one_that_is_named(world: World, run: dict[str, Any]) -> None:
    plugins = world.plugins(NOT_DIVIDED.format(base="Classify", change="return super().loss(logits, labels, None)"))
    check = world.caught("incident 2: loss × 12", run, "FT502", "FT406", words="12 times", stages=("model", "steps"), plugins=plugins)
    assert check.evidence["logged"] == pytest.approx(12 * math.log(280), rel=0.03)


@pytest.mark.parametrize(
    ("cause", "changes", "check", "status"),
    [
        ("a head that starts too large", {"initializer_range": 0.7}, "FT403", ("warn", "fail")),
        ("a warm-up that does not end", {"train.warmup_steps": 7004}, "FT053", ("fail",)),
    ],
)
def test_every_other_cause_is_named_by_its_own_check(
    world: World, run: dict[str, Any], cause: str, changes: dict[str, Any], check: str, status: tuple[str, ...]
) -> None:
    values = {**run, **{key: value for key, value in changes.items() if "." in key}}
    if "initializer_range" in changes:
        values["model.config_overrides"] += f",initializer_range={changes['initializer_range']}"
    checks = world.verify(values, stages=("settings", "model"))
    bad = {name for name, found in checks.items() if found.status in {"warn", "fail", "error"}}
    assert bad == {check}, {name: checks[name].summary for name in bad}
    assert checks[check].status in status
    world.table.append((f"incident 2: {cause}", f"{check} {checks[check].status}", "", 0.0))


@pytest.mark.usefixtures("nursery")
def test_plain_trainer_multiplies_and_ftcli_does_not(program: ModuleType, run: dict[str, Any], tmp_path: Path) -> None:
    given = program.options(
        Path(run["dataset.sources"][0]), Path(run["tokenizer.path"]), run["model.config"], run["model.config_overrides"]
    )
    program.plain(tmp_path / "one.json", 1, given)
    one = json.loads((tmp_path / "one.json").read_text())["loss"]
    assert one == pytest.approx(math.log(280), rel=0.02)
    assert program.with_trainer(tmp_path, given, 2, 6)["loss"] / one == pytest.approx(12, rel=0.01)
    assert program.with_ftcli(tmp_path, given, 2, 6)["loss"] == pytest.approx(one, rel=1e-4)


def test_the_page_holds_the_table_that_the_program_writes(program: ModuleType) -> None:
    page = (ROOT / "docs" / "incident-2.md").read_text(encoding="utf-8")
    rows = page.partition(program.BEGIN)[2].partition(program.END)[0].strip().splitlines()
    cells = {row.split("|")[1].strip(): [float(cell) for cell in row.split("|")[2:-1]] for row in rows[2:]}
    assert set(cells) == {f"{processes} × {steps}" for processes, steps in program.CUTS}
    for plain, _, ours, _ in cells.values():
        assert ours == pytest.approx(math.log(280), rel=0.02)
        assert plain / ours == pytest.approx(12, rel=0.01) or plain == pytest.approx(ours)
