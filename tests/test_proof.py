"""The corpus, the comparison and the memory of proofs."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_doubles import DoubleEncoder, Panic, Twist, array, byte_level, right, rows_of, wrong_on
from ftcli.contracts import Encoded
from ftcli.core.engines import adversarial, proof
from ftcli.core.engines.adversarial import Run
from ftcli.core.engines.backend import Backend, prepare_backend
from ftcli.core.engines.proof import Difference, Proof, Reference, differing_rows, prove, shrink, store_proof, stored_proof
from ftcli.core.engines.reference import BackendEncoder, join, to_encoded
from ftcli.errors import EngineError
from timing import bytecodes

pytestmark = pytest.mark.usefixtures("whole_proof")
GREEK = "".join(map(chr, range(0x3A0, 0x3C0)))
SMALL_SWEEP = [Run(context, run) for context in adversarial.CONTEXTS for run in (GREEK, "abcdefgh", "가각간")]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A byte-level BPE over a sweep of 45 characters; the real sweep takes seconds."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = byte_level(folder)
    reference = Reference(tokenizer, prepare_backend(tokenizer, folder), threads=1)
    reference.__dict__["runs"] = SMALL_SWEEP  # fills the cached property
    return reference


def trial(reference: Reference, twist: Twist) -> Proof:
    return prove(DoubleEncoder(reference.encoder, twist), "double", "1", reference)


# -- the corpus --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unknown", [False, True])
def test_the_sweep_holds_every_unicode_scalar_value_and_nothing_else(unknown: bool) -> None:
    seen = set(map(ord, "".join(run.characters for run in adversarial.sweep(unknown))))
    assert seen == set(range(0x110000)) - set(range(0xD800, 0xE000))


def test_a_run_of_the_sweep_shows_each_of_its_characters_in_its_text() -> None:
    for context in adversarial.CONTEXTS:
        assert all(character in Run(context, "ab가").text for character in "ab가")


def test_the_sweep_holds_every_pair_that_is_one_character_composed() -> None:
    texts = "".join(run.text for run in adversarial.sweep(unknown=False) if run.context == "composed")
    composed = [unicodedata.normalize("NFD", chr(code)) for code in (0xE9, 0x226F, 0x11938)]
    assert all(f" {pair}" in texts for pair in [*composed, "\U000105d2\u0307", "\U0001611e\U0001611e"])


def test_the_texts_hold_every_added_token_in_words_by_spaces_and_doubled() -> None:
    texts = set(adversarial.texts(["<one>", "<two>"], []))
    assert {"a<one>b", "a <one> b", "<one><one>", "<two>.", "<one><two> <one> <two>", "a\t<two>\tb"} <= texts
    assert {"", "\0", "e\u0301", "a" * 1_000_000, " " * 100_000} <= texts


def test_the_texts_hold_what_a_normaliser_makes_or_breaks_an_added_token_of() -> None:
    texts = set(adversarial.texts(["<one>", "\u0301x"], []))
    assert {"a<one>\u0338b", "ae\u0301xb", "a <o\0ne> b", "\U0010ffff<o\x18ne>\U0010ffff"} <= texts
    assert any(text != "<one>" and unicodedata.normalize("NFKC", text) == "<one>" for text in texts)


def test_tokens_beyond_the_limit_still_occur_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adversarial, "FULL_CONTEXTS", 1)
    texts = set(adversarial.texts(["<one>", "<two>"], []))
    assert "x<two> y" in texts
    assert "a<two>b" not in texts


def test_the_texts_hold_the_text_of_every_token_of_the_vocabulary() -> None:
    vocabulary = [f"token{number}|" for number in range(100)]
    joined = "".join(adversarial.texts([], vocabulary))
    assert all(token in joined for token in vocabulary)


def test_the_corpus_is_the_same_in_every_run() -> None:
    assert adversarial.texts(["<a>"], ["b"]) == adversarial.texts(["<a>"], ["b"])
    assert adversarial.corpus_version() == adversarial.corpus_version()


# -- the comparison ----------------------------------------------------------------------------------------------------


def test_an_equal_engine_passes_with_nothing_excluded(reference: Reference) -> None:
    result = trial(reference, right)
    assert (result.difference, result.excluded) == (None, "")
    assert result.strings == len(SMALL_SWEEP) + len(reference.texts[0])
    assert result.bytes > 100_000


def test_a_character_that_an_engine_gets_wrong_is_excluded_and_its_neighbours_are_not(reference: Reference) -> None:
    result = trial(reference, wrong_on("Ω가"))
    assert result.difference is None
    assert set(result.excluded) == {"Ω", "가"}


def test_a_pair_of_characters_that_only_differs_together_costs_one_of_them(reference: Reference) -> None:
    result = trial(reference, lambda text, ids: ids[:-1] if "αβ" in text else ids)
    assert result.difference is None
    assert result.excluded == "β"


def test_an_engine_that_is_wrong_on_too_many_characters_is_refused(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "EXCLUDED_LIMIT", 3)
    assert trial(reference, wrong_on("βγδ")).difference is None
    difference = trial(reference, wrong_on("αβγδ")).difference
    assert difference is not None
    assert difference.text in GREEK


def test_an_engine_that_is_wrong_on_too_many_characters_beside_others_is_refused(
    reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found one at a time: 8,193 of splintr's with a GPT-2 of 6,000 ids took 53 s of CPU before it was refused."""

    def twist(text: str, ids: list[int]) -> list[int]:
        return ids[:-1] if any(pair in text for pair in ("αβ", "γδ", "εζ")) else ids

    assert trial(reference, twist).excluded == "βδζ"
    monkeypatch.setattr(proof, "BLAMED_LIMIT", 2)
    result = trial(reference, twist)
    assert result.difference is not None
    assert result.difference.text in ("αβ", "γδ", "εζ")
    monkeypatch.setattr(proof, "BLAMED_LIMIT", 3)
    assert trial(reference, twist).difference is None


