"""The built-in tokenizer loader: what it refuses, and that it runs no code."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import transformers
from ftcli.plugins.tokenizer import _explained, load_tokenizer

from bad_corpus import POINTER
from ftcli.errors import FtcliError, MissingExtraError, TokenizerError, UsageError
from ftcli.settings import Settings, update
from ftcli.testing import tiny_tokenizer


def _load(path: Path | str | None):
    return load_tokenizer(update(Settings(), {"tokenizer.path": None if path is None else str(path)}))


def test_a_folder_is_loaded(tmp_path: Path) -> None:
    assert len(_load(tiny_tokenizer(tmp_path / "tokenizer"))) == 384


def test_a_tokenizer_must_be_named() -> None:
    with pytest.raises(UsageError, match="--tokenizer-path is missing"):
        _load(None)


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "a/b/c"])
def test_a_folder_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(TokenizerError, match="does not exist"):
        _load(name)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the hub is asked for, which has Qwen/Qwen3-4B alone; the working directory has tokenizers in tok/korean, Qwen/Qwen3-8B and bert."""
    from huggingface_hub import HfApi

    names: list[str] = []

    def model_info(_: HfApi, name: str, timeout: float) -> str:
        assert timeout < 10
        names.append(name)
        if name != "Qwen/Qwen3-4B":
            raise ConnectionError("Name or service not known")
        return name

    def from_pretrained(name: str, **_: object) -> None:
        names.append(f"files of {name}")
        raise OSError("We couldn't connect")

    monkeypatch.setattr(HfApi, "model_info", model_info)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", from_pretrained)
    monkeypatch.chdir(tmp_path)
    for folder in ("tok/korean", "Qwen/Qwen3-8B", "bert"):
        tiny_tokenizer(tmp_path / folder)
    (tmp_path / "gpt").mkdir()
    return names


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("./tok/koraen", "tok/korean"),
        ("tok/koraen/", "tok/korean"),
        ("tok/koraen", "tok/korean"),
        ("tokk/korean", "tok/korean"),
        ("berd", "bert"),
    ],
)
def test_a_slip_in_the_name_of_a_folder_is_refused_at_once_with_the_folder_that_was_meant(asked: list[str], typed: str, near: str) -> None:
    with pytest.raises(TokenizerError, match=f"the tokenizer folder {typed} does not exist") as refused:
        _load(typed)
    assert refused.value.hint == f"Did you mean --tokenizer-path {near}?"
    assert asked in ([], [typed]), "one question, and no file"


@pytest.mark.parametrize(("name", "questions"), [("Qwen/Qwen3-4B", ["Qwen/Qwen3-4B"]), ("gpt2", []), ("someone/something", [])])
def test_a_hub_id_goes_to_the_hub_whatever_stands_beside_it(asked: list[str], name: str, questions: list[str]) -> None:
    with pytest.raises(TokenizerError, match="nor available on the hub"):
        _load(name)
    assert asked == [*questions, f"files of {name}"]


def test_a_hub_id_that_cannot_be_reached_is_refused() -> None:
    with pytest.raises(TokenizerError, match="neither a local folder nor available on the hub"):
        _load("someone/something")


def test_a_folder_without_tokenizer_files_is_refused_and_what_is_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(TokenizerError, match=r"there is model\.safetensors"):
        _load(tmp_path)
    with pytest.raises(TokenizerError, match="is a file"):
        _load(tmp_path / "model.safetensors")


def test_an_empty_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    with pytest.raises(TokenizerError, match="has no vocabulary"):
        _load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, name: str) -> None:
    folder = tiny_tokenizer(tmp_path / "tokenizer")
    (folder / name).write_bytes(POINTER)
    with pytest.raises(TokenizerError, match=f"{name} is a Git LFS pointer") as refused:
        _load(folder)
    assert "git lfs pull" in refused.value.hint


