"""Files that are written past the page cache: the same bytes and the same description as by any other way, and every refusal of the disk is told."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa
import pytest

from ftcli.core.files import new_file
from ftcli.core.files.manifest import EDGE_BYTES, describe
from ftcli.core.files.new_file import BUFFER, NewFile, read_ahead

SIZES = (
    0,
    1,
    EDGE_BYTES - 1,
    EDGE_BYTES,
    EDGE_BYTES + 1,
    2 * EDGE_BYTES + 7,
    BUFFER - 1,
    BUFFER,
    BUFFER + 1,
    2 * BUFFER,
    3 * BUFFER + EDGE_BYTES // 2,
)
CONTENT = np.random.default_rng(0).bytes(max(SIZES))


@pytest.fixture(autouse=True)
def _no_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_file, "_spare", [])


def put(path: Path, content: bytes, portion: int = 1 << 30) -> NewFile:
    file = NewFile(path)
    for start in range(0, len(content), portion):
        file.write(content[start : start + portion])
    assert file.tell() == len(content)
    file.close()
    return file


def direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.mark.parametrize("portion", [1 << 30, 100_003])
@pytest.mark.parametrize("size", SIZES)
def test_it_holds_what_was_written_and_says_of_it_what_reading_it_says(size: int, portion: int, tmp_path: Path) -> None:
    made = put(tmp_path / "a", CONTENT[:size], portion)
    assert (tmp_path / "a").read_bytes() == CONTENT[:size]
    assert made.described("x/a") == describe(tmp_path / "a", "x/a")


def test_another_content_is_described_otherwise(tmp_path: Path) -> None:
    made = put(tmp_path / "a", CONTENT[:EDGE_BYTES] + b"1" + CONTENT[EDGE_BYTES:])
    (tmp_path / "b").write_bytes(CONTENT[:EDGE_BYTES] + b"2" + CONTENT[EDGE_BYTES:])
    assert made.described("a")["xxh3"] != describe(tmp_path / "b", "a")["xxh3"]


def test_whole_buffers_go_past_the_page_cache_and_the_rest_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "probe").open("wb") as probe:
        try:
            fcntl.fcntl(probe.fileno(), fcntl.F_SETFL, os.O_DIRECT)
        except OSError:
            pytest.skip("this file system has no O_DIRECT")
    ways: list[tuple[bool, int]] = []
    write = os.write

    def watched(descriptor: int, data: memoryview) -> int:
        ways.append((direct(descriptor), len(data)))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", watched)
    put(tmp_path / "a", CONTENT[: 2 * BUFFER + 5])
    put(tmp_path / "b", CONTENT[:5])
    assert ways == [(True, BUFFER), (True, BUFFER), (False, 5), (False, 5)]


@pytest.mark.parametrize("where", ["flag", "write"])
@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_such_writes_gets_the_usual_ones(
    where: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, control = os.write, fcntl.fcntl

    def no_flag(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(code, os.strerror(code))
        return control(descriptor, command, flags)

    def no_write(descriptor: int, data: memoryview) -> int:
        if direct(descriptor):
            raise OSError(code, os.strerror(code))
        return write(descriptor, data)

    monkeypatch.setattr(*((fcntl, "fcntl", no_flag) if where == "flag" else (os, "write", no_write)))
    made = put(tmp_path / "a", CONTENT)
    assert made.described("a") == describe(tmp_path / "a", "a")


def test_a_write_that_takes_a_part_goes_on_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: max(4096, len(data) // 2 // 4096 * 4096)]))
    put(tmp_path / "a", CONTENT)
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("size", [5, BUFFER + 5, 3 * BUFFER], ids=["the rest", "a buffer, then the rest", "a buffer, at the next one"])
def test_what_the_disk_refuses_names_the_file_and_leaves_nothing_open(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = len([*Path("/proc/self/fd").iterdir()])
    monkeypatch.setattr(os, "write", full)
    file = NewFile(tmp_path / "a")
    with pytest.raises(OSError, match="No space left") as caught:  # noqa: PT012 - which of the two tells it depends on the size
        file.write(CONTENT[:size])
        file.close()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "a"))
    file.abandon()
    file.abandon()
    assert file.closed
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_file_with_a_hole_stays_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes on after a refusal, as a library that ends what it began may, is refused again: the file would be shorter than it is described."""
    write, calls = os.write, [0]

    def second(descriptor: int, data: memoryview) -> int:
        calls[0] += 1
        if calls[0] == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", second)
    file = NewFile(tmp_path / "a")
    for _ in range(100):
        with suppress(OSError):
            file.write(CONTENT[: 3 * BUFFER])
    assert calls[0] == 2
    with pytest.raises(OSError, match="Input/output"):
        file.write(b"")
    with pytest.raises(OSError, match="Input/output"):
        file.close()
    assert file.closed
    assert (calls[0], (tmp_path / "a").stat().st_size) == (2, BUFFER)


def test_whatever_fails_beside_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(descriptor: int, data: memoryview) -> int:
        raise MemoryError

    monkeypatch.setattr(os, "write", no_memory)
    file = NewFile(tmp_path / "a")
    with pytest.raises(MemoryError):  # noqa: PT012 - which of the two tells it depends on the thread
        file.write(CONTENT[: 2 * BUFFER])
        file.close()


def test_without_a_further_thread_the_file_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", none_left)
    made = put(tmp_path / "a", CONTENT)
    assert made.described("a") == describe(tmp_path / "a", "a")


def test_buffers_are_taken_again(tmp_path: Path) -> None:
    for number in range(5):
        put(tmp_path / str(number), CONTENT)
    assert len(new_file._spare) == 1


def test_a_forked_process_has_buffers_of_its_own(tmp_path: Path) -> None:
    """Workers are forked, and a worker writes when the process that it was forked from may, too. mmap's default is memory that they share."""
    put(tmp_path / "a", CONTENT)
    ours = NewFile(tmp_path / "ours")
    ours.write(b"1" * 1000)
    if not (child := os.fork()):
        code = 1
        try:
            theirs = NewFile(tmp_path / "theirs")
            theirs.write(b"2" * BUFFER + b"2" * 1000)
            theirs.close()
            for buffer in (*new_file._spare, ours._buffer):
                buffer[:] = b"3" * BUFFER
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    ours.close()
    assert set((tmp_path / "ours").read_bytes()) == {ord("1")}
    assert set((tmp_path / "theirs").read_bytes()) == {ord("2")}


def test_arrow_writes_to_it_as_to_its_own_files(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([[1, 2], [3]] * 400_000, pa.list_(pa.int32()))})
    file = NewFile(tmp_path / "a")
    with pa.ipc.new_stream(pa.PythonFile(file, mode="w"), table.schema) as writer:
        writer.write_table(table)
    file.close()
    with pa.OSFile(str(tmp_path / "b"), "wb") as own, pa.ipc.new_stream(own, table.schema) as writer:
        writer.write_table(table)
    assert file.described("a") == describe(tmp_path / "b", "a")
    assert (tmp_path / "a").stat().st_size > BUFFER
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_reading_ahead_asks_for_every_file_and_minds_no_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, *_: asked.append(str(Path(f"/proc/self/fd/{descriptor}").readlink())))
    put(tmp_path / "a", CONTENT)
    read_ahead([tmp_path / "a", tmp_path / "none"])
    assert asked == [str(tmp_path / "a")]
