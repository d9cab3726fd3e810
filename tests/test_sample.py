"""The sample corpus: what it promises about rows, lengths, labels and files, and that it can be learned."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcli.core.corpus.grammar import AREAS
from ftcli.core.corpus.sample import LABELS, Sampler, generate, label_names, write_sample
from ftcli.errors import PublishError, UsageError

Row = tuple[str, str]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(generate(10_000, 0))


def hangul_share(text: str) -> float:
    return sum("가" <= letter <= "힣" for letter in text) / len(text)


# -- rows --------------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**128 - 1), first=st.integers(0, 10**9), labels=st.integers(2, LABELS))
@settings(max_examples=50, deadline=None)
def test_a_row_depends_on_seed_and_number_only(seed: int, first: int, labels: int) -> None:
    alone = [Sampler(seed, labels).row(number) for number in (first + 2, first, first + 1)]
    assert list(generate(3, seed, labels, first=first)) == [alone[1], alone[2], alone[0]]
    assert all(len(text) <= 620 and label in label_names(labels) for text, label in alone)


def test_the_corpus_is_the_same_in_every_process() -> None:
    code = "import hashlib; from ftcli.core.corpus.sample import generate; print(hashlib.sha256(repr(list(generate(300, 7))).encode()).hexdigest())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {hashlib.sha256(repr(list(generate(300, 7))).encode()).hexdigest()}


def test_another_seed_gives_other_texts_in_another_order() -> None:
    one, other = list(generate(500, 0)), list(generate(500, 1))
    assert not {text for text, _ in one} & {text for text, _ in other}
    assert [label for _, label in one] != [label for _, label in other]


def test_lengths_are_those_of_the_first_incident(rows: list[Row]) -> None:
    lengths = [len(text) for text, _ in rows]
    assert 520 <= fmean(lengths) <= 550
    assert max(lengths) <= 620
    assert min(lengths) >= 400
    assert 15 <= pstdev(lengths) <= 45


def test_korean_and_english_rows_are_equally_long(rows: list[Row]) -> None:
    korean = [len(text) for text, _ in rows if hangul_share(text) > 0.3]
    english = [len(text) for text, _ in rows if hangul_share(text) == 0]
    assert abs(fmean(korean) - fmean(english)) < 20


def test_about_half_of_the_rows_are_korean_half_english_and_some_mixed(rows: list[Row]) -> None:
    kinds = Counter("en" if not share else "ko" if share > 0.35 else "mixed" for share in (hangul_share(text) for text, _ in rows))
    assert 0.40 <= kinds["en"] / len(rows) <= 0.50
    assert 0.40 <= kinds["ko"] / len(rows) <= 0.50
    assert 0.05 <= kinds["mixed"] / len(rows) <= 0.20


def test_no_two_rows_are_alike_and_no_two_share_a_ticket(rows: list[Row]) -> None:
    assert len({text for text, _ in rows}) == len(rows)
    assert len({re.match(r"\[\w+-(\d{9})\]", text).group(1) for text, _ in rows}) == len(rows)  # type: ignore[union-attr]


def test_no_slot_is_left_open_and_particles_follow_their_nouns(rows: list[Row]) -> None:
    everything = "\n".join(text for text, _ in rows)
    assert not re.search(r"[{}]", everything)
    assert "청구서를" in everything
    assert "택배가" in everything
    assert "급여 이체 내역이" in everything
    assert not re.search(r"청구서을|택배이|내역가|보험 증권를|출입증는", everything)


def test_a_row_says_its_own_label_except_for_the_noisy_ones() -> None:
    areas = {area.name: [*area.english, *area.korean] for area in AREAS}
    silent = sum(not any(noun in text for noun in areas[label.split("/")[0]]) for text, label in generate(20_000, 4))
    assert 0.008 <= silent / 20_000 <= 0.02  # 1.5 % are written for another label; some of those share or name the area


# -- labels ------------------------------------------------------------------------------------------------------------


def test_there_are_280_different_labels() -> None:
    names = label_names()
    assert len(names) == len(set(names)) == 280
    assert all(re.fullmatch(r"[a-z]+/[a-z]+", name) for name in names)


@given(seed=st.integers(0, 99), first=st.integers(0, 10**6), labels=st.integers(2, LABELS))
@settings(max_examples=25, deadline=None)
def test_any_neighbours_as_many_as_labels_hold_every_label_once(seed: int, first: int, labels: int) -> None:
    assert sorted(label for _, label in generate(labels, seed, labels, first=first)) == sorted(label_names(labels))


@pytest.mark.parametrize("labels", [-1, 0, 1, 281])
def test_a_label_count_that_cannot_be_is_refused(labels: int) -> None:
    with pytest.raises(UsageError, match=str(labels)) as caught:
        generate(1, 0, labels)
    assert "2 to 280" in caught.value.hint


@pytest.mark.parametrize("seed", [-1, 2**128])
def test_a_seed_that_cannot_be_is_refused(seed: int) -> None:
    with pytest.raises(UsageError, match="seed"):
        generate(1, seed)


# -- learning ----------------------------------------------------------------------------------------------------------


def naive_bayes(counts: np.ndarray, labels: Sequence[str], train: int) -> list[str]:
    """Predictions for the rows after the first `train`, multinomial with additive smoothing."""
    names, numbers = np.unique(labels[:train], return_inverse=True)
    seen = np.zeros((len(names), counts.shape[1]))
    np.add.at(seen, numbers, counts[:train])
    weights = np.log((seen + 0.3) / (seen + 0.3).sum(axis=1, keepdims=True))
    return [str(names[best]) for best in np.argmax(counts[train:] @ weights.T, axis=1)]


def held_out_accuracy(rows: Sequence[Row], labels: Sequence[str], train: int) -> float:
    """Both halves of the label found apart by counting words."""
    words = [re.findall(r"[A-Za-z]+|[가-힣]+", text) for text, _ in rows]
    known = Counter(itertools.chain.from_iterable(words[:train]))
    column = {word: number for number, word in enumerate(word for word, count in known.items() if count >= 5)}
    counts = np.zeros((len(rows), len(column)), np.float32)
    for number, row in enumerate(words):
        for word in row:
            if word in column:
                counts[number, column[word]] += 1
    halves = [naive_bayes(counts, [label.split("/")[half] for label in labels], train) for half in (0, 1)]
    found = [f"{area}/{intent}" for area, intent in zip(*halves, strict=True)]
    return fmean(one == other for one, other in zip(found, labels[train:], strict=True))


def test_counting_words_finds_the_label_of_most_held_out_rows_but_not_of_all() -> None:
    rows = list(generate(6_300, 3))
    assert 0.85 <= held_out_accuracy(rows, [label for _, label in rows], 6_000) < 0.995


def test_with_shuffled_labels_nothing_is_learned() -> None:
    rows = list(generate(6_300, 3))
    shuffled = [str(label) for label in np.random.default_rng(0).permutation([label for _, label in rows])]
    assert held_out_accuracy(rows, shuffled, 6_000) < 0.03  # chance is 1 in 280


# -- memory ------------------------------------------------------------------------------------------------------------


def peak_bytes(keep: bool) -> int:
    tracemalloc.start()
    try:
        kept = [row for row in generate(5_000, 0) if keep]
        assert len(kept) == 5_000 * keep
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_rows_are_streamed() -> None:
    next(generate(1, 0))
    assert peak_bytes(keep=False) < 200_000
    assert peak_bytes(keep=True) > 2_000_000


# -- files -------------------------------------------------------------------------------------------------------------


def read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8") as file:
        return [(row["text"], row["label"]) for row in map(json.loads, file)]


def test_the_splits_hold_the_corpus_in_order_and_every_label_each(tmp_path: Path) -> None:
    seen: list[int] = []
    metrics = write_sample(tmp_path / "out", 20 * LABELS, 5, on_progress=seen.append)
    splits = {split: read(Path(path)) for split, path in metrics["files"].items()}
    assert list(itertools.chain(*splits.values())) == list(generate(20 * LABELS, 5))
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 5040, "validation": 280, "test": 280}
    assert all({label for _, label in rows} == set(label_names()) for rows in splits.values())
    assert sum(seen) == metrics["rows_written"] == 5600
    assert metrics["train_rows"] == 5040
    assert metrics["mean_characters"] == pytest.approx(fmean(len(text) for rows in splits.values() for text, _ in rows))
    assert metrics["max_characters"] <= 620
    assert metrics["bytes_written"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert metrics["rows_per_second"] > 0


def test_korean_is_written_as_it_is(tmp_path: Path) -> None:
    write_sample(tmp_path, 40, 0)
    raw = (tmp_path / "train.jsonl").read_text("utf-8")
    assert re.search("[가-힣]", raw)
    assert "\\u" not in raw


def test_an_empty_split_gets_no_file(tmp_path: Path) -> None:
    metrics = write_sample(tmp_path, 10, 0, labels=10)
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]
    assert (metrics["train_rows"], metrics["validation_rows"], metrics["test_rows"]) == (10, 0, 0)


def test_files_that_are_there_are_kept_unless_told_otherwise(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl", "notes.txt"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=r"train\.jsonl already exists"):
        write_sample(tmp_path, 10, 0)
    assert (tmp_path / "train.jsonl").read_text() == "mine"
    write_sample(tmp_path, 10, 0, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "train.jsonl"]
    assert len(read(tmp_path / "train.jsonl")) == 10


def test_no_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        write_sample(tmp_path, 0, 0)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_an_interrupted_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Sampler.row

    def interrupted(self: Sampler, number: int) -> Row:
        if number == 95:
            assert list(tmp_path.iterdir())
            raise KeyboardInterrupt
        return row(self, number)

    monkeypatch.setattr(Sampler, "row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_sample(tmp_path, 100, 0)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PublishError, match="file/out"):
        write_sample(tmp_path / "file" / "out", 10, 0)
