"""One invocation from words to exit code: settings, plugins, interruptions, bugs, and what goes to which stream."""

from __future__ import annotations

import gc
import json
import os
import pty
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from cli_process import ended, plugin, spawn
from ftcli import home
from ftcli.cli import main as main_module
from ftcli.cli.logs import keep_traceback
from ftcli.commands import predict as predict_command
from ftcli.commands import settings as settings_command
from ftcli.commands import train as train_command
from ftcli.context import Context
from ftcli.errors import InterruptedRun
from ftcli.records import Report
from ftcli.settings import Settings, cache_folder
from ftcli.sources import user_profiles
from ftcli.testing import run
from timing import PATIENCE, until

NOISY = """
from ftcli import hookimpl
print("a library prints when imported")

@hookimpl
def after_run(command, settings, report):
    print("a library prints at the end")
    with open(settings.runtime.report_dir, "a") as file:
        file.write(f"{command} {report.status}\\n")
"""
SLOW = """
import pathlib, sys, time
pathlib.Path(sys.argv[-1]).touch()
while True:  # a signal that comes just before a sleep is heard after it
    time.sleep(0.05)
"""


def test_exit_code_0_when_all_is_well() -> None:
    result = ended(spawn("settings", "--json"))

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.report["status"] == "ok"
    assert result.report["error"] is None


def test_exit_code_1_when_a_check_failed(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "plugins", "import no_such_module")

    result = ended(spawn("plugins", "doctor", "--plugins-dir", folder))

    assert result.exit_code == 1
    assert "no_such_module" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_exit_code_2_names_key_value_and_flag() -> None:
    result = ended(spawn("tokenize", "--num-proc", "many"))

    assert result.exit_code == 2
    assert "error: dataset.num_proc = 'many' (from --num-proc): " in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("option", ["--output-dir", "--tokenizer-path", "--dataset"])
def test_a_folder_whose_name_is_not_utf8_is_refused_in_words(option: str) -> None:
    result = ended(spawn("tokenize", option, os.fsdecode(b"/nowhere/\xb0\xa1")))

    assert result.exit_code == 2
    assert "/nowhere/\\xb0\\xa1: not UTF-8" in result.stderr
    assert "convmv -f CP949" in result.stderr


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_exit_code_3_when_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    folder, mark = plugin(tmp_path / "plugins", SLOW), tmp_path / "started"
    process = spawn("verify", "--json", "--plugins-dir", folder, "--tokenizer-path", mark)
    until(lambda: mark.exists() or process.poll() is not None)
    assert process.poll() is None

    process.send_signal(number)
    result = ended(process)

    assert result.exit_code == 3
    assert result.stderr.startswith("interrupted: ftcli verify was interrupted\n  Run the same command again to continue.\n")
    assert result.report["status"] == "interrupted"
    assert result.report["error"]["code"] == "interrupted"


@pytest.mark.usefixtures("hangup")
def test_a_terminal_that_is_closed_is_an_interruption(tmp_path: Path) -> None:
    folder, mark = plugin(tmp_path / "plugins", SLOW), tmp_path / "started"
    words = [sys.executable, "-m", "ftcli", "verify", "--plugins-dir", str(folder), "--tokenizer-path", str(mark)]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    until(lambda: mark.exists() or process.poll() is not None)

    os.close(ours)
    for _ in range(2):  # the shell's and, when it ends, the kernel's
        process.send_signal(signal.SIGHUP)

    assert process.wait(PATIENCE) == 3


def test_an_interruption_before_the_command_has_begun_is_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_module, "prepare", partial(signal.raise_signal, signal.SIGINT))

    assert main_module.main(["settings"]) == 3


def test_json_is_one_line_and_all_that_stdout_holds_whatever_plugins_print(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "plugins", NOISY)

    result = run("settings", "--json", "--plugins-dir", folder, "--set", f"runtime.report_dir={tmp_path / 'log'}")

    assert len(result.stdout.splitlines()) == 1
    assert result.stdout.isascii()
    assert result.report["schema"] == "ftcli.report/1"
    assert "a library prints when imported" in result.stderr
    assert "a library prints at the end" in result.stderr


