"""Tokenizers as users make and edit them: every engine that the proof lets pass gives their ids, and the others are refused by name."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from ftcli.plugins.engines import ENGINES
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engine_doubles import array, expected, offers, rows_of, saved
from ftcli.core.engines import adversarial
from ftcli.core.engines.adversarial import RUN, Run
from ftcli.core.engines.backend import prepare_backend
from ftcli.core.engines.engine import choose_engine, load_encoder
from ftcli.core.engines.proof import Reference
from ftcli.core.engines.reference import load_reference
from ftcli.errors import EngineError
from reliability import FULL
from tokenizer_variants import VARIANTS, mutated

pytestmark = pytest.mark.usefixtures("whole_proof")
TOP = 0x3400
"""The sweep of these tests ends here, and so do their texts: all planes take seconds a tokenizer. 30,000 strings a variant over all planes
were compared when the corpus was made."""
SHARE = 1 if FULL else 3
"""Of the fixed, the mixed and the mutated texts one in three; of characters in words and alone, those that are joined, added
tokens and the vocabulary, all."""
COUNT = 1_500 // SHARE
FAST = tuple(engine.name for engine in ENGINES if engine.name != "hf")
TRIED = [name for name in VARIANTS if FULL or not name.startswith("Unigram with Nmt, one")]
"""One added token alone is tried in the byte-level tokenizers, and in those of Unigram only with FTCLI_FAULTS=full."""
PASSED: set[str] = set()


@pytest.fixture(autouse=True)
def _small_sweep(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(adversarial, "LONG", 1_200)
    monkeypatch.setattr("ftcli.core.engines.proof.sweep", lambda unknown: _runs())
    monkeypatch.setattr("ftcli.core.engines.proof.texts", _texts)
    load_encoder.cache_clear()
    yield
    load_encoder.cache_clear()


@cache
def _runs() -> list[Run]:
    runs = [Run("word", "".join(map(chr, range(start, start + RUN)))) for start in range(0, TOP, RUN)]
    joined = adversarial.composing()[1]
    runs += [Run("bare", chr(code)) for code in range(TOP)]
    runs += [Run("composed", chr(code)) for code in range(TOP) if chr(code) in joined or code % (8 * SHARE) == 0]
    odd = "".join(character for piece in (*adversarial.WORDS, *adversarial.ODD) for character in piece if ord(character) >= TOP)
    return [*runs, *(Run("word", character) for character in sorted(set(odd)))]


def _texts(added: Sequence[str], vocabulary: Sequence[str]) -> list[str]:
    return [*_fixed(), *adversarial._around(added), *adversarial._joined(vocabulary), *_mixed(tuple(added[:40]))]


@cache
def _fixed() -> list[str]:
    return list(adversarial._fixed())[::SHARE]


@cache
def _mixed(added: tuple[str, ...]) -> list[str]:
    """Of the few sets of added tokens that the variants have, each once."""
    return list(adversarial.mixed(added))[::SHARE]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_an_engine_is_exact_or_refused_by_name(name: str, tmp_path: Path) -> None:
    tokenizer = VARIANTS[name](tmp_path)
    texts = list(mutated(len(name), COUNT, sorted(tokenizer.get_added_vocab()), top=TOP))
    offered = offers(built_in=True)
    wanted = reference(tokenizer, tmp_path, texts)
    refused: dict[str, str] = {}
    options = {"cache_dir": tmp_path, "sample": texts[:50], "reference": Reference(tokenizer, prepare_backend(tokenizer, tmp_path), 1)}
    for engine in FAST:
        try:
            choice = choose_engine(tokenizer, tmp_path, offered, requested=engine, **options)
        except EngineError as refusal:
            refused[engine] = refusal.message
            continue
        PASSED.add(engine)
        assert different(choice.spec, offered, texts, wanted) == []
    assert all(message.startswith(f"{engine} ") for engine, message in refused.items())
    auto = choose_engine(tokenizer, tmp_path, offered, **options)
    assert different(auto.spec, offered, texts, wanted) == []


@pytest.mark.slow
def test_every_engine_passed_for_some_variant() -> None:
    if not PASSED:
        pytest.skip("needs the test above")
    assert set(FAST) == PASSED


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("byte-level, added tokens of every flag", "gigatoken"),
        ("byte-level, added tokens of every flag", "fastokens"),
        ("byte-level, added tokens of every flag", "splintr"),
        ("byte-level with NFC, one added token: normalized", "gigatoken"),
        ("BPE, suffix of words", "splintr"),
        ("Unigram with Nmt, one added token: Korean", "splintr"),
    ],
)
def test_without_the_proof_an_engine_would_have_been_wrong(name: str, engine: str, tmp_path: Path) -> None:
    tokenizer = VARIANTS[name](tmp_path)
    texts = [*mutated(len(name), 4_000, sorted(tokenizer.get_added_vocab()), top=TOP), *adversarial.texts(("<Normal>", "<unk>"), ())]
    backend = prepare_backend(tokenizer, tmp_path)
    factory = {kind.name: kind for kind in ENGINES}[engine]
    given = rows_of(factory().load(backend.json, tmp_path, 1).encode(array(texts)))
    assert given != expected(tokenizer, texts, add_special_tokens=False)


def test_characters_that_a_vocabulary_drops_stand_inside_of_its_tokens(tmp_path: Path) -> None:
    """Two letters and no unknown token, as of RNA: tokenizers merges what stands on both sides of a dropped letter, splintr 0.22.0 does not."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    draw = random.Random(1)
    backend.train_from_iterator(
        ["".join(draw.choices("ŋƕ", k=200)) for _ in range(50)], trainers.BpeTrainer(vocab_size=300, show_progress=False)
    )
    tokenizer = saved(backend, tmp_path / "t", {})
    with pytest.raises(EngineError) as refused:
        choose_engine(tokenizer, tmp_path / "t", offers(built_in=True), requested="splintr", cache_dir=tmp_path)
    assert "splintr 0.22.0 differs" in refused.value.message


def reference(tokenizer: object, folder: Path, texts: list[str]) -> list[list[int]]:
    """The tokenizer's own ids, without what would cut, fill or draw lots."""
    backend = prepare_backend(tokenizer, folder)  # type: ignore[arg-type]
    if backend.random:
        return rows_of(load_reference(backend.json, folder, 1, add_special_tokens=True).encode(array(texts)))
    live = tokenizer.backend_tokenizer  # type: ignore[attr-defined]
    live.no_truncation()
    live.no_padding()
    return expected(tokenizer, texts)


def different(spec: object, offered: object, texts: list[str], wanted: list[list[int]]) -> list[str]:
    given = rows_of(load_encoder(spec, offered).encode_whole(array(texts)))  # type: ignore[arg-type]
    return [text for text, ids, row in zip(texts, wanted, given, strict=True) if ids != row]