def test_an_engine_that_is_wrong_on_too_many_runs_is_refused_at_once(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "EXCLUDED_LIMIT", 2)
    monkeypatch.setattr(proof._Trial, "_blame", None)
    difference = trial(reference, lambda text, ids: ids[:-1]).difference
    assert difference is not None
    assert len(difference.text) == 1


def test_a_wrong_text_refuses_the_engine_and_is_named_as_short_as_it_shows(reference: Reference) -> None:
    result = trial(reference, lambda text, ids: ids[:-1] if "<eos>b" in text else ids)
    assert result.difference is not None
    assert result.difference.text == "<eos>b"
    assert result.difference.engine == result.difference.reference[:-1]
    assert "'<eos>b': reference [" in result.difference.words()


def test_a_text_with_an_excluded_character_does_not_refuse_the_engine(reference: Reference) -> None:
    assert any("가" in text.as_py() for text in reference.texts[0]), "the corpus shows nothing here"
    assert trial(reference, wrong_on("가")).difference is None


def test_an_engine_that_panics_is_refused_with_the_text(reference: Reference) -> None:
    def panics(text: str, ids: list[int]) -> list[int]:
        if "\0\0\0" in text:
            raise Panic("index out of bounds\nnote: run with RUST_BACKTRACE=1")
        return ids

    with pytest.raises(EngineError, match=r"double 1 failed while encoding: Panic: index out of bounds; on the text '.*\\x00\\x00\\x00"):
        trial(reference, panics)


def test_an_interrupt_is_not_an_engine_that_fails(reference: Reference) -> None:
    def interrupted(text: str, ids: list[int]) -> list[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial(reference, interrupted)


def test_an_engine_that_loses_rows_is_refused(reference: Reference) -> None:
    class Forgetful:
        def encode(self, texts: object) -> Encoded:
            return to_encoded([[1, 2]])

    with pytest.raises(EngineError, match=r"returned 1 rows and 2 ids that do not fit \d+ texts"):
        prove(Forgetful(), "double", "1", reference)


def test_a_difference_is_shrunk_only_where_there_is_one(reference: Reference) -> None:
    encoder = DoubleEncoder(reference.encoder, lambda text, ids: ids[1:] if "!?" in text else ids)
    assert shrink(encoder, "double", reference, "fine") is None
    found = shrink(encoder, "double", reference, "what is this!? " * 50)
    assert found is not None
    assert found.text == "!?"


def test_a_long_difference_is_shown_from_where_it_begins() -> None:
    words = Difference("x" * 500, tuple(range(100)), (*range(50), 7, *range(51, 100))).words()
    assert "(500 characters)" in words
    assert "reference [46, 47, 48, 49, 50, 51" in words
    assert "engine [46, 47, 48, 49, 7, 51" in words
    assert words.endswith("from id 46")


ROWS = st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=12)


