"""Training tokenizers: three kinds, complete folders, true figures, nothing half made."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ftcli.core.corpus.sample import generate
from ftcli.core.tokenizer import train_tokenizer as module
from ftcli.core.tokenizer.train_tokenizer import Kind, train_tokenizer
from ftcli.errors import DataError, FtcliError, PublishError, TokenizerError, UsageError
from ftcli.testing import run

KINDS: tuple[Kind, ...] = get_args(Kind)
ROWS = 500


def texts(rows: int = ROWS) -> Iterator[str]:
    return (text for text, _ in generate(rows, 0))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("trained")
    return {kind: (folder / kind, train_tokenizer(texts(), folder / kind, kind, 1500, max_length=320)) for kind in KINDS}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def folder(kind: Kind, trained: dict[Kind, tuple[Path, dict[str, Any]]]) -> Path:
    return trained[kind][0]


@pytest.fixture(scope="module")
def metrics(kind: Kind, trained: dict[Kind, tuple[Path, dict[str, Any]]]) -> dict[str, Any]:
    return trained[kind][1]


@pytest.fixture(scope="module")
def bpe(trained: dict[Kind, tuple[Path, dict[str, Any]]]) -> Any:
    return AutoTokenizer.from_pretrained(trained["bpe"][0])


# -- the folder --------------------------------------------------------------------------------------------------------


def test_the_folder_loads_as_a_complete_fast_tokenizer(folder: Path, kind: Kind) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    end = tokenizer.sep_token_id if kind == "wordpiece" else tokenizer.eos_token_id
    assert tokenizer.is_fast
    assert tokenizer.pad_token_id == 0
    assert end not in (None, 0)
    assert (tokenizer.unk_token_id is None) == (kind == "bpe")  # bytes leave nothing unknown
    assert (tokenizer.padding_side, tokenizer.truncation_side, tokenizer.model_max_length) == ("right", "right", 320)
    assert len(tokenizer) == 1500
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]


def test_the_loaded_ids_are_those_of_the_library_alone(folder: Path) -> None:
    tokenizer, plain = AutoTokenizer.from_pretrained(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = [*texts(50), "", "  two  spaces ", "\n\tÅngström ﬁ 漢字 🙂 각", "<|pad|>[CLS]</s>"]
    assert [tokenizer(row)["input_ids"] for row in rows] == [row.ids for row in plain.encode_batch(rows)]


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "llama", "mistral", "qwen2", "qwen3", "t5"])
def test_the_configuration_of_a_model_beside_it_changes_no_id(folder: Path, kind: Kind, model_type: str, tmp_path: Path) -> None:
    if (kind, model_type) in {("wordpiece", "qwen2"), ("unigram", "qwen2")}:
        pytest.skip("transformers loads every tokenizer beside a Qwen2 model as Qwen2's byte-level BPE")
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": model_type}))
    alone, beside = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(tmp_path / "model")
    rows = list(texts(50))
    assert beside(rows)["input_ids"] == alone(rows)["input_ids"]
    assert beside.pad_token_id == alone.pad_token_id


def test_batches_hold_what_the_family_of_models_takes(folder: Path, kind: Kind) -> None:
    batch = AutoTokenizer.from_pretrained(folder)(["short", "a longer text"], padding=True)
    assert ("token_type_ids" in batch) == (kind == "wordpiece")
    assert batch["attention_mask"][0][-1] == 0
    assert batch["input_ids"][0][-1] == 0


def test_each_kind_adds_what_its_family_adds(trained: dict[Kind, tuple[Path, dict[str, Any]]]) -> None:
    ends = {}
    for kind in KINDS:
        tokenizer = AutoTokenizer.from_pretrained(trained[kind][0])
        tokens = tokenizer.convert_ids_to_tokens(tokenizer("refund")["input_ids"])
        pair = tokenizer.convert_ids_to_tokens(tokenizer("refund", "invoice")["input_ids"])
        ends[kind] = (tokens[0] == "[CLS]", tokens[-1] in ("[SEP]", "</s>"), sum(token in ("[SEP]", "</s>") for token in pair))
    assert ends == {"bpe": (False, False, 0), "wordpiece": (True, True, 2), "unigram": (False, True, 2)}


def test_further_special_tokens_are_one_id_each_after_the_familys_own(kind: Kind, tmp_path: Path) -> None:
    train_tokenizer(texts(200), tmp_path / "t", kind, 1000, special_tokens=["<|im_start|>", "<|im_end|>"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "t")
    ids = tokenizer("<|im_start|>refund<|im_end|>", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True).strip() == "refund"
    assert (ids[0], ids[-1]) == tuple(tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]))
    assert max(ids[0], ids[-1]) < 10
    assert tokenizer.model_max_length > 10**20


# -- what was learned --------------------------------------------------------------------------------------------------


@given(st.text())
def test_bpe_gives_any_text_back(bpe: Any, text: str) -> None:
    assert bpe.decode(bpe(text)["input_ids"]) == text


@given(st.text(alphabet="가나다라마바사 abcxyz.,'0129\n\r\t🙂é"))
def test_bpe_gives_business_like_text_back(bpe: Any, text: str) -> None:
    assert bpe.decode(bpe(text)["input_ids"]) == text


def test_the_figures_are_those_of_the_texts(metrics: dict[str, Any], folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = list(texts())
    lengths = [len(ids) for ids in tokenizer(rows)["input_ids"]]
    bare = [len(ids) for ids in tokenizer(rows, add_special_tokens=False)["input_ids"]]
    assert (metrics["rows_read"], metrics["characters"]) == (ROWS, sum(map(len, rows)))
    assert metrics["vocab_size"] == metrics["vocab_size_asked"] == 1500
    assert metrics["tokens_per_row"] == pytest.approx(sum(lengths) / ROWS)
    assert metrics["max_tokens"] == max(lengths)
    assert metrics["characters_per_token"] == pytest.approx(metrics["characters"] / sum(bare))
    assert metrics["unknown_share"] == 0
    assert metrics["seconds"] > 0
    assert metrics["rows_per_second"] > 0


def test_more_vocabulary_means_fewer_tokens(kind: Kind, metrics: dict[str, Any], tmp_path: Path) -> None:
    smaller = train_tokenizer(texts(), tmp_path / "t", kind, 1000)
    assert smaller["characters_per_token"] < metrics["characters_per_token"]


def test_the_figures_come_from_a_sample_spread_over_a_long_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAMPLE", 50)
    stream = (text for number in range(700) for text in ("", "a" if number < 350 else "a a"))
    metrics = train_tokenizer(stream, tmp_path / "t", "bpe", 300)
    assert metrics["rows_read"] == 1400
    assert 1.4 < metrics["tokens_per_row"] < 1.6


def test_few_long_texts_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAMPLE_CHARACTERS", 1000)
    reader = module._Reader(["a" * 100] * 200, None)
    assert sum(map(len, reader)) == 20_000
    assert 2 <= len(reader.sample) <= 10


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_the_same_texts_give_the_same_folder(kind: Kind, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        train_tokenizer(texts(), tmp_path / name, kind, 3000)
    folders = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two", "three")]
    assert folders[0] == folders[1] == folders[2]


def test_unigram_says_that_it_is_not_reproducible(trained: dict[Kind, tuple[Path, dict[str, Any]]]) -> None:
    assert "different ids" in " ".join(trained["unigram"][1]["notes"])
    assert trained["bpe"][1]["notes"] == []


def test_wordpiece_is_as_good_as_the_librarys_own_trainer(tmp_path: Path) -> None:
    metrics = train_tokenizer(texts(), tmp_path / "t", "wordpiece", 3000)
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=False)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    library.train_from_iterator(texts(), trainers.WordPieceTrainer(vocab_size=3000, special_tokens=specials, show_progress=False))
    tokens = sum(len(row.ids) for row in library.encode_batch(list(texts()), add_special_tokens=False))
    assert metrics["characters_per_token"] == pytest.approx(metrics["characters"] / tokens, rel=0.04)
    assert len(library.get_vocab().keys() & AutoTokenizer.from_pretrained(tmp_path / "t").get_vocab().keys()) > 0.75 * 3000


def test_wordpiece_keeps_hangul_and_case_and_knows_what_it_does_not_know(trained: dict[Kind, tuple[Path, dict[str, Any]]]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained["wordpiece"][0])
    assert tokenizer.decode(tokenizer("환불 Refund")["input_ids"], skip_special_tokens=True) == "환불 Refund"
    assert tokenizer.unk_token_id in tokenizer("ꙮ")["input_ids"]


def test_a_text_too_small_for_the_vocabulary_is_said(kind: Kind, tmp_path: Path) -> None:
    metrics = train_tokenizer(["hello hello world"], tmp_path / "t", kind, 9000)
    assert metrics["vocab_size"] < 9000
    assert f"{metrics['vocab_size']:,} of the 9,000" in metrics["notes"][0]


def test_progress_adds_up(tmp_path: Path) -> None:
    seen: list[int] = []
    train_tokenizer((text[:50] for text in texts(2500)), tmp_path / "t", "bpe", 300, on_progress=seen.append)
    assert (len(seen), sum(seen)) == (3, 2500)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [[], [""], ["", " \n\t"]])
def test_no_text_is_refused(rows: list[str], kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=f"{len(rows)} rows, none with text"):
        train_tokenizer(rows, tmp_path / "t", kind, 1000)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "size"), [("bpe", 258), ("wordpiece", 6), ("unigram", 4), ("bpe", -1)])
def test_a_vocabulary_without_room_is_refused(kind: Kind, size: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"vocab_size = {size}") as caught:
        train_tokenizer(texts(5), tmp_path / "t", kind, size)
    assert "more than" in caught.value.hint


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_a_vocabulary_smaller_than_the_alphabet_is_refused(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="100") as caught:
        train_tokenizer(texts(100), tmp_path / "t", kind, 100)
    assert "bpe" in caught.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"special_tokens": ["<|pad|>"]}, "given twice"),
        ({"special_tokens": ["<a>", "<a>"]}, "given twice"),
        ({"special_tokens": [" "]}, "empty"),
        ({"max_length": 0}, "max_length = 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        train_tokenizer(texts(5), tmp_path / "t", "bpe", 300, **options)


def test_a_folder_with_something_in_it_is_left_alone_and_an_empty_one_is_filled(tmp_path: Path) -> None:
    train_tokenizer(texts(5), tmp_path, "bpe", 300)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "tokenizer.json" in before
    with pytest.raises(UsageError, match="not an empty folder"):
        train_tokenizer(texts(5), tmp_path, "bpe", 300)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(UsageError, match="not an empty folder"):
        train_tokenizer(texts(5), tmp_path / "tokenizer.json", "bpe", 300)


# -- failures ----------------------------------------------------------------------------------------------------------


def test_an_error_of_the_source_comes_through(kind: Kind, tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "some text"
        raise DataError("rows.jsonl:2: not JSON")

    with pytest.raises(DataError, match=r"rows\.jsonl:2"):
        train_tokenizer(broken(), tmp_path / "t", kind, 1000)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", full)
    with pytest.raises(PublishError, match="No space left on device"):
        train_tokenizer(texts(5), tmp_path / "t", "bpe", 300)
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_that_would_load_differently_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = PreTrainedTokenizerFast.save_pretrained

    def altered(self: Any, folder: Path) -> None:
        save(self, folder)
        document = json.loads((folder / "tokenizer.json").read_text())
        document["model"]["merges"].pop()
        (folder / "tokenizer.json").write_text(json.dumps(document))

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", altered)
    with pytest.raises(FtcliError, match="would not load as the tokenizer that was trained"):
        train_tokenizer(texts(5), tmp_path / "t", "bpe", 300)
    assert not list(tmp_path.iterdir())


def test_rows_that_cannot_be_used_are_counted_and_too_many_refused(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps({"text": f"word {row}"}) + "\n" for row in range(60)) + '{"text": 5}\n')
    words = ("train-tokenizer", str(source), "--kind", "bpe", "--vocab-size", "300", "--set", "dataset.on_bad=quarantine", "--json")
    refused = run(*words, "--output", str(tmp_path / "one"))
    assert refused.exit_code == 1
    assert "1 of 61 rows cannot be used" in refused.report["error"]["message"]
    report = run(*words, "--output", str(tmp_path / "two"), "--set", "dataset.max_bad=0.1").report
    assert report["metrics"]["rows_rejected"] == 1
    assert any("1 rows that cannot be used were left out" in note for note in report["notes"])


def test_the_directory_where_one_stands_and_one_that_cannot_be_written_are_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = iter(["a text"] * 50)
    with pytest.raises(UsageError, match="is the current directory"):
        train_tokenizer(texts, Path(), "bpe", 300)
    (tmp_path / "file").touch()
    with pytest.raises(PublishError):
        train_tokenizer(texts, tmp_path / "file" / "t", "bpe", 300)
    assert len(list(texts)) == 50
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    train_tokenizer(["a text"] * 50, tmp_path / "link", "bpe", 300)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "tokenizer.json").is_file()
