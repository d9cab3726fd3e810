"""Shards in worker processes; what happens when a worker dies, fails or is no longer wanted."""

from __future__ import annotations

import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from ftcli.context import Context
from ftcli.contracts import Executor
from ftcli.core import progress
from ftcli.core.prepare.executed import ended
from ftcli.core.processes import hang_detector
from ftcli.core.processes.child import STOP_SECONDS, Child, ChildDied, portable
from ftcli.errors import DataError, PluginError, WorkerDied
from ftcli.machine import usable_cores
from ftcli.pluginmanager import Plugins
from ftcli.records import Piece, ShardPlan
from timing import PATIENCE, until

pytestmark = pytest.mark.usefixtures("nursery")
WAYS = (1, 2, -2)
"""Numbers of workers; below 0, of workers that are copies of one process."""


def shards(count: int) -> list[ShardPlan]:
    return [ShardPlan(number, "train", (Piece(f"part-{number}.jsonl", "jsonl", 0, 100, "bytes", 100),)) for number in range(count)]


def run(
    function: Callable[[ShardPlan], Any], count: int, workers: int, on_progress: Callable[..., None] = lambda *_: None, rescue: Any = None
) -> Iterator[Any]:
    executor = Plugins(allow=()).registry("executor").get("local")()
    if workers < 0:
        executor.start_copies(-workers)
    else:
        executor.start(workers)
    with closing(executor):
        yield from executor.run(function, shards(count), on_progress, rescue)


@pytest.fixture(autouse=True)
def _no_worker_stays() -> Iterator[None]:
    yield
    until(lambda: not _children(), 0.05)


def _children() -> list[str]:
    """Spawned workers of this process that are alive."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            words = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if "ftcli.core.processes.child" in words and process.is_running():
            found.append(words)
    return found


# -- what the workers do (importable from a spawned process) -----------------------------------------------------------


def double(shard: ShardPlan) -> int:
    progress.report(shard.size, 10, 1000)
    progress.report(0, 5, 500)
    return 2 * shard.index


def where(shard: ShardPlan) -> int:
    time.sleep(0.05)
    return os.getpid()


_memory: list[str] = []


def remember(word: str) -> None:
    _memory.append(word)


def recall(shard: ShardPlan) -> tuple[str, int]:
    time.sleep(0.05)
    return _memory[-1], os.getpid()


def threads(shard: ShardPlan) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS")}


def complain(shard: ShardPlan, marks: Path) -> int:
    if shard.index == 1:
        raise DataError("part-1.jsonl:7: not JSON", "Mend the line.")
    time.sleep(0.2 if shard.index == 0 else 100_000)
    (marks / str(shard.index)).touch()
    return shard.index


def stumble(shard: ShardPlan) -> int:
    raise KeyError(f"shard {shard.index}")


class StubbornError(Exception):
    """Cannot be pickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("only words")


class PanicError(BaseException):
    """What a Rust extension raises when it panics is no Exception."""


def panic(shard: ShardPlan, kind: str) -> int:
    if kind == "stubborn":
        raise StubbornError(1, 2)
    if kind == "exit":
        sys.exit(0)
    raise PanicError("index out of bounds")


def die(shard: ShardPlan, how: str, marks: Path) -> int:
    if shard.index != 2:
        time.sleep(100_000 if shard.index > 2 else 0.01)
        return shard.index
    progress.report(10, 10, 100, shard.pieces[0].path)
    if how == "exit":
        os._exit(7)
    if how == "abort":
        os.abort()
    os.kill(os.getpid(), signal.SIGKILL)
    return -1


def wait_long(shard: ShardPlan, marks: Path) -> int:
    (marks / f"{os.getpid()}").touch()
    time.sleep(100_000)
    return 0


def report_for_ever(shard: ShardPlan, marks: Path) -> int:
    (marks / f"{os.getpid()}").touch()
    while True:
        progress.report(1, 1, 1)
        time.sleep(0.05)


def stubborn_end(shard: ShardPlan, marks: Path) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if shard.index == 0:
        (marks / str(os.getpid())).touch()
        time.sleep(100_000)
    while not list(marks.iterdir()):
        time.sleep(0.02)
    return shard.index


