"""The same inputs again cost no work, and nothing that changes the data is ever taken for the same."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pytest

from ftcli.commands import tokenize
from ftcli.context import Context
from ftcli.core.files import stamps
from ftcli.core.files.manifest import hash_file
from ftcli.core.files.stamps import RACY_NS, Hashed, SourceHashes, Stamp, check_unchanged
from ftcli.core.prepare import recipe
from ftcli.core.prepare.encode import collect_labels, encode_shard
from ftcli.core.publishing import inputs
from ftcli.core.reading import receipt
from ftcli.core.reading.find import Found
from ftcli.core.reading.read import hash_sources
from ftcli.core.reading.receipt import kind_of
from ftcli.core.verify.probe import Probe
from ftcli.errors import DataError, PublishError
from ftcli.pluginmanager import Plugins
from ftcli.settings import Settings
from tokenizing import Bar, context, corpus, left_behind, manifest, plugins, prepare, small_tokenizers, without_plots, write

kinds = small_tokenizers
no_html = without_plots
pytestmark = pytest.mark.usefixtures("no_html")
noticed = pytest.mark.reliability(11, "what changes the data is noticed")
free = pytest.mark.reliability(11, "what does not change the data costs no work")

PACKER = "from ftcli import hookimpl\n@hookimpl\ndef register_packers(register): ...\n"
VALUES = {"packing__max_length": 24, "dataset__validation_fraction": 0.2}


class World:
    """A source, a tokenizer and a plugin of its own, prepared once."""

    def __init__(self, folder: Path, tokenizer: Path) -> None:
        self.folder = folder
        self.source = write(folder / "data.jsonl", corpus(40), ["a", "b"] * 20)
        self.tokenizer = Path(shutil.copytree(tokenizer, folder / "tokenizer"))
        self.output = folder / "out"
        self.plugins: Plugins | None = plugins(folder / "plugins", PACKER)
        prepare(self.tokenizer, self.source, self.output, self.plugins, **self.values())

    def values(self, **more: Any) -> dict[str, Any]:
        return {**VALUES, "runtime__cache_dir": self.folder / "cache", **more}

    def context(self, **more: Any) -> Context:
        return context(self.tokenizer, self.source, self.output, self.plugins, **self.values(**more))

    def again(self, **more: Any) -> dict[str, Any] | None:
        """What the receipt says, which must agree with the full fingerprint wherever it says "the same"."""
        made = self.context(**more)
        found = receipt.still_there(made, SourceHashes(self.folder / "cache"))
        if found is not None:
            assert recipe.settle(self.context(**more)).fingerprint == found["fingerprint"] == manifest(self.output)["fingerprint"]
        return found


@pytest.fixture
def world(kinds, tmp_path) -> World:
    return World(tmp_path, kinds["bpe"])


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a file in place; size and modification time stay."""
    stat, data = path.stat(), path.read_bytes()
    new = change(data)
    assert new != data
    path.write_bytes(new)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_mtime_ns == stat.st_mtime_ns


