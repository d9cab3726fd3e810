"""Checks of the prepared texts: near copies, contradicting labels, damage, unknown tokens, ends, padding, the plan."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftcli.core.storage.documents import pieces
from ftcli.core.storage.encoding_damage import find_damage, repaired
from ftcli.core.storage.near_duplicates import near_pairs
from ftcli.core.storage.store import Store
from ftcli.core.tokenizer.tokentext import TokenText, spelled
from realsets import SETS
from stores import rows_of
from verifying import World, texts

STAGE = ("data",)
KOREAN = "배송이 아직 도착하지 않았습니다 확인 부탁드립니다"
SOUND = [
    KOREAN,
    "L’été dernier, « voilà », c’était très bon… CAFÉ…",
    "Die Straße ist groß – über 5 Äpfel für „Spaß“.",
    "Tôi không biết tiếng Việt, nhưng tôi muốn học.",
    "Съешь ещё этих мягких французских булок",
    "我不知道该怎么办,请帮帮我。联通的信号不好",
    "これはテストです。東京に行きます。",
    "MAÇÃ É BOA”, disse João – é verdade…",
    "It’s the “best” café… £5 ±3° ½ ©2020 µm × ÷ 🙂",
    "x = {'a': 1}  # → λ ≤ ∞",
]


def _windows(text: str) -> str:
    """UTF-8 read as cp1252, with control characters where that has no sign."""
    return "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in text.encode())


def _store(world: World, folder: Path, lines: dict[str, list[tuple[str, str]]], **options: Any) -> dict[str, Any]:
    sources = []
    for split, rows in lines.items():
        path = folder / f"{split}.jsonl"
        path.write_text("\n".join(json.dumps({"text": text, "label": label}) for text, label in rows), encoding="utf-8")
        sources.append(f"{split}={path}")
    data = world.prepare(f"texts-{folder.name}", world.bpe, {"dataset.label_column": "label", **options}, sources=sources)
    return {**world.run("classify"), "dataset.sources": [str(data)]}


def _rows(count: int, seed: int) -> list[tuple[str, str]]:
    return [(text, "ab"[number % 2]) for number, text in enumerate(texts(count, seed))]


# -- leakage and copies --------------------------------------------------------------------------------------------------------------------


def test_a_leak_that_differs_in_case_and_spaces_is_found(world: World, tmp_path: Path) -> None:
    train, test = _rows(200, 2), _rows(40, 3)
    test[:4] = [(f"  {text.upper()} ".replace(" ", "  "), label) for text, label in train[:4]]
    check = world.caught(
        "test rows in train, in capitals", _store(world, tmp_path, {"train": train, "test": test}), "FT205", words="(4)", stages=STAGE
    )
    assert check.evidence["first_rows"] == [0, 1, 2, 3]


def test_one_text_that_stands_twice_under_two_labels_is_told_and_no_more(world: World, tmp_path: Path) -> None:
    """Two rows of 260 are 0.77 %, and were warned of."""
    train = _rows(200, 2)
    train[1] = (train[0][0], "b")
    check = world.verify(_store(world, tmp_path, {"train": train, "test": _rows(33, 3)}), stages=STAGE)["FT207"]
    assert (check.status, check.evidence["rows_in_conflict"]) == ("info", 2)


def test_texts_inside_packs_are_compared_one_by_one(world: World, tmp_path: Path) -> None:
    train, test = _rows(200, 2), _rows(40, 3)
    test[:4] = train[:4]
    values = _store(
        world,
        tmp_path,
        {"train": train, "test": test},
        **{"dataset.label_column": None, "packing.strategy": "bfd", "packing.max_length": 256},
    )
    world.caught("test texts in train, packed", {**values, "train.mode": "pretrain"}, "FT205", words="(4)", stages=STAGE)


LICENCE = " ".join(f"word{number}" for number in range(60))


def test_passages_that_long_texts_share_are_told_when_ftcli_split_the_texts(world: World, tmp_path: Path) -> None:
    lines = {"train": [(f"{LICENCE} {text} {text}", label) for text, label in _rows(200, 2)]}
    options = {"dataset.label_column": None, "dataset.validation_fraction": 0.1, "packing.max_length": 32}
    split = {**options, "packing.truncation_strategy": "split"}
    for name, given in {"cut": options, "split": split, "packed": {**split, "packing.strategy": "concat"}}.items():
        (tmp_path / name).mkdir()
        values = {**_store(world, tmp_path / name, lines, **given), "train.mode": "pretrain"}
        check = world.verify(values, stages=STAGE)["FT205"]
        assert (check.status, check.evidence["split"]) == ("info", "validation"), check
        assert check.evidence["passages"] == check.evidence["rows"] > 0


def test_whole_texts_that_ftcli_split_and_that_differ_in_case_still_fail(world: World, tmp_path: Path) -> None:
    rows = _rows(200, 2)
    lines = {"train": [*rows, *((text.upper(), label) for text, label in rows)]}
    check = world.verify(_store(world, tmp_path, lines, **{"dataset.validation_fraction": 0.1}), stages=STAGE)["FT205"]
    assert check.status == "fail"
    assert "differ in case, spaces" in check.fix
    assert "let ftcli split" not in check.fix


def test_rows_made_from_train_rows_are_found(world: World, tmp_path: Path) -> None:
    train = [
        (f"{text} order invoice parcel account password refund card late again please help with my of not yet", label)
        for text, label in _rows(200, 2)
    ]
    test = [*[(f"{text} really", label) for text, label in train[:5]], *_rows(35, 3)]
    check = world.caught(
        "5 of 40 test rows with a word added",
        _store(world, tmp_path, {"train": train, "test": test}),
        "FT206",
        status="warn",
        words="(5)",
        stages=STAGE,
    )
    assert check.evidence["test"]["pairs"] == [[row, row] for row in range(5)] or check.evidence["test"]["pairs"] == [
        (row, row) for row in range(5)
    ]
    assert check.evidence["examples"][0][0].endswith("really")


def test_one_row_that_resembles_another_is_no_leak(world: World, tmp_path: Path) -> None:
    """One of 75 is more than one in a hundred, and was warned of."""
    more = "order invoice parcel account password refund card late again please help with my of not yet"
    train = [(f"{text} {more}", label) for text, label in _rows(200, 2)]
    test = [(f"{train[0][0]} really", train[0][1]), *_rows(39, 3)]
    check = world.verify(_store(world, tmp_path, {"train": train, "test": test}), stages=STAGE)["FT206"]
    assert (check.status, check.evidence["test"]["rows"]) == ("info", 1)


def test_nearly_equal_passages_are_told_when_ftcli_split_the_texts(world: World, tmp_path: Path) -> None:
    lines = {"train": [(f"{number} {LICENCE} {text}", label) for number, (text, label) in enumerate(_rows(100, 2))]}
    options = {"dataset.label_column": None, "dataset.validation_fraction": 0.1, "packing.max_length": 48}
    for truncation, status in (("split", "info"), ("keep_start", "info")):
        (tmp_path / f"near-{truncation}").mkdir()
        values = _store(world, tmp_path / f"near-{truncation}", lines, **options, **{"packing.truncation_strategy": truncation})
        check = world.verify({**values, "train.mode": "pretrain"}, stages=STAGE)["FT206"]
        assert (check.status, check.evidence["validation"]["passages"]) == (status, 1), check
    lines = {"train": [(f"{number} {LICENCE}", "ab"[number % 2]) for number in range(100)]}
    whole = world.verify(_store(world, tmp_path, lines, **{"dataset.validation_fraction": 0.1}), stages=STAGE)["FT206"]
    assert (whole.status, whole.evidence["validation"]["passages"]) == ("warn", 0)


def test_tokens_that_the_rows_do_not_have_are_not_spelled(world: World) -> None:
    from transformers import AutoTokenizer

    tokenizer, store = AutoTokenizer.from_pretrained(world.bpe), Store.open(world.labelled)
    some, every = pieces(tokenizer, store), spelled(tokenizer)
    assert some is not None
    assert every is not None
    ids = np.unique(
        np.concatenate([store.split(name).rows(np.arange(len(store.split(name)))).input_ids.values for name in store.split_names])
    )
    assert all(some[number] == every[number] for number in ids)
    assert len(some) == len(every)
    assert sum(map(bool, some)) < sum(map(bool, every))


def test_texts_that_the_tokenizer_cannot_tell_apart_are_not_taken_for_copies(world: World, tmp_path: Path) -> None:
    signs = "ℵℶℷℸ∀∁∂∃∄∅∆∇∈∉∊∋∌∍"
    rows = [("".join(signs[(row * step) % 18] for step in range(1, 7)), "ab"[row % 2]) for row in range(1, 60)]
    options = {"tokenizer.path": str(world.wordpiece)}
    values = {**_store(world, tmp_path, {"train": rows, "test": rows[:9]}, **options), **options}
    checks = world.verify(values, stages=("tokenizer", "data"))
    assert [name for name, check in checks.items() if check.status == "fail"] == ["FT113"]
    assert all(checks[name].status == "skipped" and "FT113" in checks[name].summary for name in ("FT205", "FT206", "FT207"))


def test_a_few_texts_that_it_cannot_spell_are_no_leak(world: World, tmp_path: Path) -> None:
    train, test = _rows(200, 2), _rows(40, 3)
    train[:4], test[:4] = [("order the ℵℶ", "a")] * 4, [("order the ∀∁", "a")] * 4
    options = {"tokenizer.path": str(world.wordpiece)}
    values = {**_store(world, tmp_path, {"train": train, "test": test}, **options), **options}
    check = world.verify(values, stages=("tokenizer", "data"))["FT205"]
    assert (check.evidence["rows"], check.evidence["with_unknown_tokens"]) == (0, 4)
    assert "4 of 40 have an unknown token and were not compared" in check.summary


def test_the_last_words_of_a_text_that_was_split_are_no_leak(world: World, tmp_path: Path) -> None:
    lines = {
        name: [(f"{text} {text} {text} not yet", label) for text, label in _rows(80, seed)] for name, seed in (("train", 2), ("test", 3))
    }
    for name, most in (("uncut", 256), ("ends", 32)):
        (tmp_path / name).mkdir()
        options = {"dataset.label_column": None, "packing.max_length": most, "packing.truncation_strategy": "split"}
        values = {**_store(world, tmp_path / name, lines, **options), "train.mode": "pretrain"}
        assert world.verify(values, stages=STAGE)["FT205"].evidence["rows"] == 0, name


def test_near_pairs_are_those_that_a_comparison_of_all_finds() -> None:
    random = np.random.default_rng(0)
    base = [random.integers(0, 5000, int(random.integers(5, 60))).tolist() for _ in range(150)]
    changed = []
    for row in base[:100]:
        other = list(row)
        for place in random.integers(0, len(row), int(random.integers(0, 4))):
            other[int(place)] = 6000
        changed.append(other)

    def similarity(one: list[int], other: list[int]) -> float:
        a, b = (set(pairwise(row)) for row in (one, other))
        return len(a & b) / len(a | b)

    expected = {row for row, ids in enumerate(changed) if len(ids) >= 12 and similarity(ids, base[row]) >= 0.8}
    found = near_pairs(rows_of(changed).input_ids, rows_of(base).input_ids)
    assert len(expected) > 20
    assert set(found.rows.tolist()) == expected
    assert (found.rows == found.others).all()
    assert not len(near_pairs(rows_of([[], [1], []]).input_ids, rows_of([[], [1]]).input_ids).rows)


def test_texts_with_several_labels_warn(world: World, tmp_path: Path) -> None:
    train = _rows(200, 2)
    train += [(text, "ab"[label == "a"]) for text, label in train[:2]]
    check = world.caught(
        "2 of 202 rows repeated with another label",
        _store(world, tmp_path, {"train": train}),
        "FT207",
        status="warn",
        words="2 texts",
        stages=STAGE,
    )
    assert sorted(check.evidence["labels"]) == ["a", "b"]


def test_one_text_under_all_labels_fails(world: World, tmp_path: Path) -> None:
    train = [("the same text", "ab"[number % 2]) for number in range(40)]
    world.caught("F4: one text under every label", _store(world, tmp_path, {"train": train}), "FT207", words="100.00%", stages=STAGE)


def test_texts_that_are_equal_only_where_they_were_cut_are_told_to_be_cut_later(world: World, tmp_path: Path) -> None:
    """A prompt before every text, and a max_length that ends within it."""
    train, test = ([(f"{LICENCE} {text}", label) for text, label in _rows(40, seed)] for seed in (2, 3))
    values = _store(world, tmp_path, {"train": train, "test": test}, **{"packing.max_length": 16})
    checks = world.verify(values, stages=STAGE)
    for name in ("FT205", "FT207"):
        assert checks[name].status == "fail"
        assert "have exactly 16 tokens, where they were cut" in checks[name].summary
        assert checks[name].fix.startswith("Raise --max-length")
    one_label = [(text, "a") for text, _ in train[:-1]] + [("another text", "b")]
    (tmp_path / "copies").mkdir()
    check = world.verify(_store(world, tmp_path / "copies", {"train": one_label}, **{"packing.max_length": 16}), stages=STAGE)["FT207"]
    assert check.status == "warn"
    assert check.fix.startswith("Raise --max-length")
    (tmp_path / "whole").mkdir()
    same = world.verify(_store(world, tmp_path / "whole", {"train": train * 2, "test": train}), stages=STAGE)
    assert not any("Raise --max-length" in same[name].fix for name in ("FT205", "FT207"))


def test_one_conflict_among_thousands_is_noted(world: World, tmp_path: Path) -> None:
    train = [(f"{number} text", "ab"[number % 2]) for number in range(1000)]
    values = _store(world, tmp_path, {"train": [*train, ("0 text", "b")]})
    assert world.quiet("1 text with two labels among 1,000", values, stages=STAGE)["FT207"].status == "info"


@pytest.mark.parametrize(("others", "status"), [(0, "warn"), (600, "info"), (6000, "pass")])
def test_sources_of_train_with_the_same_bytes_are_named(world: World, tmp_path: Path, others: int, status: str) -> None:
    """One file of 200 rows under two names, beside `others` more rows."""
    made = []
    for name, seed, rows in (("a", 3, 200), ("b", 3, 200), ("c", 7, others)):
        made.append(tmp_path / f"{name}.jsonl")
        made[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(rows, seed)), encoding="utf-8")
    sources = [f"train={path}" for path in made if path.stat().st_size]
    values = {"dataset.sources": [str(world.prepare(f"twice{others}", world.bpe, {}, sources))]}
    check = world.verify(values, stages=STAGE)["FT207"]
    assert check.status == status
    assert (f"{made[0]} and {made[1]} are the same bytes" in check.summary) == (status != "pass")
    if status == "warn":
        assert check.fix == "Prepare the data again from one of them."


def test_a_file_that_was_read_twice_warns(world: World, tmp_path: Path) -> None:
    world.caught(
        "every row twice", _store(world, tmp_path, {"train": _rows(100, 2) * 2}), "FT207", status="warn", words="50.00%", stages=STAGE
    )


def test_the_number_of_a_text_does_not_depend_on_how_it_was_cut() -> None:
    tokens = [b"", b"ab", b"a", b"b", b" ", b"  ", b" b", b"A", b"ab ", b"\xea\xb0\x80"]
    spelling = TokenText(tokens)

    def number(*ids: int) -> int:
        return int(spelling.hashes(np.array(ids, np.int32), np.array([len(ids)]))[0][0])

    assert number(1) == number(2, 3) == number(7, 3) == number(4, 2, 3, 5) == number(0, 8, 0, 4) == number(8)
    assert number(2, 6) == number(2, 4, 3) == number(2, 5, 6) == number(4, 7, 5, 6, 4)
    assert len({number(1), number(2, 6), number(3, 2), number(2), number(9), number(4), number(5), number(0)}) == 8
    assert number(4) != number(5)  # no text: by the ids


# -- characters and tokens -----------------------------------------------------------------------------------------------------------------


def test_sound_text_of_many_languages_is_not_damaged() -> None:
    assert find_damage(SOUND).all() == []


@pytest.mark.parametrize(
    ("what", "damaged", "kind"),
    [
        ("UTF-8 Korean as cp1252", _windows(KOREAN), "utf8_as_latin"),
        ("UTF-8 Korean as latin-1", KOREAN.encode().decode("latin-1"), "utf8_as_latin"),
        ("UTF-8 Korean as cp1252, bytes lost", KOREAN.encode().decode("cp1252", "ignore"), "utf8_as_latin"),
        ("damaged twice", _windows(_windows("é")), "utf8_as_latin"),
        ("UTF-8 French as cp1252", _windows("L’été à Orléans"), "utf8_as_latin"),
        ("UTF-8 quotes as cp1252", _windows("It’s “good”"), "utf8_as_latin"),
        ("EUC-KR as latin-1", KOREAN.encode("cp949").decode("latin-1"), "korean_as_latin"),
        ("UTF-8 Russian as cp1251", "Привет, как дела".encode().decode("cp1251", "replace").replace("\ufffd", ""), "utf8_as_other"),
        ("bytes given up", f"{KOREAN[:9]}\ufffd\ufffd{KOREAN[9:]}", "replaced"),
    ],
)
def test_each_kind_of_damage_is_told(what: str, damaged: str, kind: str) -> None:
    assert what
    assert getattr(find_damage(["sound", damaged]), kind) == [1]


def test_damage_is_shown_repaired() -> None:
    assert repaired(_windows(KOREAN)) == KOREAN
    assert repaired(KOREAN) is None


def test_damaged_texts_warn_and_show_what_they_were(world: World, tmp_path: Path) -> None:
    train = [(_windows(f"{number} {KOREAN}") if number < 3 else text, label) for number, (text, label) in enumerate(_rows(200, 2))]
    check = world.caught(
        "3 of 200 rows in another encoding",
        _store(world, tmp_path, {"train": train}),
        "FT208",
        status="warn",
        words="1.5% of the train rows",
        stages=STAGE,
    )
    assert f"0 {KOREAN}".startswith(check.evidence["repaired"])
    assert len(check.evidence["repaired"]) > 10


def test_damage_in_held_out_rows_is_seen_and_their_split_named(world: World, tmp_path: Path) -> None:
    """Only train rows were looked at."""
    held = [(_windows(f"{text} {KOREAN}") if number < 20 else text, label) for number, (text, label) in enumerate(_rows(40, 3))]
    values = _store(world, tmp_path, {"train": _rows(200, 2), "validation": held, "test": _rows(40, 4)})
    check = world.caught("half of validation", values, "FT208", status="warn", words="50.0% of the validation rows", stages=STAGE)
    assert (check.evidence["split"], check.evidence["row"], check.evidence["damaged"]) == ("validation", 0, 20)


@pytest.mark.parametrize("at_hand", [True, False])
def test_unknown_tokens_of_held_out_rows_are_seen_and_their_split_named(world: World, tmp_path: Path, at_hand: bool) -> None:
    """English train rows and Korean validation rows for an English tokenizer passed."""
    own = {"tokenizer.path": str(world.wordpiece)}
    held = [(f"{text} ⅋ ↯", label) for text, label in _rows(40, 3)]
    values = {**_store(world, tmp_path, {"train": _rows(200, 2), "validation": held, "test": _rows(40, 4)}, **own), **own}
    if not at_hand:
        for name in ("train", "validation", "test"):
            (tmp_path / f"{name}.jsonl").unlink()
    found = world.verify(values, stages=("tokenizer", "data"))
    assert found["FT113"].status == ("pass" if at_hand else "skipped")
    assert (found["FT209"].status, found["FT209"].evidence["split"], found["FT209"].evidence["rows_hit"]) == ("warn", "validation", 40)
    assert "of the tokens of validation are [UNK]" in found["FT209"].summary


@pytest.mark.parametrize("where", ["written out", "in few rows", "in all"])
def test_unknown_tokens_that_train_has_as_well_are_no_second_cause(world: World, tmp_path: Path, where: str) -> None:
    own = {"tokenizer.path": str(world.wordpiece)}
    sign, every = {"written out": ("[UNK]", 1), "in few rows": ("⅋ " * 20, 10), "in all": ("⅋ ↯", 1)}[where]
    train, held = (
        [
            (f"{text} {sign}" if row % every == 0 and (rows == 40 or every == 1) else text, label)
            for row, (text, label) in enumerate(_rows(rows, seed))
        ]
        for rows, seed in ((200, 2), (40, 3))
    )
    values = {**_store(world, tmp_path, {"train": train, "validation": held}, **own), **own}
    found = world.verify(values, stages=("tokenizer", "data"))
    assert found["FT113"].status == {"written out": "pass", "in few rows": "pass", "in all": "warn"}[where]
    assert found["FT209"].status == "pass"
    assert "FT113 has checked the train texts" in found["FT209"].summary


def _bytes_tokenizer(folder: Path) -> Path:
    """As phi-3 and Mistral spell what they have no token for: a token a byte. EOS is added behind a text, as T5 does."""
    from tokenizers import Tokenizer, decoders, models, processors
    from transformers import PreTrainedTokenizerFast

    tokens = ["<pad>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abcdefghijklmnopqrstuvwxyz "]
    backend = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>").save_pretrained(folder)
    return folder


def test_characters_that_a_cut_divided_are_no_damage_and_parts_of_ended_texts_need_no_end(world: World, tmp_path: Path) -> None:
    lines = {"train": [(f"{'abcdefg'[: row % 7]} {'뷁힣' * 30}", "a") for row in range(40)]}
    own = _bytes_tokenizer(tmp_path / "tokenizer")
    for packing in ("none", "concat"):
        (tmp_path / packing).mkdir()
        options = {"dataset.label_column": None, "tokenizer.path": str(own), "packing.strategy": packing, "packing.max_length": 32}
        values = {
            **_store(world, tmp_path / packing, lines, **options, **{"packing.truncation_strategy": "split"}),
            "tokenizer.path": str(own),
        }
        checks = world.verify({**values, "train.mode": "pretrain"}, stages=STAGE)
        assert (checks["FT208"].status, checks["FT210"].status) == ("pass", "pass"), checks
        assert "ended every text" in checks["FT210"].summary


def test_damage_beside_divided_characters_is_found(world: World, tmp_path: Path) -> None:
    own = _bytes_tokenizer(tmp_path / "tokenizer")
    lines = {"train": [("뷁힣" * 30 + "\ufffd" * (row % 2) + "뷁" * 30, "ab"[row % 2]) for row in range(40)]}
    options = {"tokenizer.path": str(own), "packing.max_length": 64, "packing.truncation_strategy": "split"}
    values = {**_store(world, tmp_path, lines, **options), "tokenizer.path": str(own)}
    check = world.verify(values, stages=STAGE)["FT208"]
    assert (check.status, check.evidence["replacement characters"]) == ("warn", 20)


def test_a_token_that_the_decoder_cannot_spell_is_no_damage(world: World, tmp_path: Path) -> None:
    """deepseek-coder has the added token "Á", which its byte-level decoder takes for the byte C1."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(world.bpe)
    tokenizer.add_tokens("Á")
    tokenizer.save_pretrained(tmp_path / "t")
    assert "\ufffd" in tokenizer.decode(tokenizer("order Á order")["input_ids"])
    lines = {"train": [(f"{text} Á {text}", label) for text, label in _rows(60, 2)]}
    values = {**_store(world, tmp_path, lines, **{"tokenizer.path": str(tmp_path / "t")}), "tokenizer.path": str(tmp_path / "t")}
    assert world.verify(values, stages=STAGE)["FT208"].status == "pass"


