"""The help of `ftcli`: what it lists, what it costs, and that its examples are right."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter

import pytest

from ftcli import __version__
from ftcli.cli.catalog import COMMANDS
from ftcli.cli.options import RUNS_CODE, SHARED, TITLES, options_of
from ftcli.cli.parse import parse
from ftcli.settings import sections
from ftcli.sources import CLI_ONLY, SWITCHES
from ftcli.testing import run

ROOT_HELP = """\
Usage: ftcli [OPTIONS] COMMAND ...

  Prepares data for fine-tuning, checks before a run starts that it can learn, trains, and
  measures where the time went.

Commands:
  tokenize         Read, encode and pack text into prepared data.
  inspect          Show rows token by token.
  verify           Check that a run can learn before it starts.
  train            Train a model on prepared data.
  merge            Merge a LoRA adapter into its base model.
  predict          Run a trained model on texts.
  benchmark        Measure tokenizing, batching or training.
  export           Write prepared data in the format of another trainer.
  cache            Check, list, compare or clean up prepared data.
  settings         Show settings, and where each value comes from.
  profiles         List, show or detect hardware profiles.
  plugins          List, check or create plugins.
  doctor           Describe this installation, to paste into an issue.
  train-tokenizer  Train a fast tokenizer on your text.
  sample-data      Write a sample corpus to try things on.

Options:
  --version                     Show the version.
  --install-completion [SHELL]  Install completion for bash, zsh or fish.
  --show-completion [SHELL]     Print the completion script.
  --help, -h                    Show this help.

Help for a command: ftcli COMMAND --help. Exit codes: 0 ok, 1 a check or a run failed, 2 usage or
settings, 3 interrupted and resumable, 4 a rank stalled or died.
"""
HEAVY = {"torch", "transformers", "datasets", "numpy", "pyarrow", "loguru", "pydantic_settings"}


def modules_after(*words: str) -> set[str]:
    """Top-level modules that a fresh process has imported after `ftcli WORDS`."""
    code = (
        f"import json, sys; from ftcli.cli.main import main; main({list(words)!r}); print(json.dumps(list(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: ftcli" in done.stdout
    return {name.partition(".")[0] for name in json.loads(done.stderr)}


def test_the_help_lists_every_command_and_root_option() -> None:
    assert run("--help").stdout == ROOT_HELP


@pytest.mark.parametrize("words", [(), ("-h",)])
def test_no_words_at_all_and_the_short_flag_show_the_help(words: tuple[str, ...]) -> None:
    result = run(*words)

    assert (result.exit_code, result.stdout) == (0, ROOT_HELP)


def test_the_help_imports_nothing_heavy_and_builds_no_options() -> None:
    loaded = modules_after("--help")

    assert "typer" in loaded  # the test looks at the right list
    assert not loaded & (HEAVY | {"rich", "pydantic"})


@pytest.mark.parametrize("command", ["tokenize", "train", "benchmark"])
def test_the_help_of_a_command_imports_nothing_heavy(command: str) -> None:
    loaded = modules_after(command, "--help")

    assert "pydantic" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples_and_the_common_options_last(command: str) -> None:
    result = run(command, "--help")

    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: ftcli {command} [OPTIONS]")
    order = [result.stdout.index(text) for text in ("\nCommon options:\n", "--config PATH", "--help", "\nExamples:\n")]
    assert order == sorted(order)
    examples = result.stdout.partition("\nExamples:\n")[2].splitlines()
    assert len(examples) >= 2
    assert examples == [f"  {example}" for example in COMMANDS[command].examples]


@pytest.mark.parametrize(("name", "example"), [(spec.name, example) for spec in COMMANDS.values() for example in spec.examples])
def test_every_example_is_understood(name: str, example: str) -> None:
    words = shlex.split(example.removeprefix('eval "$(').removesuffix(')"'))

    assert words[:2] == ["ftcli", name]
    parsed = parse(COMMANDS[name], words[2:])
    assert parsed.given or len(words) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_no_two_options_of_a_command_share_a_flag(command: str) -> None:
    flags = Counter(flag for option in options_of(COMMANDS[command]) for flag in option.flags)

    assert [flag for flag, count in flags.items() if count > 1] == []


def test_every_section_is_shown_by_some_command_and_has_a_title() -> None:
    shown = {option.key.partition(".")[0] for spec in COMMANDS.values() for option in options_of(spec) if "." in option.key}

    assert shown == set(sections()) == set(TITLES)


def test_help_names_the_variable_the_choices_and_the_default_of_an_option() -> None:
    words = " ".join(run("tokenize", "--help").stdout.split())

    assert "--num-proc INT Worker processes; default: the available cores. [DATASET_NUM_PROC]" in words
    assert (
        "--batch-size INT Maximum number of rows encoded at a time; about 4 MB are read at a time. [DATASET_BATCH_SIZE; default 50000]"
        in words
    )
    assert "--memory-mode auto|memory|balanced|disk" in words
    assert "--packing [TEXT]" in words
    assert "--[no-]add-special-tokens" in words


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_says_of_a_setting_is_of_one_that_it_shows(command: str) -> None:
    assert {key for key, _ in COMMANDS[command].says} <= {option.key for option in options_of(COMMANDS[command])}


def test_a_setting_that_means_something_else_to_a_command_has_words_of_its_own_there() -> None:
    words = " ".join(run("train-tokenizer", "--help").stdout.split())

    assert "rejects.jsonl" not in words, "nothing is prepared, so nothing is put aside"
    assert "skipped and counted (quarantine). [DATASET_ON_BAD; default strict]" in words
    assert "default: 1,024 when packing" not in words
    assert "model_max_length" in words


def test_options_that_run_code_show_no_variable_because_none_is_read() -> None:
    words = " ".join(run("tokenize", "--help").stdout.split())

    assert set(RUNS_CODE) == set(CLI_ONLY)
    assert "DATASET_TRUST_PICKLE" not in words
    assert "--[no-]trust-pickle Allow code in .pkl sources to run" in words


def test_fields_that_help_hides_are_counted_and_still_work() -> None:
    assert "--adam-beta1" not in run("train", "--help").stdout
    assert "more options exist" in run("train", "--help").stdout
    assert parse(COMMANDS["train"], ["--adam-beta1", "0.8"]).settings() == {"train.adam_beta1": ("0.8", "--adam-beta1")}


def test_verify_takes_every_setting_that_train_takes() -> None:
    settings = {name: {o.key for o in options_of(COMMANDS[name]) if "." in o.key} for name in ("train", "verify")}

    assert settings["train"] <= settings["verify"]


def test_the_switches_of_the_environment_are_named_in_the_common_options() -> None:
    words = run("settings", "--help").stdout
    common = [option for option in options_of(COMMANDS["settings"]) if option.group == SHARED]

    assert {"FTCLI_CONFIG", "FTCLI_PROFILE", "FTCLI_PLUGINS_DIR"} <= set(SWITCHES)
    assert all(name in words for name in ("FTCLI_CONFIG", "FTCLI_PROFILE", "FTCLI_PLUGINS_DIR"))
    assert all(option.help for option in common)


def test_the_version_is_that_of_the_distribution() -> None:
    assert run("--version").stdout == f"ftcli {__version__}\n"
