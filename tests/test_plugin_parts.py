"""Parts of plugins that lack what their kind has are named, with the plugin, before they are used."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

import pytest

from ftcli.errors import FtcliError, PluginError
from ftcli.testing import run, tiny_tokenizer
from thirdparty import WAYS, loader, put

PART = """
from ftcli import hookimpl

{part}

@hookimpl
def register_{kind}s(register):
    register({name}, {factory})
"""
PACKER = "class X:\n    name = 'x'\n    splits = False\n    def pack(self, lengths, max_length): ...\n"
ENGINE = "class X:\n    name = 'x'\n    version = '1'\n    rank = 5\n    def load(self, backend_json, folder, threads): ...\n"
SOURCE = "class X:\n    name = 'x'\n    suffixes = ('.x',)\n" + "".join(
    f"    def {name}(self, *given): ...\n" for name in ("claims", "expand", "plan", "label_kind", "read")
)
WRONG = {
    "nothing": ("packer", "class X: ...\n", "the packer 'x' of plugin 'other' has no name, pack or splits"),
    "splits": ("packer", PACKER.replace("    splits = False\n", ""), "the packer 'x' of plugin 'other' has no splits"),
    "method": ("packer", PACKER.replace("def pack(self, lengths, max_length): ...", "pack = 3"), "whose pack cannot be called"),
    "argument": ("packer", f"{PACKER}    def __init__(self, size): ...\n", "cannot be made: TypeError: X.__init__() missing 1 required"),
    "raised": ("packer", f"{PACKER}    def __init__(self): 1 / 0\n", "cannot be made: ZeroDivisionError: division by zero ("),
    "version": ("engine", ENGINE.replace("version = '1'", "version = 1"), "whose version is 1, not a string"),
    "no version": ("engine", ENGINE.replace("    version = '1'\n", ""), "the engine 'x' of plugin 'other' has no version"),
    "rank": ("engine", ENGINE.replace("rank = 5", "rank = 'first'"), "whose rank is 'first', not a number"),
    "name": ("engine", ENGINE.replace("name = 'x'", "name = 'y'"), "whose name is 'y'"),
    "name of a source": ("source", SOURCE.replace("name = 'x'", "name = 'y'"), "whose name is 'y'"),
    "suffixes": ("source", SOURCE.replace("('.x',)", "'.x'"), "whose suffixes are '.x', not a tuple"),
    "dot": ("source", SOURCE.replace("('.x',)", "('x',)"), "whose suffix 'x' is not lower case with a dot in front"),
    "task": ("task", "class X:\n    name = 'x'\n    needs_labels = False\n", "has no chance_loss, configure, labels, loss or model_class"),
    "executor": ("executor", "class X:\n    name = 'x'\n", "has no close, each, run or start"),
    "arguments": (
        "packer",
        PACKER.replace("lengths, max_length", "lengths"),
        "whose pack does not take the arguments (lengths, max_length)",
    ),
    "old run": (
        "executor",
        "class X:\n    name = 'x'\n"
        + "".join(f"    def {name}(self, function): ...\n" for name in ("start", "each", "run"))
        + "    def close(self): ...\n",
        "whose run does not take the arguments (function, shards, on_progress, rescue)",
    ),
    "exporter": ("exporter", "class X:\n    name = 'x'\n", "has no export"),
}


def plugin(kind: str, part: str, name: str = "'x'", factory: str = "X") -> str:
    return PART.format(kind=kind, part=part, name=name, factory=factory)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", WRONG)
def test_a_part_that_lacks_something_is_named_with_its_plugin(case: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These were bugs of ftcli: AttributeError, TypeError, KeyError."""
    kind, part, words = WRONG[case]
    plugins = loader(way, monkeypatch, tmp_path)(plugin(kind, part))

    with pytest.raises(PluginError, match=re.escape(words)) as refused:
        plugins.registry(kind).get("x")()
    assert "the " + kind in refused.value.message
    assert "'other'" in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(("kind", "part"), [("packer", PACKER), ("engine", ENGINE), ("source", SOURCE)])