def edit_the_source(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(world.source, lambda data: data.replace(b"order", b"Order", 1))


def edit_the_tokenizer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads((world.tokenizer / "tokenizer.json").read_text())
    document["normalizer"] = {"type": "Lowercase"}
    (world.tokenizer / "tokenizer.json").write_text(json.dumps(document))


def edit_the_template(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.tokenizer / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")


def edit_the_plugin(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.plugins = plugins(world.folder / "plugins", PACKER + "# another version\n")


def raise_the_format(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (inputs, recipe, receipt):
        monkeypatch.setattr(module, "FORMAT_VERSION", inputs.FORMAT_VERSION + 1)


def move_to_another_format(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.source = world.source.rename(world.source.with_suffix(".txt"))


CHANGES = (edit_the_source, edit_the_tokenizer, edit_the_template, edit_the_plugin, raise_the_format, move_to_another_format)


@noticed
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_ingredient_is_noticed_by_receipt_and_fingerprint(change, world, monkeypatch):
    assert world.again() is not None
    before = recipe.settle(world.context()).fingerprint
    time.sleep(0.02)  # the clock of change times ticks every 4 ms
    change(world, monkeypatch)
    assert world.again() is None
    assert recipe.settle(world.context()).fingerprint != before


@noticed
@pytest.mark.parametrize(
    "values",
    [
        {"packing__max_length": 25},
        {"packing__min_length": 3},
        {"packing__strategy": "bfd"},
        {"packing__truncation_strategy": "keep_end"},
        {"dataset__seed": 7},
        {"dataset__validation_fraction": 0.3},
        {"dataset__test_fraction": 0.1},
        {"dataset__label_column": "label"},
        {"dataset__shard_bytes": 2_000},
        {"tokenizer__add_eos": False},
        {"dataset__text_column": "label"},
    ],
    ids=str,
)
def test_a_changed_setting_is_noticed_by_receipt_and_fingerprint(values, world):
    before = recipe.settle(world.context()).fingerprint
    assert world.again(**values) is None
    assert recipe.settle(world.context(**values)).fingerprint != before


def test_every_setting_of_the_sections_counts_unless_it_is_listed_as_harmless():
    counted = set(receipt._settings(Settings()))
    fields = {f"{section}.{name}" for section in receipt.SECTIONS for name, _ in getattr(Settings(), section)}
    assert fields >= receipt.HARMLESS
    assert counted == (fields - receipt.HARMLESS) | {"train.mode"}


def touch(world: World) -> None:
    time.sleep(0.02)
    world.source.touch()


def respell(world: World) -> None:
    world.output = world.folder / "nothing" / ".." / "out"
    (world.folder / "nothing").mkdir()


def copy_everything(world: World) -> None:
    world.source = Path(shutil.copy(world.source, world.folder / "copy.jsonl"))
    world.tokenizer = Path(shutil.copytree(world.tokenizer, world.folder / "other-tokenizer"))


def add_a_harmless_plugin(world: World) -> None:
    (world.folder / "plugins" / "watcher.py").write_text("from ftcli import hookimpl\n@hookimpl\ndef on_step(step): ...\n")
    world.plugins = Plugins(world.folder / "plugins", allow=())


def lose_the_cache(world: World) -> None:
    shutil.rmtree(world.folder / "cache")


def damage_the_cache(world: World) -> None:
    (world.folder / "cache").mkdir(exist_ok=True)
    world_hashes = SourceHashes(world.folder / "cache")
    world_hashes._path(str(world.source.parent)).write_text('{"files": {"data.jsonl": [1')


HARMLESS = (touch, respell, copy_everything, add_a_harmless_plugin, lose_the_cache, damage_the_cache)


@free
@pytest.mark.parametrize("change", HARMLESS, ids=lambda change: change.__name__)
def test_what_does_not_change_the_data_costs_no_work(change, world, monkeypatch):
    (world.folder / "cache").mkdir(exist_ok=True)
    change(world)
    assert world.again() is not None
    monkeypatch.setattr(tokenize, "settle", lambda *_: pytest.fail("settled in full"))
    report = tokenize.run(world.context())
    assert report.metrics["reused"] is True
    assert any("nothing to do" in note for note in report.notes)


@free
@noticed
def test_after_an_update_of_ftcli_one_run_settles_in_full_and_those_behind_it_do_not(world, monkeypatch):
    """Another source of ftcli's is another receipt, and often the same fingerprint: without a renewal every run settled it again."""
    monkeypatch.setattr(receipt, "_code", lambda folders: {"ftcli/other.py": "0"})
    assert world.again() is None
    assert tokenize.run(world.context()).metrics["reused"] is True
    assert world.again() is not None
    edit_the_source(world, monkeypatch)
    assert world.again() is None


@free
def test_execution_knobs_cost_no_work(world):
    knobs = {"num_proc": 5, "batch_size": 3, "writer_batch_size": 9, "memory_mode": "disk"}
    values = {**{f"dataset__{name}": value for name, value in knobs.items()}, "tokenizer__audit": 0.5, "tokenizer__engine": "auto"}
    assert world.again(**values, runtime__threads=3) is not None


def test_damaged_data_and_what_a_dead_run_left_behind_go_the_full_way(world):
    dead = world.folder / f".out.{'0' * 16}.attempt"
    (dead / "records").mkdir(parents=True)
    (dead / "lease").touch()
    assert world.again() is None
    assert tokenize.run(world.context()).metrics["reused"] is True
    assert left_behind(world.output) == []
    assert world.again() is not None
    file = next(world.output.glob("train/*.arrow"))
    os.truncate(file, file.stat().st_size - 1)
    assert world.again() is None


def test_there_is_no_receipt_where_not_all_of_the_tokenizer_or_the_reading_can_be_seen(world, tmp_path):
    for hook, arguments in (("load_tokenizer", "settings"), ("register_sources", "register")):
        other = plugins(tmp_path / hook, f"from ftcli import hookimpl\n@hookimpl\ndef {hook}({arguments}): ...\n")
        world.plugins = other
        assert receipt.make_receipt(world.context(), [], []) is None
    world.plugins = None
    assert receipt.make_receipt(world.context(), [], []) is not None
    assert receipt.make_receipt(world.context(tokenizer__path="org/name"), [], []) is None
    assert receipt.make_receipt(world.context(tokenizer__trust_remote_code=True), [], []) is None


def test_a_file_beside_the_tokenizer_that_may_not_be_read_costs_the_receipt_and_no_more(world, monkeypatch):
    """It stopped tokenize, train and a check of verify, though the tokenizer does not need it."""

    def refuse(path: Path) -> str:
        if path.name == "notes.txt":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return hash_file(path)

    (world.tokenizer / "notes.txt").write_text("another user's")
    monkeypatch.setattr(receipt, "hash_file", refuse)
    report = tokenize.run(world.context(dataset__output_dir=world.folder / "other"))
    assert report.status == "ok"
    assert manifest(world.folder / "other")["receipt"] is None
    assert len(Probe(world.context()).tokenizer_hash) == 64


def test_weights_beside_the_tokenizer_count_by_their_stamp(world, monkeypatch):
    monkeypatch.setattr(receipt, "WHOLE_BYTES", 1000)
    weights = world.tokenizer / "model.safetensors"
    weights.write_bytes(bytes(2000))
    before = receipt._tokenizer(world.context().settings)
    assert before is not None
    assert before["model.safetensors"] == Stamp.of(str(weights))
    time.sleep(0.02)
    weights.touch()
    assert receipt._tokenizer(world.context().settings) != before


@pytest.mark.reliability(11, "an edited source with its old time, loaded by datasets", control=True)
def test_datasets_takes_an_edited_source_for_the_same(tmp_path, tally):
    source = write(tmp_path / "data.jsonl", ["old order"])

    def load() -> list[str]:
        return datasets.load_dataset("json", data_files=str(source), split="train", cache_dir=str(tmp_path / "cache"))["text"][:]

    assert load() == ["old order"]
    rewrite(source, lambda data: data.replace(b"old", b"new"))
    assert load() == ["old order"], "datasets has learnt to notice: the control needs another naive way"
    tally("load_dataset: the old rows")


# -- what differs ------------------------------------------------------------------------------------------------------


def refused(world: World, **values: Any) -> str:
    with pytest.raises(PublishError) as error:
        tokenize.run(world.context(**values))
    return error.value.message


def test_another_fingerprint_is_refused_with_what_differs(world):
    assert "(packing.max_length: 24 there, 2,048 now)" in refused(world, packing__max_length=2048)
    words = refused(world, packing__truncation_strategy="keep_end", dataset__seed=7)
    assert "dataset.seed: 42 there, 7 now; packing.truncation_strategy: keep_start there, keep_end now" in words
    edit_the_tokenizer(world, pytest.MonkeyPatch())
    assert "tokenizer: other files" in refused(world)


def test_sources_that_differ_are_counted_and_the_first_is_told(world):
    rewrite(world.source, lambda data: data.replace(b"order", b"Order", 1))
    assert "(sources: 1 of 1 files differ, the first is number 1: other content)" in refused(world)
    world.source.write_text('{"text": "short"}\n' * 9)
    assert "bytes of jsonl for train there, 162 of jsonl for train now)" in refused(world)
    more = write(world.folder / "more.jsonl", corpus(5))
    assert "(sources: 1 files there, 2 now)" in refused(world, dataset__sources=[str(world.source), str(more)])


def test_plugins_that_differ_are_named_and_a_manifest_without_inputs_says_nothing(world):
    edit_the_plugin(world, pytest.MonkeyPatch())
    assert "(plugins: other changed, added or removed)" in refused(world)
    assert inputs.differences({"sources": []}, {"sources": []}) == []
    assert inputs.differences({"inputs": {"gone": 1, "long": None}}, {"long": "x" * 99})[0] == f"long: unset there, {'x' * 59}… now"
    assert inputs.differences({"inputs": {"names": ["a", "b"]}}, {"names": []}) == ["names: a, b there, none now"]


# -- stamps ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of this moment are remembered too."""
    monkeypatch.setattr(stamps, "RACY_NS", 0)


@pytest.mark.usefixtures("remembered")
def test_a_hash_is_remembered_until_the_file_is_touched_whatever_its_times_say(tmp_path, monkeypatch):
    file = tmp_path / "data"
    file.write_bytes(b"one")
    hashes = SourceHashes(tmp_path / "cache")
    first = hashes.take(str(file))
    assert hashes.keep() == ""
    with monkeypatch.context() as patch:
        patch.setattr(stamps, "hash_file", lambda _: pytest.fail("hashed again"))
        assert SourceHashes(tmp_path / "cache").take(str(file)) == first
        (tmp_path / "link").symlink_to(file)
        assert SourceHashes(tmp_path / "cache").take(str(tmp_path / "link")) == first
    time.sleep(0.02)
    rewrite(file, lambda _: b"two")
    second = SourceHashes(tmp_path / "cache").take(str(file))
    assert second.xxh3 != first.xxh3
    assert second.stamp[:4] == first.stamp[:4], "a key of device, inode, size and modification time would have taken it for the same"


@pytest.mark.usefixtures("remembered")
def test_a_source_whose_hash_is_remembered_costs_one_look(tmp_path, monkeypatch):
    found = [Found(str(tmp_path / "data" / f"{number}.jsonl"), "jsonl", "") for number in range(20)]
    (tmp_path / "data").mkdir()
    for number, file in enumerate(found[:-1]):
        Path(file.path).write_text(f"{number}")
    Path(found[-1].path).symlink_to(found[3].path)
    hashes = SourceHashes(tmp_path / "cache")
    first = hash_sources(found, hashes, Bar())
    assert hashes.keep() == ""
    Path(found[7].path).write_text("another")
    Path(found[9].path).unlink()
    Path(found[9].path).write_text("9 again")
    looks = Counter[str]()
    for look in (os.stat, os.lstat):
        monkeypatch.setattr(os, look.__name__, partial(lambda look, path, **more: looks.update([str(path)]) or look(path, **more), look))
    bar = Bar()
    again = hash_sources(found, SourceHashes(tmp_path / "cache"), bar)
    assert [number for number, (one, other) in enumerate(zip(first, again, strict=True)) if one != other] == [7, 9]
    assert again[-1].xxh3 == again[3].xxh3
    assert [looks[file.path] for number, file in enumerate(found[:-1]) if number not in {3, 7, 9}] == [1] * 16
    assert sum(bar.stages["hash"]) == bar.totals["hash"] == sum(again[number].stamp.size for number in (7, 9))
    Path(found[5].path).unlink()
    with pytest.raises(DataError, match=r"5\.jsonl"):
        hash_sources(found, SourceHashes(tmp_path / "cache"), Bar())


def test_a_file_that_was_just_written_is_not_remembered(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(b"one")
    hashes = SourceHashes(tmp_path / "cache")
    hashes.take(str(file))
    assert hashes.keep() == ""
    assert not (tmp_path / "cache").exists()
    assert RACY_NS == 2_000_000_000


@pytest.mark.usefixtures("remembered")
def test_a_file_that_changes_while_it_is_hashed_is_not_remembered(tmp_path, monkeypatch):
    file = tmp_path / "data"
    file.write_bytes(b"one")

    def slow(path: Path) -> str:
        time.sleep(0.02)
        path.write_bytes(b"two")
        return "hash of one"

    with monkeypatch.context() as patch:
        patch.setattr(stamps, "hash_file", slow)
        hashes = SourceHashes(None)
        hashed = hashes.take(str(file))
    assert not hashed.holds(str(file))
    assert hashes.take(str(file)).xxh3 != "hash of one"
    assert hashes.keep() == ""


@pytest.mark.usefixtures("remembered")
def test_a_cache_that_cannot_be_written_is_a_note_and_files_that_went_are_forgotten(tmp_path):
    one, other = (tmp_path / "sources" / name for name in ("one", "other"))
    one.parent.mkdir()
    for file in (one, other):
        file.write_text("x")
    (tmp_path / "cache").write_text("a file in the way")
    hashes = SourceHashes(tmp_path / "cache")
    for file in (one, other):
        hashes.take(str(file))
    assert hashes.keep().startswith("the hashes of the sources are not cached for the next run: cannot write ")
    (tmp_path / "cache").unlink()
    other.unlink()
    assert hashes.keep() == ""
    (kept,) = (tmp_path / "cache").iterdir()
    assert list(json.loads(kept.read_text())["files"]) == ["one"]


def test_what_was_read_is_checked_and_a_changed_mode_is_no_changed_content(tmp_path):
    file = tmp_path / "data"
    file.write_bytes(b"one")
    hashed = {str(file): SourceHashes(None).take(str(file))}
    time.sleep(0.02)
    file.chmod(0o600)
    assert Stamp.of(str(file)) != hashed[str(file)].stamp
    check_unchanged(hashed, hashed)
    rewrite(file, lambda _: b"two")
    with pytest.raises(DataError, match="data changed while it was read"):
        check_unchanged(hashed, hashed)
    file.unlink()
    assert not Hashed("x", hashed[str(file)].stamp).holds(str(file))


def encode_another(job, shard):
    """A worker that finds another file in the place of its source."""
    source = Path(job.settings.dataset.sources[0])
    shutil.copy2(source.with_name("other.jsonl"), source)
    return encode_shard(job, shard)


def test_a_shard_of_a_source_that_was_swapped_for_a_moment_is_not_kept_for_the_next_run(kinds, tmp_path, monkeypatch):
    """The source is another one while it is encoded, and itself again when the command is run anew."""
    source = write(tmp_path / "data.jsonl", corpus(40))
    write(tmp_path / "other.jsonl", corpus(40, start=1000))
    kept = Path(shutil.copy2(source, tmp_path / "kept"))
    expected = prepare(kinds["bpe"], source, tmp_path / "expected").metrics["content_hash"]
    with monkeypatch.context() as patch:
        patch.setattr("ftcli.core.prepare.work.encode_shard", encode_another)
        with pytest.raises(DataError, match="changed while it was read"):
            prepare(kinds["bpe"], source, tmp_path / "out")
    shutil.copy2(kept, source)
    assert prepare(kinds["bpe"], source, tmp_path / "out").metrics["content_hash"] == expected


def labels_of_another(job, shard):
    """As `encode_another`, and the source is itself again before anything else is read."""
    source = Path(job.settings.dataset.sources[0])
    shutil.copy2(source.with_name("other.jsonl"), source)
    try:
        return collect_labels(job, shard)
    finally:
        shutil.copy2(source.with_name("kept"), source)


def test_labels_of_a_source_that_was_swapped_for_a_moment_are_not_kept(kinds, tmp_path, monkeypatch):
    source = write(tmp_path / "data.jsonl", corpus(40), ["a", "b"] * 20)
    write(tmp_path / "other.jsonl", corpus(40), ["a", "x"] * 20)
    shutil.copy2(source, tmp_path / "kept")
    with monkeypatch.context() as patch:
        patch.setattr("ftcli.core.prepare.work.collect_labels", labels_of_another)
        with pytest.raises(DataError, match="changed while it was read"):
            prepare(kinds["bpe"], source, tmp_path / "out", dataset__label_column="label")
    prepare(kinds["bpe"], source, tmp_path / "out", dataset__label_column="label")
    assert manifest(tmp_path / "out")["label_names"] == ["a", "b"]


# -- the whole command -------------------------------------------------------------------------------------------------


@free
@pytest.mark.slow
def test_the_command_again_imports_neither_torch_nor_transformers(world):
    script = (
        "import sys\nseen = set()\nsys.addaudithook(lambda event, words: seen.add(words[0]) if event == 'import' else None)\n"
        "from ftcli.cli.main import main\n"
        "try: main()\nfinally: print('loaded', *sorted({'torch', 'transformers', 'datasets'} & seen))"
    )
    command = [sys.executable, "-c", script, "tokenize", str(world.source), "--tokenizer-path", str(world.tokenizer)]
    command += ["--output-dir", str(world.folder / "whole"), "--max-length", "24", "--tokenizer-engine", "hf"]
    said = [subprocess.run(command, capture_output=True, text=True, cwd=world.folder, check=True).stdout.splitlines() for _ in range(2)]
    assert said[0][-1] == "loaded transformers"
    assert said[1][-1] == "loaded"
    assert "nothing was written" in said[1][0]


def test_the_files_of_a_folder_without_a_tokenizer_are_not_read(tmp_path: Path) -> None:
    """`--tokenizer-path /` read the whole disk before it was refused."""
    settings = Context.make({"tokenizer.path": str(tmp_path)}, Plugins()).settings
    write(tmp_path / "deep" / "film.mkv", "x")
    assert receipt._tokenizer(settings) is None
    write(tmp_path / "tokenizer_config.json", "{}")
    assert set(receipt._tokenizer(settings) or {}) >= {"tokenizer_config.json"}


def test_a_table_is_another_source_where_its_name_tells_another_delimiter(tmp_path):
    """The same bytes are other rows."""
    names = {name: kind_of("csv", name) for name in ("a.csv", "a.CSV.gz", "a.tsv", "a.txt", "a.tsv.gz")}
    assert names == {"a.csv": "csv", "a.CSV.gz": "csv", "a.tsv": "tsv", "a.txt": "tsv", "a.tsv.gz": "tsv"}
    assert kind_of("jsonl", "a.jsonl") == "jsonl"
