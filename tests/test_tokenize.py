"""`ftcli tokenize`: what is published, that it is the tokenizer's own ids, and what decides it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, List, Value, load_from_disk
from ftcli.plugins import columnar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import feather
from transformers import AutoTokenizer

from ftcli.commands import tokenize
from ftcli.core.files.manifest import check_published
from ftcli.core.prepare import job as job_module
from ftcli.core.prepare import join, window
from ftcli.core.prepare import write as write_module
from ftcli.core.prepare.encode import encode_shard
from ftcli.core.storage.store import Store
from ftcli.errors import DataError, EngineError, PluginError, PublishError, StoreError, UsageError
from tokenizing import (
    Bar,
    context,
    corpus,
    documents,
    ids,
    left_behind,
    manifest,
    plugins,
    prepare,
    rows,
    small_tokenizers,
    stamps,
    without_plots,
    write,
)

kinds = small_tokenizers
no_html = without_plots

pytestmark = pytest.mark.usefixtures("no_html", "nursery")
SHARD = 4_000
"""Bytes: some ten shards of 300 texts."""
METRICS = {
    "rows_read",
    "rows_written",
    "rows_rejected",
    "rows_filtered",
    "rows_truncated",
    "tokens",
    "tokens_cut",
    "bytes_read",
    "seconds_read",
    "seconds_encode",
    "seconds_write",
    "examples_per_second",
    "megabytes_per_second",
    "tokens_per_second",
    "peak_rss_mb",
    "packing_waste",
    "engine",
    "engine_proof",
    "content_hash",
    "reused",
}


@pytest.fixture
def bpe(kinds) -> Path:
    return kinds["bpe"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", corpus(300), (f"label {number % 3}" for number in range(300)))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def reference(folder: Path, texts: list[str], **options: Any) -> list[list[int]]:
    return list(AutoTokenizer.from_pretrained(folder)(texts, **options)["input_ids"])


# -- what is published -------------------------------------------------------------------------------------------------


def test_the_output_opens_with_datasets_as_a_whole_and_split_by_split(bpe, tmp_path, out):
    train = write(tmp_path / "train.jsonl", corpus(40), ("b", "a") * 20)
    held = write(tmp_path / "validation.jsonl", corpus(7, 40), "aababab")
    report = prepare(bpe, [train, held], out, dataset__label_column="label")
    whole = load_from_disk(str(out))
    assert isinstance(whole, DatasetDict)
    assert {split: len(part) for split, part in whole.items()} == {"train": 40, "validation": 7}
    expected = {"input_ids": List(Value("int32")), "length": Value("int32"), "labels": ClassLabel(names=["a", "b"])}
    assert whole["train"].features == whole["validation"].features == expected
    assert Dataset.load_from_disk(str(out / "validation"))["labels"] == [0, 0, 1, 0, 1, 0, 1]
    assert whole["train"]["length"] == [len(row) for row in whole["train"]["input_ids"]]
    assert whole["train"].info.splits["train"].num_bytes == sum(path.stat().st_size for path in (out / "train").glob("*.arrow"))
    assert set(report.metrics) >= METRICS
    assert report.metrics["rows_read"] == report.metrics["rows_written"] == 47
    assert left_behind(out) == []


def test_the_manifest_says_what_the_data_are_and_where_they_come_from(bpe, source, out):
    report = prepare(bpe, source, out, dataset__label_column="label", packing__max_length=64)
    said = manifest(out)
    assert said["splits"] == {"train": {"rows": 300, "tokens": report.metrics["tokens"]}}
    assert (said["task"], said["max_length"], said["packing"], said["label_names"]) == (
        "classify",
        64,
        "none",
        ["label 0", "label 1", "label 2"],
    )
    assert said["sources"][0]["path"] == str(source)
    assert said["sources"][0]["bytes"] == source.stat().st_size == report.metrics["bytes_read"]
    assert said["tokenizer"]["vocab_size"] == len(AutoTokenizer.from_pretrained(bpe))
    assert said["engine"]["engine"] == "hf"
    assert said["settings"]["packing.max_length"] == {"value": 64, "origin": "argument"}
    assert said["content_hash"] == report.metrics["content_hash"]
    assert Store.open(out).label_names == said["label_names"]


@pytest.mark.parametrize("engine", ["hf", pytest.param("auto", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_ids_are_the_tokenizer_s_own_row_by_row(kind, engine, kinds, source, out):
    report = prepare(kinds[kind], source, out, dataset__label_column="label", packing__max_length=20, tokenizer__engine=engine)
    assert ids(out) == reference(kinds[kind], corpus(300), truncation=True, max_length=20)
    assert report.metrics["rows_truncated"] > 50
    # a short proof does not find what splintr is not to encode of Unigram, so a row of the data refuses it
    assert (report.metrics["engine"] == "hf") == (engine == "hf" or kind == "unigram")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_without_special_tokens_ids_are_the_tokenizer_s_own_too(kind, kinds, source, out):
    prepare(kinds[kind], source, out, dataset__label_column="label", tokenizer__add_special_tokens=False)
    assert ids(out) == reference(kinds[kind], corpus(300), add_special_tokens=False)


def test_texts_for_pretraining_end_with_eos_once(bpe, tmp_path, out):
    texts = ["one", "two<|endoftext|>", "three"]
    report = prepare(bpe, write(tmp_path / "data.jsonl", texts), out)
    eos = AutoTokenizer.from_pretrained(bpe).eos_token_id
    assert [row.count(eos) for row in ids(out)] == [1, 1, 1]
    assert all(row[-1] == eos for row in ids(out))
    assert any("every text ends with" in note for note in report.notes)
    assert manifest(out)["task"] == "pretrain"


def test_keep_end_keeps_the_end_of_long_texts(bpe, source, out):
    prepare(bpe, source, out, dataset__label_column="label", packing__max_length=16, packing__truncation_strategy="keep_end")
    assert ids(out) == [row[-16:] for row in reference(bpe, corpus(300))]


def test_split_texts_keep_every_token_and_their_label(bpe, source, out):
    report = prepare(bpe, source, out, dataset__label_column="label", packing__max_length=16, packing__truncation_strategy="split")
    whole = reference(bpe, corpus(300))
    assert [token for row in ids(out) for token in row] == [token for row in whole for token in row]
    expected = [number % 3 for number, row in enumerate(whole) for _ in range(-(-len(row) // 16))]
    assert [row["labels"] for row in rows(out)] == expected
    assert (report.metrics["rows_written"], report.metrics["rows_out"], report.metrics["tokens_cut"]) == (300, len(expected), 0)


def test_too_long_a_text_is_an_error_that_shows_it(bpe, tmp_path, out):
    source = write(tmp_path / "data.jsonl", ["short", "a rather long text that does not fit"])
    with pytest.raises(DataError, match=r"data\.jsonl:2 \(byte 18\): the text has \d+ tokens, 7 fit into max_length 8: 'a rather long"):
        prepare(bpe, source, out, packing__max_length=8, packing__truncation_strategy="error")


def test_rows_that_are_dropped_for_their_length_are_said_and_nothing_but_such_rows_is_an_error(bpe, tmp_path, out):
    source = write(tmp_path / "data.jsonl", ["short", "a rather long text that does not fit", "brief"])
    given = {"packing__max_length": 8, "packing__truncation_strategy": "drop"}
    report = prepare(bpe, source, out, **given)
    assert (report.metrics["rows_filtered"], report.metrics["rows_too_long"]) == (1, 1)
    assert "left out: 1 of 3 rows (33.3\xa0%), longer than max_length 8 (--truncation-strategy drop)" in report.notes
    with pytest.raises(DataError, match="3 filtered, 3 of them longer than max_length 2") as refused:
        prepare(bpe, source, tmp_path / "none", **{**given, "packing__max_length": 2})
    assert "Raise --max-length" in refused.value.hint


def test_rows_with_an_empty_label_are_said(bpe, tmp_path, out):
    report = prepare(bpe, write(tmp_path / "data.jsonl", corpus(4), ["a", "", "b", ""]), out, dataset__label_column="label")
    assert "2 rows have an empty label, which counts as a class" in report.notes


# -- the report --------------------------------------------------------------------------------------------------------


def test_details_have_the_shapes_that_the_report_documents(bpe, source, out):
    report = prepare(bpe, source, out, dataset__label_column="label", dataset__validation_fraction=0.3, packing__max_length=32)
    details = report.details
    assert len(details["lengths"]["edges"]) == len(details["lengths"]["counts"]) + 1
    assert sum(details["lengths"]["counts"]) == 300
    assert details["max_length"] == 32
    assert details["labels"] == {"names": ["label 0", "label 1", "label 2"], "counts": [100, 100, 100]}
    assert list(details["splits"]) == ["train", "validation"]
    assert sum(part["rows"] for part in details["splits"].values()) == 300
    assert sum(part["tokens"] for part in details["splits"].values()) == report.metrics["tokens"]
    assert details["sources"] == [
        {"path": str(source), "rows_read": 300, "rows_written": 300, "rows_rejected": 0, "rows_filtered": 0},
    ]
    assert "very fast" in details.get("rating", "very fast")  # 300 rows are too few for any other word


def test_html_and_json_are_written(bpe, source, tmp_path, out, monkeypatch, drawn):
    monkeypatch.undo()  # the page as well
    report = prepare(bpe, source, out, dataset__label_column="label")
    page = Path(report.paths["html"]).read_text(encoding="utf-8")
    assert "examples/s" in page
    assert str(source) in page
    document = json.loads(Path(report.paths["json"]).read_text(encoding="utf-8"))
    assert document["paths"] == dict(report.paths)
    assert document["metrics"]["content_hash"] == report.metrics["content_hash"]


def test_what_is_said_of_many_files_is_short(bpe, tmp_path, out, monkeypatch, drawn):
    monkeypatch.undo()  # the page as well
    for number in range(700):
        write(tmp_path / "many" / f"{number:04}.jsonl", [f"text {number}", *["it stays", "x" * 40][: 1 + (number == 650)]])
    values: dict[str, Any] = {"dataset__on_bad": "quarantine", "packing__truncation_strategy": "drop", "packing__max_length": 12}
    report = prepare(bpe, tmp_path / "many", out, **values)
    assert [Path(source["path"]).stem for source in report.details["sources"]][:3] == ["0650", "0000", "0001"]
    plain = {"rows_read": 1_000, "rows_written": 1_000, "rows_rejected": 0, "rows_filtered": 0}
    assert report.details["further_sources"] == {"files": 500, **plain}
    page = Path(report.paths["html"]).read_text(encoding="utf-8")
    assert page.count("many/0") == 200
    assert "500 further files, all of whose rows were written" in page
    content = (out / "ftcli-manifest.json").read_bytes()
    assert content.count(b"\n") == 1  # of each value a line of its own took two thirds of 80 MB, and a minute to check
    said = check_published(out, full=True)
    assert [Path(file["path"]).stem for file in said["sources"]] == [f"{number:04}" for number in range(700)]
    assert all(file["xxh3"] for file in said["sources"])
    again = prepare(bpe, tmp_path / "many", out, **values)
    assert again.metrics["reused"]
    assert again.details["sources"] == report.details["sources"]


def test_long_texts_get_no_rating_but_the_reason(bpe, tmp_path, out):
    source = write(tmp_path / "data.jsonl", ["word " * 1_500] * 3)
    report = prepare(bpe, source, out)
    assert "rating" not in report.details
    assert any("no rating" in note and "200 tokens" in note for note in report.notes)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv", "txt"])
def test_progress_reaches_all_bytes_whatever_the_format(suffix, bpe, tmp_path, out):
    texts = [text.replace("\n", " ").strip() for text in corpus(200)]
    path = tmp_path / f"data.{suffix}"
    table = Dataset.from_dict({"text": texts, "label": [number % 2 for number in range(200)]})
    writers = {
        "jsonl": lambda: write(path, texts, (number % 2 for number in range(200))),
        "parquet": lambda: table.to_parquet(str(path), batch_size=50),
        "csv": lambda: table.to_csv(str(path)),
        "txt": lambda: path.write_text("\n".join(texts)),
    }
    writers[suffix]()
    bar = Bar()
    labelled = None if suffix == "txt" else "label"
    run = replace(context(bpe, path, out, dataset__shard_bytes=SHARD, dataset__label_column=labelled, dataset__batch_size=20), progress=bar)
    tokenize.run(run)
    assert sum(bar.stages["tokenize"]) == bar.totals["tokenize"]
    assert all(amount >= 0 for amount in bar.stages["tokenize"])
    if suffix != "parquet":
        assert bar.totals["tokenize"] == path.stat().st_size
    if labelled:
        assert sum(bar.stages["labels"]) == bar.totals["labels"]


def test_within_a_shard_progress_grows_batch_by_batch(bpe, source, out):
    bar = Bar()
    tokenize.run(replace(context(bpe, source, out, dataset__batch_size=30), progress=bar))
    assert sum(amount > 0 for amount in bar.stages["tokenize"]) > 8
    assert sum(bar.stages["tokenize"]) == source.stat().st_size


# -- what decides the bytes, and what does not -------------------------------------------------------------------------


@pytest.fixture
def sharded(bpe, source, tmp_path, monkeypatch) -> tuple[dict[str, Any], str]:
    """Settings of a job of many shards and record batches, and its content hash."""
    monkeypatch.setattr(write_module, "BATCH_ROWS", 7)
    values = {
        "dataset__label_column": "label",
        "dataset__shard_bytes": SHARD,
        "dataset__validation_fraction": 0.2,
        "packing__max_length": 24,
    }
    report = prepare(bpe, source, tmp_path / "baseline", **values)
    assert len(list((tmp_path / "baseline/train").glob("*.arrow"))) > 5
    return values, report.metrics["content_hash"]


def test_execution_knobs_change_neither_bytes_nor_fingerprint(sharded, bpe, source, tmp_path):
    values, expected = sharded
    knobs: list[dict[str, Any]] = [
        {"dataset__batch_size": 3},
        {"dataset__batch_size": 1000},
        {"dataset__writer_batch_size": 1},
        {"dataset__writer_batch_size": 11},
        {"dataset__memory_mode": "memory"},
        {"dataset__memory_mode": "disk", "runtime__threads": 1},
    ]
    for number, knob in enumerate(knobs):
        assert prepare(bpe, source, tmp_path / f"out{number}", **values, **knob).metrics["content_hash"] == expected, knob
        assert prepare(bpe, source, tmp_path / "baseline", **values, **knob).metrics["reused"] is True, knob


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_where_long_rows_are_cut_from_each_other_changes_no_byte(suffix, packed, bpe, tmp_path, monkeypatch):
    texts: list[str | None] = [*corpus(300), *(" ".join(corpus(40, start)) for start in range(0, 100, 10))]
    texts[7] = texts[290] = texts[305] = None
    path, table = tmp_path / f"data.{suffix}", pa.table({"text": texts, "label": [number % 3 for number in range(310)]})
    if suffix == "parquet":
        pq.write_table(table, path, row_group_size=100)
    else:
        feather.write_feather(table, path, compression="uncompressed", chunksize=100)
    values: dict[str, Any] = {"dataset__on_bad": "quarantine", "dataset__max_bad": 0.1, "packing__max_length": 64}
    values |= {"packing__strategy": "bfd"} if packed else {"dataset__label_column": "label", "dataset__validation_fraction": 0.2}
    encoded: list[int] = []
    monkeypatch.setattr("ftcli.core.prepare.encode.as_batch", lambda group: encoded.append(len(group)) or join.as_batch(group))
    reports = []
    for name, size in (("whole", 1 << 40), ("cut", 2_000), ("single", 1)):
        monkeypatch.setattr(columnar, "BATCH_BYTES", size)
        monkeypatch.setattr(join, "JOINED_BYTES", size)
        encoded.clear()
        report = prepare(bpe, path, tmp_path / name, **values)
        reports.append((report.metrics["content_hash"], report.details["sources"], len(encoded)))
    whole, cut, single = (dict(zip(("hash", "sources", "batches"), found, strict=True)) for found in reports)
    assert whole["hash"] == cut["hash"] == single["hash"]
    assert whole["sources"] == cut["sources"] == single["sources"]
    assert whole["batches"] == 1 < cut["batches"] < single["batches"] == 307
    rejects = [next((tmp_path / name).rglob("rejects.jsonl")).read_bytes() for name in ("whole", "cut", "single")]
    assert rejects[0].count(b"\n") == 3
    assert len(set(rejects)) == 1


@pytest.mark.slow
def test_engines_give_the_same_bytes(sharded, bpe, source, out):
    values, expected = sharded
    report = prepare(bpe, source, out, **values, tokenizer__engine="auto")
    assert (report.metrics["engine"] != "hf", report.metrics["content_hash"]) == (True, expected)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_two_processes_give_the_bytes_of_one(packed, bpe, source, tmp_path):
    values: dict[str, Any] = {"dataset__shard_bytes": SHARD, "packing__max_length": 24, "dataset__test_fraction": 0.2}
    values |= {"packing__strategy": "bfd"} if packed else {"dataset__label_column": "label"}
    one, two = (prepare(bpe, source, tmp_path / f"out{n}", dataset__num_proc=n, **values) for n in (1, 2))
    assert any("2 by argument" in note or "workers: 2" in note for note in two.notes)
    assert one.metrics["content_hash"] == two.metrics["content_hash"]
    assert one.details["sources"] == two.details["sources"]
    assert one.metrics["tokens"] == two.metrics["tokens"]


def test_a_run_interrupted_and_continued_gives_the_same_bytes(sharded, bpe, source, out, monkeypatch):
    values, expected = sharded
    made: list[int] = []

    def interrupted(job, shard):
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(shard.index)
        return encode_shard(job, shard)

    with monkeypatch.context() as patch:
        patch.setattr("ftcli.core.prepare.work.encode_shard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(bpe, source, out, **values)
    assert not out.exists()
    bar = Bar()
    report = tokenize.run(replace(context(bpe, source, out, **values), progress=bar))
    assert report.metrics["content_hash"] == expected
    assert report.metrics["shards_resumed"] == 3
    assert any(note.startswith("resuming after 3 of ") for note in report.notes)
    assert sum(bar.stages["tokenize"]) == pytest.approx(source.stat().st_size * 7 / 10, abs=10)  # what was left to do
    assert report.metrics["rows_read"] == 300
    assert report.metrics["examples_per_second"] < 300 / sum(report.metrics[f"seconds_{stage}"] for stage in ("read", "encode", "write"))
    assert left_behind(out) == []


def test_the_same_inputs_again_write_nothing(sharded, bpe, source, tmp_path, monkeypatch):
    monkeypatch.setattr("ftcli.core.prepare.tally.BAND_ROWS", 0)
    values, expected = sharded
    before = stamps(tmp_path / "baseline")
    report = prepare(bpe, source, tmp_path / "baseline", **values)
    assert report.metrics["reused"] is True
    assert report.metrics["content_hash"] == expected
    assert stamps(tmp_path / "baseline") == before
    assert any("nothing to do" in note for note in report.notes)
    assert report.details["rating"].endswith("when they were made")


def test_the_same_bytes_under_another_name_have_the_same_fingerprint(sharded, bpe, source, tmp_path):
    values, _ = sharded
    moved = tmp_path / "elsewhere/other.jsonl"
    moved.parent.mkdir()
    shutil.copy(source, moved)
    shutil.copytree(bpe, tmp_path / "copy")
    assert prepare(tmp_path / "copy", moved, tmp_path / "baseline", **values).metrics["reused"] is True


def change_a_byte(source: Path) -> None:
    """Same size, same modification time."""
    stat, data = source.stat(), source.read_bytes()
    place = data.index(b"order")
    source.write_bytes(data[:place] + b"Order" + data[place + 5 :])
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (source.stat().st_size, source.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)


def change_the_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    document["normalizer"] = {"type": "Lowercase"}
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ({}, {"packing__max_length": 12}),
        ({}, {"packing__min_length": 8}),
        ({}, {"packing__truncation_strategy": "keep_end"}),
        ({}, {"packing__strategy": "bfd"}),
        ({"packing__strategy": "bfd"}, {"packing__strategy": "concat"}),
        ({}, {"tokenizer__add_eos": False}),
        ({}, {"dataset__validation_fraction": 0.3}),
        ({"dataset__validation_fraction": 0.3}, {"dataset__seed": 7}),
        ({"dataset__label_column": "label"}, {"dataset__label_names": ["label 2", "label 1", "label 0"]}),
        ({}, "source"),
        ({}, "tokenizer"),
        ({}, "plugin"),
    ],
    ids=str,
)
def test_whatever_changes_the_data_is_refused_with_both_fingerprints_and_replaced_on_demand(before, change, bpe, source, tmp_path, out):
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(bpe, tokenizer)
    packer = "from ftcli import hookimpl\n@hookimpl\ndef register_packers(register): ...\n"
    loaded = [plugins(tmp_path / "plugins", packer)] if change == "plugin" else [None]
    values = {"packing__max_length": 24, **before}
    old = prepare(tokenizer, source, out, loaded[0], **values)
    content = ids(out)
    if change == "source":
        change_a_byte(source)
    elif change == "tokenizer":
        change_the_tokenizer(tokenizer)
    elif change == "plugin":
        loaded.append(plugins(tmp_path / "plugins", packer + "# another version\n"))
    else:
        values |= change
    printed = stamps(out)
    with pytest.raises(PublishError) as refused:
        prepare(tokenizer, source, out, loaded[-1], **values)
    assert manifest(out)["fingerprint"] in refused.value.message
    assert len({word for word in refused.value.message.replace(",", " ").split() if len(word) == 32}) == 2
    assert "--overwrite" in refused.value.hint
    assert stamps(out) == printed
    new = prepare(tokenizer, source, out, loaded[-1], runtime__overwrite=True, **values)
    assert new.metrics["reused"] is False
    assert manifest(out)["fingerprint"] in refused.value.message
    if change == "plugin":
        assert ids(out) == content
    else:
        assert new.metrics["content_hash"] != old.metrics["content_hash"]
    assert left_behind(out) == []


def test_damaged_data_are_refused_and_made_anew_on_demand(bpe, source, out):
    expected = prepare(bpe, source, out).metrics["content_hash"]
    file = next(out.glob("train/*.arrow"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StoreError, match="bytes instead of"):
        prepare(bpe, source, out)
    report = prepare(bpe, source, out, runtime__overwrite=True)
    assert (report.metrics["reused"], report.metrics["content_hash"]) == (False, expected)


def test_a_source_that_changes_while_it_is_read_is_not_published(bpe, source, out, monkeypatch):
    def meddled(job, shard):
        with source.open("a") as file:
            file.write('{"text": "late"}\n')
        return encode_shard(job, shard)

    monkeypatch.setattr("ftcli.core.prepare.work.encode_shard", meddled)
    with pytest.raises(DataError, match=r"data\.jsonl changed while it was read"):
        prepare(bpe, source, out)
    assert not out.exists()


def test_a_plugin_that_changes_while_the_run_goes_on_is_refused(bpe, source, out, tmp_path, monkeypatch):
    loaded = plugins(tmp_path / "plugins", "from ftcli import hookimpl\n@hookimpl\ndef register_packers(register): ...\n")

    def meddled(job, shard):
        plugins(tmp_path / "plugins", "VALUE = 2\n")
        job_module.plugins_at.cache_clear()
        return encode_shard(job, shard)

    monkeypatch.setattr("ftcli.core.prepare.work.encode_shard", meddled)
    with pytest.raises(PluginError, match="'other' has changed since the run was planned"):
        prepare(bpe, source, out, loaded)


# -- accounting --------------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.lists(st.text(max_size=30), min_size=1, max_size=12), min_size=1, max_size=3),
    max_length=st.integers(3, 16),
    min_length=st.integers(0, 4),
    truncation=st.sampled_from(["keep_start", "keep_end", "drop", "split"]),
    packing=st.sampled_from(["none", "bfd", "concat"]),
)
def test_every_row_and_token_is_accounted_for(files, max_length, min_length, truncation, packing, bpe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("accounting")
    files[0].append("a text that is always there")
    clean = [[text.encode(errors="replace").decode() for text in texts] for texts in files]
    sources = [write(folder / f"train-{number}.jsonl", texts) for number, texts in enumerate(clean)]
    values = {"packing__max_length": max_length, "packing__min_length": min_length, "packing__truncation_strategy": truncation}
    raw = [len(row) for texts in clean for row in reference(bpe, texts)]
    kept = [n for n in raw if n >= min_length and not (truncation == "drop" and n > max_length)]
    if not sum(kept):
        return
    report = prepare(bpe, sources, folder / "out", tokenizer__add_eos=False, packing__strategy=packing, **values)
    counts = report.metrics
    assert counts["rows_read"] == counts["rows_written"] + counts["rows_rejected"] + counts["rows_filtered"] == sum(map(len, clean))
    assert counts["rows_written"] == len(kept)
    assert counts["tokens"] + counts["tokens_cut"] == sum(kept)
    per_source = report.details["sources"]
    assert [part["rows_read"] for part in per_source] == [len(texts) for texts in clean]
    assert all(part["rows_read"] == part["rows_written"] + part["rows_rejected"] + part["rows_filtered"] for part in per_source)
    assert sum(part["rows_written"] for part in per_source) == len(kept)
    published = rows(folder / "out")
    assert sum(len(row["input_ids"]) for row in published) == counts["tokens"]
    assert len(published) == counts["rows_out"]


# -- packing -----------------------------------------------------------------------------------------------------------


def test_bfd_keeps_every_text_whole_once_and_in_order(bpe, source, out):
    report = prepare(bpe, source, out, packing__strategy="bfd", packing__max_length=128)
    eos = AutoTokenizer.from_pretrained(bpe).eos_token_id
    expected = [row if row[-1:] == [eos] else [*row, eos] for row in reference(bpe, corpus(300))]
    assert max(map(len, expected)) <= 128
    place = {tuple(row): number for number, row in enumerate(expected)}
    packs = [[place[tuple(document)] for document in documents(row)] for row in rows(out)]
    assert sorted(number for pack in packs for number in pack) == list(range(300))
    assert all(pack == sorted(pack) for pack in packs)
    assert [pack[0] for pack in packs] == sorted(pack[0] for pack in packs)
    assert all(row["length"] == len(row["input_ids"]) <= 128 for row in rows(out))
    assert report.metrics["packing_waste"] == pytest.approx(1 - sum(map(len, expected)) / (128 * len(packs)))
    assert report.metrics["rows_out"] == len(packs)
    features = load_from_disk(str(out))["train"].features
    assert features == {"input_ids": List(Value("int32")), "length": Value("int32"), "seq_lengths": List(Value("int32"))}


def test_concat_is_one_stream_cut_at_max_length(bpe, source, out):
    report = prepare(bpe, source, out, packing__strategy="concat", packing__max_length=32)
    eos = AutoTokenizer.from_pretrained(bpe).eos_token_id
    stream = [token for row in reference(bpe, corpus(300)) for token in (row if row[-1:] == [eos] else [*row, eos])]
    packs = rows(out)
    assert [token for row in packs for token in row["input_ids"]] == stream
    assert all(row["length"] == 32 for row in packs[:-1])
    assert all(sum(row["seq_lengths"]) == row["length"] for row in packs)
    assert sum(row.count(eos) for row in ids(out)) >= 300
    assert report.metrics["packing_waste"] == pytest.approx(1 - len(stream) / (32 * len(packs)))


def test_bfd_cuts_a_long_text_into_parts_that_are_all_there(bpe, source, out):
    prepare(bpe, source, out, packing__strategy="bfd", packing__max_length=16)
    eos = AutoTokenizer.from_pretrained(bpe).eos_token_id
    whole = [row if row[-1:] == [eos] else [*row, eos] for row in reference(bpe, corpus(300))]
    parts = Counter(tuple(row[start : start + 16]) for row in whole for start in range(0, len(row), 16))
    assert Counter(tuple(document) for row in rows(out) for document in documents(row)) == parts


@pytest.mark.parametrize("packing", ["bfd", "concat"])
def test_windows_of_packing_do_not_depend_on_the_batch_size(packing, bpe, source, tmp_path, monkeypatch):
    monkeypatch.setattr(window, "PACK_WINDOW_TOKENS", 500)
    values = {"packing__strategy": packing, "packing__max_length": 64, "dataset__test_fraction": 0.3}
    reports = [prepare(bpe, source, tmp_path / f"out{size}", dataset__batch_size=size, **values) for size in (1, 100, 10_000)]
    assert len({report.metrics["content_hash"] for report in reports}) == 1
    monkeypatch.setattr(window, "PACK_WINDOW_TOKENS", 10**9)
    whole = prepare(bpe, source, tmp_path / "whole", **values)
    assert whole.metrics["content_hash"] != reports[0].metrics["content_hash"]  # the windows were really there
    assert whole.metrics["tokens"] == reports[0].metrics["tokens"]
    packed = [sorted(tuple(d) for row in rows(tmp_path / name) for d in documents(row)) for name in ("whole", "out1")]
    assert packing == "concat" or packed[0] == packed[1]


def test_packing_with_labels_is_refused(bpe, source, out):
    with pytest.raises(UsageError, match="packing = bfd and label_column = 'label' contradict each other") as refused:
        prepare(bpe, source, out, packing__strategy="bfd", dataset__label_column="label")
    assert "Remove --packing" in refused.value.hint


# -- splits ------------------------------------------------------------------------------------------------------------


def test_splits_come_from_file_names_and_from_split_equals_path(bpe, tmp_path, out):
    named = [write(tmp_path / name, corpus(size, start)) for name, size, start in (("train.jsonl", 5, 0), ("dev.jsonl", 4, 5))]
    explicit = write(tmp_path / "strange.jsonl", corpus(3, 20))
    prepare(bpe, [*named, f"test={explicit}"], out, tokenizer__add_eos=False)
    expected = reference(bpe, corpus(30))
    assert ids(out, "train") == expected[:5]
    assert ids(out, "validation") == expected[5:9]
    assert ids(out, "test") == expected[20:23]
    assert json.loads((out / "dataset_dict.json").read_text()) == {"splits": ["train", "validation", "test"]}


def test_a_test_file_alone_is_a_data_set_without_train(bpe, source, out):
    prepare(bpe, [f"test={source}"], out)
    assert {split: len(part) for split, part in load_from_disk(str(out)).items()} == {"test": 300}


def test_fractions_are_about_right_and_equal_texts_stay_on_one_side(bpe, tmp_path, out):
    source = write(tmp_path / "data.jsonl", corpus(1000) * 2, (number % 2 for number in range(2000)))
    prepare(bpe, source, out, dataset__label_column="label", dataset__validation_fraction=0.2, dataset__test_fraction=0.1)
    sides = {split: [tuple(row) for row in ids(out, split)] for split in ("train", "validation", "test")}
    assert {split: len(part) / 2000 for split, part in sides.items()} == pytest.approx(
        {"train": 0.7, "validation": 0.2, "test": 0.1}, abs=0.04
    )
    assert sum(len(set(part)) for part in sides.values()) == len(set().union(*sides.values()))
    assert len(set().union(*sides.values())) == 1000


def test_another_seed_is_another_split_of_the_same_rows(bpe, source, tmp_path):
    values = {"dataset__validation_fraction": 0.5}
    one, other = (
        (prepare(bpe, source, tmp_path / f"out{seed}", dataset__seed=seed, **values), ids(tmp_path / f"out{seed}", "validation"))[1]
        for seed in (1, 2)
    )
    assert one != other
    assert 90 < len(one) < 210
    assert sorted(ids(tmp_path / "out1") + one) == sorted(ids(tmp_path / "out2") + other)


def test_a_fraction_beside_a_split_of_its_own_is_refused(bpe, source, tmp_path, out):
    held = write(tmp_path / "validation.jsonl", corpus(5))
    with pytest.raises(UsageError, match=r"validation_fraction = 0\.1, but the sources already have a validation split"):
        prepare(bpe, [source, f"validation={held}"], out, dataset__validation_fraction=0.1)
    assert prepare(bpe, [source, f"validation={held}"], out, dataset__test_fraction=0.3).status == "ok"


def test_an_empty_validation_split_is_noted(bpe, tmp_path, out):
    train = write(tmp_path / "train.jsonl", corpus(3))
    held = write(tmp_path / "validation.jsonl", [""])
    report = prepare(bpe, [train, held], out)
    (note,) = [note for note in report.notes if note.startswith("the split validation is empty")]
    assert "--validation-fraction" in note
    assert ids(out, "validation") == []
    assert len(load_from_disk(str(out))["validation"]) == 0


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("separator", [None, "|"])
def test_an_empty_validation_split_of_labelled_rows_is_noted(bpe, tmp_path, out, dropped, separator):
    """Its accuracy had a standard error by a division by 0."""
    train = write(tmp_path / "train.jsonl", ["one", "two"] * 3, ["a", "b"] * 3)
    held = write(tmp_path / "validation.jsonl", ["word " * 40] if dropped else [""], ["a"])
    drop = {"packing__truncation_strategy": "drop", "packing__max_length": 16} if dropped else {}
    report = prepare(bpe, [train, held], out, dataset__label_column="label", dataset__label_separator=separator, **drop)
    assert [note.split(",")[0] for note in report.notes if "split validation" in note] == ["the split validation is empty"]


@pytest.mark.parametrize(
    ("rows", "labelled", "said"), [(1, True, "1 row, "), (29, True, "29 rows, "), (30, True, ""), (9, False, "9 rows of "), (60, False, "")]
)
def test_a_held_out_split_of_few_rows_is_noted_with_what_to_do(bpe, tmp_path, out, rows, labelled, said):
    train, held = (
        write(tmp_path / f"{name}.jsonl", corpus(count), ["ab"[at % 2] for at in range(count)])
        for name, count in (("train", 60), ("validation", rows))
    )
    report = prepare(bpe, [train, held], out, **({"dataset__label_column": "label"} if labelled else {}))
    notes = [note for note in report.notes if note.startswith("the split validation has ")]
    assert len(notes) == bool(said)
    if said:
        assert notes[0].startswith(f"the split validation has {said}")
        assert "--validation-fraction" in notes[0]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"packing__strategy": "bfd", "packing__max_length": 64}, r"3 texts or parts of texts \(\d packs?\) of \d+ tokens, whose"),
        ({"packing__strategy": "concat", "packing__max_length": 64}, r"3 texts \(\d packs?\) of \d+ tokens, whose"),
        (
            {"dataset__label_column": "label", "train__mode": "regress"},
            r"3 rows, of which a correlation has a standard error of up to 0\.71",
        ),
    ],
)
def test_few_held_out_rows_are_told_in_their_own_unit_with_a_figure_that_they_have(bpe, tmp_path, out, chosen, said):
    train, held = (
        write(tmp_path / f"{name}.jsonl", corpus(count), list(range(count))) for name, count in (("train", 60), ("validation", 3))
    )
    notes = [note for note in prepare(bpe, [train, held], out, **chosen).notes if note.startswith("the split validation has ")]
    assert len(notes) == 1
    assert re.match(f"the split validation has {said}", notes[0]), notes[0]
    assert "accuracy" not in notes[0]


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "word"),
    [("dataset__sources", "no data"), ("tokenizer__path", "no tokenizer"), ("dataset__output_dir", "no output")],
)
def test_what_is_missing_is_named_with_what_to_do(missing, word, bpe, source, out):
    with pytest.raises(UsageError, match=word) as refused:
        prepare(bpe, source, out, **{missing: None})
    assert refused.value.hint


def test_a_missing_column_is_named_with_those_that_exist(bpe, source, out):
    with pytest.raises(DataError, match=r"no column 'body'|'body' is missing") as refused:
        prepare(bpe, source, out, dataset__text_column="body")
    assert "text" in refused.value.hint


def test_a_bad_row_is_named_by_file_and_line(bpe, tmp_path, out):
    source = write(tmp_path / "data.jsonl", corpus(5))
    with source.open("a") as file:
        file.write('{"text": 5}\n')
    with pytest.raises(DataError, match=r"data\.jsonl:6 \(byte 334\): "):
        prepare(bpe, source, out)
    assert not out.exists()


def test_rows_that_are_all_held_out_are_said_to_be(bpe, tmp_path, out):
    """Equal texts stay on one side, and here that is not train's."""
    with pytest.raises(DataError, match="no train row is left: validation has 50") as refused:
        prepare(bpe, write(tmp_path / "data.jsonl", ["the same"] * 50), out, dataset__validation_fraction=0.99, dataset__seed=1)
    assert "--split-seed" in refused.value.hint


