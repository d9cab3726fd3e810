"""Which engine is chosen, what is refused by name, and that rows come out as the tokenizer gives them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import processors
from transformers import AutoTokenizer, ByT5Tokenizer

from engine_doubles import LINES, Panic, Twist, array, byte_level, double, expected, offers, right, rows_of, unigram, word_piece, wrong_on
from ftcli.core.engines import adversarial, engine
from ftcli.core.engines.adversarial import Run
from ftcli.core.engines.backend import prepare_backend, tokenizer_hash
from ftcli.core.engines.engine import EngineChoice, choose_engine, load_encoder
from ftcli.core.engines.row_encoder import RowEncoder
from ftcli.errors import EngineError, SettingsError
from ftcli.pluginmanager import Plugins
from tokenizing import ENGINE, plugins


@pytest.fixture(autouse=True)
def _small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole corpus takes seconds; its own tests are in test_proof."""
    monkeypatch.setattr("ftcli.core.engines.proof.sweep", lambda unknown: [Run(context, "abcΩω가") for context in adversarial.CONTEXTS])
    monkeypatch.setattr("ftcli.core.engines.proof.texts", lambda added, vocabulary: [*LINES, *adversarial._around(added), *vocabulary])
    load_encoder.cache_clear()


@pytest.fixture(scope="module", params=[byte_level, word_piece, unigram], ids=lambda make: make.__name__)
def any_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp(request.param.__name__)
    return request.param(folder), folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return word_piece(folder), folder


def choose(tokenizer: tuple[Any, Path], plugins: Plugins, **options: Any) -> EngineChoice:
    return choose_engine(*tokenizer, plugins, **{"sample": LINES, **options})


# -- choosing ----------------------------------------------------------------------------------------------------------


def test_auto_takes_the_equal_engine_of_the_lowest_rank(tiny: tuple[Any, Path]) -> None:
    choice = choose(tiny, offers(double(right, "second", 2), double(right, "first", 1), double(wrong_on("e"), "wrong", 0)))
    assert (choice.name, choice.version) == ("first", "1")
    assert choice.reason.startswith("first 1: fastest engine proved equal to tokenizers ")
    assert f"and {len(LINES)} rows of the data" in choice.reason
    assert choice.proof["engine"] == "first"
    assert choice.proof["sample_rows"] == len(LINES)
    assert any("engine wrong is not used: wrong 1 differs from the reference on" in note for note in choice.notes)


def test_auto_falls_back_to_the_reference_and_says_why_for_every_engine(tiny: tuple[Any, Path]) -> None:
    def refuses() -> None:
        raise ValueError("unsupported normalizer")

    def panics() -> None:
        raise Panic("unreachable code")

    engines = [double(wrong_on("e"), "wrong"), double(right, "picky", load=refuses), double(right, "panicky", load=panics)]
    choice = choose(tiny, offers(*engines))
    assert choice.name == "hf"
    assert choice.reason == "hf: no faster engine was proved equal for this tokenizer; it is the reference itself"
    notes = "\n".join(choice.notes)
    assert "picky 1 cannot load this tokenizer: ValueError: unsupported normalizer" in notes
    assert "panicky 1 cannot load this tokenizer: Panic: unreachable code" in notes


def test_a_wrong_engine_that_was_asked_for_is_an_error_with_the_text_and_both_ids(tiny: tuple[Any, Path]) -> None:
    drops: Twist = lambda text, ids: ids[:-1] if "[SEP] [SEP]" in text else ids  # noqa: E731
    with pytest.raises(
        EngineError, match=r"double 1 differs from the reference on '\[SEP\] \[SEP\]': reference \[3, 3\], engine \[3\]"
    ) as caught:
        choose(tiny, offers(double(drops)), requested="double")
    assert "--tokenizer-engine auto" in caught.value.hint


