"""Labels become ids: one map for all splits, the same whatever the order, and nothing is guessed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value, load_from_disk
from hypothesis import given
from hypothesis import strategies as st

from ftcli.core.prepare.labels import by_name, number
from ftcli.errors import DataError, UsageError
from tokenizing import corpus, prepare, rows, small_tokenizers, without_plots, write

kinds = small_tokenizers
no_html = without_plots

pytestmark = pytest.mark.usefixtures("no_html")


@pytest.fixture
def labelled(kinds, tmp_path: Path):
    """Prepare as many texts as there are labels; gives (labels of the rows, names, notes)."""

    def make(labels, **values):
        source = write(tmp_path / "data.jsonl", corpus(len(labels)), labels)
        report = prepare(kinds["bpe"], source, tmp_path / "out", dataset__label_column="label", **values)
        names = load_from_disk(str(tmp_path / "out"))["train"].features["labels"].names
        return [row["labels"] for row in rows(tmp_path / "out")], names, report.notes

    return make


def test_strings_are_numbered_in_sorted_order(labelled):
    assert labelled(["나", "b", "가", "b"])[:2] == ([2, 0, 1, 0], ["b", "가", "나"])


def test_integers_from_0_keep_their_value_and_a_gap_is_a_class_without_rows(labelled):
    found, names, notes = labelled([0, 3, 1, 3])
    assert (found, names) == ([0, 3, 1, 3], ["0", "1", "2", "3"])
    assert "1 of 4 labels have no row: 2" in notes


def test_integers_from_1_to_10_are_numbered_from_0_and_the_report_says_so(labelled):
    found, names, notes = labelled([10, *range(1, 11)])
    assert found == [9, *range(10)]
    assert names == [str(label) for label in range(1, 11)]
    assert "the 10 labels 1 to 10 get the ids 0 to 9 (1 is 0)" in notes


def test_integers_far_apart_are_numbered(labelled):
    assert labelled([-5, 4_000_000_000, 0])[:2] == ([0, 2, 1], ["-5", "0", "4000000000"])


def test_names_that_were_given_decide_the_ids(labelled):
    found, names, notes = labelled(["bad", "good", "bad"], dataset__label_names=["good", "bad", "odd"])
    assert (found, names) == ([1, 0, 1], ["good", "bad", "odd"])
    assert "1 of 3 labels have no row: odd" in notes


def test_names_for_a_column_of_integers_are_those_of_the_ids(labelled):
    assert labelled([1, 0, 1], dataset__label_names=["bad", "good"])[:2] == ([1, 0, 1], ["bad", "good"])


def test_integer_names_for_a_column_of_integers_are_its_values(labelled):
    assert labelled([5, -1, 5], dataset__label_names=["5", "-1"])[:2] == ([0, 1, 0], ["5", "-1"])


@pytest.mark.parametrize("kind", [int, str])
def test_values_that_are_named_are_classes_and_those_of_one_name_one_class(labelled, kind):
    names = ["1=bad", "2=bad", "4=good", "3=fair"]
    with pytest.raises(DataError, match=r"the label '?5'? is not among the label names"):
        labelled([*map(kind, (4, 5))], dataset__label_names=names)
    assert labelled([*map(kind, (4, 1, 2, 3))], dataset__label_names=names)[:2] == ([1, 0, 0, 2], ["bad", "good", "fair"])


def test_values_that_are_named_may_hold_together(kinds, tmp_path):
    source = write(tmp_path / "data.jsonl", corpus(3), [[1, 2], [2, 3], []])
    prepare(kinds["bpe"], source, tmp_path / "out", dataset__label_column="label", dataset__label_names=["1=bad", "2=bad", "3=good"])
    assert [row["labels"] for row in rows(tmp_path / "out")] == [[1, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["0=bad", "0=good"], "names a value twice"),
        (["0=bad", "1=bad"], "names 1 label"),
        (["no=bad", "1=good"], "the labels are whole numbers, and 'no' is none"),
    ],
)
def test_names_of_values_that_cannot_be_are_refused(labelled, names, words):
    with pytest.raises(UsageError, match=words) as refused:
        labelled([0, 1], dataset__label_names=names)
    assert "=bad," in refused.value.hint or "0=negative" in refused.value.hint


@pytest.mark.parametrize(("labels", "unknown"), [(["a", "c", "b"], "'c'"), ([0, 1, 2], "2")])
def test_a_label_that_is_not_among_the_names_is_refused_with_file_and_label(labels, unknown, labelled):
    with pytest.raises(DataError, match=rf"data\.jsonl:[23] \(byte [0-9]+\): the label {unknown} is not among the label names") as refused:
        labelled(labels, dataset__label_names=["a", "b"])
    assert "--label-names" in refused.value.hint


def test_numbers_of_a_table_are_told_to_be_text_where_words_are_named(labelled):
    with pytest.raises(DataError, match="the label '0' is not among the label names") as refused:
        labelled(["0", "1", "0"], dataset__label_names=["bad", "good"])
    assert "text, also where they look like numbers: --label-names 0=bad,1=good names them" in refused.value.hint
    assert labelled(["0", "1", "0"], dataset__label_names=["0", "1"])[:2] == ([0, 1, 0], ["0", "1"])


def test_one_label_alone_is_refused(labelled):
    with pytest.raises(DataError, match=r"'label' holds 1 distinct label\(s\): 'same'"):
        labelled(["same", "same"])


@pytest.mark.parametrize(
    ("labels", "values"),
    [
        (["[8]", "[12, 15, 20]", "[]"], {}),
        (["['x', 'y']", "[\"it's\", 'y']"], {}),
        (["['x' 'y']", "['x']"], {}),
        (["(3,)", "(3, 10)"], {}),
        (["{'a', 'b'}", "", "{'b'}"], {}),
        (["[ 3 10]", "[12]"], {}),
        (["[12, 15]", "[8]"], {"dataset__label_separator": ","}),
        (["['x', 'y']", "['z', 'x']"], {"dataset__label_separator": ", "}),
    ],
)
def test_lists_written_as_text_are_no_labels(labels, values, labelled):
    """As pandas writes a column of lists into a .csv: every list became a class without a word."""
    with pytest.raises(DataError, match="the column 'label' holds lists written as text") as refused:
        labelled(labels, **values)
    assert "--label-separator '|'" in refused.value.hint


@pytest.mark.parametrize("labels", [["[neg]", "[pos]"], ["[1]", "two"], ["(a)", "(b)"], ["[x, y]", "[z]"]])
def test_labels_in_brackets_are_labels(labels, labelled):
    assert labelled(labels)[1] == sorted(labels)


def test_lists_written_as_text_are_labels_where_they_are_named(labelled):
    assert labelled(["[1]", "[2]"], dataset__label_names=["[2]", "[1]"])[:2] == ([1, 0], ["[2]", "[1]"])


@pytest.mark.parametrize(("names", "word"), [(["a"], "names 1 label"), (["a", "b", "a"], "twice"), (["1", "01"], "twice")])
def test_names_that_cannot_be_are_refused(names, word, labelled):
    with pytest.raises(UsageError, match=word):
        labelled([1, 2], dataset__label_names=names)


def test_the_map_is_made_over_all_splits_and_shards(kinds, tmp_path):
    train = write(tmp_path / "train.jsonl", corpus(40), ["m", "z"] * 20)
    held = write(tmp_path / "test.jsonl", corpus(3, 40), "abz")
    prepare(kinds["bpe"], [train, held], tmp_path / "out", dataset__label_column="label", dataset__shard_bytes=500)
    loaded = load_from_disk(str(tmp_path / "out"))
    assert loaded["train"].features["labels"].names == ["a", "b", "m", "z"]
    assert loaded["test"]["labels"] == [0, 1, 3]


@given(st.one_of(st.sets(st.text(), min_size=1), st.sets(st.integers(-3, 300), min_size=1)))
def test_every_label_has_one_id_and_the_name_of_its_id(labels):
    names, ids = number(labels)
    assert labels <= ids.keys()
    assert sorted(ids.values()) == list(range(len(names)))
    assert all(names[place] == str(label) for label, place in ids.items())
    assert number(set(labels)) == (names, ids)


@given(st.sets(st.text(min_size=1), min_size=2).map(list))
def test_given_names_keep_their_order(names):
    assert list(by_name(names, integers=False)) == names


def hf(labels, names, *, several=False):
    """A set of `datasets` whose labels have names."""
    feature = ClassLabel(names=names)
    features = Features({"text": Value("string"), "label": List(feature) if several else feature})
    return Dataset.from_dict({"text": corpus(len(labels)), "label": labels}, features=features)


@pytest.mark.parametrize("kind", ["save_to_disk", "parquet"])
@pytest.mark.parametrize("names", [["neg", "pos", "odd"], ["3", "1", "2"]])
def test_the_names_of_a_class_label_are_those_of_the_classes(kind, names, kinds, tmp_path):
    """They were called 0, 1, 2."""
    source, data = tmp_path / "in", hf([2, 0, 2], names)
    source.mkdir()
    _ = data.save_to_disk(source) if kind == "save_to_disk" else data.to_parquet(source / "a.parquet")
    report = prepare(kinds["bpe"], source, tmp_path / "out", dataset__label_column="label")
    loaded = load_from_disk(str(tmp_path / "out"))["train"]
    assert (loaded.features["labels"].names, loaded["labels"]) == (names, [2, 0, 2])
    assert any(note.startswith("labels 0 to 2 have the names given in ") and ", ".join(names) in note for note in report.notes)
    assert f"1 of 3 labels have no row: {names[1]}" in report.notes


def test_names_that_were_given_win_over_those_of_a_class_label(kinds, tmp_path):
    hf([1, 0], ["neg", "pos"]).save_to_disk(tmp_path / "in")
    prepare(kinds["bpe"], tmp_path / "in", tmp_path / "out", dataset__label_column="label", dataset__label_names=["a", "b"])
    assert load_from_disk(str(tmp_path / "out"))["train"].features["labels"].names == ["a", "b"]


def test_lists_of_a_class_label_have_its_names(kinds, tmp_path):
    hf([[0], [0, 2], []], ["a", "b", "c"], several=True).save_to_disk(tmp_path / "in")
    report = prepare(kinds["bpe"], tmp_path / "in", tmp_path / "out", dataset__label_column="label")
    assert report.details["labels"] == {"names": ["a", "b", "c"], "counts": [2, 0, 1]}
    assert load_from_disk(str(tmp_path / "out"))["train"]["labels"] == [[1, 0, 0], [1, 0, 1], [0, 0, 0]]


def test_a_split_without_labels_is_said_so_and_does_not_shift_the_others(kinds, tmp_path):
    """As GLUE has its test split: -1 became the label 0, and the 0 and 1 of train became 1 and 2."""
    parts = {"train": hf([0, 1], ["neg", "pos"]), "test": hf([-1, -1], ["neg", "pos"])}
    DatasetDict(parts).save_to_disk(tmp_path / "in")
    with pytest.raises(DataError, match="the label -1 is not among the label names") as refused:
        prepare(kinds["bpe"], tmp_path / "in", tmp_path / "out", dataset__label_column="label")
    assert f"(train={tmp_path / 'in'} validation={tmp_path / 'in'})" in refused.value.hint
    prepare(kinds["bpe"], [f"train={tmp_path / 'in'}"], tmp_path / "out", dataset__label_column="label")
    assert load_from_disk(str(tmp_path / "out"))["train"]["labels"] == [0, 1]


def test_two_meanings_of_a_number_are_refused(kinds, tmp_path):
    hf([0, 1], ["neg", "pos"]).to_parquet(tmp_path / "train.parquet")
    hf([0, 1], ["pos", "neg"]).to_parquet(tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"label 0 of the column 'label' means '(neg|pos)' in .* and '(neg|pos)' in"):
        prepare(kinds["bpe"], tmp_path / "*.parquet", tmp_path / "out", dataset__label_column="label")


def test_names_that_differ_by_spaces_only_are_noted(labelled):
    (note,) = [note for note in labelled(["1", "2", "2  "])[2] if "differ" in note]
    assert note.startswith("the labels '2' and '2  ' differ only in spaces, but are two classes: ")


@pytest.mark.skipif(shutil.which("jq") is None, reason="the note has a command of jq")
def test_the_command_for_labels_that_differ_by_spaces_makes_one_of_them(labelled, kinds, tmp_path):
    (note,) = [note for note in labelled(["1", "2 a", " 2  a "])[2] if "differ" in note]
    command = note[note.index("jq -c") : note.index("NEW.jsonl") + 9].replace("OLD", "data.jsonl")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    prepare(kinds["bpe"], tmp_path / "NEW.jsonl", tmp_path / "new", dataset__label_column="label")
    assert load_from_disk(str(tmp_path / "new"))["train"].features["labels"].names == ["1", "2 a"]


def test_names_that_differ_by_case_only_are_noted(labelled, kinds, tmp_path):
    """KoBEST's BoolQ has TRUE and FALSE in train, True and False in test: half of the rows were of classes that nobody learned."""
    (note,) = [note for note in labelled(["False", "TRUE", "True"])[2] if "differ" in note]
    words = "the labels 'TRUE' and 'True' differ only in case, but are two classes (to merge them: --label-names False=False,TRUE=TRUE,True=TRUE)"
    assert note == words
    names = words.rpartition(" ")[2].rstrip(")").split(",")
    prepare(kinds["bpe"], tmp_path / "data.jsonl", tmp_path / "new", dataset__label_column="label", dataset__label_names=names)
    assert load_from_disk(str(tmp_path / "new"))["train"].features["labels"].names == ["False", "TRUE"]


