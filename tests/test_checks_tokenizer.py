"""Checks of the tokenizer: what is healthy, and the smallest change that is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ftcli.plugins import checks_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

from ftcli.context import Context
from ftcli.core.verify import tokenizer_file
from ftcli.core.verify.missing import Missing
from ftcli.core.verify.probe import Probe
from ftcli.core.verify.tokenizer_file import compare_sentencepiece
from verifying import World

STAGE = ("tokenizer",)
CLASSIFY, PRETRAIN = {"train.mode": "classify"}, {"train.mode": "pretrain"}


@pytest.mark.parametrize("mode", ["classify", "pretrain"])
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_tokenizer_made_by_ftcli_passes(world: World, kind: str, mode: str) -> None:
    world.quiet(f"{kind} by train-tokenizer, {mode}", {"tokenizer.path": str(getattr(world, kind)), "train.mode": mode}, stages=STAGE)


def test_without_a_tokenizer_the_checks_are_skipped_with_the_reason(world: World) -> None:
    checks = world.verify({}, stages=STAGE)
    assert {check.status for check in checks.values()} == {"skipped"}, [check for check in checks.values() if check.status != "skipped"]
    assert checks["FT101"].summary == "Fast tokenizer: no --tokenizer-path"


def test_a_folder_without_a_tokenizer_fails_once_and_the_rest_refers_to_it(world: World, tmp_path: Path) -> None:
    world.caught("an empty tokenizer folder", {"tokenizer.path": str(tmp_path)}, "FT101", words="holds no tokenizer", stages=STAGE)
    checks = world.verify({"tokenizer.path": str(tmp_path)}, stages=STAGE)
    assert checks["FT105"].status == "skipped"
    assert checks["FT105"].summary == "Special tokens: it needs what FT101 found unusable"


def test_a_slow_tokenizer_warns_and_the_way_out_is_shown(world: World, tmp_path: Path) -> None:
    settings = {"tokenizer_class": "ByT5Tokenizer", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    check = world.caught("a slow tokenizer", {"tokenizer.path": str(tmp_path)}, "FT101", status="warn", words="ByT5Tokenizer", stages=STAGE)
    assert "cannot be converted" in check.summary
    assert "ftcli train-tokenizer" in check.fix


def test_a_slow_tokenizer_that_a_converter_makes_fast_says_how_and_the_command_works(world: World, tmp_path: Path) -> None:
    settings = {"tokenizer_class": "BertTokenizerLegacy", "do_lower_case": False}
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "tokenizer_config.json").write_text(json.dumps(settings))
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghijklmnopqrstuvwxyz",
        *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
    ]
    (tmp_path / "slow" / "vocab.txt").write_text("\n".join(words) + "\n")
    values = {"tokenizer.path": str(tmp_path / "slow")}
    check = world.caught(
        "a slow tokenizer that converts", values, "FT101", status="warn", words="can be made fast: BertConverter", stages=STAGE
    )
    code = check.fix.split('python -c "')[1].split('", and')[0]
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    values = {"tokenizer.path": str(tmp_path / "fast-tokenizer")}
    assert world.quiet("the same, converted", values, stages=STAGE)["FT101"].status == "pass"


def test_a_slow_class_beside_a_tokenizer_json_of_other_ids_is_not_called_convertible(world: World, tmp_path: Path) -> None:
    byt5 = {f"<{number}>": number for number in range(3)} | {chr(number): number + 3 for number in range(256)}
    settings = {"tokenizer_class": "ByT5Tokenizer", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    model = {"type": "WordLevel", "vocab": byt5, "unk_token": "<2>"}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "model": model})
    )
    check = world.verify({"tokenizer.path": str(tmp_path)}, stages=STAGE)["FT101"]
    assert "cannot be converted: tokenizer.json gives other ids" in check.summary


def test_no_pad_token_fails_for_classify_and_is_noted_for_pretrain(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", pad_token=None)}
    check = world.caught("no PAD, classify", {**values, **CLASSIFY}, "FT102", words="no PAD token", stages=STAGE)
    assert '"pad_token": "<|endoftext|>"' in check.fix
    whole = {**world.run("classify", "qwen3"), **values, "tokenizer.path": str(values["tokenizer.path"])}
    checks = world.verify(whole, stages=(*STAGE, "model"))  # one cause, one failure
    assert [name for name, found in checks.items() if found.status in {"fail", "error"}] == ["FT102"]
    assert "FT102" in checks["FT403"].summary
    assert "no PAD token" in world.verify(whole, stages=("model",))["FT403"].summary  # which is not asked for here
    assert world.quiet("no PAD, pretrain", {**values, **PRETRAIN}, stages=STAGE)["FT102"].status == "info"


def test_the_hint_for_a_tokenizer_without_pad_and_eos_names_a_real_token(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", pad_token=None, eos_token=None), **CLASSIFY}
    check = world.caught("neither PAD nor EOS", values, "FT102", stages=STAGE)
    assert '"pad_token": "<pad>"' in check.fix
    assert world.verify(values, stages=STAGE)["FT103"].summary == "PAD is not EOS: the tokenizer has no PAD token"


def test_pad_that_is_eos_warns_for_unpacked_pretraining_only(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", pad_token="<|endoftext|>")}
    world.caught("PAD is EOS, pretrain", {**values, **PRETRAIN}, "FT103", status="warn", words="PAD is EOS", stages=STAGE)
    packed = {**values, **PRETRAIN, "packing.strategy": "bfd"}
    prepared = {**values, "dataset.sources": [str(world.packed)]}
    for what, case in (("classify", {**values, **CLASSIFY}), ("pretrain, to be packed", packed), ("pretrain, packed data", prepared)):
        assert world.quiet(f"PAD is EOS, {what}", case, stages=STAGE)["FT103"].status == "info"


@pytest.mark.parametrize("model", ["gpt2", "bert"])
def test_left_padding_with_absolute_positions_fails(world: World, tmp_path: Path, model: str) -> None:
    tokenizer = world.tokenizer(tmp_path / "t", padding_side="left")
    values = {"tokenizer.path": tokenizer, "model.config": world.config(model)}
    check = world.caught(f"left padding with {model}", values, "FT104", words="counts or pools from the left", stages=STAGE)
    assert '"padding_side": "right"' in check.fix


def test_left_padding_with_relative_positions_or_no_model_is_noted(world: World, tmp_path: Path) -> None:
    values = {"tokenizer.path": world.tokenizer(tmp_path / "t", padding_side="left")}
    for what, case in (("qwen3", {**values, "model.config": world.config("qwen3")}), ("no model", values)):
        assert world.quiet(f"left padding with {what}", case, stages=STAGE)["FT104"].status == "info"


def test_what_is_added_to_a_text_is_told(world: World, tmp_path: Path) -> None:
    def told(path: str | Path) -> str:
        return world.verify({"tokenizer.path": str(path)}, stages=STAGE)["FT105"].summary

    assert "nothing (no EOS: ftcli tokenize adds it for pretrain and plain prompts with completions, --add-eos" in told(world.bpe)
    assert told(world.wordpiece) == "added to every text: [CLS] before and [SEP] behind"


def test_a_tokenizer_that_does_not_know_the_letter_a_is_asked_with_a_word_of_its_own(world: World, tmp_path: Path) -> None:
    """A BERT whose vocabulary has no unknown token raises on every other word: three checks called themselves broken."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n[CLS]\n[SEP]\n[MASK]\n##ي\nکورد\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "unk_token": "[PAD]"}))
    checks = world.verify({"tokenizer.path": str(tmp_path)}, stages=STAGE)
    assert checks["FT105"].summary == "added to every text: [CLS] before and [SEP] behind"
    assert checks["FT116"].status == "pass"


