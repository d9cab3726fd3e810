"""Several attempts on one output: one works, the others wait or are told who does."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import pytest

from ftcli.core.files import lease, lease_holder, lease_watch
from ftcli.core.files.lease_holder import Note
from ftcli.core.files.lease_watch import Sight
from ftcli.core.publishing.publish import Attempt
from ftcli.errors import DataError, FtcliError, FtcliWarning, PublishError
from publish_cases import SHARDS, contents, interrupt, listing, prepare, write_shard
from timing import PATIENCE, until


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_attempts_of_other_fingerprints_go_when_the_output_is_published_unless_somebody_works_on_them(output: Path) -> None:
    abandoned = interrupt(output, "abandoned")
    other_output = interrupt(output.with_name("out.2"), "abandoned")
    with Attempt.open(output, "busy") as busy:
        interrupt(output, "f")
        assert abandoned.exists()
        prepare(output, "f")
        assert not abandoned.exists()
        assert busy.directory.exists()
        assert other_output.exists()


def test_an_attempt_without_a_finished_shard_leaves_nothing(output: Path) -> None:
    with Attempt.open(output, "f") as attempt:
        attempt.shard("a").path("x").touch()
        attempt.write("info.json", "{}")
    assert listing(output.parent) == []


def test_one_process_cannot_open_an_attempt_twice(output: Path) -> None:
    with Attempt.open(output, "f"), pytest.raises(PublishError, match=rf"out is being prepared by pid {os.getpid()} on .* \(since "):
        Attempt.open(output, "f")
    Attempt.open(output, "f").close()


def test_a_holder_that_has_not_signed_yet_is_described(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", 3600.0)  # it does not sign later
    with Attempt.open(output, "f") as attempt:
        (attempt.directory / "lease").write_bytes(b"")
        with pytest.raises(PublishError, match="a process that has not identified itself yet"):
            Attempt.open(output, "f")
        with pytest.raises(PublishError, match=r"no progress for \d+ s from a process that has not identified itself yet") as caught:
            Attempt.open(output, "f", wait=True, patience=0.2)
        assert caught.value.hint == f"Find it with fuser -v {attempt.directory / 'lease'}."


class Waiter:
    """Another attempt that waits in a thread."""

    def __init__(self, output: Path, **options: Any) -> None:
        self.found: list[Any] = []
        """What it found, or was told, when it has ended."""
        self.looks = 0
        self._thread = threading.Thread(target=self._wait, args=(output,), kwargs=options, daemon=True)
        self._thread.start()
        self.look()

    def _wait(self, output: Path, **options: Any) -> None:
        try:
            with Attempt.open(output, "f", wait=True, on_wait=self._seen, **options) as other:
                self.found.append((other.ready, other.predecessor))
        except FtcliError as error:
            self.found.append(error)

    def _seen(self, _: Sight) -> None:
        self.looks += 1

    def look(self) -> None:
        """Return when it has looked at what is there now: the look that goes on now may have begun before; or when it has ended."""
        enough = self.looks + 2
        until(lambda: self.looks >= enough or not self._thread.is_alive())

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@contextmanager
def waiting(output: Path, **options: Any) -> Iterator[Waiter]:
    """Another attempt that waits until after the block."""
    waiter = Waiter(output, **options)
    yield waiter
    waiter.join()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty heartbeats a second."""
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)


