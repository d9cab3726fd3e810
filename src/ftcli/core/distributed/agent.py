"""The launcher at work: torch's elastic agent starts the ranks; this process forwards signals, watches, and ends those that stall."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from ftcli.core.distributed.launch import AGAIN, Death, Ended, Plan, command, judge
from ftcli.core.distributed.pulse import DUMP, VARIABLE, Beat, End, read, stack_file
from ftcli.core.distributed.signals import WATCHED, heeded, hung_up, put_back
from ftcli.core.distributed.stalls import LOOK_SECONDS, Stall, Stalls
from ftcli.errors import RankError

INTERFACE = "GLOO_SOCKET_IFNAME"
"""gloo takes the address of the machine's own name otherwise; where that is the loopback's, ranks of several machines wait for each other for ever."""
MEETING_SECONDS = 20.0
DUMP_SECONDS = 5.0
"""A rank writes its stack in the signal's handler, at once; one that cannot is stuck in the kernel."""


class Agent:
    """One job on this machine.

    Args:
        words: the command of every rank, behind `ftcli`.
        limit: seconds without progress that end the job.
        stacks: folder that gets every rank's stack when it is ended so.
        note: gets a sentence when the other machines are long in coming.
    """

    def __init__(self, plan: Plan, words: tuple[str, ...], limit: float, stacks: Path, note: Callable[[str], None]) -> None:
        self.plan = plan
        self.words = words
        self.stacks = stacks
        self._note = note
        self._stalls = Stalls(limit)
        self._asked: str | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="ftcli-ranks-"))
        self._failure: BaseException | None = None

    def run(self) -> Ended:
        """Start the ranks and wait for their end. Has to be called in the main thread, where Python takes signals.

        Raises:
            KeyboardInterrupt: a signal came before there was a rank.
        """
        thread = threading.Thread(target=self._launch, daemon=True, name="torch's agent")
        stall: Stall | None = None
        try:
            with self._signals(), _quiet(), _variables({VARIABLE: str(self._folder), INTERFACE: self._interface()}):
                thread.start()
                before = began = time.monotonic()
                patient = self.plan.nodes > 1
                while thread.is_alive():
                    thread.join(LOOK_SECONDS)
                    now = time.monotonic()
                    if patient and now - began > MEETING_SECONDS:
                        patient = False
                        if not self._beats():
                            self._note(
                                f"waiting for all {self.plan.nodes} machines at {self.plan.endpoint}; no rank starts before all have joined"
                            )
                    if stall is None:
                        stall = self._stalls.look(now - before, self._beats(), self._ends())
                        if stall is not None:
                            stall = Stall(stall.ranks, f"{stall.message}. {self._end_all()}")
                    before = now
            ends = self._ends()
            has_first = 0 in {*ends, *self._beats()} or not ends
            return judge(ends, self._deaths(), stall, self._asked, has_first=has_first)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _interface(self) -> str | None:
        """What the user has said counts."""
        return os.environ.get(INTERFACE) or self.plan.interface

    def _launch(self) -> None:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        # the terminal's bar is drawn by the rank that has it for itself; whatever goes through a file comes in whole lines
        first = Std.NONE if os.isatty(2) else Std.ERR
        plan = self.plan
        try:
            config = LaunchConfig(
                min_nodes=plan.nodes,
                max_nodes=plan.nodes,
                nproc_per_node=plan.ranks,
                run_id=plan.job,
                role="rank",
                rdzv_backend=plan.backend,
                rdzv_endpoint=plan.endpoint,
                rdzv_configs=dict(plan.options),
                local_addr=plan.address,
                max_restarts=0,
                signals_to_handle="",
                log_line_prefix_template="[${role_name} ${rank}] ",
                logs_specs=DefaultLogsSpecs(
                    str(self._folder / "logs"), tee={rank: Std.ERR if rank else first for rank in range(plan.ranks)}
                ),
            )
            elastic_launch(config, sys.executable)(*command(self.words))
        except BaseException as error:  # noqa: BLE001 - it is judged by the main thread
            self._failure = error

    def _deaths(self) -> list[Death]:
        """Raises whatever else than a rank's death has ended torch's agent."""
        if self._failure is None:
            return []
        from torch.distributed import DistError
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous import RendezvousError

        if isinstance(self._failure, RendezvousError | DistError) and {*self._beats(), *self._ends()}:
            raise RankError(
                "lost the connection to the other machines of the job: the command or a rank on one of them has ended",
                f"See the logs of the other machines for the cause. {AGAIN}",
            ) from self._failure
        if isinstance(self._failure, RendezvousError | DistError):
            raise RankError(
                f"the machines of the job did not connect to each other at {self.plan.endpoint}: {str(self._failure).strip().splitlines()[0]}",
                "Check that the command runs on every machine with the same --rdzv-endpoint and --nnodes, and that the port is free and open on that host.",
            ) from self._failure
        if not isinstance(self._failure, ChildFailedError):
            raise self._failure
        return [Death(rank, failure.pid, failure.exitcode) for rank, failure in sorted(self._failure.failures.items())]

    def _beats(self) -> dict[int, Beat]:
        return self._read("beat", Beat)

    def _ends(self) -> dict[int, End]:
        return self._read("end", End)

    def _read(self, name: str, kind: type[Any]) -> dict[int, Any]:
        found = (read(path, kind) for path in self._folder.glob(f"{name}-*.json"))
        return {record.rank: record for record in found if record is not None}

    def _end_all(self) -> str:
        """Let every rank write its stack, and end them all; says where the stacks are."""
        ends = self._ends()
        live = {rank: beat.pid for rank, beat in self._beats().items() if rank not in ends}
        for pid in live.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, DUMP)
                os.kill(pid, signal.SIGCONT)  # a stopped one takes its signals when it goes on
        files = {rank: stack_file(self._folder, rank) for rank in live}
        deadline = time.monotonic() + DUMP_SECONDS
        while time.monotonic() < deadline and not all(path.exists() and path.stat().st_size for path in files.values()):
            time.sleep(LOOK_SECONDS)
        self.stacks.mkdir(parents=True, exist_ok=True)
        for rank, path in files.items():
            if path.exists():
                shutil.copyfile(path, stack_file(self.stacks, rank))
        for rank in sorted(live):  # rank 0 first: it would write into the run's report that it has lost one that is ended here
            with contextlib.suppress(ProcessLookupError):
                os.kill(live[rank], signal.SIGKILL)
        return f"The stacks of all ranks are in {self.stacks}"

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._forward) for number in heeded(WATCHED)}
        try:
            yield
        finally:
            put_back(before)

    def _forward(self, number: int, _: FrameType | None) -> None:
        """The ranks have sessions of their own, so that a Ctrl-C reaches them through here only."""
        if number == signal.SIGHUP:
            hung_up()
        ranks = psutil.Process().children()
        if not ranks:
            raise KeyboardInterrupt
        self._asked = signal.Signals(number).name
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.send_signal(number)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's agent reports every rank's end with a table and a traceback of its own; the ranks have said it better."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _variables(values: dict[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