def test_unknown_tokens_warn(world: World, tmp_path: Path) -> None:
    values = world.run("classify", "bert")
    values.pop("model.config")
    world.quiet("WordPiece data", values, stages=STAGE)
    rows = [([1, *ids[1:]] if row % 4 else [1, 1, 1, *ids], label) for row, (ids, label) in enumerate(world.rows(world.labelled_wordpiece))]
    unk = world.verify(values, stages=STAGE)["FT209"]
    assert unk.status == "pass"
    from transformers import AutoTokenizer

    number = AutoTokenizer.from_pretrained(world.wordpiece).unk_token_id
    rows = [([*ids[:3], number, *ids[4:]], label) for ids, label in rows]
    values |= world.rewritten(tmp_path / "s", {"train": rows}, like=world.labelled_wordpiece)
    world.caught("an unknown token in each row", values, "FT209", status="warn", words="of the tokens of train are", stages=STAGE)


def test_texts_that_do_not_end_with_eos_warn(world: World, tmp_path: Path) -> None:
    rows = world.rows(world.plain)
    cut = [(ids[:-1], None) if row % 5 else (ids, None) for row, (ids, _) in enumerate(rows)]
    values = {**world.run("pretrain"), **world.rewritten(tmp_path / "s", {"train": cut}, like=world.plain)}
    world.caught("4 of 5 texts without EOS", values, "FT210", status="warn", words="20.0% of the texts", stages=STAGE)
    values = {**world.run("pretrain"), **world.rewritten(tmp_path / "t", {"train": rows}, like=world.plain)}
    assert world.quiet("every text with EOS", values, stages=STAGE)["FT210"].evidence["share"] == 1