@given(ROWS, st.randoms())
def test_differing_rows_are_those_that_a_loop_finds(rows: list[list[int]], random: object) -> None:
    others = [row if random.random() < 0.5 else row[::-1] + [1] * random.randrange(2) for row in rows]  # type: ignore[attr-defined]
    found = differing_rows(to_encoded(rows), to_encoded(others)).tolist()
    assert found == [number for number, (one, other) in enumerate(zip(rows, others, strict=True)) if one != other]


@given(st.lists(ROWS, max_size=4))
def test_joined_parts_have_all_rows_in_order(parts: list[list[list[int]]]) -> None:
    assert rows_of(join(map(to_encoded, parts))) == [row for part in parts for row in part]


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_an_edge_is_where_wrong_begins(flags: list[bool]) -> None:
    flags[-1] = True
    size = proof._edge(len(flags), lambda size: flags[size - 1])
    assert flags[size - 1]
    assert size == 1 or not flags[size - 2]


def test_long_texts_are_encoded_in_chunks_with_the_same_result(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = array(["a b c", "", "가나다" * 50, "x", "y" * 500])
    whole = reference.encoder.encode(texts)
    monkeypatch.setattr("ftcli.core.engines.reference.CHUNK_BYTES", 10)
    pieces = reference.encoder.encode(texts)
    assert np.array_equal(whole.ids, pieces.ids)
    assert np.array_equal(whole.offsets, pieces.offsets)
    assert isinstance(reference.encoder, BackendEncoder)


# -- what is kept ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(reference: Reference) -> Proof:
    return trial(reference, wrong_on("Ω"))


def test_a_proof_is_read_back_as_it_was_without_proving_anything_again(reference: Reference, kept: Proof, tmp_path: Path) -> None:
    assert store_proof(tmp_path / "new", reference.backend, kept) == ""
    assert stored_proof(tmp_path / "new", reference.backend, "double", "1") == kept
    read = bytecodes(lambda: stored_proof(tmp_path / "new", reference.backend, "double", "1"))
    assert read < 100_000  # 24,000 measured; the proof itself runs over a hundred times as many


def test_a_refusal_is_kept_too(reference: Reference, tmp_path: Path) -> None:
    refused = trial(reference, lambda text, ids: ids[:-1] if "<eos>b" in text else ids)
    store_proof(tmp_path, reference.backend, refused)
    again = stored_proof(tmp_path, reference.backend, "double", "1")
    assert again is not None
    assert again.difference is not None
    assert again.difference.text == "<eos>b"


@pytest.mark.parametrize("changed", ["version", "engine", "tokenizer", "corpus", "reference"])
def test_a_proof_is_not_used_for_anything_else(
    reference: Reference, kept: Proof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    store_proof(tmp_path, reference.backend, kept)
    backend: Backend = reference.backend
    if changed == "tokenizer":
        backend = prepare_backend(byte_level(tmp_path / "other", normalizer={"type": "NFC"}), tmp_path / "other")
    if changed == "corpus":
        monkeypatch.setattr(proof, "corpus_version", lambda: "newer")
    if changed == "reference":
        monkeypatch.setattr(proof, "reference_version", lambda: "tokenizers 99")
    name, version = ("other" if changed == "engine" else "double"), ("2" if changed == "version" else "1")
    assert stored_proof(tmp_path, backend, name, version) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"difference": null}', b'{"difference": {"text": "a"}}', b"\xff"])
def test_a_damaged_proof_is_made_again(reference: Reference, kept: Proof, tmp_path: Path, content: bytes) -> None:
    store_proof(tmp_path, reference.backend, kept)
    for path in tmp_path.iterdir():
        path.write_bytes(content)
    assert stored_proof(tmp_path, reference.backend, "double", "1") is None


def test_a_folder_that_cannot_be_written_is_noted_and_nothing_else_happens(reference: Reference, kept: Proof, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert "is not kept for the next run" in store_proof(blocked, reference.backend, kept)
    assert stored_proof(blocked, reference.backend, "double", "1") is None


def test_without_a_folder_nothing_is_kept(reference: Reference, kept: Proof) -> None:
    assert store_proof(None, reference.backend, kept) == ""
    assert stored_proof(None, reference.backend, "double", "1") is None
