"""`source optimize_env.sh` in bash and zsh: sets, says why, evaluates nothing, and can be undone."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from timing import PATIENCE

SCRIPT = Path(__file__).resolve().parent.parent / "optimize_env.sh"
LINES = "export OMP_NUM_THREADS='2' # 2 cores by affinity"

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the suite runs outside a source tree")


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell with a fake `ftcli` on PATH that prints `lines` and writes down its arguments."""

    name: str
    folder: Path

    def fake(self, lines: str, code: int = 0) -> None:
        program = self.folder / "bin" / "ftcli"
        program.parent.mkdir(exist_ok=True)
        (self.folder / "lines").write_text(lines + "\n")
        program.write_text(f'#!/bin/sh\necho "$@" > "{self.folder}/arguments"\ncat "{self.folder}/lines"\nexit {code}\n')
        program.chmod(0o755)

    @property
    def arguments(self) -> str:
        return (self.folder / "arguments").read_text().strip()

    def run(self, code: str, script: Path = SCRIPT, **variables: str) -> subprocess.CompletedProcess[str]:
        options = ["--norc", "--noprofile"] if self.name == "bash" else ["-f"]
        environ = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder), "S": str(script), **variables}
        return subprocess.run(
            [self.name, *options, "-c", code], env=environ, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )


