"""A worker that is started before the command knows what it needs one for: it imports while the command does.

Two cores: the first row of `ftcli tokenize` is encoded 0.6 s sooner, with what copies of it save (decision 0041).
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

from ftcli.core.processes.child import Child

PRELOAD = ("ftcli.core.prepare.encode",)
"""What every worker needs: 0.4 s, spent while the command itself still loads the tokenizer."""

_ready: list[Child] = []
_sending: list[Thread] = []


def prepare(preload: Sequence[str] = ()) -> None:
    """Start one. It computes with one thread, so that it can be copied, and ends with this process.

    Args:
        preload: modules that it will probably need beside `PRELOAD`.
    """
    with suppress(OSError):  # no process, no pipe: whoever needs a worker says so
        _ready.append(Child((*PRELOAD, *preload), 1))
        atexit.register(drop)


def waits() -> bool:
    """Whether there is one that nobody took."""
    return bool(_ready)


def begin(function: Callable[[], Any]) -> None:
    """Have the one that is ready do what it will probably be asked for, with one thread and the variables of now."""
    for child in _ready:
        _sent()
        child.adopt(1)
        thread = Thread(target=child.begin, args=(function,), daemon=True)  # a tokenizer is more than a pipe holds
        thread.start()
        _sending.append(thread)


def take(threads: int | None) -> Child | None:
    """The one that is ready, with the variables of now; None when there is none."""
    if not _ready:
        return None
    child = _ready.pop()
    _sent()
    child.adopt(threads)
    return child


def drop() -> None:
    """End it, if nobody took it: it holds this process's standard error open."""
    while _ready:
        child = _ready.pop()
        with suppress(ProcessLookupError):
            child.process.kill()
        _sent()
        child.join()


def _sent() -> None:
    """Wait until what was begun is sent: a pipe takes one message at a time."""
    while _sending:
        _sending.pop().join()


def belongs(words: list[str]) -> bool:
    """Whether a command line will probably need one: `ftcli tokenize` without a question for help, and not as one of many ranks."""
    return words[:1] == ["tokenize"] and len(words) > 1 and not {"--help", "-h"} & set(words) and os.environ.get("RANK", "0") == "0"
