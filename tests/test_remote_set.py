"""Publishing in an object store: killed at every request, two at once, damaged objects, stores without conditions."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from durability import watched
from ftcli.commands.outgoing import run_outgoing
from ftcli.context import Context
from ftcli.core.files import lease as lease_module
from ftcli.core.files import objects
from ftcli.core.files.lease import Lease
from ftcli.core.publishing import fetched_set
from ftcli.core.publishing import remote_set as shelf_module
from ftcli.core.publishing.fetched_set import damages, fetch, published_at
from ftcli.core.publishing.remote_set import Shelf
from ftcli.errors import DataError, FtcliError, PublishError, StoreError
from ftcli.records import MANIFEST_NAME, Report
from publish_cases import contents, flip, listing, prepare
from reliability import size
from s3_server import Request, Server

pytestmark = pytest.mark.fault
URL = "s3://bucket/sets/name"
OTHER = {"a": {"train/a.arrow": b"other" * 9, "test/a.arrow": b"more"}}


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    """Two prepared directories."""
    prepare(tmp_path / "old")
    prepare(tmp_path / "new", "g", OTHER)
    return tmp_path / "old", tmp_path / "new"


def publish(folder: Path, *, replace: bool = False, url: str = URL) -> int:
    shelf = Shelf.look(url, PublishError)
    shelf.prove()
    return shelf.publish(folder, replace=replace, inputs={})


def context(folder: Path) -> Context:
    return Context.make({"runtime.cache_dir": str(folder)})


def whole(s3: Server, sets: tuple[Path, Path], names: tuple[str, str] = ("old", "new")) -> str:
    """What is published: "old", "new", "nothing", or the words for something else."""
    found = Shelf.look(URL)
    if found.manifest is None:
        return "nothing"
    if any(damage for _, damage in damages(found)):
        return "damaged"
    return next((name for name, folder in zip(names, sets, strict=True) if (folder / MANIFEST_NAME).read_bytes() == found.content), "mixed")


def in_child(work: Callable[[], object]) -> int:
    """Status of a child that does the work; its pid is known to the server's faults by `victim`."""
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(ready, 1)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    os.close(ready)
    victim[0] = pid
    os.close(go)
    return os.waitpid(pid, 0)[1]


victim = [0]


def kill_at(s3: Server, number: int, *, after: bool) -> None:
    """SIGKILL for the child at its n-th request, before it has an effect or after that."""
    seen = [0]

    def count(request: Request) -> str | None:
        seen[0] += 1
        if seen[0] != number:
            return None
        os.kill(victim[0], signal.SIGKILL)
        return "drop"

    s3.before, s3.after = (lambda _: None, count) if after else (count, lambda _: None)


def calm(s3: Server) -> None:
    s3.before = s3.after = lambda _: None


@pytest.mark.reliability(32, "SIGKILL at every request that changes the store, before and after its effect, then again")
@pytest.mark.parametrize("first", [True, False], ids=["new", "replaced"])
def test_a_kill_leaves_the_old_the_new_or_nothing(s3: Server, sets: tuple[Path, Path], tally: Any, first: bool) -> None:
    old, new = sets
    if not first:
        publish(old)
    before = dict(s3.objects)
    s3.requests.clear()
    publish(new, replace=True)
    methods = [request.method for request in s3.requests]
    every = [number for number, method in enumerate(methods, 1) if method in {"PUT", "DELETE"}]
    assert methods.count("PUT") >= 3 + 3 + 1  # the probe, three files, the manifest
    points = [(number, after) for number in every[:: size(1, 1)] for after in (False, True)]
    allowed = {"nothing", "new"} if first else {"old", "new"}
    found = []
    for number, after in points:
        s3.objects = dict(before)
        kill_at(s3, number, after=after)
        status = in_child(lambda: publish(new, replace=True))
        calm(s3)
        assert os.WIFSIGNALED(status), (number, after, status)
        found.append(whole(s3, sets))
        uploaded = s3.count("PUT", "versions")
        publish(new, replace=True)
        assert whole(s3, sets) == "new"
        assert s3.count("PUT", "versions") - uploaded <= 3
    tally(points=len(points), wrong=sum(state not in allowed for state in found))
    assert set(found) == allowed