@pytest.fixture(params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    made = Shell(request.param, tmp_path)
    made.fake(LINES)
    return made


def test_a_variable_is_exported_and_its_reason_printed(shell: Shell) -> None:
    done = shell.run('source "$S" && printenv OMP_NUM_THREADS')

    assert (done.returncode, done.stdout) == (0, "2\n"), "a script's own stdout stays its own"
    assert "OMP_NUM_THREADS=2  (2 cores by affinity)" in done.stderr


def test_the_profile_is_handed_on(shell: Shell) -> None:
    assert shell.run('source "$S" highend').returncode == 0
    assert shell.arguments == "settings --export-env --profile highend"


def test_without_a_profile_none_is_handed_on(shell: Shell) -> None:
    assert shell.run('source "$S"').returncode == 0
    assert shell.arguments == "settings --export-env"


def test_an_empty_profile_is_none(shell: Shell) -> None:
    assert shell.run('source "$S" ""').returncode == 0
    assert shell.arguments == "settings --export-env"


def test_a_script_with_arguments_of_its_own_is_told_how_to_source(shell: Shell) -> None:
    done = shell.run('set -- one two; source "$S"; echo "status $?"')

    assert "status 2" in done.stdout
    assert "source optimize_env.sh ''" in done.stderr


def test_values_may_hold_spaces_and_hashes_and_need_no_quotes_when_plain(shell: Shell) -> None:
    shell.fake("export OMP_PLACES='{0:2} {4 # 2}' # places\nexport RAYON_NUM_THREADS=2  # plain\nexport OMP_PROC_BIND='close'")

    done = shell.run('source "$S" 2>/dev/null; printenv OMP_PLACES; printenv RAYON_NUM_THREADS; printenv OMP_PROC_BIND')

    assert (done.stdout.splitlines(), done.stderr) == (["{0:2} {4 # 2}", "2", "close"], "")


@pytest.mark.parametrize(
    "line",
    [
        "export OMP_PLACES='$(touch canary)' # x",
        "export OMP_PLACES='`touch canary`' # x",
        "export OMP_PLACES='a;touch canary' # x",
    ],
)
def test_shell_code_in_a_value_stays_text(shell: Shell, line: str) -> None:
    shell.fake(line)

    done = shell.run('source "$S" 2>/dev/null; printenv OMP_PLACES; ftcli_env_restore; [ -z "${OMP_PLACES+x}" ] && echo gone')

    assert not (shell.folder / "canary").exists()
    assert done.stdout.startswith(line.split("'")[1])
    assert done.stdout.endswith("gone\n")


@pytest.mark.parametrize("value", ["granularity=fine,compact,1,0", "a=b=c", "=", "expandable_segments:True,x=@%+-/"])
def test_a_value_with_equals_signs_is_set_as_the_program_writes_it(shell: Shell, value: str) -> None:
    assert shlex.quote(value) == value
    shell.fake(f"export KMP_AFFINITY={value}  # why")

    assert shell.run('source "$S" 2>/dev/null; printenv KMP_AFFINITY').stdout == f"{value}\n"


@pytest.mark.parametrize(
    "line",
    [
        "touch canary",
        "export OMP_PLACES=$(touch canary)",
        "export OMP_PLACES=`touch canary`",
        "export OMP_PLACES=a; touch canary",
        "export OMP_PLACES='a'; touch canary",
        "export OMP_PLACES='a'$(touch canary)",
        "export OMP_PLACES='a' && touch canary",
        "export OMP_PLACES='a'\"'\"'b'",
        "export OMP_PLACES='open",
        'export OMP_PLACES="$(touch canary)"',
        "export OMP_PLACES",
        "export OMP_PLACES=",
        "export OMP_PLACES=a\tb",
        "export OMP_PLACES='a\x1b[2J'",
        "export -f=1",
        "export omp_places='1'",
        "export 1OMP='1'",
        "export OMP_[$(touch canary)]='1'",
        "export OMP_PLACES[$(touch canary)]=1",
        "export PATH='/elsewhere'",
        "export LD_PRELOAD='/elsewhere.so'",
        "export PYTHONPATH='/elsewhere'",
        "export BASH_ENV='/elsewhere'",
        "export IFS='x'",
        "OMP_PLACES='1'",
        "  export OMP_PLACES='1'",
        "export  OMP_PLACES='1'",
    ],
)
def test_any_other_line_is_shown_and_not_evaluated(shell: Shell, line: str) -> None:
    shell.fake(f"{line}\n{LINES}")

    done = shell.run('before="$PATH"; source "$S"; echo "$OMP_NUM_THREADS ${OMP_PLACES-unset}"; [ "$PATH" = "$before" ] && echo same')

    assert not (shell.folder / "canary").exists()
    assert done.stdout == "2 unset\nsame\n"
    assert f"ignored, not an assignment that it makes: {line}" in done.stderr


def test_what_is_kept_is_said(shell: Shell) -> None:
    shell.fake("# kept OMP_NUM_THREADS=48 (yours)")

    done = shell.run('source "$S"; printenv OMP_NUM_THREADS', OMP_NUM_THREADS="48")

    assert "kept OMP_NUM_THREADS=48 (yours)" in done.stderr
    assert done.stdout == "48\n"


def test_restoring_unsets_what_was_unset_and_removes_itself(shell: Shell) -> None:
    done = shell.run(
        'source "$S" 2>/dev/null; ftcli_env_restore 2>/dev/null; echo "${OMP_NUM_THREADS-unset}"; '
        "typeset -f ftcli_env_restore; set | grep -i '^_*ftcli' || echo nothing left"
    )

    assert done.stdout == "unset\nnothing left\n"


def test_restoring_brings_back_an_exported_value(shell: Shell) -> None:
    shell.fake("export OMP_PLACES='new' # x")

    done = shell.run(
        'source "$S" 2>/dev/null; echo "$OMP_PLACES"; ftcli_env_restore 2>/dev/null; printenv OMP_PLACES', OMP_PLACES="a 'b' $(c) *"
    )

    assert done.stdout == "new\na 'b' $(c) *\n"


def test_a_variable_that_is_set_and_not_exported_stays_the_callers(shell: Shell) -> None:
    done = shell.run(
        'OMP_NUM_THREADS="7 *"; source "$S"; echo "$OMP_NUM_THREADS"; printenv OMP_NUM_THREADS || echo unexported; ftcli_env_restore; echo "$OMP_NUM_THREADS"'
    )

    assert done.stdout == "7 *\nunexported\n7 *\n"
    assert "kept OMP_NUM_THREADS, which this shell has set and not exported" in done.stderr


def test_sourced_twice_the_second_counts_and_restoring_goes_to_the_beginning(shell: Shell) -> None:
    again = "echo \"export RAYON_NUM_THREADS='3' # y\" > lines"

    done = shell.run(
        f'source "$S" 2>/dev/null; {again}; source "$S" 2>/dev/null; echo "${{OMP_NUM_THREADS-unset}} $RAYON_NUM_THREADS"; '
        'ftcli_env_restore 2>/dev/null; echo "${OMP_NUM_THREADS-unset} ${RAYON_NUM_THREADS-unset}"'
    )

    assert done.stdout == "unset 3\nunset unset\n"


def test_ftcli_sees_none_of_our_own_values_as_the_users_when_sourced_twice(shell: Shell) -> None:
    program = shell.folder / "bin" / "ftcli"
    program.write_text('#!/bin/sh\necho "# saw ${OMP_NUM_THREADS-nothing}"\necho "export OMP_NUM_THREADS=\'2\' # x"\n')

    assert shell.run('source "$S" 2>/dev/null; source "$S"').stderr.startswith("  saw nothing")


def test_the_callers_strict_mode_survives(shell: Shell) -> None:
    done = shell.run(
        'set -eu; source "$S" 2>/dev/null; case $- in *e*u*|*u*e*) echo still strict;; esac; ftcli_env_restore 2>/dev/null; source "$S" x 2>/dev/null; echo "$OMP_NUM_THREADS"'
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "still strict\n2\n", "")


def test_the_callers_words_and_options_do_not_matter(shell: Shell) -> None:
    options = "shopt -s nocasematch nullglob; set -f" if shell.name == "bash" else "setopt ksh_arrays sh_word_split null_glob no_unset"

    done = shell.run(
        f'{options}; IFS=0x; source "$S" 2>/dev/null; ftcli_env_restore 2>/dev/null; source "$S" 2>/dev/null; printenv OMP_NUM_THREADS'
    )

    assert (done.stdout, done.stderr) == ("2\n", "")


def test_it_works_inside_a_function(shell: Shell) -> None:
    assert shell.run('f() { source "$S" 2>/dev/null; }; f; printenv OMP_NUM_THREADS').stdout == "2\n"


def test_a_failing_ftcli_sets_nothing_and_keeps_the_status(shell: Shell) -> None:
    shell.fake(LINES, code=2)

    done = shell.run('source "$S" hihgend; echo "status $?, ${OMP_NUM_THREADS-unset}"; typeset -f ftcli_env_restore || echo no restore')

    assert done.stdout == "status 1, unset\nno restore\n"
    assert "nothing was set" in done.stderr


def test_a_failing_ftcli_ends_a_strict_caller(shell: Shell) -> None:
    shell.fake(LINES, code=1)

    done = shell.run('set -e; source "$S"; echo reached')

    assert (done.returncode, done.stdout) == (1, "")


def test_a_missing_ftcli_is_said(shell: Shell, tmp_path: Path) -> None:
    (shell.folder / "bin" / "ftcli").unlink()
    copy = shutil.copy(SCRIPT, tmp_path / "optimize_env.sh")

    done = shell.run('source "$S"; echo "status $?"', script=Path(copy))

    assert done.stdout == "status 1\n"
    assert "ftcli is not on PATH" in done.stderr
    assert f"{tmp_path}/.venv/bin/ftcli" in done.stderr


@pytest.mark.parametrize("spelling", ['source "$S"', "source ./optimize_env.sh", "cd sub && source ../optimize_env.sh"])
def test_the_virtual_environment_beside_the_script_is_found(shell: Shell, tmp_path: Path, spelling: str) -> None:
    folder = tmp_path / "a project"
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "sub").mkdir()
    shutil.copy(SCRIPT, folder / "optimize_env.sh")
    (shell.folder / "bin" / "ftcli").rename(folder / ".venv" / "bin" / "ftcli")

    done = shell.run(f'cd "{folder}"; {spelling} 2>/dev/null; printenv OMP_NUM_THREADS', script=folder / "optimize_env.sh")

    assert (done.stdout, done.stderr) == ("2\n", "")