def test_labels_that_no_train_row_has_are_noted_before_the_work(kinds, tmp_path):
    write(tmp_path / "a.jsonl", [f"row {number}" for number in range(8)], "abababab")
    write(tmp_path / "b.jsonl", [f"other {number}" for number in range(8)], "bcdbcdbc")
    report = prepare(
        kinds["bpe"],
        [f"train={tmp_path / 'a.jsonl'}", f"validation={tmp_path / 'b.jsonl'}"],
        tmp_path / "out",
        dataset__label_column="label",
    )
    assert "2 of 3 labels of validation have no train row and will not be learned: 'c', 'd'" in report.notes


def test_an_id_as_a_label_is_noted(kinds, tmp_path, monkeypatch):
    monkeypatch.setattr("ftcli.core.prepare.labels.MANY", 10)
    users = [f"user-{number}" for number in range(11)]
    write(tmp_path / "a.jsonl", users, users)
    report = prepare(kinds["bpe"], tmp_path / "a.jsonl", tmp_path / "out", dataset__label_column="label")
    assert any("has 11 distinct labels" in note and "an id or free text" in note for note in report.notes)
    assert load_from_disk(str(tmp_path / "out"))["train"]["labels"] == [*map(sorted(users).index, users)]


def test_names_with_nothing_odd_are_not_noted(labelled):
    assert not any("differ only in spaces" in note or "digits" in note or "decimals" in note for note in labelled(["0", "1", "2"])[2])


