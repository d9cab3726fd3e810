"""The commit layer in a model: two processes, killed anywhere, and power losses that keep any part of what was not synced."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import ClassVar, Self
from unittest import mock

import pytest

import publish_driver
from ftcli.core.files.manifest import check_published
from ftcli.core.publishing import publish
from ftcli.errors import FtcliError, StoreError
from publish_cases import NEW, OLD
from reliability import SEED, size
from simulated import Actor, Disk, simulated

pytestmark = [pytest.mark.fault, pytest.mark.filterwarnings("ignore::ftcli.errors.FtcliWarning"), pytest.mark.timeout(7200)]

STEPS = 14
"""Of an example, at most."""
MEMORY = Path("/dev/shm")
"""Where there is one: some ten times as fast as a disk that others use too."""
content = cache(publish_driver.content)


def seen(output: Path) -> str:
    """What a reader sees."""
    if not output.exists():
        return "none"
    try:
        check_published(output, full=True)
    except StoreError as error:
        return f"broken: {error.message}"
    files = {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}
    files.pop("ftcli-manifest.json")
    return next((version for version in (OLD, NEW) if files == content(version)), "broken: a mixture")


class Protocol:
    """At every moment a reader sees a version that somebody published or was publishing; reported success survives a power loss."""

    counts: ClassVar[Counter[str]] = Counter()
    skips: Callable[[str], bool] = staticmethod(lambda path: False)

    def __init__(self) -> None:
        self.counts["examples"] += 1
        self.stack = ExitStack()
        self.base = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.stack.callback(shutil.rmtree, self.base)
        (self.base / "disk").mkdir()
        self.disk = Disk(self.base / "disk")
        self.output = self.disk.root / "out"
        self.stack.enter_context(simulated(lambda: self.disk, self.skips))
        self.actors: dict[int, tuple[str, Actor]] = {}
        self.rivals: dict[int, set[str]] = {}
        """Versions of the actors that each actor overlapped with: either may be the later of the two."""
        self.allowed = {"none"}

    def begin(self, number: int, version: str) -> None:
        actor = Actor(lambda: publish_driver.prepare(self.output, version, wait=True, patience=3600))
        self.rivals[number] = {other for other, _ in self.actors.values()}
        for rival in self.actors:
            self.rivals[rival].add(version)
        self.actors[number] = (version, actor)
        self.allowed |= {version}

    def settle(self, number: int) -> None:
        """Take note of how an actor ended, if it did."""
        version, actor = self.actors[number]
        if not actor.over:
            return
        del self.actors[number]
        if actor.error is not None and not isinstance(actor.error, FtcliError):
            raise actor.error
        if actor.error is None:
            self.counts["published"] += 1
            self.allowed = {version, *self.rivals[number]}

    def start(self, number: int, version: str) -> None:
        if number not in self.actors:
            self.begin(number, version)

    def step(self, number: int, calls: int) -> None:
        """Let it make some calls; a reader looks between any two of them."""
        if self.actors:
            number = number if number in self.actors else min(self.actors)
            actor = self.actors[number][1]
            for _ in range(calls):
                actor.step(1)
                assert "none" in self.allowed or self.output.exists(), "a reader sees none"
                if actor.over:
                    break
            self.settle(number)

    def finish(self, number: int) -> None:
        self.step(number, 400)

    def kill(self, number: int) -> None:
        if self.actors:
            self.counts["kills"] += 1
            self.actors.pop(number if number in self.actors else min(self.actors))[1].kill()

    def lose_power(self, rolls: int) -> None:
        self.counts["power losses"] += 1
        for number in list(self.actors):
            self.actors.pop(number)[1].kill()
        self.disk.lose_power(rolls)
        self.read()
        self.allowed = {seen(self.output)}

    def read(self) -> None:
        state = seen(self.output)
        assert state in self.allowed, f"a reader sees {state}, expected {sorted(self.allowed)}"

    def end(self) -> None:
        """Whatever happened, the next run succeeds and leaves nothing else behind."""
        for _, actor in self.actors.values():
            actor.kill()
        self.disk.check()
        self.actors.clear()
        self.begin(0, NEW)
        self.step(0, 1_000)
        assert not self.actors, "the next run does not end"
        self.disk.check()
        assert self.allowed == {NEW}, f"a reader sees one of {sorted(self.allowed)} after the next run, expected {NEW}"
        assert [path.name for path in self.output.parent.iterdir()] == ["out"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.stack:
            for _, actor in self.actors.values():
                actor.kill()


RULES: tuple[Callable[[Protocol, random.Random], None], ...] = (
    lambda model, rolls: model.start(rolls.randint(0, 1), rolls.choice([OLD, NEW])),
    lambda model, rolls: model.step(rolls.randint(0, 1), rolls.randint(1, 60)),
    lambda model, rolls: model.finish(rolls.randint(0, 1)),
    lambda model, rolls: model.kill(rolls.randint(0, 1)),
    lambda model, rolls: model.lose_power(rolls.getrandbits(30)),
)


def explore(machine: type[Protocol], examples: int) -> None:
    """Plain chance from one seed. Nothing is run twice, as Hypothesis would: leases hold times and pids, and so no two runs are the same."""
    rolls = random.Random(SEED)
    for _ in range(examples):
        weights = [rolls.choice((0, 1, 1, 4)) for _ in RULES]  # another mixture each time
        with machine() as model:
            for rule in rolls.choices(RULES, weights if any(weights) else None, k=rolls.randint(1, STEPS)):
                rule(model, rolls)
                model.read()
            model.end()


@pytest.mark.reliability(4, "two processes, kills and power losses")
def test_no_sequence_of_kills_and_power_losses_shows_a_reader_anything_but_published_data(tally: Callable[..., None]) -> None:
    class Real(Protocol):
        counts: ClassVar[Counter[str]] = Counter()

    explore(Real, size(300, 10_000))
    assert min(Real.counts["published"], Real.counts["kills"], Real.counts["power losses"]) > 20  # of the short form
    tally(**{name.replace(" ", "_"): count for name, count in Real.counts.items()})


def delete_then_rename(one: Path, other: Path) -> bool:
    """What many tools do in place of an exchange."""
    shutil.rmtree(other)
    one.rename(other)
    return True


MUTATIONS = {
    "files are not synced": lambda path: Path(path).is_file(),
    "folders are not synced": lambda path: Path(path).is_dir(),
    "success is told before the rename is durable": lambda path: path.endswith("/disk"),
    "the old version is deleted first": lambda path: False,
}


@pytest.mark.reliability(4, "mutated protocols", control=True)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutated_protocol_is_found_in_the_same_model(mutation: str, tally: Callable[..., None]) -> None:
    class Mutated(Protocol):
        counts: ClassVar[Counter[str]] = Counter()
        skips = staticmethod(MUTATIONS[mutation])

        def __init__(self) -> None:
            super().__init__()
            if mutation == "the old version is deleted first":
                self.stack.enter_context(mock.patch.object(publish, "exchange", delete_then_rename))

    with pytest.raises(AssertionError, match="a reader sees"):
        explore(Mutated, 3_000)
    tally(f"{mutation}: found in example {Mutated.counts['examples']}")


class Directed(Protocol):
    """Goes the ways that it is told to, in folders that do not exist yet."""

    def __init__(self) -> None:
        super().__init__()
        self.output = self.disk.root / "new" / "folder" / "out"


@pytest.mark.reliability(4, "success told by a run that found the output of a killed one")
@pytest.mark.parametrize("killed", [False, True], ids=["made", "found"])
def test_success_is_told_when_the_output_is_durable(killed: bool, tally: Callable[..., None]) -> None:
    """Also where it is found, and the run that made it was killed between the rename and the fsync that makes the rename durable."""
    losses = size(20, 200)
    for rolls in range(losses):
        with Directed() as model:
            model.start(0, NEW)
            while killed and not model.output.exists():
                model.step(0, 1)
            if killed:
                model.kill(0)
                model.start(0, NEW)
            model.finish(0)
            assert model.allowed == {NEW}
            model.lose_power(rolls)
            model.end()
    tally(power_losses=losses)
