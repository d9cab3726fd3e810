"""`ftcli benchmark`: what is measured, that variants do the same work, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from ftcli.commands import benchmark
from ftcli.context import Context
from ftcli.core.benchmark import bench_batch, bench_train, limits
from ftcli.core.benchmark.measure import peak_rss_mb
from ftcli.core.engines import proof
from ftcli.core.verify.probe import Probe
from ftcli.errors import DataError, EngineError, FtcliError, SettingsError, UsageError
from ftcli.pluginmanager import Plugins
from ftcli.records import Measurement, Report
from ftcli.settings import update
from ftcli.testing import tiny_model, tiny_tokenizer, write_config
from tokenizing import Bar, corpus, plugins, prepare, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, a source, and prepared data with labels and packed."""
    root = tmp_path_factory.mktemp("bench")
    tiny_tokenizer(root / "tokenizer")
    source = write(root / "data.jsonl", corpus(60), ["a", "b", "c"] * 20)
    prepare(root / "tokenizer", source, root / "rows", dataset__label_column="label", packing__max_length=64)
    prepare(root / "tokenizer", source, root / "packs", packing__strategy="bfd", packing__max_length=128)
    return root


@pytest.fixture
def run(folder, tmp_path, monkeypatch):
    """Measure quickly, in an own report folder and without plots; values have "__" for the dot."""
    monkeypatch.setattr(benchmark, "filed", lambda report, *_: report)

    def measured(action: str, data: str = "rows", plugins: Plugins | None = None, progress: Bar | None = None, **values: Any) -> Report:
        given = {
            "dataset__sources": [str(folder / data)],
            "tokenizer__path": str(folder / "tokenizer"),
            "benchmark__repeats": 2,
            "benchmark__warmup": 0,
            "benchmark__rows": 24,
            "benchmark__steps": 2,
            "runtime__report_dir": tmp_path / "reports",
            "runtime__cache_dir": tmp_path / "proofs",
            "runtime__threads": 1,
            "train__use_cpu": True,
            **values,
        }
        made = Context.make({key.replace("__", "."): value for key, value in given.items()}, plugins)
        return benchmark.run(made if progress is None else replace(made, progress=progress), action)

    return measured


def found(report: Report) -> Mapping[tuple[str, str], Measurement]:
    return {(m.name, m.unit): m for m in report.metrics["measurements"]}


def work(report: Report, name: str, unit: str) -> float:
    """Amount of a unit in one run: rate times seconds."""
    measured = found(report)
    return measured[name, f"{unit}/s"].samples[0] * measured[name, "seconds"].samples[0]


@pytest.mark.parametrize(("repeats", "said"), [(2, 1), (4, 0)])
def test_too_few_repeats_are_told(run, repeats, said):
    notes = run("batch", benchmark__repeats=repeats).notes
    assert sum("decide nothing" in note for note in notes) == said


def test_collators_are_measured_on_the_same_rows_beside_transformers_own(run, folder):
    report = run("batch", benchmark__rows=60)
    names = {name for name, _ in found(report)}
    assert {"dynamic", "fixed", "bucketed", "transformers"} == names
    for measurement in found(report).values():
        assert measurement.low <= measurement.median <= measurement.high
        assert measurement.n == len(measurement.samples) == 2
    tokens = {round(work(report, name, "real tokens")) for name in names}
    assert tokens == {json.loads((folder / "rows/ftcli-manifest.json").read_text())["metrics"]["tokens"]}
    assert round(work(report, "dynamic", "slots")) == round(work(report, "transformers", "slots"))
    assert work(report, "bucketed", "slots") < work(report, "dynamic", "slots") < work(report, "fixed", "slots") == pytest.approx(60 * 64)
    assert [ratio["unit"] for ratio in report.metrics["ratios"]] == ["real tokens/s"] * 3
    assert all(ratio["verdict"].startswith("not decided") for ratio in report.metrics["ratios"])
    assert report.metrics["action"] == "batch"


