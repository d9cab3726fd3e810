"""Shards: what is kept for the next attempt, and what the file system refuses."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftcli.core.files import durable
from ftcli.core.files.manifest import check_published
from ftcli.core.publishing import publish
from ftcli.core.publishing.publish import Attempt
from ftcli.core.publishing.shard import ShardWriter
from ftcli.errors import PublishError
from publish_cases import BIG, SHARDS, delete, flip, interrupt, listing, prepare, stop, truncate, write_and, write_shard


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


# -- shards and resuming -----------------------------------------------------------------------------------------------


def test_a_finished_shard_is_kept_with_its_record_and_an_unfinished_one_is_not(output: Path) -> None:
    with Attempt.open(output, "f") as attempt:
        record = write_shard(attempt, "a", SHARDS["a"])
        with pytest.raises(KeyboardInterrupt):
            write_and(attempt.shard("b"), stop)
    with Attempt.open(output, "f") as attempt:
        assert attempt.done("a") == record
        assert record["rows"] == 1
        assert attempt.done("b") is None
        assert listing(attempt.directory / "tmp") == []


def test_what_a_killed_process_was_writing_is_removed_on_opening(output: Path) -> None:
    (interrupt(output) / "tmp" / "b.123" / "train").mkdir(parents=True)
    with Attempt.open(output, "f") as attempt:
        assert listing(attempt.directory / "tmp") == []


def place(attempt: Attempt, name: str) -> dict[str, Any]:
    """A shard that has its names and is not yet durable, as one that was killed on the way leaves it."""
    writer = attempt.shard(name)
    writer.path(f"{name}.arrow").write_bytes(BIG)
    return writer.place([f"{name}.arrow"], {"rows": 1})


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is made durable."""
    names: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return names


def test_a_shard_that_was_placed_is_kept_and_made_durable_by_the_next_attempt(output: Path, synced: list[str]) -> None:
    with Attempt.open(output, "f") as attempt:
        synced.clear()
        record = place(attempt, "a")
        assert synced == []  # nothing that a worker waits for
    with Attempt.open(output, "f") as attempt:
        synced.clear()
        assert attempt.done("a") == record
        assert synced == ["a.arrow", "data", "a.json", "records"]
        attempt.publish({}, ["a"])
    assert (output / "a.arrow").read_bytes() == BIG


def test_settling_makes_the_files_durable_before_the_record_that_speaks_of_them(output: Path, synced: list[str]) -> None:
    with Attempt.open(output, "f") as attempt:
        writer = attempt.shard("a")
        writer.path("train/a.arrow").write_bytes(BIG)
        synced.clear()
        record = writer.commit(["train/a.arrow"], {})
        assert synced == ["a.arrow", "train", "a.json", "records"]
        assert attempt.done("a") == record


