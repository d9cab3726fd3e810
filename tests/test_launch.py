"""The launcher's decisions: how a job is started, when its ranks have stalled, and what their ends mean together."""

from __future__ import annotations

import errno
import os
import signal
import socket
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch.distributed import DistNetworkError

from ftcli.core.batches.batch import common_batches, eval_batches
from ftcli.core.distributed import agree, pulse, route, signals
from ftcli.core.distributed.agent import Agent
from ftcli.core.distributed.group import left
from ftcli.core.distributed.launch import Death, Plan, command, judge, plan, wanted
from ftcli.core.distributed.pulse import Beat, End, Idle, Pulse, beat_file, end_file, read, stack_file
from ftcli.core.distributed.route import Route
from ftcli.core.distributed.signals import Signals
from ftcli.core.distributed.stalls import FOLLOW_SECONDS, LONGEST_LOOK, START_SECONDS, Stall, Stalls
from ftcli.errors import RankError, UsageError
from ftcli.machine import detect
from ftcli.records import Gpu, Machine
from ftcli.settings import Settings, update
from ftcli.testing import run
from timing import until


class Address(NamedTuple):
    address: str


# -- the plan ----------------------------------------------------------------------------------------------------------


def settings(**values: Any) -> Settings:
    return update(Settings(), {key.replace("__", "."): value for key, value in values.items()})


def machine(gpus: int = 0) -> Machine:
    return replace(detect(), gpus=tuple(Gpu(str(number), 80.0) for number in range(gpus)))


def test_a_job_is_started_only_where_it_is_asked_for_and_not_by_its_own_ranks() -> None:
    two = settings(launch__nproc_per_node=2)
    assert not wanted(Settings(), {})
    assert wanted(two, {})
    assert wanted(settings(launch__nnodes=2), {})
    assert not wanted(two, {pulse.VARIABLE: "/folder"})


def test_one_machine_needs_no_address_and_takes_a_free_port() -> None:
    made = plan(settings(launch__nproc_per_node=2), machine(), {})
    assert made is not None
    assert (made.ranks, made.nodes, made.backend, made.endpoint, made.address) == (2, 1, "c10d", "localhost:0", "127.0.0.1")
    other = plan(settings(launch__nproc_per_node=2), machine(), {})
    assert other is not None
    assert other.job != made.job, "two jobs on one machine must not meet"


@pytest.mark.parametrize(("gpus", "use_cpu", "ranks"), [(0, None, 1), (1, None, 1), (4, None, 4), (4, True, 1)])
def test_auto_is_one_rank_a_gpu(gpus: int, use_cpu: bool | None, ranks: int) -> None:
    made = plan(settings(launch__nproc_per_node="auto", train__use_cpu=use_cpu), machine(gpus), {})
    assert (made.ranks if made else 1) == ranks


def test_machines_with_numbers_meet_by_number_and_others_number_themselves() -> None:
    several = {"launch__nproc_per_node": 2, "launch__nnodes": 3, "launch__rdzv_endpoint": "127.0.0.1:29500", "launch__rdzv_id": "seven"}
    assert plan(settings(**several), machine(), {}) == Plan(2, 3, "c10d", "127.0.0.1:29500", "seven")
    assert plan(settings(**several, launch__node_rank=2), machine(), {}) == Plan(2, 3, "static", "127.0.0.1:29500", "seven", {"rank": 2})


def test_a_machine_is_told_by_which_of_its_addresses_the_others_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"10.1.0.1": "10.1.0.7", "127.0.1.1": "127.0.1.1", "127.0.0.1": "127.0.0.1", route.ELSEWHERE[0]: "192.168.0.3"}
    monkeypatch.setattr(route, "_source", lambda _, place: taken.get(place[0]))
    monkeypatch.setattr(route.psutil, "net_if_addrs", lambda: {"eth0": [Address("192.168.0.3")], "ib0": [Address("10.1.0.7")]})
    monkeypatch.setattr(route.socket, "getaddrinfo", lambda host, *_, **__: [(2, 2, 0, "", ({"own": "127.0.1.1"}.get(host, host), 1))])
    assert route.towards("10.1.0.1:1") == Route("10.1.0.7", "ib0")
    assert route.towards("127.0.0.1:1") == Route()
    assert route.towards("own:1") == Route(None, "eth0"), "Debian's /etc/hosts: the others know it by another address"
    assert route.towards("10.9.9.9:1") == Route()
    for endpoint in ("host:", "host:name", "host:70000"):
        with pytest.raises(UsageError, match="is not a port"):
            route.towards(endpoint)


