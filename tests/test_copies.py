"""Workers that are copies of one process, and the process that is started before it is known what for."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import psutil
import pyarrow as pa
import pytest
from ftcli.plugins.ray_host import Host
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ftcli.core.processes import child as child_module
from ftcli.core.processes import copied, warm_worker
from ftcli.core.processes.child import Child, ChildDied
from ftcli.errors import WorkerDied
from ftcli.pluginmanager import Plugins
from test_executors import PATIENCE, die, double, recall, remember, shards, where
from timing import until


@pytest.fixture(autouse=True)
def _no_child_stays() -> Iterator[None]:
    yield
    warm_worker.drop()
    until(lambda: not psutil.Process().children(recursive=True), 0.05)


@pytest.fixture
def local() -> Iterator[Any]:
    executor = Plugins(allow=()).registry("executor").get("local")()
    with closing(executor):
        yield executor


# -- what the children do ----------------------------------------------------------------------------------------------


def hold_a_lock() -> None:
    """A thread that holds a lock for good, as those of a pool may at any moment."""
    lock = threading.Lock()
    lock.acquire()
    threading.Thread(target=time.sleep, args=(PATIENCE,), daemon=True).start()


def parent_of(_: object) -> tuple[int, int]:
    time.sleep(0.05)
    return os.getpid(), os.getppid()


def variables(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


def encoded(backend: str) -> tuple[list[int], bool]:
    """Ids of a text by gigatoken, and whether it has started a thread."""
    engine = Plugins(allow=()).registry("engine").get("gigatoken")()
    encoder = engine.load(backend, Path(), 1)
    ids = encoder.encode(pa.array(["abba"] * 5_000, pa.large_string())).ids
    return ids[: 4 * len(ids) // 5_000].tolist(), child_module.other_threads()


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


# -- copies ------------------------------------------------------------------------------------------------------------


def test_what_was_loaded_before_is_there_in_every_copy(local: Any) -> None:
    local.start_copies(2)
    local.each(partial(remember, "once"))
    original = local._original.pid

    found = list(local.run(recall, shards(6), lambda *_: None))
    families = set(local.run(parent_of, shards(6), lambda *_: None))

    assert {word for word, _ in found} == {"once"}
    assert len({pid for _, pid in found}) == 2
    assert {parent for _, parent in families} == {original}
    assert {pid for _, pid in found} == {pid for pid, _ in families}


def test_a_process_with_threads_is_not_copied_but_works_itself(local: Any) -> None:
    local.start_copies(2)
    local.each(hold_a_lock)
    original = local._original.pid

    pids = set(local.run(where, shards(6), lambda *_: None))

    assert original in pids
    assert len(pids) == 2


def test_a_process_that_has_copies_already_does_not_work_itself_when_another_is_refused(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells how its copies end, and would be asked in the middle of a shard."""
    copy, asked = Child.copy, list[Child]()

    def once(process: Child) -> Child | None:
        asked.append(process)
        return copy(process) if len(asked) == 1 else None

    monkeypatch.setattr(Child, "copy", once)
    local.start_copies(2)
    original = local._original.pid

    pids = set(local.run(where, shards(6), lambda *_: None))

    assert len(pids) == 2
    assert original not in pids
    assert sorted(local.run(partial(die, how="abort", marks=tmp_path), shards(3), lambda *_: None, lambda *_: double)) == [0, 1, 4]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="copies are for Linux")
