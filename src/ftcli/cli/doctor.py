"""`ftcli doctor` from words to exit code, with as little as it can do with: what it describes may be broken."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftcli.cli import output
from ftcli.cli.switches import Switches, typed_settings
from ftcli.commands.doctor import Asked, run

if TYPE_CHECKING:
    from ftcli.cli.parse import Parsed


def execute(parsed: Parsed) -> int:
    """Run it as it was typed; returns the exit code.

    Raises:
        UsageError: the command line itself is wrong.
    """
    switches = Switches.of(parsed)
    asked = Asked(typed_settings(parsed), switches.config, switches.profile, switches.plugins_dir, switches.allow)
    return _write(asked, quick=parsed.arguments["quick"], json=switches.json)


def rescue(words: Sequence[str]) -> int:
    """Run it where not even the command line can be read: a library that reading it needs does not import."""
    return _write(Asked(), quick="--quick" in words, json="--json" in words)


def _write(asked: Asked, *, quick: bool, json: bool) -> int:
    with contextlib.redirect_stdout(sys.stderr):
        report = run(asked, quick=quick)
    if json:
        output.write_json(report, sys.stdout)
    else:
        output.write_human(report, sys.stdout)
    return 1 if report.status == "failed" else 0
