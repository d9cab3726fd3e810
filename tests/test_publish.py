"""The commit layer: what is published, what is refused and what is replaced."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import publish_driver
from durability import watched
from ftcli.core.files import durable
from ftcli.core.files.durable import size_of
from ftcli.core.files.manifest import check_published, hash_bytes, published, read_manifest
from ftcli.core.publishing import publish
from ftcli.core.publishing.publish import Attempt
from ftcli.errors import PublishError, StoreError
from publish_cases import BIG, SHARDS, contents, delete, interrupt, listing, prepare, truncate, write_shard


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


# -- what is published -------------------------------------------------------------------------------------------------


def test_the_output_holds_the_files_and_a_manifest_and_nothing_else_is_left(output: Path) -> None:
    document = prepare(output)
    files = contents(output)
    assert files.pop("ftcli-manifest.json")
    assert files == {"train/a.arrow": BIG, "train/b.arrow": BIG[::-1], "test/b.arrow": b"", "info.json": b"{}"}
    assert listing(output.parent) == ["out"]
    assert read_manifest(output) == check_published(output, full=True) == document
    assert (document["fingerprint"], document["rows"]) == ("f", 3)
    assert [(e["path"], e["bytes"], e["xxh3"]) for e in document["files"]] == sorted((n, len(d), hash_bytes(d)) for n, d in files.items())


def test_the_names_of_new_folders_and_of_an_output_that_is_taken_as_it_is_are_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "new" / "newer" / "out"
    with monkeypatch.context() as patch:
        steps = watched(patch)
        prepare(output)
    assert sorted(steps[:2]) == sorted([f"sync {tmp_path.name}", "sync new"])
    with monkeypatch.context() as patch:
        steps = watched(patch)
        with Attempt.open(output, "f") as attempt:
            assert attempt.ready
            assert steps[-1] == "sync newer", "whoever made it may have died before its rename was durable"


def test_the_content_hash_depends_on_content_only(tmp_path: Path) -> None:
    first = prepare(tmp_path / "one", "f")["content_hash"]
    assert prepare(tmp_path / "two", "g", dict(reversed(SHARDS.items())))["content_hash"] == first
    assert prepare(tmp_path / "three", "f", {**SHARDS, "a": {"train/a.arrow": BIG[1:]}})["content_hash"] != first
    assert prepare(tmp_path / "four", "f", {**SHARDS, "a": {"train/c.arrow": BIG}})["content_hash"] != first


def test_an_empty_directory_a_missing_parent_and_a_relative_path_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    prepare(tmp_path / "empty")
    prepare(tmp_path / "not" / "yet" / "there")
    monkeypatch.chdir(tmp_path)
    prepare(Path("here"))
    for name in ("empty", "not/yet/there", "here"):
        check_published(tmp_path / name, full=True)


def test_a_symbolic_link_keeps_pointing_at_the_replaced_directory(tmp_path: Path) -> None:
    prepare(tmp_path / "real", "f")
    (tmp_path / "link").symlink_to("real")
    prepare(tmp_path / "link", "g", replace=True)
    assert (tmp_path / "link").is_symlink()
    assert check_published(tmp_path / "real")["fingerprint"] == "g"
    assert listing(tmp_path) == ["link", "real"]


def test_what_no_finished_shard_lists_is_not_published(output: Path) -> None:
    directory = interrupt(output, names=("a", "b"))
    (directory / "data" / "old").mkdir()
    (directory / "data" / "old" / "stray").touch()
    (directory / "data" / "train" / "stray.arrow").touch()
    prepare(output, shards={"a": SHARDS["a"]})  # the plan has changed: shard b is of no use
    assert sorted(str(path.relative_to(output)) for path in output.rglob("*")) == [
        "ftcli-manifest.json",
        "info.json",
        "train",
        "train/a.arrow",
    ]


names = st.text("abcé 한", min_size=1, max_size=8).map(str.strip).filter(bool)


@settings(max_examples=40, deadline=None)
@given(tree=st.dictionaries(st.tuples(names, names), st.binary(max_size=200), max_size=6), finished=st.integers(0, 6), data=st.data())
def test_whatever_the_files_and_wherever_the_interruption_the_result_is_the_same(
    tree: dict[tuple[str, str], bytes], finished: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    files = {"/".join(path): content for path, content in tree.items()}
    shards = {f"s{index}": {path: content} for index, (path, content) in enumerate(files.items())}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # durability is for the fault tests; 500 syncs take seconds
        straight = prepare(folder / "straight", shards=shards)
        with Attempt.open(folder / "broken", "f") as attempt:
            for name in data.draw(st.permutations(list(shards)))[:finished]:
                write_shard(attempt, name, shards[name])
        assert prepare(folder / "broken", shards=shards) == straight
    assert read_manifest(folder / "broken") == straight
    assert {
        path: content for path, content in contents(folder / "broken").items() if path not in {"info.json", "ftcli-manifest.json"}
    } == files
    assert listing(folder) == ["broken", "straight"]
    shutil.rmtree(folder)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_ftcli_did_not_make_is_never_replaced(output: Path) -> None:
    output.mkdir()
    (output / "thesis.tex").touch()
    for replace in (False, True):
        with pytest.raises(PublishError, match=r"holds 1 entry and no ftcli-manifest\.json: ftcli did not create it"):
            Attempt.open(output, "f", replace=replace)
    output.rename(output.with_name("moved"))
    output.touch()
    with pytest.raises(PublishError, match="is not a directory"):
        Attempt.open(output, "f", replace=True)
    assert listing(output.parent) == ["moved", "out"]
    with pytest.raises(PublishError, match=r"cannot write .*out: File exists"):
        Attempt.open(output / "below", "f")


def test_another_fingerprint_is_refused_with_both_values_unless_it_may_be_replaced(output: Path) -> None:
    prepare(output, "f")
    with pytest.raises(PublishError, match="holds prepared data with another fingerprint: f, but this run's is g"):
        Attempt.open(output, "g")
    assert prepare(output, "g", replace=True)["fingerprint"] == "g"
    assert check_published(output)["fingerprint"] == "g"
    assert listing(output.parent) == ["out"]


def test_the_same_fingerprint_is_ready_unless_it_is_damaged(output: Path) -> None:
    document = prepare(output)
    assert published(output, "f") == document
    assert published(output, "g") is None
    with Attempt.open(output, "f") as attempt:
        assert attempt.ready == document
    truncate(output / "train/a.arrow", 0.5)
    with pytest.raises(StoreError, match=r"a\.arrow has 150,000 bytes"):
        Attempt.open(output, "f")
    with Attempt.open(output, "f", replace=True) as attempt:
        assert attempt.ready is None
    assert prepare(output, "f", replace=True) == document
    delete(output / "ftcli-manifest.json", 0)
    with pytest.raises(PublishError, match="ftcli did not create it"):
        Attempt.open(output, "f", replace=True)


def test_data_that_appear_during_the_work_are_not_replaced(output: Path) -> None:
    with Attempt.open(output, "f", replace=True) as attempt:
        output.mkdir()
        (output / "foreign").touch()
        with pytest.raises(PublishError, match="ftcli did not create it"):
            attempt.publish({}, [])
        attempt._refuse_obstacle = lambda: None  # type: ignore[method-assign]  # it appears after the last look
        with pytest.raises(PublishError, match="Directory not empty") as found:
            attempt.publish({}, [])
        assert "Something else was created there" in found.value.hint
    assert listing(output) == ["foreign"]


def test_an_attempt_whose_directory_was_removed_cannot_publish(output: Path) -> None:
    with Attempt.open(output, "f") as attempt:
        (attempt.directory / "lease").unlink()
        with pytest.raises(PublishError, match="was removed or taken over by another process"):
            attempt.publish({}, [])
        (attempt.directory / "lease").touch()
        with pytest.raises(PublishError, match="was removed or taken over by another process"):
            attempt.publish({}, [])
    assert not output.exists()


# -- replacing ---------------------------------------------------------------------------------------------------------


def test_two_directories_are_exchanged_by_one_call(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert durable.exchange(tmp_path / "one", tmp_path / "other")
    assert [listing(tmp_path / name) for name in ("one", "other")] == [["other"], ["one"]]
    with pytest.raises(FileNotFoundError):
        durable.exchange(tmp_path / "one", tmp_path / "absent")


@pytest.mark.parametrize("library", [object(), "refuses"])
def test_where_the_system_has_no_exchange_it_says_so(library: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    class Refuses:
        def renameat2(self, *arguments: object) -> int:
            ctypes.set_errno(errno.EINVAL)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Refuses() if library == "refuses" else library)
    assert durable.exchange(tmp_path, tmp_path) is False


def test_without_exchange_the_old_directory_steps_aside_and_comes_back_when_the_new_one_fails(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "exchange", lambda one, other: False)
    prepare(output, "f")
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == "data":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(PublishError, match="Input/output error"):
            prepare(output, "g", replace=True)
    assert check_published(output, full=True)["fingerprint"] == "f"
    aside = shutil.copytree(output, output.with_name(".out.replaced-by-ftcli"))  # as left by a crash after the second rename
    prepare(output, "g", replace=True)
    assert check_published(output, full=True)["fingerprint"] == "g"
    assert not aside.exists()


def test_a_set_that_was_published_at_the_last_moment_is_not_replaced_unasked(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Attempt.open(output, "f") as attempt:
        monkeypatch.setattr(attempt._lease, "check", lambda: prepare(output, "g"))
        with pytest.raises(PublishError, match="holds prepared data with another fingerprint: g, but this run's is f"):
            attempt.publish({}, [])
    assert check_published(output, full=True)["fingerprint"] == "g"


def test_an_old_directory_that_a_crash_left_aside_comes_back_on_opening(output: Path) -> None:
    prepare(output, "f")
    output.rename(output.with_name(".out.replaced-by-ftcli"))
    with pytest.raises(PublishError, match="another fingerprint: f"):
        Attempt.open(output, "g")
    assert listing(output.parent) == ["out"]
    check_published(output, full=True)


# -- laws --------------------------------------------------------------------------------------------------------------


def test_the_commit_layer_imports_the_standard_library_and_xxhash_only() -> None:
    source = f"""