def test_the_first_machine_refuses_a_port_that_is_taken_before_it_starts_anything() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        several = {"launch__nnodes": 2, "launch__rdzv_endpoint": f"127.0.0.1:{port}"}
        with pytest.raises(UsageError, match=f"port {port} of this machine cannot be used: Address already in use"):
            plan(settings(**several, launch__node_rank=0), machine(), {})
        assert plan(settings(**several, launch__node_rank=1), machine(), {}) is not None
    assert plan(settings(**several, launch__node_rank=0), machine(), {}) is not None


@pytest.mark.parametrize(
    ("values", "gpus", "environ", "message"),
    [
        ({"nproc_per_node": 2}, 0, {"LOCAL_RANK": "0"}, "LOCAL_RANK shows that a launcher already started this process"),
        ({"nproc_per_node": 2}, 0, {"TORCHELASTIC_RUN_ID": "x"}, "TORCHELASTIC_RUN_ID"),
        ({"nproc_per_node": 0}, 0, {}, "launch.nproc_per_node = 0"),
        ({"nproc_per_node": 3}, 2, {}, "launch.nproc_per_node = 3, but 2 GPUs are visible"),
        ({"nproc_per_node": 2, "rdzv_endpoint": "a:1"}, 0, {}, "launch.rdzv_endpoint is set, but launch.nnodes is 1"),
        ({"nproc_per_node": 2, "node_rank": 0}, 0, {}, "launch.node_rank is set"),
        ({"nnodes": 2}, 0, {}, "launch.rdzv_endpoint is not set"),
        ({"nnodes": 2, "rdzv_endpoint": "host"}, 0, {}, "launch.rdzv_endpoint is host"),
        ({"nnodes": 2, "rdzv_endpoint": "a:1", "node_rank": 2}, 0, {}, "launch.node_rank = 2, but launch.nnodes is 2"),
    ],
)
def test_a_job_that_cannot_be_started_so_is_refused(values: dict[str, Any], gpus: int, environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        plan(settings(**{f"launch__{key}": value for key, value in values.items()}), machine(gpus), environ)
    assert refused.value.hint


def test_the_command_line_refuses_a_launch_inside_torchrun() -> None:
    refused = run("train", "--nproc-per-node", "2", "--json", env={"LOCAL_RANK": "0"})
    assert refused.exit_code == 2
    assert "Start ftcli without torchrun" in refused.report["error"]["hint"]


def test_ranks_get_the_words_of_the_user_whatever_torch_takes_for_a_placeholder() -> None:
    assert command(("train", "--output-dir", "$HOME/${local_rank}")) == (
        *("-P", "-m", "ftcli", "train", "--output-dir"),
        "$$HOME/$${local_rank}",
    )


# -- stalls, on a clock of their own -----------------------------------------------------------------------------------

LIMIT = 60.0


def beats(*given: dict[str, Any]) -> dict[int, Beat]:
    return {rank: Beat(rank, 100 + rank, **{"watched": True, **values}) for rank, values in enumerate(given)}


def looks(stalls: Stalls, seconds: float, at: Any, ends: dict[int, End] | None = None, step: float = 1.0) -> tuple[float, Stall | None]:
    """Look once a second for so long; the seconds until a verdict, and the verdict. `at` makes the beats of a second."""
    for number in range(int(seconds / step)):
        if found := stalls.look(step, at(number), ends or {}):
            return number * step, found
    return seconds, None


def test_a_run_whose_ranks_make_progress_is_left_alone_for_ever() -> None:
    assert (
        looks(
            Stalls(LIMIT), 5_000, lambda second: beats({"beats": second, "marks": second // 50}, {"beats": second, "marks": second // 50})
        )[1]
        is None
    )


def test_the_rank_that_the_others_wait_for_is_named_within_the_limit() -> None:
    seconds, stall = looks(
        Stalls(LIMIT), 500, lambda second: beats({"beats": second, "marks": 8}, {"beats": second, "marks": 7, "where": "in step 4"})
    )
    assert stall is not None
    assert stall.ranks == (1,)
    assert stall.message == "no progress for 60 s (launch.rank_timeout is 60): rank 1 (pid 101) was in step 4, and the others wait for it"
    assert LIMIT <= seconds <= LIMIT + 10


def test_a_stopped_rank_is_named_within_the_limit_and_ten_seconds() -> None:
    """The others make no progress either, from a little later on."""
    seconds, stall = looks(
        Stalls(LIMIT), 500, lambda second: beats({"beats": second, "marks": 8}, {"beats": 5, "marks": 8, "where": "in step 4"})
    )
    assert stall is not None
    assert stall.ranks == (1,)
    assert "rank 1 (pid 101) has sent no heartbeat for 60 s" in stall.message
    assert LIMIT <= seconds <= LIMIT + 10


def test_a_rank_that_all_wait_for_by_its_silence_is_named_before_those_that_wait() -> None:
    stalls = Stalls(LIMIT)
    waiting = lambda second: beats({"beats": second, "marks": 8}, {"beats": min(second, 20), "marks": 8})  # noqa: E731
    _, stall = looks(stalls, 500, waiting)
    assert stall is not None
    assert stall.ranks == (1,)


def test_before_the_first_step_only_a_long_silence_counts() -> None:
    preparing = lambda second: beats({"beats": second, "watched": False}, {"beats": second, "watched": False})  # noqa: E731
    assert looks(Stalls(LIMIT), 5_000, preparing)[1] is None
    seconds, stall = looks(Stalls(LIMIT), 5_000, lambda _: beats({"beats": 3, "watched": False}))
    assert stall is not None
    assert seconds == pytest.approx(LIMIT + START_SECONDS, abs=5)


def test_a_machine_that_slept_has_not_stalled() -> None:
    """Every look an hour after the one before, as after a suspended laptop or a stopped launcher."""
    stalls = Stalls(LIMIT)
    for number in range(int(LIMIT / LONGEST_LOOK) - 2):
        assert stalls.look(3600.0, beats({"beats": 1, "marks": 1}), {}) is None, number


def test_rank_0_is_ended_first_so_that_it_does_not_report_the_loss_of_one_that_is_ended_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(tmp_path))
    agent = Agent(Plan(2, 1, "c10d", "localhost:0", "job"), ("train",), 20, tmp_path / "stacks", print)
    monkeypatch.setattr(agent, "_beats", lambda: {rank: Beat(rank, 1000 + rank) for rank in (2, 0, 1)})  # as a folder lists them
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    for rank in range(3):
        stack_file(tmp_path, rank).write_text("most recent call first")
    agent._end_all()
    assert [pid for pid, number in sent if number == signal.SIGKILL] == [1000, 1001, 1002]


def test_after_a_failed_rank_the_others_have_their_time_to_follow() -> None:
    failed = {1: End(1, 1, {"code": "train", "message": "m", "hint": "h"}, told=False)}
    seconds, stall = looks(Stalls(1e6), 500, lambda second: beats({"beats": second}, {"beats": 4}), failed)
    assert stall is not None
    assert stall.ranks == (1,)
    assert FOLLOW_SECONDS - 2 <= seconds <= FOLLOW_SECONDS + 2
    both = {**failed, 0: End(0, 4, None, told=True)}
    assert looks(Stalls(1e6), 500, lambda second: beats({"beats": 3}, {"beats": 4}), both)[1] is None
    interrupted = {1: End(1, 3, None, told=False)}
    assert looks(Stalls(1e6), 500, lambda second: beats({"beats": second}, {"beats": 4}), interrupted)[1] is None, "rank 0 reports for long"


def test_idle_seconds_begin_again_with_every_change() -> None:
    idle = Idle(2.0)
    assert [idle.look(1.0, seen) for seen in (1, 1, 1, 2, 2)] == [0.0, 1.0, 2.0, 0.0, 1.0]
    assert idle.look(100.0, 2) == 3.0


# -- the verdict -------------------------------------------------------------------------------------------------------


def end(rank: int, code: int, kind: str | None = None, message: str = "m") -> End:
    return End(rank, code, None if kind is None else {"code": kind, "message": message, "hint": "h"}, told=rank == 0)


def verdict(*ends: End, deaths: tuple[Death, ...] = (), **more: Any) -> tuple[int, str | None, bool]:
    found = judge(
        {each.rank: each for each in ends},
        list(deaths),
        more.get("stall"),
        more.get("asked"),
        has_first=more.get("has_first", True),
    )
    return found.code, None if found.error is None else f"{found.error.code}: {found.error.message}", found.told


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((end(0, 0), end(1, 0)), (0, None, True)),
        ((end(0, 3, "interrupted"), end(1, 3, "interrupted")), (3, None, True)),
        ((end(0, 1, "train"), end(1, 1, "train")), (1, None, True)),
        ((end(0, 2, "settings"), end(1, 2, "settings")), (2, None, True)),
        ((end(0, 4, "rank", "lost"), end(1, 1, "plugin", "bad")), (1, "plugin: rank 1: bad", True)),
        ((end(0, 1, "train", "bad"), end(1, 4, "rank", "lost")), (1, None, True)),
    ],
)
def test_the_exit_code_of_a_run_is_that_of_its_first_cause(ends: tuple[End, ...], expected: tuple[int, str | None, bool]) -> None:
    assert verdict(*ends) == expected