def test_digits_in_the_order_of_text_are_noted(labelled):
    _, names, notes = labelled([str(number) for number in range(12)])
    assert names[:4] == ["0", "1", "10", "11"]
    assert any("the 12 labels are numbers sorted as text (10 has the id 2)" in note for note in notes)


def test_numbers_with_decimals_as_classes_are_noted(labelled):
    notes = labelled(["0.5", "1.25", "3"])[2]
    assert any("3 labels are numbers with decimals (0.5 to 3), each a class of its own: --mode regress" in note for note in notes)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (
            ["1", "-1", "1.0", "-1.0", "0.0"],
            ["'-1' and '-1.0' are one number and two classes: --label-names -1=-1,-1.0=-1,0.0=0.0,1=1,1.0=1 makes them one"],
        ),
        (["1", "x", "1.0"], ["'1' and '1.0' are one number and two classes"]),
        (["1", "01", "0.5"], []),
    ],
)
def test_one_number_written_in_two_ways_is_noted(labelled, labels, words):
    notes = labelled(labels)[2]
    assert [note for note in notes if "one number" in note] == [f"the labels {said}" for said in words]


def test_a_file_for_label_names_is_told_how_names_are_given(tmp_path):
    (tmp_path / "label.txt").write_text("a\nb\n")
    with pytest.raises(UsageError) as caught:
        by_name([str(tmp_path / "label.txt")], integers=False)
    assert "File names are not accepted" in caught.value.hint


