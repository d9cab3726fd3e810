"""What people read: reports as text, errors and colours."""

from __future__ import annotations

import io
import signal
import subprocess
import sys

import pytest

from ftcli.cli.output import columns, evidence_lines, write_error, write_human, write_status
from ftcli.cli.signals import termination_interrupts
from ftcli.cli.streams import emit
from ftcli.core.distributed.signals import Signals
from ftcli.errors import DataError, InterruptedRun, PublishError
from ftcli.masking import as_dict
from ftcli.records import Check, Measurement, Report
from timing import PATIENCE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def text_of(report: Report, **options: bool) -> str:
    stream = io.StringIO()
    write_human(report, stream, **options)
    return stream.getvalue()


def test_a_report_shows_its_figures_notes_and_files() -> None:
    metrics = {"rows_written": 28000, "rows_read": 28000, "tokens": 5_000_000, "examples_per_second": 23184.0}
    report = Report("tokenize", "ok", 3.2, metrics, paths={"output": "prepared"}, notes=("2 used: 2 cores by affinity",))

    text = text_of(report)

    assert "28,000" in text
    assert "23,184 examples/s" in text
    assert "\nNotes\n  - 2 used: 2 cores by affinity\n" in text
    assert text.endswith("\nFiles\n  output  prepared\n")
    assert "\u00a0" not in text
    assert "2 used" not in text_of(report, notes=False)


def test_a_command_without_a_headline_shows_its_plain_figures() -> None:
    report = Report("sample-data", "ok", 1.0, {"rows_written": 20000, "mean_characters": 535.4, "files": {"train": "x"}, "unknown": None})

    assert text_of(report).splitlines() == ["rows written     20,000", "mean characters  535.4"]


def test_checks_are_a_table_and_what_failed_says_what_to_do() -> None:
    checks = (
        Check("FT001", "env", "pass", "2 cores", fix="never shown"),
        Check("FT0020", "tokenizer", "fail", "no PAD token", fix="Set pad_token."),
        Check("FT003", "env", "warn", "HDD", fix="Use an SSD."),
    )

    lines = text_of(Report("verify", "failed", 1.0, {}, checks=checks)).splitlines()

    assert lines[:5] == [
        "pass     FT001   2 cores",
        "fail     FT0020  no PAD token",
        "                 → Set pad_token.",
        "warn     FT003   HDD",
        "                 → Use an SSD.",
    ]


def test_the_name_of_a_variable_in_evidence_is_as_it_is_typed() -> None:
    assert evidence_lines({"OMP_NUM_THREADS": "4", "first_loss": 2.0}) == ['OMP_NUM_THREADS "4", first loss 2']


def test_the_name_of_a_setting_in_evidence_is_as_it_is_typed() -> None:
    assert evidence_lines({"train.save_total_limit": [1], "tracking.report_to": 2}) == [
        "tracking.report_to 2",
        "train.save_total_limit: [1]",
    ]


def test_measurements_are_a_table_with_their_spread() -> None:
    measured = (Measurement("gigatoken", "examples/s", 120000.0, 118000.0, 121000.0, 5), Measurement("hf", "s", 1.5, 1.4, 1.6, 5))
    ratios = [{"name": "gigatoken / hf", "median": 12.0, "low": 11.0, "high": 13.0, "verdict": "faster"}]

    lines = text_of(Report("benchmark", "ok", 9.0, {"measurements": measured, "ratios": ratios})).splitlines()

    assert lines[1].split() == ["variant", "median", "95", "%", "interval", "n"]
    assert lines[2].startswith("gigatoken  120,000 examples/s  118,000 examples/s to 121,000 examples/s  5")
    assert lines[-1] == "  gigatoken / hf  12.00×  faster"


def test_lines_for_the_shell_are_printed_alone() -> None:
    report = Report("settings", "ok", 0.1, {"variables": 1}, notes=("a note",), details={"lines": ["export A=1"]})

    assert text_of(report) == "export A=1\n"