@pytest.mark.parametrize("asked", [["--json"], ["--format", "json"], ["--format=json"]])
def test_a_refused_command_line_is_a_failed_report_with_json(asked: list[str]) -> None:
    result = run("verify", "--num-prc", "3", *asked)

    assert result.exit_code == 2
    assert result.report["command"] == "verify"
    assert result.report["error"]["message"] == "ftcli verify has no option --num-prc"
    assert result.report["error"]["hint"] == "Did you mean --num-proc?"


def test_a_refused_setting_is_a_failed_report_with_json() -> None:
    result = run("tokenize", "--num-proc", "0", "--json")

    assert result.exit_code == 2
    assert result.report["status"] == "failed"
    assert result.report["error"]["code"] == "settings"


def test_a_misspelt_variable_is_a_warning_on_stderr_and_a_note_in_the_report() -> None:
    result = run("settings", "--json", env={"DATASET_NUMPROC": "3"})

    assert result.exit_code == 0
    assert "warning: the variable DATASET_NUMPROC is not a setting" in result.stderr
    assert "did you mean DATASET_NUM_PROC?" in result.report["notes"][0]


def test_quiet_keeps_stderr_empty_but_the_report_tells() -> None:
    result = run("settings", "--quiet", env={"DATASET_NUMPROC": "3"})

    assert result.stderr == ""
    assert "did you mean DATASET_NUM_PROC?" in result.stdout


def test_a_reader_that_leaves_early_is_no_error() -> None:
    process = spawn("settings", "--all")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None

    assert process.stderr.read() == ""
    assert process.wait(PATIENCE) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [("settings", "--all"), ("--help",)])
def test_a_full_disk_under_stdout_is_an_error_in_words(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "ftcli", *words], stdout=full, stderr=subprocess.PIPE, text=True)

    assert done.returncode == 1
    assert done.stderr.startswith("error: the output cannot be written: No space left on device")
    assert "Traceback" not in done.stderr


def test_closed_streams_are_no_error() -> None:
    done = subprocess.run(["bash", "-c", f'"{sys.executable}" -m ftcli settings >&- 2>&-'])

    assert done.returncode == 0


def test_a_locale_without_korean_cannot_break_the_report() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}

    result = ended(spawn("settings", "--set", "dataset.text_column=본문", env=environment))

    assert (result.exit_code, result.stderr) == (0, "")
    assert r"\ubcf8\ubb38" in result.stdout


def test_plugins_hear_of_the_end_also_when_the_command_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, log = plugin(tmp_path / "plugins", NOISY), tmp_path / "log"
    words = ["settings", "--plugins-dir", folder, "--set", f"runtime.report_dir={log}"]

    run(*words)
    monkeypatch.setattr(settings_command, "run", _raise(KeyboardInterrupt()))
    run(*words)
    monkeypatch.setattr(settings_command, "run", _raise(ZeroDivisionError("x")))
    run(*words)

    assert log.read_text().splitlines() == ["settings ok", "settings interrupted", "settings failed"]


def test_a_plugin_that_fails_at_the_end_is_named(tmp_path: Path) -> None:
    text = "from ftcli import hookimpl\n@hookimpl\ndef after_run(report):\n    raise ValueError('no disk')\n"

    result = run("settings", "--json", "--plugins-dir", plugin(tmp_path / "plugins", text))

    assert result.exit_code == 1
    assert "plugin 'extra'" in result.stderr
    assert "ValueError: no disk (extra.py, line 4)" in result.stderr
    assert result.report["status"] == "failed"
    assert result.report["error"]["code"] == "plugin"


def test_a_plugin_may_end_a_run_with_an_error_of_its_own(tmp_path: Path) -> None:
    text = "from ftcli import hookimpl\nfrom ftcli.errors import TrainError\n@hookimpl\ndef after_run(report):\n    raise TrainError('bad', 'do x')\n"

    result = run("settings", "--plugins-dir", plugin(tmp_path / "plugins", text))

    assert result.exit_code == 1
    assert "error: bad\n  do x\n" in result.stderr