@pytest.mark.parametrize(("module", "call"), [(os, "pidfd_open"), (signal, "pidfd_send_signal")])
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_where_the_system_refuses_to_watch_copies_there_are_none(
    local: Any, module: ModuleType, call: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(module, call, refused)
    local.start_copies(2)
    original = local._original.pid
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    assert not copied.possible()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files

    pids = set(local.run(where, shards(6), lambda *_: None))

    assert original in pids
    assert len(pids) == 2
    with pytest.raises(OSError, match="no copies here"):
        Host("run", 1)


@pytest.mark.fault
def test_an_original_that_was_killed_is_replaced_by_fresh_workers(local: Any) -> None:
    local.start_copies(2)
    local.each(partial(remember, "gone"))
    os.kill(local._original.pid, signal.SIGKILL)

    assert len(set(local.run(where, shards(6), lambda *_: None))) == 2


@pytest.mark.fault
def test_an_original_that_dies_while_it_loads_is_named_and_the_next_one_works(local: Any) -> None:
    local.start_copies(2)
    with pytest.raises(WorkerDied, match=r"the worker process \d+ ended by SIGABRT while it got ready"):
        local.each(os.abort)

    assert local.each(partial(remember, "again")) == [None]
    assert {word for word, _ in local.run(recall, shards(4), lambda *_: None)} == {"again"}


@pytest.mark.fault
@pytest.mark.parametrize("start", ["start", "start_copies"])
def test_one_that_the_system_kills_while_it_gets_ready_may_lack_memory(local: Any, start: str) -> None:
    getattr(local, start)(2)
    with pytest.raises(WorkerDied, match="by SIGKILL while it got ready") as caught:
        local.each(partial(signal.raise_signal, signal.SIGKILL))
    assert "use fewer --num-proc" in caught.value.hint


@pytest.mark.fault
def test_a_copy_whose_original_is_gone_is_said_to_have_ended_with_it(local: Any, tmp_path: Path) -> None:
    local.start_copies(2)
    running = local.run(partial(die, how="kill", marks=tmp_path), shards(3), lambda *_: None)
    next(running)
    os.kill(local._original.pid, signal.SIGKILL)

    with pytest.raises(WorkerDied, match="ended with the process that it was a copy of in shard 2"):
        list(running)


def test_a_number_that_changes_holds_for_copies_too(local: Any) -> None:
    local.start_copies(3)
    local.start(2)
    assert len(set(local.run(where, shards(8), lambda *_: None))) == 2
    local.start(1)
    assert len(set(local.run(where, shards(4), lambda *_: None))) == 1


def test_gigatoken_loaded_for_one_thread_starts_none(tmp_path: Path) -> None:
    """As `single_threaded` says."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(["abba abba"], trainers.BpeTrainer(vocab_size=260, initial_alphabet=alphabet, show_progress=False))
    process = Child(threads=1)
    try:
        assert process.ask(encoded, tokenizer.to_str()) == (tokenizer.encode("abba").ids * 4, False)
    finally:
        process.stop()
        process.join()


@dataclass(frozen=True)
class Sent:
    text: str


@dataclass(frozen=True)
class Thing(Sent):
    sent_once: ClassVar = True


_noted: list[tuple[Sent, str | None, str | None]] = []


def note(thing: Sent) -> None:
    _noted[:] = [(thing, os.environ.get("FTCLI_TEST_VARIABLE"), os.environ.get("OMP_NUM_THREADS"))]


def noted() -> tuple[int, str | None, str | None]:
    return len(_noted[0][0].text), *_noted[0][1:]


def is_noted(things: list[Sent]) -> bool:
    return things[0] is _noted[0][0]


def panic() -> None:
    raise BaseException("panic")  # noqa: TRY002 - as pyo3 raises a panic in Rust


# -- the reserve -------------------------------------------------------------------------------------------------------


def test_a_reserve_gets_the_variables_of_the_time_when_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTCLI_TEST_VARIABLE", "before")
    warm_worker.prepare()
    monkeypatch.setenv("FTCLI_TEST_VARIABLE", "after")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    taken = warm_worker.take(3)

    assert taken is not None
    assert warm_worker.take(3) is None
    assert taken.ask(variables, "FTCLI_TEST_VARIABLE", "OMP_NUM_THREADS") == ["after", "3"]
    taken.stop()
    taken.join()


def test_a_reserve_has_done_what_was_begun_when_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread and the variables of then; what fails is nobody's, until it is asked for."""
    monkeypatch.setenv("FTCLI_TEST_VARIABLE", "then")
    warm_worker.prepare()
    warm_worker.begin(partial(note, Thing("x" * 10_000_000)))  # more than a pipe holds, while the reserve still imports
    warm_worker.begin(panic)
    taken = warm_worker.take(2)
    assert taken is not None
    try:
        assert taken.ask(noted) == (10_000_000, "then", "1")
        with pytest.raises(RuntimeError, match="panic"):
            taken.ask(panic)
    finally:
        taken.stop()
        taken.join()
    warm_worker.begin(panic)  # nobody is there


@pytest.mark.parametrize("once", [True, False])
def test_what_is_sent_once_is_the_same_thing_in_every_call_and_every_copy(once: bool) -> None:
    thing = Thing("abc") if once else Sent("abc")
    process = Child(threads=1)
    try:
        process.ask(partial(note, thing))
        assert process.ask(partial(is_noted, [thing])) is once
        copy = process.copy()
        assert copy is not None
        assert copy.ask(partial(is_noted, [thing])) is once
        assert copy.ask(partial(is_noted, [Thing("abc")])) is False  # equal, and another one
        copy.stop()
        copy.join()
    finally:
        process.stop()
        process.join()


@pytest.mark.fault
def test_a_reserve_that_dies_while_it_is_sent_a_tokenizer_holds_nobody_up() -> None:
    warm_worker.prepare()
    os.kill(warm_worker._ready[0].pid, signal.SIGSTOP)  # it takes nothing in
    warm_worker.begin(partial(note, Thing("x" * 10_000_000)))
    os.kill(warm_worker._ready[0].pid, signal.SIGKILL)
    taken = warm_worker.take(1)
    assert taken is not None
    with pytest.raises(ChildDied, match="by SIGKILL"):
        taken.ask(noted)
    taken.join()


@pytest.mark.fault
def test_a_reserve_that_takes_nothing_in_is_dropped() -> None:
    warm_worker.prepare()
    pid = warm_worker._ready[0].pid
    os.kill(pid, signal.SIGSTOP)
    warm_worker.begin(partial(note, Thing("x" * 10_000_000)))
    warm_worker.drop()
    assert not psutil.pid_exists(pid)


def test_a_reserve_that_nobody_took_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_worker.prepare()
    (pid,) = [process.pid for process in psutil.Process().children()]

    warm_worker.drop()

    assert not psutil.pid_exists(pid)
    assert warm_worker.take(1) is None


@pytest.mark.fault
def test_a_reserve_that_died_says_so_when_it_is_asked() -> None:
    warm_worker.prepare()
    os.kill(warm_worker._ready[0].pid, signal.SIGKILL)
    taken = warm_worker.take(1)

    assert taken is not None
    with pytest.raises(ChildDied, match="by SIGKILL"):
        taken.ask(variables, "PATH")
    taken.join()


@pytest.mark.parametrize(
    ("words", "rank", "wanted"),
    [
        (["tokenize", "a.jsonl"], "", True),
        (["tokenize", "a.jsonl"], "0", True),
        (["tokenize", "a.jsonl"], "1", False),
        (["tokenize"], "", False),
        (["tokenize", "--help"], "", False),
        (["verify", "tokenize"], "", False),
        ([], "", False),
    ],
)
def test_only_a_command_that_works_has_a_reserve(words: list[str], rank: str, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if rank:
        monkeypatch.setenv("RANK", rank)
    else:
        monkeypatch.delenv("RANK", raising=False)

    assert warm_worker.belongs(words) is wanted


def test_a_command_that_is_refused_leaves_no_process_behind(tmp_path: Path) -> None:
    """Whoever reads its standard error to the end would wait for one that still imports."""
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "ftcli", "tokenize", "--no-such-option"], stdout=said, stderr=said, start_new_session=True
        )
        code = process.wait(PATIENCE)
    left = [each.pid for each in psutil.process_iter() if session_of(each.pid) == process.pid]

    assert code == 2
    assert "--no-such-option" in (tmp_path / "said").read_text()
    assert left == []
