"""Checks of leaks and copies: what hid them (unknown tokens, cuts, ends, case, another answer), and what is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftcli.core.ragged import to_offsets
from ftcli.core.storage.store import Ragged
from ftcli.core.storage.windows import known_windows, windows, within
from ftcli.core.tokenizer.tokentext import TokenText
from stores import rows_of
from verifying import STORY, World, texts

STAGE = ("data",)
CHECKS = ("FT205", "FT206", "FT207")
MORE = "order invoice parcel account password refund card late again please help with my of not yet"


def _store(world: World, folder: Path, lines: dict[str, list[tuple[str, str]]], **options: Any) -> dict[str, Any]:
    """Texts with labels; without them where `dataset.label_column` is None."""
    folder.mkdir(exist_ok=True)
    rows = {split: [{"text": text, "label": label} for text, label in found] for split, found in lines.items()}
    label = {"dataset.label_column": "label", **options}
    values = _prepared(world, folder, rows, **label)
    return {**values, "train.mode": "classify" if label["dataset.label_column"] else "pretrain"}


def _prepared(world: World, folder: Path, lines: dict[str, list[dict[str, Any]]], **options: Any) -> dict[str, Any]:
    sources = []
    for split, rows in lines.items():
        path = folder / f"{split}.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        sources.append(f"{split}={path}")
    tokenizer = options.get("tokenizer.path", str(world.bpe))
    data = world.prepare(f"leak-{folder.parent.name}-{folder.name}", world.bpe, options, sources=sources)
    return {"tokenizer.path": tokenizer, "dataset.sources": [str(data)]}


def _rows(count: int, seed: int, more: str = "") -> list[tuple[str, str]]:
    return [(f"{text} {more}".strip(), "ab"[number % 2]) for number, text in enumerate(texts(count, seed))]


def _long(count: int, seed: int, words: int = 400) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(STORY.split(), words)) for _ in range(count)]


# -- unknown tokens ------------------------------------------------------------------------------------------------------------------------


def test_one_unknown_token_does_not_hide_a_copy(world: World, tmp_path: Path) -> None:
    train, test = _rows(200, 2, f"{MORE} ℵ"), _rows(40, 3, MORE)
    test[:10] = train[:10]
    values = _store(world, tmp_path / "s", {"train": train, "test": test}, **{"tokenizer.path": str(world.wordpiece)})
    check = world.caught("copies with an unknown token each", values, "FT205", "FT209", words="(10)", stages=STAGE)
    assert check.evidence["with_unknown_tokens"] == 0


def test_a_split_whose_texts_nobody_could_compare_does_not_pass(world: World, tmp_path: Path) -> None:
    train, test = _rows(200, 2), [("order the ∀∁", "ab"[row % 2]) for row in range(30)]
    values = _store(
        world, tmp_path / "s", {"train": train, "test": test, "validation": _rows(40, 4)}, **{"tokenizer.path": str(world.wordpiece)}
    )
    checks = world.verify(values, stages=STAGE, select=CHECKS)
    assert checks["FT205"].status == "warn"
    assert "30 rows of test have an unknown token and were not compared" in checks["FT205"].summary
    assert checks["FT206"].status == "skipped"
    assert "30 of 30 rows of test have an unknown token" in checks["FT206"].summary


def test_where_no_text_can_be_spelled_the_check_is_skipped(world: World, tmp_path: Path) -> None:
    train, test = ([(f"the {'∀∁ ' * 3} {number}", "ab"[number % 2]) for number in range(first, first + 60)] for first in (0, 60))
    options = {"tokenizer.path": str(world.wordpiece)}
    checks = world.verify(_store(world, tmp_path / "s", {"train": train, "test": test}, **options), stages=STAGE, select=CHECKS)
    assert (checks["FT205"].status, checks["FT206"].status) == ("skipped", "skipped")
    assert "60 rows of test have an unknown token and were not compared" in checks["FT205"].summary


# -- ends, case and short texts ------------------------------------------------------------------------------------------------------------


def test_a_copy_with_a_full_stop_or_in_capitals_of_any_alphabet_is_found(world: World, tmp_path: Path) -> None:
    train = [(f"{number} где моя карта é", "ab"[number % 2]) for number in range(100)]
    ends = [(f"{text} . ", label) for text, label in train[:40]]
    capitals = [(text.upper(), label) for text, label in train[:40]]
    for name, test in {"ends": ends, "capitals": capitals}.items():
        check = world.verify(_store(world, tmp_path / name, {"train": train, "test": test}), stages=STAGE, select=CHECKS)["FT205"]
        assert (check.status, check.evidence["rows"]) == ("fail", 40), name


def test_letters_that_tokens_divide_have_one_case_too() -> None:
    letters = "éßЖжΣςϐԱա"
    pieces = [b"", *(bytes([byte]) for byte in range(256)), *(letter.encode() for letter in letters), b" a\xd0", b"\x96b."]
    spelling = TokenText(pieces)

    def number(*ids: int, loose: bool = True) -> int:
        return int(spelling.hashes(np.array(ids, np.int32), np.array([len(ids)]))[loose][0])

    for place, letter in enumerate(letters, 257):
        folded = letter.casefold().encode()
        divided = [byte + 1 for byte in letter.encode()]
        assert number(98, place, 99) == number(98, *(byte + 1 for byte in folded), 99)
        assert len(folded) > 2 or number(98, place, 99) == number(98, *divided, 99), letter
    joined = [byte + 1 for byte in " aжb".encode()]
    for loose in (False, True):
        assert number(266, 267, loose=loose) == number(*joined, *([47] * (not loose)), loose=loose)
    assert number(266, 1 + ord("b")) != number(*joined)
    pair = spelling.hashes(np.array([266, 267, 1 + ord("c")], np.int32), np.array([1, 2]))[1]  # a row ends between the bytes
    assert pair[1] == number(267, 1 + ord("c"))


def test_texts_that_differ_in_their_last_sign_alone_contradict_nothing(world: World, tmp_path: Path) -> None:
    """A question and a statement, as in 3i4k, and smileys."""
    train = [(f"{number} text{'?.'[number % 2]}", "ab"[number % 2]) for number in range(100)]
    train += [(f"{number} text{'?.'[number % 2 - 1]}", "ba"[number % 2]) for number in range(100)]
    assert world.quiet("ends that are the label", _store(world, tmp_path / "s", {"train": train}), stages=STAGE)["FT207"].status == "pass"
    train = [(f"{number} text :)", "a") for number in range(50)] + [("another text", "b")] * 3
    values = _store(world, tmp_path / "t", {"train": train, "test": [(f"{number} text :(", "b") for number in range(40)]})
    assert world.verify(values, stages=STAGE)["FT205"].evidence["rows"] == 0


def test_texts_that_contradict_each_other_but_for_their_ends_warn(world: World, tmp_path: Path) -> None:
    """Half of them cut to the same tokens, so that a longer --max-length was advised."""
    labels = np.random.default_rng(1).choice(list("abcd"), 200).tolist()
    rows = [(f"{text}?", "abcd"[number % 4]) for number, text in enumerate(texts(200, 2))]
    train = rows + [(f"{text[:-1]} !!", label) for (text, _), label in zip(rows, labels, strict=True)]
    values = _store(world, tmp_path / "s", {"train": train}, **{"packing.max_length": 64})
    check = world.caught(
        "twins with other ends and labels", values, "FT207", "FT204", status="warn", words="only in their final punctuation", stages=STAGE
    )
    assert check.fix.startswith("Keep one label per text")
    assert 240 < check.evidence["rows_nearly_in_conflict"] <= 400
    assert len(set(check.evidence["labels"])) > 1


def test_a_text_without_its_end_is_the_text_however_it_was_cut() -> None:
    spelling = TokenText([b"", b"ab", b"a", b"b", b" ", b".", b" .", b"b.", b"b .", b"?!", b" a", b":)"])

    def number(*ids: int) -> int:
        return int(spelling.hashes(np.array(ids, np.int32), np.array([len(ids)]))[1][0])

    assert number(1) == number(1, 5) == number(2, 7) == number(2, 8, 4) == number(10, 3, 6, 9, 0) == number(1, 5, 5, 4, 6)
    assert number(1, 10) == number(1, 10, 6) != number(1)
    assert len({number(5), number(1), number(1, 11), number(5, 1), number(0)}) == 5  # an end alone is a text
    both = spelling.hashes(np.array([1, 5, 5, 1], np.int32), np.array([2, 0, 2]))[1]
    assert [int(found) for found in both[[0, 2]]] == [number(1), number(5, 1)]


def test_short_texts_that_were_not_compared_are_told(world: World, tmp_path: Path) -> None:
    train, test = ([(f"{number} card", "ab"[number % 2]) for number in range(first, first + 60)] for first in (0, 60))
    check = world.verify(_store(world, tmp_path / "s", {"train": train, "test": test}), stages=STAGE)["FT206"]
    assert check.status == "info"
    assert "only 0 of 60 rows of test are long enough to be compared" in check.summary


# -- test and validation -------------------------------------------------------------------------------------------------------------------


def test_test_rows_that_stand_in_validation_warn(world: World, tmp_path: Path) -> None:
    train, test = _rows(200, 2), _rows(40, 3)
    values = _store(world, tmp_path / "s", {"train": train, "validation": test, "test": test})
    check = world.caught("test is validation", values, "FT205", status="warn", words="(40) are in validation", stages=STAGE)
    assert "best model" in check.fix
    values = _store(world, tmp_path / "t", {"train": [*train, *test], "validation": test, "test": test})
    assert "are in validation" in world.caught("both in train, too", values, "FT205", words="in train as well", stages=STAGE).summary


# -- texts in parts ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"packing.strategy": "concat"}, {"packing.truncation_strategy": "split"}])
def test_long_texts_that_were_cut_elsewhere_are_found(world: World, tmp_path: Path, options: dict[str, Any]) -> None:
    """The parts of the same texts begin and end elsewhere: whole, none is equal."""
    train = _long(80, 1)
    given = {"dataset.label_column": None, "packing.max_length": 128, **options}
    for name, held, status in (
        ("leak", [f"it is {text}" for text in train[40:60]], "fail"),
        ("sound", _long(20, 2), "pass"),
    ):
        lines = {"train": [(text, "") for text in train], "validation": [(text, "") for text in held[::-1]]}
        check = world.verify(_store(world, tmp_path / name, lines, **given), stages=STAGE)["FT205"]
        assert check.status == status, check
        assert check.evidence["shares"]["validation"] > 0.8 or status == "pass"


def test_passages_of_train_texts_are_found_where_texts_are_continued(world: World, tmp_path: Path) -> None:
    train = _long(60, 1)
    held = [" ".join(text.split()[100:160]) for text in train[:20]] + _long(20, 2, 60)
    lines = {"train": [(text, "") for text in train], "validation": [(text, "") for text in held]}
    values = _store(world, tmp_path / "s", lines, **{"dataset.label_column": None, "packing.max_length": 4096})
    check = world.caught("passages of train texts", values, "FT206", status="warn", words="20 of them a passage", stages=STAGE)
    assert check.evidence["validation"]["rows"] == 20


def test_windows_are_the_same_wherever_they_stand() -> None:
    random = np.random.default_rng(0)
    ids = random.integers(0, 5000, 700_000).astype(np.int32)
    moved = np.concatenate([random.integers(0, 5000, 123_457).astype(np.int32), ids])
    one = windows(Ragged(ids, to_offsets(np.full(3500, 200))), 32, 1)
    other = windows(Ragged(moved, np.array([0, 123_457, len(moved)])), 32, 1)
    assert len(one.numbers) == 3500 * 169
    assert len(np.unique(one.numbers)) == len(one.numbers)
    assert np.isin(one.numbers, other.numbers).all()
    assert (one.rows == np.repeat(np.arange(3500), 169)).all()
    few = windows(Ragged(ids, to_offsets(np.full(3500, 200))), 32, 16)
    assert 0.9 < 16 * len(few.numbers) / len(one.numbers) < 1.1
    assert np.isin(few.numbers, other.numbers).all()


def test_a_text_is_within_others_when_enough_of_its_windows_are() -> None:
    random = np.random.default_rng(1)
    base, new, form = random.integers(5, 5000, (3, 1000)).tolist()
    held = rows_of(
        [base[100:300], [*base[100:200], *new[:20]], [*base[100:150], *new[:150]], new[:200], base[:10], [], [7] * 100]
    ).input_ids
    assert within(held, known_windows(rows_of([base, [], base]).input_ids, 32, 1), 0.5).tolist() == [True, True, *[False] * 5]
    assert not within(held, known_windows(rows_of([base] * 3).input_ids, 32, 1), 0.5).any(), "what many texts have tells none from others"
    forms = known_windows(rows_of([[*form[:90], *base[100:200]], form[:90], [*form[:90], *new[500:]]]).input_ids, 32, 1)
    filled = rows_of([[*form[:90], *base[100:200]], [*form[:90], *new[:80]], form[:90]]).input_ids
    assert within(filled, forms, 0.5).tolist() == [True, False, False]
    assert not forms.common[np.isin(forms.numbers, windows(rows_of([base]).input_ids, 32, 1).numbers)].any()
    repeated = known_windows(rows_of([[*base[:40], *base[:40], *base[:40], *base[:40]]]).input_ids, 32, 1)
    assert not repeated.common.any(), "however often one text says it"
    spoiled = np.array(base)
    spoiled[::20] = 3
    assert not len(windows(rows_of([spoiled.tolist()]).input_ids, 32, 1, never=3).numbers)
    assert not within(held, known_windows(rows_of([[]]).input_ids, 32, 1), 0.5).any()
    assert not len(within(rows_of([]).input_ids, forms, 0.5))


# -- copies, contradictions and prompts ----------------------------------------------------------------------------------------------------


def test_two_contradicting_rows_of_a_few_warn(world: World, tmp_path: Path) -> None:
    train = [("the same text", "a"), ("the same text", "b"), *_rows(4, 2)]
    check = world.verify(_store(world, tmp_path / "s", {"train": train}), stages=STAGE)["FT207"]
    assert (check.status, check.evidence["rows_in_conflict"]) == ("warn", 2)


def test_copies_warn_whatever_is_learned_of_them(world: World, tmp_path: Path) -> None:
    values = _store(world, tmp_path / "s", {"train": _rows(30, 2) * 4}, **{"dataset.label_column": None})
    world.caught("every text four times, pretrain", values, "FT207", status="warn", words="75.00%", stages=STAGE)


def _asked(first: int, last: int, answer: str) -> list[dict[str, Any]]:
    return [{"prompt": f"{text} {MORE} ", "completion": f"{answer} {number}"} for number, text in enumerate(texts(last, 2)[first:], first)]


@pytest.mark.parametrize("packing", ["none", "bfd"])
def test_prompts_of_train_with_another_answer_are_told(world: World, tmp_path: Path, packing: str) -> None:
    train, sound = _asked(0, 200, "refund"), _asked(200, 240, "card")
    for name, held, status in (
        ("many", _asked(0, 20, "card") + sound, "warn"),
        ("one", _asked(0, 1, "card") + sound, "info"),
        ("none", sound, "pass"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        options = {"packing.strategy": packing, "packing.max_length": 256, "train.mode": "sft"}
        values = _prepared(world, folder, {"train": train, "validation": held}, **options)
        check = world.verify({**values, "train.mode": "sft"}, stages=STAGE)["FT205"]
        assert check.status == status, check
        assert ("have a prompt that is in train with another answer" in check.summary) == (status != "pass")


def test_an_instruction_that_all_rows_share_is_no_leak(world: World, tmp_path: Path) -> None:
    lines = {
        split: [{"prompt": f"{MORE}: ", "completion": text} for text in texts(80, seed)]
        for split, seed in (("train", 2), ("validation", 3))
    }
    values = _prepared(world, tmp_path, lines, **{"train.mode": "sft"})
    assert world.verify({**values, "train.mode": "sft"}, stages=STAGE)["FT205"].status == "pass"
