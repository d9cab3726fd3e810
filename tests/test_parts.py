"""`--shard 3/16` and `--finish`: what parts make together is what one run makes, to the byte, or it is said what is missing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ftcli.plugins.executors import Local
from hypothesis import given
from hypothesis import strategies as st

from ftcli.commands import cache, tokenize
from ftcli.core.files.lease import Lease
from ftcli.core.files.stamps import Hashed
from ftcli.core.prepare import encode as encode_module
from ftcli.core.prepare import parts as parts_module
from ftcli.core.prepare.parts import Part
from ftcli.core.reading.read import Plan, make_plan
from ftcli.errors import DataError, PublishError, UsageError
from ftcli.records import Piece, Report, ShardPlan
from tokenizing import Bar, context, corpus, left_behind, manifest, plugins, prepare, small_tokenizers, without_plots, write

kinds = small_tokenizers
no_html = without_plots
pytestmark = pytest.mark.usefixtures("no_html")
PARTS = 3
SAME = ("fingerprint", "content_hash", "files", "splits", "label_names", "inputs", "receipt")


class World:
    """Four files of labelled rows, some ten shards of them, and the parts' output."""

    def __init__(self, folder: Path, tokenizer: Path, **values: Any) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.sources = [
            write(folder / f"data-{number}.jsonl", corpus(80, 80 * number), ["ab"[row % 2] if number < 3 else "c" for row in range(80)])
            for number in range(4)
        ]
        self.out = folder / "out"
        self.values = {"dataset__shard_bytes": 3_000, "dataset__label_column": "label", **values}

    def run(self, shard: str | None = None, *, finish: bool = False, **values: Any) -> Report:
        return tokenize.run(context(self.tokenizer, self.sources, self.out, **self.values, **values), shard, finish)

    def parts(self, numbers: Sequence[int] = range(1, PARTS + 1), **values: Any) -> list[Report]:
        return [self.run(f"{number}/{PARTS}", **values) for number in numbers]

    def plain(self, **values: Any) -> Path:
        output = self.folder / "plain"
        prepare(self.tokenizer, self.sources, output, **self.values, **values)
        return output

    @property
    def working(self) -> Path:
        (name,) = left_behind(self.out)
        return self.folder / name


@pytest.fixture
def world(tmp_path: Path, kinds: Mapping[str, Path]) -> World:
    return World(tmp_path, kinds["bpe"])


def same(one: Path, other: Path) -> bool:
    """Whether two outputs have the same bytes under the same names, and manifests that say the same of them."""
    listed = [{path.relative_to(folder): path for path in folder.rglob("*.arrow")} for folder in (one, other)]
    equal = listed[0].keys() == listed[1].keys() and all(listed[0][name].read_bytes() == listed[1][name].read_bytes() for name in listed[0])
    return equal and all(manifest(one)[key] == manifest(other)[key] for key in SAME)


def refusal(world: World, shard: str | None = None, *, finish: bool = False, **values: Any) -> PublishError | DataError | UsageError:
    with pytest.raises((PublishError, DataError, UsageError)) as error:
        world.run(shard, finish=finish, **values)
    return error.value


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"dataset__label_column": None, "packing__strategy": "bfd", "packing__max_length": 64},
        {"dataset__validation_fraction": 0.2},
        {"dataset__label_names": ["a", "b", "c"]},
    ],
    ids=["labels", "packed", "split", "names"],
)
def test_parts_make_what_one_run_makes(tmp_path: Path, kinds: Mapping[str, Path], values: dict[str, Any]) -> None:
    world = World(tmp_path, kinds["bpe"], **values)
    reports = world.parts([2, 3, 1])
    assert not world.out.exists()
    assert [report.metrics["parts_left"] for report in reports] == [2, 1, 0]
    finished = world.run(finish=True)
    assert same(world.plain(), world.out)
    assert finished.metrics["rows_read"] == sum(report.metrics["rows_read"] for report in reports) == 320
    assert left_behind(world.out) == []
    assert world.run(finish=True).metrics["reused"]
    assert world.run("1/3").metrics["reused"]