@pytest.mark.reliability(32, "files put in place, the manifest last: killed in between", control=True)
def test_control_files_put_in_place_are_mixed(s3: Server, sets: tuple[Path, Path], tally: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shelf, "place", lambda self, manifest, name="": "/".join([self.url, "files", *([name] if name else [])]))
    monkeypatch.setattr(Shelf, "_own", lambda self, one: True)
    old, new = sets
    publish(old)
    before = dict(s3.objects)
    states = []
    for number in (1, 2, 3):
        s3.objects = dict(before)
        seen = [0]

        def at_upload(request: Request, number: int = number, seen: list[int] = seen) -> str | None:
            seen[0] += request.method == "PUT" and "/files/" in request.key
            if request.method == "PUT" and seen[0] == number:
                os.kill(victim[0], signal.SIGKILL)
                return "drop"
            return None

        s3.after = at_upload
        in_child(lambda: publish(new, replace=True))
        calm(s3)
        states.append(whole(s3, sets))
    tally(f"put in place: {sum(state in {'mixed', 'damaged'} for state in states)} of {len(states)} kills left a set that is neither")
    assert "damaged" in states


def race(s3: Server, sets: tuple[Path, Path]) -> list[str]:
    """Two publish at once, and their manifests arrive together; what each was told."""
    meeting = threading.Barrier(2)
    passed: set[int] = set()

    def meet(request: Request) -> str | None:
        if request.method == "PUT" and request.key.endswith(MANIFEST_NAME) and len(passed) < 2:
            passed.add(meeting.wait(60))
        return None

    shelves = [Shelf.look(URL, PublishError) for _ in sets]
    s3.before = meet
    told = ["", ""]

    def work(number: int) -> None:
        try:
            shelves[number].publish(sets[number], replace=True, inputs={})
            told[number] = "won"
        except FtcliError as error:
            told[number] = error.message

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calm(s3)
    return told


@pytest.mark.reliability(33, "two sets, one place, manifests that arrive together: one wins, the other is told who")
@pytest.mark.parametrize("first", [True, False], ids=["new", "replaced"])
def test_one_of_two_wins_and_the_other_is_told(s3: Server, sets: tuple[Path, Path], tmp_path: Path, tally: Any, first: bool) -> None:
    if not first:
        prepare(tmp_path / "third", "h", {"c": {"train/c.arrow": b"c"}})
        publish(tmp_path / "third")
    told = race(s3, sets)
    tally(rounds=1, winners=told.count("won"))
    assert sorted(told)[1] == "won"
    lost = 1 - told.index("won")
    winner, loser = ("f", "g") if lost else ("g", "f")
    assert re.fullmatch(
        rf".*pid {os.getpid()} on .* published data with the fingerprint {winner} while this run was working on {loser}", told[lost]
    )
    assert whole(s3, sets) == ("old", "new")[1 - lost]


@pytest.mark.reliability(33, "a store that ignores the condition", control=True)
def test_control_without_conditions_both_win(s3: Server, sets: tuple[Path, Path], tally: Any) -> None:
    s3.conditions = False
    told = race(s3, sets)
    tally(f"a store that keeps no conditions: {told.count('won')} winners; refused by the probe before any work")
    assert told == ["won", "won"]


def test_a_store_without_conditions_is_refused(s3: Server, sets: tuple[Path, Path]) -> None:
    s3.conditions = False
    with pytest.raises(PublishError, match=r"ignores conditions .*: it replaced an object") as caught:
        publish(sets[0])
    assert "conditional writes" in caught.value.hint
    assert s3.objects == {}  # the probe is gone


