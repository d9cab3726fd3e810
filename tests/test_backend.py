"""What is prepared of a tokenizer: its affixes, its hash, its exact scores, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from engine_doubles import byte_level, expected, unigram, word_piece
from ftcli.core.arrays import strings
from ftcli.core.engines.backend import prepare_backend, tokenizer_hash
from ftcli.core.engines.reference import load_reference
from ftcli.errors import FtcliError, TokenizerError
from tokenizing import ids, prepare


def test_prefix_and_suffix_are_what_the_post_processor_adds(tmp_path: Path) -> None:
    found = [
        (backend.prefix, backend.suffix)
        for backend in (prepare_backend(make(tmp_path), tmp_path) for make in (byte_level, word_piece, unigram))
    ]
    assert found == [((), ()), ((2,), (3,)), ((), (1,))]


def test_a_python_class_that_gives_other_ids_than_its_backend_is_noticed(tmp_path: Path) -> None:
    tokenizer = word_piece(tmp_path)

    class Shouting:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __call__(self, texts: list[str], **options: Any) -> dict[str, Any]:
            return {"input_ids": expected(tokenizer, [text.upper() for text in texts], add_special_tokens=options["add_special_tokens"])}

    backend = prepare_backend(Shouting(), tmp_path)  # type: ignore[arg-type]
    assert backend.json == ""
    assert any("Shouting gives different ids from its own backend" in note for note in backend.notes)


def test_a_folder_that_cannot_be_loaded_is_a_tokenizer_error(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        load_reference("", tmp_path, 1)


CODE = """
from transformers import PreTrainedTokenizer

class Letters(PreTrainedTokenizer):
    vocab_files_names = {}
    vocab_size = 128

    def get_vocab(self):
        return {chr(number): number for number in range(128)}

    def _tokenize(self, text, **_):
        return list(text)

    def _convert_token_to_id(self, token):
        return ord(token) % 128

    def _convert_id_to_token(self, index):
        return chr(index)
"""


def test_a_tokenizer_of_its_own_code_is_the_reference_where_that_is_trusted_and_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "letters.py").write_text(CODE)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Letters", "auto_map": {"AutoTokenizer": ["letters.Letters", None]}})
    )
    trusted = prepare_backend(AutoTokenizer.from_pretrained(folder, trust_remote_code=True), folder, trust=True)
    assert not trusted.json
    assert trusted.reference(1, add_special_tokens=False).encode(strings(["ab"])).ids.tolist() == [97, 98]
    with pytest.raises(TokenizerError, match="trust_remote_code"):
        replace(trusted, trust=False).reference(1, add_special_tokens=False)


def test_the_reference_has_the_revision_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, letters = tmp_path / "hub/models--org--letters", list("LAGVSERTIDPKQNFYMHWC")
    for revision, commit, order in (("main", "a" * 40, letters), ("v1", "b" * 40, letters[::-1])):
        folder = root / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "vocab.txt").write_text("\n".join(["<cls>", "<pad>", "<eos>", "<unk>", *order, "<mask>"]))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "EsmTokenizer"}))
        (folder / "config.json").write_text(json.dumps({"model_type": "esm"}))
        (root / "refs").mkdir(exist_ok=True)
        (root / "refs" / revision).write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    wanted = {"cache_dir": str(tmp_path / "hub"), "local_files_only": True}
    for revision in ("main", "v1"):
        live = AutoTokenizer.from_pretrained("org/letters", revision=revision, **wanted)
        backend = prepare_backend(live, "org/letters", revision)
        assert not backend.json
        assert backend.reference(1, add_special_tokens=True).encode(strings(["LAG"])).ids.tolist() == live("LAG")["input_ids"]


def test_the_hash_follows_what_decides_ids_and_nothing_else(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path)
    before = tokenizer_hash(tokenizer, tmp_path)
    tokenizer.backend_tokenizer.enable_truncation(4)
    assert tokenizer_hash(tokenizer, tmp_path) == before
    assert tokenizer_hash(byte_level(tmp_path / "again"), tmp_path / "again") == before
    seen = {before}
    tokenizer.chat_template = "{{ messages }}"
    seen.add(tokenizer_hash(tokenizer, tmp_path))
    tokenizer.add_tokens(["<new>"])
    seen.add(tokenizer_hash(tokenizer, tmp_path))
    tokenizer.eos_token = "<new>"
    seen.add(tokenizer_hash(tokenizer, tmp_path))
    assert len(seen) == 4


def test_the_hash_of_a_slow_tokenizer_without_a_folder_covers_its_vocabulary() -> None:
    same, other = ByT5Tokenizer(), ByT5Tokenizer()
    assert tokenizer_hash(same, "some/hub-id") == tokenizer_hash(other, "some/hub-id")
    other.get_vocab = lambda: {"a": 0}  # type: ignore[method-assign]
    assert tokenizer_hash(same, "some/hub-id") != tokenizer_hash(other, "some/hub-id")


def test_the_hash_of_a_slow_tokenizer_covers_its_files(tmp_path: Path) -> None:
    tokenizer = ByT5Tokenizer()
    tokenizer.save_pretrained(tmp_path)
    before = tokenizer_hash(tokenizer, tmp_path)
    (tmp_path / "tokenization_own.py").write_text("x = 1")
    assert tokenizer_hash(tokenizer, tmp_path) != before


@pytest.mark.parametrize("kind", ["words", "pieces", "unigram"])
def test_a_tokenizer_without_an_unknown_token_encodes_what_it_knows_and_names_what_it_does_not(kind: str, tmp_path: Path) -> None:
    """Its library refuses what the vocabulary lacks, and so Korean probes and the corpus of the proof: "this is a bug in ftcli"."""
    texts = ["the cat sat on the mat", "a dog ran to the cat"] * 20
    model, trainer = {
        "words": (models.WordLevel(), trainers.WordLevelTrainer()),
        "pieces": (models.WordPiece(), trainers.WordPieceTrainer(vocab_size=80)),
        "unigram": (models.Unigram(), trainers.UnigramTrainer(vocab_size=60)),
    }[kind]
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(tmp_path / "t")
    source = tmp_path / "a.txt"
    source.write_text("\n".join(texts) + "\n")
    prepare(tmp_path / "t", source, tmp_path / "out")
    assert ids(tmp_path / "out") == [made.encode(text).ids for text in texts]
    source.write_text("\n".join([*texts * 60, "zebra 한"]) + "\n")  # behind the rows that are sampled
    with pytest.raises(FtcliError, match=r"the tokenizer itself failed while encoding.*on the text 'zebra 한'") as late:
        prepare(tmp_path / "t", source, tmp_path / "late")
    source.write_text("zebra 한\n")
    with pytest.raises(FtcliError, match=r"the tokenizer itself failed while encoding.*on the text 'zebra 한'") as early:
        prepare(tmp_path / "t", source, tmp_path / "early")
    for refused in (late, early):
        assert refused.value.hint.startswith("The tokenizer has no unknown token")


@pytest.mark.parametrize("make", [byte_level, word_piece])
def test_tokens_of_one_id_are_all_encoded(make: Callable[[Path], Any], tmp_path: Path) -> None:
    """The serialised backend holds one of them: with splintr the other became [UNK] without a word in texts that go to hf."""
    make(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    vocab = document["model"]["vocab"]
    vocab["x"] = vocab["y"]
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    backend = prepare_backend(tokenizer, tmp_path)
    assert backend.reference(1, True).encode(strings(["x y"])).ids.tolist() == tokenizer("x y")["input_ids"]
    assert any("1 tokens have the id of another one" in note for note in backend.notes)