# -- the plan ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collator", ["fixed", "dynamic"])
def test_a_collator_that_pads_much_warns(world: World, collator: str) -> None:
    check = world.caught(
        f"collator {collator}",
        world.run("classify", **{"loader.collator": collator}),
        "FT211",
        status="warn",
        words="padding",
        stages=STAGE,
    )
    assert "--collator bucketed" in check.fix
    assert check.evidence["bucketed"] < check.evidence["dynamic"] < check.evidence["fixed"]


def test_the_packed_collator_computes_no_padding_of_single_texts(world: World) -> None:
    check = world.quiet("collator packed", world.run("classify", **{"loader.collator": "packed"}), stages=STAGE)["FT211"]
    assert check.summary.startswith("0.0% of the slots are padding with the collator packed")


def test_the_padding_is_that_of_the_samplers() -> None:
    from ftcli.core.batches.batch import EpochSampler, LengthGroupedSampler
    from ftcli.core.batches.order import padded, wasted

    lengths = np.random.default_rng(1).integers(5, 200, 20_000)
    assert wasted(lengths, 16, "dynamic", 256) == pytest.approx(padded(lengths[EpochSampler(len(lengths), 1).order()], 16), abs=0.01)
    assert wasted(lengths, 16, "bucketed", 256) == pytest.approx(
        padded(lengths[LengthGroupedSampler(lengths, 16, 1).order()], 16), abs=0.005
    )
    assert wasted(lengths, 16, "fixed", 256) == pytest.approx(1 - lengths.mean() / 256)