def test_a_pointer_that_nobody_reads_is_passed_over(tmp_path: Path) -> None:
    folder = tiny_tokenizer(tmp_path / "tokenizer")
    for name in ("tokenizer.model", "vocab.txt", "vocab.json", "model.safetensors"):
        (folder / name).write_bytes(POINTER)
    assert len(_load(folder)) == 384
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="is a Git LFS pointer"):
        _load(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps(json.dumps({"class_name": "Tokenizer", "config": {"num_words": 10}})), "a tokenizer of Keras"),
        (json.dumps({"class_name": "Tokenizer", "config": {}}), "a tokenizer of Keras"),
        (json.dumps({"a": 1, "b": 2}), "a JSON object with a, b"),
        (json.dumps(["a", "b"]), "a JSON list"),
    ],
)
def test_a_tokenizer_of_another_library_is_named(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=f"{words}, not a tokenizer of Hugging Face"):
        _load(tmp_path)


def test_a_configuration_that_transformers_refuses_is_told_from_a_damaged_file(tmp_path: Path) -> None:
    folder = tiny_tokenizer(tmp_path / "tokenizer")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["of_my_own"]}))
    with pytest.raises(TokenizerError, match="layer_types") as refused:
        _load(folder)
    assert "refuses the folder's config.json" in refused.value.hint
    (folder / "config.json").unlink()
    assert len(_load(folder)) == 384


def test_a_class_that_cannot_be_made_of_a_sound_file_has_a_way_out(tmp_path: Path) -> None:
    folder = tiny_tokenizer(tmp_path / "tokenizer")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BarthezTokenizer"}))
    with pytest.raises(TokenizerError, match="cannot be loaded: TypeError") as refused:
        _load(folder)
    assert '"tokenizer_class": "PreTrainedTokenizerFast"' in refused.value.hint
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    assert len(_load(folder)) == 384


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    folder = tiny_tokenizer(tmp_path / "tokenizer")
    (folder / "tokenizer.json").write_text("{bad")
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        _load(folder)


@pytest.mark.parametrize(
    ("content", "words"), [("[1, 2]", "a JSON list"), ('{"tokenizer_class": 5}', "tokenizer_class is 5"), ("{bad", "no JSON")]
)
def test_damaged_settings_of_a_tokenizer_are_named(content: str, words: str, tmp_path: Path) -> None:
    folder = tiny_tokenizer(tmp_path / "tokenizer")
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(TokenizerError, match=rf"tokenizer_config\.json is damaged: {words}"):
        _load(folder)


def test_code_that_comes_with_a_tokenizer_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}))
    settings = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    with pytest.raises(FtcliError):
        _load(tmp_path)


@pytest.mark.real
def test_a_sentencepiece_file_alone_names_the_packages_it_needs(real_data: Path) -> None:
    with pytest.raises(MissingExtraError) as refused:
        _load(real_data / "tokenizers" / "spm-only-mistral")
    assert "pip install sentencepiece" in refused.value.hint


@pytest.mark.skipif(find_spec("sentencepiece") is not None, reason="needs a Python without sentencepiece")
def test_a_sentencepiece_file_is_not_taken_for_one_of_tiktoken(tmp_path: Path) -> None:
    """transformers tries tiktoken where sentencepiece is missing, and asks for tiktoken then."""
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02")  # a protobuf message: the first of its pieces
    with pytest.raises(MissingExtraError, match="cannot be loaded without sentencepiece"):
        _load(tmp_path)


def test_protobuf_is_missing_where_google_has_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("ftcli.plugins.tokenizer.find_spec", absent)
    found = _explained(str(tmp_path), ImportError("requires the protobuf library but it was not found"))

    assert "cannot be loaded without protobuf" in found.message


def test_a_vocabulary_alone_is_told_where_its_class_is_named(tmp_path: Path) -> None:
    """transformers asked for sentencepiece, which was of no use."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(TokenizerError, match=r"does not say which class of transformers it is: it has vocab\.txt") as refused:
        _load(tmp_path)
    assert '"tokenizer_class": "BertTokenizer"' in refused.value.hint

    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "tokenizer_class": "BertTokenizer"}')
    assert _load(tmp_path).encode("a") == [2, 5, 3]


@pytest.mark.skipif(find_spec("sentencepiece") is not None, reason="needs a Python without sentencepiece")
def test_a_sentencepiece_file_alone_is_refused_before_transformers_speaks_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02")
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", pytest.fail)
    with pytest.raises(MissingExtraError, match="cannot be loaded without sentencepiece"):
        _load(tmp_path)
