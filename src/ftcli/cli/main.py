"""The entry point: words in, exit code out.

0 ok, 1 a check or a run failed, 2 usage or settings, 3 interrupted and resumable, 4 a rank stalled or died.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from ftcli.cli.streams import prepare
from ftcli.core.distributed.signals import WATCHED, heeded
from ftcli.core.processes import garbage

if TYPE_CHECKING:
    from ftcli.cli.parse import Parsed
    from ftcli.cli.spec import CommandSpec
    from ftcli.errors import FtcliError

INTERRUPTED = 3
COMPLETION_VARIABLE = "_FTCLI_COMPLETE"
FASTEST = ("gigatoken", "awkward", "numpy.ma")
"""What the engine of most tokenizers imports before it has encoded its first text: 0.2 s."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ftcli` with these words (default: those of the process) and return its exit code."""
    if argv is not None:
        return _main(list(argv), alone=False)
    atexit.register(gc.freeze)  # this process ends with the command: to look for cycles once more takes 0.25 s
    garbage.later()
    _heed()
    code = _main(sys.argv[1:], alone=True)
    _leave(code)
    return code


def _main(words: list[str], *, alone: bool) -> int:
    try:
        prepare()
        if alone and COMPLETION_VARIABLE not in os.environ:
            _get_ready(words)
        if COMPLETION_VARIABLE in os.environ:
            from typer.completion import completion_init  # type: ignore[attr-defined]  # public by its place, not by __all__

            completion_init()
        return _run(words)
    except KeyboardInterrupt:
        return _interrupted()


def _heed() -> None:
    """What schedulers send ends a command that still starts as Ctrl-C does: to start takes seconds on a slow disk."""
    for number in heeded(set(WATCHED) - {signal.SIGINT}):
        signal.signal(number, signal.default_int_handler)


def _leave(code: int) -> None:
    """All is done and said. The libraries' own end takes a second, and a signal that comes then ends it, with no traceback of theirs."""
    for number in heeded(WATCHED):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(code))


def _interrupted() -> int:
    """Say it of a command that has not begun, or whose report is being written."""
    with suppress(KeyboardInterrupt):  # a second one
        from ftcli.cli import output
        from ftcli.errors import InterruptedRun
        from ftcli.masking import as_dict

        output.write_error(as_dict(InterruptedRun("ftcli was interrupted", "Run the same command again.")), sys.stderr)
    return INTERRUPTED


def _run(words: list[str]) -> int:
    from ftcli.errors import FtcliError

    try:
        _decodable(words)
        from ftcli.cli.app import PROGRAM, Root

        code = Root(_execute).main(words, prog_name=PROGRAM, standalone_mode=False)
    except FtcliError as error:
        return _refuse(error, words)
    except ImportError as error:
        return _without(error, words)
    except SystemExit as end:  # completion ends this way
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return _interrupted() if code == 130 else int(code or 0)  # Typer's code for an interruption


def _decodable(words: list[str]) -> None:
    """
    Raises:
        UsageError, DataError: a word has bytes that are not UTF-8, as a name from another system may: neither Arrow nor a report can hold it.
    """
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            from ftcli.core.files.streams import refuse_undecodable
            from ftcli.errors import UsageError

            if os.path.exists(word):  # noqa: PTH110 - pathlib is not imported yet
                refuse_undecodable(word)
            raise UsageError(
                f"{repr(os.fsencode(word))[2:-1]}: not UTF-8",
                "Names and texts must be UTF-8. To convert all names below a folder: convmv -f CP949 -t UTF-8 -r --notest FOLDER",
            )


def _get_ready(words: list[str]) -> None:
    """Start a worker for a command that will need one, before this process imports what it needs itself."""
    from ftcli.core.processes import warm_worker
    from ftcli.core.room import COMMAND, lacks

    if warm_worker.belongs(words) and not lacks(COMMAND):
        warm_worker.prepare(FASTEST)


def _execute(spec: CommandSpec, parsed: Parsed) -> int:
    if spec.alone:
        from ftcli.cli import doctor

        garbage.imported()
        return doctor.execute(parsed)
    from ftcli.cli.run import execute

    return execute(spec, parsed)


def _without(error: ImportError, words: list[str]) -> int:
    """Go on without a library that the command line itself needs: only the doctor can."""
    if words[:1] == ["doctor"]:
        from ftcli.cli import doctor

        return doctor.rescue(words[1:])
    from ftcli.core.room import shortage
    from ftcli.errors import FtcliError

    return _refuse(shortage(error) or FtcliError(f"ftcli's installation is broken: {error}", "Run: ftcli doctor"), words)


def _refuse(error: FtcliError, words: list[str]) -> int:
    """Report an error of the command line itself."""
    from ftcli.cli import output
    from ftcli.cli.catalog import COMMANDS
    from ftcli.errors import FtcliError
    from ftcli.markers import PROJECT
    from ftcli.masking import as_dict
    from ftcli.records import Report

    details = as_dict(error)
    output.write_error(details, sys.stderr)
    if "--json" in words or "--format=json" in words or ("--format", "json") in pairwise(words):
        command = words[0] if words and not words[0].startswith("-") else PROJECT
        command = COMMANDS[command].named(*words[1:]) if command in COMMANDS else command
        with suppress(FtcliError):  # stdout takes nothing: stderr and the exit code have said it
            output.write_json(Report(command=command, status="failed", seconds=0.0, metrics={}, error=details), sys.stdout)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