def test_rows_that_are_all_filtered_are_an_error(bpe, tmp_path, out):
    with pytest.raises(DataError, match="no row is left to write: 3 read, 0 rejected, 3 filtered") as refused:
        prepare(bpe, write(tmp_path / "data.jsonl", ["a", "b", "c"]), out, packing__min_length=50)
    assert "--min-length" in refused.value.hint
    assert not out.exists()


@pytest.mark.parametrize(("share", "words"), [(1, "no row is left to write: 3 read, 3 rejected"), (0.5, "3 of 3 rows read cannot be used")])
def test_rows_that_are_all_rejected_give_the_first_reason_and_what_to_do(share, words, bpe, tmp_path, out):
    """The hint was to check --text-column, which was right."""
    source = write(tmp_path / "data.jsonl", ["a", "b", "c"], ["x", "y", "z"])
    named = {"dataset__label_column": "label", "dataset__label_names": ["p", "q"]}
    with pytest.raises(DataError, match=words) as refused:
        prepare(bpe, source, out, dataset__on_bad="quarantine", dataset__max_bad=share, **named)
    assert f"{source}:1 (byte 0): the label 'x' is not among the label names" in refused.value.message
    assert refused.value.hint.startswith("Add it to --label-names")


def test_an_output_that_is_not_ours_is_never_touched(bpe, source, out):
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(PublishError, match="ftcli did not create it"):
            prepare(bpe, source, out, runtime__overwrite=overwrite)
    assert [path.name for path in out.iterdir()] == ["precious.txt"]
    assert left_behind(out) == []