def test_a_slow_tokenizer_without_ids_for_every_letter_is_compared_on_what_it_knows(world: World, tmp_path: Path) -> None:
    """As speech recognisers have them: of what is not in the vocabulary the id is None."""
    (tmp_path / "vocab.json").write_text(json.dumps({letter: number for number, letter in enumerate("|abcdefghijklmnopqrstuvwxyz")}))
    settings = {"tokenizer_class": "Wav2Vec2CTCTokenizer", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    check = world.caught("a CTC tokenizer", {"tokenizer.path": str(tmp_path)}, "FT101", status="warn", words="slow tokenizer", stages=STAGE)
    assert "broke" not in check.summary


def test_special_tokens_that_change_the_text_are_told(world: World) -> None:
    plugin = """
import ftcli

@ftcli.hookimpl
def load_tokenizer(settings):
    from transformers import PreTrainedTokenizerFast

    class Odd(PreTrainedTokenizerFast):
        def __call__(self, text, add_special_tokens=True, **options):
            return {"input_ids": [7, 8] if add_special_tokens else [9]}

    return Odd.from_pretrained(settings.tokenizer.path)
"""
    checks = world.verify({"tokenizer.path": str(world.bpe)}, stages=STAGE, plugins=world.plugins(plugin))
    assert checks["FT105"].summary == "special tokens change the ids of the text itself"


def test_data_that_cannot_be_opened_do_not_disturb_the_checks_of_the_tokenizer(world: World) -> None:
    values = {"tokenizer.path": str(world.bpe), "dataset.sources": ["nowhere"]}
    checks = world.quiet("no data where they should be", values, stages=STAGE)
    assert checks["FT102"].status == "pass"


def test_a_tokenizer_json_that_auto_tokenizer_does_not_follow_warns_with_a_text_and_both_ids(world: World, tmp_path: Path) -> None:
    folder = Path(world.tokenizer(tmp_path / "t"))
    assert world.quiet("tokenizer.json as AutoTokenizer has it", {"tokenizer.path": str(folder)}, stages=STAGE)["FT106"].status == "pass"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "GPT2Tokenizer"}))
    document = json.loads((folder / "tokenizer.json").read_text())
    document["normalizer"] = {"type": "Lowercase"}  # GPT2Tokenizer builds its own backend from vocabulary and merges
    (folder / "tokenizer.json").write_text(json.dumps(document))
    check = world.caught(
        "a normaliser that is not used", {"tokenizer.path": str(folder)}, "FT106", status="warn", words="different ids", stages=STAGE
    )
    assert "normalizer" in check.evidence["parts"]
    assert check.evidence["auto_tokenizer"] != check.evidence["tokenizer_json"]