def test_a_rank_that_was_killed_is_named_and_its_signal() -> None:
    killed = Death(1, 77, -signal.SIGKILL)
    assert verdict(end(0, 4, "rank", "lost"), deaths=(killed,)) == (
        4,
        "rank: rank 1 (pid 77) was killed by SIGKILL, which ended the run",
        True,
    )
    by_torch = Death(0, 76, -signal.SIGTERM)
    code, message, told = verdict(deaths=(by_torch, Death(1, 77, 9)))
    assert (code, told) == (4, False)
    assert message == "rank: rank 1 (pid 77) exited with code 9, which ended the run"


def test_a_stall_is_the_cause_whatever_the_ranks_died_of() -> None:
    stalled = Stall((1,), "no progress")
    deaths = (Death(0, 76, -signal.SIGKILL), Death(1, 77, -signal.SIGKILL))
    assert verdict(deaths=deaths, stall=stalled) == (4, "rank: no progress", False)


def test_ranks_that_a_signal_ended_while_they_started_are_an_interruption() -> None:
    deaths = (Death(0, 76, -signal.SIGTERM), Death(1, 77, -signal.SIGTERM))
    assert verdict(deaths=deaths, asked="SIGTERM")[0] == 3
    assert verdict(deaths=deaths)[0] == 4
    for code in (1, 3, -signal.SIGINT, -signal.SIGUSR1, -signal.SIGHUP):
        assert verdict(deaths=(Death(0, 76, -signal.SIGINT), Death(1, 77, code)), asked="SIGINT")[0] == 3
    assert verdict(deaths=(Death(0, 76, -signal.SIGINT), Death(1, 77, -signal.SIGSEGV)), asked="SIGINT")[0] == 4


