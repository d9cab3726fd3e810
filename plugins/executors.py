"""The built-in executor: shards on this machine, in worker processes."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from ftcli import hookimpl
from ftcli.contracts import Executor, Rescue
from ftcli.errors import WorkerDied
from ftcli.hookspecs import Register
from ftcli.machine import usable_cores
from ftcli.records import ShardPlan

if TYPE_CHECKING:
    from ftcli.core.processes.child import Child, ChildDied
    from ftcli.core.processes.hang_detector import HangDetector

MEMORY = "The system kills a process when memory runs out: use fewer --num-proc."
HUNG = "An engine may hang, or it waited for what never came: a thread beyond ulimit -u, a lock, a server that does not answer."
AGAIN = "Run the same command again: finished shards are kept."

Work = tuple[Callable[[ShardPlan], Any], ShardPlan]


@dataclass(frozen=True, slots=True)
class _Run:
    """The shards of a run, and who has which."""

    waiting: deque[Work]
    busy: dict[Any, tuple[Child, deque[Work]]]
    """By its pipe, a worker with what it was given and has not answered: the one before the last is only being finished (`ftcli.core.deferred`)."""
    on_progress: Callable[[int, int, int, str], None]
    rescue: Rescue | None
    still: HangDetector

    def give(self, worker: Child) -> None:
        """The next shard, if there is one; a worker without any is no longer listened to."""
        works = self.busy.setdefault(worker.pipe, (worker, deque()))[1]
        if self.waiting:
            works.append(self.waiting.popleft())
            worker.call(*works[-1], ahead=True)
        elif not works:
            del self.busy[worker.pipe]


class Local:
    """Always worker processes, also one: an engine that crashes then ends a worker and not the run.

    A pipe each, so that a worker that is killed leaves no lock behind that another one waits for, and so that it is known which shard it had.

    Where the engine starts no thread, workers are copies of one process that loads it for all of them, and that does no work itself.
    """

    name = "local"

    def __init__(self) -> None:
        self._workers: list[Child] = []
        self._original: Child | None = None
        """What workers are copies of."""
        self._wanted = 0
        self._threads = 1
        self._reached: dict[int, tuple[int, str]] = {}
        """Worker's pid → rows of its shard that it has told of, and the last file."""

    def start(self, workers: int) -> None:
        """See `ftcli.contracts.Executor`. More may be started than are needed in the end; `start` again ends what is too many."""
        self._wanted = workers
        self._threads = max(1, usable_cores() // workers)
        if self._original is None:
            self._fill()
        surplus = self._workers[workers:]
        del self._workers[workers:]
        _end(surplus)

    def start_copies(self, workers: int) -> None:
        """See `ftcli.contracts_executor.Copying`."""
        if self._workers or self._original is not None:
            self.start(workers)
            return
        self._wanted, self._threads = workers, 1
        self._original = self._fresh()

    def _fill(self) -> None:
        """As many workers as are wanted; copies, where there is something to copy."""
        while len(self._workers) < self._wanted:
            self._workers.append(self._new())

    def _new(self) -> Child:
        if self._original is None:
            return self._fresh()
        from ftcli.core.processes.child import ChildDied

        try:
            copy = self._original.copy()
        except ChildDied:
            _end([self._original])
            self._original = None
            return self._fresh()
        if copy is not None:
            return copy
        if self._workers:  # copies of it, perhaps: how they end it can tell only while it does no work
            return self._fresh()
        original, self._original = self._original, None  # it works itself, beside fresh ones
        return original

    def _fresh(self) -> Child:
        from ftcli.core.processes import warm_worker
        from ftcli.core.processes.child import Child

        return warm_worker.take(self._threads) or Child(warm_worker.PRELOAD, self._threads)

    def each(self, function: Callable[[], Any]) -> list[Any]:
        from ftcli.core.processes.child import ChildDied

        failed: Exception | None = None
        workers, answers = self._workers, []
        if self._original is not None and not workers:
            return [self._ask_original(function)]
        for worker in workers:
            worker.call(function)
        for place, worker in enumerate(workers):
            try:
                answers.append(worker.answer())
            except ChildDied as died:
                _end([worker])
                if workers is self._workers:  # else `close`, from another thread, has ended it
                    workers[place] = self._new()
                failed = _unready(worker, died)
            except Exception as error:  # noqa: BLE001 - the others' answers must not be left in their pipes
                failed = error
        if failed is not None:
            raise failed
        return answers

    def _ask_original(self, function: Callable[[], Any]) -> Any:
        from ftcli.core.processes.child import ChildDied

        original = self._original
        assert original is not None
        try:
            return original.ask(function)
        except ChildDied as died:
            _end([original])
            if self._original is original:  # else `close`, from another thread, has ended it
                self._original = self._fresh()
            raise _unready(original, died) from None

    def run(
        self,
        function: Callable[[ShardPlan], Any],
        shards: Sequence[ShardPlan],
        on_progress: Callable[[int, int, int, str], None],
        rescue: Rescue | None = None,
    ) -> Iterator[Any]:
        """See `ftcli.contracts.Executor`. Leaving early, or an error, ends the workers: nothing goes on behind anybody's back."""
        from ftcli.core.processes import hang_detector

        now = _Run(deque((function, shard) for shard in shards), {}, on_progress, rescue, hang_detector.HangDetector())
        self._fill()
        try:
            for worker in self._workers[: len(shards)]:
                now.give(worker)
            while now.busy:
                for ready in wait(list(now.busy), hang_detector.LOOK_SECONDS):
                    yield from self._heard(*now.busy[ready], now)
                now.still.look(worker.pid for worker, _ in now.busy.values())
        except BaseException:
            self.close()
            raise

    def _heard(self, worker: Child, works: deque[Work], now: _Run) -> Iterator[Any]:
        """Take a worker's message, give it the next shard where it can begin one, and yield what was done."""
        from ftcli.core.processes.child import ChildDied

        now.still.heard(worker.pid)
        try:
            kind, payload = worker.receive()
        except ChildDied as died:
            *finishing, (_, shard) = works
            now.waiting.extendleft([(self._rescued(worker, died, shard, now.rescue), shard), *reversed(finishing)])
            del now.busy[worker.pipe]
            _end([worker])
            self._workers[self._workers.index(worker)] = worker = self._new()
            now.give(worker)
            return
        if kind == "progress":
            rows, _ = self._reached.get(worker.pid, (0, ""))
            self._reached[worker.pid] = rows + payload[1], payload[3]
            now.on_progress(*payload)
        elif kind == "free":
            self._reached.pop(worker.pid, None)
            now.give(worker)
        else:
            works.popleft()
            if not works:
                self._reached.pop(worker.pid, None)
                now.give(worker)
            yield payload

    def _rescued(self, worker: Child, died: ChildDied, shard: ShardPlan, rescue: Rescue | None) -> Callable[[ShardPlan], Any]:
        """What does the shard instead.

        Raises:
            WorkerDied: nothing does.
        """
        rows, file = self._reached.pop(worker.pid, (0, ""))
        file = file or (shard.pieces[0].path if shard.pieces else "no file")
        killed = died.signal is signal.SIGKILL
        cause = MEMORY if killed else HUNG if died.signal is signal.SIGALRM else "An engine may have crashed."
        error = WorkerDied(
            f"the worker process {worker.pid} ended {died.how} in shard {shard.index}, after {rows:,} of its rows, in {file}",
            f"{cause} {AGAIN}",
        )
        if killed or rescue is None:
            raise error
        return rescue(error, shard)

    def close(self) -> None:
        workers, self._workers = self._workers, []
        original, self._original = self._original, None
        _end(workers)
        _end([original] if original is not None else [])


def _unready(worker: Child, died: ChildDied) -> WorkerDied:
    hint = f"{MEMORY} {AGAIN}" if died.signal is signal.SIGKILL else "An engine may have crashed: --tokenizer-engine hf."
    return WorkerDied(f"the worker process {worker.pid} ended {died.how} while it got ready", hint)


def _end(workers: Sequence[Child]) -> None:
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join()


@hookimpl
def register_executors(register: Register[type[Executor]]) -> None:
    register("local", Local)