def test_columns_are_aligned_and_may_be_empty() -> None:
    assert columns(("a", "b"), [["long", "x"], ["s", "yy"]]) == ["a     b", "long  x", "s     yy"]
    assert columns((), []) == []


def test_an_error_is_message_and_hint() -> None:
    stream = io.StringIO()

    for error in (DataError("a.jsonl:3: no text", "Mend the line."), DataError("no hint"), InterruptedRun("stopped at step 5", "Rerun.")):
        write_error(as_dict(error), stream)

    assert stream.getvalue() == "error: a.jsonl:3: no text\n  Mend the line.\nerror: no hint\ninterrupted: stopped at step 5\n  Rerun.\n"


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], coloured: bool) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        write_status(Report("train", "ok", 61.0, {}), stream)

    assert ("\x1b[32mok\x1b[0m" in terminal.getvalue()) == coloured
    assert pipe.getvalue() == "train: ok after 1 min 01 s\n"


# -- streams and signals ----------------------------------------------------------------------------------------------


def test_a_stream_that_cannot_take_it_is_an_error_in_words() -> None:
    code = (
        "import sys\nfrom ftcli.cli.streams import emit\nfrom ftcli.errors import PublishError\n"
        "try:\n    emit('x' * 100, open('/dev/full', 'w'))\nexcept PublishError as error:\n    print(error.message)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout == "the output cannot be written: No space left on device\n"


def test_text_that_fits_is_written() -> None:
    stream = io.StringIO()
    emit("x", stream)

    assert stream.getvalue() == "x"
    assert PublishError.exit_code == 1


SENT = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP], ids=lambda number: number.name)


@pytest.mark.usefixtures("hangup")
@SENT
def test_what_a_scheduler_sends_is_an_interruption_inside_and_as_before_outside(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), termination_interrupts():
        signal.raise_signal(number)

    # a closed terminal sends two, and the second one may come as late as when the process ends
    assert signal.getsignal(number) == (signal.SIG_IGN if number == signal.SIGHUP else before)


@pytest.mark.usefixtures("hangup")
def test_a_second_hangup_is_ignored_behind_all_that_heeded_the_first() -> None:
    with termination_interrupts():
        with Signals() as asked:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)

    assert asked.received == "SIGHUP"


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with termination_interrupts(), Signals() as asked:
            signal.raise_signal(signal.SIGHUP)
        assert asked.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


EVERY = pytest.mark.parametrize("number", [*SENT.args[1], signal.SIGINT], ids=lambda number: number.name)


def command(prepared: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`ftcli WORDS` as a process of its own, after a line of Python."""
    code = f"import atexit, os, sys, time\nfrom ftcli.cli import main\n{prepared}\nsys.argv = {['ftcli', *words]!r}\nsys.exit(main.main())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.usefixtures("hangup")
@EVERY
def test_a_command_that_still_starts_is_interrupted_as_one_that_works(number: signal.Signals) -> None:
    """On a slow disk that takes seconds. SIGTERM had killed it (143), and a Ctrl-C said nothing."""
    done = command(f"main._get_ready = lambda _: os.kill(os.getpid(), {int(number)})", "settings")

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "interrupted: ftcli was interrupted\n  Run the same command again.\n"


@pytest.mark.usefixtures("hangup")
@EVERY
def test_a_signal_to_a_command_that_has_ended_changes_nothing(number: signal.Signals) -> None:
    """Torch takes a second to leave, and an impatient second Ctrl-C fell into its callbacks: a traceback."""
    done = command(f"atexit.register(lambda: [os.kill(os.getpid(), {int(number)}), time.sleep(1)])", "plugins", "no-such-word")

    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("hangup")
@SENT
def test_a_forked_child_dies_of_it_as_ever(number: signal.Signals) -> None:
    code = (
        "import os, signal, time\nfrom ftcli.cli.signals import termination_interrupts\n"
        "with termination_interrupts():\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        time.sleep(30)\n"
        f"    os.kill(child, {int(number)})\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)

    assert (done.stdout, done.stderr) == (f"{-number}\n", "")
