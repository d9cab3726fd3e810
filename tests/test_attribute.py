"""`ftcli benchmark attribute`: what differs, what is switched together, how a run is scaled, and the report, without running any training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ftcli.commands import benchmark
from ftcli.context import Context
from ftcli.core.benchmark import factors, full_path, worker_counts
from ftcli.core.benchmark.attribution import Cost, Volume
from ftcli.core.benchmark.full_path import Measured, Texts
from ftcli.core.benchmark.spread import Spread
from ftcli.core.publishing.publish import MANIFEST_NAME
from ftcli.core.reports.report import render_html
from ftcli.errors import SettingsError, TrainError, UsageError
from ftcli.records import Report
from ftcli.settings import Settings, update
from ftcli.sources import resolve
from tokenizing import corpus, write


def settings(**values: Any) -> Settings:
    return update(Settings(), {key.replace("__", "."): value for key, value in values.items()})


def names(base: Settings, new: Settings) -> list[tuple[str, str]]:
    return [(factor.name, factor.kind) for factor in factors.compare(base, new).factors]


# -- what differs --------------------------------------------------------------------------------------------------------


def test_every_difference_is_a_factor_or_named_with_why_it_is_none() -> None:
    base = settings(loader__collator="fixed", train__output_dir="a", train__seed=1, dataset__num_proc=2, train__eval_steps=10)
    new = settings(
        loader__collator="dynamic", train__output_dir="b", train__seed=2, dataset__num_proc=1, train__eval_steps=1, train__push_to_hub=True
    )
    found = factors.compare(base, new)
    assert names(base, new) == [("dataset.num_proc", "code"), ("loader.collator", "code")]
    assert {key: why.split()[0] for key, (_, _, why) in found.unmeasured.items()} == {
        "train.output_dir": "names",
        "train.seed": "changes",
        "train.eval_steps": "evaluations,",
        "train.push_to_hub": "evaluations,",
    }


def test_settings_that_need_each_other_are_switched_together() -> None:
    base = settings(packing__strategy="bfd", loader__collator="packed", loader__num_workers=2, loader__prefetch_factor=4)
    new = settings(loader__collator="dynamic")
    assert names(base, new) == [
        ("packing.strategy + loader.collator", "code"),
        ("loader.num_workers + loader.prefetch_factor", "code"),
    ]
    assert names(settings(), settings(train__per_device_train_batch_size=4, train__max_tokens_per_batch=4_096)) == [
        ("train.per_device_train_batch_size + train.max_tokens_per_batch", "code")
    ]
    lora = settings(model__lora_r=8, model__lora_alpha=16, model__load_in_4bit=True, train__optim="adafactor", train__optim_args="a=1")
    assert names(settings(), lora) == [
        ("model.lora_r + model.lora_alpha + model.load_in_4bit", "code"),
        ("train.optim + train.optim_args", "code"),
    ]
    found = factors.compare(base, new)
    assert factors.switched(found, frozenset(["packing.strategy + loader.collator"])) == {
        "packing.strategy": None,
        "loader.collator": "dynamic",
    }


def test_more_data_are_a_volume_and_other_texts_a_factor() -> None:
    base = settings(dataset__sources=["a"], train__num_train_epochs=1.0)
    new = settings(dataset__sources=["b"], train__num_train_epochs=3.0)
    assert names(base, new) == [("data volume", "volume"), ("the texts themselves", "data")]
    assert [factor.name for factor in factors.measured(factors.compare(base, new))] == ["the texts themselves"]


def test_configurations_are_read_from_files_and_from_runs_and_the_command_line_counts_above(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("DATASET_NUM_PROC", "7")
    (tmp_path / "a.toml").write_text("[dataset]\nnum_proc = 2\n")
    (tmp_path / "a.json").write_text('{"dataset": {"num_proc": 3}}')
    run = {"schema": "ftcli.report/1", "settings": {}}
    run["settings"] = {"dataset.num_proc": {"value": 4, "origin": "--num-proc"}, "train.seed": {"value": 9, "origin": "default"}}  # type: ignore[dict-item]
    (tmp_path / "ftcli-run.json").write_text(json.dumps(run))
    assert [factors.read_settings(tmp_path / name, {}).dataset.num_proc for name in ("a.toml", "a.json", "ftcli-run.json")] == [2, 3, 4]
    assert factors.read_settings(tmp_path / "ftcli-run.json", {}).train.seed == 42
    assert factors.read_settings(tmp_path / "a.toml", {"dataset.num_proc": 5}).dataset.num_proc == 5
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "empty.json").write_text('{"schema": "ftcli.report/1"}')
    for name, held in (("words", '"x"'), ("bare", '{"train.seed": 1}'), ("orphan", '{"train.seed": {"value": 1}}')):
        (tmp_path / f"{name}.json").write_text(f'{{"schema": "ftcli.report/1", "settings": {held}}}')
        with pytest.raises(SettingsError, match=f"{name}.json is not a run's report"):
            factors.read_settings(tmp_path / f"{name}.json", {})
    with pytest.raises(SettingsError) as missing:
        factors.read_settings(tmp_path / "none.toml", {})
    assert "--config" not in missing.value.hint
    for name, words in (("broken", "cannot be read"), ("empty", "does not contain the settings"), ("none", "does not exist")):
        with pytest.raises(SettingsError, match=words):
            factors.read_settings(tmp_path / f"{name}.json", {})


# -- one run ---------------------------------------------------------------------------------------------------------------


def test_texts_from_everywhere_are_cut_and_all_are_counted(tmp_path: Path) -> None:
    source = write(tmp_path / "data.jsonl", corpus(30), ["a", "b", "c"] * 10)
    context = Context.make({"dataset.sources": [str(source)], "dataset.label_column": "label"})
    texts = full_path.cut(context, context.settings, tmp_path / "cut", 12)
    assert (texts.rows, texts.trained, texts.exact, texts.prepared) == (30, 30, True, False)
    rows = [json.loads(line) for line in texts.path.read_text().splitlines()]
    places = [corpus(30).index(row["text"]) for row in rows]
    assert len(places) == 12
    assert places == sorted(set(places))
    assert [row["label"] for row in rows] == ["abc"[place % 3] for place in places]
    again = full_path.cut(context, context.settings, tmp_path / "again", 12)
    assert again.path.read_text() == texts.path.read_text()
    whole = full_path.cut(context, context.settings, tmp_path / "whole", 99)
    assert [json.loads(line)["text"] for line in whole.path.read_text().splitlines()] == corpus(30)
    with pytest.raises(UsageError, match="has no data"):
        full_path.cut(context, Settings(), tmp_path / "cut", 12)


@pytest.mark.parametrize("counted", [10**9, 10])
def test_of_data_that_are_sorted_by_label_all_labels_are_cut(counted: int, tmp_path: Path, monkeypatch: Any) -> None:
    """The first rows of such a file have one label, and the run was refused for a column that is fine."""
    source = write(tmp_path / "data.jsonl", corpus(400), [label for label in "abcd" for _ in range(100)])
    values = {"dataset.sources": [str(source)], "dataset.label_column": "label", "dataset.shard_bytes": 1_000}
    context = Context.make(values)
    monkeypatch.setattr(full_path, "COUNTED_BYTES", counted)
    texts = full_path.cut(context, context.settings, tmp_path / "cut", 40)
    labels = [json.loads(line)["label"] for line in texts.path.read_text().splitlines()]
    assert len(labels) == 40
    assert set(labels) == set("abcd")


def test_rows_of_a_stream_do_not_depend_on_its_batches_and_come_from_all_of_it() -> None:
    stream = pa.record_batch({"row": list(range(5_000))})
    found = []
    for size in (7, 640, 5_000):
        spread = Spread(50)
        for begin in range(0, len(stream), size):
            spread.add(stream.slice(begin, size))
            assert len(spread._kept) <= 100
        found.append([row["row"] for row in spread])
    assert found[0] == found[1] == found[2] == sorted(found[0])
    assert np.histogram(found[0], 5, (0, 5_000))[0].min() >= 4


def test_shards_are_taken_here_and_there() -> None:
    shards: Any = list(range(6))
    assert full_path.here_and_there(shards) == [0, 4, 2, 1, 5, 3]
    assert full_path.here_and_there(shards[:1]) == [0]
    assert full_path.here_and_there([]) == []


def test_of_large_sources_the_number_is_estimated(tmp_path: Path, monkeypatch: Any) -> None:
    source = write(tmp_path / "data.jsonl", ["the same text"] * 400)
    context = Context.make({"dataset.sources": [str(source)], "dataset.shard_bytes": 2_000})
    monkeypatch.setattr(full_path, "COUNTED_BYTES", 10)
    texts = full_path.cut(context, context.settings, tmp_path / "cut", 50)
    assert not texts.exact
    assert texts.rows == pytest.approx(400, rel=0.05)


def test_a_run_is_scaled_and_a_file_says_only_what_is_set(tmp_path: Path) -> None:
    texts = Texts(tmp_path / "texts.jsonl", 10, 10, exact=True, prepared=False)
    made = full_path.scaled(
        settings(
            train__eval_strategy="epoch",
            loader__num_workers=2,
            tokenizer__trust_remote_code=True,
            train__push_to_hub=True,
            dataset__source_format="json",
        ),
        texts,
        tmp_path / "out",
        4,
    )
    tree = full_path.tree(made)
    assert tree["train"]["max_steps"] == 4
    assert tree["train"]["eval_strategy"] == "no"
    assert tree["loader"] == {"num_workers": 2}
    assert tree["dataset"] == {"sources": [str(texts.path)]}  # which are JSON lines, whatever they were cut from
    assert "tokenizer" not in tree  # only the command line may turn code on
    assert "push_to_hub" not in tree["train"]  # 20 steps would stand where the model of the whole run stood


def test_a_volume_is_counted_by_epochs_or_by_steps() -> None:
    texts, found = Texts(Path("x"), 1_200, 1_000, exact=True, prepared=False), Measured(Cost(0.0, 0.1), 1.0, 20.0, 90.0)
    assert full_path.volume_of(settings(train__num_train_epochs=2.0), texts, found) == Volume(1_200, 2_000)
    steps = settings(
        train__max_steps=10, train__per_device_train_batch_size=4
    )  # a step has those of all processes, or as many as fit into its tokens
    assert full_path.volume_of(steps, texts, found) == Volume(1_200, 900)
    few = Texts(Path("x"), 60, 50, exact=True, prepared=False)
    assert full_path.volume_of(steps, few, found) == Volume(60, 500)  # a step has no more than there are
    assert full_path.volume_of(settings(), Texts(Path("x"), 10, 10, exact=True, prepared=True), found).prepared == 0


def test_seconds_of_a_text_come_from_the_report_and_the_manifest() -> None:
    report = {"metrics": {"real_tokens_per_second": 1_000.0, "steps": 3, "epochs": 0.6}}
    manifest = {"splits": {"train": {"rows": 50, "tokens": 2_000}}, "metrics": {"rows_written": 100, "examples_per_second": 400.0}}
    found = full_path.read_measured(report, manifest, Settings())
    assert found == Measured(Cost(1 / 400, 20 / 1_000), 1_000.0, 20.0, 20.0)
    more = {**report, "details": {"rows_per_step": 64.0}}  # the benchmark's rows do not fill a step, and those of the whole run do
    assert full_path.read_measured(more, manifest, Settings()).texts_per_step == 128.0
    with pytest.raises(TrainError, match="too short"):
        full_path.read_measured({"metrics": {"real_tokens_per_second": None}}, manifest, Settings())


def test_a_configuration_inherits_no_settings_and_none_of_what_ftcli_set(monkeypatch: Any) -> None:
    monkeypatch.setenv("DATASET_NUM_PROC", "7")
    monkeypatch.setenv("FTCLI_PROFILE", "highend")
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    context = Context.make({"runtime.threads": 1})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = full_path.environment(context)
    assert found["SOMETHING_ELSE"] == "1"
    assert not {"DATASET_NUM_PROC", "FTCLI_PROFILE", "OMP_NUM_THREADS"} & set(found)


def test_what_a_profile_says_is_a_ceiling_in_a_child_as_well(tmp_path: Path, monkeypatch: Any) -> None:
    """A file's 12 workers are kept, a profile's are cut to the cores: the child ran with 12 on 8 cores, and the user's run with 8."""
    values = {"dataset.num_proc": (12, "profile standard"), "dataset.batch_size": (10_000, "profile standard")}
    items = {key: {"value": value, "origin": origin} for key, (value, origin) in values.items()}
    (tmp_path / "ftcli-run.json").write_text(json.dumps({"schema": "ftcli.report/1", "settings": items}))
    ceilings = factors.read_ceilings(tmp_path / "ftcli-run.json")
    assert ceilings == {("dataset.num_proc", 12)}
    found = []

    def run(words: list[str], _: Any) -> Any:
        profile = words[words.index("--profile") + 1] if "--profile" in words else None
        found.append(resolve({}, Path(words[words.index("--config") + 1]), profile, environ={}))
        return SimpleNamespace(returncode=0, stdout="{}", stderr="")

    monkeypatch.setattr(full_path.dies_with_parent, "run", run)
    for workers in (12, 4):
        full_path.run_child("train", settings(dataset__num_proc=workers), tmp_path, {}, (), ceilings)
    assert [(made.settings.dataset.num_proc, made.origin("dataset.num_proc").split()[0]) for made in found] == [
        (12, "profile"),
        (4, str(tmp_path / "config.json")),
    ]


