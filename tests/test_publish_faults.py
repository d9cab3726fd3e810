"""The commit layer killed, starved, raced and traced: at every point a reader sees the old data, the new data or none."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

import naive_driver
import publish_driver
from publish_cases import DRIVER, NEW, OLD, command, seen
from reliability import size
from timing import PATIENCE
from tracing import CALLS, Call, Forked, Naive, calls_of, needs_strace, points

pytestmark = pytest.mark.fault


def trace(mode: str, output: Path, *options: str) -> list[str]:
    """The system calls of a run of the driver."""
    log = output.parent / "strace.log"
    done = subprocess.run(
        ["strace", "-f", *options, "-o", log, "-e", f"trace={CALLS}", *command(mode, output)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return calls_of(log)


@pytest.fixture(scope="module")
def driver() -> Iterator[Forked]:
    with Forked(*DRIVER) as forked:
        yield forked


def strike(driver: Forked, mode: str, call: Call, injection: str, base: Path, work: Path) -> tuple[Path, int, str]:
    """Run the driver on a copy of `base` with one fault at `call`; where the output lies, how the run ended and what it printed."""
    shutil.copytree(base, work)
    printed = work.with_name(f"{work.name}.txt")
    code = driver.traced([mode, work / "out", NEW, printed], "-o", os.devnull, *call.struck(injection))
    return work / "out", code, printed.read_text()


def outcomes(driver: Forked, mode: str, base: Path, folder: Path, calls: list[Call]) -> list[str]:
    """What a reader sees after a SIGKILL at each call; after each, a rerun must publish the new version and leave nothing behind."""
    states = []
    for index, call in enumerate(calls):
        output, code, printed = strike(driver, mode, call, "signal=SIGKILL", base, folder / str(index))
        assert code == -signal.SIGKILL, f"{call} was not reached: {code} {printed}"
        states.append(seen(output))
        if not mode.startswith("naive"):
            publish_driver.prepare(output, NEW)
            assert seen(output) == NEW, call
            assert [path.name for path in output.parent.iterdir()] == ["out"], call
        shutil.rmtree(output.parent)
    return states


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reruns in this process need no durability; the driver's own process keeps its fsync."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


@pytest.fixture
def old(nothing: Path) -> Path:
    """A folder in which the old version is published as `out`."""
    publish_driver.prepare(nothing / "out", OLD)
    return nothing


def rehearsed(driver: Forked, mode: str, base: Path) -> list[Call]:
    """Every point of a run on a copy of `base`."""
    copy, log = shutil.copytree(base, base.with_name("rehearsal")), base.with_name("strace.log")
    assert driver.traced([mode, copy / "out", NEW, os.devnull], "-o", str(log), "-e", f"trace={CALLS}") == 0
    calls = points(calls_of(log), copy / "out")
    assert seen(copy / "out") == NEW
    return calls


def ending(calls: list[Call]) -> list[Call]:
    """From the last ten calls before the output appears: the writing of the shards is the same in every scenario."""
    return calls[next(index for index, call in enumerate(calls) if call.published) - 10 :]


# -- killed ------------------------------------------------------------------------------------------------------------


@needs_strace
@pytest.mark.reliability(1, "replacement: the old or the new")
def test_killed_at_any_call_of_a_replacement_a_reader_sees_the_old_or_the_new(
    driver: Forked, old: Path, tmp_path: Path, tally: Callable[..., None]
) -> None:
    calls = rehearsed(driver, "normal", old)
    assert len(calls) >= 95
    assert {"openat", "write", "fsync", "renameat2", "close", "flock"} <= {call.name for call in calls}
    states = outcomes(driver, "normal", old, tmp_path, calls)
    tally(points=len(calls), wrong=states.count("broken"))
    assert states == [NEW if call.published else OLD for call in calls]


@needs_strace
@pytest.mark.reliability(1, "resume: the old or the new")
def test_killed_at_any_call_of_a_run_that_resumes_a_reader_sees_the_old_or_the_new(
    driver: Forked, old: Path, tmp_path: Path, tally: Callable[..., None]
) -> None:
    publish_driver.prepare(old / "out", NEW, stop_after=2)
    assert len(list(old.glob(".out.*.attempt/records/*.json"))) == 2
    calls = rehearsed(driver, "normal", old)[:: size(2, 1)]
    states = outcomes(driver, "normal", old, tmp_path, calls)
    tally(points=len(calls), wrong=states.count("broken"))
    assert states == [NEW if call.published else OLD for call in calls]


@needs_strace
@pytest.mark.reliability(1, "first publication: none or the new")
def test_killed_while_publishing_for_the_first_time_a_reader_sees_none_or_the_new(
    driver: Forked, nothing: Path, tmp_path: Path, tally: Callable[..., None]
) -> None:
    calls = ending(rehearsed(driver, "normal", nothing))
    states = outcomes(driver, "normal", nothing, tmp_path, calls)
    tally(points=len(calls), wrong=states.count("broken"))
    assert states == [NEW if call.published else "none" for call in calls]


@needs_strace
@pytest.mark.reliability(1, "replacement without an exchange of directories: the old, none or the new")
def test_killed_on_a_file_system_without_exchange_a_reader_sees_the_old_then_for_one_call_none_then_the_new(
    driver: Forked, old: Path, tmp_path: Path, tally: Callable[..., None]
) -> None:
    calls = ending(rehearsed(driver, "no-exchange", old))
    states = outcomes(driver, "no-exchange", old, tmp_path, calls)
    tally(points=len(calls), wrong=states.count("broken"))
    runs = [(state, len(list(group))) for state, group in itertools.groupby(states)]
    assert [state for state, _ in runs] == [OLD, "none", NEW]
    assert dict(runs)["none"] == 1


@needs_strace
@pytest.mark.reliability(1, "files written in place, then a manifest", control=True)
@pytest.mark.parametrize("mode", ["naive-manifest-first", "naive-manifest-last"])
def test_a_naive_writer_is_caught_by_the_same_harness(
    driver: Forked, mode: str, old: Path, tmp_path: Path, tally: Callable[..., None]
) -> None:
    states = outcomes(driver, mode, old, tmp_path, rehearsed(driver, mode, old)[:: size(2, 1)])
    tally(f"{mode}: {states.count('broken')} of {len(states)} kills left a mixture")
    assert "broken" in states


@needs_strace
@pytest.mark.reliability(1, "save_to_disk", control=True)
def test_save_to_disk_killed_in_the_same_harness_loads_wrong_rows_without_an_error(tmp_path: Path, tally: Callable[..., None]) -> None:
    states = []
    with Naive() as naive:
        base = tmp_path / "base"
        base.mkdir()
        assert naive.run(base / "out", OLD, "-o", os.devnull, "-e", "trace=none") == 0
        calls = naive.rehearse(shutil.copytree(base, tmp_path / "rehearsal") / "out", NEW)
        assert len(calls) >= 14
        for index, call in enumerate(calls[:: max(1, len(calls) // size(14, 100))]):
            output = shutil.copytree(base, tmp_path / str(index)) / "out"
            naive.kill(output, NEW, call)
            states.append(naive_driver.seen(output, (OLD, NEW)))
    tally(f"save_to_disk: {states.count('wrong')} of {len(states)} kills loaded wrong rows, {states.count('refused')} did not load")
    assert "wrong" in states


# -- power loss --------------------------------------------------------------------------------------------------------


def undurable(lines: list[str], output: Path) -> list[str]:
    """What a power loss could take: all that was not synced between its last change and the rename that makes the output appear.

    Then the rename itself, where the old version is deleted before the folder that holds both is synced.
    """
    dirty: set[str] = set()
    lost: list[str] = []
    appeared = False

    def parent(path: str) -> str:
        return str(PurePosixPath(path).parent)

    for line in lines:
        match = re.match(r"(\w+)\((.*)\) += (-?\d+)", line)
        if match is None or match[3] == "-1":
            continue
        name, arguments, _ = match.groups()
        paths = re.findall(r'"(/[^"]*)"', arguments)
        handle = re.match(r"\d+<([^>]*)>", arguments)
        if name == "openat" and "O_CREAT" in arguments:
            dirty |= {paths[0], parent(paths[0])}
        elif name in {"write", "pwrite64", "ftruncate"} and handle:
            dirty.add(handle[1])
        elif name == "fsync" and handle:
            dirty.discard(handle[1])
        elif name == "mkdir":
            dirty |= {paths[0], parent(paths[0])}
        elif name in {"rename", "renameat2"}:
            source, target = paths
            if target == str(output):
                appeared = True
                lost += [path for path in dirty if PurePosixPath(path).is_relative_to(source)]
            dirty = {path.replace(source, target, 1) if PurePosixPath(path).is_relative_to(source) else path for path in dirty}
            dirty |= {parent(source), parent(target)}
        elif name == "unlinkat" and appeared and str(output.parent) in dirty:
            lost.append("the rename")
    return lost


@needs_strace
@pytest.mark.reliability(3, "by the order of system calls, all is durable before the output appears")
def test_everything_is_durable_before_the_output_appears_and_before_the_old_one_goes(old: Path) -> None:
    lines = trace("normal", old / "out", "-y")
    assert sum("rename" in line for line in lines) >= 8
    assert undurable(lines, old / "out") == []


@needs_strace
@pytest.mark.reliability(3, "without fsync the trace shows data that a power loss takes", control=True)
def test_a_writer_without_fsync_is_caught_by_the_same_trace(old: Path) -> None:
    lost = undurable(trace("no-fsync", old / "out", "-y"), old / "out")
    assert any(path.endswith(".arrow") for path in lost)
    assert any(path.endswith("/data") for path in lost)
    assert "the rename" in lost


# -- refused by the file system ----------------------------------------------------------------------------------------


@needs_strace
@pytest.mark.reliability(5, "a call of the commit layer refused")
@pytest.mark.parametrize(("error", "words"), [("ENOSPC", "No space left on device"), ("EIO", "Input/output error")])
def test_refused_at_any_call_the_error_is_named_nothing_is_published_and_a_rerun_succeeds(
    driver: Forked, error: str, words: str, old: Path, tmp_path: Path, tally: Callable[..., None]
) -> None:
    kinds = {"ENOSPC": {"write", "pwrite64", "mkdir", "openat"}, "EIO": {"fsync", "rename", "renameat2"}}[error]
    calls = [
        call for call in rehearsed(driver, "normal", old) if call.name in kinds and " = -1 " not in call.line
    ]  # not: the folder exists already
    assert len(calls) >= 20
    tally(points=len(calls))

    for index, call in enumerate(calls):
        output, code, printed = strike(driver, "normal", call, f"error={error}", old, tmp_path / str(index))
        assert code == 1, f"{call}: {printed}"
        assert printed.startswith("PublishError | cannot write /"), call
        assert printed.count("\n") == 1, f"{call}: more than the error: {printed}"
        assert words in printed, call
        assert str(output.parent) in printed, call
        if error == "ENOSPC":
            assert re.search(r"[\d,]+ bytes of it written, [\d,]+ bytes free \| Free space", printed), printed
        assert seen(output) == (NEW if call.published else OLD), call
        assert not list(output.parent.glob(".*/tmp/*")), f"{call} left temporary files"
        publish_driver.prepare(output, NEW)
        assert seen(output) == NEW, call
        assert [path.name for path in output.parent.iterdir()] == ["out"], call
        shutil.rmtree(output.parent)


@needs_strace
@pytest.mark.reliability(5, "files written in place, then a manifest", control=True)
def test_a_naive_writer_refused_at_any_call_leaves_a_mixture(driver: Forked, old: Path, tmp_path: Path, tally: Callable[..., None]) -> None:
    calls = [call for call in rehearsed(driver, "naive-manifest-last", old) if call.name == "write"]
    states = []
    for index, call in enumerate(calls):
        output, *_ = strike(driver, "naive-manifest-last", call, "error=ENOSPC", old, tmp_path / str(index))
        states.append(seen(output))
    tally(f"naive-manifest-last: {states.count('broken')} of {len(states)} refused writes left a mixture")
    assert "broken" in states


def in_a_small_disk(script: str, options: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in /mnt of a private mount name space, a tmpfs of its own."""
    inside = f"mount -t tmpfs -o {options} tmpfs /mnt || exit 77; {script}"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", inside], capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    return done