def broken(descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_shard_that_the_disk_refuses_to_the_next_attempt_is_forgotten_too(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Attempt.open(output, "f") as attempt:
        place(attempt, "a")
        place(attempt, "b")
    with Attempt.open(output, "f") as attempt:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            with pytest.raises(PublishError, match=r"cannot write .*: Input/output error"):
                attempt.done("a")
        assert attempt.done("a") is None
        assert attempt.done("b") is not None


def test_a_shard_that_the_disk_refuses_as_it_is_settled_is_forgotten(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be read of it is whole, but only in memory: an error is told once, and a second fsync succeeds."""
    with Attempt.open(output, "f") as attempt:
        kept = place(attempt, "b")
        writer = attempt.shard("a")
        writer.path("a.arrow").write_bytes(BIG)
        record = writer.place(["a.arrow"], {})
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", broken)
            with pytest.raises(PublishError, match=r"cannot write .*: Input/output error"):
                writer.settle(record)
        assert attempt.done("a") is None
        assert not (attempt.directory / "data/a.arrow").exists()
        assert attempt.done("b") == kept


@pytest.mark.parametrize(("code", "kept"), [(errno.EACCES, True), (errno.EMFILE, True), (errno.ESTALE, True), (errno.EIO, False)])
def test_a_finished_shard_that_cannot_be_read_at_this_moment_is_not_forgotten(
    output: Path, code: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refused(path: Path | str, *rest: Any, **more: Any) -> int:
        if str(path).endswith(".arrow"):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *rest, **more)

    with Attempt.open(output, "f") as attempt:
        name = next(iter(SHARDS))
        write_shard(attempt, name, SHARDS[name])
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refused)
            if kept:
                with pytest.raises(PublishError, match=f"cannot be read: {os.strerror(code)}"):
                    attempt.done(name)
            else:
                assert attempt.done(name) is None
        assert (attempt.done(name) is not None) is kept


def test_a_record_comes_back_as_json(output: Path) -> None:
    with Attempt.open(output, "f") as attempt:
        committed = attempt.shard("x").commit([], {"counts": (1, 2), "source": Path("p"), "rate": float("inf")})
        assert committed == attempt.done("x") == {"counts": [1, 2], "source": "p", "rate": None, "files": []}


@pytest.mark.parametrize("damage", [flip, truncate, delete])
@pytest.mark.parametrize("victim", ["data/train/a.arrow", "records/a.json"])
def test_a_damaged_shard_is_removed_and_done_again(damage: Callable[[Path, float], None], victim: str, output: Path) -> None:
    damage(interrupt(output) / victim, 0.5)
    with Attempt.open(output, "f") as attempt:
        assert attempt.done("a") is None
        assert not (attempt.directory / "records/a.json").exists()
        assert victim.startswith("records") or not (attempt.directory / victim).exists()
    prepare(output)
    check_published(output, full=True)


def test_a_shard_that_two_workers_finish_is_accepted_if_both_wrote_the_same(output: Path) -> None:
    with Attempt.open(output, "f") as attempt:
        first, second = attempt.shard("a"), pickle.loads(pickle.dumps(attempt.shard("a")))
        for writer in (first, second):
            writer.path("a.arrow").write_bytes(b"same")
        assert first.commit(["a.arrow"], {}) == second.commit(["a.arrow"], {})
        with pytest.raises(PublishError, match="shard a was finished before with different content"):
            write_shard(attempt, "a", {"a.arrow": b"other"})
        attempt.publish({}, ["a"])
    assert (output / "a.arrow").read_bytes() == b"same"


def test_a_worker_whose_attempt_is_gone_is_told_so_and_writes_nothing(output: Path) -> None:
    with Attempt.open(output, "f") as attempt:
        orphan = attempt.shard("a")
        orphan.path("train/a.arrow").write_bytes(BIG)
        late = attempt.shard("late")
    for failing in (lambda: orphan.commit(["train/a.arrow"], {}), lambda: late.path("x")):
        with pytest.raises(PublishError, match="No such file or directory") as found:
            failing()
        assert "took over" in found.value.hint
    assert listing(output.parent) == []


def test_publishing_needs_every_shard_finished_and_unchanged(output: Path) -> None:
    directory = interrupt(output)
    with Attempt.open(output, "f") as attempt:
        with pytest.raises(PublishError, match="shard b is not finished"):
            attempt.publish({}, ["a", "b"])
        truncate(directory / "data/train/a.arrow", 0.5)
        with pytest.raises(PublishError, match=r"a\.arrow has 150,000 bytes instead of 300,000"):
            attempt.publish({}, ["a"])
    assert not output.exists()


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "a//b", ".", "", "ftcli-manifest.json"])
def test_a_file_name_that_leaves_the_directory_is_a_mistake(name: str, output: Path) -> None:
    with Attempt.open(output, "f") as attempt:
        with pytest.raises(AssertionError):
            attempt.shard("a").path(name)
        with pytest.raises(AssertionError):
            attempt.write(name, "")
    with pytest.raises(AssertionError):
        ShardWriter(output, "../a")


# -- space and permissions ---------------------------------------------------------------------------------------------


def free(monkeypatch: pytest.MonkeyPatch, figure: Callable[[], int]) -> None:
    monkeypatch.setattr(publish, "free_bytes", lambda path: figure())


def test_too_little_space_is_refused_before_the_work_with_both_figures(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, lambda: 1_000_000)
    with pytest.raises(PublishError, match=r"out needs about 1,000,001 more bytes, but only 1,000,000 are free"):
        Attempt.open(output, "f", need_bytes=1_000_001)
    assert listing(output.parent) == []
    Attempt.open(output, "f", need_bytes=1_000_000).close()


def test_finished_shards_do_not_need_their_space_again(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(output)
    free(monkeypatch, lambda: 100)
    Attempt.open(output, "f", need_bytes=300_100).close()
    with pytest.raises(PublishError, match=r"about 101 more bytes, but only 100 are free"):
        Attempt.open(output, "f", need_bytes=300_101)


def test_abandoned_attempts_make_room_when_space_is_short(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned = interrupt(output, "g")
    free(monkeypatch, lambda: 0 if abandoned.exists() else 10)
    Attempt.open(output, "f", need_bytes=0).close()
    assert abandoned.exists()
    Attempt.open(output, "f", need_bytes=10).close()
    assert not abandoned.exists()


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("ENOSPC", "Free space"),
        ("EDQUOT", "Free space"),
        ("EFBIG", "ulimit -f"),
        ("EROFS", "read-only"),
        ("EACCES", "permissions"),
        ("EMFILE", "ulimit -n"),
        ("ENOLCK", "does not support locks"),
        ("EBUSY", "mount point"),
        ("EIO", "Check the disk"),
    ],
)
def test_what_the_file_system_refuses_is_named_with_a_way_out(code: str, hint: str, tmp_path: Path) -> None:
    number = getattr(errno, code)
    with pytest.raises(PublishError) as found, durable.writing(tmp_path):
        raise OSError(number, os.strerror(number))
    assert found.value.message.startswith(f"cannot write {tmp_path}: {os.strerror(number)}")
    assert hint in found.value.hint
    assert ("bytes free" in found.value.message) == (hint == "Free space")


def test_a_disk_that_does_not_even_say_what_is_free_does_not_hide_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(durable, "free_bytes", fail)
    words = durable.refusal(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), tmp_path).message
    assert words == f"cannot write {tmp_path}: No space left on device: free bytes unknown (Input/output error)"


def test_an_error_of_the_output_is_translated_and_an_error_of_a_source_is_not(output: Path) -> None:
    with Attempt.open(output, "f") as attempt:
        with pytest.raises(PublishError, match=r"No space left on device: 7 bytes of it written, [\d,]+ bytes free"):
            write_and(attempt.shard("a"), lambda: Path("/dev/full").write_bytes(b"an error without a file name"))
        shard = attempt.shard("a")
        with pytest.raises(PublishError, match=r"cannot write .*/tmp/a\.\w+/x/y: Not a directory"):
            write_and(shard, lambda: (shard.path("x") / "y").write_bytes(b""))
        with pytest.raises(FileNotFoundError):
            write_and(attempt.shard("a"), (output.parent / "source.jsonl").read_bytes)
        with pytest.raises(KeyboardInterrupt):
            write_and(attempt.shard("a"), stop)
        assert listing(attempt.directory / "tmp") == []