@pytest.mark.parametrize("kind", [int, str])
def test_a_split_whose_rows_all_say_that_they_have_no_label_is_no_class(kinds, tmp_path: Path, kind: type) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, labels in (("train", [0, 1, 1, 0]), ("validation", [1, 0]), ("test", [-1, -1])):
        write(folder / f"{name}.jsonl", corpus(len(labels)), list(map(kind, labels)))
    with pytest.raises(DataError, match="every label of test is -1, and none of train and validation") as refused:
        prepare(kinds["bpe"], folder, tmp_path / "out", dataset__label_column="label")
    assert "train=PATH validation=PATH." in refused.value.hint


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("someone/glue:sst2", "train=someone/glue:sst2 validation=someone/glue:sst2"),
        ("train=someone/glue,test=someone/glue", "train=someone/glue"),
    ],
)
@pytest.mark.parametrize("classes", [True, False])
def test_how_splits_of_a_data_set_of_the_hub_are_named_is_said(
    kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, named: str, classes: bool
) -> None:
    label = ClassLabel(names=["neg", "pos"]) if classes else Value("int64")
    rows_of = {"train": [0, 1, 1, 0], "validation": [1, 0], "test": [-1, -1]}
    features = Features({"text": Value("string"), "label": label})
    parts = {name: Dataset.from_dict({"text": corpus(len(ids)), "label": ids}, features=features) for name, ids in rows_of.items()}
    DatasetDict(parts).save_to_disk(tmp_path / "set")
    monkeypatch.setattr("datasets.load_dataset", lambda *_: load_from_disk(str(tmp_path / "set")))
    with pytest.raises(DataError, match="label") as refused:
        prepare(kinds["bpe"], given.split(","), tmp_path / "out", dataset__label_column="label")
    assert f" {named}." in refused.value.hint or f"({named})" in refused.value.hint
    assert "file" not in refused.value.hint
    prepare(kinds["bpe"], named.split(), tmp_path / "out", dataset__label_column="label")
    assert set(load_from_disk(str(tmp_path / "out"))["train"]["labels"]) == {0, 1}


