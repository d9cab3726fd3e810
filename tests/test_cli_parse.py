"""Words to values: spellings, switches, lists, and errors that name what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcli.cli.catalog import COMMANDS
from ftcli.cli.option_suggestions import SHORT
from ftcli.cli.options import options_of, setting_options
from ftcli.cli.parse import parse
from ftcli.cli.switches import Switches, typed_settings
from ftcli.errors import UsageError
from ftcli.settings_train import NOT_OFFERED, REMOVED
from ftcli.sources import resolve
from ftcli.testing import run

TRAIN = COMMANDS["train"]
FLAGS = [option.flags[0] for option in options_of(TRAIN) if "." in option.key and option.takes == "value"]


def settings(*words: str, command: str = "train") -> dict[str, object]:
    return {key: value for key, (value, _) in parse(COMMANDS[command], words).settings().items()}


@given(st.sampled_from(FLAGS), st.text(min_size=1).filter(lambda text: not text.startswith("-")), st.booleans(), st.booleans())
def test_every_value_arrives_as_typed_in_both_spellings_and_both_forms(flag: str, value: str, underscores: bool, joined: bool) -> None:
    spelling = "--" + flag[2:].replace("-", "_") if underscores else flag
    words = [f"{spelling}={value}"] if joined else [spelling, value]

    parsed = parse(TRAIN, words).given

    assert list(parsed.values()) == [[(value, spelling)]]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--bf16"], "true"),
        (["--bf16", "true"], "true"),
        (["--bf16", "False"], "false"),
        (["--bf16=false"], "false"),
        (["--no-bf16"], "false"),
        (["--no_bf16"], "false"),
        (["--bf16", "--max-steps", "3"], "true"),
        (["--bf16", "--no-bf16"], "false"),
    ],
)
def test_a_boolean_is_a_flag_its_negation_or_a_value(words: list[str], value: str) -> None:
    assert settings(*words)["train.bf16"] == value


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--torch-compile"], "true"),
        (["--torch-compile", "auto"], "auto"),
        (["--torch-compile", "Yes"], "true"),
        (["--torch-compile", "no"], "false"),
        (["--torch-compile", "false"], "false"),
        (["--torch-compile=auto"], "auto"),
        (["--no-torch-compile"], "false"),
        (["--torch-compile", "--max-steps", "3"], "true"),
    ],
)
def test_a_boolean_that_may_be_a_word_takes_it_as_its_value(words: list[str], value: str) -> None:
    assert settings(*words)["train.torch_compile"] == value
    with pytest.raises(UsageError, match="does not take the argument 'auto'"):
        settings("--bf16", "auto")  # a word behind other booleans is none of theirs


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--packing"], "bfd"),
        (["--packing", "concat"], "concat"),
        (["--packing=none"], "none"),
        (["--packing", "--max-length", "512"], "bfd"),
        (["--packing", "--", "corpus.jsonl"], "bfd"),
    ],
)
def test_packing_alone_means_bfd(words: list[str], value: str) -> None:
    assert settings(*words, command="tokenize")["packing.strategy"] == value


def test_resuming_without_a_path_means_the_newest_checkpoint() -> None:
    assert settings("--resume-from-checkpoint") == {"train.resume_from_checkpoint": "auto"}
    assert settings("--resume-from-checkpoint", "runs/checkpoint-5") == {"train.resume_from_checkpoint": "runs/checkpoint-5"}


@pytest.mark.parametrize("following", ["--no-bf16", "--no_bf16", "--bf16", "--max-steps=3"])
def test_an_option_behind_one_that_may_stand_alone_is_not_its_value(following: str) -> None:
    assert settings("--resume-from-checkpoint", following)["train.resume_from_checkpoint"] == "auto"
    with pytest.raises(UsageError, match="--output-dir needs a value"):
        settings("--output-dir", following)


def test_a_misspelt_option_behind_one_that_may_stand_alone_is_said_to_be_unknown() -> None:
    with pytest.raises(UsageError, match="--max-stepz"):
        settings("--resume-from-checkpoint", "--max-stepz", "3")


@pytest.mark.parametrize(
    ("words", "value"), [(["true"], True), (["false"], False), (["non_padding"], "non_padding"), (["no"], "no"), ([], True)]
)
def test_counting_input_tokens_is_a_truth_value_or_one_of_the_words_of_transformers(words: list[str], value: object) -> None:
    given = parse(TRAIN, ["--include-num-input-tokens-seen", *words]).settings()

    assert resolve(given, environ={}).settings.train.include_num_input_tokens_seen == value


def test_a_negative_number_is_a_value_and_no_option() -> None:
    assert settings("--max-steps", "-1") == {"train.max_steps": "-1"}


def test_the_last_of_a_repeated_option_counts_and_lists_add_up() -> None:
    words = ["--max-steps", "1", "--max-steps", "2", "--report-to", "mlflow,wandb", "--report-to", "trackio"]

    assert settings(*words) == {"train.max_steps": "2", "tracking.report_to": ["mlflow", "wandb", "trackio"]}


def test_pairs_add_up_by_their_flag_and_by_set() -> None:
    """All but the last were lost: a model of 28 layers was trained where --config-overrides num_hidden_layers=2 came first."""
    assert settings("--config-overrides", "a=1,b=2", "--config-overrides", "c=3") == {"model.config_overrides": "a=1,b=2,c=3"}
    words = ["--set", "model.config_overrides=a=1", "--set", "model.config_overrides=b=2", "--set", "tracking.report_to=x", "--set"]
    found = typed_settings(parse(TRAIN, [*words, "tracking.report_to=y,z"]))
    assert {key: value for key, (value, _) in found.items()} == {"model.config_overrides": "a=1,b=2", "tracking.report_to": ["x", "y", "z"]}


@pytest.mark.parametrize(
    "words",
    [
        ["a.jsonl", "b.jsonl"],
        ["--dataset", "a.jsonl", "b.jsonl"],
        ["--dataset", "a.jsonl,b.jsonl"],
        ["--dataset", "a.jsonl", "--dataset=b.jsonl"],
        ["a.jsonl", "--num-proc", "2", "--dataset", "b.jsonl"],
        ["--num-proc", "2", "--", "a.jsonl", "b.jsonl"],
    ],
)
def test_sources_by_position_and_by_flag_are_the_same(words: list[str]) -> None:
    assert settings(*words, command="tokenize")["dataset.sources"] == ["a.jsonl", "b.jsonl"]


def test_a_comma_in_a_positional_file_name_is_part_of_it() -> None:
    assert settings("a,b.jsonl", command="tokenize") == {"dataset.sources": ["a,b.jsonl"]}


def test_the_output_directory_is_that_of_the_command() -> None:
    assert settings("--output-dir", "x", command="tokenize") == {"dataset.output_dir": "x"}
    assert settings("--output-dir", "x", command="train") == {"train.output_dir": "x"}


def test_the_sign_of_the_home_directory_is_read_where_a_shell_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert parse(COMMANDS["train-tokenizer"], ["x.txt", "--output=~/tok"]).arguments["output"] == Path("/home/somebody/tok")
    monkeypatch.setenv("FTCLI_PLUGINS_DIR", "~/plugins")
    switches = Switches.of(parse(COMMANDS["tokenize"], ["--config=~/run.toml", "--profile=~/mine.toml"]))
    assert (switches.config, switches.profile) == (Path("/home/somebody/run.toml"), "/home/somebody/mine.toml")
    assert switches.plugins_dir == Path("/home/somebody/plugins")


def test_arguments_of_a_command_arrive_in_their_types() -> None:
    arguments = parse(COMMANDS["train-tokenizer"], ["x.txt", "--output", "tok", "--vocab_size", "8_000"]).arguments
    verify = parse(COMMANDS["verify"], ["env", "data", "--stages", "model,steps", "--fail-on", "warn", "--fix"]).arguments

    assert arguments == {"kind": "bpe", "vocab_size": 8000, "output": Path("tok")}
    assert verify == {
        "stage": ("env", "data"),
        "stages": ("model", "steps"),
        "level": "full",
        "fail_on": "warn",
        "select": (),
        "format": "table",
        "output": None,
        "fix": True,
        "explain": None,
    }
    arguments = parse(COMMANDS["settings"], ["--all"]).arguments
    assert (arguments["action"], arguments["show_all"], arguments["export_env"]) == ("show", True, False)
    assert parse(COMMANDS["profiles"], ["show", "lowmem"]).arguments == {"action": "show", "name": "lowmem"}


@pytest.mark.parametrize(
    ("command", "words", "message", "hint"),
    [
        ("tokenize", ["--num-prc", "3"], "ftcli tokenize has no option --num-prc", "Did you mean --num-proc?"),
        ("tokenize", ["--num_prc=3"], "no option --num-prc", "Did you mean --num-proc?"),
        ("tokenize", ["-x"], "no option -x", "See: ftcli tokenize --help"),
        ("tokenize", ["--lerning-rate", "1"], "no option --lerning-rate", "Did you mean --learning-rate?"),
        ("tokenize", ["--learning-rate", "1"], "no option --learning-rate", "It belongs to: ftcli verify, train, benchmark"),
        ("train", ["--learning-rat", "1"], "no option --learning-rat", "Did you mean --learning-rate?"),
        ("train", ["--lr", "1"], "no option --lr", "Did you mean --learning-rate?"),
        ("tokenize", ["--lr", "1"], "no option --lr", "See: ftcli tokenize --help"),
        ("train", ["--batch-size", "8"], "no option --batch-size", "Did you mean --per-device-train-batch-size?"),
        ("train", ["--model", "m"], "no option --model", "Did you mean --model-name-or-path?"),
        ("tokenize", ["--model", "m"], "no option --model", "Did you mean --tokenizer-path?"),
        ("tokenize", ["--tokenizer", "t"], "no option --tokenizer", "Did you mean --tokenizer-path?"),
        ("train", ["--resume"], "no option --resume", "Did you mean --resume-from-checkpoint?"),
        ("train", ["-o", "x"], "no option -o", "Did you mean --output-dir?"),
        ("predict", ["--bs", "8"], "no option --bs", "Did you mean --batch-size?"),
        ("tokenize", ["--header", "x"], "no option --header", "See: ftcli tokenize --help"),
        ("tokenize", ["--sequence-len", "8"], "no option --sequence-len", "Use --max-length, which is sequence_len of axolotl."),
        ("train", ["--cutoff_len", "8"], "no option --cutoff-len", "Use --max-length, which is cutoff_len of LLaMA-Factory."),
        ("train", ["--base-model", "m"], "no option --base-model", "Use --model-name-or-path and --tokenizer-path, which is base_model"),
        ("settings", ["--num-proc", "1"], "no option --num-proc", "--set dataset.num_proc=VALUE"),
        ("benchmark", ["train", "--output-dir", "x"], "no option --output-dir", "It belongs to: ftcli tokenize, verify, train"),
        ("train", ["--evaluation-strategy", "no"], "no option --evaluation-strategy", "Use --eval-strategy."),
        ("train", ["--disable-tqdm"], "no option --disable-tqdm", "Use --quiet."),
        ("train", ["--no-max-steps"], "no option --no-max-steps", ""),
        ("train", ["--max-steps"], "--max-steps needs a value", "--max-steps INT"),
        (
            "tokenize",
            ["--output-dir", "--overwrit", "x"],
            "--output-dir needs a value, but --overwrit looks like an unknown option",
            "--overwrite?",
        ),
        ("train", ["--output-dir", "--zzz"], "--output-dir needs a value, but --zzz looks like", "--output-dir=--zzz"),
        ("train", ["--max-steps", "--bf16"], "--max-steps needs a value", ""),
        ("train", ["--no-bf16=true"], "--no-bf16 takes no value, found 'true'", ""),
        ("train", ["--json=yes"], "--json takes no value", ""),
        ("train", ["stray"], "does not take the argument 'stray'", ""),
        ("train", ["--dataset", "a", "b"], "does not take the argument 'b'", "--dataset A,B"),
        ("train", [__file__], "does not take the argument", f"--dataset {__file__}"),
        ("train", ["--dataset", "a", __file__], "does not take the argument", "--dataset A,B"),
        ("verify", [f"train={__file__}"], "no such choice", f"--dataset train={__file__}"),
        ("verify", ["--stages", __file__], "no such choice", "Choose from: env, settings"),
        ("verify", ["--stages", "modle"], "--stages = 'modle': no such choice", "Did you mean 'model'?"),
        ("benchmark", [], "needs ACTION: tokenize, batch, train", ""),
        ("benchmark", ["tokenise"], "ACTION = 'tokenise'", "Did you mean 'tokenize'?"),
        ("sample-data", ["--output", "x", "--rows", "ten"], "--rows = 'ten': not a whole number", ""),
        ("sample-data", [], "needs --output", ""),
        ("sample-data", ["--output="], "--output is empty", ""),
        ("settings", ["--config="], "--config is empty", ""),
        ("predict", ["run", "a", "--pair", "b", "--pair", "c"], "--pair is given more than once: b, c", "a single value"),
    ],
)
def test_a_wrong_word_is_refused_with_what_would_do(command: str, words: list[str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(COMMANDS[command], words)

    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("name", [*REMOVED, *NOT_OFFERED])
def test_every_old_training_argument_is_an_option_or_says_what_to_use(name: str) -> None:
    flag = "--" + name.replace("_", "-")
    if any(flag in option.flags for option in options_of(TRAIN)):  # its name is the flag of another section's field
        return
    with pytest.raises(UsageError) as caught:
        parse(TRAIN, [flag, "x"])
    assert caught.value.hint.startswith(("Use ", "It belongs to: "))
    assert "train." not in caught.value.hint


def test_every_field_of_the_settings_can_be_given_as_its_flag() -> None:
    commands = [options_of(spec) for spec in COMMANDS.values()]

    reachable = {option.key for options in commands for option in options}

    assert {option.key for option in setting_options()} <= reachable


def test_what_is_parsed_is_what_the_settings_take() -> None:
    words = [
        "--dataset",
        "a",
        "--num-train-epochs",
        "2",
        "--bf16",
        "--report-to",
        "mlflow",
        "--deepspeed",
        '{"x": 1}',
        "--eval-strategy",
        "no",
    ]

    resolved = resolve(parse(TRAIN, words).settings(), environ={})

    assert resolved.settings.dataset.sources == ["a"]
    assert resolved.settings.train.num_train_epochs == 2
    assert resolved.settings.train.bf16 is True
    assert resolved.settings.train.deepspeed == {"x": 1}
    assert resolved.origin("train.bf16") == "--bf16"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["tokenise"], "ftcli has no command 'tokenise'", "Did you mean tokenize?"),
        (["zzz"], "ftcli has no command 'zzz'", "See: ftcli --help"),
        (["--versoin"], "ftcli has no option --versoin", "Did you mean --version?"),
        (["--json", "settings"], "ftcli has no option --json", "go after its name"),
    ],
)
def test_a_wrong_command_is_refused_with_what_was_meant(words: list[str], message: str, hint: str) -> None:
    result = run(*words)

    assert result.exit_code == 2
    assert message in result.stderr
    assert hint in result.stderr


def test_what_short_forms_mean_are_options() -> None:
    offered = {option.flags[0] for option in setting_options()} | {
        flag for spec in COMMANDS.values() for own in spec.own for flag in own.flags
    }
    assert {f"--{meant}" for all_meant in SHORT.values() for meant in all_meant} <= offered
    assert {f"--{short}" for short in SHORT} & offered == {"--batch-size", "--input", "--steps"}  # of other commands
