"""A worker's way to its parent, by which one shard may be finished while the next one is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any

from ftcli.core.deferred import Deferred

Message = tuple[str, Any]


class Finishing:
    """Messages by a pipe, from two threads. Answers keep the order of the calls.

    Args:
        portable: what an error is sent as.
    """

    def __init__(self, pipe: Connection, portable: Callable[[BaseException], BaseException]) -> None:
        self._pipe, self._portable = pipe, portable
        self._sending = Lock()
        self._thread: Thread | None = None

    def tell(self, *told: object) -> None:
        """Progress."""
        self.send(("progress", told))

    def send(self, message: Message) -> None:
        with self._sending:
            self._pipe.send(message)

    def answer(self, message: Message) -> None:
        """Send a call's answer, behind that of the call before; where it is a `Deferred`, say that the next call may come, and send it when it is there."""
        self.wait()
        if not isinstance(message[1], Deferred):
            self.send(message)
            return
        self._thread = Thread(target=self._finish, args=(message[1],))
        self.send(("free", None))
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being finished."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _finish(self, deferred: Deferred) -> None:
        try:
            message = ("done", deferred.work())
        except BaseException as error:  # noqa: BLE001 - the parent raises it
            message = ("failed", self._portable(error))
        with suppress(ConnectionError):  # the parent is gone: this process ends at its next message
            self.send(message)
