"""Progress from inside shard work, whichever process it runs in: `report` adds to whatever sink the executor set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Sink = Callable[[int, int, int, str], None]


class _Here:
    """Where this process reports to."""

    sink: Sink | None = None


def report(size: int, rows: int, tokens: int, file: str = "") -> None:
    """Say that source bytes, rows and tokens were done since the last call, in which file. Costs nothing when nobody listens.

    Call it from the thread that the shard's function was called in.

    Args:
        file: the source that is read just now; "" when there is nothing new to say of it.
    """
    if _Here.sink is not None:
        _Here.sink(size, rows, tokens, file)


@contextmanager
def to(sink: Sink) -> Iterator[None]:
    """Send this process's progress to `sink` inside the block."""
    before, _Here.sink = _Here.sink, sink
    try:
        yield
    finally:
        _Here.sink = before
