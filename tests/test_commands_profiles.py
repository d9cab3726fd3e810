"""`ftcli profiles`: list, show, detect; counts are ceilings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftcli.commands.profiles import choose, load
from ftcli.errors import SettingsError
from ftcli.machine import detect
from ftcli.records import Choice
from ftcli.sources import profile_names, user_profiles
from ftcli.testing import run

PACKAGED = ["highend", "lowmem", "standard", "workstation"]


def write_profile(name: str, text: str) -> Path:
    user_profiles().mkdir(parents=True, exist_ok=True)
    path = user_profiles() / f"{name}.toml"
    path.write_text(text)
    return path


def test_the_list_has_every_profile_with_what_it_is_for() -> None:
    result = run("profiles")

    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == PACKAGED == profile_names()
    assert "High-end server: 32+ cores, 128-256 GB" in result.stdout


def test_a_profile_of_the_user_is_listed_shown_and_used() -> None:
    path = write_profile("mine", '[profile]\ndescription = "My box"\n[dataset]\nnum_proc = 5\n')

    row = next(line.split("  ") for line in run("profiles").stdout.splitlines() if line.startswith("mine"))
    assert [cell.strip() for cell in row if cell.strip()] == ["mine", "My box", "-", "0 GB", str(path)]
    assert run("profiles", "show", "mine").stdout.startswith(f"# {path}\n[profile]")
    assert run("settings", "--profile", "mine", "--json").report["settings"]["dataset.num_proc"]["value"] == 5


def test_show_prints_the_file_as_it_is() -> None:
    lines = run("profiles", "show", "lowmem").stdout.splitlines()

    assert lines[0] == "# packaged as lowmem.toml"
    assert "\n".join(lines[1:]) == load("lowmem").text.rstrip()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show"], "show needs a name"),
        (["list", "highend"], "takes no name, found 'highend'"),
        (["detect", "x"], "takes no name"),
        (["show", "highnd"], "there is no profile 'highnd'"),
        (["shwo", "x"], "ACTION = 'shwo': no such choice"),
    ],
)
def test_wrong_words_are_refused(words: list[str], message: str) -> None:
    result = run("profiles", *words)

    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("text", ["[profile\n", "[profile]\nmin_cores = 'many'\n", "profile = 3\n"])
def test_a_damaged_profile_is_named(text: str) -> None:
    path = write_profile("mine", text)

    with pytest.raises(SettingsError, match="profile 'mine'") as caught:
        load("mine")
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("min_core = 32", "profile.min_core is not a profile key\n  Did you mean min_cores?"),
        ("seed = 1", "There are description, min_cores, min_memory_gb, measured."),
        ("min_cores = 0", "profile.min_cores = 0 is not a number of cores, 1 or more"),
        ("min_cores = 2.5", "profile.min_cores = 2.5 is not a number of cores"),
        ("min_cores = true", "profile.min_cores = True is not a number of cores"),
        ("min_memory_gb = -1", "profile.min_memory_gb = -1 is not a number of GB, 0 or more"),
        ("min_memory_gb = nan", "profile.min_memory_gb = nan is not"),
        ("description = 3", "profile.description = 3 is not a text"),
    ],
)
def test_what_a_profile_says_of_itself_is_checked_as_settings_are(line: str, words: str) -> None:
    write_profile("mine", f"[profile]\n{line}\n")
    for typed in (["profiles"], ["profiles", "show", "mine"], ["settings", "--profile", "mine"]):
        result = run(*typed)
        assert result.exit_code == 2
        for part in words.split("\n  "):
            assert part in result.stderr


def test_a_profile_with_an_unknown_setting_is_not_shown_as_if_it_were_good() -> None:
    write_profile("mine", "[dataset]\nnum_prc = 5\n")

    result = run("profiles", "show", "mine")

    assert result.exit_code == 2
    assert "dataset.num_prc (from profile mine) is not a setting" in result.stderr


@pytest.mark.parametrize(
    ("cores", "gigabytes", "name"),
    [(2, 16, "lowmem"), (8, 32, "standard"), (16, 32, "standard"), (16, 64, "workstation"), (64, 64, "workstation"), (64, 256, "highend")],
)
def test_the_most_demanding_profile_that_fits_is_chosen(cores: int, gigabytes: int, name: str) -> None:
    machine = replace(detect(), cores=cores, memory_bytes=gigabytes * 10**9)

    chosen = choose(machine)

    assert chosen.value == name
    assert f"{cores} cores" in chosen.reason
    assert f"{gigabytes} GB" in chosen.reason


def test_no_fitting_profile_is_an_error_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.commands.profiles.profile_names", lambda: ["highend"])

    with pytest.raises(SettingsError, match="no profile fits this machine \\(2 cores"):
        choose(replace(detect(), cores=2))


def test_detect_says_what_would_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    found = detect()
    monkeypatch.setattr("ftcli.cli.run.detect", lambda path=None: replace(found, cores=4, memory_bytes=16 * 10**9))

    result = run("profiles", "detect")

    assert result.stdout.startswith("lowmem: 4 cores by ")
    row = next(line.split() for line in result.stdout.splitlines() if line.startswith("dataset.num_proc"))
    assert row[1:3] == ["6", "4"]
    assert "6 by profile lowmem, 4 used: 4 cores by" in result.stdout


def test_a_profile_that_no_program_can_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_profile("mine", "")
    path.write_bytes(b'[profile]\ndescription = "caf\xe9"\n')
    assert "'mine'" in run("profiles").stderr
    path.write_text("[profile]\nmin_cores = inf\n")
    assert "cannot be read" in run("profiles").stderr
    path.write_bytes(b'\xef\xbb\xbf[profile]\ndescription = "of Windows"\n')
    assert "of Windows" in run("profiles").stdout
    path.write_text('[profile]\nmin_cores = 1\n[dataset]\nnum_proc = "1"\n')
    monkeypatch.setattr("ftcli.commands.profiles.choose", lambda machine: Choice("mine", "asked"))
    assert run("profiles", "detect").exit_code == 0
    path.unlink()
    path.symlink_to(path.with_name("gone"))
    assert "mine" not in profile_names()
