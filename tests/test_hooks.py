"""Every hook, by a third-party plugin from a folder and from an entry point: called with its signature, and its result used.

The plugins are the examples of docs/hooks.md, and recorders that write down what they were called with.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftcli import environment, hookspecs
from ftcli.contracts import BatchSpec, Columns
from ftcli.contracts_export import ExportJob
from ftcli.core.storage.store import Ragged, Rows, Store
from ftcli.errors import PluginError, TrainError
from ftcli.machine import detect
from ftcli.pluginmanager import KINDS, RECORDS
from ftcli.records import Piece, Report, ShardPlan, Step
from ftcli.settings import Settings, update
from ftcli.testing import TEXTS, run, tiny_tokenizer, write_config
from stores import write_store
from thirdparty import WAYS, Load, install, loader, put

PAGE = Path(__file__).resolve().parent.parent / "docs" / "hooks.md"
HOOKS = {name: hook for name, hook in vars(hookspecs).items() if hasattr(hook, "ftcli_spec")}

needs_page = pytest.mark.skipif(not PAGE.is_file(), reason="the suite runs outside a source tree")


def section(hook: str) -> str:
    """What the page says about a hook."""
    match = re.search(rf"^## {hook}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert match, f"docs/hooks.md has no section {hook}"
    return match[1]


def example(hook: str) -> str:
    """The example plugin of a hook."""
    match = re.search(r"```python\n(.*?)```", section(hook), re.DOTALL)
    assert match, f"docs/hooks.md has no example for {hook}"
    assert f"def {hook}(" in match[1]
    return match[1]


@pytest.fixture(params=WAYS)
def load(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(request.param, monkeypatch, tmp_path / "third-party")


@pytest.fixture
def factory(load: Load) -> Callable[[str, str], Any]:
    """factory(kind, name): what the page's example registers under that name."""
    return lambda kind, name: load(example(f"register_{kind}s")).registry(kind).get(name)


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


# -- the page ----------------------------------------------------------------------------------------------------------


def test_there_are_hooks_to_look_at() -> None:
    assert len(HOOKS) == 4 + len(KINDS)


@needs_page
@pytest.mark.parametrize("hook", HOOKS)
def test_the_page_has_every_hook_with_its_exact_signature_and_its_whole_contract(hook: str) -> None:
    text = section(hook)
    signature = str(inspect.signature(HOOKS[hook])).replace("'", "")

    assert f"```text\n{hook}{signature}\n```" in text
    assert " ".join((inspect.getdoc(HOOKS[hook]) or "").split()) in " ".join(text.split())
    assert "Called" in text