def test_the_text_that_shows_it_is_one_that_tokenizer_json_knows(world: World, tmp_path: Path) -> None:
    folder = world.tokenizer(tmp_path / "t", world.wordpiece, tokenizer_class="RobertaTokenizer")
    check = world.verify({"tokenizer.path": str(folder)}, stages=STAGE)["FT106"]
    unknown = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]["[UNK]"]
    assert check.status == "warn"
    assert unknown not in check.evidence["tokenizer_json"]
    assert check.evidence["tokenizer_json"] != check.evidence["auto_tokenizer"]


def test_a_tokenizer_that_refuses_unknown_words_is_not_compared(world: World, tmp_path: Path) -> None:
    """Its unknown token is an added one, which its model does not know: the check broke, and told to report it."""
    made = Tokenizer(models.WordLevel({"parcel": 0, "order": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["[UNK]"])
    made.save(str(tmp_path / "tokenizer.json"))
    check = world.verify({"tokenizer.path": str(tmp_path)}, stages=STAGE)["FT106"]
    assert (check.status, "Missing [UNK] token from the vocabulary" in check.summary) == ("skipped", True), check


def test_a_hub_id_or_slow_tokenizer_has_no_tokenizer_json_to_compare(world: World, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "ByT5Tokenizer", "pad_token": "<pad>", "eos_token": "</s>"})
    )
    assert world.verify({"tokenizer.path": str(tmp_path)}, stages=STAGE)["FT106"].status == "skipped"


@pytest.mark.parametrize("other", [None, "order"])
def test_a_folder_with_a_sentencepiece_model_alone_is_compared_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: str | None
) -> None:
    """The package is not installed here: what stands for it gives the pieces of the tokenizer itself, but for one word."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(world.bpe)

    class Processor:
        def __init__(self, model_file: str) -> None:
            assert Path(model_file).name == "tokenizer.model"

        def encode(self, text: str, out_type: type) -> list[str]:
            assert out_type is str
            return [text] if text == other else tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])

        def piece_to_id(self, piece: str) -> int:
            return tokenizer.get_vocab().get(piece, 0)

        def unk_id(self) -> int:
            return -1

    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(Missing, match="is not installed"):
        compare_sentencepiece(tokenizer, path, ["order"])
    monkeypatch.setitem(sys.modules, "sentencepiece", SimpleNamespace(SentencePieceProcessor=Processor))
    found = compare_sentencepiece(tokenizer, path, ["parcel", "order", "order parcel"])
    assert found == (None if other is None else ("order", tokenizer.tokenize("order"), ["order"]))
    probe = Probe(Context.make({"tokenizer.path": str(tmp_path)}))
    probe.give(tokenizer=tokenizer)
    verdict = checks_tokenizer.own_file(probe)
    assert verdict.status == "pass"
    assert "tokenizer.model" in verdict.summary


@pytest.mark.parametrize(
    ("change", "made"),
    [
        ({}, False),
        ({"dropout": None, "continuing_subword_prefix": "", "end_of_word_suffix": ""}, False),
        ({"merges": "as texts"}, False),
        ({"byte_fallback": True}, True),
        ({"fuse_unk": True}, True),
        ({"merges": "without the last"}, True),
    ],
)
def test_a_file_that_says_the_same_is_not_made_a_tokenizer_and_any_other_is(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], made: bool
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(world.bpe)
    document = json.loads((world.bpe / "tokenizer.json").read_text(encoding="utf-8"))
    model = document["model"]
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    model.update(change)
    if change.get("merges") == "as texts":
        model["merges"] = [" ".join(pair) for pair in merges]
    elif "merges" in change:
        model["merges"] = merges[:-1]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    loaded: list[str] = []
    plain = tokenizer_file.Tokenizer.from_file
    monkeypatch.setattr(tokenizer_file, "Tokenizer", SimpleNamespace(from_file=lambda path: (loaded.append(path), plain(path))[1]))
    parts, _ = tokenizer_file.compare_own_file(tokenizer, tmp_path / "tokenizer.json")
    assert bool(loaded) is made
    assert parts == (["model"] if made else [])


def test_a_tokenizer_model_that_is_no_sentencepiece_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(model_file: str) -> None:
        raise RuntimeError(f"could not parse {model_file}")

    monkeypatch.setitem(sys.modules, "sentencepiece", SimpleNamespace(SentencePieceProcessor=refuse))
    with pytest.raises(Missing, match="is not read by sentencepiece: could not parse"):
        compare_sentencepiece(None, tmp_path / "tokenizer.model", [])