def test_an_engine_that_nobody_offers_is_a_settings_error_with_the_nearest_name(tiny: tuple[Any, Path]) -> None:
    with pytest.raises(SettingsError, match=r"tokenizer\.engine = 'doubel'") as caught:
        choose(tiny, offers(double(right)), requested="doubel")
    assert "Did you mean 'double'?" in caught.value.hint


def test_the_reference_needs_no_proof(tiny: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "prove", None)
    choice = choose(tiny, offers(double(right)), requested="hf")
    assert choice.name == "hf"
    assert choice.reason.startswith("hf: asked for")
    assert choice.proof["tokenizer"] == tokenizer_hash(*tiny)


def test_a_kept_proof_is_used_but_the_rows_of_the_data_are_compared_every_time(tiny: tuple[Any, Path], tmp_path: Path) -> None:
    unlucky: Twist = lambda text, ids: ids[:-1] if "unlucky" in text else ids  # noqa: E731
    plugins = offers(double(unlucky))
    first = choose(tiny, plugins, cache_dir=tmp_path)
    assert first.name == "double"
    assert list(tmp_path.iterdir())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "prove", None)
        assert choose(tiny, plugins, cache_dir=tmp_path).proof == first.proof
    with pytest.raises(EngineError, match=r"differs from the reference on 'unlucky': .* \(row 1 of the data\)"):
        choose(tiny, plugins, cache_dir=tmp_path, sample=["lucky", "an unlucky row"], requested="double")


