"""`ftcli cache`: every damage is found and told, what lies below a folder is listed, and only what nobody holds is removed."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from cli_process import ended, spawn
from ftcli import testing
from ftcli.commands import cache
from ftcli.context import Context
from ftcli.core.files.lease import Lease
from ftcli.core.files.manifest import fingerprint, read_manifest, seal
from ftcli.core.prepare.write import RowWriter, split_metadata
from ftcli.core.publishing import inventory
from ftcli.core.publishing.publish import Attempt
from ftcli.core.storage.store import Store
from ftcli.errors import StoreError, UsageError
from ftcli.records import MANIFEST_NAME, MANIFEST_SCHEMA, Report
from ftcli.testing import TEXTS, tiny_tokenizer
from publish_cases import NOBODY, as_nobody, delete, flip, interrupt, limited, public_folder, truncate, zero_tail
from reliability import size
from tokenizing import Bar, prepare, without_plots, write  # noqa: F401 - a fixture

public = public_folder
DAMAGES = size(100, 1_000)
SIZES = {"train": (500, 500, 500, 500), "validation": (150, 150)}
"""Rows of every shard of a split."""


def call(action: str, *folders: Path, dry_run: bool = False, bar: Bar | None = None) -> Report:
    context = Context.make({})
    if bar is not None:
        context.progress = bar
    return cache.run(context, action, folders, dry_run)


def rows(report: Report) -> list[list[str]]:
    return list(report.details["table"]["rows"]) if "table" in report.details else []


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared directory with several shards a split."""
    output = tmp_path_factory.mktemp("pristine") / "out"
    with Attempt.open(output, "f" * 32) as attempt:
        for split, sizes in SIZES.items():
            names = [f"data-{number:05d}-of-{len(sizes):05d}.arrow" for number in range(len(sizes))]
            for number, (name, count) in enumerate(zip(names, sizes, strict=True)):
                with attempt.shard(f"{split}-{number}") as shard:
                    lengths = np.arange(count, dtype=np.int64) % 7 + 50
                    with RowWriter(shard.path(f"{split}/{name}"), labels=False, packed=False) as writer:
                        writer.add(np.arange(lengths.sum(), dtype=np.int32) + number, lengths)
                    shard.commit([f"{split}/{name}"], {})
            small = split_metadata(files=names, fingerprint="f" * 32, split=split, label_names=None, packed=False, rows=sum(sizes), size=1)
            for name, content in small.items():
                attempt.write(f"{split}/{name}", content)
        attempt.write("dataset_dict.json", json.dumps({"splits": list(SIZES)}))
        counts = {split: {"rows": sum(sizes), "tokens": 53 * sum(sizes)} for split, sizes in SIZES.items()}
        attempt.publish(
            {"splits": counts, "label_names": None, "max_length": 64, "packing": "none"},
            [f"{split}-{number}" for split, sizes in SIZES.items() for number in range(len(sizes))],
        )
    return output


@pytest.fixture
def prepared(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "prepared"))


# -- verify ------------------------------------------------------------------------------------------------------------


def test_whole_data_pass_with_files_and_bytes_and_a_bar_that_reaches_its_end(prepared: Path) -> None:
    bar = Bar()
    report = call("verify", prepared, bar=bar)
    files = [path for path in prepared.rglob("*") if path.is_file() and path.name != "ftcli-manifest.json"]
    assert report.status == "ok"
    assert report.metrics["files"] == len(files)
    assert report.metrics["bytes"] == sum(path.stat().st_size for path in files) == sum(bar.stages["verify"]) == bar.totals["verify"]
    assert report.metrics["damaged"] == 0
    assert report.metrics["seconds"] > 0
    assert report.checks[0].status == "pass"
    assert rows(report) == []