def test_executed_it_says_that_it_must_be_sourced(shell: Shell) -> None:
    for command in ([shell.name, str(SCRIPT)], [str(SCRIPT)]):
        done = subprocess.run(
            command, env={"PATH": f"{shell.folder}/bin:/usr/bin:/bin"}, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

        assert done.returncode == 1
        assert "must be sourced" in done.stderr
        assert not (shell.folder / "arguments").exists()


def test_a_plain_posix_shell_is_refused_in_words(tmp_path: Path) -> None:
    if shutil.which("dash") is None:
        pytest.skip("dash is not installed")

    done = subprocess.run(["dash", "-c", f'. "{SCRIPT}"; echo "status $?"'], capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert done.stdout == "status 1\n"
    assert "bash or zsh" in done.stderr


@pytest.mark.slow
def test_the_real_ftcli_answers_what_the_script_understands(shell: Shell) -> None:
    """The contract between the command and the script: every line is an assignment or a comment."""
    (shell.folder / "bin" / "ftcli").unlink()
    (shell.folder / "bin" / "ftcli").symlink_to(Path(sys.executable).with_name("ftcli"))
    if not (shell.folder / "bin" / "ftcli").exists():
        pytest.skip("the ftcli program is not installed beside this Python")

    done = shell.run(
        'source "$S" lowmem; printenv OMP_NUM_THREADS RAYON_NUM_THREADS; ftcli_env_restore; printenv RAYON_NUM_THREADS || echo unset',
        OMP_NUM_THREADS="48",
    )

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert done.returncode == 0
    assert "ignored" not in done.stderr
    assert "OMP_NUM_THREADS" in done.stderr
    assert "ftcli_env_restore puts everything back." in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "48"
    assert 1 <= int(lines[1]) <= cores
    assert lines[-1] == "unset"
