"""What an executor may do beside what `ftcli.contracts.Executor` asks of all."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Copying(Protocol):
    """An executor that can load once for all its workers."""

    def start_copies(self, workers: int) -> None:
        """As `start`, for workers with one thread each. Until there is work, `each` may reach one process alone, which they are copies of."""
        ...


@runtime_checkable
class Arriving(Protocol):
    """An executor whose workers others place, perhaps only when their machines have room."""

    def arrived(self) -> bool:
        """Whether a worker has come since `start`; asked while `each`, in another thread, waits for one."""
        ...