def test_a_row_far_longer_than_the_others_is_noted(world: World, tmp_path: Path) -> None:
    rows = [(ids[:20], label) for ids, label in world.rows(world.labelled)]
    rows[17] = ([7] * 800, rows[17][1])
    check = world.quiet(
        "a row of 800 tokens", {**world.run("classify"), **world.rewritten(tmp_path / "s", {"train": rows}, max_length=1024)}, stages=STAGE
    )["FT212"]
    assert (check.status, check.evidence["first_rows"]) == ("info", [17])


def test_the_plan_is_counted_and_timed_only_by_a_measurement(world: World, tmp_path: Path) -> None:
    values = world.run(
        "classify", **{"train.gradient_accumulation_steps": 4, "train.num_train_epochs": 2, "train.output_dir": tmp_path / "run"}
    )
    check = world.verify(values, stages=STAGE)["FT213"]
    tokens = 2 * int(Store.open(world.labelled).split("train").lengths.sum())
    assert (check.evidence["steps"], check.evidence["tokens"], check.evidence["rows_a_step"]) == (16, tokens, 32)
    assert "ftcli benchmark" in check.summary
    report = {
        "metrics": {"real_tokens_per_second": tokens / 50},
        "machine": {"cpu_model": "a processor", "gpus": []},
        "settings": {"dataset.sources": {"value": values["dataset.sources"]}, "train.per_device_train_batch_size": {"value": 8}},
    }
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ftcli-run.json").write_text(json.dumps(report))
    assert world.verify(values, stages=STAGE)["FT213"].evidence["seconds"] == pytest.approx(50)
    (tmp_path / "run" / "ftcli-run.json").write_text(json.dumps({**report, "machine": {"cpu_model": "another", "gpus": []}}))
    assert "seconds" not in world.verify(values, stages=STAGE)["FT213"].evidence


