"""`train` on sources that are not prepared yet: it prepares them first, once."""

from __future__ import annotations

import json

import pytest

from bad_corpus import POINTER
from ftcli.commands import train
from ftcli.core.storage.store import Store
from ftcli.core.training import refused as refused_settings
from ftcli.errors import DataError, FtcliError, ModelError, TrainError, UsageError
from ftcli.records import RUN_NAME
from ftcli.testing import TEXTS
from runs import Bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    made = Bench.make(tmp_path_factory.mktemp("raw"))
    rows = [{"text": f"{text} {number}"} for number in range(8) for text in TEXTS]
    (made.folder / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return made


def context(bench, output, **values):
    quick = {"train__max_steps": 2, "train__save_strategy": "no", "packing__max_length": 64, "tokenizer__engine": "hf"}
    return bench.context(bench.folder / "raw.jsonl", output, runtime__report_dir=bench.folder / "reports", **{**quick, **values})


def test_raw_sources_are_tokenized_under_the_output_directory_and_only_once(bench):
    first = train.run(context(bench, "run", packing__strategy="bfd"))
    assert first.status == "ok"
    assert any("not prepared yet" in note for note in first.notes)
    store = Store.open(bench.folder / "run" / "prepared")
    assert store.manifest["packing"] == "bfd"
    assert first.settings["dataset.sources"].value == [str(bench.folder / "raw.jsonl")]

    again = train.run(context(bench, "run", packing__strategy="bfd", runtime__overwrite=True))
    assert any("nothing to do" in note for note in again.notes)


def test_what_a_checkpoint_was_trained_on_is_not_replaced(bench):
    """`--overwrite`, as the refusal advised, replaced the only copy: the run could not be gone on with any more."""
    source = bench.folder / "growing.jsonl"
    source.write_bytes((bench.folder / "raw.jsonl").read_bytes())
    values = {"dataset__sources": [str(source)], "train__save_strategy": "steps", "train__save_steps": 1}
    train.run(context(bench, "grown", **values))
    prepared, resumed = bench.folder / "grown" / "prepared", values | {"train__resume_from_checkpoint": "auto", "train__max_steps": 3}
    before = Store.open(prepared).fingerprint
    with source.open("a") as file:
        file.write('{"text": "one more"}\n')
    for change in (lambda: None, source.unlink):
        change()
        for more in ({}, {"runtime__overwrite": True}):
            with pytest.raises(FtcliError) as refused:
                train.run(context(bench, "grown", **resumed, **more))
            assert refused.value.hint.startswith(f"To continue with that run's data: --dataset {prepared}.")
            assert Store.open(prepared).fingerprint == before
    assert train.run(context(bench, "grown", **resumed | {"dataset__sources": [str(prepared)]})).status == "ok"


def test_a_packing_that_prepared_data_do_not_have_is_refused(bench):
    train.run(context(bench, "packed", packing__strategy="bfd"))
    prepared = bench.folder / "packed" / "prepared"
    with pytest.raises(UsageError, match=r"strategy = concat \(from argument\), there bfd"):
        train.run(bench.context(prepared, "other", packing__strategy="concat"))


def test_a_source_that_is_not_there_is_named(bench):
    with pytest.raises((DataError, UsageError), match="nowhere"):
        train.run(bench.context(bench.folder / "nowhere.jsonl", "missing"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model__config": None}, "no model"),
        ({"model__config": "nowhere.json"}, "nowhere.json does not exist"),
        ({"model__config_overrides": "vocab_size=8"}, "the model's embedding has 8 rows"),
        ({"model__lora_r": 8}, "LoRA on random weights"),
        ({"train__optim": "adam"}, "train.optim = 'adam' is not supported"),
        ({"train__metric_for_best_model": "bleu"}, "'bleu': the evaluations of this run"),
        ({"train__mode": "pretrain", "train__metric_for_best_model": "accuracy"}, "'accuracy': the evaluations of this run"),
        ({"train__resume_from_checkpoint": "nowhere"}, "the checkpoint nowhere does not exist"),
        ({"train__mode": "sftt"}, "'sftt'"),
        ({"loader__collator": "paked"}, "'paked'"),
        ({"tracking__report_to": ["no_such"]}, "no such tracker"),
        ({"train__optim": "grokadamw"}, "needs the package grokadamw"),
        ({"model__attn_implementation": "flash_attention_2"}, "needs the package flash_attn"),
        ({"train__adam_epsilon": 1.0}, "FT054: adam_epsilon = 1 is larger"),
        ({"train__warmup_steps": 9}, "FT053: the warm-up of 9 steps"),
    ],
)
def test_what_needs_no_data_is_refused_before_they_are_prepared(bench, values, words, monkeypatch):
    monkeypatch.setattr(refused_settings, "_installed", lambda module: False)
    refused = context(bench, "refused", **values)
    with pytest.raises(FtcliError, match=words):
        train.run(refused)
    assert not refused.notes
    assert not (bench.folder / "refused").exists()


def test_no_verify_and_ignore_prepare_data_despite_a_check_that_fails(bench):
    for name, values in (("unverified", {"train__verify": False}), ("ignored", {"train__ignore_checks": ["FT0"]})):
        report = train.run(context(bench, name, train__adam_epsilon=1.0, **values))
        assert report.status == "ok"
        assert not [check.id for check in report.checks if check.id == "FT054"]


def test_weights_that_are_a_pointer_are_named_before_data_are_prepared(bench):
    folder = bench.folder / "pointer"
    folder.mkdir()
    (folder / "config.json").write_bytes(POINTER)
    refused = context(bench, "refused", model__config=None, model__name_or_path=str(folder))
    with pytest.raises(ModelError, match=r"config\.json is a Git LFS pointer"):
        train.run(refused)
    assert not (bench.folder / "refused").exists()


def test_an_earlier_run_is_found_before_data_are_prepared_anew(bench):
    (bench.folder / "earlier" / "checkpoint-2").mkdir(parents=True)
    with pytest.raises(TrainError, match="holds an earlier run"):
        train.run(context(bench, "earlier"))
    assert not (bench.folder / "earlier" / "prepared").exists()


@pytest.mark.parametrize("kept", [True, False])
def test_the_folder_of_a_run_is_no_data_and_names_what_it_learned(bench, tmp_path, kept):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    learned = {"settings": {"dataset.sources": {"value": ["data/reviews", "more.csv"]}}}
    (run / RUN_NAME).write_text(json.dumps(learned if kept else {}))
    for ask in (lambda: train.run(bench.context(run, "of a run")), lambda: Store.open(run)):
        with pytest.raises(FtcliError, match=rf"run is the output folder of a training run \({RUN_NAME}\), not data") as caught:
            ask()
        assert (caught.value.hint == "It learned data/reviews, more.csv: give that.") == kept
        assert caught.value.hint
