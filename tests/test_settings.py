"""The settings tree: names, help, types, and that every TrainingArguments field has its place."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ftcli.errors import SettingsError
from ftcli.fields import extra, flag_of, variable_of
from ftcli.settings import Settings, get, sections, update, walk
from ftcli.settings_train import NOT_OFFERED, OWN, REMOVED, TrainSettings
from ftcli.sources import resolve

FIELDS = [pytest.param(section, name, info, id=f"{section}.{name}") for section, name, info in walk()]


def test_the_sections_are_those_of_the_design() -> None:
    assert list(sections()) == ["dataset", "tokenizer", "packing", "loader", "model", "train", "runtime", "benchmark", "tracking", "launch"]


@pytest.mark.parametrize(("section", "name", "info"), FIELDS)
def test_every_field_has_help(section: str, name: str, info: Any) -> None:
    assert info.description
    assert info.description == " ".join(info.description.split())
    assert name not in info.description.split()[:1], "help that only repeats the name helps nobody"


def test_every_flag_is_unique_except_the_two_output_directories() -> None:
    flags = Counter(flag_of(name, info) for _, name, info in walk())

    assert {flag: count for flag, count in flags.items() if count > 1} == {"--output-dir": 2}


def test_every_environment_variable_is_unique_and_named_after_section_and_field() -> None:
    variables = [variable_of(section, name) for section, name, _ in walk()]

    assert len(set(variables)) == len(variables)
    assert {"DATASET_NUM_PROC", "DATASET_BATCH_SIZE", "DATASET_WRITER_BATCH_SIZE", "TOKENIZER_PATH"} <= set(variables)


@pytest.mark.parametrize(
    ("key", "flag"),
    [
        ("train.mode", "--mode"),
        ("dataset.sources", "--dataset"),
        ("tokenizer.path", "--tokenizer-path"),
        ("model.config", "--model-config"),
        ("train.output_dir", "--output-dir"),
        ("dataset.num_proc", "--num-proc"),
        ("train.bf16", "--bf16"),
        ("packing.strategy", "--packing"),
        ("packing.max_length", "--max-length"),
        ("train.per_device_train_batch_size", "--per-device-train-batch-size"),
    ],
)
def test_flags_that_people_already_use_keep_working(key: str, flag: str) -> None:
    section, name = key.split(".")

    assert flag_of(name, sections()[section].model_fields[name]) == flag


@pytest.mark.parametrize(("section", "name", "info"), FIELDS)
def test_every_default_is_one_that_the_field_accepts(section: str, name: str, info: Any) -> None:
    Settings.model_validate({section: {name: info.default}})


def test_a_bare_flag_has_a_value_that_the_field_accepts() -> None:
    bare = {f"{section}.{name}": extra(info, "bare") for section, name, info in walk() if extra(info, "bare") is not None}

    assert bare == {"packing.strategy": "bfd", "train.resume_from_checkpoint": "auto"}
    update(Settings(), bare)


def test_settings_cannot_be_changed() -> None:
    settings = Settings()

    with pytest.raises(ValidationError, match="frozen"):
        settings.dataset.num_proc = 3
    with pytest.raises(ValidationError, match="frozen"):
        settings.dataset = settings.dataset  # type: ignore[misc]


@pytest.mark.parametrize("tree", [{"datasets": {}}, {"dataset": {"num_procs": 3}}])
def test_unknown_keys_are_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Settings.model_validate(tree)


def test_update_changes_a_copy_and_validates_it() -> None:
    settings = Settings()
    changed = update(settings, {"dataset.num_proc": 3, "train.learning_rate": "1e-3"})

    assert (get(changed, "dataset.num_proc"), get(changed, "train.learning_rate")) == (3, 0.001)
    assert get(settings, "dataset.num_proc") is None
    with pytest.raises(ValidationError):
        update(settings, {"dataset.num_proc": 0})
    with pytest.raises(ValidationError):
        update(settings, {"dataset.num_procs": 1})
    with pytest.raises(ValidationError, match="0 steps train nothing: give 1 or more, or -1 for epochs"):
        update(settings, {"train.max_steps": 0})


def test_what_is_our_own_or_set_elsewhere_is_told_apart() -> None:
    offered = set(TrainSettings.model_fields)

    assert offered >= OWN
    assert not offered & NOT_OFFERED.keys()
    assert not offered & REMOVED.keys()


def test_where_a_setting_is_said_to_live_it_lives() -> None:
    keys = {f"{section}.{name}" for section, name, _ in walk()}
    for name, words in {**NOT_OFFERED, **REMOVED}.items():
        key = words.split()[0].rstrip(",")
        assert "." not in key or key in keys, (name, words)


@pytest.mark.slow
def test_every_field_of_training_arguments_has_its_place_and_no_other_is_handed_on() -> None:
    from transformers import TrainingArguments

    theirs = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}

    assert theirs - set(TrainSettings.model_fields) - NOT_OFFERED.keys() == set(), "new in transformers: offer it, or say where it is set"
    assert set(TrainSettings.model_fields) - OWN - theirs == set(), "gone from transformers: move it to REMOVED"
    assert NOT_OFFERED.keys() - theirs == set()
    assert REMOVED.keys() & theirs == set()


@pytest.mark.slow
def test_our_defaults_are_theirs_unless_a_reason_is_given_here() -> None:
    from transformers import TrainingArguments

    different = {
        "logging_steps": "theirs is 500 steps: hours without a figure",
        "save_total_limit": "theirs keeps every checkpoint until the disk is full",
        "save_strategy": "None means by epoch here, steps there",
        "eval_strategy": "None means by epoch when there is held-out data",
        "bf16": "None means where the device has it",
    }
    theirs = {field.name: field.default for field in dataclasses.fields(TrainingArguments) if field.default is not dataclasses.MISSING}
    found = {}
    for name, info in TrainSettings.model_fields.items():
        if name in theirs and info.default is not None and info.default != getattr(theirs[name], "value", theirs[name]):
            found[name] = (info.default, theirs[name])

    assert found.keys() <= different.keys(), found


@pytest.mark.parametrize(("raw", "value"), [("auto", "auto"), ("yes", True), ("true", True), ("no", False), (True, True), (False, False)])
def test_compiling_is_yes_no_or_auto(raw: Any, value: Any) -> None:
    assert TrainSettings.model_validate({"torch_compile": raw}).torch_compile == value
    with pytest.raises(ValidationError):
        TrainSettings.model_validate({"torch_compile": "sometimes"})


def paths() -> list[str]:
    """Every field that takes a path: by its type, or because it says so."""
    return [f"{section}.{name}" for section, name, info in walk() if "Path" in str(info.annotation) or extra(info, "path")]


def test_the_fields_that_take_a_path_are_these() -> None:
    assert set(paths()) == {
        "dataset.sources",
        "dataset.output_dir",
        "tokenizer.path",
        "model.name_or_path",
        "model.config",
        "train.output_dir",
        "train.resume_from_checkpoint",
        "train.fsdp_config",
        "train.deepspeed",
        "runtime.cache_dir",
        "runtime.report_dir",
    }


@pytest.mark.parametrize("key", paths())
def test_a_path_may_begin_with_the_sign_of_the_home_directory_wherever_it_comes_from(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves --output-dir=~/x as it is, and so does a file: a directory called ~ was made, and `rm -r ~` removes another."""
    monkeypatch.setenv("HOME", "/home/somebody")
    section, name = key.split(".")
    config = tmp_path / "run.json"
    config.write_text(json.dumps({section: {name: ["~/x"] if key == "dataset.sources" else "~/x"}}))
    made = [
        resolve(cli={key: ("~/x", flag_of(name, sections()[section].model_fields[name]))}, environ={}),
        resolve(environ={variable_of(section, name): "~/x"}),
        resolve(config=config, environ={}),
    ]
    for settings in (*(each.settings for each in made), update(Settings(), {key: ["~/x"] if key == "dataset.sources" else "~/x"})):
        value = get(settings, key)
        assert [str(item) for item in value] == ["/home/somebody/x"] if isinstance(value, list) else str(value) == "/home/somebody/x"