def test_a_plan_leaves_out_the_last_rows_where_the_run_does(world: World) -> None:
    rows = len(Store.open(world.labelled).split("train"))
    size = rows // 2 + 1
    values = world.run(
        "classify", **{"train.num_train_epochs": 2, "train.per_device_train_batch_size": size, "train.dataloader_drop_last": True}
    )
    checks = world.verify(values, stages=("settings", "data"))
    assert checks["FT213"].evidence["steps"] == checks["FT053"].evidence["steps"] == 2
    assert checks["FT213"].evidence["rows"] == 2 * size


def test_a_plan_by_tokens_counts_the_batches_of_the_run(world: World) -> None:
    from ftcli.core.training.run import prepare
    from stores import context

    values = world.run(
        "classify", "qwen3", **{"train.gradient_accumulation_steps": 2, "train.num_train_epochs": 2, "train.max_tokens_per_batch": 512}
    )
    checks = world.verify(values, stages=("settings", "data"))
    run = prepare(context(**{key.replace(".", "__"): value for key, value in values.items()}, train__output_dir=world.folder / "by tokens"))
    assert run.token_batches is not None
    steps = 2 * math.ceil(len(run.token_batches) / 2)
    assert checks["FT213"].evidence["steps"] == checks["FT053"].evidence["steps"] == steps
    rows = len(run.train) / len(run.token_batches)
    assert checks["FT213"].evidence["rows_a_step"] == round(2 * rows)
    assert "steps of about" in checks["FT213"].summary
    assert abs(checks["FT211"].evidence["rows_a_batch"] - rows) < 2