# -- tests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", WAYS)
def test_every_shard_gives_one_result_and_progress_is_the_same_whoever_works(workers: int) -> None:
    seen: list[tuple[int, int, int, str]] = []

    assert sorted(run(double, 5, workers, lambda *figures: seen.append(figures))) == [0, 2, 4, 6, 8]
    assert [sum(column) for column in list(zip(*seen, strict=True))[:3]] == [500, 75, 7500]


@pytest.mark.parametrize("workers", WAYS)
def test_no_shards_give_no_results(workers: int) -> None:
    assert list(run(double, 0, workers)) == []


def test_one_worker_is_a_process_too() -> None:
    pids = set(run(where, 3, 1))

    assert len(pids) == 1
    assert os.getpid() not in pids


def test_several_workers_are_processes_that_share_the_shards() -> None:
    pids = list(run(where, 6, 2))

    assert len(set(pids)) == 2
    assert os.getpid() not in pids


def test_the_same_workers_do_one_kind_of_work_after_the_other() -> None:
    executor = Plugins(allow=()).registry("executor").get("local")()
    executor.start(3)
    executor.start(2)
    with closing(executor):
        executor.each(partial(remember, "warm"))
        before = list(executor.run(recall, shards(6), lambda *_: None))
        after = list(executor.run(recall, shards(6), lambda *_: None))

    assert {word for word, _ in before + after} == {"warm"}
    assert len({pid for _, pid in before + after}) == 2