def test_a_configuration_that_cannot_run_says_why(tmp_path: Path, monkeypatch: Any) -> None:
    class Done:
        returncode, stderr = 1, ""
        stdout = json.dumps({"error": {"message": "no model", "hint": "Give one."}}) + "\n"

    monkeypatch.setattr(full_path.dies_with_parent, "run", lambda *_: Done)
    with pytest.raises(TrainError, match="does not run: no model"):
        full_path.run_path(Settings(), tmp_path / "run", {})
    assert not (tmp_path / "run").exists()


# -- the whole command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: Any) -> Any:
    """The command on two files; a run costs what `costs` says of its settings."""
    source = write(tmp_path / "small.jsonl", corpus(10))
    large = write(tmp_path / "large.jsonl", corpus(100))
    base = f'[dataset]\nsources = ["{source}"]\n[loader]\ncollator = "dynamic"\n[train]\nseed = 1\n'
    new = f'[dataset]\nsources = ["{large}"]\n[loader]\ncollator = "fixed"\n[train]\nseed = 2\n'
    (tmp_path / "base.toml").write_text(base)
    (tmp_path / "new.toml").write_text(new)

    def run_path(made: Settings, folder: Path, *_: Any) -> Measured:
        assert made.train.max_steps == 3
        assert folder.name == "run"
        slow = 1.5 if made.loader.collator == "fixed" else 1.0
        return Measured(Cost(0.001, 0.01 * slow), 2_000 / slow, 20.0, 8.0)

    def run(*files: str, **values: Any) -> Report:
        given = {"benchmark.steps": 3, "benchmark.repeats": 4, "runtime.report_dir": tmp_path / "reports", **values}
        return benchmark.run(Context.make(given), "attribute", files or (str(tmp_path / "base.toml"), str(tmp_path / "new.toml")))

    monkeypatch.setattr(full_path, "run_path", run_path)
    return run


