"""The end of a shard's work that waits for the disk: done at once, or while the next shard begins where the executor has asked for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Deferred:
    """Stands for a result that is not there yet; whoever gets one calls `work`, once, in any thread."""

    work: Callable[[], Any]


class _Here:
    """Whether whoever called the shard's function knows what a `Deferred` is."""

    known = False


def finish(work: Callable[[], Result]) -> Result:
    """`work()`; or, inside of `allowed`, a `Deferred` in its place.

    It is the last thing that a shard's function does. It may wait, but computes little: it runs beside the next shard, in a thread of its own.
    """
    return cast("Result", Deferred(work)) if _Here.known else work()


@contextmanager
def allowed() -> Iterator[None]:
    """Inside of the block a shard's function may return a `Deferred`."""
    before, _Here.known = _Here.known, True
    try:
        yield
    finally:
        _Here.known = before
