"""A process for what may raise, abort or hang: every question has an answer, or words for why there is none."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from typing import Any

from ftcli.core.processes.child import Child, ChildDied
from ftcli.errors import FtcliError

PATIENCE = 120.0
"""Seconds for one answer: a first import of torch from a network disk takes a minute."""
MOST = 400
"""Characters of an error."""


class Silent(Exception):  # noqa: N818 - its words are the answer
    """There is no answer; the message says why."""


class Ward:
    """Calls functions of one module, by name, in a process that is started anew after one that ended.

    Args:
        module: full name; imported there alone, so that what it imports may be broken.
        patience: seconds to wait for an answer.
    """

    def __init__(self, module: str, patience: float = PATIENCE) -> None:
        self._module, self._patience = module, patience
        self._child: Child | None = None
        self._problem = ""

    def begin(self, name: str, *arguments: Any) -> None:
        """Ask; `answer` waits."""
        self._problem = ""
        try:
            if self._child is None:
                self._child = Child()
            self._child.call(_answered, self._module, name, arguments)
        except Exception as error:  # noqa: BLE001 - a system without a process to spare
            self._problem = words_of(error)

    def answer(self) -> Any:
        """What the function returned: standard types and `ftcli.records`.

        Raises:
            Silent: it raised, its process ended, or it took too long.
        """
        child = self._child
        if self._problem or child is None:
            raise Silent(self._problem or "nothing was asked")
        if not child.pipe.poll(self._patience):
            child.process.kill()
            self.close()
            raise Silent(f"no answer within {self._patience:.0f} s")
        try:
            good, answer = child.answer()
        except ChildDied as died:
            self.close()
            raise Silent(f"its process ended {died.how}") from None
        if not good:
            raise Silent(answer)
        return answer

    def ask(self, name: str, *arguments: Any) -> Any:
        """`begin`, then `answer`."""
        self.begin(name, *arguments)
        return self.answer()

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.join()


def words_of(error: BaseException) -> str:
    """An error on one line; that of a person's making without its class."""
    try:
        text = f"{error.message} {error.hint}" if isinstance(error, FtcliError) else f"{type(error).__name__}: {error}"
        text = str(error) if isinstance(error, Silent) else text
    except Exception:  # noqa: BLE001 - of a class whose own words are broken
        text = type(error).__name__
    return " ".join(text.split())[:MOST]


# -- in the child ------------------------------------------------------------------------------------------------------


def _answered(module: str, name: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """(True, result) or (False, words): an exception of a plugin's own class could not be read by the parent."""
    _hush()
    try:
        return True, getattr(importlib.import_module(module), name)(*arguments)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        return False, words_of(error)


def _hush() -> None:
    """What libraries and plugins print is not for the issue, and nobody has masked it."""
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nothing, stream)
        os.close(nothing)