def test_a_plain_run_takes_what_parts_published(world: World) -> None:
    world.parts()
    world.run(finish=True)
    assert prepare(world.tokenizer, world.sources, world.out, **world.values).metrics["reused"]


def test_finish_names_the_parts_that_are_missing_and_publishes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.parts([1])
    made: list[int] = []
    encode = encode_module.encode_shard

    def dies(job: Any, shard: ShardPlan) -> dict[str, Any]:
        if made:
            raise KeyboardInterrupt
        made.append(shard.index)
        return encode(job, shard)

    with monkeypatch.context() as patch:
        patch.setattr("ftcli.core.prepare.work.encode_shard", dies)
        with pytest.raises(KeyboardInterrupt):
            world.run("2/3")
    own = len(Part(2, PARTS).shards(world_plan(world)))
    error = refusal(world, finish=True)
    assert f"2 of 3 parts are not finished: 2/3 ({own - 1} of {own} shards missing), 3/3" in error.message
    assert "--shard 2/3" in error.hint
    assert not world.out.exists()
    assert world.run("2/3").metrics["shards_resumed"] == 1
    world.run("3/3")
    world.run(finish=True)
    assert same(world.plain(), world.out)


def world_plan(world: World) -> Plan:
    made = context(world.tokenizer, world.sources, world.out, **world.values)
    return make_plan(made.settings, made.plugins.registry("source"))


class Shared(NamedTuple):
    """A source that two of three parts read: one begins a shard in it, which the other ends."""

    source: Path
    owner: int
    other: int


@pytest.fixture
def shared(world: World) -> Shared:
    plan = world_plan(world)
    files = {number: Part(number, 3).files(plan) for number in (1, 2, 3)}
    file = next(file for file in range(4) if sum(file in read for read in files.values()) == 2)
    owner, other = sorted((number for number in files if file in files[number]), key=lambda number: files[number][file], reverse=True)
    return Shared(world.sources[file], owner, other)


