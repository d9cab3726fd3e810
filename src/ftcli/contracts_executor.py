"""Optional capabilities of an executor, in addition to `ftcli.contracts.Executor`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Copying(Protocol):
    """An executor that can load once and copy the loaded process for each worker."""

    def start_copies(self, workers: int) -> None:
        """As `start`, for workers with one thread each. Until there is work, `each` may reach only one process, of which the workers are copies."""
        ...


@runtime_checkable
class Arriving(Protocol):
    """An executor whose workers are placed by another system, perhaps only when machines have room."""

    def arrived(self) -> bool:
        """Whether a worker has started since `start`; called while `each` waits for one in another thread."""
        ...
