"""The queue of `--executor ray` on a Ray that is played in this process: who is asked, replaced, refused. The real one: test_executor_ray.py."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ftcli.plugins.executor_ray import Ray
from ftcli.plugins.ray_pool import FRUITLESS, POLL_SECONDS, START_SECONDS

from ftcli.errors import DataError, PublishError, WorkerDied
from ftcli.records import ShardPlan
from ftcli.settings import Settings
from test_executors import complain, die, double, recall, remember, shards


class GoneError(Exception):
    """Ray's word for it."""


class Reference:
    def __init__(self, value: Any) -> None:
        self.value = value


NEVER = Reference(None)
"""What nobody ever answers."""


class Method:
    def __init__(self, played: Played, actor: Any, name: str) -> None:
        self.played, self.actor, self.call, self.name = played, actor, getattr(actor, name), name

    def options(self, **_: Any) -> Method:
        return self

    def remote(self, *arguments: Any) -> Any:
        if self.name == "enter":
            if self.played.actors.index(self.actor) < self.played.absent:
                return NEVER
            return Reference(GoneError("node lost") if self.played.lose("enter") else self.call(*arguments))
        return self._stream(*arguments)

    def _stream(self, *arguments: Any) -> Iterator[Reference]:
        if self.played.lose("task"):
            yield Reference(self.played.exceptions.RayTaskError("Traceback:\n  File a.py\nModuleNotFoundError: No module named 'mine'"))
            return
        for told in self.call(*arguments):
            yield Reference(GoneError("node lost") if told[0] == "done" and self.played.lose("work") else told)