# -- engines -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_where_an_engine_fails_the_reference_stands_in_and_the_report_says_so(bpe, tmp_path, out):
    texts = [*corpus(2100), "and boom here", *corpus(5, 2100)]
    source = write(tmp_path / "data.jsonl", texts)
    loaded = plugins(tmp_path / "plugins")
    report = prepare(bpe, source, out, loaded, tokenizer__engine="double", tokenizer__add_eos=False, dataset__batch_size=50)
    assert ids(out) == reference(bpe, texts)
    assert report.metrics["engine"] == "double"
    assert 0 < report.metrics["texts_by_reference"] <= 50
    assert any("double 1" in note and "the reference encoded" in note for note in report.notes)


@pytest.mark.slow
def test_an_engine_that_differs_on_the_data_is_refused_when_it_was_asked_for(bpe, tmp_path, out):
    source = write(tmp_path / "data.jsonl", ["plain", "a zebra"])
    with pytest.raises(EngineError, match=r"double 1 differs from the reference on .*zebra"):
        prepare(bpe, source, out, plugins(tmp_path / "plugins"), tokenizer__engine="double")


# -- training on it ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_plain_transformers_trains_on_the_output(kinds, source, tmp_path, out):
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    from ftcli.testing import tiny_model

    prepare(kinds["wordpiece"], source, out, dataset__label_column="label", packing__max_length=32)
    tokenizer = AutoTokenizer.from_pretrained(kinds["wordpiece"])
    arguments = TrainingArguments(
        str(tmp_path / "run"), max_steps=2, per_device_train_batch_size=4, use_cpu=True, save_strategy="no", report_to=[], logging_steps=1
    )
    trainer = Trainer(
        tiny_model("bert", vocab_size=len(tokenizer), labels=3),
        arguments,
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=load_from_disk(str(out))["train"],
    )
    assert 0.5 < trainer.train().training_loss < 3