@pytest.mark.parametrize("code", [0, None, "no licence"])
def test_code_that_ends_the_process_fails_the_command(monkeypatch: pytest.MonkeyPatch, code: object) -> None:
    """A model's own code that called sys.exit() ended ftcli with code 0 and without a word."""
    monkeypatch.setattr(settings_command, "run", _raise(SystemExit(code)))
    result = run("settings", "--json")
    assert result.exit_code == 1
    assert result.report["error"]["message"].startswith("the command was terminated by its own code: SystemExit")
    assert result.report["status"] == "failed"


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "{}"),
        ("cache", "ls", "{}"),
        ("cache", "why", "{}", "{}"),
        ("settings", "--config", "{}.toml"),
        ("settings", "--profile", "{}.toml"),
        ("tokenize", "{}", "--tokenizer-path", "x", "--output-dir", "y"),
    ],
    ids=" ".join,
)
def test_a_name_that_the_system_refuses_is_no_bug(words: tuple[str, ...], tmp_path: Path) -> None:
    refused = run(*(word.format("n" * 300) for word in words), cwd=tmp_path)
    assert refused.exit_code in (1, 2)
    assert "n" * 300 in refused.stderr.replace("\n", "")
    assert "bug" not in refused.stderr


def test_a_bug_leaves_its_traceback_in_a_file_and_none_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_command, "run", _raise(ZeroDivisionError("by nothing")))

    result = run("settings", "--json")

    assert result.exit_code == 1
    assert "this is a bug in ftcli: ZeroDivisionError: by nothing" in result.stderr
    assert "Traceback" not in result.stderr
    path = Path(result.report["error"]["hint"].removeprefix("The traceback is in ").partition(";")[0])
    assert "ZeroDivisionError: by nothing" in path.read_text()
    assert path.is_relative_to(Path(os.environ["XDG_CACHE_HOME"]))


@pytest.mark.parametrize("brought", [False, True])
def test_what_breaks_inside_a_library_is_laid_on_the_code_that_called_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, brought: bool
) -> None:
    """Shapes that a plugin's or a model's own code gave to torch were a bug of ftcli."""
    text = "import json\ndef broken():\n    json.loads('{')\n"
    extra = plugin(tmp_path / "plugins", text)
    brings = tmp_path / "transformers_modules" / "model.py"
    brings.parent.mkdir()
    brings.write_text(text)

    def calls(context: Context, **_: object) -> None:
        if brought:
            exec(compile(text, str(brings), "exec"), found := {})
            found["broken"]()
        context.plugins.objects()["extra"].broken()

    monkeypatch.setattr(settings_command, "run", calls)
    result = run("settings", "--plugins-dir", extra, "--json")
    assert result.exit_code == 1
    who, file = ("the model's own code", "model.py") if brought else ("plugin 'extra'", "extra.py")
    assert f"{who} broke: JSONDecodeError" in result.stderr
    assert f"({file}, line 3)" in result.stderr
    assert "bug in ftcli" not in result.stderr
    assert "The traceback is in" in result.report["error"]["hint"]


def test_a_benchmark_that_has_nothing_to_report_yet_does_not_promise_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr("ftcli.commands.benchmark.run", stopped)
    result = run("benchmark", "batch", "--json")

    assert result.exit_code == 3
    assert result.report["error"]["hint"].startswith("A benchmark cannot be resumed: run it again")
    assert result.report["error"]["message"] == "ftcli benchmark batch was interrupted"


@pytest.mark.parametrize("options", [(), ("--nope", "3")])
def test_a_sweep_that_fails_has_the_name_of_one_that_succeeds(options: tuple[str, ...]) -> None:
    result = run("benchmark", "sweep", "tokenize", *options, "--json")
    assert result.exit_code == 2
    assert result.report["command"] == "benchmark sweep tokenize"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("benchmark", "train", "--dataset", "nowhere"), "benchmark train"),
        (("benchmark", "train", "--no-such-option"), "benchmark train"),
        (("benchmark", "everything"), "benchmark"),
        (("settings", "import", "nowhere.yaml"), "settings import"),
        (("settings", "--profile", "nowhere"), "settings"),
    ],
)
def test_a_command_of_two_words_that_fails_is_called_as_where_it_succeeds(words: tuple[str, ...], command: str, tmp_path: Path) -> None:
    failed = run(*words, "--json", cwd=tmp_path)
    assert failed.exit_code
    assert failed.report["command"] == command


def test_a_command_that_reports_its_own_interruption_is_told_and_ends_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(context: Context, **_: object) -> Report:
        error = InterruptedRun("stopped after step 87", "Resume with --resume-from-checkpoint.")
        return context.report("settings", {"steps": 87}, status="interrupted", error=error)

    monkeypatch.setattr(settings_command, "run", stopped)
    result = run("settings")

    assert result.exit_code == 3
    assert result.stderr == "interrupted: stopped after step 87\n  Resume with --resume-from-checkpoint.\n"
    assert "87" in result.stdout


