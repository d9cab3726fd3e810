"""What will be prepared is settled before any work: choices with their reasons, contradictions refused, one fingerprint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from ftcli.core.prepare.recipe import Recipe, settle
from ftcli.errors import DataError, SettingsError, UsageError
from ftcli.testing import tiny_tokenizer
from tokenizing import context, corpus, plugins, prepare, small_tokenizers, without_plots, write

kinds = small_tokenizers
no_html = without_plots


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "data.jsonl", corpus(30), ["a", "b"] * 15)


@pytest.fixture
def recipe(kinds, source, tmp_path):
    """Settle with "section__field" values; gives (recipe, notes)."""

    def make(tokenizer: Path | None = None, sources: Any = None, **values) -> tuple[Recipe, list[str]]:
        made = context(tokenizer or kinds["bpe"], sources or source, tmp_path / "out", **values)
        return settle(made), made.notes

    return make


def test_with_labels_the_task_is_classify_and_no_eos_is_added(recipe):
    settled, notes = recipe(dataset__label_column="label")
    assert (settled.task, settled.packing, settled.policy.eos, settled.policy.truncation) == ("classify", "none", None, "keep_start")
    assert any(note.startswith("max_length = 1024: the tokenizer has no limit") for note in notes)


def test_without_labels_the_task_is_pretrain_and_texts_end_with_eos(recipe):
    settled, notes = recipe()
    assert settled.task == "pretrain"
    assert settled.policy.eos == settled.tokenizer.eos_token_id
    assert any("turn off with --no-add-eos" in note for note in notes)


def test_what_the_user_says_about_eos_is_done_without_a_note(recipe):
    assert recipe(tokenizer__add_eos=False)[0].policy.eos is None
    settled, notes = recipe(tokenizer__add_eos=True, dataset__label_column="label")
    assert settled.policy.eos is not None
    assert not any("EOS" in note or "ends with" in note for note in notes)


def test_parts_of_a_text_end_with_eos_where_rows_are_judged_alone_and_the_fingerprint_knows(recipe):
    told = "EOS of a text in parts"
    parted = recipe(packing__truncation_strategy="split")[0]
    judged = recipe(packing__truncation_strategy="split", tokenizer__add_eos=True, dataset__label_column="label")[0]
    assert (parted.policy.parts_end, judged.policy.parts_end) == (False, True)
    assert told in parted.inputs
    for other in (
        judged,
        recipe()[0],
        recipe(packing__strategy="bfd")[0],
        recipe(packing__truncation_strategy="split", tokenizer__add_eos=False)[0],
    ):
        assert told not in other.inputs


def test_eos_is_not_added_where_the_tokenizer_adds_it(recipe, kinds):
    settled, _ = recipe(kinds["unigram"])
    assert settled.policy.suffix == (settled.tokenizer.eos_token_id,)
    assert settled.policy.eos is None


def test_a_tokenizer_without_eos_is_noted_and_asking_for_one_is_refused(recipe, kinds):
    settled, notes = recipe(kinds["wordpiece"])
    assert settled.policy.eos is None
    assert "no EOS between texts: the tokenizer has none" in notes
    with pytest.raises(UsageError, match="the tokenizer has no EOS token"):
        recipe(kinds["wordpiece"], tokenizer__add_eos=True)


def test_max_length_is_the_tokenizer_s_limit_when_that_is_smaller(recipe, tmp_path):
    tiny = tiny_tokenizer(tmp_path / "tiny")
    settled, notes = recipe(tiny, dataset__label_column="label")
    assert settled.policy.max_length == 512
    assert "max_length = 512: the tokenizer's limit is 512" in notes
    assert recipe(tiny, packing__strategy="bfd")[0].policy.max_length == 1024
    assert recipe(tiny, packing__max_length=700)[0].policy.max_length == 700


def test_packing_splits_long_texts_and_the_concat_packer_does_it_itself(recipe):
    bfd, concat = (recipe(packing__strategy=name)[0].policy for name in ("bfd", "concat"))
    assert (bfd.truncation, bfd.packed, bfd.packer_splits) == ("split", True, False)
    assert (concat.truncation, concat.packed, concat.packer_splits) == ("split", True, True)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"train__mode": "classify"}, "the task classify needs labels"),
        ({"packing__max_length": 2, "tokenizer": "wordpiece"}, "leaves no room for text"),
        ({"dataset__validation_fraction": 0.5, "dataset__test_fraction": 0.5}, "leaves nothing to train on"),
    ],
)
def test_what_cannot_be_is_refused(values, word, recipe, kinds):
    values = dict(values)
    tokenizer = kinds[values.pop("tokenizer", "bpe")]
    with pytest.raises(UsageError, match=word) as refused:
        recipe(tokenizer, **values)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("values", "word"),
    [({"train__mode": "clasify"}, "train.mode = 'clasify'"), ({"packing__strategy": "bdf"}, "packing.strategy = 'bdf'")],
)
def test_a_misspelt_part_is_named_with_the_setting(values, word, recipe):
    with pytest.raises(SettingsError, match=word) as refused:
        recipe(**values)
    assert "Did you mean" in refused.value.hint


def test_files_are_numbered_split_by_split_and_name_every_reachable_split(recipe, tmp_path):
    sources = [f"train={write(tmp_path / 'a.jsonl', corpus(60))}", f"validation={write(tmp_path / 'b.jsonl', corpus(5))}"]
    settled, _ = recipe(None, sources, dataset__shard_bytes=2_000, dataset__test_fraction=0.1)
    files = settled.files()
    assert settled.splits() == ["train", "validation", "test"]
    trains = [index for index, split in files if split == "train"]
    assert len(trains) > 1
    assert [files[index, "train"] for index in trains] == [f"train/data-{n:05d}-of-{len(trains):05d}.arrow" for n in range(len(trains))]
    assert [files[index, "test"] for index in trains] == [f"test/data-{n:05d}-of-{len(trains):05d}.arrow" for n in range(len(trains))]
    assert list(files.values()).count("validation/data-00000-of-00001.arrow") == 1
    assert len(set(files.values())) == len(files)


def test_a_test_file_alone_makes_a_test_split_alone(recipe, source):
    assert recipe(None, [f"test={source}"])[0].splits() == ["test"]


def test_the_fingerprint_holds_no_path_and_no_execution_knob(recipe, source, tmp_path, kinds):
    first = recipe()[0].fingerprint
    shutil.copy(source, tmp_path / "moved.jsonl")
    shutil.copytree(kinds["bpe"], tmp_path / "tokenizer")
    moved = recipe(tmp_path / "tokenizer", tmp_path / "moved.jsonl")[0].fingerprint
    knobs = {"dataset__num_proc": 7, "dataset__batch_size": 3, "dataset__writer_batch_size": 9, "dataset__memory_mode": "disk"}
    assert {first, moved, recipe(**knobs, runtime__threads=5, tokenizer__engine="auto")[0].fingerprint} == {first}


def test_the_split_s_seed_counts_only_where_there_is_a_split(recipe):
    assert recipe(dataset__seed=1)[0].fingerprint == recipe(dataset__seed=2)[0].fingerprint
    assert (
        recipe(dataset__seed=1, dataset__test_fraction=0.1)[0].fingerprint
        != recipe(dataset__seed=2, dataset__test_fraction=0.1)[0].fingerprint
    )


def test_a_plugin_that_changes_no_data_is_not_in_the_fingerprint(kinds, source, tmp_path):
    plain = settle(context(kinds["bpe"], source, tmp_path / "out")).fingerprint
    register = "from ftcli import hookimpl\n@hookimpl\ndef {0}(register): ...\n"
    harmless = plugins(tmp_path / "one", register.format("register_engines"))
    changing = plugins(tmp_path / "two", register.format("register_sources"))
    assert settle(context(kinds["bpe"], source, tmp_path / "out", harmless)).fingerprint == plain
    assert settle(context(kinds["bpe"], source, tmp_path / "out", changing)).fingerprint != plain


def conditional(folder: Path) -> Path:
    """A tokenizer whose special tokens are no fixed beginning and end: its template repeats the text."""
    backend = Tokenizer.from_file(str(tiny_tokenizer(folder) / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(single="$A <bos> $A", special_tokens=[("<bos>", 2)])
    roles = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **roles).save_pretrained(str(folder))
    return folder


def test_special_tokens_count_where_no_fixed_prefix_and_suffix_stand_for_them(recipe, tmp_path):
    folder = conditional(tmp_path / "conditional")
    with_special, without = (recipe(folder, tokenizer__add_special_tokens=special)[0] for special in (True, False))
    assert with_special.backend.constant is False
    assert with_special.policy == without.policy
    assert with_special.fingerprint != without.fingerprint


@pytest.mark.usefixtures("no_html")
def test_whole_rows_come_from_the_reference_where_affixes_are_not_fixed(source, tmp_path):
    folder = conditional(tmp_path / "conditional")
    report = prepare(folder, source, tmp_path / "out", tokenizer__engine="auto", tokenizer__add_eos=False)
    assert report.metrics["engine"] == "hf"
    assert any("the reference encodes whole rows" in note for note in report.notes)
    from transformers import AutoTokenizer

    from tokenizing import ids

    assert ids(tmp_path / "out") == AutoTokenizer.from_pretrained(folder)(corpus(30))["input_ids"]


def test_a_source_that_changed_or_went_is_found(recipe, source):
    settled, _ = recipe()
    settled.check_sources()
    data = source.read_bytes()
    source.unlink()
    with pytest.raises(DataError, match="changed while it was read"):
        settled.check_sources()
    source.write_bytes(data)
    with pytest.raises(DataError, match="changed while it was read"):
        settled.check_sources()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dataset__label_names": ["a", "b"]}, "label_names: no label column is given"),
        ({"dataset__label_separator": ","}, "label_separator: no label column is given"),
        ({"dataset__rename_columns": ["text=body"]}, "rename_columns = text=body is for conversations"),
        ({"dataset__rename_columns": ["text=body"], "dataset__label_column": "label"}, "rename_columns = text=body is for conversations"),
    ],
)
def test_a_setting_that_would_be_passed_over_is_refused(recipe, values, words):
    with pytest.raises(UsageError, match=words):
        recipe(**values)
