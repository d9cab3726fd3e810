"""`ftcli export`: an export appears whole or not at all, is made once, and never replaces what is not one."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftcli.commands import export as command
from ftcli.context import Context
from ftcli.core.convert import export as converting
from ftcli.core.engines.backend import tokenizer_hash
from ftcli.core.files.manifest import check_published
from ftcli.core.publishing import publish
from ftcli.core.storage.store import Store
from ftcli.core.tokenizer.lossless import Lossless
from ftcli.errors import PluginError, PublishError, SettingsError, StoreError, UsageError
from ftcli.records import MANIFEST_NAME, Report
from ftcli.testing import run, tiny_tokenizer
from stores import write_store
from tokenizing import Bar, plugins

FORMATS = ("arrow", "jsonl", "mds", "megatron", "nanotron")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", {"train": [([1, 2, 3], None), ([4], None)], "test": [([5, 6], None)]}, shards=2).path


def export(store: Path, output: Path, kind: str, *splits: str, tokens_only: bool = False, bar: Bar | None = None, **values: Any) -> Report:
    context = Context.make({key.replace("__", "."): value for key, value in values.items()})
    return command.run(replace(context, progress=bar or context.progress), store, kind, output, splits, tokens_only)


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def around(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


# -- what appears ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_is_complete_counted_and_the_same_to_the_byte(kind: str, store: Path, tmp_path: Path) -> None:
    bar = Bar()
    report = export(store, tmp_path / "one", kind, bar=bar)
    export(store, tmp_path / "two", kind)

    manifest = check_published(tmp_path / "one", full=True)
    assert (report.metrics["rows"], report.metrics["tokens"], report.metrics["reused"]) == (3, 6, False)
    assert report.metrics["files"] == len(manifest["files"]) == len(files(tmp_path / "one")) - 1
    assert report.metrics["bytes"] == sum(entry["bytes"] for entry in manifest["files"])
    assert sum(bar.stages["export"]) == bar.totals["export"] == 3
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "store", "two"]


def test_arrow_is_the_store_at_another_place_and_nothing_is_written_twice(store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "copy", "arrow")

    copy = Store.open(tmp_path / "copy")
    assert copy.fingerprint == Store.open(store).fingerprint
    assert copy.split("train").lengths.tolist() == [3, 1]
    assert all((tmp_path / "copy" / entry["path"]).samefile(store / entry["path"]) for entry in copy.manifest["files"])


def test_arrow_copies_where_links_are_not_possible(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    export(store, tmp_path / "copy", "arrow")

    manifest = check_published(tmp_path / "copy", full=True)
    assert not any((tmp_path / "copy" / entry["path"]).samefile(store / entry["path"]) for entry in manifest["files"])


def test_only_the_splits_that_are_asked_for(store: Path, tmp_path: Path) -> None:
    report = export(store, tmp_path / "out", "jsonl", "test")

    assert set(files(tmp_path / "out")) == {"test.jsonl", MANIFEST_NAME}
    assert report.metrics["rows"] == 1


def test_an_export_says_what_it_is_and_is_no_store(store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "out", "megatron")

    with pytest.raises(StoreError, match="is an export in the format megatron"):
        Store.open(tmp_path / "out")
    assert "exported as megatron" in run("cache", "list", tmp_path).stdout


# -- text --------------------------------------------------------------------------------------------------------------


def test_text_comes_back_from_the_ids_or_is_null(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_tokenizer(tmp_path / "tokenizer"))
    ids = tokenizer("The parcel came 늦게.", add_special_tokens=False)["input_ids"]
    made = {"path": "tokenizer", "hash": tokenizer_hash(tokenizer, str(tmp_path / "tokenizer")), "vocab_size": len(tokenizer)}
    store = write_store(tmp_path / "store", {"train": [(ids, None), ([*ids, tokenizer.eos_token_id], None)]}, tokenizer=made)

    report = export(store.path, tmp_path / "out", "jsonl", tokenizer__path=str(tmp_path / "tokenizer"))

    rows = [json.loads(line) for line in (tmp_path / "out/train.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["The parcel came 늦게.", f"The parcel came 늦게.{tokenizer.eos_token}"]
    assert (report.metrics["texts_kept"], report.metrics["texts_lost"]) == (2, 0)
    lossless = Lossless(tokenizer)
    cut = tokenizer("늦", add_special_tokens=False)["input_ids"][:-1]
    assert [lossless(np.array(part, np.int32)) for part in (cut, ids)] == [None, "The parcel came 늦게."]
    assert (lossless.kept, lossless.lost) == (1, 1)


def test_another_tokenizer_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="was prepared with the tokenizer nowhere"):
        export(store, tmp_path / "out", "jsonl", tokenizer__path=str(tiny_tokenizer(tmp_path / "tokenizer")))


def test_a_tokenizer_is_not_loaded_for_a_format_without_text(store: Path, tmp_path: Path) -> None:
    report = export(store, tmp_path / "out", "megatron", tokenizer__path="nowhere")

    assert report.notes == ("megatron holds no text: the tokenizer nowhere is not used",)


# -- what already exists ---------------------------------------------------------------------------------------------


def test_the_same_export_is_not_made_twice(store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "out", "mds")
    before = (tmp_path / "out/train/index.json").stat().st_mtime_ns

    report = export(store, tmp_path / "out", "mds")

    assert report.metrics["reused"]
    assert report.metrics["rows"] == 3
    assert (tmp_path / "out/train/index.json").stat().st_mtime_ns == before


def test_another_export_is_replaced_only_on_demand(store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "out", "mds")
    before = files(tmp_path / "out")

    with pytest.raises(PublishError, match="format: mds there, jsonl now"):
        export(store, tmp_path / "out", "jsonl")
    assert files(tmp_path / "out") == before
    export(store, tmp_path / "out", "jsonl", runtime__overwrite=True)
    assert set(files(tmp_path / "out")) == {"train.jsonl", "test.jsonl", MANIFEST_NAME}


@pytest.mark.parametrize("kind", ["arrow", "jsonl"])
def test_prepared_data_are_never_replaced_by_an_export(kind: str, store: Path, tmp_path: Path) -> None:
    other = write_store(tmp_path / "other", {"train": [([9], None)]}).path
    before = files(other)

    with pytest.raises(PublishError, match="holds prepared data, not an export"):
        export(store, other, kind, runtime__overwrite=True)
    assert files(other) == before


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_in_the_way_is_left_alone(kind: str, store: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    if kind == "file":
        output.write_text("mine")
    elif kind == "directory":
        output.mkdir()
        (output / "mine").write_text("mine")
    else:
        output.symlink_to(tmp_path / "nowhere")
        (tmp_path / "nowhere").write_text("mine")
    before = around(tmp_path)

    with pytest.raises(PublishError):
        export(store, output, "jsonl", runtime__overwrite=True)

    assert around(tmp_path) == before


@pytest.mark.fault
@pytest.mark.parametrize("kind", FORMATS)
def test_a_full_disk_is_named_and_leaves_nothing_behind(kind: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = around(tmp_path)

    with pytest.raises(PublishError, match=r"No space left on device: [\d,]+ bytes of it written, [\d,]+ bytes free"):
        export(store, tmp_path / "out", kind)

    monkeypatch.undo()
    assert around(tmp_path) == before


@pytest.mark.fault
@pytest.mark.parametrize("kind", FORMATS)
def test_a_disk_that_is_full_at_the_end_leaves_nothing_behind_and_promises_nothing(
    kind: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one shard of an export is finished then, and the next run writes it again."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(publish, "put", full)
    before = around(tmp_path)

    with pytest.raises(PublishError, match="No space left on device") as refused:
        export(store, tmp_path / "out", kind)

    assert around(tmp_path) == before
    assert refused.value.hint == "Free space there or choose another output directory, then run the same command again."


@pytest.mark.parametrize("kind", FORMATS)
def test_damage_in_the_middle_of_a_store_is_named_and_not_exported(kind: str, tmp_path: Path) -> None:
    rows = [(list(range(1, 1_001)), None)] * 100
    folder = write_store(tmp_path / "store", {"train": rows, "test": rows}).path
    damaged = folder / "train/data-00000-of-00001.arrow"
    with damaged.open("r+b") as file:
        file.seek(damaged.stat().st_size // 2)
        file.write(b"\xff")
    Store.open(folder)
    before = around(tmp_path)

    with pytest.raises(StoreError, match=rf"^{re.escape(str(damaged))} has the content hash") as refused:
        export(folder, tmp_path / "out", kind)
    assert around(tmp_path) == before
    assert "--overwrite" in refused.value.hint
    if kind != "arrow":
        export(folder, tmp_path / "out", kind, "test")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_store_that_is_prepared_anew_meanwhile_is_not_called_damaged(
    kind: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(output: Path) -> None:
        store.rename(tmp_path / "before")
        write_store(store, {"train": [([7, 8, 9], None), ([4], None)], "test": [([5, 6], None)]}, shards=2)

    monkeypatch.setattr(converting, "check_place", meanwhile)
    with pytest.raises(StoreError, match="was prepared again during the export") as refused:
        export(store, tmp_path / "out", kind)
    assert refused.value.hint == "Run the export again."
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    export(store, tmp_path / "out", kind)


@pytest.mark.fault
def test_a_copy_that_does_not_fit_is_not_written_and_what_is_copied_is_not_blamed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(source: Path, place: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(place))

    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(shutil, "copyfile", copied)
    with pytest.raises(PublishError, match=rf"cannot write {re.escape(str(tmp_path / '.out.'))}"):
        export(store, tmp_path / "out", "arrow")


BROKEN = """
from ftcli import hookimpl

