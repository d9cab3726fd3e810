"""The `arrow` exporter: the same store at another place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ftcli.core.manifest import check_published
from ftcli.core.store import Store
from ftcli.errors import PublishError
from ftcli.pluginmanager import Plugins
from ftcli.records import MANIFEST_NAME
from stores import write_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(tmp_path / "store", {"train": [([1, 2, 3], None), ([4], None)], "test": [([5, 6], None)]}, shards=2)


def export(store: Store, output: Path) -> list[Path]:
    return list(Plugins(allow=()).registry("exporter").get("arrow")().export(store, output))


def test_the_copy_is_complete_and_opens(store: Store, tmp_path: Path) -> None:
    written = export(store, tmp_path / "copy")

    check_published(tmp_path / "copy", full=True)
    assert Store.open(tmp_path / "copy").split("train").lengths.tolist() == [3, 1]
    assert written[-1] == tmp_path / "copy" / MANIFEST_NAME
    assert sorted(written) == sorted(path for path in (tmp_path / "copy").rglob("*") if path.is_file())
    assert len(written) == len(store.manifest["files"]) + 1


def test_nothing_is_written_twice_where_links_are_possible(store: Store, tmp_path: Path) -> None:
    for path in export(store, tmp_path / "copy"):
        assert path.samefile(store.path / path.relative_to(tmp_path / "copy"))


def test_it_copies_where_links_are_not_possible(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    written = export(store, tmp_path / "copy")

    check_published(tmp_path / "copy", full=True)
    assert not any(path.samefile(store.path / path.relative_to(tmp_path / "copy")) for path in written)


def test_an_empty_directory_is_filled(store: Store, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    export(store, tmp_path / "copy")

    check_published(tmp_path / "copy")


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_in_the_way_is_left_alone(kind: str, store: Store, tmp_path: Path) -> None:
    output = tmp_path / "copy"
    if kind == "file":
        output.write_text("mine")
    elif kind == "directory":
        output.mkdir()
        (output / "mine").write_text("mine")
    else:
        output.symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(PublishError, match="exists and is not an empty directory"):
        export(store, output)

    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.fault
def test_a_full_disk_leaves_nothing_behind(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr("shutil.copyfile", full)
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(PublishError, match="No space left on device"):
        export(store, tmp_path / "copy")

    assert sorted(tmp_path.rglob("*")) == before
