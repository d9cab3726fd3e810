"""Where settings come from: who wins, what each value's origin is, and what is said of a bad one."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.errors import SettingsError
from ftcli.fields import flag_of
from ftcli.machine import detect
from ftcli.records import Value
from ftcli.settings import Settings, get, walk
from ftcli.sources import CLI_ONLY, Resolved, misspelt_variables, parse, profile_names, profile_path, resolve, within_cores

LAYERS = ("CLI", "environment", "file", "profile", "default")
VALUES = {"CLI": 11, "environment": 12, "file": 13, "profile": 14, "default": None}


def layered(tmp_path: Path, layers: Mapping[str, Any], key: str = "dataset.num_proc") -> Resolved:
    """Resolve with `key` set to a value by each of the named layers."""
    section, _, name = key.partition(".")
    options: dict[str, Any] = {"environ": {}}
    for layer, value in layers.items():
        if layer == "CLI":
            options["cli"] = {key: (value, "--num-proc")}
        elif layer == "environment":
            options["environ"] = {f"{section}_{name}".upper(): value if isinstance(value, str) else json.dumps(value)}
        elif layer == "file":
            options["config"] = tmp_path / "run.json"
            options["config"].write_text(json.dumps({section: {name: value}}))
        elif layer == "profile":
            options["profile"] = str(tmp_path / "mine.toml")
            text = f'[{section}]\n{name} = {_toml(value)}\n[profile]\ndescription = "mine"\n'
            (tmp_path / "mine.toml").write_text(text)
    return resolve(**options)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)


def refused(**options: Any) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        resolve(**{"environ": {}, **options})
    return caught.value


# -- precedence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("higher", "lower"), list(itertools.combinations(LAYERS, 2)), ids=lambda layer: layer)
def test_the_higher_layer_wins_and_is_the_origin(higher: str, lower: str, tmp_path: Path) -> None:
    layers = {layer: VALUES[layer] for layer in (higher, lower) if layer != "default"}
    resolved = layered(tmp_path, layers)
    origins = {
        "CLI": "--num-proc",
        "environment": "DATASET_NUM_PROC",
        "file": str(tmp_path / "run.json"),
        "profile": "profile mine",
        "default": "default",
    }

    assert resolved.settings.dataset.num_proc == VALUES[higher]
    assert resolved.origins["dataset.num_proc"] == Value(VALUES[higher], origins[higher])
    assert resolved.origin("dataset.num_proc") == origins[higher]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_set_of_layers_gives_the_highest(count: int, tmp_path: Path) -> None:
    for chosen in itertools.combinations(LAYERS[:-1], count):
        resolved = layered(tmp_path, {layer: VALUES[layer] for layer in chosen})

        assert resolved.settings.dataset.num_proc == VALUES[chosen[0]], chosen


@pytest.mark.parametrize(("higher", "lower"), list(itertools.combinations(LAYERS[:-1], 2)), ids=lambda layer: layer)
def test_a_table_comes_whole_from_one_layer(higher: str, lower: str, tmp_path: Path) -> None:
    """Merged, it would have two origins and show one."""
    resolved = layered(tmp_path, {higher: {"from": higher}, lower: {"lost": lower}}, "train.lr_scheduler_kwargs")

    assert resolved.settings.train.lr_scheduler_kwargs == {"from": higher}


def test_threads_of_a_profile_are_no_more_than_the_cores_and_those_of_a_user_stay(tmp_path: Path) -> None:
    machine = replace(detect(), cores=2)
    cut = within_cores(layered(tmp_path, {"profile": 64}, "runtime.threads"), machine)
    assert cut.settings.runtime.threads == 2
    assert cut.origin("runtime.threads").startswith("64 by profile mine, 2 used: 2 cores by ")
    for layer, count in (("CLI", 64), ("profile", 1)):
        found = layered(tmp_path, {layer: count}, "runtime.threads")
        assert within_cores(found, machine) is found
    assert within_cores(resolve(environ={}), machine).settings.runtime.threads is None


def test_layers_set_different_fields_side_by_side(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[dataset]\nbatch_size = 7\n")

    settings = resolve({"dataset.num_proc": ("3", "--num-proc")}, config, "lowmem", {"DATASET_TEXT_COLUMN": "review"}).settings

    found = settings.dataset
    assert (found.num_proc, found.text_column, found.batch_size, found.writer_batch_size) == (3, "review", 7, 5000)


def test_every_field_has_an_origin_and_without_layers_all_are_defaults() -> None:
    resolved = resolve(environ={})

    assert resolved.settings == Settings()
    assert list(resolved.origins) == [f"{section}.{name}" for section, name, _ in walk()]
    assert {value.origin for value in resolved.origins.values()} == {"default"}
    assert resolved.warnings == ()


@hypothesis_settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(LAYERS[:-1]), st.integers(1, 10**6)))
def test_the_value_and_its_origin_always_belong_together(tmp_path: Path, layers: dict[str, int]) -> None:
    resolved = layered(tmp_path, layers)
    winner = next((layer for layer in LAYERS if layer in layers), "default")

    assert resolved.settings.dataset.num_proc == layers.get(winner)
    assert resolved.origins["dataset.num_proc"].value == layers.get(winner)


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "meant"),
    [("dataset.num_procs", "dataset.num_proc"), ("datasets.num_proc", "dataset.num_proc"), ("num_proc", "dataset.num_proc")],
)
def test_a_misspelt_key_on_the_command_line_is_fatal_with_a_suggestion(key: str, meant: str) -> None:
    error = refused(cli={key: ("3", "--set")})

    assert error.message == f"{key} (from --set) is not a setting"
    assert error.hint == f"Did you mean {meant}?"


def test_a_key_like_no_other_points_to_the_list() -> None:
    assert refused(cli={"zz.qq": ("3", "--set")}).hint == "See: ftcli settings"


@pytest.mark.parametrize(("key", "hint"), [("train.report_to", "tracking.report_to"), ("train.evaluation_strategy", "train.eval_strategy")])
def test_a_field_of_training_arguments_that_lives_elsewhere_says_where(key: str, hint: str) -> None:
    assert refused(cli={key: ("x", "--set")}).hint == f"Use {hint}."


@pytest.mark.parametrize(
    ("key", "typed", "flag", "taken", "example"),
    [
        ("dataset.num_proc", "many", "--num_proc", "a whole number, 1 or more", "--num_proc 8"),
        ("launch.nproc_per_node", "x", "--nproc-per-node", "a whole number or auto", "--nproc-per-node 8"),
        ("train.eval_strategy", "step", "--eval-strategy", "no, steps or epoch", "--eval-strategy steps"),
        ("train.torch_compile", "maybe", "--torch-compile", "true, false or auto", "--torch-compile=true"),
        ("train.seed", "-1", "--set", "a whole number, 0 or more and less than 4,294,967,296", "--set train.seed=42"),
        ("train.learning_rate", "inf", "--learning-rate", "a finite number, more than 0", "--learning-rate 5e-05"),
        ("train.accelerator_config", "x", "--accelerator-config", "a table (JSON)", """--accelerator-config '{"name": 1}'"""),
    ],
)
def test_a_bad_value_is_told_with_its_flag_what_is_taken_and_an_example(key: str, typed: str, flag: str, taken: str, example: str) -> None:
    error = refused(cli={key: (typed, flag)})

    assert error.message == f"{key} = {typed!r} (from {flag}): it takes {taken}"
    assert error.hint == f"For example: {example}"
    assert error.exit_code == 2


@pytest.mark.parametrize("bad", ["x", '{"nonsense": 1}', "[1, {}]", "{bad", "-7", "1.5", "inf"])
def test_every_setting_is_refused_in_the_words_of_its_flag_and_its_example_is_taken(bad: str) -> None:
    found = 0
    for section, name, info in walk():
        key, flag = f"{section}.{name}", flag_of(name, info)
        try:
            resolve(cli={key: (bad, flag)}, environ={})
            continue
        except SettingsError as refusal:
            error = refusal
        found += 1
        assert error.message.startswith(f"{key} = ")
        assert f"(from {flag}): " in error.message
        assert not re.search("\n|Input should|unable to|dictionary|String", error.message), error.message
        if error.hint.startswith("For example: "):
            _, example = shlex.split(error.hint.removeprefix("For example: ").replace(f"{flag}=", f"{flag} "))
            resolve(cli={key: (example, flag)}, environ={})
    assert found > 20


def test_an_example_is_written_as_the_value_was_set(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[train]\neval_strategy = "step"\nmax_steps = "many"\n')

    assert refused(environ={"DATASET_NUM_PROC": "many"}).hint == "For example: DATASET_NUM_PROC=8"
    hint = 'For example: max_steps = 8 under train; eval_strategy = "steps" under train'
    assert refused(config=tmp_path / "run.toml").hint == hint
    assert refused(environ={"TOKENIZER_TEMPLATE_DATE": "today"}).hint == "Correct it where it was set (see the brackets)."


def test_every_bad_value_is_told_at_once() -> None:
    error = refused(cli={"dataset.num_proc": ("0", "--num-proc")}, environ={"TRAIN_LEARNING_RATE": "-1"})

    assert "dataset.num_proc = '0' (from --num-proc)" in error.message
    assert "train.learning_rate = '-1' (from TRAIN_LEARNING_RATE)" in error.message


def test_a_wrong_word_is_told_with_the_right_ones() -> None:
    error = refused(environ={"DATASET_MEMORY_MODE": "fast"})

    assert "dataset.memory_mode = 'fast' (from DATASET_MEMORY_MODE)" in error.message
    assert "balanced" in error.message


# -- the environment ---------------------------------------------------------------------------------------------------


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASET_NUM_PROC", "5")

    assert resolve().settings.dataset.num_proc == 5


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_variable_counts_as_unset(value: str) -> None:
    resolved = resolve(environ={"DATASET_NUM_PROC": value, "TOKENIZER_PATH": value, "DATASET_SOURCES": value})

    assert resolved.settings == Settings()
    assert {value.origin for value in resolved.origins.values()} == {"default"}


def test_a_bare_section_name_is_ignored() -> None:
    resolved = resolve(environ={"DATASET": "imdb", "MODEL": "gpt2", "TRAIN": '{"mode": "pretrain"}'})

    assert (resolved.settings, resolved.warnings) == (Settings(), ())


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("DATASET_NUMPROC", "DATASET_NUM_PROC"),
        ("DATASET_BATCHSIZE", "DATASET_BATCH_SIZE"),
        ("FTCLI_PROFIL", "FTCLI_PROFILE"),
    ],
)
def test_a_misspelt_variable_is_a_warning_with_a_suggestion(variable: str, meant: str) -> None:
    (warning,) = resolve(environ={variable: "3"}).warnings

    assert warning == f"the variable {variable} is not a setting and has no effect; did you mean {meant}?"


@pytest.mark.parametrize(
    ("variable", "instead"),
    [
        ("TRAIN_REPORT_TO", "tracking.report_to"),
        ("TRAIN_WARMUP_RATIO", "train.warmup_steps (a value under 1 is a share)"),
        ("TRAIN_NO_CUDA", "train.use_cpu"),
    ],
)
def test_a_variable_of_what_is_set_elsewhere_is_a_warning_that_says_where(variable: str, instead: str) -> None:
    """TRAIN_WARMUP_RATIO had no effect, without a word: no setting is spelt like it."""
    (warning,) = resolve(environ={variable: "0.1"}).warnings

    assert warning == f"the variable {variable} is not a setting and has no effect; use {instead}"


@pytest.mark.parametrize("variable", ["MODEL_REGISTRY_URL", "TRAIN_STATION", "PATH", "FTCLI_LOG", "DATASET_NUM_PROC", "dataset_numproc"])
def test_other_peoples_variables_are_no_warning(variable: str) -> None:
    assert misspelt_variables({variable: "x"}) == []


# -- text to values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("dataset.sources", "a.csv", ["a.csv"]),
        ("dataset.sources", "a.csv, b.csv,", ["a.csv", "b.csv"]),
        ("dataset.sources", '["a,b.csv"]', ["a,b.csv"]),
        ("dataset.sources", ["a,b.csv"], ["a,b.csv"]),
        ("tracking.report_to", "mlflow,wandb", ["mlflow", "wandb"]),
        ("train.lr_scheduler_kwargs", '{"min_lr": 1e-6}', {"min_lr": 1e-6}),
        ("train.deepspeed", "ds.json", "ds.json"),
        ("train.deepspeed", '{"zero": {"stage": 2}}', {"zero": {"stage": 2}}),
        ("train.bf16", "true", True),
        ("train.bf16", "off", False),
        ("train.learning_rate", "2e-5", 2e-5),
        ("train.warmup_steps", "0.1", 0.1),
        ("dataset.output_dir", "some/where", Path("some/where")),
        ("train.eval_strategy", "no", "no"),
        ("tokenizer.path", "[x]", "[x]"),
    ],
)
def test_text_becomes_what_the_field_wants(key: str, raw: Any, value: Any) -> None:
    variable = key.replace(".", "_").upper()

    assert get(resolve({key: (raw, "--flag")}, environ={}).settings, key) == value
    if isinstance(raw, str):
        assert get(resolve(environ={variable: raw}).settings, key) == value


@pytest.mark.parametrize(("key", "raw"), [("train.lr_scheduler_kwargs", "{min_lr: 1}"), ("dataset.sources", "[a.csv]")])
def test_what_should_be_json_and_is_not_is_told(key: str, raw: str) -> None:
    with pytest.raises(SettingsError, match=r"not JSON") as caught:
        parse(key, raw, "--set")

    assert caught.value.message.startswith(f"{key} = {raw!r}")


@given(st.lists(st.text(st.characters(blacklist_characters=",", blacklist_categories=("Cs", "Cc")), min_size=1), min_size=1))
def test_a_list_survives_being_written_with_commas_or_as_json(items: list[str]) -> None:
    plain = [item.strip() for item in items if item.strip()]
    if plain and not plain[0].startswith("["):
        assert parse("dataset.sources", ",".join(plain), "--dataset") == plain
    assert parse("dataset.sources", json.dumps(items), "--dataset") == items


# -- files -------------------------------------------------------------------------------------------------------------

DOCUMENTS = {
    "run.toml": '[dataset]\nnum_proc = 3\nsources = ["a", "b"]\n[train]\neval_strategy = "no"\nlr_scheduler_kwargs = { min_lr = 0.1 }\n',
    "run.yaml": "dataset:\n  num_proc: 3\n  sources: [a, b]\ntrain:\n  eval_strategy: no\n  lr_scheduler_kwargs: {min_lr: 0.1}\n",
    "run.yml": "dataset: {num_proc: 3, sources: [a, b]}\ntrain: {eval_strategy: 'no', lr_scheduler_kwargs: {min_lr: 0.1}}\n",
    "run.json": '{"dataset": {"num_proc": 3, "sources": ["a", "b"]}, "train": {"eval_strategy": "no", "lr_scheduler_kwargs": {"min_lr": 0.1}}}',
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_file_is_read_in_each_format(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(DOCUMENTS[name])

    resolved = resolve(config=tmp_path / name, environ={})

    settings = resolved.settings
    assert (settings.dataset.num_proc, settings.dataset.sources) == (3, ["a", "b"])
    assert (settings.train.eval_strategy, settings.train.lr_scheduler_kwargs) == ("no", {"min_lr": 0.1})
    assert resolved.origin("dataset.num_proc") == str(tmp_path / name)


@pytest.mark.parametrize(("name", "text"), [("empty.yaml", ""), ("empty.toml", ""), ("empty.json", "{}")])
def test_an_empty_file_sets_nothing(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)

    assert resolve(config=tmp_path / name, environ={}).settings == Settings()


@pytest.mark.parametrize(
    ("name", "text", "words", "hint"),
    [
        ("run.toml", "[dataset]\nnum_procs = 3", "dataset.num_procs", "Did you mean dataset.num_proc?"),
        ("run.toml", "[datset]\nnum_proc = 3", "datset.num_proc", "Did you mean dataset.num_proc?"),
        ("run.toml", "[train]\nreport_to = 'x'", "train.report_to", "Use tracking.report_to."),
        ("run.toml", "num_proc = 3", "num_proc is outside a section", "Did you mean [dataset] num_proc?"),
        ("run.toml", "what = 3", "what is outside a section", "Sections are: dataset, "),
        ("run.toml", "output_dir = 'x'", "output_dir is outside", "Did you mean [dataset] output_dir or [train] output_dir?"),
        ("run.toml", "[dataset", "cannot be read", "Fix the file."),
        ("run.yaml", "dataset: [1", "cannot be read", "Fix the file."),
        ("run.json", "{", "cannot be read", "Fix the file."),
        ("run.json", "[1]", "the top level must be sections, found list", "Write [section]"),
        ("run.yaml", "just words", "the top level must be sections, found str", "Write [section]"),
        ("run.ini", "[dataset]", "a config file ends in .toml", "Rename it."),
    ],
)
def test_a_file_that_cannot_be_right_is_refused_with_a_hint(name: str, text: str, words: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)

    error = refused(config=tmp_path / name)

    assert words in error.message
    assert name in error.message
    assert error.hint.startswith(hint)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refused(config=tmp_path / "none.toml").message
    assert "is a folder" in refused(config=tmp_path).message
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "binary.toml cannot be read" in refused(config=tmp_path / "binary.toml").message


def test_a_bad_value_in_a_file_is_told_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[dataset]\nnum_proc = 'many'\n")

    assert f"dataset.num_proc = 'many' (from {tmp_path / 'run.toml'})" in refused(config=tmp_path / "run.toml").message


# -- what runs code, and what is secret --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(CLI_ONLY))
@pytest.mark.parametrize("layer", ["environment", "file", "profile"])
def test_what_runs_code_is_for_the_command_line_only(key: str, layer: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="only the command line may set this"):
        layered(tmp_path, {layer: True}, key)

    assert get(layered(tmp_path, {"CLI": True}, key).settings, key) is True


SECRET = "hf_abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    "document",
    [{"hub_token": SECRET}, {"train": {"hub_token": SECRET}}, {"train": {"push_to_hub_token": SECRET}}, {"hub": {"token": SECRET}}],
)
def test_a_secret_under_a_key_that_is_none_is_not_repeated(document: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(document))
    error = refused(config=tmp_path / "run.json")

    assert SECRET not in error.message + error.hint


def test_a_secret_in_a_variable_or_a_flag_that_is_none_is_not_repeated() -> None:
    error = refused(cli={"train.hub_token": (SECRET, "--set")})

    assert SECRET not in error.message
    assert "HF_TOKEN" in error.hint
    assert SECRET not in str(resolve(environ={"TRAIN_HUB_TOKEN": SECRET, "TRAIN_HUB_MODEL": SECRET}).warnings)


def test_no_setting_is_a_secret() -> None:
    """Values are shown in errors, manifests and reports, so that a token must never become a setting."""
    assert [name for _, name, _ in walk() if name.endswith(("_token", "password", "secret", "api_key"))] == []


# -- profiles ----------------------------------------------------------------------------------------------------------

CLASSES = {"highend": (20000, 100000), "workstation": (20000, 100000), "standard": (10000, 50000), "lowmem": (500, 5000)}


@pytest.mark.parametrize("name", CLASSES)
def test_the_hardware_classes_have_the_incidents_batch_sizes(name: str) -> None:
    resolved = resolve(profile=name, environ={})

    assert (resolved.settings.dataset.batch_size, resolved.settings.dataset.writer_batch_size) == CLASSES[name]
    assert resolved.origin("dataset.batch_size") == f"profile {name}"
    assert resolved.profile == name


def test_every_packaged_profile_loads_and_describes_its_machine() -> None:
    assert set(profile_names()) == CLASSES.keys()
    for name in profile_names():
        resolve(profile=name, environ={})
        about = tomllib.loads(profile_path(name).read_text(encoding="utf-8"))["profile"]

        assert about.keys() == {"description", "min_cores", "min_memory_gb"}


def test_a_home_that_may_not_be_entered_has_no_profile_and_hides_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sudo -u b` with the old HOME: every command with --profile ended with Permission denied."""
    stat = Path.stat

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if tmp_path in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(Path, "stat", refuse)
    assert set(profile_names()) == CLASSES.keys()
    assert resolve(profile="lowmem", environ={}).profile == "lowmem"


