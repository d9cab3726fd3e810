"""`ftcli train` as its own torchrun: the plan of a job, and what its end means."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftcli.core.distributed.pulse import FAILED_ALONE, VARIABLE, End
from ftcli.core.distributed.route import refuse_taken, towards
from ftcli.core.distributed.stalls import Stall
from ftcli.errors import FtcliError, InterruptedRun, RankError, UsageError
from ftcli.records import Machine
from ftcli.settings import Settings

OF_A_LAUNCHER = ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "GROUP_RANK")
"""Variables by which a process knows that torchrun or accelerate started it."""
WORST = (1, 2, RankError.exit_code, 3, 0)
"""Exit codes, the one that says most about the run first."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How torch's launcher is called."""

    ranks: int
    """On this machine."""
    nodes: int
    backend: str
    """static: the machines have their numbers; c10d: they number themselves."""
    endpoint: str
    job: str
    options: Mapping[str, Any] = field(default_factory=dict)
    address: str | None = None
    """Of this machine; None: torch looks it up."""
    interface: str | None = None
    """That the ranks of several machines talk over; None: gloo looks for one."""


def wanted(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Whether this process is to start others, being none of those itself."""
    asked = settings.launch.nproc_per_node is not None or settings.launch.nnodes > 1
    return asked and not environ.get(VARIABLE)


def plan(settings: Settings, machine: Machine, environ: Mapping[str, str]) -> Plan | None:
    """The job; None when it is this process alone.

    Raises:
        UsageError: it cannot be started so, or from here.
    """
    asked = settings.launch
    if inside := [name for name in OF_A_LAUNCHER if name in environ]:
        raise UsageError(
            f"launch.nproc_per_node = {asked.nproc_per_node}, but {inside[0]} shows that a launcher already started this process",
            "Start ftcli without torchrun, or remove --nproc-per-node.",
        )
    gpus = 0 if settings.train.use_cpu else len(machine.gpus)
    ranks = max(1, gpus) if asked.nproc_per_node == "auto" else 1 if asked.nproc_per_node is None else int(asked.nproc_per_node)
    if ranks < 1:
        raise UsageError(f"launch.nproc_per_node = {ranks}: at least one process is needed", "Give 1 or more, or auto.")
    if gpus and ranks > gpus:
        raise UsageError(
            f"launch.nproc_per_node = {ranks}, but {gpus} GPUs are visible ({machine.how.get('gpus', 'counted')})",
            "Give auto, or --use-cpu.",
        )
    if asked.nnodes == 1:
        alone = [name for name in ("node_rank", "rdzv_endpoint") if getattr(asked, name) is not None]
        if alone:
            raise UsageError(f"launch.{alone[0]} is set, but launch.nnodes is 1", "Give --nnodes, or remove it.")
        job = asked.rdzv_id or uuid.uuid4().hex[:12]
        return None if ranks == 1 else Plan(ranks, 1, "c10d", "localhost:0", job, {"is_host": True}, "127.0.0.1")
    if asked.rdzv_endpoint is None or ":" not in asked.rdzv_endpoint:
        raise UsageError(
            f"launch.nnodes = {asked.nnodes}, and launch.rdzv_endpoint is {asked.rdzv_endpoint or 'not set'}",
            "Give the same --rdzv-endpoint HOST:PORT on every machine: one of the machines and a free port on it.",
        )
    if asked.node_rank is not None and asked.node_rank >= asked.nnodes:
        raise UsageError(f"launch.node_rank = {asked.node_rank}, but launch.nnodes is {asked.nnodes}", "Machines are numbered from 0.")
    route = towards(asked.rdzv_endpoint)
    if asked.node_rank == 0:
        refuse_taken(asked.rdzv_endpoint)
    backend, options = ("c10d", {}) if asked.node_rank is None else ("static", {"rank": asked.node_rank})
    return Plan(ranks, asked.nnodes, backend, asked.rdzv_endpoint, asked.rdzv_id or "ftcli", options, route.address, route.interface)


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that ended without a word."""

    rank: int
    pid: int
    exit_code: int
    """As the operating system has it: negative for a signal."""

    @property
    def words(self) -> str:
        how = f"was killed by {signal.Signals(-self.exit_code).name}" if self.exit_code < 0 else f"exited with code {self.exit_code}"
        return f"rank {self.rank} (pid {self.pid}) {how}"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended on this machine.

    Args:
        code: the exit code.
        error: what is left to be said; None when rank 0 has said it.
        told: whether the run's report is written, or another machine's business.
    """

    code: int
    error: FtcliError | None
    told: bool


def judge(ends: Mapping[int, End], deaths: list[Death], stall: Stall | None, asked: str | None, *, has_first: bool) -> Ended:
    """What the ends of this machine's ranks mean together.

    Args:
        asked: signal that the job was stopped by.
        has_first: whether rank 0 is one of them.
    """
    told = not has_first or (0 in ends and ends[0].told)
    said = ends[0].error if 0 in ends else None
    killed = [death for death in deaths if death.rank not in ends]
    own = [end for end in ends.values() if end.error is not None and end.code not in {0, 3} and end.error["code"] != FAILED_ALONE]
    if own:  # the first cause: the others fail because they lose this one
        end = min(own, key=lambda end: end.rank)
        assert end.error is not None
        known = said is not None and said["message"] == end.error["message"]
        error = None if known else _as_error(end.error, f"rank {end.rank}: {end.error['message']}", end.code)
        return Ended(end.code, error, told)
    if stall is not None:
        return Ended(RankError.exit_code, RankError(stall.message, AGAIN), told)
    if killed and asked is not None and all(death.exit_code in UNPREPARED for death in killed):
        return Ended(3, InterruptedRun(f"stopped by {asked} before the first step", AGAIN), told)
    if killed:
        first = next((death for death in killed if death.exit_code != -signal.SIGTERM), killed[0])
        return Ended(
            RankError.exit_code,
            RankError(f"{first.words}, which ended the run", f"{MEMORY} {AGAIN}" if first.exit_code == -signal.SIGKILL else AGAIN),
            told,
        )
    code = min((end.code for end in ends.values()), key=WORST.index, default=1)
    other = next((end.error for end in ends.values() if end.code == code and end.error is not None), None)
    error = None if other is None or said is not None or not has_first else _as_error(other, other["message"], code)
    return Ended(code, error, told)


UNPREPARED = {1, 3, -signal.SIGINT, -signal.SIGTERM, -signal.SIGUSR1, -signal.SIGHUP}
"""How a process ends by a signal before it can say so: in its first imports (Python itself ends with 1), in those of the command line, and by the signal."""
AGAIN = "Resume with the same command plus --resume-from-checkpoint auto, without --overwrite."
MEMORY = "SIGKILL usually comes from the kernel when memory runs out."


def _as_error(error: Mapping[str, str], message: str, code: int) -> FtcliError:
    made = FtcliError(message, error["hint"])
    made.code, made.exit_code = error["code"], code
    return made


def command(words: tuple[str, ...]) -> tuple[str, ...]:
    """What a rank runs behind the interpreter. torch takes `$` for a placeholder; -P keeps the current directory off the module path."""
    return ("-P", "-m", "ftcli", *(word.replace("$", "$$") for word in words))