def test_another_machine_than_that_of_rank_0_has_nothing_to_report() -> None:
    assert verdict(end(2, 0), end(3, 0), has_first=False) == (0, None, True)
    assert verdict(end(2, 4, "rank"), deaths=(Death(3, 9, -9),), has_first=False)[::2] == (4, True)


@pytest.mark.parametrize(
    ("began", "message"), [(False, "did not connect to each other"), (True, "lost the connection to the other machines")]
)
def test_machines_that_have_met_and_are_lost_are_not_said_to_have_missed_each_other(tmp_path: Path, began: bool, message: str) -> None:
    agent = Agent(Plan(2, 2, "static", "localhost:1", "job"), ("train",), 20, tmp_path / "stacks", print)
    agent._failure = DistNetworkError("failed to recv, got 0 bytes\nC++ CapturedTraceback:")
    if began:
        pulse.write(beat_file(agent._folder, 0), Beat(0, 100))
    with pytest.raises(RankError, match=message) as lost:
        agent._deaths()
    assert "C++" not in lost.value.message
    assert ("--resume-from-checkpoint auto" in lost.value.hint) == began


# -- the rank's side ---------------------------------------------------------------------------------------------------


def test_a_process_has_a_pulse_only_as_one_of_several_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Pulse.of({}) is None
    monkeypatch.setenv("RANK", "1")
    assert Pulse.of({"WORLD_SIZE": "1"}) is None
    alone = Pulse.of({"WORLD_SIZE": "2"})
    assert alone is not None
    assert alone.end(3, None, told=False) == 3, "another launcher gets the code itself"


def test_a_launched_rank_shows_its_progress_its_stack_and_its_end(tmp_path: Path) -> None:
    rank = Pulse(1, tmp_path)
    rank.start()
    try:
        first = until(lambda: read(beat_file(tmp_path, 1), Beat))
        assert (first.rank, first.pid, first.watched) == (1, os.getpid(), False)
        rank.mark("in step 4")
        rank.watched = True
        later = until(lambda: (found := read(beat_file(tmp_path, 1), Beat)) and found.marks == 1 and found)
        assert (later.where, later.watched, later.beats > first.beats) == ("in step 4", True, True)
        os.kill(os.getpid(), pulse.DUMP)
        assert "test_a_launched_rank_shows_its_progress" in until(lambda: stack_file(tmp_path, 1).read_text())
    finally:
        rank.stop()
    assert rank.end(3, {"code": "interrupted", "message": "m", "hint": ""}, told=False) == 0
    assert read(end_file(tmp_path, 1), End) == End(1, 3, {"code": "interrupted", "message": "m", "hint": ""}, told=False)
    assert read(end_file(tmp_path, 2), End) is None


