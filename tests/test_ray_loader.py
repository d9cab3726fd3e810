"""The process of a machine that loads for all workers of a run there: shared, copied, replaced when it dies, gone when nobody needs it."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from threading import Thread
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ftcli.plugins import ray_host, ray_loader
from ftcli.plugins.ray_host import Host
from ftcli.plugins.ray_worker import Died, Sent, Worker

from ftcli.core.alarm import within
from test_copies import hold_a_lock, parent_of
from test_executors import die, recall, remember, shards
from timing import FOR_EVER, PATIENCE, until

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="copies are for Linux")
NUMBERS = iter(range(1, 1_000_000))


class Crew:
    """Workers of one run, as actors on one machine would be; each has a process, so here only their own are seen."""

    def __init__(self) -> None:
        self.run = os.urandom(16).hex()
        self.workers: list[Worker] = []

    def hire(self) -> Worker:
        self.workers.append(Worker(self.run, 1))
        return self.workers[-1]

    def dismiss(self, worker: Worker) -> None:
        """As if Ray's process had been killed: nothing is said to anybody."""
        if worker._copy is not None:
            worker._copy.pipe.close()
        worker._leave()
        if worker._own is not None:
            worker._own.pipe.close()
            worker._own.join()
        self.workers.remove(worker)

    @property
    def loaders(self) -> list[psutil.Process]:
        """Those of this run: their first thread answers where the workers are connected."""
        peers = {_peer(worker._host) for worker in self.workers if worker._host is not None}
        return [psutil.Process(pid) for pid in peers]


def _peer(host: Host) -> int:
    """Who reads at the other end; the kernel says who began to listen, which has ended."""
    host._pipe.send(("copy",))
    pid = host._pipe.recv()
    os.close(ray_host.recv_handle(host._pipe))
    return psutil.Process(pid).parent().ppid()


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    ray = SimpleNamespace(get=lambda ref: ref, get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "a"))
    monkeypatch.setitem(__import__("sys").modules, "ray", ray)
    made = Crew()
    yield made
    for worker in made.workers[:]:
        made.dismiss(worker)


def sent(function: Callable[..., Any]) -> Sent:
    return Sent(next(NUMBERS), (pickle.dumps(function),))


def asked(worker: Worker, what: Sent, *arguments: Any) -> Any:
    """The last that the worker tells."""
    kind, payload = list(worker.work(what, arguments))[-1]
    assert kind == "done", (kind, payload)
    return payload


def test_workers_of_a_machine_work_in_copies_of_one_process_that_loads_once(crew: Crew) -> None:
    first, second = crew.hire(), crew.hire()
    load, pid = sent(partial(remember, "once")), sent(os.getpid)

    assert [asked(worker, load) for worker in (first, second)] == [None, None]
    assert asked(first, pid) == asked(second, pid)
    pids = [asked(worker, sent(parent_of), shards(1)[0]) for worker in (first, second)]
    words = [asked(worker, sent(recall), shards(1)[0])[0] for worker in (first, second)]

    assert len({own for own, _ in pids}) == 2
    assert words == ["once", "once"]
    assert len(crew.loaders) == 1


def test_one_that_comes_later_is_served_without_a_word_of_what_was_loaded(crew: Crew) -> None:
    load = sent(partial(remember, "before"))
    asked(crew.hire(), load)
    late = crew.hire()
    late.enter(None, [Sent(load.number, ())])  # nothing to fetch

    assert asked(late, sent(recall), shards(1)[0])[0] == "before"


def test_what_has_threads_is_loaded_by_every_worker_for_itself(crew: Crew) -> None:
    first, second = crew.hire(), crew.hire()
    for load in (sent(partial(remember, "each")), sent(hold_a_lock)):
        asked(first, load), asked(second, load)

    found = [asked(worker, sent(recall), shards(1)[0]) for worker in (first, second)]

    assert [word for word, _ in found] == ["each", "each"]
    assert {pid for _, pid in found} == {first._own.pid, second._own.pid}  # type: ignore[union-attr]


@pytest.mark.fault
def test_a_loader_that_is_killed_is_replaced_and_loads_again(crew: Crew) -> None:
    first, second = crew.hire(), crew.hire()
    load = sent(partial(remember, "again"))
    asked(first, load), asked(second, load)
    (loader,) = crew.loaders
    loader.kill()
    psutil.wait_procs([loader])

    words = [asked(worker, sent(recall), shards(1)[0])[0] for worker in (first, second)]

    assert words == ["again", "again"]
    assert crew.loaders != [loader]
    assert len(crew.loaders) == 1