def test_the_loader_is_run_with_the_settings_of_a_candidate(folder):
    values = {"dataset.sources": [str(folder / "rows")], "tokenizer.path": str(folder / "tokenizer"), "benchmark.rows": 24}
    probe = Probe(Context.make(values))
    found = {
        size: bench_batch.loading(probe, update(probe.settings, {"loader.collator": "fixed", "train.per_device_train_batch_size": size}))
        for size in (8, 24)
    }
    assert (
        found[8]["real tokens"]
        == found[24]["real tokens"]
        == bench_batch.counted(probe, bench_batch.batches_of(probe, "fixed", probe.settings))["real tokens"]
    )
    assert found[8]["slots"] == 24 * 64
    assert found[8]["seconds"] > 0


def test_every_result_stands_beside_what_the_machine_can_do(run, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_batch, "copied_bytes_per_second", lambda: 1e9)
    report = run("batch", benchmark__rows=60, benchmark__variants=["fixed", "transformers"])
    [row] = report.metrics["limits"]
    tokens = work(report, "fixed", "real tokens")
    assert (row["name"], row["unit"]) == ("fixed", "real tokens/s")
    assert row["best"] == pytest.approx(tokens / ((4 * tokens + 16 * 60 * 64) / 1e9))
    assert row["share"] == pytest.approx(found(report)["fixed", "real tokens/s"].median / row["best"])
    assert any("fixed is at" in note for note in report.notes)
    monkeypatch.setattr(bench_train, "gemm_flops_per_second", lambda *_: 5e9)
    report = run("train", model__config=write_config(tmp_path / "config.json", "qwen3"), benchmark__variants=["fixed/fp32"])
    [row] = report.metrics["limits"]
    assert (row["best"], row["what"]) == (5.0, "matrix products in fp32, 1 thread")
    assert row["share"] > 0


def test_what_of_the_run_is_not_in_the_measured_steps_is_said(run, tmp_path):
    config = write_config(tmp_path / "config.json", "qwen3")
    changed = {"train__optim": "adafactor", "train__gradient_checkpointing": True}
    report = run("train", model__config=config, benchmark__variants=["fixed/fp32"], **changed)
    [note] = [note for note in report.notes if "plain steps" in note]
    assert "train.optim = adafactor" in note
    assert "train.gradient_checkpointing = True" in note
    report = run("train", model__config=config, benchmark__variants=["fixed/fp32"], train__lean_step="off")
    assert not any("plain steps" in note for note in report.notes)


def test_the_limits_are_measured(monkeypatch):
    monkeypatch.setattr(limits, "SECONDS", 0.0)
    monkeypatch.setattr(limits, "WIDTH", {"cpu": 64})
    assert limits.copied_bytes_per_second() > 0
    assert limits.gemm_flops_per_second("fp32", "cpu", 99) > 0
    assert limits.gemm_flops_per_second("bf16", "cpu", 99) > 0
    limits.gemm_flops_per_second.cache_clear()


def test_packed_rows_are_measured_with_the_collator_that_takes_them(run):
    report = run("batch", "packs")
    assert {name for name, _ in found(report)} == {"packed"}
    assert any("transformers is left out: DataCollatorWithPadding does not keep packed texts apart" in note for note in report.notes)


def test_chosen_variants_are_measured_once_each_in_their_order(run):
    bar = Bar()
    report = run("batch", progress=bar, benchmark__variants=["fixed", "transformers", "fixed"], benchmark__warmup=1)
    assert [m.name for m in report.metrics["measurements"] if m.unit == "seconds"] == ["fixed", "transformers"]
    assert [ratio["name"] for ratio in report.metrics["ratios"]] == ["transformers / fixed"]
    assert sum(bar.stages["benchmark batch"]) == bar.totals["benchmark batch"] == 6