class Broken:
    name = "broken"
    def __init__(self):
        if FACTORY:
            raise OSError("no wall")
    def export(self, store, output, job):
        yield output / "rows"
        raise KeyError("rows")

@hookimpl
def register_exporters(register):
    register("broken", Broken)
"""


@pytest.mark.parametrize(
    ("factory", "words"),
    [(False, "broken of plugin 'wall' broke: KeyError: 'rows'"), (True, "'broken' of plugin 'wall' cannot be made: OSError: no wall")],
)
def test_what_an_exporter_of_a_plugin_raises_is_named_with_it(store: Path, tmp_path: Path, factory: bool, words: str) -> None:
    found = plugins(tmp_path / "plugins", BROKEN.replace("FACTORY", str(factory)), "wall")
    before = around(tmp_path)

    with pytest.raises(PluginError, match=rf"the exporter {words} \(wall\.py, line \d+\)"):
        command.run(replace(Context.make({}), plugins=found), store, "broken", tmp_path / "out", (), False)

    assert [path for path in around(tmp_path) if "__pycache__" not in path.parts] == before


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("None", "gives NoneType, not the paths of its files"),
        ("[str(output / 'rows')]", "gives a str among its files, not a Path"),
        ("[output.parent / 'rows']", "lists a file that it did not write into its folder: rows"),
        ("[output / 'rows']", "lists a file that it did not write into its folder: rows"),
    ],
)
def test_an_exporter_of_a_plugin_that_gives_no_files_of_its_folder_is_named_with_it(
    store: Path, tmp_path: Path, given: str, words: str
) -> None:
    text = (
        BROKEN.replace("FACTORY", "False")
        .replace('yield output / "rows"', f"return {given}")
        .replace('        raise KeyError("rows")\n', "")
    )
    found = plugins(tmp_path / "plugins", text, "wall")

    with pytest.raises(PluginError, match=f"^the exporter broken of plugin 'wall' {words}$"):
        command.run(replace(Context.make({}), plugins=found), store, "broken", tmp_path / "out", (), False)
    assert not (tmp_path / "out").exists()


def test_an_export_in_the_way_is_called_one_and_what_is_not_prepared_hints_no_option_that_export_lacks(store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "out", "jsonl")
    with pytest.raises(PublishError, match="out holds an export in the format jsonl with another fingerprint"):
        export(store, tmp_path / "out", "mds")
    with pytest.raises(StoreError, match="holds no data prepared") as refused:
        export(tmp_path, tmp_path / "other", "jsonl")
    assert "--dataset" not in refused.value.hint


# -- the command -------------------------------------------------------------------------------------------------------


def test_arrow_takes_no_splits(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="arrow is a copy of the whole store"):
        export(store, tmp_path / "out", "arrow", "train")


def test_an_unknown_format_or_split_names_those_there_are(store: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no plugin provides this exporter") as raised:
        export(store, tmp_path / "out", "megatorn")
    assert "Did you mean 'megatron'?" in raised.value.hint
    with pytest.raises(StoreError, match="has no split 'dev'"):
        export(store, tmp_path / "out", "jsonl", "dev")
    assert not (tmp_path / "out").exists()


def test_the_command_line_reports_as_json(store: Path, tmp_path: Path) -> None:
    result = run("export", store, "--format", "jsonl", "--split", "train,test", "--output", tmp_path / "out", "--json")

    assert result.exit_code == 0
    assert result.report["metrics"]["rows"] == 3
    assert result.report["paths"] == {"output": str(tmp_path / "out")}


def test_an_export_is_not_put_inside_of_what_is_exported(store: Path, tmp_path: Path) -> None:
    before = around(tmp_path)
    with pytest.raises(PublishError, match="inside the prepared data"):
        export(store, store / "export", "jsonl")
    assert around(tmp_path) == before


def test_an_output_below_a_file_is_refused_with_the_reason(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PublishError, match=re.escape(f"cannot write {tmp_path / 'file'}: Not a directory")):
        export(store, tmp_path / "file/x", "jsonl")


def test_files_that_somebody_put_there_are_not_replaced(store: Path, tmp_path: Path) -> None:
    """--overwrite exchanged the directory, and whatever lay in it was gone."""
    out = tmp_path / "out"
    export(store, out, "jsonl")
    (out / "notes").mkdir()
    (out / "notes" / "mine.txt").write_text("precious")
    (out / "cache-0a1b.arrow").write_text("of datasets")
    with pytest.raises(PublishError, match=r"holds 1 file that ftcli did not write there, such as notes/mine\.txt"):
        export(store, out, "jsonl", "test", runtime__overwrite=True)
    assert (out / "notes" / "mine.txt").read_text() == "precious"
    (out / "notes" / "mine.txt").unlink()
    assert export(store, out, "jsonl", "test", runtime__overwrite=True).metrics["rows"] == 1


@pytest.mark.parametrize(("kind", "labels", "formats"), [("regress", None, "jsonl,"), ("classify", ["a", "b"], "jsonl or mds,")])
def test_a_refused_export_names_the_formats_that_take_it(kind: str, labels: Any, formats: str, tmp_path: Path) -> None:
    values = (1.5, -2.0) if kind == "regress" else (0, 1)
    store = write_store(tmp_path / "labelled", {"train": [([1, 2], values[0]), ([3], values[1])]}, task=kind, label_names=labels).path
    with pytest.raises(UsageError) as caught:
        export(store, tmp_path / "out", "megatron")
    assert f"--format {formats}" in caught.value.hint