@needs_page
def test_the_page_has_no_hook_that_does_not_exist() -> None:
    signatures = re.findall(r"^```text\n(\w+)\(", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert signatures == list(HOOKS)


# -- called with its signature -----------------------------------------------------------------------------------------

RECORDER = """
    from ftcli import hookimpl

    CALLS = []

    @hookimpl
    def {hook}({arguments}):
        CALLS.append(({arguments},))
"""


OFFERS: dict[str, Any] = {"collator": {"make": print}, "check": {"id": "late", "stage": "env", "title": "Late", "run": print}}


def recorder(load: Load, hook: str) -> tuple[Any, list[tuple[Any, ...]]]:
    """Plugins with one that writes down what the hook is called with, all of its arguments in the signature's order."""
    plugins = load(RECORDER.format(hook=hook, arguments=", ".join(inspect.signature(HOOKS[hook]).parameters)))
    return plugins, plugins.objects()["other"].CALLS


@pytest.mark.parametrize("kind", KINDS)
def test_register_hooks_are_called_once_with_a_callback(kind: str, load: Load) -> None:
    plugins, calls = recorder(load, f"register_{kind}s")
    plugins.registry(kind)
    registry = plugins.registry(kind)

    ((register,),) = calls
    offer = RECORDS[kind](**OFFERS[kind]) if kind in RECORDS else print
    register("late", offer, replace=False)
    found = registry.get("late")
    assert getattr(found, "factory", found) == offer
    assert registry.owner("late") == "other"


def test_the_environment_hook_is_called_once_with_settings_and_machine(load: Load) -> None:
    plugins = load(RECORDER.format(hook="environment", arguments="settings, machine") + "        return {}\n")
    settings, machine = Settings(), detect()
    environment.compute(plugins, settings, machine)

    assert [(settings, machine)] == plugins.objects()["other"].CALLS


def test_load_tokenizer_is_called_with_the_settings_and_then_the_built_in(load: Load, tokenizer_folder: Path) -> None:
    plugins, calls = recorder(load, "load_tokenizer")
    settings = update(Settings(), {"tokenizer.path": str(tokenizer_folder)})

    assert plugins.load_tokenizer(settings).pad_token == "<pad>"
    assert calls == [(settings,)]


def test_notifications_are_called_with_what_happened(load: Load) -> None:
    step = Step(1, 0.1, 5.6, 1.0, 1e-5)
    plugins, calls = recorder(load, "on_step")
    plugins.hook.on_step(step=step)
    assert calls == [(step,)]


def test_after_run_is_called_with_command_settings_and_report(load: Load) -> None:
    report = Report("train", "failed", 1.0, {})
    plugins, calls = recorder(load, "after_run")
    plugins.hook.after_run(command="train", settings=Settings(), report=report)

    assert calls == [("train", Settings(), report)]


# -- the examples work -------------------------------------------------------------------------------------------------


@needs_page
def test_the_environment_example_sets_its_variable(load: Load) -> None:
    plugins = load(example("environment"))
    settings = update(Settings(), {"tracking.report_to": ["mlflow"]})
    environ: dict[str, str] = {}

    notes = environment.apply(plugins, settings, detect(), environ)

    assert environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"
    assert "HF_HUB_DISABLE_PROGRESS_BARS=1: a tracker's log has no use for bars" in notes
    assert "HF_HUB_DISABLE_PROGRESS_BARS" not in environment.compute(plugins, Settings(), detect())


def test_a_plugin_that_contradicts_the_built_in_environment_is_named(load: Load) -> None:
    plugins = load("""
        from ftcli import hookimpl
        from ftcli.records import Tweak

        @hookimpl
        def environment(machine):
            return {"OMP_NUM_THREADS": Tweak("4096", "more is more")}
    """)

    with pytest.raises(PluginError, match="plugins 'environment' and 'other' disagree on OMP_NUM_THREADS"):
        environment.compute(plugins, Settings(), detect())


@needs_page
def test_the_tokenizer_example_comes_before_the_built_in(load: Load, tokenizer_folder: Path) -> None:
    plugins = load(example("load_tokenizer"))
    file, folder = tokenizer_folder / "tokenizer.json", tokenizer_folder

    first = plugins.hook.load_tokenizer(settings=update(Settings(), {"tokenizer.path": str(file)}))
    assert first.pad_token_id == 0
    assert first.eos_token is None  # the file by itself does not say

    second = plugins.hook.load_tokenizer(settings=update(Settings(), {"tokenizer.path": str(folder)}))
    assert second.eos_token == "<eos>"


@needs_page
def test_the_source_example_reads_its_files(factory: Callable[[str, str], Any], tmp_path: Path) -> None:
    path = tmp_path / "a.fortune"
    path.write_text("One.\n%\nTwo\nlines.\n%\n\n%\nThree.\n", encoding="utf-8")
    source = factory("source", "fortune")()

    (piece,) = source.plan(str(path), 10, Settings())
    (batch,) = source.read(piece, Columns("text"), Settings(), print)

    assert batch.column("text").to_pylist() == ["One.", "Two\nlines.", "Three."]


@needs_page
def test_the_engine_example_gives_the_ids_of_the_reference(factory: Callable[[str, str], Any], tokenizer_folder: Path) -> None:
    import pyarrow as pa
    from transformers import AutoTokenizer

    texts = ["The parcel came.", "", "환불받고 싶습니다"]
    reference = AutoTokenizer.from_pretrained(str(tokenizer_folder))

    encoder = factory("engine", "plain")().load((tokenizer_folder / "tokenizer.json").read_text(), tokenizer_folder, 1)
    encoded = encoder.encode(pa.array(texts, pa.large_string()))

    rows = [encoded.ids[start:stop].tolist() for start, stop in zip(encoded.offsets[:-1], encoded.offsets[1:], strict=True)]
    assert rows == reference(texts, add_special_tokens=False)["input_ids"]
    assert (encoded.ids.dtype, encoded.offsets.dtype) == (np.int32, np.int64)


def _rows(*lengths: int) -> Rows:
    total = sum(lengths)
    return Rows(np.arange(len(lengths)), Ragged(np.arange(1, total + 1, dtype=np.int32), np.cumsum([0, *lengths])))


@needs_page
def test_the_task_example_learns_the_endings(factory: Callable[[str, str], Any]) -> None:
    assert factory("task", "ending")().labels(_rows(4, 1, 3)).tolist() == [-100, -100, 3, 4, -100, -100, 7, 8]


@needs_page
def test_the_packer_example_keeps_the_order_and_the_limit(factory: Callable[[str, str], Any]) -> None:
    packer = factory("packer", "next-fit")()

    packs = packer.pack(np.array([4, 4, 4, 10, 1, 9]), 10)

    assert packs.pack_offsets.tolist() == [0, 2, 3, 4, 6]
    assert packs.document.tolist() == list(range(6))
    assert packer.pack(np.array([], np.int64), 10).pack_offsets.tolist() == [0]


@needs_page
def test_the_collator_example_pads_on_the_left(factory: Callable[[str, str], Any]) -> None:
    from ftcli.core.batches.tasks import Pretrain

    batch = factory("collator", "left").make(BatchSpec(0, "right", 8, 1, Pretrain()))(_rows(1, 3))

    assert batch["input_ids"].tolist() == [[0, 0, 1], [2, 3, 4]]


@needs_page
def test_the_check_example_gives_its_verdict(factory: Callable[[str, str], Any]) -> None:
    from dataclasses import replace
    from types import SimpleNamespace

    check = factory("check", "idle")
    verdicts = [check.run(SimpleNamespace(machine=replace(detect(), cores=2, load_average=load))).status for load in (None, 1.9, 2.1)]

    assert (check.id, verdicts) == ("idle", ["pass", "pass", "warn"])


@needs_page
def test_the_executor_example_runs_every_shard(factory: Callable[[str, str], Any]) -> None:
    from ftcli.core import progress

    seen: list[int] = []
    shards = [ShardPlan(index, "train", (Piece("f", "text", 0, size, "bytes", size),)) for index, size in enumerate([1, 3, 2])]

    def work(shard: ShardPlan) -> int:
        progress.report(shard.size, 0, 0)
        return shard.index

    assert list(factory("executor", "largest-first")().run(work, shards, lambda size, *_: seen.append(size))) == [1, 2, 0]
    assert seen == [3, 2, 1]


@needs_page
def test_the_exporter_example_writes_every_row(factory: Callable[[str, str], Any], tmp_path: Path) -> None:
    store: Store = write_store(tmp_path / "store", {"train": [([1, 2], None), ([3], None)], "test": [([4], None)]})

    (tmp_path / "out").mkdir()
    written = list(factory("exporter", "ids")().export(store, tmp_path / "out", ExportJob(("train", "test"))))

    assert [path.read_text() for path in written] == ["[1, 2]\n[3]\n", "[4]\n"]


@needs_page
def test_the_step_example_stops_a_hopeless_run(load: Load) -> None:
    hook = load(example("on_step")).hook.on_step
    hook(step=Step(101, 0.1, 19.0, None, None))

    with pytest.raises(TrainError, match=r"the loss is 69\.5 at step 101"):
        hook(step=Step(101, 0.1, 69.53, None, None))


@needs_page
def test_the_after_run_example_keeps_a_history(load: Load, tmp_path: Path) -> None:
    settings = update(Settings(), {"runtime.report_dir": tmp_path / "reports"})
    hook = load(example("after_run")).hook.after_run
    for status in ("ok", "failed"):
        hook(command="train", settings=settings, report=Report("train", status, 2.5, {"final_loss": float("nan")}))  # type: ignore[arg-type]

    lines = [json.loads(line) for line in (tmp_path / "reports" / "history.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["ok", "failed"]
    assert lines[0]["metrics"] == {"final_loss": None}


# -- the commands reach them -------------------------------------------------------------------------------------------


@needs_page
@pytest.mark.slow
@pytest.mark.usefixtures("nursery")
@pytest.mark.parametrize("way", WAYS)
def test_the_commands_use_what_plugins_offer(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer_folder: Path) -> None:
    """tokenize, verify and train with the examples of the page: each is chosen by its name, each notification arrives."""
    steps = tmp_path / "steps.txt"
    sources = {hook: example(hook) for hook in HOOKS if hook != "on_step"}
    sources["on_step"] = (
        f"from ftcli import hookimpl\n@hookimpl\ndef on_step(step):\n    open({str(steps)!r}, 'a').write(f'{{step.step}} ')\n"
    )
    common = []
    for hook, source in sources.items():
        if way == "folder":
            put(tmp_path / "plugins", source, f"page_{hook}")
            common = ["--plugins-dir", tmp_path / "plugins"]
        else:
            install(monkeypatch, tmp_path / "site" / hook, source, f"page_{hook}")
    jokes = tmp_path / "jokes.fortune"
    jokes.write_text("\n%\n".join(TEXTS * 8), encoding="utf-8")
    tokenizer = ["--tokenizer-path", tokenizer_folder / "tokenizer.json"]
    reports = ["--set", f"runtime.report_dir={tmp_path / 'reports'}"]

    prepared = run(
        *("tokenize", jokes, *tokenizer, "--tokenizer-engine", "plain", "--packing", "next-fit", "--max-length", "64"),
        *("--executor", "largest-first", "--num-proc", "1", "--output-dir", tmp_path / "store", *reports, *common, "--json"),
    )
    assert prepared.exit_code == 0, prepared.stderr
    assert prepared.report["metrics"]["engine"] == "plain"
    assert prepared.report["metrics"]["rows_read"] == len(TEXTS) * 8
    assert {f"page_{hook}" for hook in HOOKS} <= {plugin["name"] for plugin in prepared.report["plugins"]}

    verified = run("verify", "--select", "idle", *reports, *common, "--json")
    assert [check["id"] for check in verified.report["checks"]] == ["idle"], verified.stderr

    trained = run(
        *(
            "train",
            "--mode",
            "ending",
            "--dataset",
            tmp_path / "store",
            *tokenizer,
            "--model-config",
            write_config(tmp_path / "config.json"),
        ),
        *("--output-dir", tmp_path / "run", "--max-steps", "3", "--logging-steps", "1", "--no-verify", *reports, *common, "--json"),
    )
    assert trained.exit_code == 0, trained.stderr
    assert steps.read_text().split() == ["1", "2", "3"]

    exported = run("export", tmp_path / "store", "--format", "ids", "--output-dir", tmp_path / "ids", *reports, *common, "--json")
    assert exported.exit_code == 0, exported.stderr
    assert (tmp_path / "ids" / "train.jsonl").read_text().startswith("[")

    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    alone = ("--packing", "none", "--tokenizer-engine", "plain", "--max-length", "64", "--output-dir", tmp_path / "rows")
    assert run("tokenize", jokes, *tokenizer, *alone, *reports, *common).exit_code == 0
    padded = run(
        *("verify", "--select", "FT301", "--mode", "ending", "--dataset", tmp_path / "rows", *tokenizer, "--collator", "left"),
        *("--set", "tracking.report_to=mlflow", *reports, *common, "--json"),
    )
    masks = [row["mask"] for row in padded.report["checks"][0]["evidence"]["rows"]]
    assert any("×0 " in mask and mask.endswith("×1") for mask in masks), masks
    assert "HF_HUB_DISABLE_PROGRESS_BARS=1: a tracker's log has no use for bars" in padded.report["notes"]

    history = [json.loads(line) for line in (tmp_path / "reports" / "history.jsonl").read_text().splitlines()]
    assert [line["command"] for line in history] == ["tokenize", "verify", "train", "export", "tokenize", "verify"]


FAILS = {
    "raise RuntimeError('vault is sealed')": "RuntimeError: vault is sealed",
    "import sys; sys.exit(0)": "SystemExit: 0",
    "return 'x'": "it returned str",
}


@pytest.mark.parametrize("line", FAILS)
def test_a_load_tokenizer_that_fails_is_named_with_its_plugin(load: Load, line: str) -> None:
    """It was a bug of ftcli's."""
    plugins = load(f"import ftcli\n@ftcli.hookimpl\ndef load_tokenizer(settings):\n    {line}\n")
    with pytest.raises(PluginError, match=re.escape(FAILS[line])) as refused:
        plugins.load_tokenizer(Settings())
    assert "plugin 'other'" in refused.value.message
    assert "failed in load_tokenizer" in refused.value.message


ENDS = {
    "environment(settings, machine)": "failed in environment: SystemExit: licence expired",
    "load_tokenizer(settings)": "failed in load_tokenizer: SystemExit: licence expired",
    "register_checks(register)": "failed in register_checks: SystemExit: licence expired",
}


@pytest.mark.parametrize("hook", ENDS)
def test_a_hook_that_ends_the_process_fails_the_command(tmp_path: Path, hook: str) -> None:
    """ftcli ended with code 0 silently and without a report."""
    put(tmp_path / "plugins", f"import sys\nimport ftcli\n@ftcli.hookimpl\ndef {hook}:\n    sys.exit('licence expired')\n")
    found = run("verify", "--level", "quick", "--tokenizer-path", str(tmp_path), "--plugins-dir", str(tmp_path / "plugins"), "--json")
    assert found.exit_code == 1
    assert ENDS[hook] in json.dumps(found.report)