def test_a_users_profile_comes_before_the_packaged_one_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "ftcli" / "profiles"
    folder.mkdir(parents=True)
    (folder / "standard.toml").write_text("[dataset]\nbatch_size = 1\n")
    (folder / "mine.toml").write_text("[dataset]\nbatch_size = 2\n")

    assert [resolve(profile=name, environ={}).settings.dataset.batch_size for name in ("standard", "mine")] == [1, 2]
    assert profile_names() == sorted([*CLASSES, "mine"])


def test_without_a_variable_profiles_are_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".config" / "ftcli" / "profiles"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("")

    assert "mine" in profile_names()


@pytest.mark.parametrize(
    ("name", "hint"), [("hihgend", "Did you mean 'highend'?"), ("zzz", "Profiles: highend, lowmem, standard, workstation.")]
)
def test_an_unknown_profile_is_refused_with_the_known_ones(name: str, hint: str) -> None:
    error = refused(profile=name)

    assert error.message == f"there is no profile {name!r}"
    assert error.hint.endswith(hint)


def test_a_misspelt_key_in_a_profile_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[dataset]\nnum_procs = 3\n")

    error = refused(profile=str(tmp_path / "mine.toml"))

    assert error.message == "dataset.num_procs (from profile mine) is not a setting"


def test_a_section_of_comments_alone_is_empty(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("dataset:\n  num_proc: 3\ntrain:\n#  seed: 1\n")
    (tmp_path / "run.json").write_text('{"dataset": {"num_proc": 3}, "train": null}')
    for name in ("run.yaml", "run.json"):
        assert resolve(config=tmp_path / name, environ={}).settings.dataset.num_proc == 3
    (tmp_path / "run.yaml").write_text("trian:\n#  seed: 1\n")
    with pytest.raises(SettingsError, match="trian is outside a section"):
        resolve(config=tmp_path / "run.yaml", environ={})


def test_numbers_that_yaml_1_1_takes_for_texts_are_what_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "train:\n  learning_rate: 1e-5\n  lr_scheduler_kwargs: {min_lr: 1e-6, rates: [-1.5E3, .5e1], name: '1e-6', 1e3: x}\n"
        "  deepspeed: {optimizer: {params: {lr: 3e-5}}}\n"
        "tracking:\n  run_name: 1e-6\ndataset:\n  label_names: [1e5, '2e5', 12e4]\n"
    )
    settings = resolve(config=file, environ={}).settings
    assert settings.train.learning_rate == 1e-5
    assert settings.train.lr_scheduler_kwargs == {"min_lr": 1e-6, "rates": [-1500.0, 5.0], "name": "1e-6", "1e3": "x"}
    assert settings.train.deepspeed == {"optimizer": {"params": {"lr": 3e-5}}}
    assert (settings.tracking.run_name, settings.dataset.label_names) == ("1e-6", ["1e5", "2e5", "12e4"])
    assert type(settings.tracking.run_name) is str