@pytest.mark.parametrize(
    ("action", "data", "values", "kind", "word"),
    [
        ("speed", "rows", {}, UsageError, "nothing to measure called 'speed'"),
        ("batch", "rows", {"benchmark__variants": ["dynamc"]}, SettingsError, r"benchmark\.variants = 'dynamc'"),
        ("batch", "packs", {"benchmark__variants": ["transformers"]}, UsageError, "does not keep packed texts apart"),
        ("batch", "packs", {"benchmark__variants": ["dynamic"]}, FtcliError, "dynamic"),
        ("batch", "rows", {"dataset__sources": None}, UsageError, "needs --dataset PREPARED"),
        ("train", "rows", {"tokenizer__path": None}, UsageError, "needs --dataset PREPARED, --tokenizer-path DIR and a model"),
        ("train", "rows", {}, UsageError, "no model"),
        ("tokenize", "rows", {"tokenizer__path": None}, UsageError, "needs --dataset SOURCE"),
        ("batch", "nowhere", {}, FtcliError, "nowhere"),
        ("batch", "raw.jsonl", {}, UsageError, "prepared data are needed"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_what_can(action, data, values, kind, word, run, folder):
    if data.endswith(".jsonl"):
        (folder / data).write_text('{"text": "a"}\n')
    with pytest.raises(kind, match=word) as refused:
        run(action, data, **values)
    assert refused.value.hint


def test_without_a_pad_token_transformers_is_left_out_by_name(run, folder, tmp_path):
    AutoTokenizer.from_pretrained(folder / "tokenizer", pad_token=None).save_pretrained(tmp_path / "unpadded")
    report = run("batch", tokenizer__path=str(tmp_path / "unpadded"))
    assert "transformers" not in {name for name, _ in found(report)}
    assert any("needs a PAD token" in note for note in report.notes)
    with pytest.raises(UsageError, match="needs a PAD token"):
        run("batch", tokenizer__path=str(tmp_path / "unpadded"), benchmark__variants=["transformers"])


def test_steps_are_measured_by_collator_and_precision(run, tmp_path):
    model = write_config(tmp_path / "config.json", "qwen3")
    report = run("train", model__config=model, benchmark__variants=["bucketed/fp32", "fixed", "bucketed/bf16"])
    assert [m.name for m in report.metrics["measurements"] if m.unit == "seconds"] == ["bucketed/fp32", "fixed", "bucketed/bf16"]
    assert round(work(report, "fixed", "steps")) == 2
    assert round(work(report, "fixed", "slots")) == 2 * 8 * 64
    assert work(report, "bucketed/fp32", "slots") <= 2 * 8 * 64
    assert round(work(report, "bucketed/fp32", "real tokens")) == round(work(report, "bucketed/bf16", "real tokens"))
    assert any("on cpu" in note for note in report.notes)


def test_an_optimizer_step_has_as_many_batches_as_are_accumulated(run, tmp_path, monkeypatch):
    taken, own = [], torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, *given: taken.append(1) or own(self, *given))
    values = {"model__config": write_config(tmp_path / "config.json", "qwen3"), "train__per_device_train_batch_size": 4}
    report = run("train", benchmark__variants=["fixed/fp32"], benchmark__repeats=1, train__gradient_accumulation_steps=3, **values)
    assert len(taken) == round(work(report, "fixed/fp32", "steps")) == 2
    assert round(work(report, "fixed/fp32", "slots")) == 2 * 3 * 4 * 64


def test_the_default_steps_are_those_of_the_data(run, tmp_path):
    model = write_config(tmp_path / "config.json", "qwen3")
    report = run("train", "packs", model__config=model, benchmark__repeats=1, train__bf16=False)
    names = {name for name, _ in found(report)}
    assert "packed/fp32" in names
    assert all(name.startswith("packed/") for name in names)


def test_with_lora_the_adapters_alone_are_trained(run, tmp_path, monkeypatch):
    sizes, own = [], torch.optim.AdamW

    def counted(weights: Any, **options: Any) -> Any:
        chosen = list(weights)
        sizes.append(sum(weight.numel() for weight in chosen))
        return own(chosen, **options)

    monkeypatch.setattr(torch.optim, "AdamW", counted)
    tiny_model("qwen3", labels=3).save_pretrained(tmp_path / "base")
    for values in ({}, {"model__lora_r": 2}):
        run("train", model__name_or_path=str(tmp_path / "base"), benchmark__repeats=1, benchmark__variants=["fixed/fp32"], **values)
    whole, adapters = sizes[0], sizes[-1]
    assert 0 < adapters < whole / 4


def test_conversations_are_not_padded_by_a_collator_that_knows_no_targets():
    probe: Any = SimpleNamespace(train_split=SimpleNamespace(packed=False, targeted=True), tokenizer=SimpleNamespace(pad_token_id=0))
    assert "does not pad what is learned" in bench_batch._problem(probe)


@pytest.mark.parametrize(("variant", "kind"), [("bucketed/fp8", UsageError), ("bucketd/fp32", SettingsError)])
def test_a_variant_of_training_that_is_none_is_refused(variant, kind, run, tmp_path):
    with pytest.raises(kind, match=r"bucketed/fp8|benchmark\.variants = 'bucketd'"):
        run("train", model__config=write_config(tmp_path / "config.json", "qwen3"), benchmark__variants=[variant])


def test_engines_are_measured_on_the_first_rows_with_the_reference_first(run, folder):
    report = run("tokenize", benchmark__variants=["hf"], dataset__sources=[str(folder / "data.jsonl")], dataset__shard_bytes=900)
    assert round(work(report, "hf", "examples")) == 24
    ids = AutoTokenizer.from_pretrained(folder / "tokenizer")(corpus(24))["input_ids"]
    assert round(work(report, "hf", "tokens")) == sum(map(len, ids))
    assert any("24 rows" in note for note in report.notes)
    more = run("tokenize", benchmark__variants=["hf"], benchmark__rows=500, dataset__sources=[str(folder / "data.jsonl")])
    assert round(work(more, "hf", "examples")) == 60


def test_megabytes_are_those_of_the_text(run, folder):
    report = run("tokenize", benchmark__variants=["hf"], dataset__sources=[str(folder / "data.jsonl")])
    assert work(report, "hf", "MB") * 1e6 == pytest.approx(sum(len(text.encode()) for text in corpus(24)))


def test_both_texts_of_a_pair_are_encoded(run, folder, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"text": one, "other": one * 2, "label": "a"}) + "\n" for one in corpus(24)))
    values = {"dataset__sources": [str(path)], "dataset__text_pair_column": "other", "dataset__label_column": "label"}
    report = run("tokenize", benchmark__variants=["hf"], **values)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    texts = [*corpus(24), *(text * 2 for text in corpus(24))]
    assert round(work(report, "hf", "tokens")) == sum(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"]))
    assert round(work(report, "hf", "examples")) == 24
    assert any("24 rows of two texts" in note for note in report.notes)


def test_conversations_are_encoded_as_the_chat_template_writes_them(run, tmp_path):
    template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    (tiny_tokenizer(tmp_path / "chat") / "chat_template.jinja").write_text(template)
    said = [{"role": "user", "content": "order a parcel"}, {"role": "assistant", "content": "it is done"}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": said}) + "\n")
    values = {"dataset__sources": [str(tmp_path / "chat.jsonl")], "train__mode": "sft", "tokenizer__path": str(tmp_path / "chat")}
    report = run("tokenize", benchmark__variants=["hf"], **values)
    assert work(report, "hf", "MB") * 1e6 == pytest.approx(len("<user>order a parcel\n<assistant>it is done\n"))
    assert any("1 rows as the chat template writes them" in note for note in report.notes)


def test_texts_that_give_no_token_are_named(run, tmp_path):
    with pytest.raises(DataError, match="the first 5 rows give no token"):
        run("tokenize", benchmark__variants=["hf"], dataset__sources=[str(write(tmp_path / "empty.jsonl", [""] * 5))])


@pytest.mark.slow
@pytest.mark.usefixtures("nursery")
def test_every_engine_that_is_exact_is_compared_with_the_reference_whose_ids_are_made_once(run, folder, monkeypatch):
    made = []
    monkeypatch.setattr("ftcli.core.engines.proof.sweep", lambda unknown, short=proof.sweep: made.append(unknown) or short(unknown))
    report = run("tokenize", dataset__sources=[str(folder / "data.jsonl")], benchmark__repeats=4)
    assert len(made) == 1
    names = [m.name for m in report.metrics["measurements"] if m.unit == "seconds"]
    assert names[0] == "hf"
    assert len(names) >= 2
    assert [ratio["name"] for ratio in report.metrics["ratios"]] == [f"{name} / hf" for name in names[1:]]
    assert {ratio["verdict"] for ratio in report.metrics["ratios"]} <= {"faster", "slower", "no difference"}


@pytest.mark.slow
@pytest.mark.usefixtures("nursery")
@pytest.mark.parametrize(("word", "complaint"), [("zebra", "double differs from the reference in row 550"), ("boom", "double 1.*boom")])
def test_an_engine_that_is_wrong_or_fails_on_a_row_is_caught(word, complaint, run, tmp_path):
    source = write(tmp_path / "data.jsonl", [*corpus(550), f"a {word}"])
    with pytest.raises(EngineError, match=complaint):
        run(
            "tokenize",
            plugins=plugins(tmp_path / "plugins"),
            benchmark__variants=["hf", "double"],
            benchmark__rows=600,
            dataset__sources=[str(source)],
        )


@pytest.mark.slow
@pytest.mark.usefixtures("nursery")
def test_an_engine_that_cannot_load_the_tokenizer_is_left_out_by_name_unless_it_was_asked_for(run, tmp_path, folder):
    broken = bench_engine("raise RuntimeError('not mine')")
    report = run("tokenize", plugins=plugins(tmp_path / "plugins", broken), dataset__sources=[str(folder / "data.jsonl")])
    assert "broken" not in {name for name, _ in found(report)}
    assert any(note.startswith("broken is left out: ") and "not mine" in note for note in report.notes)
    with pytest.raises(EngineError, match="not mine"):
        run(
            "tokenize",
            plugins=plugins(tmp_path / "plugins", broken),
            benchmark__variants=["broken"],
            dataset__sources=[str(folder / "data.jsonl")],
        )


def bench_engine(body: str) -> str:
    return f"""
from ftcli import hookimpl
class Engine:
    name, version, rank = "broken", "1", 1
    def load(self, backend_json, folder, threads):
        {body}
@hookimpl
def register_engines(register):
    register("broken", Engine)
"""


def test_a_busy_machine_is_named(run, monkeypatch):
    def busy(context: Context):
        context.machine = replace(context.machine, load_average=load, cores=2)
        return bench_batch.variants(context)

    monkeypatch.setattr(benchmark, "_collators", busy)
    words = "the machine was busy when this began (load 99.0 on 2 cores)"
    for load in (99.0, 1.0, None):
        report = run("batch", benchmark__variants=["dynamic"])
        assert any(words in note for note in report.notes) is (load == 99.0)


def test_the_report_is_written_with_the_measurements(run, tmp_path, monkeypatch):
    monkeypatch.undo()
    report = run("batch", benchmark__variants=["dynamic", "fixed"])
    document = json.loads(Path(report.paths["json"]).read_text())
    assert document["command"] == "benchmark batch"
    assert {"name", "unit", "median", "low", "high", "n"} <= document["metrics"]["measurements"][0].keys()
    assert "dynamic" in Path(report.paths["html"]).read_text()


def test_an_interruption_keeps_the_rounds_that_are_complete(run, monkeypatch):
    turns, own = [], bench_batch.collator_variant

    def stopping(probe, name):
        variant = own(probe, name)

        def work():
            turns.append(name)
            if len(turns) == stop:
                raise KeyboardInterrupt
            return variant.run()

        return replace(variant, run=work)

    monkeypatch.setattr(bench_batch, "collator_variant", stopping)
    stop = 6
    report = run("batch", benchmark__variants=["dynamic", "fixed"], benchmark__repeats=5)
    assert report.status == "interrupted"
    assert {m.n for m in report.metrics["measurements"]} == {2}
    assert report.metrics["ratios"][0]["n"] == 2
    assert report.error["code"] == "interrupted"
    assert "cannot be resumed" in report.error["hint"]
    turns.clear()
    stop = 2
    with pytest.raises(KeyboardInterrupt):
        run("batch", benchmark__variants=["dynamic", "fixed"])


def test_peak_memory_is_in_megabytes():
    assert 50 < peak_rss_mb() < 100_000