def test_the_table_names_every_factor_with_its_part_and_what_is_left(measured: Any) -> None:
    report = measured()
    metrics = report.metrics
    assert [(each["name"], each["kind"]) for each in metrics["factors"]] == [
        ("data volume", "volume"),
        ("loader.collator", "code"),
        ("the texts themselves", "data"),
    ]
    assert metrics["factors"][0]["alone"]["median"] == pytest.approx(10)
    assert metrics["total"]["verdict"] == "slower"
    assert sum(each["share"] for each in metrics["factors"]) + metrics["unexplained"]["share"] == pytest.approx(1)
    assert metrics["factors"][1]["base"] == {"loader.collator": "dynamic"}
    assert [each["setting"] for each in metrics["unmeasured"]] == ["train.seed"]
    assert metrics["measurements"][0].unit == "real tokens/s"
    assert metrics["volume"]["new"]["trained"] == 300
    assert "data volume" in report.details["title"]
    assert [row[0] for row in report.details["table"]["rows"]][-2:] == ["unexplained", "total"]


@pytest.mark.usefixtures("drawn")
def test_the_page_has_the_table_and_the_waterfall(measured: Any) -> None:
    report = measured()
    page = render_html(report)
    assert page == render_html(report)
    for words in (
        "Where the difference comes from",
        "From the base to the new configuration",
        "What differs",
        "loader.collator",
        "unexplained",
        "alone within the noise: no difference was found",
    ):
        assert words in page
    wide = re.search(r"<svg[^>]*factors-wide.*?</svg>", page, re.DOTALL)
    assert wide is not None
    bars = re.findall(r'z\n" clip-path="[^"]*" style="fill: var\(--(\w+)\)"', wide[0])
    assert bars == ["s1", "bad", "bad", "muted", "s1"]  # base, volume, collator, texts themselves, new
    assert re.search(r"the texts themselves from [^;]* \(within the noise\);", wide[0])
    document = json.loads(Path(report.paths["json"]).read_text())
    assert document["metrics"]["total"]["n"] == 4