def test_verbose_shows_the_traceback_of_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_command, "run", _raise(ZeroDivisionError("by nothing")))

    assert "Traceback" in run("settings", "--verbose").stderr


def test_a_bug_is_told_even_where_no_file_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(blocked / "x"))
    monkeypatch.setattr(settings_command, "run", _raise(ZeroDivisionError("by nothing")))

    assert "Run it with --verbose to get the traceback" in run("settings").stderr


def test_the_environment_is_set_up_before_work_and_left_alone_otherwise(tmp_path: Path) -> None:
    text = (
        "from ftcli import hookimpl\nfrom ftcli.records import Tweak\n"
        "@hookimpl\ndef environment(settings, machine):\n    return {'EXTRA_THREADS': Tweak('7', 'the test wants it')}\n"
        "import os\n@hookimpl\ndef after_run(report):\n    print('EXTRA', os.environ.get('EXTRA_THREADS'))\n"
    )
    folder = plugin(tmp_path / "plugins", text)

    assert "EXTRA 7" in run("verify", "--plugins-dir", folder, "--stages", "settings", "--set", f"runtime.report_dir={tmp_path}").stderr
    off = ["--set", "runtime.manage_environment=false", "--set", f"runtime.report_dir={tmp_path}"]
    assert "EXTRA None" in run("verify", "--plugins-dir", folder, "--stages", "settings", *off).stderr
    assert "EXTRA None" in run("settings", "--plugins-dir", folder).stderr
    assert "EXTRA_THREADS" not in os.environ


def test_settings_plugins_and_environment_come_before_anything_heavy() -> None:
    code = "import sys; from ftcli.cli.main import main; main(['settings', '--quiet']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stderr.split())
    assert "ftcli.plugins.engines" in loaded
    assert not loaded & {"torch", "transformers", "datasets", "numpy", "pyarrow"}


def test_transformers_is_imported_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    gc.enable()  # a test of the pickle reader, which has a process of its own, may have been here

    def looking(context: Context, **_: object) -> Report:
        seen.append((gc.isenabled(), [type(finder).__module__ for finder in sys.meta_path].count("ftcli.core.tokenizer.quick_import")))
        return context.report("x", {})

    for command, module in (("predict", predict_command), ("settings", settings_command)):
        monkeypatch.setattr(module, "run", looking)
        run(command, *(["model", "text"] if command == "predict" else []))

    assert seen == [(True, 1), (True, 0)]
    assert not [finder for finder in sys.meta_path if type(finder).__module__ == "ftcli.core.tokenizer.quick_import"]


def _raise(error: BaseException) -> object:
    def raiser(*_: object, **__: object) -> None:
        raise error

    return raiser


def test_the_report_of_json_can_be_read_back() -> None:
    text = run("settings", "--json").stdout

    assert json.loads(text)["command"] == "settings"


def test_a_run_in_a_thread_leaves_signals_alone() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run, "settings").result().exit_code == 0


def test_a_user_without_a_home_folder_has_one_in_the_temporary_folder(tmp_path, monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stand_in = tmp_path / f"ftcli-home-{os.getuid()}"
    assert cache_folder(Settings()) == stand_in / ".cache/ftcli"
    assert user_profiles() == stand_in / ".config/ftcli/profiles"
    assert stand_in.stat().st_mode & 0o777 == 0o700
    kept = keep_traceback(ValueError("wrong"))
    assert kept is not None
    assert kept.parent == stand_in / ".cache/ftcli/bugs"
    home._stand_in.cache_clear()
    stand_in.chmod(0o777)  # as of somebody who waits for what others believe
    assert home.home() != stand_in
    home._stand_in.cache_clear()


def test_a_training_goes_on_by_its_checkpoints_and_not_by_the_same_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same command with --overwrite would remove them."""

    def interrupted(*_: object, **__: object) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_command, "run", interrupted)
    result = run("train", "--overwrite", "--output-dir", tmp_path / "run")
    assert result.exit_code == 3
    assert "Resume with the same command plus --resume-from-checkpoint auto, without --overwrite." in result.stderr