class Clock:
    """The time by which waiters measure silence: it stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lease_watch, "time", made)
    return made


def signed(attempt: Attempt) -> Note:
    """The next note that the thread of the holder signs."""

    def read() -> Note | None:
        descriptor = os.open(attempt.directory / "lease", os.O_RDONLY)
        try:
            return Note.read(descriptor)
        finally:
            os.close(descriptor)

    before = until(read)
    return until(lambda: note if (note := read()) is not None and note.beats > before.beats + 1 else None)  # one may be half-way


def test_a_waiter_lasts_as_long_as_the_holder_lives_whatever_its_work_takes(output: Path, fast: None, clock: Clock) -> None:
    attempt = Attempt.open(output, "f")
    with waiting(output, patience=20.0) as waiter:
        for _ in range(5):  # no call of `beat`: a long shard
            clock.now += 19.0
            signed(attempt)
            waiter.look()
        assert waiter.found == []
        document = attempt.publish({}, [])
        attempt.close()
        attempt.beat()
    assert waiter.found == [(document, None)]
    assert listing(output.parent) == ["out"]


def test_a_holder_that_lives_and_does_nothing_is_given_up(output: Path, fast: None, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_watch, "HANG_SECONDS", 40.0)
    with Attempt.open(output, "f") as attempt, waiting(output, patience=20.0) as waiter:
        for _ in range(5):
            clock.now += 19.0
            attempt.beat()
            signed(attempt)
            waiter.look()
        assert waiter.found == []
        for _ in range(3):  # it lives on and does nothing more
            clock.now += 19.0
            signed(attempt)
            waiter.look()
        waiter.join()
        (given_up,) = waiter.found
        assert isinstance(given_up, PublishError)
        assert given_up.message.startswith(f"no progress for 57 s from pid {os.getpid()} on ")


def test_work_under_one_lease_counts_for_those_who_wait_for_another_of_the_same_process(tmp_path: Path) -> None:
    outer, inner = (lease.Lease.take(tmp_path / name, tmp_path / "out", wait=False) for name in ("outer", "inner"))
    inner.beat(done=3.0)
    inner.beat()
    assert [(one._note.steps, one._note.progress) for one in (outer, inner)] == [(2, {}), (2, {"done": 3.0})]
    inner.release()
    inner.beat()
    outer.beat()
    assert outer._note.steps == 3
    outer.release()


def test_what_the_holder_says_of_its_work_reaches_the_waiters(output: Path, fast: None) -> None:
    seen: list[Sight] = []
    with Attempt.open(output, "f") as attempt:
        attempt.beat(done=3, total=4)
        attempt.beat(done=4)
        signed(attempt)
        with pytest.raises(PublishError):
            Attempt.open(output, "f", on_wait=seen.append)
    assert seen[-1].note is not None
    assert seen[-1].note.progress == {"done": 4, "total": 4}
    assert seen[-1].note.steps == 2
    assert (seen[-1].silent < 10, seen[-1].path) == (True, attempt.directory / "lease")


@pytest.mark.parametrize("finished", [(), ("a",)], ids=["nothing finished", "a shard finished"])
@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (DataError("bad.jsonl:7: no", "Mend it."), (DataError, "bad.jsonl:7: no", "Mend it.")),
        (ZeroDivisionError("0/0"), (FtcliError, "ZeroDivisionError: 0/0", "See that process's own output.")),
    ],
    ids=["an error for people", "a bug"],
)
def test_those_who_wait_for_a_holder_that_fails_are_told_the_same_error_at_once(
    raised: Exception, told: tuple[Any, ...], finished: tuple[str, ...], output: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    kind, words, hint = told
    found: list[Any] = []

    def fail() -> None:
        with Attempt.open(output, "f") as attempt:
            for name in finished:
                write_shard(attempt, name, SHARDS[name])
            with waiting(output) as one, waiting(output) as other:
                attempt._end(raised)
            found.extend([*one.found, *other.found])

    fail()
    for error in found:
        assert type(error) is kind
        assert error.message == f"rank 3, pid {os.getpid()} on {os.uname().nodename} could not prepare {output}: {words}"
        assert error.hint == hint
    assert len(found) == 2
    assert len(listing(output.parent)) == len(finished)
    Attempt.open(output, "f").close()  # a later run is not told what an earlier one failed with


def test_what_an_earlier_run_failed_with_is_not_the_error_of_those_who_wait_for_another(output: Path) -> None:
    attempt = Attempt.open(output, "f")
    write_shard(attempt, "a", SHARDS["a"])
    attempt._end(DataError("bad.jsonl:7: no", "Mend it."))
    passing = lease.Lease.attempt(attempt.directory)  # as whoever looks whether it is abandoned
    assert passing is not None
    with waiting(output) as waiter:
        passing.release()
    assert waiter.found == [(None, None)]


def test_an_interrupted_holder_hands_the_work_on(output: Path) -> None:
    attempt = Attempt.open(output, "f")
    with waiting(output) as waiter:
        attempt._end(KeyboardInterrupt())
    assert waiter.found == [(None, None)]


def note(**changes: Any) -> Note:
    """What a holder that is no more has signed."""
    return replace(Note.mine(), **{"pid": 2**22 - 1, "host": socket.gethostname(), **changes})


def leave(output: Path, content: bytes | Note) -> Path:
    """An attempt with one finished shard whose holder died."""
    path = interrupt(output) / "lease"
    path.write_bytes(b"")
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        descriptor = os.open(path, os.O_RDWR)
        content.write(descriptor)
        os.close(descriptor)
    return path


STALE: dict[str, bytes | Note] = {
    "a dead pid": note(),
    "a recycled pid": note(pid=os.getpid(), birth=1),
    "another boot of this machine": note(boot="before"),
    "another machine": note(host="elsewhere", boot="other"),
    "empty": b"",
    "garbage": os.urandom(5_000),
    "deep garbage": b"[" * 60_000,
    "half a note": b'{"token": "ab",',
    "another format's note": b'{"pid": 1, "host": "vm", "started": "2026-01-01 00:00:00"}',
    "a key more": b'{\n "pid": 1,\n "seal": "x"\n}\n',
}


@pytest.mark.fault
@pytest.mark.reliability(10, "stale lease: dead pid, recycled pid, other host, empty, garbage")
@pytest.mark.parametrize("left", STALE.values(), ids=STALE)
def test_a_lease_left_behind_is_recovered_and_the_dead_are_named(left: bytes | Note, output: Path, clock: Clock) -> None:
    leave(output, left)
    before = clock.now
    with Attempt.open(output, "f", wait=True) as attempt:
        assert clock.now - before < lease_watch.PATIENCE_SECONDS
        assert attempt.predecessor == (left if isinstance(left, Note) else None)
        assert attempt.done("a")
        attempt.publish({}, ["a"])
    assert listing(output.parent) == ["out"]


@pytest.mark.fault
@pytest.mark.reliability(10, "a lock file of another host, as filelock.SoftFileLock takes it, blocks for ever", control=True)
def test_a_plain_lock_file_that_another_machine_left_behind_is_never_freed(tmp_path: Path) -> None:
    """The naive way: a file that exists while somebody works."""
    lock = tmp_path / "lock"
    lock.write_text("4194303\nelsewhere\n")
    os.utime(lock, (0, 0))
    with pytest.raises(filelock.Timeout):
        filelock.SoftFileLock(lock, timeout=2).acquire()


@pytest.mark.fault
@pytest.mark.reliability(10, "a holder on a machine that locks do not reach is refused")
def test_a_holder_on_a_machine_that_locks_do_not_reach_is_not_disturbed(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_watch, "BEAT_SECONDS", PATIENCE)  # it looks for three of them, until it sees the first
    far = note(host="elsewhere", boot="other", rank=0, command="ftcli tokenize x")
    path = leave(output, far)
    stop = threading.Event()

    def live() -> None:
        descriptor = os.open(path, os.O_RDWR)
        for beats in itertools.count():
            replace(far, beats=beats).write(descriptor)
            if stop.wait(0.02):
                break
        os.close(descriptor)

    living = threading.Thread(target=live)
    living.start()
    try:
        with pytest.raises(PublishError, match=r"by rank 0, pid 4194303 on elsewhere .*locks on this file system do not work") as caught:
            Attempt.open(output, "f", wait=True)
        assert "Mount it with locks" in caught.value.hint
        assert caught.value.hint.endswith("one machine before the job: ftcli tokenize x")
        prepare(output, "other")
        assert path.exists(), "an attempt of another machine is cleared away only after a day"
    finally:
        stop.set()
        living.join()
    os.utime(path, (0, 0))
    prepare(output, "third", replace=True)
    assert not path.exists()


@pytest.mark.fault
@pytest.mark.reliability(10, "something else in the lease's place is refused with the command")
@pytest.mark.parametrize("name", [".out.f.attempt", ".out.f.attempt/lease"])
def test_something_else_in_the_place_of_the_lease_is_refused_with_the_command_that_clears_it(name: str, output: Path) -> None:
    path = output.parent / name
    path.parent.mkdir(exist_ok=True)
    if path.name == "lease":
        path.mkdir()
    else:
        path.touch()
    with pytest.raises(PublishError, match=f"{name} is in the way") as caught:
        Attempt.open(output, "f", wait=True)
    assert caught.value.hint == f"Remove it: rm -r {path}"


def test_the_remedy_is_a_command_for_the_state_that_the_holder_is_in(tmp_path: Path) -> None:
    mine, path = Note.mine(), tmp_path / "lease"
    assert mine.remedy(path).startswith(f"To end it: kill -9 {mine.pid}; then")
    assert note().remedy(path) == (
        f"That process has ended, but another one holds its lock: find it with fuser -v {path} and end it, then run the same command again:"
        " finished shards are kept."
    )
    assert note(host="far").remedy(path).startswith("On far: kill -9 4194303")
    assert replace(mine, birth=mine.birth + 1).state is None


def test_a_holder_that_has_ended_and_that_nobody_has_waited_for_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        state, birth = lease_holder._process(process.pid) or ("", 0)
        assert state == "Z"
        assert note(pid=process.pid, birth=birth).state is None


def test_a_process_that_lost_its_lease_publishes_nothing_and_removes_nothing(output: Path, fast: None) -> None:
    lost = Attempt.open(output, "f")
    write_shard(lost, "a", SHARDS["a"])
    shutil.rmtree(lost.directory)
    with Attempt.open(output, "f") as attempt:
        write_shard(attempt, "b", SHARDS["b"])
        before = contents(attempt.directory / "data")
        time.sleep(0.2)
        with pytest.raises(PublishError, match=r"attempt was removed or taken over by another process"):
            lost.beat()
        with pytest.raises(PublishError, match="removed or taken over"):
            lost.publish({}, ["b"])
        lost.close()
        assert not output.exists()
        assert {name: data for name, data in contents(attempt.directory / "data").items() if "manifest" not in name} == before
        attempt.publish({}, ["b"])
    assert listing(output.parent) == ["out"]


def test_a_lease_that_another_machine_signed_is_lost(output: Path, fast: None) -> None:
    attempt = Attempt.open(output, "f")
    leave_in_place = os.open(attempt.directory / "lease", os.O_RDWR)
    with attempt._lease._guard:  # not while its own thread is half-way through signing
        note(host="elsewhere", boot="other").write(leave_in_place)
    os.close(leave_in_place)
    time.sleep(0.2)
    with pytest.raises(PublishError, match="taken over"):
        attempt.beat()
    attempt.close()
    assert attempt.directory.exists()


def test_a_holder_that_is_just_leaving_is_not_in_the_way(output: Path, clock: Clock) -> None:
    attempt = Attempt.open(output, "f")
    looks: list[Sight] = []

    def leave(sight: Sight) -> None:
        looks.append(sight)
        attempt.close()

    Attempt.open(output, "f", on_wait=leave).close()
    assert len(looks) == 1


def test_a_waiter_gives_up_on_a_holder_without_progress(output: Path) -> None:
    with Attempt.open(output, "f"), pytest.raises(PublishError, match=r"no progress for \d+ s from pid .* and holds .*/lease") as caught:
        Attempt.open(output, "f", wait=True, patience=0.2)
    assert caught.value.hint.startswith(f"To end it: kill -9 {os.getpid()}; then")


def test_a_lease_whose_directory_goes_while_it_is_taken_is_taken_anew(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock
    calls: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        if not calls:  # the last holder finishes between our opening and our locking
            shutil.rmtree(next(output.parent.glob(".out.*")))
        calls.append(operation)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with Attempt.open(output, "f") as attempt:
        assert len(calls) == 2
        attempt.publish({}, [])


@pytest.mark.parametrize(("function", "code"), [("fcntl.flock", errno.ENOLCK), ("os.pwrite", errno.ENOSPC)])
def test_a_lease_that_cannot_be_taken_leaves_no_open_file(function: str, code: int, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    before = listing(Path("/proc/self/fd"))
    monkeypatch.setattr(f"ftcli.core.files.lease.{function}", fail)
    with pytest.raises(PublishError, match=os.strerror(code)):
        Attempt.open(output, "f")
    assert listing(Path("/proc/self/fd")) == before


def test_what_cannot_be_removed_after_publishing_is_a_warning(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    attempt = Attempt.open(output, "f")
    attempt.publish({}, [])
    monkeypatch.setattr(shutil, "rmtree", fail)
    with pytest.warns(FtcliWarning, match=r"could not remove .*attempt/\w+: Permission denied"):
        attempt.close()
    monkeypatch.undo()
    with Attempt.open(output, "f") as again:
        assert again.ready
    assert listing(output.parent) == ["out"]


def test_a_lease_directory_that_another_process_moved_into_is_left_to_it(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt.open(output, "f")
    real = lease.Lease.release

    def release(self: lease.Lease) -> None:
        real(self)
        (attempt.directory / "lease").touch()

    monkeypatch.setattr(lease.Lease, "release", release)
    attempt.close()
    assert listing(attempt.directory) == ["lease"]