def test_a_row_over_the_budget_of_a_batch_fails(world: World) -> None:
    values = world.run("classify", **{"train.max_tokens_per_batch": 30})
    check = world.caught("a row over the budget", values, "FT053", words="does not hold row", stages=("settings",))
    assert "prepare the data with --max-length 30" in check.fix


# -- real data -----------------------------------------------------------------------------------------------------------------------------

LEAKS = {"banking77": {"test": 0.0023}, "kor_3i4k": {"test": 0.1011}, "goemotions_ko": {"validation": 0.0158, "test": 0.0144}}


@pytest.mark.real
@pytest.mark.parametrize("name", sorted(LEAKS))
def test_the_leaks_of_real_sets_are_measured_by_their_texts(real_data: Path, name: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(real_data / "tokenizers" / "qwen3")
    every = spelled(tokenizer)
    assert every is not None
    spelling = TokenText.of(every, tokenizer.unk_token_id)
    numbers = {}
    for split, rows in SETS[name](real_data).items():
        ids = rows_of([encoded.ids for encoded in tokenizer.backend_tokenizer.encode_batch([text for text, _ in rows])]).input_ids
        numbers[split] = spelling.hashes(ids.values, ids.lengths)[0]
    shares = {split: float(np.isin(found, numbers["train"]).mean()) for split, found in numbers.items() if split != "train"}
    assert shares == pytest.approx(LEAKS[name], abs=0.0005)


@pytest.mark.real
@pytest.mark.parametrize(
    "name", ["banking77", "kor_3i4k", "songys_chatbot", "world_cities", "kor_law", "code_sympy", "wikitext2_valid", "gsm8k"]
)
def test_real_texts_are_sound_and_their_damage_is_seen(real_data: Path, name: str) -> None:
    lines = [text for text, _ in SETS[name](real_data)["train"]][:3000]
    assert find_damage(lines).all() == []
    foreign = [text for text in lines if sum(not character.isascii() for character in text) >= 8]
    if len(foreign) > 100:
        assert len(find_damage([_windows(text) for text in foreign]).utf8_as_latin) > 0.9 * len(foreign)


def test_texts_that_differ_in_unknown_tokens_alone_are_not_nearly_the_same(world: World, tmp_path: Path) -> None:
    """BERT's English tokenizer has one [UNK] for most Korean words."""
    filler = "order invoice parcel account password refund card late again please help with my of not yet"
    signs = "ℵℶℷℸ∀∁∂∃∄∅∆∇∈∉∊∋∌∍"
    train = [(f"{number} {filler} {signs[number % 18]} {text}", label) for number, (text, label) in enumerate(_rows(200, 2))]
    test = [(f"{text} {signs[(number + 5) % 18]}", label) for number, (text, label) in enumerate(train[:9])]
    options = {"tokenizer.path": str(world.wordpiece)}
    values = {**_store(world, tmp_path, {"train": train, "test": [*test, *_rows(31, 3)]}, **options), **options}
    check = world.verify(values, stages=STAGE)["FT206"]
    assert (check.status, check.evidence["test"]["rows"]) == ("pass", 0)