def test_only_a_sign_at_the_beginning_of_a_path_is_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    kept = {"tokenizer.path": "a/~/b", "dataset.output_dir": Path("x~"), "dataset.text_column": "~", "train.deepspeed": {"a": "~"}}
    kept |= {"dataset.sources": ["train=~/x", "~no-such-user-here/x"], "tracking.run_name": "~"}
    settings = update(Settings(), kept)
    assert {key: get(settings, key) for key in kept} == kept


@pytest.mark.parametrize(
    ("value", "way"),
    [("3", "; 3 of a hundred are written 3%"), (3, "; 3 of a hundred are written 3%"), ("300%", ""), ("inf", ""), (150, "")],
)
def test_a_share_beyond_one_is_told_how_hundredths_are_written(value: object, way: str) -> None:
    with pytest.raises(ValidationError, match=rf"a share is at most 1 \(100%\){way} \["):
        Settings.model_validate({"dataset": {"max_bad": value}})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train.learning_rate", True, "a number is wanted"),
        ("dataset.num_proc", True, "a number is wanted"),
        ("runtime.threads", False, "a number is wanted"),
        ("train.learning_rate", float("inf"), "finite"),
        ("train.num_train_epochs", float("inf"), "finite"),
        ("dataset.output_dir", "", "it is empty"),
    ],
)
def test_what_nobody_means_is_refused(key: str, value: Any, words: str) -> None:
    """YAML reads yes and on as true, of which 1 was made: a learning rate of 1. An empty path was the working directory."""
    with pytest.raises((SettingsError, ValidationError), match=words):
        update(Settings(), {key: value})


def test_true_is_taken_where_it_is_one_of_the_choices() -> None:
    assert get(update(Settings(), {"train.bf16": True}), "train.bf16") is True


def test_one_text_in_a_file_is_a_list_of_one(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("dataset:\n  sources: a,b.jsonl\n  label_names: [x, y]\ntracking:\n  report_to: tensorboard\n")
    settings = resolve(config=file).settings
    assert (settings.dataset.sources, settings.dataset.label_names) == (["a,b.jsonl"], ["x", "y"])
    assert settings.tracking.report_to == ["tensorboard"]


def test_words_that_yaml_takes_for_true_and_false_are_told_so_once(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("dataset:\n  label_names: [no, yes]\n")
    with pytest.raises(SettingsError, match="write them in quotes") as refused:
        resolve(config=file)
    assert "\n" not in refused.value.message