@pytest.mark.fault
def test_a_process_that_is_killed_after_it_has_loaded_loads_again(crew: Crew) -> None:
    worker = crew.hire()
    asked(worker, sent(partial(remember, "again")))
    original = asked(worker, sent(os.getpid))
    os.kill(original, signal.SIGKILL)

    assert asked(worker, sent(recall), shards(1)[0])[0] == "again"
    assert asked(worker, sent(os.getpid)) != original


@pytest.mark.fault
def test_an_abort_while_it_loads_is_told_everyone_and_the_next_load_works(crew: Crew) -> None:
    first, second = crew.hire(), crew.hire()
    asked(first, sent(partial(remember, "kept")))
    abort = sent(os.abort)

    for worker in (first, second):
        ((kind, died),) = worker.work(abort, ())
        assert (kind, died.how, died.killed, died.lost) == ("died", "by SIGABRT", False, True)

    assert asked(second, sent(recall), shards(1)[0])[0] == "kept"


@pytest.mark.fault
def test_a_kill_while_it_loads_is_told_and_the_same_load_works_when_asked_again(crew: Crew, tmp_path: Any) -> None:
    worker, load = crew.hire(), sent(partial(kill_once, tmp_path))

    ((kind, died),) = worker.work(load, ())

    assert (kind, died.killed) == ("died", True)
    assert asked(worker, load) == "spared"


def kill_once(folder: Any) -> str:
    if not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "spared"


@pytest.mark.fault
def test_a_copy_that_dies_is_named_with_its_signal(crew: Crew, tmp_path: Any) -> None:
    worker = crew.hire()
    *_, (kind, died) = worker.work(sent(partial(die, how="abort", marks=tmp_path)), (shards(3)[2],))

    assert kind == "died"
    assert isinstance(died, Died)
    assert (died.how, died.killed, died.lost) == ("by SIGABRT", False, False)


def hang(_: Any) -> None:
    with within(0.2):
        time.sleep(PATIENCE)


@pytest.mark.fault
def test_a_copy_that_hangs_ends_and_is_no_killed_one(crew: Crew) -> None:
    """So that its shard is rescued, and not made again by the engine that hangs."""
    *_, (kind, died) = crew.hire().work(sent(hang), (0,))

    assert (kind, died.how, died.killed) == ("died", "by SIGALRM, which ends what hangs,", False)


@pytest.mark.fault
def test_the_copy_of_a_worker_that_is_gone_ends_with_it(crew: Crew) -> None:
    worker = crew.hire()
    working = worker.work(sent(tell_and_sleep), (0,))
    _, pid = next(working)
    assert psutil.pid_exists(pid[0])

    crew.dismiss(worker)

    until(lambda: not psutil.pid_exists(pid[0]))


def tell_and_sleep(_: int) -> None:
    from ftcli.core import progress

    progress.report(os.getpid(), 0, 0)
    time.sleep(FOR_EVER)


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Thread]]:
    """A run's word, and its loader as a thread of this process."""
    monkeypatch.setattr(ray_loader, "IDLE_SECONDS", 0.2)
    run = os.urandom(16).hex()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(ray_host._name(run, 1))
    listening.listen()
    thread = Thread(target=ray_loader.serve, args=(listening.detach(), 1), daemon=True)
    thread.start()
    yield run, thread
    until(lambda: not thread.is_alive())


def test_a_loader_ends_when_nobody_is_connected_any_more(serving: tuple[str, Thread]) -> None:
    run, thread = serving
    with closing(Host(run, 1)) as host:
        assert host.load(1, lambda: pickle.dumps(os.getpid)).kind == "done"
        thread.join(1.0)
        assert thread.is_alive()

    until(lambda: not thread.is_alive())


def test_a_loader_answers_nobody_else(serving: tuple[str, Thread], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_loader, "user", lambda _: os.getuid() + 1)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(ray_host._name(serving[0], 1))
        assert stranger.recv(1) == b""


def test_a_loader_of_somebody_else_is_not_talked_to(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_loader, "user", lambda _: os.getuid() + 1)
    worker = crew.hire()

    assert worker._host is None
    assert asked(worker, sent(partial(remember, "alone"))) is None
    assert asked(worker, sent(recall), shards(1)[0])[0] == "alone"