def test_what_cannot_be_compared_is_refused(measured: Any, tmp_path: Path) -> None:
    base = str(tmp_path / "base.toml")
    with pytest.raises(UsageError, match="have the same settings"):
        measured(base, base)
    with pytest.raises(UsageError, match="two configurations, but 1 are given"):
        measured(base)
    with pytest.raises(UsageError, match="takes no 'data'"):
        benchmark.run(Context.make({}), "batch", ("data",))


def test_epochs_that_a_number_of_steps_rules_out_are_no_difference(measured: Any, tmp_path: Path) -> None:
    """Nothing was left to attribute, and the first factor of none was asked for at the end."""
    few, many = tmp_path / "few.toml", tmp_path / "many.toml"
    source = tmp_path / "small.jsonl"
    for path, epochs, collator in ((few, 1, "dynamic"), (many, 3, "dynamic"), (tmp_path / "fixed.toml", 3, "fixed")):
        path.write_text(
            f'[dataset]\nsources = ["{source}"]\n[loader]\ncollator = "{collator}"\n[train]\nmax_steps = 5\nnum_train_epochs = {epochs}\n'
        )
    with pytest.raises(UsageError, match=r"no difference between the configurations changes a run: train.num_train_epochs \(1.0 and 3.0\)"):
        measured(str(few), str(many))
    report = measured(str(few), str(tmp_path / "fixed.toml"))
    assert [each["name"] for each in report.metrics["factors"]] == ["loader.collator"]
    assert any("train.num_train_epochs (1.0 and 3.0)" in note for note in report.notes)


