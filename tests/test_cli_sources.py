"""The command line as a source of settings, and the switches of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_process import plugin
from ftcli.testing import run


def test_set_reaches_every_field_and_is_the_origin() -> None:
    document = run("settings", "--json", "--set", "train.adam_beta1=0.8", "--set", "dataset.num-proc=3").report

    assert document["settings"]["train.adam_beta1"] == {"value": 0.8, "origin": "--set"}
    assert document["settings"]["dataset.num_proc"] == {"value": 3, "origin": "--set"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "dataset.num_proc"], "--set dataset.num_proc: no value"),
        (["--set", "dataset.num_prc=3"], "dataset.num_prc (from --set) is not a setting"),
        (["--set", "train.evaluation_strategy=no"], "train.evaluation_strategy (from --set) is not a setting"),
        (["--num-proc", "2", "--set", "dataset.num_proc=3"], "dataset.num_proc is given twice: by --num-proc and by --set"),
    ],
)
def test_a_wrong_set_is_refused(words: list[str], message: str) -> None:
    result = run("tokenize", *words)

    assert result.exit_code == 2
    assert message in result.stderr


def test_config_and_profile_come_from_their_variables_too(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[dataset]\nbatch_size = 7\n")

    document = run("settings", "--json", env={"FTCLI_CONFIG": str(config), "FTCLI_PROFILE": "lowmem"}).report

    assert document["settings"]["dataset.batch_size"] == {"value": 7, "origin": str(config)}
    assert document["settings"]["dataset.writer_batch_size"] == {"value": 5000, "origin": "profile lowmem"}


def test_an_option_wins_over_its_variable(tmp_path: Path) -> None:
    document = run("settings", "--json", "--profile", "highend", env={"FTCLI_PROFILE": "no-such"}).report

    assert document["settings"]["dataset.num_proc"]["origin"] == "profile highend"


def test_profile_auto_says_which_and_why() -> None:
    document = run("settings", "--json", "--profile", "auto").report

    note = document["notes"][0]
    name = note.removeprefix("profile ").partition(":")[0]
    assert document["settings"]["dataset.num_proc"]["origin"] == f"profile {name}"
    assert f"{document['machine']['cores']} cores" in note


def test_plugins_come_from_the_folder_of_the_variable_unless_switched_off(tmp_path: Path) -> None:
    folder = str(plugin(tmp_path / "plugins", "from ftcli import hookimpl\n@hookimpl\ndef on_step(step): ...\n"))

    assert "extra" in [each["name"] for each in run("settings", "--json", env={"FTCLI_PLUGINS_DIR": folder}).report["plugins"]]
    off = run("settings", "--json", "--no-plugins", env={"FTCLI_PLUGINS_DIR": folder, "FTCLI_PLUGINS": "no-such"})
    assert off.exit_code == 0
    assert {each["origin"] for each in off.report["plugins"]} == {"built-in"}


def test_a_plugin_that_is_named_but_not_installed_is_an_error() -> None:
    result = run("settings", env={"FTCLI_PLUGINS": "no-such"})

    assert result.exit_code == 1
    assert "FTCLI_PLUGINS names 'no-such'" in result.stderr


def test_a_wrong_log_level_is_refused() -> None:
    result = run("settings", env={"FTCLI_LOG": "loud"})

    assert result.exit_code == 2
    assert "FTCLI_LOG = 'loud' is not a log level" in result.stderr


@pytest.mark.parametrize(
    ("words", "level", "shown"),
    [([], "", ["WARNING"]), (["--verbose"], "", ["DEBUG", "WARNING"]), (["--quiet"], "", []), (["--quiet"], "debug", ["DEBUG", "WARNING"])],
)
def test_logs_go_to_stderr_at_the_chosen_level(tmp_path: Path, words: list[str], level: str, shown: list[str]) -> None:
    folder = plugin(tmp_path / "plugins", "from loguru import logger\nlogger.debug('said')\nlogger.warning('said')\n")

    result = run("settings", "--json", "--plugins-dir", folder, *words, env={"FTCLI_LOG": level})

    assert [line.removesuffix(": said") for line in result.stderr.splitlines() if line.endswith(": said")] == shown
