"""What tests/test_executor_ray.py sends to the workers of a cluster. A worker imports the module of what it is sent: here that is little."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.core import progress

if TYPE_CHECKING:
    from ftcli.records import ShardPlan


def slowly(function: Callable[[ShardPlan], Any], shard: ShardPlan) -> Any:
    """The shard with a wait behind every batch, so that a kill finds it half written."""
    forward = progress._Here.sink
    assert forward is not None

    def wait(*told: Any) -> None:
        forward(*told)
        time.sleep(0.1)

    with progress.to(wait):
        return function(shard)


def append(path: str, first: int) -> int:
    """Twenty rows, each appended to one file as it is made."""
    for row in range(first, first + 20):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{row}\n")
        time.sleep(0.05)
    return 20