def test_workers_that_few_rows_cannot_tell_are_not_measured(measured: Any, tmp_path: Path, monkeypatch: Any) -> None:
    source = write(tmp_path / "many.jsonl", corpus(400))
    for workers, collator in ((1, "dynamic"), (2, "fixed"), (3, "dynamic")):
        (tmp_path / f"{workers}.toml").write_text(
            f'[dataset]\nsources = ["{source}"]\nnum_proc = {workers}\nshard_bytes = 2000\n[loader]\ncollator = "{collator}"\n'
        )
    files = [str(tmp_path / f"{workers}.toml") for workers in (1, 2, 3)]
    report = measured(*files[:2], **{"benchmark.rows": 50})
    assert [each["name"] for each in report.metrics["factors"]] == ["loader.collator"]
    assert [each["setting"] for each in report.metrics["unmeasured"]] == ["dataset.num_proc"]
    assert any("dataset.num_proc (1 and 2)" in note and "--rows" in note for note in report.notes)
    with pytest.raises(UsageError, match=r"have the same settings but dataset.num_proc, which is not measured \(50 rows"):
        measured(files[0], files[2], **{"benchmark.rows": 50})
    monkeypatch.setattr(worker_counts, "SHARD_BYTES", 100)
    found = measured(*files[:2], **{"benchmark.rows": 50})
    assert {each["name"] for each in found.metrics["factors"]} == {"dataset.num_proc", "loader.collator"}