def test_a_full_disk_silences_no_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Pulse(1, tmp_path)
    rank.start()
    try:
        first = until(lambda: read(beat_file(tmp_path, 1), Beat))
        assert read(end_file(tmp_path, 1), End) is None, "there is room for it and nothing in it"
        before = [path.stat() for path in (beat_file(tmp_path, 1), end_file(tmp_path, 1))]
        refused = threading.Event()

        def full(path: Path, record: Beat | End | None) -> None:
            refused.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        with monkeypatch.context() as patched:
            patched.setattr(pulse, "write", full)
            until(refused.is_set)
        until(lambda: (found := read(beat_file(tmp_path, 1), Beat)) and found.beats > first.beats + 1)
    finally:
        rank.stop()
    assert rank.end(0, None, told=True) == 0
    after = [path.stat() for path in (beat_file(tmp_path, 1), end_file(tmp_path, 1))]
    kept = [[(stat.st_ino, stat.st_size) for stat in stats] for stats in (before, after)]
    assert kept[0] == kept[1], "what is written anew takes no new blocks"


def test_a_rank_that_can_leave_no_word_ends_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Pulse(1, tmp_path / "gone").end(3, None, told=False) == 3
    monkeypatch.setattr(os, "pwrite", lambda *_: 1)
    assert Pulse(1, tmp_path).end(1, {"code": "train", "message": "m", "hint": ""}, told=False) == 1


def test_a_rank_under_another_launcher_watches_itself() -> None:
    found: list[float] = []
    rank = Pulse(0, None)
    rank.watched = True
    rank.watch_itself(1.0, found.append)
    try:
        until(lambda: found)
        assert found[0] >= 1.0
        assert not rank.watched, "it speaks once"
    finally:
        rank.stop()


# -- agreement ---------------------------------------------------------------------------------------------------------


def test_a_rank_that_got_no_signal_stops_with_the_one_that_did(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [0, 1, 0]
    monkeypatch.setattr(agree, "several", lambda: True)
    monkeypatch.setattr(agree, "_over_cpus", lambda: None)
    monkeypatch.setattr(agree.distributed, "all_reduce", lambda flag, **_: flag.clamp_(min=others.pop(0)))
    wish = Signals()
    assert not agree.stopped(wish)
    assert wish.received is None
    assert agree.stopped(wish)
    assert wish.received == "a signal to another process"
    assert agree.stopped(wish), "and it stays so"


def test_an_own_signal_after_that_of_another_rank_is_the_same_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends a job signals all ranks, each a little later than the one before."""
    monkeypatch.setattr(agree, "several", lambda: True)
    monkeypatch.setattr(agree, "_over_cpus", lambda: None)
    monkeypatch.setattr(agree.distributed, "all_reduce", lambda flag, **_: flag.fill_(1))
    clock = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: clock[0])
    with Signals(apart=5.0) as wish:
        agree.stopped(wish)
        os.kill(os.getpid(), signal.SIGINT)
        clock[0] = 104.0
        agree.stopped(wish)
        clock[0] = 105.0
        with pytest.raises(KeyboardInterrupt):  # and a second wish is one
            os.kill(os.getpid(), signal.SIGINT)
    assert wish.received == "a signal to another process"


def test_signals_close_to_each_other_are_one_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: clock[0])
    with Signals(apart=5.0) as wish:
        os.kill(os.getpid(), signal.SIGINT)
        clock[0] = 104.0
        os.kill(os.getpid(), signal.SIGINT)
        assert wish.received == "SIGINT"
        clock[0] = 105.0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_what_a_lost_rank_raises_is_told_from_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = RuntimeError("[pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer. This is typically caused")
    assert not left(closed), "there is no other rank"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert left(closed)
    assert not left(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 12, 13, 31])
@pytest.mark.parametrize(("size", "world"), [(1, 2), (2, 2), (8, 3), (3, 4)])
def test_every_rank_has_the_common_batches_and_at_most_one_more(rows: int, size: int, world: int) -> None:
    import numpy as np

    counts = [len(eval_batches(np.arange(1, rows + 1), size, rank, world)) for rank in range(world)]
    assert common_batches(rows, size, world) == min(counts)
    assert max(counts) - min(counts) <= 1
