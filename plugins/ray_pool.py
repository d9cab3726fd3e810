"""The workers of one run on a Ray cluster, as its driver knows them: who has come, who is asked, who is gone."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcli.errors import FtcliError, PublishError, WorkerDied

from .ray_cluster import Cluster
from .ray_worker import Entered, Marker, Sent, Worker

START_SECONDS = 10.0
"""Those that are all wanted are waited for so long since they were asked for; then it goes on with those that have come. Ray may have counted the
CPUs of a node that has just died: whoever was meant for it never comes."""
SEE_SECONDS = 60.0
"""A node looks so long for the marker: NFS may remember for 60 s (acdirmax) that a folder was not there."""
EMPTY_SECONDS = 600.0
"""Without one worker for so long, nobody is waited for any more."""
POLL_SECONDS = 0.5
FRUITLESS = 8
"""Replacements in a row that may be lost before they have entered: one at once, the others each a longer pause apart, some 30 s in all."""
PAUSE_SECONDS = 5.0
"""The longest such pause."""
AGAIN = "Run the same command again: finished shards are kept."


@dataclass(eq=False, slots=True)
class Remote:
    """One actor."""

    actor: Any
    entering: Any
    """Reference to the `Entered` that it will send; None once it is here."""
    node: str = ""
    pid: int = 0
    until: float = 0.0
    """It is waited for until then (time.monotonic())."""

    def ask(self, sent: Sent, *arguments: Any) -> Any:
        """Call a function in it; gives the stream for `following`."""
        return self.actor.work.options(num_returns="streaming").remote(sent, arguments)


def following(stream: Any) -> tuple[str, Any]:
    """What comes next in a stream, as `Worker.work` says it; ("died", None) when Ray says that the worker is gone."""
    import ray

    try:
        kind, payload = ray.get(next(stream))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ray.exceptions.RayError):  # what it asked for was on a node that is gone
            return "died", None
        return "failed", WorkerDied(f"a worker of the Ray cluster failed: {_last_line(error)}", AGAIN)
    except (ray.exceptions.RayError, StopIteration):
        return "died", None
    return kind, payload


class Pool:
    """Actors that Ray places on its nodes.

    Ray restarts none: a method called on an actor that waits for its place would wait with it, while other workers have nothing to do. One
    that is gone is replaced by a new one, which gets work when it has entered.
    """

    def __init__(self) -> None:
        self.address = "auto"
        self.threads = 1
        self.workers: list[Remote] = []
        self.over = threading.Event()
        self.arrived = False
        """Whether a worker has come since the first was asked for."""
        self._fruitless = 0
        """Looks in a row at which a worker was lost before it had entered."""
        self._cluster: Cluster | None = None
        self._marker: Marker | None = None
        self._loads: list[Sent] = []
        self._numbers = itertools.count(1)
        self._run = os.urandom(16).hex()

    @property
    def cluster(self) -> Cluster:
        """The connection, made at the first use."""
        if self._cluster is None:
            self._cluster = Cluster(self.address)
        return self._cluster

    def resize(self, workers: int) -> None:
        """So many workers, without waiting for them."""
        self.cluster  # noqa: B018 - a fresh connection after `end`
        self.over.clear()
        self._fruitless = 0
        while len(self.workers) < workers:
            self.workers.append(self._new())
        surplus = self.workers[workers:]
        del self.workers[workers:]
        _kill(surplus)

    def end(self) -> None:
        """Kill the workers; whoever waits for them raises."""
        self.over.set()
        self.arrived = False
        workers, self.workers = self.workers, []
        _kill(workers)
        self._unmark()

    def _unmark(self) -> None:
        marker, self._marker = self._marker, None
        if marker is not None:
            with suppress(OSError):
                marker.path.unlink()

    def disconnect(self) -> None:
        """Nobody may be inside of a call to Ray."""
        self._loads.clear()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def send(self, function: Callable[..., Any]) -> Sent:
        """Put a function into the object store."""
        import ray

        self.cluster  # noqa: B018
        return Sent(next(self._numbers), (ray.put(pickle.dumps(function)),))

    def load(self, sent: Sent) -> None:
        """What every worker that comes later does as well, before it gets work."""
        self._loads.append(sent)

    def mark(self, directory: Path) -> None:
        """From now on a worker has to see this directory; those that are here show it.

        Raises:
            PublishError: one does not.
        """
        folder = directory.resolve() / "tmp"  # wiped with everything else that is not finished
        token = os.urandom(16).hex()
        self._unmark()
        self._marker = Marker(folder / f"every-node-sees-{token}", token, SEE_SECONDS)  # parts share the folder
        self._marker.write()
        for worker in self.workers:
            if worker.entering is None:
                worker.until = time.monotonic() + SEE_SECONDS + START_SECONDS
            worker.entering = worker.actor.enter.remote(self._marker, [])
        self.gather()

    def replace(self, worker: Remote) -> None:
        """It died, or its process did."""
        _kill([worker])
        if worker in self.workers and not self.over.is_set():
            self.workers[self.workers.index(worker)] = self._new()

    def gather(self) -> list[Remote]:
        """The workers that are here, when nobody is waited for any more.

        Raises:
            WorkerDied: there are none for a long time.
        """
        begun = time.monotonic()
        while True:
            here = [worker for worker in self.workers if worker.entering is None]
            awaited = any(worker.entering is not None and time.monotonic() <= worker.until for worker in self.workers)
            if not awaited and (here or not self.workers):
                return here
            self.look([], begun if not here else None)

    def look(self, streams: Iterable[Any], since: float | None = None) -> list[Any]:
        """Those of the streams that have something, after POLL_SECONDS at most; whoever came meanwhile is let in.

        Args:
            since: nobody has been here since then (time.monotonic); None: somebody is.

        Raises:
            WorkerDied: nobody comes, or `end` was called.
            PublishError: one came that does not see the marked directory.
        """
        if self.over.is_set():
            raise WorkerDied("the workers were stopped", AGAIN)
        if since is not None and time.monotonic() - since > EMPTY_SECONDS:
            raise WorkerDied(
                f"no worker of the Ray cluster at {self.address} has started for {EMPTY_SECONDS:.0f} s", f"Check `ray status`. {AGAIN}"
            )
        streams = list(streams)
        found = _wait([*streams, *(worker.entering for worker in self.workers if worker.entering is not None)])
        came = [worker for worker in self.workers if worker.entering is not None and worker.entering in found]
        lost = [error for worker in came if (error := self._let_in(worker)) is not None]
        if came and len(lost) < len(came):
            self._fruitless = 0
        elif lost:
            self._fruitless += 1
            self._pause(lost[-1])
        return [stream for stream in streams if stream in found]

    def name(self, worker: Remote) -> str:
        """Of its node."""
        return "" if self._cluster is None else self._cluster.name(worker.node)

    def placed(self, error: Exception, worker: Remote) -> Exception:
        """An error that a worker sent; one for people names the node where it is another than this one."""
        if not isinstance(error, FtcliError) or self._cluster is None or worker.node == self._cluster.node:
            return error
        return type(error)(f"{error.message} (on the node {self.name(worker)})", error.hint)

    def _new(self) -> Remote:
        import ray

        options = {"num_cpus": self.threads, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        actor = ray.remote(Worker).options(**options).remote(self._run, self.threads)
        return Remote(actor, actor.enter.remote(self._marker, list(self._loads)), until=time.monotonic() + START_SECONDS)

    def _pause(self, error: Exception) -> None:
        """Before the next of those that are lost before they have entered.

        Raises:
            WorkerDied: it was the last.
        """
        if self._fruitless > FRUITLESS and any(worker.entering is None for worker in self.workers):
            _kill([worker for worker in self.workers if worker.entering is not None])  # it goes on with those that are here
            self.workers = [worker for worker in self.workers if worker.entering is None]
            self._fruitless = 0
        elif self._fruitless > FRUITLESS:
            self.arrived = False  # nobody is here: it is no fault of what they were asked, as of an engine
            raise WorkerDied(
                f"the Ray cluster at {self.address} cannot start a worker: {FRUITLESS} replacements in a row were lost, the last one with: {_last_line(error)}",
                f"Check `ray status` and the head node's log (/tmp/ray/session_latest/logs/gcs_server.out). {AGAIN}",
            )
        elif self._fruitless > 1:
            self.over.wait(min(PAUSE_SECONDS, POLL_SECONDS * 2 ** (self._fruitless - 2)))

    def _let_in(self, worker: Remote) -> Exception | None:
        """What it was lost with, when it was and has been replaced."""
        import ray

        try:
            entered: Entered = ray.get(worker.entering)
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayTaskError) or "creation task" in str(error):  # it would fail again
                raise WorkerDied(
                    f"a worker of the Ray cluster at {self.address} cannot start: {_last_line(error)}",
                    "Install the same version of ftcli on all nodes.",
                ) from error
            self.replace(worker)
            lost: Exception = error
            return lost
        worker.entering, worker.node, worker.pid = None, entered.node, entered.pid
        self.arrived = True
        if not entered.sees and (marker := self._marker) is not None:  # None: `end`, from another thread, has taken it away
            raise PublishError(
                f"the node {self.name(worker)} does not see {marker.path.parent.parent}, which this machine created",
                "Put --output-dir on a file system that every node sees at the same path (NFS, Lustre …), or remove the node: run `ray stop` there.",
            )
        return None


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].strip()


def _wait(waitables: list[Any]) -> list[Any]:
    import ray

    if not waitables:
        time.sleep(POLL_SECONDS)
        return []
    found: list[Any] = ray.wait(waitables, num_returns=len(waitables), timeout=0)[0]
    return found or list(ray.wait(waitables, num_returns=1, timeout=POLL_SECONDS)[0])


def _kill(workers: Sequence[Remote]) -> None:
    import ray

    if ray.is_initialized():
        for worker in workers:
            with suppress(ray.exceptions.RayError):  # RaySystemError "Actor creation cancelled": it was gone before it was registered
                ray.kill(worker.actor, no_restart=True)