@pytest.mark.parametrize("where", ["rename", "publish"])
def test_a_finish_that_dies_goes_on(world: World, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    world.parts()

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ftcli.core.prepare.parts.sync" if where == "rename" else "ftcli.core.publishing.publish.Attempt.publish", dies)
        with pytest.raises(KeyboardInterrupt):
            world.run(finish=True)
    assert not world.out.exists()
    report = world.run(finish=True)
    assert report.metrics["shards_resumed"] == len(world_plan(world).shards)
    assert same(world.plain(), world.out)
    assert left_behind(world.out) == []


def test_a_part_that_is_begun_again_while_the_finish_waits_is_missing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.parts()
    take, begun = Lease.take, list[Path]()

    def begin_again(directory: Path, *rest: Any, **named: Any) -> Lease:
        if not begun:
            begun.append(directory)
            disguised(world.sources[0])
            with monkeypatch.context() as broken:
                broken.setattr("ftcli.core.prepare.work.encode_shard", lambda *_: 1 // 0)
                with pytest.raises(ZeroDivisionError):
                    world.run("1/3")
        return take(directory, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Lease, "take", begin_again)
        error = refusal(world, finish=True)
    assert "1 of 3 parts are not finished: 1/3" in error.message
    assert "at work now" not in error.message
    world.parts([1])
    world.run(finish=True)
    assert same(world.plain(), world.out)


@pytest.mark.parametrize("held", [1, 256])
def test_prune_leaves_parts_alone_while_the_finish_takes_them_over(held: int, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "HELD", held)
    world.parts()
    agree, pruned = parts_module.agree, list[Report]()

    def slow(*args: Any) -> Hashed:
        if not pruned:
            pruned.append(cache.run(context(world.tokenizer, world.sources, world.out), "prune", [world.folder], False))
        return agree(*args)

    monkeypatch.setattr(parts_module, "agree", slow)
    world.run(finish=True)
    assert pruned[0].metrics["removed"] == 0
    assert same(world.plain(), world.out)


def test_a_finish_that_waits_for_another_one_goes_on_with_what_it_took_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.parts()
    take, others = Lease.take, list[Path]()

    def taken(directory: Path, *rest: Any, **named: Any) -> Lease:
        if not others and directory.parent.name == "parts":
            others.append(directory)
            with monkeypatch.context() as broken:
                broken.setattr("ftcli.commands.tokenize._prepare", lambda *_: 1 // 0)
                with pytest.raises(ZeroDivisionError):
                    world.run(finish=True)
        return take(directory, *rest, **named)

    monkeypatch.setattr(Lease, "take", taken)
    world.run(finish=True)
    assert same(world.plain(), world.out)


def test_a_damaged_shard_is_made_again(world: World) -> None:
    world.parts()
    victim = sorted(world.working.rglob("*.arrow"))[3]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    report = world.run(finish=True)
    assert report.metrics["shards_resumed"] == len(world_plan(world).shards) - 1
    assert same(world.plain(), world.out)


def test_another_number_of_parts_is_refused(world: World) -> None:
    world.run("1/3")
    error = refusal(world, "1/4")
    assert "is being prepared in 3 parts, but --shard 1/4 is of 4" in error.message
    assert "--shard 1/3" in error.hint


@pytest.mark.parametrize("text", ["0/16", "17/16", "3", "3/", "a/b", "-1/3", "1/0", ""])
def test_what_is_no_part(world: World, text: str) -> None:
    error = refusal(world, text)
    assert repr(text) in error.message
    assert "$SLURM_ARRAY_TASK_ID/16" in error.hint


def test_a_part_and_the_finish_are_not_one_command(world: World) -> None:
    assert "one at a time" in refusal(world, "1/3", finish=True).message


def test_finish_without_parts_says_what_differs(world: World) -> None:
    assert "no part of this job exists" in refusal(world, finish=True).message
    world.run("1/3")
    error = refusal(world, finish=True, packing__min_length=3)
    assert world.working.name in error.message
    assert "packing.min_length: 1 there, 3 now" in error.message


def test_a_source_that_was_touched_is_said_to_be_of_another_time(world: World) -> None:
    world.run("1/3")
    os.utime(world.sources[2], ns=(1, 1))
    message = refusal(world, finish=True).message
    assert "1 of 4 files differ, the first is number 3: another modification time or name" in message
    assert "content" not in message


def test_another_set_in_the_output_is_said_by_every_part_and_costs_the_finish_nothing(world: World) -> None:
    world.run(packing__min_length=3)
    error = refusal(world, "1/3")
    assert "packing.min_length: 3 there, 1 now" in error.message
    assert "--overwrite" in error.hint
    assert left_behind(world.out) == []
    world.parts(runtime__overwrite=True)
    parts = world.working
    for _ in range(2):
        error = refusal(world, finish=True)
        assert "holds prepared data with another fingerprint" in error.message
        assert ("--finish --overwrite" in error.hint, "another output" in error.hint) == (True, False)
        assert world.working == parts
    world.run(finish=True, runtime__overwrite=True)
    assert same(world.plain(), world.out)


def test_a_finish_that_was_begun_names_overwrite_alone(world: World) -> None:
    world.run(packing__min_length=3)
    world.parts(runtime__overwrite=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenize, "_prepare", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            world.run(finish=True, runtime__overwrite=True)
    assert world.working.name.endswith(".attempt")
    error = refusal(world, finish=True)
    assert ("--finish --overwrite" in error.hint, "another output" in error.hint) == (True, False)


def test_a_part_that_was_started_with_other_options_is_named(world: World) -> None:
    world.parts([1, 2])
    mine = world.working
    world.run("3/3", packing__min_length=3)
    (other,) = set(left_behind(world.out)) - {mine.name}
    error = refusal(world, finish=True)
    assert "1 of 3 parts are not finished: 3/3" in error.message
    assert f"Parts of another job lie in {other}, where packing.min_length: 3 there, 1 now" in error.message


# -- sources that are not the same for all -----------------------------------------------------------------------------


def disguised(path: Path) -> None:
    """Write another text of the same length into the first row, and set the modification time back."""
    stat = path.stat()
    first, *others = path.read_text(encoding="utf-8").splitlines(keepends=True)
    row = json.loads(first)
    row["text"] = row["text"].swapcase().replace("😀", "😁")
    changed = json.dumps(row, ensure_ascii=False) + "\n"
    assert changed != first
    assert len(changed.encode()) == len(first.encode())
    path.write_text("".join([changed, *others]), encoding="utf-8")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_source_that_changed_under_its_stamp_is_found_at_the_finish(world: World) -> None:
    world.parts()
    disguised(world.sources[1])
    error = refusal(world, finish=True)
    assert "data-1.jsonl" in error.message
    assert "differ" in error.message
    assert not world.out.exists()


def test_a_part_that_runs_again_over_a_changed_source_makes_its_shards_again(world: World) -> None:
    plan = world_plan(world)
    readers = [number for number in range(1, 4) if 1 in Part(number, 3).files(plan)]
    world.parts()
    disguised(world.sources[1])
    notes = [note for number in readers for note in world.run(f"{number}/3").notes]
    assert any("have changed since it read them" in note for note in notes)
    world.run(finish=True)
    assert same(world.plain(), world.out)


def test_a_copy_with_the_same_content_is_taken(world: World) -> None:
    """A machine with a copy of its own (rsync -a) sees other inodes: then the content tells."""
    world.parts()
    for source in world.sources:
        copy = source.with_suffix(".copy")
        shutil.copy2(source, copy)
        copy.replace(source)
    world.run(finish=True)
    assert same(world.plain(), world.out)


def test_two_parts_that_read_different_files_are_named(world: World, shared: Shared) -> None:
    """Sources on a disk of each machine: one part reads the end of a file of which another one hashed the beginning."""
    world.run("1/3")
    copy = shared.source.with_suffix(".copy")
    shutil.copy2(shared.source, copy)
    copy.replace(shared.source)
    world.run("2/3")
    world.run("3/3")
    assert f"read different files under the name {shared.source}" in refusal(world, finish=True).message


# -- several processes -------------------------------------------------------------------------------------------------


def relinked(path: Path) -> None:
    """A new change time, and nothing else."""
    link = path.with_suffix(".link")
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:  # the kernel's clock ticks every 4 ms
        os.link(path, link)
        link.unlink()


def test_a_source_that_gets_a_link_or_other_permissions_between_parts_is_the_same(world: World, shared: Shared) -> None:
    source, owner, other = shared
    world.parts([number for number in (1, 2, 3) if number != other])
    relinked(source)
    world.parts([other])
    source.chmod(0o600)
    relinked(source)
    assert not any("have changed since" in note for note in world.run(f"{owner}/3").notes), "its hash says that it is the same"
    refused = refusal(world, finish=True)
    assert f"{source} was modified" in refused.message
    assert f"--shard {other}/3 again" in refused.hint
    world.parts([other])
    relinked(source)
    world.run(finish=True)
    assert same(world.plain(), world.out)


def test_what_was_read_between_two_times_of_one_content_is_that_content(world: World, shared: Shared) -> None:
    world.run("1/3")
    for part in (2, 3):
        relinked(shared.source)
        world.run(f"{part}/3")
    relinked(shared.source)
    world.run(finish=True)
    assert same(world.plain(), world.out)


def test_a_part_that_read_a_touched_source_which_has_been_replaced_since_is_to_run_again(world: World, shared: Shared) -> None:
    """What lies there now has the content that was hashed, but is not the file that the later part read."""
    source, owner, other = shared
    world.parts([number for number in (1, 2, 3) if number != other])
    relinked(source)
    world.parts([other])
    copy = source.with_suffix(".copy")
    shutil.copy2(source, copy)
    copy.replace(source)
    refused = refusal(world, finish=True)
    assert f"{source} was modified (chmod, a hard link, a write) between parts {owner}/3 and {other}/3" in refused.message
    assert f"--shard {other}/3 again" in refused.hint
    assert not world.out.exists()


def test_a_part_that_another_process_has_is_waited_for_and_named(world: World) -> None:
    world.run("1/3")
    lease = Lease.take(world.working / "parts" / "2-of-3", world.out, wait=False)
    lease._stop.set()  # it signs no more: a stopped process
    try:
        bar = Bar()
        waiting = context(world.tokenizer, world.sources, world.out, **world.values, runtime__lease_timeout=2.0)
        with pytest.raises(PublishError, match=f"pid {os.getpid()}"):
            tokenize.run(replace(waiting, progress=bar), "2/3")
        assert any("waits for" in line or "no progress" in line for line in bar.said), bar.said
        assert "at work now" in refusal(world, finish=True).message
    finally:
        lease.release()
    world.run("2/3")


def test_a_rank_that_makes_a_part_has_workers_for_an_engine_that_is_proved(
    tmp_path: Path, kinds: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftcli.plugins.executors.Local", Local)
    source, double = write(tmp_path / "data.jsonl", corpus(40)), plugins(tmp_path / "plugins")
    values = {"tokenizer__engine": "double", "runtime__cache_dir": tmp_path / "cache"}
    prepare(kinds["bpe"], source, tmp_path / "proved", double, **values)
    monkeypatch.setenv("SLURM_PROCID", "1")
    report = tokenize.run(context(kinds["bpe"], source, tmp_path / "out", double, **values), "1/1")
    assert (report.metrics["engine"], report.metrics["rows_written"]) == ("double", 40)


def test_bad_rows_of_all_parts_are_in_one_file(world: World) -> None:
    for source in world.sources:
        source.write_text(source.read_text(encoding="utf-8") + '{"text": 7, "label": "a"}\n', encoding="utf-8")
    values = {"dataset__on_bad": "quarantine", "dataset__max_bad": 0.1}
    world.parts(**values)
    report = world.run(finish=True, **values)
    assert report.metrics["rows_rejected"] == 4
    assert same(world.plain(**values), world.out)
    assert (world.out / "rejects.jsonl").read_bytes() == (world.folder / "plain/rejects.jsonl").read_bytes()


def test_the_labels_are_collected_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    collect = encode_module.collect_labels

    def counted(job: Any, shard: ShardPlan) -> list[Any]:
        calls.append(shard.index)
        return collect(job, shard)

    monkeypatch.setattr("ftcli.core.prepare.work.collect_labels", counted)
    world.parts()
    world.run(finish=True)
    assert len(calls) == len(world_plan(world).shards)
    assert manifest(world.out)["label_names"] == ["a", "b", "c"]


def test_what_a_killed_part_left_half_written_is_cleared_away_by_itself_alone(world: World) -> None:
    world.run("1/3")
    plan = world_plan(world)
    mine, others = Part(1, 3).shards(plan)[0].index, Part(2, 3).shards(plan)[0].index
    for index in (mine, others):
        (world.working / "tmp" / f"shard-{index:06d}.0123").mkdir()
    world.run("1/3")
    assert [path.name for path in (world.working / "tmp").iterdir()] == [f"shard-{others:06d}.0123"]


@given(sizes=st.lists(st.integers(0, 1_000), min_size=1, max_size=60), count=st.integers(1, 80))
def test_every_shard_is_in_one_part_and_parts_are_even(sizes: list[int], count: int) -> None:
    shards = tuple(
        ShardPlan(index, "train", (Piece(f"f{index // 3}", "jsonl", "bytes", 0, size, size),)) for index, size in enumerate(sizes)
    )
    plan = Plan(shards, (), None, (), (), {})  # type: ignore[arg-type]
    owned = [Part(number, count).shards(plan) for number in range(1, count + 1)]
    assert [shard for part in owned for shard in part] == list(shards)
    ideal = sum(sizes) / count
    assert all(sum(shard.size for shard in part) <= ideal + 2 * max(sizes) for part in owned)


@pytest.mark.parametrize("text", ["4/3", "0/3"])
def test_the_parts_that_there_are_are_named_by_their_own_count(text: str) -> None:
    with pytest.raises(UsageError, match="parts are 1/3 to 3/3") as refused:
        Part.parse(text)
    assert "--array=1-3" in refused.value.hint
