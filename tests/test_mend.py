"""`verify --fix`: safe edits, in copies, with the difference shown and the copy verified again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ftcli import testing
from ftcli.commands import verify
from ftcli.context import Context
from ftcli.contracts import CheckKind, Edit
from ftcli.core.storage.store import Store
from ftcli.core.tokenizer.spare_token import spare_token
from ftcli.core.verify.mend import mend
from ftcli.core.verify.verdict import failed, warned
from ftcli.errors import PublishError
from ftcli.pluginmanager import Plugins
from ftcli.records import Report
from verifying import World


def _fix(values: dict[str, Any], folder: Path, *stages: str, plugins: Plugins | None = None) -> Report:
    context = Context.make({**values, "runtime.report_dir": folder / "reports"}, plugins, environ={})
    return verify.run(context, stages or ("tokenizer",), "full", "error", (), (), fix=True)


def _tokenizer(world: World, folder: Path, **changes: Any) -> str:
    """A copy of `bpe` with changes, its configuration written as transformers writes it."""
    path = Path(world.tokenizer(folder, **changes)) / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return str(folder)


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _config(copy: dict[str, Any], name: str = "tokenizer_config.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(copy["copy"]) / name).read_text(encoding="utf-8"))
    return found


# -- the tokenizer -------------------------------------------------------------------------------------------------------------------------


def test_a_missing_pad_becomes_a_free_entry_in_a_copy_and_the_folder_stays_as_it_was(world: World, tmp_path: Path) -> None:
    folder = Path(_tokenizer(world, tmp_path / "t", pad_token=None))
    before = _bytes(folder)
    report = _fix({"tokenizer.path": str(folder), "train.mode": "classify"}, tmp_path)
    (copy,) = report.details["mended"]["copies"]
    assert _config(copy)["pad_token"] == "<|pad|>"
    assert '+  "pad_token": "<|pad|>"' in copy["diff"].replace(",", "")
    assert copy["diff"].startswith(f"--- {folder}/tokenizer_config.json\n+++ {copy['copy']}/tokenizer_config.json\n")
    assert copy["use"] == {"tokenizer.path": copy["copy"]}
    assert next((each["id"], each["before"], each["after"]) for each in report.details["mended"]["changed"]) == ("FT102", "fail", "pass")
    assert report.status == "failed", "what was given has not changed"
    assert _bytes(folder) == before
    assert sorted(path.name for path in Path(copy["copy"]).iterdir()) == sorted(before)
    again = _fix({"tokenizer.path": str(folder), "train.mode": "classify"}, tmp_path)
    assert again.details["mended"]["copies"][0]["copy"] != copy["copy"], "no copy is ever written again"


def test_the_padding_side_is_set_right_only_where_the_model_counts_from_the_left(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": _tokenizer(world, tmp_path / "t", padding_side="left"), "train.mode": "pretrain"}
    assert _fix(values, tmp_path).details["mended"]["copies"] == []
    (copy,) = _fix({**values, "model.config": world.config("gpt2")}, tmp_path).details["mended"]["copies"]
    assert _config(copy)["padding_side"] == "right"
    assert "gpt2 counts or pools from the left" in copy["reasons"]["padding_side"]


def test_eos_serves_as_pad_for_classification_only_and_only_where_no_text_ends_with_it(world: World, tmp_path: Path) -> None:
    """`bpe` without an entry for PAD: the tokenizer's own file names it otherwise."""
    folder = Path(_tokenizer(world, tmp_path / "t", pad_token=None))
    for path in folder.glob("*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace("<|pad|>", "<|odd|>"), encoding="utf-8")
    values = {"tokenizer.path": str(folder)}
    (copy,) = _fix({**values, "train.mode": "classify"}, tmp_path).details["mended"]["copies"]
    assert _config(copy)["pad_token"] == _config(copy)["eos_token"]
    assert _fix({**values, "train.mode": "pretrain"}, tmp_path).details["mended"]["copies"] == []
    assert _fix({**values, "train.mode": "classify", "tokenizer.add_eos": True}, tmp_path).details["mended"]["copies"] == []
    ended = {**values, "train.mode": "classify", "dataset.sources": [str(world.plain)]}
    assert _fix(ended, tmp_path).details["mended"]["copies"] == [], "these rows end with EOS"


def test_a_pad_that_is_eos_is_parted_from_it_only_where_it_does_harm(world: World, tmp_path: Path) -> None:
    folder = _tokenizer(world, tmp_path / "t")
    config = json.loads((Path(folder) / "tokenizer_config.json").read_text(encoding="utf-8"))
    folder = _tokenizer(world, tmp_path / "same", pad_token=config["eos_token"])
    (copy,) = _fix({"tokenizer.path": folder, "train.mode": "pretrain"}, tmp_path).details["mended"]["copies"]
    assert _config(copy)["pad_token"] == "<|pad|>"
    assert _fix({"tokenizer.path": folder, "train.mode": "classify"}, tmp_path).details["mended"]["copies"] == []


def test_nothing_to_mend_is_said(world: World, tmp_path: Path) -> None:
    result = testing.run("verify", "tokenizer", "--fix", "--tokenizer-path", world.bpe, cwd=tmp_path)
    assert result.exit_code == 0
    assert "--fix: nothing can be fixed safely." in result.stdout
    assert not (tmp_path / "ftcli-reports" / "mended").exists()


def test_the_terminal_shows_the_difference_the_copy_and_how_to_use_it(world: World, tmp_path: Path) -> None:
    folder = _tokenizer(world, tmp_path / "t", pad_token=None)
    result = testing.run("verify", "tokenizer", "--fix", "--tokenizer-path", folder, "--mode", "classify", cwd=tmp_path)
    assert result.exit_code == 1
    assert "FT102: fail → pass" in result.stdout
    assert "Use it: --tokenizer-path ftcli-reports/mended/tokenizer-t" in result.stdout
    assert '  +  "pad_token": "<|pad|>"' in result.stdout
    page = (tmp_path / "ftcli-reports" / "verify.html").read_text(encoding="utf-8")
    assert "Fixed in a copy" in page


def test_a_length_that_the_tokenizer_does_not_name_becomes_the_models_positions(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": _tokenizer(world, tmp_path / "t", model_max_length=None), "train.mode": "pretrain"}
    assert _fix(values, tmp_path).details["mended"]["copies"] == [], "no model is known"
    (copy,) = _fix({**values, "model.config": world.config("qwen3")}, tmp_path).details["mended"]["copies"]
    assert copy["reasons"].keys() == {"model_max_length"}
    assert _config(copy)["model_max_length"] == 1024
    roberta = {**values, "model.config": world.config("roberta")}
    (copy,) = _fix(roberta, tmp_path).details["mended"]["copies"]
    assert _config(copy)["model_max_length"] == 1024 - 2, "they begin behind PAD's id"


def test_the_side_of_truncation_follows_the_data_that_were_cut(world: World, tmp_path: Path) -> None:
    data = world.prepare("cut-short", world.bpe, {"packing.max_length": 12})
    values = {"tokenizer.path": _tokenizer(world, tmp_path / "t", truncation_side="left"), "train.mode": "pretrain"}
    assert _fix(values, tmp_path).details["mended"]["copies"] == []
    (copy,) = _fix({**values, "dataset.sources": [str(data)]}, tmp_path).details["mended"]["copies"]
    assert _config(copy)["truncation_side"] == "right"


# -- the configuration ---------------------------------------------------------------------------------------------------------------------


def test_the_configuration_follows_the_mended_tokenizer(world: World, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    config = shutil.copy(world.config("gpt2", pad_token_id=None, vocab_size=100), tmp_path / "c" / "small.json")
    values = {"tokenizer.path": _tokenizer(world, tmp_path / "t", pad_token=None), "model.config": config, "train.mode": "classify"}
    report = _fix(values, tmp_path, "tokenizer", "model")
    tokenizer, model = report.details["mended"]["copies"]
    made = _config(model, "small.json")
    assert (made["vocab_size"], made["pad_token_id"]) == (448, 0)
    assert model["use"] == {"model.config": f"{model['copy']}/small.json"}
    assert [path.name for path in Path(model["copy"]).iterdir()] == ["small.json"]
    after = {each["id"]: each["after"] for each in report.details["mended"]["changed"]}
    assert after["FT401"] == "pass"
    assert tokenizer["part"] == "tokenizer"


def test_weights_are_linked_and_a_trained_model_keeps_its_embedding(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(world.config("gpt2", vocab_size=100), folder / "config.json")
    (folder / "model.safetensors").write_bytes(b"weights")
    context = Context.make({"model.name_or_path": str(folder)}, environ={})
    (made,) = mend(context, [Edit("model", "config.json", "pad_token_id", 3, "so")], tmp_path / "made")
    assert (made.copy / "model.safetensors").readlink() == folder / "model.safetensors"
    assert json.loads((made.copy / "config.json").read_text())["pad_token_id"] == 3
    values = {"tokenizer.path": str(world.bpe), "model.name_or_path": str(folder), "train.mode": "pretrain"}
    report = _fix(values, tmp_path, "model")
    edited = {key for copy in report.details["mended"]["copies"] for key in copy["reasons"]}
    assert "vocab_size" not in edited


# -- the engine ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lines"), [('{\n    "b": 1,\n    "a": "한"\n}\n', 2), ('{"b": 1, "a": "\\ud55c"}', 2), ('{\n"b" : 1\n}', 2)]
)
def test_a_file_keeps_its_form_so_that_the_difference_is_the_edit(tmp_path: Path, text: str, lines: int) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    context = Context.make({"tokenizer.path": str(folder)}, environ={})
    (made,) = mend(context, [Edit("tokenizer", "tokenizer_config.json", "b", 2, "so")], tmp_path / "made")
    changed = [line for line in made.diff.splitlines() if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    assert len(changed) == lines
    assert json.loads((made.copy / "tokenizer_config.json").read_text())["b"] == 2


def test_a_file_that_lies_outside_or_is_no_json_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text("no")
    context = Context.make({"tokenizer.path": str(folder)}, environ={})
    for name in ("../other.json", "tokenizer_config.json"):
        with pytest.raises(PublishError, match="no fixed copy"):
            mend(context, [Edit("tokenizer", name, "b", 2, "so")], tmp_path / "made")
    assert not (tmp_path / "made" / "other.json").exists()
    assert (folder / "tokenizer_config.json").read_text() == "no"


def test_a_tokenizer_of_the_hub_is_said_and_nothing_is_made(tmp_path: Path) -> None:
    context = Context.make({"tokenizer.path": "some/where"}, environ={})
    assert mend(context, [Edit("tokenizer", "tokenizer_config.json", "b", 2, "so")], tmp_path / "made") == []
    assert "download it first" in context.notes[0]


PLUGIN = """
import ftcli
from ftcli.contracts import CheckKind, Edit
from ftcli.core.verify.verdict import warned

def length(probe):
    longest = probe.tokenizer.model_max_length
    return warned(f"model_max_length is {longest}", "Set it.") if longest != 99 else warned("still", "Set it.")

def set_length(probe, verdict):
    return [Edit("tokenizer", "tokenizer_config.json", "model_max_length", 99, "the house's limit")]

def broken(probe, verdict):
    raise RuntimeError("no such thing")

@ftcli.hookimpl
def register_checks(register):
    register("XY001", CheckKind("XY001", "tokenizer", "Own", length, mend=set_length))
    register("XY002", CheckKind("XY002", "tokenizer", "Own", length, mend=broken))
"""


def test_a_plugins_check_brings_its_fix_and_a_broken_one_is_named(world: World, tmp_path: Path) -> None:
    report = _fix({"tokenizer.path": str(world.bpe)}, tmp_path, plugins=world.plugins(PLUGIN))
    (copy,) = report.details["mended"]["copies"]
    assert _config(copy)["model_max_length"] == 99
    assert any("XY002: the fix of plugin" in note and "RuntimeError: no such thing" in note for note in report.notes)


def test_two_fixes_of_one_key_do_not_both_apply(world: World, tmp_path: Path) -> None:
    from ftcli.core.verify.mend import proposed
    from ftcli.core.verify.probe import Probe

    def kind(name: str, value: int) -> CheckKind:
        return CheckKind(
            name, "tokenizer", "t", lambda probe: failed("a", "b"), mend=lambda probe, verdict: [Edit("tokenizer", "f", "k", value, "r")]
        )

    context = Context.make({}, environ={})
    checks = [verdict_of(name) for name in ("A1", "A2")]
    assert [edit.value for edit in proposed(Probe(context), [kind("A1", 1), kind("A2", 2)], checks, lambda name: "mine")] == [1]
    assert "k = 2 is left out" in context.notes[0]


def verdict_of(name: str) -> Any:
    from dataclasses import replace

    return replace(warned("a", "b"), id=name)


# -- free entries --------------------------------------------------------------------------------------------------------------------------


class _Tokenizer:
    def __init__(self, *names: str, **roles: str) -> None:
        self._names, self.special_tokens_map = names, roles

    def get_vocab(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._names)}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("a", "[unused2]", "[unused1]", "<pad>"), "<pad>"),
        (("a", "[unused12]", "[unused2]"), "[unused2]"),
        (("<|reserved_special_token_5|>", "<|finetune_right_pad_id|>"), "<|finetune_right_pad_id|>"),
        (("<|placeholder1|>",), "<|placeholder1|>"),
        (("[control_8]",), "[control_8]"),
        (("<extra_id_0>", "unused", "[MASK]", "<|im_end|>", "placeholder1"), None),
        (("<unk>", "<s>", "</s>"), None),
    ],
)
def test_only_entries_that_were_set_aside_are_free(names: tuple[str, ...], expected: str | None) -> None:
    assert spare_token(_Tokenizer(*names), None, None) == expected


def test_an_entry_with_a_role_or_without_a_row_or_in_the_data_is_not_free(world: World) -> None:
    assert spare_token(_Tokenizer("a", "<pad>", unk_token="<pad>"), None, None) is None
    assert spare_token(_Tokenizer("a", "b", "<pad>"), None, 2) is None
    assert spare_token(_Tokenizer("a", "b", "<pad>"), None, 3) == "<pad>"
    used = int(Store.open(world.labelled).split("train").rows([0]).input_ids.values[0])
    names = [f"t{number}" for number in range(400)]
    names[used] = "<pad>"
    assert spare_token(_Tokenizer(*names), Store.open(world.labelled), None) is None
    names[used], names[0] = "x", "<pad>"
    assert spare_token(_Tokenizer(*names), Store.open(world.labelled), None) == "<pad>"