def test_a_whole_part_is_the_plugins_own(kind: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loader("folder", monkeypatch, tmp_path)(plugin(kind, part)).registry(kind).get("x")()

    assert type(made).__name__ == "X"


def test_an_error_for_people_in_a_factory_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = f"{PACKER}    def __init__(self):\n        from ftcli.errors import DataError\n        raise DataError('mine')\n"
    plugins = loader("folder", monkeypatch, tmp_path)(plugin("packer", part))

    with pytest.raises(FtcliError, match=r"^mine$"):
        plugins.registry("packer").get("x")()


@pytest.mark.parametrize(("name", "said"), [("3", "3"), ("''", "''"), ("None", "None")])
def test_what_is_no_name_is_refused(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = loader("folder", monkeypatch, tmp_path)(plugin("packer", PACKER, name))

    with pytest.raises(PluginError, match=rf"plugin 'other' registers a packer under {said}, which is no name"):
        plugins.registry("packer")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("start", ["async def register_packers(register):\n    ", "def register_packers(register):\n    yield "])
def test_a_hook_whose_body_would_never_run_is_an_error(start: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts were missing, and nothing said why."""
    kind = "a coroutine" if "async" in start else "a generator"
    with pytest.raises(PluginError, match=f"register_packers is {kind}, so its body would never run"):
        loader(way, monkeypatch, tmp_path)(f"from ftcli import hookimpl\n{PACKER}\n@hookimpl\n{start}register('x', X)\n")


def test_a_wrapper_yields_and_is_none_of_these(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from ftcli import hookimpl\n@hookimpl(wrapper=True)\ndef load_tokenizer(settings):\n    return (yield)\n"

    assert loader("folder", monkeypatch, tmp_path)(text).describe()[-1].hooks == ("load_tokenizer",)


def test_the_doctor_makes_the_parts_of_plugins(tmp_path: Path) -> None:
    put(tmp_path / "plugins", plugin("packer", PACKER.replace("    splits = False\n", "")))

    found = run("plugins", "doctor", "--json", "--plugins-dir", tmp_path / "plugins")

    verdict = next(check for check in found.report["checks"] if check["id"] == "plugin:other")
    assert found.exit_code == 1
    assert (verdict["status"], verdict["summary"]) == ("fail", "the packer 'x' of plugin 'other' has no splits")


LOSING = """
class X:
    name = 'x'
    def start(self, workers): ...
    def each(self, function): return [function()]
    def close(self): ...
    def run(self, function, shards, on_progress, rescue=None):
"""
LOSES = {
    "the last shard": ("return [function(shard) for shard in shards[:-1]]", "gave 1 of 2 results"),
    "a shard doubled": ("return [function(shard) for shard in (*shards, shards[0])]", "gave 3 of 2 results"),
    "nothing": ("return None", "run returned NoneType"),
    "other results": ("return [function(shard) and None for shard in shards]", "gave NoneType for a shard"),
}


@pytest.mark.parametrize("case", LOSES)
def test_an_executor_that_loses_a_shard_prepares_nothing(case: str, tmp_path: Path) -> None:
    body, words = LOSES[case]
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    put(tmp_path / "plugins", plugin("executor", LOSING + indent(body, " " * 8)))
    for name in ("train", "validation"):
        (tmp_path / f"{name}.txt").write_text(f"the first of {name}\nthe second\n")
    given = [tmp_path / "train.txt", tmp_path / "validation.txt", "--tokenizer-path", tokenizer, "--tokenizer-engine", "hf"]

    found = run("tokenize", "--json", *given, "--plugins-dir", tmp_path / "plugins", "--executor", "x", "--output-dir", tmp_path / "out")

    assert found.exit_code == 1
    assert words in found.report["error"]["message"]
    assert "plugin 'other'" in found.report["error"]["message"]
    assert not (tmp_path / "out").exists()


READING = """
from pathlib import Path
from ftcli.records import Piece

class X:
    name = 'x'
    suffixes = ('.x',)
    def claims(self, item): return False
    def expand(self, item, settings): return {None: [item]}
    def label_kind(self, path, column, settings): return 'string'
    def plan(self, path, target_bytes, settings):
        return [Piece(path, 'x', 0, 8, 'file', 8)]
    def read(self, piece, columns, settings, reject):
        import pyarrow as pa
        texts = pa.array(['a', 'b'], pa.large_string())
"""
READS = {
    "a table": ("return pa.table({'text': texts})", "read returned Table: it yields record batches"),
    "nothing": ("return None", "read returned NoneType"),
    "strings": ("yield from ['a', 'b']", "read yields str, not a RecordBatch"),
    "another column": ("yield pa.record_batch([texts], ['content'])", "read yields no column 'text', only 'content'"),
    "no labels": ("yield pa.record_batch([texts], ['text'])", "read yields no column 'label', only 'text'"),
    "nulls": (
        "yield pa.record_batch([texts, pa.array(['a', None], pa.large_string())], ['text', 'label'])",
        "read yields nulls in 'label'",
    ),
    "short strings": (
        "yield pa.record_batch([pa.array(['a']), pa.array(['b'])], ['text', 'label'])",
        "'text' as string, not as large_string",
    ),
    "an error": ("1 / 0; yield", "broke: ZeroDivisionError: division by zero (other.py, line "),
}


@pytest.mark.parametrize("case", READS)
def test_a_source_that_gives_something_else_than_batches_of_the_contract_is_named(case: str, tmp_path: Path) -> None:
    """A table, nulls and nothing were called bugs of ftcli."""
    body, words = READS[case]
    message = _of_source(tmp_path, READING + indent(body, " " * 8) + "\n")

    assert "the source x of plugin 'other'" in message
    assert words in message


@pytest.mark.parametrize("pieces", ["None", "[path]"])
def test_a_plan_that_is_no_list_of_pieces_is_named(pieces: str, tmp_path: Path) -> None:
    """Nothing was said to be a file without rows."""
    part = READING.replace("[Piece(path, 'x', 0, 8, 'file', 8)]", pieces) + "        yield\n"

    assert "the source x of plugin 'other' breaks its contract: plan returned " in _of_source(tmp_path, part)


def _of_source(folder: Path, part: str) -> str:
    """What is said of a file that the source reads."""
    put(folder / "plugins", plugin("source", part))
    (folder / "train.x").write_text("anything")
    tokenizer = tiny_tokenizer(folder / "tokenizer")
    given = [folder / "train.x", "--label-column", "label", "--tokenizer-path", tokenizer, "--tokenizer-engine", "hf"]
    found = run("tokenize", "--json", *given, "--plugins-dir", folder / "plugins", "--output-dir", folder / "out")

    assert found.exit_code == 1
    assert not (folder / "out").exists()
    return str(found.report["error"]["message"])
