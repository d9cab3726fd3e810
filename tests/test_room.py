"""Where the system gives no thread, no process or no memory: whose limit it was is said, and nothing waits for ever."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ftcli.commands import settings as settings_command
from ftcli.core import room
from ftcli.core.processes import warm_worker
from ftcli.errors import EngineError, LimitError, TrainError
from ftcli.testing import run


def threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further thread, as where `ulimit -u` is reached: it does not bind root, as who these tests may run."""

    def refused(*_: object, **__: object) -> int:
        raise RuntimeError("can't start new thread")

    name = "_start_new_thread" if hasattr(threading, "_start_new_thread") else "_start_joinable_thread"  # since Python 3.13
    monkeypatch.setattr(threading, name, refused)


def _raise(error: BaseException) -> Callable[..., object]:
    def raising(*_: object, **__: object) -> object:
        raise error

    return raising


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        BlockingIOError(11, "Resource temporarily unavailable"),
        EngineError(
            "hf failed while encoding: PanicException: ThreadPoolBuildError { kind: GlobalPoolAlreadyInitialized }", "Reinstall it."
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_thread_that_the_system_refuses_is_no_bug(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(settings_command, "run", _raise(error))

    result = run("settings", "--json")

    assert result.exit_code == 1
    assert result.report["error"]["code"] == "limit"
    assert result.report["error"]["message"].startswith("no further process or thread can be started: ")
    assert "bug" not in result.stderr
    assert "Reinstall" not in result.stderr


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libgfortran-040039e1.so.5.0.0: failed to map segment from shared object"),
        ImportError(
            "\n\nIMPORTANT: PLEASE READ THIS\n" + 20 * "and so on, \n" + "Original error was: libopenblas.so: failed to map segment"
        ),
        OSError(12, "Cannot allocate memory"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_memory_that_the_system_refuses_is_no_bug(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(settings_command, "run", _raise(error))

    result = run("settings", "--json")

    assert result.exit_code == 1
    assert result.report["error"]["code"] == "limit"
    assert result.report["error"]["message"].startswith("memory ran out: ")


def test_what_has_an_advice_of_its_own_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a batch takes is another matter than that of a limit: torch's words are the same."""
    words = "a batch of 8 rows does not fit into the device's memory: DefaultCPUAllocator: can't allocate memory. Error code 12 (Cannot allocate memory)"
    monkeypatch.setattr(settings_command, "run", _raise(TrainError(words, "--per-device-train-batch-size 4")))
    error = run("settings", "--json").report["error"]
    assert (error["message"], error["hint"]) == (words, "--per-device-train-batch-size 4")


def test_the_limit_that_was_met_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NPROC: (12, 12), resource.RLIMIT_AS: (resource.RLIM_INFINITY,) * 2}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    error = room.shortage(RuntimeError("can't start new thread"))
    assert error is not None
    assert "the user 54321 may have 12 at once (ulimit -u) and has 0" in error.message

    limits[resource.RLIMIT_AS] = (10**9, 10**9)
    for refused in (RuntimeError("can't start new thread"), MemoryError()):  # a thread's stack is memory
        error = room.shortage(refused)
        assert error is not None
        assert "this process may have 954\xa0MiB of address space (ulimit -v) and has " in error.message


def test_an_address_space_too_small_for_the_libraries_is_refused_before_one_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_address_limit", lambda: 10**9)

    with pytest.raises(LimitError, match=r"may have 954.MiB of address space \(ulimit -v\) and has .*: at least 1\.5.* are needed"):
        room.require_command()


def test_room_is_found_and_given_back() -> None:
    before = threads()

    assert not room.lacks(8)

    assert threads() == before


def test_a_command_that_has_no_room_for_threads_says_so_before_it_begins(full: None, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("text,label\na,b\n")

    result = run("tokenize", str(tmp_path / "data.csv"), "--tokenizer-path", str(tmp_path), "--output-dir", str(tmp_path / "out"))

    assert result.exit_code == 1
    assert f"no further process or thread can be started: {room.COMMAND} more are needed" in result.stderr


def test_a_shard_is_not_read_where_the_reader_would_wait_for_a_thread(full: None) -> None:
    from ftcli.core.reading.read import read_shard

    room.require_readers.cache_clear()  # another test may have read one
    with pytest.raises(LimitError, match="4 more are needed"):
        next(read_shard(None, None, None, None))  # type: ignore[arg-type]  # not looked at yet


def test_a_thread_that_never_began_is_not_waited_for(full: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback when Python ended: "cannot join thread before it is started"."""

    class Ready:
        def adopt(self, threads: int) -> None:
            pass

        def begin(self, function: object) -> None:
            pass

    monkeypatch.setattr(warm_worker, "_ready", [Ready()])
    with pytest.raises(RuntimeError, match="can't start new thread"):
        warm_worker.begin(print)
    warm_worker._sent()
