"""A shard that is finished while the next one is made: nothing is lost, nothing comes twice, every failure is told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ftcli.core import deferred, progress
from ftcli.core.deferred import Deferred
from ftcli.core.processes.child import Child
from ftcli.errors import DataError, PublishError, WorkerDied
from ftcli.records import ShardPlan
from test_executors import WAYS, run, shards
from timing import until

pytestmark = pytest.mark.usefixtures("nursery")

# -- what the workers do (importable from a spawned process) -----------------------------------------------------------


def _finished(shard: ShardPlan, marks: Path, needs: int | None = None) -> int:
    """Leave a mark; only then, if a shard is named, when that one has begun."""
    if needs is not None and not until((marks / f"begun {needs}").exists, 0.01):
        raise TimeoutError(f"shard {needs} had not begun")
    (marks / f"done {shard.index}").touch()
    return shard.index


def overlapping(shard: ShardPlan, marks: Path) -> int:
    """Every shard but the last is done when the next one has begun, and not before."""
    (marks / f"begun {shard.index}").touch()
    return deferred.finish(partial(_finished, shard, marks, shard.index + 1 if shard.index < 3 else None))


def early(shard: ShardPlan, marks: Path) -> int:
    """Notes what was done when this shard began; what is finished takes its time."""
    progress.report(shard.size, 10, 100, shard.pieces[0].path)
    before = len([path for path in marks.iterdir() if path.name.startswith("done")])
    (marks / f"{shard.index}: {before}").touch()
    time.sleep(0.02)
    return deferred.finish(partial(_slowly, shard, marks))


def _slowly(shard: ShardPlan, marks: Path) -> int:
    time.sleep(0.05)
    return _finished(shard, marks)


def full(shard: ShardPlan, marks: Path) -> int:
    (marks / f"begun {shard.index}").touch()
    return deferred.finish(partial(_full, shard, marks))


def _full(shard: ShardPlan, marks: Path) -> int:
    if shard.index == 1:
        raise PublishError("the disk is full", "Free space.")
    return _finished(shard, marks)


def bad_row(shard: ShardPlan, marks: Path) -> int:
    if shard.index == 1:
        raise DataError("part-1.jsonl:7: not JSON", "Mend the line.")
    return deferred.finish(partial(_slowly, shard, marks))


def aborts(shard: ShardPlan, marks: Path, how: str) -> int:
    """Shard 1 crashes while shard 0 is not done, and cannot be before; how "late": when it is."""
    if shard.index == 1:
        if how == "late":
            until((marks / "done 0").exists)
        progress.report(10, 7, 100, shard.pieces[0].path)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os.abort()
    first = how != "late" and shard.index == 0 and not (marks / "begun 0").exists()
    (marks / f"begun {shard.index}").touch()
    return deferred.finish(partial(_never if first else _finished, shard, marks))


def _never(shard: ShardPlan, marks: Path) -> int:
    time.sleep(100_000)
    return -1


def plainly(shard: ShardPlan) -> int:
    return 10 * shard.index


def ends(marks: Path) -> int:
    return deferred.finish(partial(_finished, shards(1)[0], marks))


# -- tests -------------------------------------------------------------------------------------------------------------


def test_whoever_does_not_ask_for_it_has_the_result_at_once() -> None:
    assert deferred.finish(lambda: 7) == 7
    with deferred.allowed():
        given: Any = deferred.finish(lambda: 7)
        assert isinstance(given, Deferred)
        assert given.work() == 7
    assert deferred.finish(lambda: 7) == 7


@pytest.mark.parametrize("workers", [1, -1])
def test_the_next_shard_begins_while_one_is_finished(workers: int, tmp_path: Path) -> None:
    assert list(run(partial(overlapping, marks=tmp_path), 4, workers)) == [0, 1, 2, 3]


def test_a_worker_finishes_one_shard_at_a_time(tmp_path: Path) -> None:
    """So no more than one finished shard is lost with a worker."""
    assert list(run(partial(early, marks=tmp_path), 5, 1)) == [0, 1, 2, 3, 4]

    begun = sorted([int(word) for word in path.name.split(": ")] for path in tmp_path.iterdir() if ": " in path.name)
    assert [number - done for number, done in begun] == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("workers", WAYS)
def test_every_shard_gives_one_result_and_its_progress_once(workers: int, tmp_path: Path) -> None:
    seen: list[tuple[int, int, int, str]] = []

    assert sorted(run(partial(early, marks=tmp_path), 7, workers, lambda *figures: seen.append(figures))) == [*range(7)]
    assert [sum(column) for column in list(zip(*seen, strict=True))[:3]] == [700, 70, 700]


@pytest.mark.parametrize("workers", WAYS)
def test_what_fails_as_it_is_finished_is_raised(workers: int, tmp_path: Path) -> None:
    results = run(partial(full, marks=tmp_path), 6, workers)

    with pytest.raises(PublishError, match="the disk is full"):
        list(results)


def test_a_shard_that_fails_is_told_after_the_one_before_it_is_done(tmp_path: Path) -> None:
    results = run(partial(bad_row, marks=tmp_path), 3, 1)

    assert next(results) == 0
    with pytest.raises(DataError, match="not JSON"):
        next(results)


@pytest.mark.fault
@pytest.mark.parametrize("how", ["abort", "late"])
@pytest.mark.parametrize("workers", [1, -1])
def test_what_was_not_yet_finished_when_a_worker_crashed_is_done_again_and_only_the_other_is_rescued(
    workers: int, how: str, tmp_path: Path
) -> None:
    asked: list[tuple[str, int]] = []

    def rescue(error: WorkerDied, shard: ShardPlan) -> Callable[[ShardPlan], Any]:
        asked.append((error.message, shard.index))
        return plainly

    assert list(run(partial(aborts, marks=tmp_path, how=how), 3, workers, rescue=rescue)) == [0, 10, 2]
    [(message, index)] = asked
    assert index == 1
    assert message.endswith("by SIGABRT in shard 1, after 7 of its rows, in part-1.jsonl")


@pytest.mark.fault
def test_a_killed_worker_is_told_of_by_the_shard_that_it_made(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match=r"by SIGKILL in shard 1, after 7 of its rows, in part-1\.jsonl"):
        list(run(partial(aborts, marks=tmp_path, how="kill"), 3, 1, rescue=lambda *_: plainly))


def test_a_call_that_nobody_follows_up_is_answered_whole(tmp_path: Path) -> None:
    child = Child()
    try:
        assert child.ask(ends, tmp_path) == 0
        child.call(ends, tmp_path, ahead=True)
        assert child.receive() == ("free", None)
        assert child.receive() == ("done", 0)
        child.call(ends, tmp_path, ahead=True)
        assert child.answer() == 0
    finally:
        child.stop()
        child.join()