def test_a_kept_refusal_is_not_tried_again(tiny: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = offers(double(lambda text, ids: ids[:-1] if "[SEP] [SEP]" in text else ids))
    assert choose(tiny, plugins, cache_dir=tmp_path).name == "hf"
    monkeypatch.setattr(engine, "prove", None)
    again = choose(tiny, plugins, cache_dir=tmp_path)
    assert any("differs from the reference on '[SEP] [SEP]'" in note for note in again.notes)


def test_a_cache_folder_that_cannot_be_written_costs_a_note(tiny: tuple[Any, Path], tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert any("is not kept" in note for note in choose(tiny, offers(double(right)), cache_dir=blocked).notes)


def test_only_so_many_rows_of_the_data_are_compared(tiny: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.core.engines.sampled_rows.BYTES", 25)
    assert choose(tiny, offers(double(right)), sample=["ten bytes!"] * 10).proof["sample_rows"] == 2
    assert choose(tiny, offers(double(right)), sample=["one row is always compared"] * 10).proof["sample_rows"] == 1


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twist", [right, wrong_on("Ω")], ids=["fast", "routed"])
def test_rows_are_those_of_the_tokenizer(any_tokenizer: tuple[Any, Path], twist: Twist) -> None:
    plugins = offers(double(twist))
    choice = choose(any_tokenizer, plugins)
    encoder = load_encoder(choice.spec, plugins)
    texts = [*LINES, "Ω", "x", "…Ω…"] * 3
    assert rows_of(encoder.encode_whole(array(texts))) == expected(any_tokenizer[0], texts)
    assert rows_of(encoder.encode(array(texts))) == expected(any_tokenizer[0], texts, add_special_tokens=False)
    assert choice.name == "double"
    assert encoder.rows_by_reference == (0 if twist is right else 2 * sum("Ω" in text for text in texts))


@given(texts=st.lists(st.text(alphabet="aΩ가 \n[SEP]", max_size=12), max_size=12), start=st.integers(0, 4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
def test_routing_keeps_every_row_in_its_place(tiny: tuple[Any, Path], texts: list[str], start: int) -> None:
    spec = ROUTED.setdefault("spec", choose(tiny, ROUTED_PLUGINS).spec)
    encoder = load_encoder(spec, ROUTED_PLUGINS)
    rows = pa.array(texts, pa.string()).slice(start)
    assert rows_of(encoder.encode_whole(rows)) == expected(tiny[0], rows.to_pylist()) if len(rows) else True


ROUTED: dict[str, Any] = {}
ROUTED_PLUGINS = offers(double(wrong_on("Ω")))


def test_special_tokens_can_be_left_out(any_tokenizer: tuple[Any, Path]) -> None:
    plugins = offers(double(right))
    spec = choose(any_tokenizer, plugins, add_special_tokens=False).spec
    assert (spec.prefix, spec.suffix, spec.whole) == ((), (), False)
    texts = array(LINES)
    assert rows_of(load_encoder(spec, plugins).encode_whole(texts)) == expected(any_tokenizer[0], LINES, add_special_tokens=False)


def test_a_post_processor_that_is_no_prefix_and_suffix_goes_to_the_reference(tmp_path: Path) -> None:
    tokenizer = word_piece(tmp_path)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP] $A", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save_pretrained(tmp_path)
    folder = (AutoTokenizer.from_pretrained(str(tmp_path)), tmp_path)
    plugins = offers(double(right))
    choice = choose(folder, plugins)
    assert choice.name == "hf"
    assert choice.spec.whole
    assert any("more than a fixed prefix and suffix" in note for note in choice.notes)
    assert rows_of(load_encoder(choice.spec, plugins).encode_whole(array(LINES))) == expected(folder[0], LINES)
    assert choose(folder, plugins, add_special_tokens=False).name == "double"
    with pytest.raises(EngineError, match="more than a fixed prefix and suffix"):
        choose(folder, plugins, requested="double")


def test_a_row_that_gets_other_special_tokens_than_the_probes_is_an_error(tiny: tuple[Any, Path]) -> None:
    class Moody:
        """A tokenizer whose Python class adds a token to one text."""

        def __getattr__(self, name: str) -> Any:
            return getattr(tiny[0], name)

        def __call__(self, texts: list[str], add_special_tokens: bool = True, **options: Any) -> dict[str, Any]:
            rows = expected(tiny[0], texts, add_special_tokens=add_special_tokens)
            return {"input_ids": [row + [3] * (add_special_tokens and "moody" in text) for row, text in zip(rows, texts, strict=True)]}

    with pytest.raises(EngineError, match="different special tokens to row 1 of the data than to other texts: 'moody'"):
        choose((Moody(), tiny[1]), offers(double(right)), sample=["calm", "moody"])


def test_an_engine_that_fails_later_costs_its_batch_a_detour_and_is_named(tiny: tuple[Any, Path]) -> None:
    def fails(text: str, ids: list[int]) -> list[int]:
        if "BOOM" in text:
            raise Panic("slice index")
        return ids

    plugins = offers(double(fails))
    encoder = load_encoder(choose(tiny, plugins).spec, plugins)
    texts = ["fine", "BOOM"]
    assert rows_of(encoder.encode_whole(array(texts))) == expected(tiny[0], texts)
    assert encoder.rows_by_reference == 2
    assert encoder.failures == ["double 1 failed while encoding: Panic: slice index; the reference encoded 2 texts instead"]


def test_a_reference_that_fails_is_an_error(tiny: tuple[Any, Path]) -> None:
    spec = choose(tiny, offers(), requested="hf").spec
    with pytest.raises(EngineError, match=r"the tokenizer itself failed while encoding.*on the text .a."):
        RowEncoder(spec, BrokenEncoder()).encode(array(["a"]))


class BrokenEncoder:
    def encode(self, texts: Any) -> Any:
        raise RuntimeError("broken")


# -- what travels to workers -------------------------------------------------------------------------------------------


def test_a_spec_travels_by_pickle_and_is_loaded_once_without_a_new_proof(tiny: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []
    plugins = offers(double(wrong_on("Ω"), load=lambda: loads.append(1)))
    spec = choose(tiny, plugins).spec
    monkeypatch.setattr(engine, "prove", None)
    loads.clear()
    for _ in range(3):
        encoder = load_encoder(pickle.loads(pickle.dumps(spec)), plugins)
    assert loads == [1]
    assert rows_of(encoder.encode_whole(array(LINES))) == expected(tiny[0], LINES)


def test_another_version_than_the_proved_one_is_refused(tiny: tuple[Any, Path]) -> None:
    plugins = offers(double(right))
    spec = replace(choose(tiny, plugins).spec, version="0")
    with pytest.raises(EngineError, match="double 1 is installed here, the proof is for 0"):
        load_encoder(spec, plugins)


# -- what is taken out of a tokenizer ----------------------------------------------------------------------------------


def test_truncation_padding_and_dropout_are_left_out_named_and_put_back(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    tokenizer = byte_level(tmp_path, **{"truncation": truncation, "padding": padding, "model.dropout": 0.5})
    live = tokenizer.backend_tokenizer
    before = live.to_str()
    assert (live.truncation["max_length"], live.padding["length"], live.model.dropout) == (3, 9, 0.5), "nothing to take out"
    backend = prepare_backend(tokenizer, tmp_path)
    assert live.to_str() == before
    assert backend.random
    notes = "\n".join(backend.notes)
    assert all(word in notes for word in ("truncation (3 tokens)", "own padding", "BPE dropout (0.5)"))
    plugins = offers(double(right))
    encoder = load_encoder(choose((tokenizer, tmp_path), plugins).spec, plugins)
    text = "a rather long text without end " * 9
    plain = byte_level(tmp_path / "plain")
    assert rows_of(encoder.encode_whole(array([text, "short"]))) == expected(plain, [text, "short"])


def test_special_tokens_to_be_split_need_the_python_class(tmp_path: Path) -> None:
    byte_level(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path), split_special_tokens=True)
    tokenizer.save_pretrained(tmp_path)
    plugins = offers(double(right))
    choice = choose((tokenizer, tmp_path), plugins)
    assert choice.name == "hf"
    assert any("split_special_tokens is set" in note for note in choice.notes)
    assert rows_of(load_encoder(choice.spec, plugins).encode_whole(array(["a<eos>b"]))) == expected(tokenizer, ["a<eos>b"])
    assert expected(tokenizer, ["a<eos>b"]) != expected(
        AutoTokenizer.from_pretrained(str(tmp_path), split_special_tokens=False), ["a<eos>b"]
    )


@pytest.mark.filterwarnings("ignore:This sequence already has")
def test_a_slow_tokenizer_is_encoded_by_its_class_and_no_engine_is_tried(tmp_path: Path) -> None:
    ByT5Tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    plugins = offers(double(right))
    choice = choose((tokenizer, tmp_path), plugins)
    assert choice.name == "hf"
    assert any("ByT5Tokenizer is a slow tokenizer" in note and "train-tokenizer" in note for note in choice.notes)
    assert rows_of(load_encoder(choice.spec, plugins).encode_whole(array(LINES))) == expected(tokenizer, LINES)
    with pytest.raises(EngineError, match=r"tokenizer\.engine = 'double'"):
        choose((tokenizer, tmp_path), plugins, requested="double")


def test_a_tokenizer_whose_folder_holds_another_one_is_refused(tmp_path: Path) -> None:
    ByT5Tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    byte_level(tmp_path / "other")
    with pytest.raises(EngineError, match="give different ids for a row of the data"):
        choose((tokenizer, tmp_path / "other"), offers())


def test_a_plugin_whose_code_changed_is_proved_anew(tmp_path: Path) -> None:
    """Its version stays where its author forgets it: the old proof let wrong ids pass, or kept a mended engine out."""
    tokenizer, folder = byte_level(tmp_path), tmp_path / "plugins"
    kept: dict[str, Any] = {"cache_dir": tmp_path / "cache", "requested": "double"}
    assert choose_engine(tokenizer, tmp_path, plugins(folder), **kept).name == "double"
    assert len(list((tmp_path / "cache").glob("proof-*double*"))) == 1
    with pytest.raises(EngineError, match="differs from the reference"):
        choose_engine(tokenizer, tmp_path, plugins(folder, ENGINE.replace('if "zebra" in text', "if text")), **kept)
    assert choose_engine(tokenizer, tmp_path, plugins(folder), **kept).name == "double"
