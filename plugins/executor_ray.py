"""The executor `ray`: shards on the machines of a Ray cluster, made again wherever a worker or a machine dies."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcli import hookimpl
from ftcli.contracts import Executor, Rescue
from ftcli.errors import WorkerDied
from ftcli.hookspecs import Register
from ftcli.records import Choice, ShardPlan
from ftcli.settings import Settings

from .ray_cluster import require_ray
from .ray_pool import AGAIN, Pool, Remote, following
from .ray_worker import Died, Sent

KILLS = 20
"""A shard is made again after its worker was killed, but not for ever: it may be the one that takes all memory."""

Work = tuple[Sent, ShardPlan]


@dataclass(slots=True)
class _Told:
    """What the attempts at a shard have told of their progress: what is made again is not counted again."""

    counted: list[int] = field(default_factory=lambda: [0, 0, 0])
    now: list[int] = field(default_factory=lambda: [0, 0, 0])
    file: str = ""

    def more(self, told: tuple[int, int, int, str]) -> tuple[int, int, int, str]:
        """What no attempt before has told."""
        self.file = told[3] or self.file
        self.now = [old + new for old, new in zip(self.now, told[:3], strict=True)]
        size, rows, tokens = (max(0, now - old) for now, old in zip(self.now, self.counted, strict=True))
        self.counted = [max(pair) for pair in zip(self.now, self.counted, strict=True)]
        return size, rows, tokens, told[3]


class Ray:
    """Ray places the workers and notices who is gone; the queue is here. Results are files in the shared directory, only their records travel."""

    name = "ray"

    def __init__(self) -> None:
        require_ray()
        self._pool = Pool()
        self._inside = threading.Lock()
        """Held by `each`, which another thread may be in: the connection stays until it has left."""

    def connect(self, settings: Settings) -> Choice:
        """See `ftcli.contracts.Distant`."""
        self._pool.address = settings.runtime.ray_address
        self._pool.threads = threads = settings.runtime.threads or 1
        nodes = self._pool.cluster.nodes()
        room = sum(int(cpus) // threads for cpus in nodes.values())
        if not room:
            raise WorkerDied(
                f"the Ray cluster at {self._pool.address} has no node with {threads} CPU(s)", "Add one: `ray start --address HOST:PORT`."
            )
        return Choice(room, f"{sum(nodes.values()):.0f} CPUs of {len(nodes)} node(s) of the Ray cluster")

    def start(self, workers: int) -> None:
        """See `ftcli.contracts.Executor`."""
        self._pool.resize(workers)

    def arrived(self) -> bool:
        """See `ftcli.contracts_executor.Arriving`."""
        return self._pool.arrived

    def share(self, directory: Path) -> None:
        """See `ftcli.contracts.Distant`."""
        self._pool.mark(directory)

    def each(self, function: Callable[[], Any]) -> list[Any]:
        """See `ftcli.contracts.Executor`. A worker that is killed over it is replaced, and the others answer."""
        with self._inside:
            sent = self._pool.send(function)
            for _ in range(KILLS):
                if answers := self._answers(sent):
                    break
            else:
                raise WorkerDied("all workers of the Ray cluster were killed while they started", AGAIN)
            if all(answer is None for answer in answers):  # it was called for its effect
                self._pool.load(sent)
        return answers

    def run(
        self,
        function: Callable[[ShardPlan], Any],
        shards: Sequence[ShardPlan],
        on_progress: Callable[[int, int, int, str], None],
        rescue: Rescue | None = None,
    ) -> Iterator[Any]:
        """See `ftcli.contracts.Executor`. A shard whose worker or node is gone goes to the next worker that is free."""
        sent = self._pool.send(function)
        waiting: deque[Work] = deque((sent, shard) for shard in shards)
        busy: dict[Any, tuple[Remote, Work]] = {}
        told = {shard.index: _Told() for shard in shards}
        kills: Counter[int] = Counter()
        empty = time.monotonic()
        try:
            while waiting or busy:
                self._give(waiting, busy, told)
                empty = time.monotonic() if busy else empty
                for stream in self._pool.look(busy, None if busy else empty):
                    worker, work = busy[stream]
                    kind, payload = following(stream)
                    if kind == "progress":
                        on_progress(*told[work[1].index].more(payload))
                        continue
                    del busy[stream]
                    if kind == "done":
                        yield payload
                    elif kind == "failed":
                        raise self._pool.placed(payload, worker)
                    else:
                        error = self._death(worker, payload, work[1], told[work[1].index])
                        if payload is None or payload.lost:
                            self._pool.replace(worker)
                        waiting.appendleft((self._again(error, payload, work, kills, rescue), work[1]))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """See `ftcli.contracts.Executor`."""
        self._pool.end()
        with self._inside:
            self._pool.disconnect()

    def _give(self, waiting: deque[Work], busy: dict[Any, tuple[Remote, Work]], told: dict[int, _Told]) -> None:
        """Work for everyone who is here and has none."""
        at_work = {id(worker) for worker, _ in busy.values()}
        for worker in self._pool.workers:
            if waiting and worker.entering is None and id(worker) not in at_work:
                work = waiting.popleft()
                told[work[1].index].now = [0, 0, 0]
                busy[worker.ask(*work)] = worker, work

    def _answers(self, sent: Sent) -> list[Any]:
        """What everyone who is here answers, without those that were killed."""
        streams = {worker.ask(sent): worker for worker in self._pool.gather()}
        answers: list[Any] = []
        failed: Exception | None = None
        while streams:
            for stream in self._pool.look(streams):
                kind, payload = following(stream)
                if kind == "progress":
                    continue
                worker = streams.pop(stream)
                if kind == "done":
                    answers.append(payload)
                elif kind == "failed":
                    failed = self._pool.placed(payload, worker)
                else:
                    self._pool.replace(worker)
                    if payload is not None and not payload.killed:
                        failed = WorkerDied(
                            f"the worker process {payload.pid} on the node {self._pool.name(worker)} ended {payload.how} while it started",
                            "The tokenization engine may have crashed: try --tokenizer-engine hf.",
                        )
        if failed is not None:
            raise failed
        return answers

    def _death(self, worker: Remote, died: Died | None, shard: ShardPlan, told: _Told) -> WorkerDied:
        file = told.file or (shard.pieces[0].path if shard.pieces else "no file")
        how = "with its Ray worker or its node" if died is None else died.how
        return WorkerDied(
            f"the worker process {died.pid if died else worker.pid} on the node {self._pool.name(worker)} ended {how} in shard {shard.index}, after"
            f" {told.now[1]:,} of its rows, in {file}",
            f"The tokenization engine may have crashed. {AGAIN}",
        )

    def _again(self, error: WorkerDied, died: Died | None, work: Work, kills: Counter[int], rescue: Rescue | None) -> Sent:
        """What does the shard next.

        Raises:
            WorkerDied: nothing does.
        """
        sent, shard = work
        if died is not None and not died.killed:
            if rescue is None:
                raise error
            return self._pool.send(rescue(error, shard))
        kills[shard.index] += 1
        if kills[shard.index] >= KILLS:
            raise WorkerDied(
                f"{error.message}; its workers were killed {KILLS} times", f"Memory may have run out: use a smaller --num-proc. {AGAIN}"
            )
        return sent


@hookimpl
def register_executors(register: Register[type[Executor]]) -> None:
    register("ray", Ray)