def test_a_class_minus_one_that_is_learned_stays_one(kinds, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, labels in (("train", [-1, 1, 1, 0]), ("test", [-1, -1])):
        write(folder / f"{name}.jsonl", corpus(len(labels)), labels)
    prepare(kinds["bpe"], folder, tmp_path / "out", dataset__label_column="label")
    assert load_from_disk(str(tmp_path / "out"))["train"].features["labels"].names == ["-1", "0", "1"]


@pytest.mark.parametrize(
    ("labels", "mark", "names"),
    [
        ([0, 1, 2, -1] * 5, "-1", "0,1,2"),
        (["0", "1", "-1", "1"] * 5, "-1", "0,1"),
        (["neutral", "on", "-", "entailment"] * 5, "-", "entailment,neutral,on"),
    ],
)
def test_a_class_of_rows_without_a_label_is_noted_with_a_way_that_leaves_them_out(labelled, labels, mark, names) -> None:
    """SNLI's 785 rows without a gold label became a class, and moved the ids of the others by one."""
    way = f"To leave them out: --label-names {names} --on-bad quarantine --max-bad 26%"
    assert any(
        f"5 of 20 rows have the label {mark}, which counts as a class" in note and note.endswith(way) for note in labelled(labels)[2]
    )


@pytest.mark.parametrize("kind", [int, str])
def test_rows_without_a_label_are_left_out_as_the_note_says(labelled, kind) -> None:
    given = {"dataset__label_names": ["0", "1", "2"], "dataset__on_bad": "quarantine", "dataset__max_bad": 0.26}
    ids, names, notes = labelled(list(map(kind, [0, 1, 2, -1] * 5)), **given)
    assert (ids, names) == ([0, 1, 2] * 5, ["0", "1", "2"])
    assert not any("without a label" in note for note in notes)


@pytest.mark.parametrize("labels", [[-2, -1, 0, 1, 2], [-1, 1], ["-", "+"]])
def test_a_minus_that_means_something_is_not_noted(labelled, labels) -> None:
    assert not any("without a label" in note for note in labelled(labels)[2])


@pytest.mark.parametrize("mark", [",", "|", ";"])
def test_labels_that_are_sets_of_others_are_noted_with_their_separator(labelled, mark) -> None:
    """GoEmotions' 1,3 became one of 22 classes, not two of 7."""
    notes = labelled(["1", "2", f"1{mark}2", f"2{mark} 3", "3"])[2]
    assert any(note.startswith("2 of the 5 labels hold") and f"--label-separator '{mark}'" in note for note in notes)


def test_labels_that_are_sets_of_what_stands_nowhere_alone_are_noted(labelled) -> None:
    assert any("--label-separator ','" in note for note in labelled(["1,2", "2,3", "1,3", "3,4"])[2])


@pytest.mark.parametrize("labels", [["politics, home", "sports", "food, drink"], ["Austin, TX", "Dallas, TX", "Boise, ID"]])
def test_labels_with_commas_of_their_own_are_not_noted(labelled, labels) -> None:
    assert not any("--label-separator" in note for note in labelled(labels)[2])
