"""A process that dies at the n-th call that changes a file, played in this process: from that call on nothing reaches the disk any more.

Python announces its own calls to an audit hook; torch and safetensors write by themselves and are stopped before and in the middle of a file.
Nothing is synced: that is the matter of power losses, not of crashes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import modeling_utils

from ftcli.core.publishing import staging

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


class Crashed(BaseException):
    """The process is dead: no handler for errors of its own may catch it."""


class Crash:
    """Dies at call number `at` (from 0) of those that change something under `folder`; with None it only counts them."""

    current: Crash | None = None

    def __init__(self, folder: Path, at: int | None) -> None:
        self.folder, self.at = str(folder), at
        self.calls = 0

    def call(self) -> bool:
        """Whether this call still happens."""
        self.calls += 1
        return self.at is None or self.calls <= self.at

    def seen(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            changes = (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or (isinstance(mode, str) and mode != "r")
            if not changes or not str(path).startswith(self.folder):
                return
        elif event not in CHANGES or not (str(arguments[0]).startswith(self.folder) or not Path(arguments[0]).is_absolute()):
            return
        if not self.call():
            raise Crashed(event)

    def writer(self, write: Callable[..., Any], path_of: Callable[[tuple[Any, ...]], Any]) -> Callable[..., Any]:
        """`write`, which a crash hits before it begins or when half of its file is there."""

        def written(*arguments: Any, **named: Any) -> Any:
            if not self.call():
                raise Crashed(write.__name__)
            dies = not self.call()
            found = write(*arguments, **named)
            if dies:
                path = Path(path_of(arguments))
                with _quiet():
                    os.truncate(path, path.stat().st_size // 2)
                raise Crashed(write.__name__)
            return found

        return written


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if Crash.current is not None and (event == "open" or event in CHANGES):
        Crash.current.seen(event, arguments)


sys.addaudithook(_hook)  # stays for good, and does nothing while there is no current crash


@contextmanager
def _quiet() -> Iterator[None]:
    before, Crash.current = Crash.current, None
    try:
        yield
    finally:
        Crash.current = before


@contextmanager
def crashing(folder: Path, at: int | None = None) -> Iterator[Crash]:
    """Inside the block the process dies at call `at`; `Crashed` ends the block, and nothing that runs on the way out changes a file."""
    crash = Crash(folder, at)
    swap = staging.exchange

    def synced(_: int) -> None:
        if not crash.call():
            raise Crashed("fsync")

    def swapped(one: Path, other: Path) -> bool:
        if not crash.call():
            raise Crashed("renameat2")
        return swap(one, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        patch.setattr(staging, "exchange", swapped)
        patch.setattr(torch, "save", crash.writer(torch.save, lambda arguments: arguments[1]))
        patch.setattr(modeling_utils, "safe_save_file", crash.writer(modeling_utils.safe_save_file, lambda arguments: arguments[1]))
        Crash.current = crash
        try:
            yield crash
        except Crashed:
            pass
        finally:
            Crash.current = None