import json, sys, types
package = types.ModuleType("ftcli")
package.__path__ = [{str(Path(publish.__file__).parents[2])!r}]
sys.modules["ftcli"] = package
import ftcli.core.publishing.publish
print(json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names)))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, env={"PATH": ""})
    loaded = set(json.loads(done.stdout))
    assert {"xxhash", "ftcli.core.publishing.publish"} <= loaded
    ours = {"ftcli", "ftcli.core", "ftcli.core.files", "ftcli.core.publishing", "ftcli.errors", "ftcli.records"}
    ours |= {f"ftcli.core.files.{name}" for name in ("durable", "lease", "lease_holder", "lease_watch", "manifest", "new_file")}
    ours |= {f"ftcli.core.publishing.{name}" for name in ("inputs", "output_location", "publish", "shard")}
    # what site-packages starts by itself (editable finders, coverage) is none of our doing
    assert {name for name in loaded if name.startswith("ftcli")} == ours
    assert not loaded & {"numpy", "pyarrow", "torch", "datasets", "transformers", "pluggy", "pydantic", "psutil", "loguru"}


def test_the_driver_of_the_fault_tests_publishes_what_its_naive_twin_would(output: Path) -> None:
    assert publish_driver.prepare(output, "A") == 3
    assert publish_driver.prepare(output, "A") == 0
    assert (output / "ftcli-manifest.json").read_bytes() == publish_driver.manifest_of(output, "A")


def test_the_size_of_a_folder_is_told_while_others_remove_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker removes its scratch folder when its shard is committed, whatever the command looks at just then."""
    for name in ("kept/a", "gone/b", "kept/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 10)
    listed, measured, gone = os.scandir, Path.stat, tmp_path / "gone"

    def list_late(path: Any) -> Any:
        if Path(path) == gone and gone.exists():
            (gone / "b").unlink()
            gone.rmdir()
        return listed(path)

    def measure_late(path: Path, **options: Any) -> os.stat_result:
        if path.name == "c":
            path.unlink(missing_ok=True)
        return measured(path, **options)

    assert size_of(tmp_path) == 30
    assert size_of(tmp_path / "kept" / "a") == 10
    assert size_of(tmp_path / "absent") == 0
    monkeypatch.setattr(os, "scandir", list_late)
    monkeypatch.setattr(Path, "stat", measure_late)
    assert size_of(tmp_path) == 10
