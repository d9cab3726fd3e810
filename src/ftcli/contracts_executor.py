"""What an executor may do beside what `ftcli.contracts.Executor` asks of all."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Copying(Protocol):
    """An executor that can load once for all its workers."""

    def start_copies(self, workers: int) -> None:
        """As `start`, for workers with one thread each. Until there is work, `each` may reach one process alone, which they are copies of."""
        ...