def test_all_damages_are_listed_with_kind_expected_and_found(prepared: Path) -> None:
    one, two, three, four = sorted(prepared.glob("train/*.arrow"))[:4]
    size = two.stat().st_size
    flip(one, 0.5)
    truncate(two, 0.5)
    delete(three, 0)
    delete(four, 0)
    four.mkdir()
    report = call("verify", prepared)
    assert report.status == "failed"
    assert report.metrics["damaged"] == 4
    found = {Path(row[0]).name: row[1:] for row in rows(report)}
    assert found[one.name][0] == "content"
    assert all(len(value) == 32 for value in found[one.name][1:])
    assert found[two.name] == ["size", str(size), str(size // 2)]
    assert found[three.name][0] == "missing"
    assert found[four.name][0] == "not a file"
    assert len(report.checks[0].evidence["damages"]) == 4


def test_a_fifo_and_a_folder_in_the_place_of_files_do_not_hang_it(prepared: Path) -> None:
    file = next(prepared.glob("train/*.arrow"))
    file.unlink()
    os.mkfifo(file)
    assert rows(call("verify", prepared))[0][1] == "not a file"
    shutil.rmtree(file.parent)
    file.parent.touch()
    assert {row[1] for row in rows(call("verify", prepared))} == {"missing"}


def test_several_directories_are_checked_at_once_and_a_damaged_manifest_is_a_damage(prepared: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(prepared, tmp_path / "other"))
    flip(other / "ftcli-manifest.json", 0.5)
    report = call("verify", prepared, other)
    assert [check.status for check in report.checks] == ["pass", "fail"]
    assert rows(report)[0][0] == str(other / "ftcli-manifest.json")


def test_what_is_wrong_with_a_manifest_is_said_once(prepared: Path, tmp_path: Path) -> None:
    manifest = prepared / MANIFEST_NAME
    whole = manifest.read_text()
    manifest.write_text(whole.replace('"rows": ', '"rows": 1', 1))
    report = call("verify", prepared)
    assert report.checks[0].summary == f"1 damaged: {MANIFEST_NAME} is damaged: its checksum does not match its content"
    assert rows(report)[0][1] == "manifest"
    manifest.write_bytes(seal({"schema": "ftcli.other/9"}))
    assert f"{MANIFEST_NAME} has the format 'ftcli.other/9', but this version of ftcli reads" in call("verify", prepared).checks[0].summary
    manifest.unlink()
    manifest.mkdir()
    report = call("verify", prepared)
    assert report.checks[0].summary == f"1 not compared: {MANIFEST_NAME} cannot be read: Is a directory"


def test_files_that_are_not_of_the_data_are_a_note(prepared: Path) -> None:
    (prepared / "train" / "cache-0123.arrow").touch()
    report = call("verify", prepared)
    assert report.status == "ok"
    assert any("1 files do not belong to the prepared data, such as train/cache-0123.arrow" in note for note in report.notes)


def test_what_cannot_be_verified_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a prepared directory"):
        call("verify")
    with pytest.raises(StoreError, match="holds no data prepared by ftcli"):
        call("verify", tmp_path)
    with pytest.raises(UsageError, match="--dry-run belongs to clean"):
        call("list", dry_run=True)
    with pytest.raises(StoreError, match="is no directory"):
        call("list", tmp_path / "absent")


def test_the_command_takes_several_directories_and_exits_with_one_on_damage(prepared: Path, tmp_path: Path) -> None:
    comma = prepared.rename(tmp_path / "a,b")
    done = ended(spawn("cache", "verify", comma, comma, "--json"))
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["metrics"]["damaged"] == 0
    truncate(next(comma.glob("train/*.arrow")), 0.9)
    done = ended(spawn("cache", "verify", comma))
    assert done.exit_code == 1
    assert "size" in done.stdout
    assert ".arrow has" in done.stdout


# -- every damage ------------------------------------------------------------------------------------------------------


def swap(path: Path, _: float) -> None:
    other = next(file for file in sorted(path.parent.glob("*.arrow")) if file != path and file.read_bytes() != path.read_bytes())
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def append(path: Path, _: float) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def rename(path: Path, _: float) -> None:
    path.rename(path.with_suffix(".moved"))


ALL: Mapping[str, Callable[[Path, float], None]] = {
    "flip": flip,
    "truncate": truncate,
    "zero tail": zero_tail,
    "delete": delete,
    "swap": swap,
    "append": append,
    "rename": rename,
}
AT_ONCE = {"truncate", "delete", "swap", "append", "rename"}
"""Found by the cheap check on opening; so is a zeroed tail that is not inside a long middle."""


def opens(folder: Path) -> bool:
    """Whether plain `datasets` opens and reads it without an error."""
    try:
        for split in datasets.load_from_disk(str(folder)).values():
            for column in ("input_ids", "length"):
                split.data.column(column).to_pylist()
    except Exception:  # noqa: BLE001 - it raises many kinds
        return False
    return True


def damaged(pristine: Path, folder: Path) -> Iterator[tuple[str, Path, Path]]:
    """(kind, damaged file, directory) again and again, the same every time; each is removed after its use."""
    draws = random.Random(12)
    for number in range(DAMAGES):
        copy = Path(shutil.copytree(pristine, folder / "copy"))
        kind = list(ALL)[number % len(ALL)]
        victim = draws.choice(sorted(copy.glob("*/*.arrow")))
        ALL[kind](victim, draws.random() * 0.999)
        yield kind, victim, copy
        shutil.rmtree(copy)


def refuses(folder: Path) -> bool:
    try:
        Store.open(folder)
    except StoreError:
        return True
    return False


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.reliability(12, "every damage of prepared data is found by verify, the coarse ones on opening")
def test_every_random_damage_is_found(pristine: Path, tmp_path: Path, tally: Callable[..., None]) -> None:
    missed, at_once = [], 0
    for kind, victim, folder in damaged(pristine, tmp_path):
        found = rows(call("verify", folder))
        refused = refuses(folder)
        at_once += refused
        if not any(Path(row[0]).name == victim.name for row in found) or (kind in AT_ONCE and not refused):
            missed.append((kind, victim.name))
    assert missed == []
    tally(damages=DAMAGES, on_opening=at_once)


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.reliability(12, "the same damages, opened by datasets", control=True)
def test_datasets_opens_and_reads_many_of_the_same_damages(pristine: Path, tmp_path: Path, tally: Callable[..., None]) -> None:
    opened = sum(opens(folder) for _, _, folder in damaged(pristine, tmp_path))
    assert opened >= DAMAGES / 4
    tally(f"load_from_disk reads {opened} of {DAMAGES} without an error")


# -- list and clean ----------------------------------------------------------------------------------------------------


def test_what_is_prepared_and_what_is_unfinished_below_a_folder_is_listed(prepared: Path, tmp_path: Path) -> None:
    attempt = interrupt(tmp_path / "half")
    damaged = Path(shutil.copytree(prepared, tmp_path / "deep" / "damaged"))
    flip(damaged / "ftcli-manifest.json", 0.5)
    report = call("list", tmp_path)
    table = {Path(row[0]).name: row[1:] for row in rows(report)}
    assert report.metrics == {"prepared": 2, "unfinished": 1, "being_prepared": 0}
    assert table["prepared"][0] == "prepared"
    assert table["prepared"][1] == "2,300"
    assert table["prepared"][4] == json.loads((prepared / "ftcli-manifest.json").read_text())["fingerprint"][:16]
    assert table["half"][0] == "unfinished"
    assert "kB" in table["half"][3]
    assert table["damaged"][0] == "damaged"
    assert attempt.is_dir()


def test_a_folder_that_is_named_twice_counts_once(prepared: Path, tmp_path: Path) -> None:
    interrupt(tmp_path / "half")
    once, twice = call("list", tmp_path).metrics, call("list", tmp_path, tmp_path, prepared).metrics
    assert twice == once
    assert call("clean", tmp_path, tmp_path, dry_run=True).metrics["abandoned"] == 1


def test_nothing_prepared_is_an_empty_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("list").metrics == {"prepared": 0, "unfinished": 0, "being_prepared": 0}


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Attempt]:
    with Attempt.open(tmp_path / "held", "f") as attempt:
        yield attempt


def test_clean_removes_what_nobody_holds_and_leaves_the_rest(prepared: Path, held: Attempt, tmp_path: Path) -> None:
    dead, empty = interrupt(tmp_path / "half"), tmp_path / ".x.0123456789abcdef.attempt"
    empty.mkdir()
    foreign = tmp_path / ".theirs.backup.attempt"
    foreign.mkdir()
    (foreign / "precious").touch()
    assert call("list", tmp_path).metrics == {"prepared": 1, "unfinished": 2, "being_prepared": 1}
    rehearsal = call("clean", tmp_path, dry_run=True)
    assert rehearsal.details["table"]["head"][0] == "would remove"
    assert (rehearsal.metrics["removed"], rehearsal.metrics["abandoned"]) == (0, 2)
    assert dead.is_dir()
    report = call("clean", tmp_path)
    assert (report.metrics["removed"], report.metrics["bytes"] > 300_000) == (2, True)
    assert not dead.exists()
    assert not empty.exists()
    assert held.directory.is_dir()
    assert (foreign / "precious").exists()
    assert prepared.is_dir()
    assert any(f"left alone: {held.directory}, a process works on it" in note for note in report.notes)


def test_parts_are_listed_and_cleaned_away_when_no_part_is_at_work(tmp_path: Path) -> None:
    folder = tmp_path / ".out.0123.parts"
    for name in ("data", "records", "parts"):
        (folder / name).mkdir(parents=True)
    (folder / "parts/plan.json").write_bytes(seal({"count": 2}))
    lease = Lease.take(folder / "parts/1-of-2", tmp_path / "out", wait=False)
    assert [row[:2] for row in rows(call("list", tmp_path))] == [[str(tmp_path / "out"), "being prepared"]]
    assert "left alone" in call("clean", tmp_path).notes[0]
    lease.release()
    assert [row[:2] for row in rows(call("list", tmp_path))] == [[str(tmp_path / "out"), "unfinished, in parts"]]
    call("clean", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_else_is_no_job_in_parts(tmp_path: Path) -> None:
    theirs, begun, empty = (tmp_path / name for name in (".house.rent.parts", ".out.0123.parts", ".other.0123.parts"))
    for folder in (theirs / "parts/kitchen", begun / "parts", begun / "data", empty):
        folder.mkdir(parents=True)
    (theirs / "parts/plan.json").write_text("{}\n")
    shutil.copytree(theirs / "parts", tmp_path / ".car.2.parts/parts/door")

    assert call("clean", tmp_path).metrics["removed"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [".car.2.parts", ".house.rent.parts"]
    assert (theirs / "parts/kitchen").is_dir()


@pytest.mark.parametrize("moment", ["looked at", "removed"])
def test_a_working_directory_that_its_process_removes_meanwhile_is_passed_over(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(tmp_path / "half")
    dead = interrupt(tmp_path / "quick")
    if moment == "looked at":
        (dead / "lease").unlink()
    place, name = (inventory, "is_attempt") if moment == "looked at" else (cache, "_remove")
    usual = getattr(place, name)

    def gone(folder: Path) -> bool:
        if folder.name == dead.name:
            shutil.rmtree(folder, ignore_errors=True)
        return bool(usual(folder))

    monkeypatch.setattr(place, name, gone)
    assert call("list", tmp_path).metrics["prepared"] == 0
    assert call("clean", tmp_path).metrics["removed"] == 1
    assert list(tmp_path.iterdir()) == []


@limited
def test_what_another_user_left_is_left_alone_and_named_and_the_rest_is_removed(public: Path) -> None:
    """In a sticky folder such as /tmp it stopped the command, before or after what could be removed; a rehearsal promised all."""
    public.chmod(0o1777)
    theirs, mine = interrupt(public / "a"), interrupt(public / "b")
    for path in (mine, *mine.rglob("*")):
        os.chown(path, NOBODY, NOBODY)

    def told(dry_run: bool) -> None:
        report = call("clean", public, dry_run=dry_run)
        raise StoreError("; ".join([report.status, *report.notes, report.details["table"]["head"][0], *(row[0] for row in rows(report))]))

    left = f"StoreError | ok; left alone: {theirs}, it belongs to user root; "
    assert as_nobody(lambda: told(dry_run=True)) == f"{left}would remove; {mine} | "
    assert as_nobody(lambda: told(dry_run=False)) == f"{left}removed; {mine} | "
    assert list(public.iterdir()) == [theirs]
    assert theirs.joinpath("lease").is_file()


@limited
def test_an_own_leftover_that_cannot_be_removed_fails_the_command(public: Path) -> None:
    mine = interrupt(public / "a")
    os.chown(mine, NOBODY, NOBODY)

    def told() -> None:
        report = call("clean", public)
        raise StoreError("; ".join([report.status, *report.notes]))

    assert as_nobody(told) == f"StoreError | failed; left alone: {mine}, Permission denied | "


def test_prepared_data_that_are_removed_while_they_are_listed_are_passed_over(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(folder: Path) -> None:
        shutil.rmtree(folder)

    monkeypatch.setattr(cache, "read_manifest", gone)
    assert call("list", tmp_path).metrics["prepared"] == 0


def test_a_folder_that_cannot_be_read_is_named(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").mkdir()
    scan = os.scandir

    def refused(path: str) -> Any:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    report = call("list", tmp_path)
    assert report.metrics["prepared"] == 1
    assert report.notes == (f"could not be searched: {tmp_path / 'secret'}: Permission denied",)


def test_a_link_to_prepared_data_is_followed_once(prepared: Path, tmp_path: Path) -> None:
    looked = tmp_path / "looked"
    looked.mkdir()
    for name in ("a", "b"):
        (looked / name).symlink_to(prepared)
    (looked / "loop").symlink_to(looked)

    assert [row[0] for row in rows(call("list", looked))] == [str(looked / "a")]
    assert [row[0] for row in rows(call("list", tmp_path))] == [str(prepared)]
    dead = interrupt(tmp_path / "elsewhere/half")
    (looked / dead.name).symlink_to(dead)
    call("clean", looked)
    assert dead.is_dir()


def test_a_folder_with_a_hostile_name_stays_one_row_of_the_table(prepared: Path, tmp_path: Path) -> None:
    prepared.rename(tmp_path / "a\n\x1b[8mb")
    told = testing.run("cache", "ls", ".", cwd=tmp_path)

    assert told.exit_code == 0
    assert "\x1b" not in told.stdout
    assert [line.split("  ")[0] for line in told.stdout.splitlines()] == ["directory", "a\\n\\x1b[8mb"]


def test_ls_and_prune_are_list_and_clean(prepared: Path, tmp_path: Path) -> None:
    dead = interrupt(tmp_path / "half")

    assert call("ls", tmp_path).metrics == call("list", tmp_path).metrics
    assert call("prune", tmp_path, dry_run=True).metrics["abandoned"] == 1
    assert call("prune", tmp_path).metrics["removed"] == 1
    assert not dead.exists()
    assert prepared.is_dir()


# -- why ---------------------------------------------------------------------------------------------------------------


def made(folder: Path, inputs: Mapping[str, object] | None, sources: Sequence[Mapping[str, object]] = (), content: str = "c") -> Path:
    """A directory with a manifest, and nothing else."""
    folder.mkdir(parents=True)
    told = {} if inputs is None else {"inputs": inputs}
    number = fingerprint({"inputs": inputs, "sources": [{**source, "path": ""} for source in sources]})
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "fingerprint": number,
        "content_hash": content,
        "files": [],
        "splits": {},
        "sources": sources,
        **told,
    }
    (folder / MANIFEST_NAME).write_bytes(seal({**manifest, "tokenizer": {"path": f"{folder.name}-tokenizer"}}))
    return folder


def source(path: str, content: str, split: str = "train") -> dict[str, object]:
    return {"path": path, "format": "jsonl", "split": split, "bytes": 1234, "xxh3": content}


def why(*folders: Path) -> dict[str, list[str]]:
    return {name: values for name, *values in call("why", *folders).details["differences"]["rows"]}


INPUTS = {
    "tokenizer": "t1",
    "packing.max_length": 320,
    "chat template": "h1",
    "dataset.seed": None,
    "plugins": [["a", "1", "x"], ["b", "1", "y"]],
}


def test_why_lists_every_input_that_differs_with_both_values(tmp_path: Path) -> None:
    changed = {
        "tokenizer": "t2",
        "packing.max_length": 512,
        "dataset.seed": 42,
        "plugins": [["a", "2", "x"], ["c", "1", "z"]],
        "train.mode": "sft",
    }
    one = made(tmp_path / "one", INPUTS, [source("a", "1"), source("b", "2"), source("gone", "3"), source("old-name", "4")])
    other = made(tmp_path / "other", changed, [source("a", "1"), source("b", "9"), source("new", "5"), source("new-name", "4")])

    assert why(one, other) == {
        "source b": ["jsonl for train, 1,234 bytes, content 2", "jsonl for train, 1,234 bytes, content 9"],
        "source gone": ["jsonl for train, 1,234 bytes, content 3", "not there"],
        "source new": ["not there", "jsonl for train, 1,234 bytes, content 5"],
        "tokenizer": ["one-tokenizer, t1", "other-tokenizer, t2"],
        "packing.max_length": ["320", "512"],
        "chat template": ["h1", "unset"],
        "dataset.seed": ["unset", "42"],
        "plugin a": ["version 1, file x", "version 2, file x"],
        "plugin b": ["version 1, file y", "not there"],
        "plugin c": ["not there", "version 1, file z"],
        "train.mode": ["unset", "sft"],
    }
    assert call("why", one, other).metrics["differences"] == 11
    assert call("why", one, other).details["lines"][0] == "11 inputs differ."


def test_why_says_that_files_were_only_put_in_another_order(tmp_path: Path) -> None:
    one = made(tmp_path / "one", INPUTS, [source("a", "1"), source("b", "2")])
    other = made(tmp_path / "other", INPUTS, [source("b", "2"), source("a", "1")])

    assert why(one, other) == {"order of sources": ["number 1 is a", "number 1 is b"]}


def test_why_pairs_every_source_of_one_content_and_tells_a_format_from_another(tmp_path: Path) -> None:
    one = made(tmp_path / "one", INPUTS, [source("a1", "same"), source("a2", "same"), source("a3", "same"), source("c.jsonl", "5")])
    other = made(tmp_path / "other", INPUTS, [source("b1", "same"), source("b2", "same"), {**source("d.txt", "5"), "format": "text"}])

    assert why(one, other) == {
        "source a3": ["jsonl for train, 1,234 bytes, content same", "not there"],
        "source c.jsonl": ["jsonl for train, 1,234 bytes, content 5", "not there"],
        "source d.txt": ["not there", "text for train, 1,234 bytes, content 5"],
    }


def test_why_says_when_nothing_differs_or_nothing_is_known(tmp_path: Path) -> None:
    one = made(tmp_path / "one", INPUTS, [source("a", "1")])
    moved = made(tmp_path / "moved", INPUTS, [source("elsewhere", "1")])
    unequal = made(tmp_path / "unequal", INPUTS, [source("a", "1")], content="other")
    old = made(tmp_path / "old", None)

    assert call("why", one, moved).details["lines"][0].startswith("Nothing differs: both have the fingerprint ")
    assert "do not have the same content" in call("why", one, unequal).details["lines"][0]
    assert "does not record its inputs" in call("why", one, old).details["lines"][0]
    assert call("why", one, moved).metrics["differences"] == 0


def test_why_takes_the_beginning_of_a_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = made(Path("one"), INPUTS), made(Path("deep/other"), {**INPUTS, "packing.max_length": 9})
    names = [read_manifest(folder)["fingerprint"] for folder in (one, other)]  # type: ignore[index]

    assert why(Path(names[0][:16]), Path(names[1])) == {"packing.max_length": ["320", "9"]}
    with pytest.raises(StoreError, match="no data prepared below here has a fingerprint starting with 0123456789"):
        call("why", one, Path("0123456789"))
    with pytest.raises(StoreError, match="holds no data"):
        call("why", one, tmp_path)
    with pytest.raises(UsageError, match="compares two"):
        call("why", one)


@pytest.mark.usefixtures("without_plots")
def test_the_command_explains_two_real_directories(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path / "tok")
    for name, length in (("one", 32), ("other", 48)):
        prepare(tmp_path / "tok", write(tmp_path / "a.jsonl", TEXTS), tmp_path / name, packing__max_length=length)
    told = testing.run("cache", "why", "one", "other", cwd=tmp_path)

    assert told.exit_code == 0
    assert told.stdout.splitlines() == ["1 input differs.", "", "packing.max_length", "  one: 32", "  other: 48"]
