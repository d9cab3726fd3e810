"""The audit, and what happens to an engine that goes wrong in the middle of a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from engine_doubles import DoubleEncoder, Panic, Twist, array, byte_level, double, expected, offers, right, rows_of, unigram, word_piece
from ftcli.contracts import Encoded
from ftcli.core.engines import guard
from ftcli.core.engines.adversarial import CONTEXTS, Run
from ftcli.core.engines.auditor import sampled
from ftcli.core.engines.engine import choose_engine, load_encoder, loaded
from ftcli.core.engines.reference import load_reference, to_encoded
from ftcli.core.engines.row_encoder import RowEncoder
from ftcli.errors import EngineError
from tokenizing import manifest, plugins, prepare, small_tokenizers, without_plots, write

__all__ = ["small_tokenizers", "without_plots"]
TEXTS = [f"row {number} of the data" for number in range(5_000)]
RARE: Twist = lambda text, ids: ids[::-1] if text.startswith("row 777 ") else ids  # noqa: E731


@pytest.fixture(autouse=True)
def _small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.core.engines.proof.sweep", lambda unknown: [Run(context, "abcΩω가") for context in CONTEXTS])
    monkeypatch.setattr("ftcli.core.engines.proof.texts", lambda added, vocabulary: ["a b", *vocabulary])
    load_encoder.cache_clear()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return word_piece(folder), folder


def encoder(tokenizer: tuple[Any, Path], twist: Twist, **options: Any) -> RowEncoder:
    """The encoder of a run whose sample has shown nothing."""
    offered = offers(double(twist))
    return load_encoder(choose_engine(*tokenizer, offered, sample=TEXTS[:100], **options).spec, offered)


# -- the audit ---------------------------------------------------------------------------------------------------------


def test_an_engine_that_is_wrong_on_a_rare_row_is_found_by_the_audit_and_not_without_it(tiny: tuple[Any, Path]) -> None:
    with pytest.raises(
        EngineError, match=r"the audit found that double 1 differs from the reference on 'row 777 of the data': reference \[.*\], engine \["
    ) as caught:
        encoder(tiny, RARE, audit=1.0).encode(array(TEXTS))
    assert "--tokenizer-engine hf" in caught.value.hint
    unseen = encoder(tiny, RARE)
    assert rows_of(unseen.encode_whole(array(TEXTS))) != expected(tiny[0], TEXTS)
    assert unseen.texts_audited == 0


def test_an_equal_engine_passes_the_audit_and_the_texts_are_counted(tiny: tuple[Any, Path]) -> None:
    audited = encoder(tiny, right, audit=0.1)
    assert rows_of(audited.encode_whole(array(TEXTS))) == expected(tiny[0], TEXTS)
    assert 400 < audited.texts_audited < 600
    assert (audited.rows_by_reference, audited.failures) == (0, [])


@pytest.mark.parametrize("size", [1, 7, 5_000])
def test_the_same_texts_are_audited_whatever_the_batches(tiny: tuple[Any, Path], size: int) -> None:
    audited = encoder(tiny, right, audit=0.01)
    texts = array(["skipped", *TEXTS]).slice(1)
    for start in range(0, 500, size):
        audited.encode(texts.slice(start, min(size, 500 - start)))
    assert audited.texts_audited == len(sampled(array(TEXTS[:500]), 0.01)) > 0


@pytest.mark.parametrize(("share", "rows"), [(0.0, 0), (1.0, 5_000)])
def test_a_share_of_nothing_is_no_text_and_of_all_is_every_text(share: float, rows: int) -> None:
    assert len(sampled(array(TEXTS), share)) == rows
    assert len(sampled(array([]), share)) == 0


def test_the_reference_is_not_audited_against_itself(tiny: tuple[Any, Path]) -> None:
    offered = offers()
    choice = choose_engine(*tiny, offered, requested="hf", audit=1.0)
    assert "nothing is audited: the reference encodes everything" in choice.notes
    audited = load_encoder(choice.spec, offered)
    audited.encode(array(TEXTS[:10]))
    assert audited.texts_audited == 0


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("audit", [0.0, 1.0])
def test_a_run_stops_where_the_audit_finds_a_difference_and_counts_what_it_audited(
    small_tokenizers: Any, tmp_path: Path, audit: float
) -> None:
    options: dict[str, Any] = {"tokenizer__engine": "double", "tokenizer__audit": audit}
    offered = plugins(tmp_path / "plugins")
    good = write(tmp_path / "good.jsonl", [f"{number} words" for number in range(3_000)])
    report = prepare(small_tokenizers["bpe"], good, tmp_path / "good", offered, **options)
    assert report.metrics["texts_audited"] == 3_000 * audit
    assert manifest(tmp_path / "good")["engine"]["audit"] == audit
    late = write(tmp_path / "late.jsonl", [*(f"{number} words" for number in range(3_000)), "a zebra"])
    if audit:
        with pytest.raises(EngineError, match=r"the audit found that double 1 .*'other'.* differs from the reference on 'a zebra'"):
            prepare(small_tokenizers["bpe"], late, tmp_path / "late", offered, **options)
        assert not (tmp_path / "late").exists()
    else:
        prepare(small_tokenizers["bpe"], late, tmp_path / "late", offered, **options)


# -- engines that go wrong in a run --------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[[Encoded], Encoded]:
    def fail(encoded: Encoded) -> Encoded:
        raise error

    return fail


BROKEN: dict[str, tuple[Callable[[Encoded], Any], str]] = {
    "panic": (raising(Panic("slice index")), "failed while encoding: Panic: slice index"),
    "no memory": (raising(MemoryError("8 GB")), "failed while encoding: MemoryError: 8 GB"),
    "nothing": (lambda encoded: None, "returned NoneType, not Encoded"),
    "lists": (lambda encoded: [[1], [2]], "returned list, not Encoded"),
    "lists inside": (lambda encoded: Encoded(encoded.ids.tolist(), encoded.offsets), "returned ids as list, not as an array"),
    "a row too few": (lambda encoded: Encoded(encoded.ids, encoded.offsets[:-1]), "returned 1 rows and"),
    "ids left over": (lambda encoded: Encoded(np.append(encoded.ids, np.int32(1)), encoded.offsets), "that do not fit 2 texts"),
    "offsets that go back": (lambda encoded: Encoded(encoded.ids, encoded.offsets[[0, 2, 1]]), "that do not fit 2 texts"),
    "offsets past the end": (lambda encoded: Encoded(encoded.ids, encoded.offsets + np.array([0, 90, 0])), "that do not fit 2 texts"),
    "wide ids": (lambda encoded: Encoded(encoded.ids.astype(np.int64), encoded.offsets), "returned ids of int64"),
    "a table": (lambda encoded: Encoded(encoded.ids[None], encoded.offsets), "returned ids of int32[1, "),
    "an id past the vocabulary": (lambda encoded: Encoded(encoded.ids + np.int32(100_000), encoded.offsets), "which is not in 0 … "),
    "a negative id": (lambda encoded: Encoded(encoded.ids - np.int32(100_000), encoded.offsets), "returned the id -"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_an_engine_that_breaks_in_a_run_costs_its_batch_a_detour_and_is_reported(tiny: tuple[Any, Path], broken: str) -> None:
    breaks, words = BROKEN[broken]
    working = encoder(tiny, right)

    class Late:
        def encode(self, texts: pa.Array) -> Encoded:
            encoded: Encoded = breaks(load_reference(working.spec.backend.json, "", 1).encode(texts))
            return encoded

    broken_encoder = RowEncoder(working.spec, Late())
    assert rows_of(broken_encoder.encode_whole(array(["first row", "second row"]))) == expected(tiny[0], ["first row", "second row"])
    assert broken_encoder.rows_by_reference == 2
    assert len(broken_encoder.failures) == 1
    assert words in broken_encoder.failures[0]
    assert broken_encoder.failures[0].endswith("the reference encoded 2 texts instead")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_an_interrupt_is_no_failure_of_the_engine(tiny: tuple[Any, Path], error: BaseException) -> None:
    def fail(text: str, ids: list[int]) -> list[int]:
        raise error

    spec = encoder(tiny, right).spec
    with pytest.raises(type(error)):
        RowEncoder(spec, DoubleEncoder(load_reference(spec.backend.json, "", 1), fail)).encode(array(["a"]))


def test_the_largest_id_of_a_tokenizer_is_allowed(tiny: tuple[Any, Path]) -> None:
    largest = max(tiny[0].get_vocab().values())

    class Constant:
        def encode(self, texts: pa.Array) -> Encoded:
            return to_encoded([[0, largest]])

    limit = encoder(tiny, right).spec.backend.id_limit
    assert limit == largest + 1
    assert guard.encode_checked(Constant(), array(["a"]), "constant", limit).ids.tolist() == [0, largest]
    with pytest.raises(EngineError, match=f"the id {largest}, which is not in 0 … {largest - 1}"):
        guard.encode_checked(Constant(), array(["a"]), "constant", largest)


# -- two unknown tokens in a row ---------------------------------------------------------------------------------------


def test_texts_with_an_unknown_token_twice_go_to_the_reference_where_that_is_all_that_an_engine_gets_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = unigram(tmp_path)
    unknown = tokenizer.unk_token_id

    def doubles(text: str, ids: list[int]) -> list[int]:
        return [part for token in ids for part in ([token, token] if token == unknown and "!" in text else [token])]

    monkeypatch.setattr("ftcli.core.engines.proof.texts", lambda added, vocabulary: ["a \U0010ffff!", *vocabulary])
    texts = ["one", "\U0010ffff!", "two", "\U0010ffff", "three! \U0010ffff \U0010fffe!"]
    offered = offers(double(doubles))
    choice = choose_engine(tokenizer, tmp_path, offered, requested="double", sample=texts)
    assert (choice.spec.doubled, choice.proof["doubled"], choice.spec.excluded) == (unknown, unknown, "")
    assert "two unknown tokens in a row go to hf" in choice.reason
    routed = load_encoder(choice.spec, offered)
    assert rows_of(routed.encode_whole(array(texts))) == expected(tokenizer, texts)
    assert routed.rows_by_reference == 2


def test_an_engine_that_returns_something_else_is_told_what_is_expected_without_a_search_for_the_text() -> None:
    """It took two minutes of an engine in Python, and named an attribute of a list."""
    calls: list[int] = []

    class Lists:
        def encode(self, texts: pa.Array) -> Any:
            calls.append(len(texts))
            return [[1] for _ in texts]

    with pytest.raises(EngineError, match=r"^mine 1 returned list, not Encoded$") as raised:
        guard.encode_named(Lists(), array(["a", "b", "c", "d"]), "mine 1")
    assert "ftcli.contracts.Encoded" in raised.value.hint
    assert calls == [4]


def test_a_plugins_engine_that_fails_is_named_with_its_plugin(tmp_path: Path) -> None:
    tokenizer, found, whose = byte_level(tmp_path), plugins(tmp_path / "plugins"), "(the engine double comes with plugin 'other')"
    encoder = load_encoder(choose_engine(tokenizer, tmp_path, found, requested="double").spec, found)
    encoder.encode(array(["boom"]))
    assert encoder.failures == [f"double 1 failed while encoding: RuntimeError: boom {whose}; the reference encoded 1 text instead"]
    with pytest.raises(EngineError) as caught:
        choose_engine(tokenizer, tmp_path, found, requested="double", sample=["boom"])
    assert caught.value.message.endswith(whose)
    (note,) = [note for note in choose_engine(tokenizer, tmp_path, found, sample=["boom"]).notes if "engine double" in note]
    assert note.endswith(whose)


def test_an_audit_and_a_load_that_fail_name_the_plugin_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, found, whose = byte_level(tmp_path), plugins(tmp_path / "plugins"), "(the engine double comes with plugin 'other')"
    spec = replace(choose_engine(tokenizer, tmp_path, found, requested="double").spec, audit=1.0)
    encoder = RowEncoder(spec, DoubleEncoder(load_reference(spec.backend.json, "", 1), lambda text, ids: [*ids, 0]), f" {whose}")
    with pytest.raises(EngineError, match=re.escape(f"the audit found that double 1 {whose} differs from the reference on ")):
        encoder.encode(array(["a text"]))

    def broken(*given: Any) -> Any:
        raise ValueError("no such kind")

    monkeypatch.setattr(type(found.registry("engine").get("double")()), "load", broken)
    for load in (lambda: load_encoder(replace(spec, threads=2), found), lambda: loaded("double", spec.backend, 2, found)):
        with pytest.raises(EngineError) as caught:
            load()
        assert str(caught.value) == caught.value.message == f"double 1 cannot load this tokenizer: ValueError: no such kind {whose}"
