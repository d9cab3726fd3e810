"""Power losses: the output lies on an ext4 file system in a file, which is copied at random moments; the copy is what the disk kept.

The mount options are legal and unfriendly: metadata is written every second, without the data that it is about.
"""

from __future__ import annotations

import filecmp
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psutil
import pytest

import naive_driver
import test_tokenize_faults as tokenizing_faults
from ftcli.core.files.manifest import check_published
from ftcli.errors import StoreError
from ftcli.testing import tiny_tokenizer
from publish_cases import NEW, OLD, command, seen
from reliability import SEED, size
from timing import PATIENCE, until
from tokenizing import corpus, write
from tracing import Naive

OPTIONS = "loop,commit=1,data=writeback,noauto_da_alloc"
MEGABYTES = 24
MOMENTS = size(8, 50)


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", OPTIONS, str(image), str(folder)], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def formatted(image: Path) -> Path:
    with image.open("wb") as file:
        file.truncate(MEGABYTES << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    return image


def obstacle() -> str:
    """Why there can be no loop mounts here; empty where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "mounting an ext4 image needs root"
    if not all(map(shutil.which, ("mkfs.ext4", "mount", "umount"))):
        return "mkfs.ext4 and mount are not installed"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(formatted(Path(folder, "image")), Path(folder, "mount")):
                return ""
        except (OSError, subprocess.CalledProcessError) as error:
            return f"an ext4 image cannot be mounted here: {error}"


OBSTACLE = obstacle()
pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE),
    pytest.mark.timeout(7200),
]


class Medium:
    """A mounted image, and what is left of it when the power goes."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.image, self.folder = image, folder
        self.output = folder / "out"
        self._copies = count()

    def sync(self) -> None:
        subprocess.run(["sync", "--file-system", str(self.folder)], check=True)

    def sometimes_sync(self, rolls: random.Random) -> None:
        """As the kernel or another program does at any time."""
        if rolls.random() < 0.5:
            self.sync()

    @contextmanager
    def without_power(self, *pids: int) -> Iterator[Path]:
        """The output as it is found after a power loss at this moment; the processes and their children are stopped meanwhile."""
        processes = stopped(pids)
        # a file of its own: what is still open in the copy before, which is unmounted lazily, goes on writing there
        copy = self.image.with_suffix(f".copy{next(self._copies)}")
        while True:  # until nothing was written during the copy, by the kernel's own threads
            subprocess.run(["cp", "--sparse=always", str(self.image), str(copy)], check=True)
            if filecmp.cmp(self.image, copy, shallow=False):
                break
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        try:
            with mounted(copy, self.image.with_suffix(".mount")) as folder:
                yield folder / "out"
        finally:
            copy.unlink()


def stopped(pids: Iterable[int]) -> list[psutil.Process]:
    """The processes and their children, each stopped when its system call has ended; those that have ended are left out."""
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found += [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
            while process.status() not in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}:
                time.sleep(0.001)
    return found


@pytest.fixture
def medium(tmp_path: Path) -> Iterator[Medium]:
    image = formatted(tmp_path / "image")
    with mounted(image, tmp_path / "mount") as folder:
        yield Medium(image, folder)


def commits(medium: Medium, mode: str) -> Counter[str]:
    """What is there after power losses at random moments of the driver's run: a version, none, "broken", or "lost" after reported success."""
    rolls, states = random.Random(SEED), Counter[str]()
    took = 0.3
    for moment in range(MOMENTS):
        version, other = (NEW, OLD) if moment % 2 else (OLD, NEW)
        before = seen(medium.output)
        begun = time.monotonic()
        driver = subprocess.Popen(command(mode, medium.output, version), stdout=subprocess.DEVNULL)
        try:
            driver.wait(PATIENCE if moment % 4 == 3 else rolls.uniform(0, 1.3 * took))  # every fourth has ended, the others perhaps
        except subprocess.TimeoutExpired:
            medium.sometimes_sync(rolls)
        else:
            took = time.monotonic() - begun
        finished = driver.poll() == 0
        with medium.without_power(driver.pid) as output:
            state = seen(output)
        assert driver.wait(PATIENCE) == 0
        assert seen(medium.output) == version
        states["lost" if finished and state != version else "kept" if state in {version, before} else "broken"] += 1
        assert state != other or before == other
    return states


@pytest.mark.reliability(3, "the commit layer at random moments")
def test_the_commit_layer_loses_nothing_that_it_reported_and_breaks_nothing(medium: Medium, tally: Callable[..., None]) -> None:
    states = commits(medium, "normal")
    tally(power_losses=states.total(), silent_losses=states["lost"] + states["broken"])
    assert states == {"kept": MOMENTS}


@pytest.mark.reliability(3, "the commit layer without fsync", control=True)
def test_without_fsync_the_same_writer_loses_what_it_reported(medium: Medium, tally: Callable[..., None]) -> None:
    states = commits(medium, "no-fsync")
    tally(f"without fsync: {states['lost']} of {states.total()} power losses took what was reported, {states['broken']} broke it")
    assert states["lost"] > 0


@pytest.mark.reliability(3, "save_to_disk", control=True)
def test_save_to_disk_loses_silently_in_the_same_harness(medium: Medium, tally: Callable[..., None]) -> None:
    rolls, found = random.Random(SEED), Counter[str]()
    with Naive() as naive:
        naive.begin(medium.output, OLD)
        naive.go()
        assert naive.end() == 0
        medium.sync()
        for moment in range(MOMENTS):
            version, before = (OLD, NEW) if moment % 2 else (NEW, OLD)
            pid = naive.begin(medium.output, version)
            naive.go()
            finished = moment % 2 == 0
            if finished:
                assert naive.end() == 0
            else:
                time.sleep(rolls.uniform(0, 0.06))
                medium.sometimes_sync(rolls)
            with medium.without_power(pid) as output:
                state = naive_driver.seen(output, (OLD, NEW))
            if not finished:
                assert naive.end() == 0
            silent = state == "wrong" or (finished and state in {before, "none"})
            found["silent" if silent else "refused" if state == "refused" else "kept"] += 1
            medium.sync()
    tally(f"save_to_disk: {found['silent']} of {found.total()} power losses lost rows silently, {found['refused']} left what does not load")
    assert found["silent"] > 0


def state_of(output: Path) -> str:
    """The content hash of a reader's data, "none", or why they are refused."""
    if not output.exists():
        return "none"
    try:
        return str(check_published(output, full=True)["content_hash"])
    except StoreError as error:
        return f"broken: {error.message}"


@pytest.mark.reliability(3, "tokenize --num-proc 2 at random moments")
def test_tokenize_leaves_the_old_the_new_or_none_and_goes_on_after_a_power_loss(
    medium: Medium, tmp_path: Path, tally: Callable[..., None]
) -> None:
    rolls = random.Random(SEED)
    tiny_tokenizer(tmp_path / "tokenizer")
    write(tmp_path / "data.jsonl", corpus(2_000), ("a", "b", "c", "d") * 500)

    def tokenize(output: Path, length: int) -> subprocess.Popen[str]:
        options = ("--num-proc", "2", "--max-length", str(length), "--overwrite")
        return tokenizing_faults.start(tokenizing_faults.command(tmp_path, output, *options), tmp_path)

    def report(process: subprocess.Popen[str]) -> str:
        code, document = tokenizing_faults.end(process)
        assert code == 0, document["error"]
        return str(document["metrics"]["content_hash"])

    losses, resumed, before, length = 0, 0, "none", 24
    while losses < MOMENTS or resumed == 0:
        length = 40 - length  # 24 and 16 in turn: other rows, the same number of them
        process, states, again = tokenize(medium.output, length), set[str](), set[str]()
        until(lambda: tokenizing_faults.records(medium.output) or process.poll() is not None, 0.005)  # noqa: B023 - called here
        while process.poll() is None:
            time.sleep(rolls.uniform(0, 0.1))
            medium.sometimes_sync(rolls)
            with medium.without_power(process.pid) as output:
                losses += 1
                states.add(state_of(output))
                if resumed < size(1, 5) and tokenizing_faults.records(output) > 2:
                    resumed += 1
                    again.add(report(tokenize(output, length)))
        after = report(process)
        with medium.without_power() as output:
            losses += 1
            assert state_of(output) == after, "reported and lost"
        assert states <= {before, after}
        assert again <= {after}, "another content after a power loss"
        before = after
    tally(power_losses=losses, silent_losses=0, resumed=resumed)