def three(tmp_path: Path, monkeypatch: Any, fails: Any) -> tuple[str, str]:
    """Two files that differ in three settings; a run fails by what `fails` says of its settings and of how many there were."""
    source, asked = tmp_path / "small.jsonl", list[Settings]()
    for name, collator, threads, workers in (("a", "dynamic", 1, 1), ("b", "fixed", 2, 2)):
        (tmp_path / f"{name}.toml").write_text(
            f'[dataset]\nsources = ["{source}"]\nbatch_size = {workers}\n[loader]\ncollator = "{collator}"\n[runtime]\nthreads = {threads}\n'
        )

    def run_path(made: Settings, *_: Any) -> Measured:
        asked.append(made)
        fails(made, len(asked))
        return Measured(Cost(0.001, 0.01 * (1.5 if made.loader.collator == "fixed" else 1.0)), 2_000, 20.0, 8.0)

    monkeypatch.setattr(full_path, "run_path", run_path)
    return str(tmp_path / "a.toml"), str(tmp_path / "b.toml")


def test_settings_that_cannot_run_apart_are_measured_as_one(measured: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def fails(made: Settings, _: int) -> None:
        if (made.loader.collator == "fixed") != (made.runtime.threads == 2):
            raise TrainError("a configuration does not run: fixed needs two threads", "")

    report = measured(*three(tmp_path, monkeypatch, fails))
    assert [each["name"] for each in report.metrics["factors"]] == ["loader.collator + runtime.threads", "dataset.batch_size"]
    assert report.metrics["factors"][0]["new"] == {"loader.collator": "fixed", "runtime.threads": 2}
    assert {(m.name, m.n) for m in report.metrics["measurements"][:2]} == {("base", 4), ("new", 4)}
    assert any("loader.collator, runtime.threads (a configuration does not run: fixed needs" in note for note in report.notes)


def test_a_run_that_fails_later_ends_the_rounds_and_what_was_measured_counts(measured: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def fails(_: Settings, asked: int) -> None:
        if asked == 2 + 2 * 8 + 3:  # in the third round
            raise TrainError("out of memory", "")

    report = measured(*three(tmp_path, monkeypatch, fails))
    assert {each["alone"]["n"] for each in report.metrics["factors"]} == {report.metrics["total"]["n"]} == {2}
    assert sum("left out" in note and "out of memory" in note for note in report.notes) == 1


@pytest.mark.parametrize("again", [False, True], ids=["in the first round", "in the third"])
def test_an_interruption_keeps_the_complete_rounds_and_does_not_promise_to_go_on(
    again: bool, measured: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def stops(_: Settings, asked: int) -> None:
        if asked == 2 + 5 + 16 * again:
            raise KeyboardInterrupt

    files = three(tmp_path, monkeypatch, stops)
    if not again:
        with pytest.raises(KeyboardInterrupt):
            measured(*files)
        return
    report = measured(*files)
    assert (report.status, report.metrics["total"]["n"]) == ("interrupted", 2)
    assert "cannot be resumed" in report.error["hint"]
    document = json.loads(Path(report.paths["json"]).read_text())
    assert (document["status"], document["error"]["code"]) == ("interrupted", "interrupted")


ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="the benchmarks are in the source tree only")
def test_a_planted_slowdown_counts_as_found_only_where_it_is_first_and_its_share_right(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import planted

    first = {"name": "loader.collator", "base": {"loader.collator": "dynamic"}, "alone": {"verdict": "slower", "median": 2.0}, "share": 0.9}
    slow = {"loader": {"collator": "sleepy"}}
    assert planted.judge({"factors": [first]}, slow)[0]
    for other in (
        {"share": 0.8},
        {"share": None},
        {"base": {"train.logging_steps": 10}},
        {"alone": {"verdict": "no difference", "median": 1.1}},
    ):
        assert not planted.judge({"factors": [{**first, **other}]}, slow)[0]
    for name, (base, new, _) in planted.cases().items():  # every case differs in what was planted, and in the two decoys
        for file, parts in (("base", (base,)), ("new", (planted.DECOYS, new))):
            (tmp_path / f"{file}.json").write_text(json.dumps(planted.configuration(tmp_path, *parts)))
        found = factors.compare(*(factors.read_settings(tmp_path / f"{file}.json", {}) for file in ("base", "new")))
        assert len(found.factors) == 3, name
        assert {"dataset.writer_batch_size", "train.logging_steps"} < {factor.name for factor in found.factors}


def test_the_configurations_of_incident_1_can_be_read_and_differ_in_what_was_blamed() -> None:
    folder = ROOT / "examples" / "incident1"
    base, new = (factors.read_settings(folder / f"{each}.toml", {}) for each in ("base", "new"))
    blamed = {"data volume", "the texts themselves", "dataset.num_proc", "loader.collator", "runtime.manage_environment"}
    assert blamed <= {factor.name for factor in factors.compare(base, new).factors}
    assert "incident1/corpus" in (folder / "make.sh").read_text()


def test_a_setting_of_the_command_line_counts_for_both(measured: Any) -> None:
    report = measured(**{"loader.collator": "dynamic"})
    assert [each["name"] for each in report.metrics["factors"]] == ["data volume", "the texts themselves"]


def test_texts_of_packs_and_of_rows_are_counted_alike(tmp_path: Path) -> None:
    """A thousand texts at a second each thousand tokens, however they were packed and split."""

    def made(rows: dict[str, int], written: int) -> dict[str, Any]:
        splits = {name: {"rows": count, "tokens": count * 100_000 // sum(rows.values())} for name, count in rows.items()}
        return {"splits": splits, "metrics": {"rows_written": written}}

    report = {"metrics": {"real_tokens_per_second": 1_000.0, "steps": 10, "epochs": 1.0}}
    for rows in ({"train": 1_000}, {"train": 100}, {"train": 900, "validation": 100}, {"train": 90, "validation": 10}):
        manifest = made(rows, 1_000)
        (tmp_path / MANIFEST_NAME).write_text(json.dumps(manifest))
        given = settings(dataset__sources=[str(tmp_path)], train__num_train_epochs=1.0, dataset__validation_fraction=0.1)
        texts = full_path.cut(Context.make({"dataset.sources": [str(tmp_path)]}), given, tmp_path, 10)
        found = full_path.read_measured(report, None, given)
        volume = full_path.volume_of(given, texts, found)
        assert texts.trained == (1_000 if len(rows) == 1 else 900)
        assert volume.trained * found.cost.train == pytest.approx(manifest["splits"]["train"]["tokens"] / 1_000)
