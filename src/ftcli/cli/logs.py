"""Logging to stderr, and the file that keeps the traceback of a bug."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from ftcli.errors import UsageError
from ftcli.home import home
from ftcli.masking import masked, printable

LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL")
VARIABLE = "FTCLI_LOG"


def configure(environ: Mapping[str, str], *, quiet: bool, verbose: bool) -> None:
    """Send loguru to stderr at the level of FTCLI_LOG, else DEBUG with --verbose, ERROR with --quiet, WARNING.

    Raises:
        UsageError: FTCLI_LOG is not a level.
    """
    level = environ.get(VARIABLE, "").upper() or ("DEBUG" if verbose else "ERROR" if quiet else "WARNING")
    if level not in LEVELS:
        raise UsageError(f"{VARIABLE} = {environ[VARIABLE]!r} is not a log level", f"Choose from: {', '.join(LEVELS)}.")
    from loguru import logger

    logger.remove()
    logger.add(_to_stderr, level=level, format="{level}: {message}", diagnose=False, backtrace=False)


def _to_stderr(message: str) -> None:
    sys.stderr.write(printable(masked(message)))  # looked up each time: a progress bar puts itself between


def keep_traceback(error: BaseException) -> Path | None:
    """Write the traceback to a new file in the cache folder, else in the temporary one; its path, or None when neither can be written."""
    text = "".join(traceback.format_exception(error))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache") / "ftcli" / "bugs"
    for folder in (cache, Path(tempfile.gettempdir())):
        path = folder / f"ftcli-bug-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            whole = masked(f"ftcli {' '.join(sys.argv[1:])}\nPython {sys.version}\n\n{text}")
            path.write_text(whole, encoding="utf-8", errors="backslashreplace")
        except OSError:
            continue
        return path
    return None