def test_workers_share_the_cores_and_the_variables_here_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "64")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = str(max(1, usable_cores() // 2))

    assert list(run(threads, 2, 2)) == [{"RAYON_NUM_THREADS": share, "OMP_NUM_THREADS": share}] * 2
    assert (os.environ["RAYON_NUM_THREADS"], os.environ.get("OMP_NUM_THREADS")) == ("64", None)


def test_a_smaller_number_that_the_user_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.plugins.executors.usable_cores", lambda: 16)
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")

    assert list(run(threads, 2, 2)) == [{"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "4"}] * 2


def allocator(shard: ShardPlan) -> str | None:
    return os.environ.get("MIMALLOC_PURGE_DELAY")


def test_the_allocator_of_a_worker_keeps_its_pages_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY", raising=False)
    assert list(run(allocator, 2, 2)) == ["-1"] * 2
    assert "MIMALLOC_PURGE_DELAY" not in os.environ

    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "50")
    assert list(run(allocator, 2, 2)) == ["50"] * 2


def test_a_script_without_a_main_guard_starts_workers_that_do_not_run_it_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "print('script')\n"
        "from test_executors import shards, threads\n"
        "from ftcli.plugins.executors import Local\n"
        "local = Local()\n"
        "local.start(2)\n"
        "print(*[found['RAYON_NUM_THREADS'] for found in local.run(threads, shards(2), print)])\n"
        "local.close()\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "RAYON_NUM_THREADS"}

    done = subprocess.run([sys.executable, script], env=environ, capture_output=True, text=True, timeout=PATIENCE, check=True)

    share = str(max(1, usable_cores() // 2))
    assert done.stdout.split() == ["script", share, share]


@pytest.mark.parametrize("workers", WAYS)
def test_an_error_for_people_arrives_whole(workers: int, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        list(run(partial(complain, marks=tmp_path), 6, workers))

    assert (caught.value.message, caught.value.hint) == ("part-1.jsonl:7: not JSON", "Mend the line.")
    assert {path.name for path in tmp_path.iterdir()} <= {"0"}  # the others were ended, not waited for


def test_a_bug_arrives_as_it_is_with_the_workers_traceback() -> None:
    with pytest.raises(KeyError) as caught:
        list(run(stumble, 2, 2))

    assert "in stumble" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(("kind", "words"), [("stubborn", "only words"), ("panic", "index out of bounds"), ("exit", "SystemExit")])
def test_what_cannot_travel_arrives_in_words(kind: str, words: str) -> None:
    with pytest.raises(RuntimeError, match=words) as caught:
        list(run(partial(panic, kind=kind), 2, 2))

    assert "in panic" in "".join(caught.value.__notes__)


@pytest.mark.fault
@pytest.mark.parametrize("workers", [2, -2])
@pytest.mark.parametrize(("how", "words"), [("kill", "by SIGKILL"), ("abort", "by SIGABRT"), ("exit", "with exit code 7")])
def test_a_worker_that_dies_is_an_error_naming_its_file_and_the_way_on(how: str, words: str, workers: int, tmp_path: Path) -> None:
    results = run(partial(die, how=how, marks=tmp_path), 8, workers)

    with pytest.raises(WorkerDied) as caught:
        list(results)

    assert re.fullmatch(rf"the worker process \d+ ended {words} in shard 2, after 10 of its rows, in part-2\.jsonl", caught.value.message)
    assert "Run the same command again" in caught.value.hint
    assert ("memory" in caught.value.hint) == (how == "kill")


@pytest.mark.fault
@pytest.mark.parametrize("workers", WAYS)
def test_a_crashed_shard_is_done_another_way_by_a_new_worker(workers: int, tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    def rescue(error: WorkerDied, shard: ShardPlan) -> Callable[[ShardPlan], Any]:
        asked.append((error.message, shard.index))
        return double

    results = list(run(partial(die, how="abort", marks=tmp_path), 3, workers, rescue=rescue))

    assert sorted(results) == [0, 1, 4]
    assert [index for _, index in asked] == [2]
    assert "by SIGABRT" in asked[0][0]


@pytest.mark.fault
def test_a_worker_that_was_killed_from_outside_is_not_rescued(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match="by SIGKILL"):
        list(run(partial(die, how="kill", marks=tmp_path), 3, 1, rescue=lambda *_: double))


def test_a_worker_that_is_killed_amid_a_message_is_dead() -> None:
    pipe, theirs = Pipe()
    os.write(theirs.fileno(), struct.pack("!i", 1_000) + b"half of it")
    theirs.close()
    killed: Any = SimpleNamespace(pid=7, returncode=-signal.SIGKILL, wait=lambda _: None)
    with pipe, pytest.raises(ChildDied, match="by SIGKILL"):
        Child(tie=(pipe, killed)).receive()


def test_a_worker_whose_caller_is_killed_amid_a_message_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    child = Child()
    assert child.ask(os.getpid)
    os.write(child.pipe.fileno(), struct.pack("!i", 1_000) + b"half of it")
    child.pipe.close()
    assert child.process.wait(STOP_SECONDS) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("workers", [2, -2])
def test_a_caller_that_leaves_ends_the_workers(workers: int, tmp_path: Path) -> None:
    results = run(where, 50, workers)
    next(results)
    assert _children()

    results.close()  # type: ignore[attr-defined]

    assert not _children()


@pytest.mark.fault
@pytest.mark.parametrize("workers", [2, -2])
def test_a_worker_that_does_not_end_by_itself_is_killed(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.core.processes.child.STOP_SECONDS", 0.2)
    results = run(partial(stubborn_end, marks=tmp_path), 2, workers)
    next(results)

    results.close()  # type: ignore[attr-defined]

    assert _gone([int(path.name) for path in tmp_path.iterdir()])


@pytest.mark.parametrize(
    ("error", "kind"),
    [(DataError("a", "b"), DataError), (KeyError("a"), KeyError), (StubbornError(1, 2), RuntimeError), (PanicError("a"), RuntimeError)],
)
def test_an_error_is_itself_where_it_can_travel(error: BaseException, kind: type[BaseException]) -> None:
    travelling = portable(error)

    assert type(travelling) is kind
    assert type(pickle.loads(pickle.dumps(travelling))) is kind
    assert (travelling is error) == (kind is not RuntimeError)


def test_a_failing_progress_bar_ends_the_workers() -> None:
    def broken(*_: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(run(double, 4, 2, broken))


def _controller(function: str, tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A process of its own that runs a function of this module in two workers, and their pids."""
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from functools import partial\nfrom pathlib import Path\n"
        f"from test_executors import shards, {function}\n"
        "from ftcli.plugins.executors import Local\n"
        "local = Local()\n"
        "try:\n"
        "    local.start(2)\n"
        f"    list(local.run(partial({function}, marks=Path({str(tmp_path)!r})), shards(4), lambda *_: None))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    script = tmp_path / "controller.py"
    script.write_text(code)
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def marks() -> list[int]:
        return [int(path.name) for path in tmp_path.iterdir() if path.name.isdecimal()]

    until(lambda: len(marks()) == 2 or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process, marks()


def _gone(pids: list[int]) -> bool:
    return bool(until(lambda: not any(map(_runs, pids))))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.fault
def test_ctrl_c_ends_the_workers_quietly(tmp_path: Path) -> None:
    process, pids = _controller("wait_long", tmp_path)

    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    out, err = process.communicate(timeout=PATIENCE)

    assert (out, err, process.returncode) == ("interrupted\n", "", 0)
    assert _gone(pids)


@pytest.mark.fault
def test_workers_of_a_killed_run_end_at_their_next_report(tmp_path: Path) -> None:
    process, pids = _controller("report_for_ever", tmp_path)

    process.kill()
    process.communicate(timeout=PATIENCE)

    assert _gone(pids)


def test_progress_outside_a_block_goes_nowhere_and_a_block_puts_back_what_was() -> None:
    outer: list[int] = []
    inner: list[int] = []
    progress.report(1, 1, 1)

    with progress.to(lambda size, *_: outer.append(size)):
        with progress.to(lambda size, *_: inner.append(size)):
            progress.report(2, 0, 0)
        progress.report(3, 0, 0)
    progress.report(4, 0, 0)

    assert (outer, inner) == ([3], [2])


def hang(shard: ShardPlan) -> None:
    progress.report(1, 3, 0, "some.csv")
    Event().wait()


def crawl(shard: ShardPlan) -> int:
    """Hardly anything in any second, but something."""
    for _ in range(12):
        time.sleep(0.25)
        until_cpu = time.process_time() + 0.02
        while time.process_time() < until_cpu:
            pass
    return shard.index


def stop_for_a_while(shard: ShardPlan) -> int:
    waker = subprocess.Popen(["/bin/sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    waker.wait()
    return shard.index


@pytest.mark.skipif(sys.platform != "linux", reason="what a worker does stands in /proc")
@pytest.mark.parametrize("workers", WAYS)
def test_a_worker_that_does_nothing_at_all_is_ended_and_named(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of pyarrow waited for ever for a thread that the system had refused it, and the run with it."""
    monkeypatch.setattr(hang_detector, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(hang_detector, "LOOKS", 5)

    with pytest.raises(WorkerDied, match=r"by SIGALRM, which ends what hangs, in shard 0, after 3 of its rows, in some\.csv"):
        list(run(hang, 1, workers))


@pytest.mark.skipif(sys.platform != "linux", reason="what a worker does stands in /proc")
@pytest.mark.parametrize("work", [crawl, stop_for_a_while])
def test_a_worker_that_is_slow_or_stopped_does_not_hang(work: Callable[[ShardPlan], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_detector, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(hang_detector, "LOOKS", 8)

    assert list(run(work, 1, 1)) == [0]


@pytest.mark.parametrize("owner", ["theirs", None])
def test_an_executor_that_cannot_be_closed_does_not_hide_what_failed_before(owner: str | None) -> None:
    notes: list[str] = []

    def broken() -> None:
        raise PluginError("cannot end") if owner is None else ZeroDivisionError("cannot end")

    settings = SimpleNamespace(runtime=SimpleNamespace(executor="far"))
    context = cast("Context", SimpleNamespace(settings=settings, note=notes.append, plugins=SimpleNamespace(outsider=lambda *_: owner)))
    executor = cast("Executor", SimpleNamespace(close=broken))
    with pytest.raises(KeyError, match="first"), ended(context, executor):
        raise KeyError("first")
    assert len(notes) == 1
    assert "cannot end" in notes[0]
    with pytest.raises(PluginError, match="cannot end"), ended(context, executor):
        pass