def test_the_same_set_twice_moves_nothing(s3: Server, sets: tuple[Path, Path]) -> None:
    assert publish(sets[0]) == sum(path.stat().st_size for path in sets[0].rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
    puts = s3.count("PUT", "versions")
    assert publish(sets[0]) == 0
    assert s3.count("PUT", "versions") == puts
    del s3.objects[next(key for key in s3.objects if key.endswith("b.arrow"))]
    publish(sets[0])
    assert s3.count("PUT", "versions") == puts + 1  # only what is missing
    assert whole(s3, sets) == "old"


def test_another_set_is_not_replaced_unasked(s3: Server, sets: tuple[Path, Path]) -> None:
    publish(sets[0])
    with pytest.raises(PublishError, match=f"{URL} holds prepared data with another fingerprint: f, but this run's is g"):
        publish(sets[1])
    assert whole(s3, sets) == "old"
    publish(sets[1], replace=True)
    assert whole(s3, sets) == "new"


def test_foreign_objects_are_left_alone(s3: Server, sets: tuple[Path, Path]) -> None:
    s3.put("bucket/sets/name/thesis.tex", b"mine")
    with pytest.raises(PublishError, match=f"{URL} holds 1 objects and no {MANIFEST_NAME}"):
        publish(sets[0])
    assert list(s3.objects) == ["bucket/sets/name/thesis.tex"]


def test_a_lost_answer_to_the_manifest_is_no_defeat(s3: Server, sets: tuple[Path, Path]) -> None:
    lost = []

    def lose(request: Request) -> str | None:
        if request.method == "PUT" and request.key.endswith(MANIFEST_NAME) and not lost:
            lost.append(request)
            return "drop"
        return None

    s3.after = lose
    publish(sets[0])
    assert lost
    assert s3.count("PUT", MANIFEST_NAME) == 2  # the second was refused: the first was ours
    assert whole(s3, sets) == "old"


@pytest.mark.parametrize("meanwhile", [False, True], ids=["nothing came", "another came"])
def test_a_put_that_the_store_did_not_decide_is_tried_again_only_where_nobody_came(
    s3: Server, sets: tuple[Path, Path], meanwhile: bool
) -> None:
    undecided: list[Request] = []

    def conflict(request: Request) -> str | None:
        if request.method != "PUT" or not request.key.endswith(MANIFEST_NAME) or undecided:
            return None
        undecided.append(request)
        if meanwhile:
            publish(sets[1])
        return "409"

    shelf = Shelf.look(URL, PublishError)
    s3.before = conflict
    if meanwhile:
        with pytest.raises(PublishError, match=r"published data with the fingerprint g while this run was working on f"):
            shelf.publish(sets[0], replace=False, inputs={})
    else:
        shelf.publish(sets[0], replace=False, inputs={})
    assert undecided
    assert whole(s3, sets) == ("new" if meanwhile else "old")


def test_errors_of_the_server_and_cut_connections_are_ridden_out(s3: Server, sets: tuple[Path, Path], tmp_path: Path) -> None:
    faults = iter(["500", None, "drop", None, "503", None, None, "drop", "500"])
    s3.before = lambda _: next(faults, None)
    publish(sets[0])
    faults = iter([None, "drop", None, "500", None, "drop"])
    assert contents(fetch(context(tmp_path / "cache"), published_at(URL))) == contents(sets[0])


def test_a_store_that_stays_broken_is_named(s3: Server, sets: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3.before = lambda request: "500" if request.method == "PUT" else None
    with pytest.raises(PublishError, match=rf"{URL}/{shelf_module.PROBE}-.*: the store failed") as caught:
        publish(sets[0])
    assert caught.value.hint


def test_fetched_once_and_whole(s3: Server, sets: tuple[Path, Path], tmp_path: Path) -> None:
    publish(sets[0])
    here = context(tmp_path / "cache")
    folder = fetch(here, published_at(URL))
    assert contents(folder) == contents(sets[0])
    reads = s3.count("GET", "versions/")
    assert fetch(here, published_at(URL)) == folder
    assert s3.count("GET", "versions/") == reads
    (folder / "train/a.arrow").write_bytes(b"damaged")
    assert contents(fetch(here, published_at(URL))) == contents(sets[0])
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]


def test_what_is_fetched_is_durable_before_it_appears_and_its_name_after(
    s3: Server, sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sets[0])
    monkeypatch.setattr(fetched_set, "FETCHES", 1)
    with monkeypatch.context() as patch:
        steps = watched(patch)
        folder = fetch(context(tmp_path / "cache"), published_at(URL))
    files = [path.name for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_NAME]
    fetched, rest = steps[: 2 * len(files)], steps[2 * len(files) :]
    assert sorted(zip(fetched[::2], fetched[1::2], strict=True)) == sorted((f"sync .{name}.part", f"move {name}") for name in files)
    assert sorted(rest[:3]) == ["sync data", "sync test", "sync train"]
    assert rest[3:8] == [f"sync {MANIFEST_NAME}", f"move {MANIFEST_NAME}", "sync data", f"move {folder.name}", "sync sets"]


def spoiled(s3: Server) -> tuple[str, bytes]:
    """Damage the last byte of one object; its key and what it held."""
    key = next(key for key in s3.objects if key.endswith("train/b.arrow"))
    good = s3.objects[key].data
    s3.put(key, good[:-1] + bytes([good[-1] ^ 1]))
    return key, good


def test_a_file_that_was_fetched_before_and_is_damaged_in_its_middle_is_fetched_again(
    s3: Server, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    publish(sets[0])
    key, good = spoiled(s3)
    here = context(tmp_path / "cache")
    with pytest.raises(StoreError, match=r"train/b.arrow has the content hash"):
        fetch(here, published_at(URL))
    (kept,) = (tmp_path / "cache/sets").glob(".*.fetching.attempt/data/train/a.arrow")
    assert kept.stat().st_size > 1 << 17  # its first and last 64 KiB stay as they are
    flip(kept, 0.5)
    s3.put(key, good)
    assert contents(fetch(here, published_at(URL))) == contents(sets[0])


def test_a_process_that_lost_the_right_to_fetch_leaves_everything_to_the_other(
    s3: Server, sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(sets[0])
    here = context(tmp_path / "cache")
    folder = fetch(here, published_at(URL))
    (folder / "train/a.arrow").write_bytes(b"damaged")
    others: list[Lease] = []
    put = fetched_set.put

    def lose(data: bytes, temporary: Path, final: Path) -> None:
        put(data, temporary, final)
        working = temporary.parent
        shutil.rmtree(working)
        others.append(Lease.take(working, tmp_path, wait=False))
        (working / "data").mkdir()
        (working / "data/half").write_bytes(b"")

    monkeypatch.setattr(fetched_set, "put", lose)
    with pytest.raises(PublishError, match="was removed or taken over by another process"):
        fetch(here, published_at(URL))
    assert (folder / "train/a.arrow").read_bytes() == b"damaged"
    assert listing(others[0].directory / "data") == ["half"]
    others[0].remove()


def test_publishing_and_fetching_are_work_for_those_who_wait(
    s3: Server, sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[int] = []
    monkeypatch.setattr(Lease, "beat", lambda *_, **__: beats.append(1))
    monkeypatch.setattr(objects, "BLOCK_BYTES", 50_000)
    files = [path for path in sets[0].rglob("*") if path.name != MANIFEST_NAME and path.is_file()]
    blocks = sum(-(-path.stat().st_size // 50_000) for path in files)

    parts: list[int] = []
    Shelf.look(URL, PublishError).publish(sets[0], replace=False, inputs={}, on_block=lambda: parts.append(1))
    assert len(parts) >= len(files)
    fetch(context(tmp_path / "cache"), published_at(URL))
    assert len(beats) == len(files) + blocks > 2 * len(files)


def test_what_prepares_for_a_store_is_work_for_those_who_wait_for_its_publication(s3: Server, tmp_path: Path) -> None:
    steps: list[list[int]] = []

    def look() -> None:
        steps.append([lease._note.steps for lease in lease_module._open_leases.values() if ".publishing." in str(lease.directory)])

    def prepare(inner: Context, _: object) -> Report:
        look()
        inner.progress.advance(1.0)
        look()
        other = Lease.take(tmp_path / "attempt", tmp_path, wait=False)
        other.beat()
        other.release()
        look()
        raise DataError("enough", "")

    with pytest.raises(DataError, match="enough"):
        run_outgoing(context(tmp_path / "cache"), URL, prepare, lambda _: pytest.fail("nothing is there"))
    assert steps == [[0], [1], [2]]


def test_a_process_that_lost_the_right_to_publish_leaves_it_to_the_other(s3: Server, tmp_path: Path) -> None:
    others: list[Lease] = []

    def prepare(inner: Context, _: object) -> Report:
        (working,) = (lease.directory for lease in lease_module._open_leases.values() if ".publishing." in str(lease.directory))
        shutil.rmtree(working)
        others.append(Lease.take(working, tmp_path, wait=False))
        raise DataError("enough", "")

    with pytest.raises(DataError, match="enough"):
        run_outgoing(context(tmp_path / "cache"), URL, prepare, lambda _: pytest.fail("nothing is there"))
    assert others[0].valid()
    others[0].remove()


def test_a_damaged_object_is_named_and_nothing_appears(s3: Server, sets: tuple[Path, Path], tmp_path: Path) -> None:
    publish(sets[0])
    key, good = spoiled(s3)
    here = context(tmp_path / "cache")
    with pytest.raises(StoreError, match=rf"{URL}/versions/\w+/train/b.arrow has the content hash \w+ instead of \w+"):
        fetch(here, published_at(URL))
    assert not [path for path in (tmp_path / "cache/sets").iterdir() if not path.name.startswith(".")]
    assert [damage.kind for _, damage in damages(published_at(URL)) if damage] == ["content"]
    s3.put(key, good)
    reads = s3.count("GET", "versions/")
    fetch(here, published_at(URL))
    assert s3.count("GET", "versions/") - reads <= 2  # what was whole was kept
    del s3.objects[key]
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(StoreError, match=r"b.arrow is missing"):
        fetch(here, published_at(URL))


def test_a_manifest_that_leads_out_is_refused(s3: Server, sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ftcli.core.files.manifest import read_manifest, seal

    document = read_manifest(sets[0])
    assert document
    document["files"][0]["path"] = "../../out"
    s3.put(f"bucket/sets/name/{MANIFEST_NAME}", seal(document))
    with pytest.raises(StoreError, match=r"lists '../../out'"):
        published_at(URL)


def test_a_damaged_manifest_is_refused(s3: Server, sets: tuple[Path, Path]) -> None:
    publish(sets[0])
    key = f"bucket/sets/name/{MANIFEST_NAME}"
    s3.put(key, s3.objects[key].data[:-9])
    with pytest.raises(StoreError, match=f"{URL}/{MANIFEST_NAME} is damaged"):
        published_at(URL)
    Shelf.look(URL, PublishError, damaged=True).publish(sets[1], replace=True, inputs={})
    assert whole(s3, sets) == "new"


def test_what_does_not_fit_is_refused(s3: Server, sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(sets[0])
    monkeypatch.setattr("ftcli.core.publishing.fetched_set.free_bytes", lambda _: 10)
    with pytest.raises(StoreError, match=r"bytes would have to be fetched to .*, where only 10 bytes are free"):
        fetch(context(tmp_path / "cache"), published_at(URL))