class Played:
    """What the executor needs of `ray`: actors are objects here, their worker processes are real."""

    def __init__(self) -> None:
        self.exceptions = SimpleNamespace(RayError=GoneError, RayTaskError=type("RayTaskError", (GoneError,), {"cause": None}))
        self.losses: list[str] = []
        """Calls whose node is lost, in turn."""
        self.actors: list[Any] = []
        self.absent = 0
        """Actors that Ray finds no place for, the first ones."""
        self.waited = 0.0
        """Seconds that nobody had anything to say."""

    def lose(self, what: str) -> bool:
        if what not in self.losses:
            return False
        self.losses.remove(what)
        return True

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        names = {"NodeName": "node-a", "NodeManagerHostname": "gpu-1", "NodeManagerAddress": "10.0.0.1"}
        return [{"NodeID": "a", "Alive": True, "Resources": {"CPU": 2.0}, **names}, {"NodeID": "b", "Alive": False, "Resources": {}}]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "a")

    def put(self, value: Any) -> Reference:
        return Reference(value)

    def get(self, reference: Reference) -> Any:
        if isinstance(reference.value, Exception):
            raise reference.value
        return reference.value

    def wait(self, waitables: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        found = [each for each in waitables if each is not NEVER]
        self.waited += 0.0 if found else timeout
        return found, []

    def remote(self, kind: type) -> Any:
        def make(*arguments: Any) -> Any:
            actor = kind(*arguments)
            self.actors.append(actor)
            return SimpleNamespace(actor=actor, enter=Method(self, actor, "enter"), work=Method(self, actor, "work"))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

    def kill(self, handle: Any, no_restart: bool) -> None:
        end(handle.actor)
        if self.lose("kill"):
            raise GoneError("System error: Actor creation cancelled.")


def end(actor: Any) -> None:
    actor._end_copy()
    actor._leave()
    if actor._own is not None:
        actor._own.stop()
        actor._own.join()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    ray = Played()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("ftcli.plugins.executor_ray.require_ray", lambda: None)
    yield ray
    for actor in ray.actors:
        end(actor)


def executor(workers: int = 1) -> Ray:
    made = Ray()
    assert made.connect(Settings()).value == 2
    made.start(workers)
    return made


def test_every_shard_is_made_and_what_is_made_again_is_not_counted_again(played: Played) -> None:
    seen: list[tuple[int, int, int, str]] = []
    played.losses = ["enter", "work", "work"]

    with closing(executor(2)) as made:
        assert sorted(made.run(double, shards(4), lambda *told: seen.append(told))) == [0, 2, 4, 6]

    assert [sum(column) for column in list(zip(*seen, strict=True))[:3]] == [400, 60, 6000]
    assert len(played.actors) == 5  # two, and one for each that was lost


def test_everyone_is_asked_and_a_worker_that_comes_later_has_loaded_what_the_others_have(played: Played) -> None:
    with closing(executor(2)) as made:
        assert not made.arrived()
        assert len(made.each(os.getpid)) == 2
        assert made.arrived()
        assert made.each(partial(remember, "yes")) == [None, None]
        played.losses = ["work"]
        found = list(made.run(recall, shards(6), lambda *_: None))

    assert {word for word, _ in found} == {"yes"}
    assert len(played.actors) == 3


def test_an_error_arrives_and_an_abort_is_rescued_and_a_kill_repeated(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftcli.plugins.executor_ray.KILLS", 2)
    with closing(executor()) as made, pytest.raises(DataError, match="not JSON"):
        list(made.run(partial(complain, marks=tmp_path), shards(3)[1:], lambda *_: None))
    with closing(executor()) as made:
        assert list(made.run(partial(die, how="abort", marks=tmp_path), shards(3)[2:], lambda *_: None, lambda *_: double)) == [4]
    with closing(executor()) as made, pytest.raises(WorkerDied, match="killed 2 times"):
        list(made.run(partial(die, how="kill", marks=tmp_path), shards(3)[2:], lambda *_: None))


def test_what_raises_in_the_actor_itself_is_told_and_not_done_again(played: Played) -> None:
    played.losses = ["task"]
    with closing(executor()) as made, pytest.raises(WorkerDied, match="No module named 'mine'"):
        list(made.run(double, shards(2), lambda *_: None))
    assert len(played.actors) == 1


def test_one_that_is_gone_before_it_was_registered_is_replaced_all_the_same(played: Played) -> None:
    played.losses = ["enter", "kill"]
    with closing(executor()) as made:
        assert list(made.run(double, shards(2), lambda *_: None)) == [0, 2]
    assert len(played.actors) == 2


def test_replacements_that_never_start_are_paced_and_end_with_what_ray_said(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    played.losses = ["enter"] * 1_000
    with closing(executor(2)) as made:
        monkeypatch.setattr(made._pool.over, "wait", pauses.append)
        with pytest.raises(WorkerDied, match=r"cannot start a worker: .* node lost") as refused:
            made.each(os.getpid)
        assert not made.arrived(), "an engine would be rejected for it"
    assert "ray status" in refused.value.hint
    assert len(played.actors) <= 2 * (FRUITLESS + 2)
    assert pauses == sorted(pauses)
    assert 20 < sum(pauses) < 40


def test_it_goes_on_with_those_that_are_here_when_replacements_never_start(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(executor(2)) as made:
        assert len(made.each(os.getpid)) == 2
        monkeypatch.setattr(made._pool.over, "wait", lambda _: None)
        played.losses = ["work", *["enter"] * (FRUITLESS + 1)]
        assert sorted(made.run(double, shards(3), lambda *_: None)) == [0, 2, 4]
        made._pool.gather()
        assert len(made._pool.workers) == 1


def test_one_that_finds_no_place_is_waited_for_once(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: played.waited, sleep=lambda _: None)
    monkeypatch.setattr("ftcli.plugins.ray_pool.time", clock)
    played.absent = 1
    with closing(executor(2)) as made:
        answers = [made.each(partial(remember, "yes")) for _ in range(3)]
        assert sorted(made.run(double, shards(3), lambda *_: None)) == [0, 2, 4]

    assert answers == [[None]] * 3
    assert 0 < played.waited <= START_SECONDS + POLL_SECONDS


_made: list[int] = []
"""Shards that this process has made, or what it is a copy of."""


def learn(shard: ShardPlan, marks: Path) -> tuple[int, int]:
    _made.append(shard.index)
    if shard.index == 2 and not (marks / "killed").exists():
        (marks / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return shard.index, len(_made)


def test_what_is_killed_is_followed_by_a_copy_of_what_has_made_a_shard(played: Played, tmp_path: Path) -> None:
    with closing(executor()) as made:
        found = list(made.run(partial(learn, marks=tmp_path), shards(4), lambda *_: None))

    assert (tmp_path / "killed").exists()
    assert found == [(0, 1), (1, 2), (2, 2), (3, 3)]


def test_a_worker_that_does_not_see_the_folder_names_its_node(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.plugins.ray_pool.SEE_SECONDS", 0.0)
    (tmp_path / "tmp").mkdir()
    with closing(executor()) as made:
        made.share(tmp_path)
        monkeypatch.setattr("ftcli.plugins.ray_worker.Marker.seen", lambda self: False)
        with pytest.raises(PublishError, match=r"node-a \(host gpu-1\) does not see"):
            made.share(tmp_path)


def test_parts_in_one_folder_mark_it_each_for_itself(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.plugins.ray_pool.SEE_SECONDS", 0.0)
    (tmp_path / "tmp").mkdir()
    with closing(executor()) as one, closing(executor()) as other:
        one.share(tmp_path)
        other.share(tmp_path)
        played.losses = ["work"]  # whoever replaces it looks for the marker
        assert list(one.run(double, shards(1), lambda *_: None)) == [0]
    assert list((tmp_path / "tmp").iterdir()) == []