needs_unshare = pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")


@needs_unshare
@pytest.mark.reliability(5, "a full tmpfs")
def test_a_disk_that_is_really_full_is_named_and_after_freeing_space_the_rerun_succeeds() -> None:
    run = " ".join(command("normal", Path("/mnt/out")))
    script = f"head -c 490000 /dev/zero > /mnt/filler; {run}; echo rc=$?; ls /mnt; rm /mnt/filler; {run}; echo rc=$?; ls -A /mnt"
    done = in_a_small_disk(script, "size=512k")
    said = done.stdout.splitlines()
    assert re.fullmatch(r"PublishError \| cannot write /mnt/.*No space left on device.* bytes free \| Free space.*", said[0])
    assert said[1:3] == ["rc=1", "filler"]
    assert said[3] in {"worked 1", "worked 2", "worked 3"}  # shards that were finished before the disk was full are kept
    assert said[4:] == ["rc=0", "out"]


@needs_unshare
@pytest.mark.reliability(6, "a read-only file system")
def test_a_read_only_file_system_is_refused_at_once() -> None:
    done = in_a_small_disk(f"{' '.join(command('normal', Path('/mnt/out')))}; echo rc=$?", "size=512k,ro")
    assert done.stdout.startswith("PublishError | cannot write /mnt/")
    assert "read-only" in done.stdout
    assert done.stdout.endswith("rc=1\n")
