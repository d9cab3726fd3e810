from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
from ftcli.plugins import hfdataset

from reading import count, plan, refusal, rows, write

DATA = {"text": [f"글 {i}" for i in range(20)], "label": [i % 4 for i in range(20)]}


def test_a_saved_dataset_is_read(tmp_path: Path) -> None:
    datasets.Dataset.from_dict(DATA).save_to_disk(tmp_path / "d", num_shards=3)
    assert rows(tmp_path / "d", label_column="label") == list(zip(*DATA.values(), strict=True))
    made = plan(tmp_path / "d")
    assert [file.format for file in made.files] == ["arrow"] * 3
    assert {file.split for file in plan(f"test={tmp_path / 'd'}").files} == {"test"}


def test_a_saved_dataset_dict_keeps_its_splits_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    part = datasets.Dataset.from_dict(DATA)
    datasets.DatasetDict({"train": part, "dev": part.select(range(5)), "unsupervised": part}).save_to_disk(tmp_path / "d")
    assert count(tmp_path / "d") == {"train": 20, "validation": 5}
    assert plan(tmp_path / "d", label_column="label").notes == (f"{tmp_path / 'd'}: left out the splits unsupervised",)
    assert count(f"validation={tmp_path / 'd'}") == {"validation": 5}
    assert plan(f"validation={tmp_path / 'd'}", label_column="label").notes == (
        f"{tmp_path / 'd'}: left out the splits train, unsupervised",
    )
    assert count(f"train={tmp_path / 'd' / 'unsupervised'}") == {"train": 20}
    error = refusal(f"test={tmp_path / 'd'}")
    assert error.message == f"{tmp_path / 'd'} has no test split"
    assert error.hint == f"It has: train, dev, unsupervised. Name one by its folder: test={tmp_path / 'd'}/NAME."


def test_a_dataset_without_a_known_split_is_refused_unless_it_is_the_only_one_asked_for(tmp_path: Path) -> None:
    datasets.DatasetDict({"extra": datasets.Dataset.from_dict(DATA)}).save_to_disk(tmp_path / "d")
    assert "has none of the splits train, validation, test" in refusal(tmp_path / "d").message
    assert count(f"train={tmp_path / 'd'}") == {"train": 20}


def test_saved_datasets_beside_each_other_are_the_splits_of_their_folders(tmp_path: Path) -> None:
    for name, rows_of in (("train", 20), ("test", 5)):
        datasets.Dataset.from_dict(DATA).select(range(rows_of)).save_to_disk(tmp_path / name)
    assert count(tmp_path / "train", tmp_path / "test") == {"train": 20, "test": 5}
    assert count(tmp_path / "test") == {"train": 5}


def test_splits_with_longer_names_are_known_where_each_is_the_only_one(tmp_path: Path) -> None:
    part = datasets.Dataset.from_dict(DATA)
    datasets.DatasetDict({"train_sft": part, "test_sft": part.select(range(5))}).save_to_disk(tmp_path / "d")
    made = plan(tmp_path / "d", label_column="label")
    assert count(tmp_path / "d") == {"train": 20, "test": 5}
    assert made.notes == (f"{tmp_path / 'd'}: splits by their names: train ← train_sft; test ← test_sft",)
    datasets.DatasetDict({"train_sft": part, "train_gen": part}).save_to_disk(tmp_path / "two")
    error = refusal(tmp_path / "two")
    assert "has none of the splits" in error.message
    assert f"train={tmp_path / 'two'}/train_sft." in error.hint
    assert count(f"train={tmp_path / 'two' / 'train_sft'}") == {"train": 20}


def test_a_split_without_labels_is_left_out_by_naming_the_others(tmp_path: Path) -> None:
    part = datasets.Dataset.from_dict(DATA)
    datasets.DatasetDict({"train": part, "test": part.remove_columns("label")}).save_to_disk(tmp_path / "set")
    assert f"by naming the others (train={tmp_path / 'set'});" in refusal(tmp_path / "set", label_column="label").hint
    assert count(f"train={tmp_path / 'set'}") == {"train": 20}


def test_a_damaged_dataset_directory_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "d" / "state.json", "{}")
    assert "not a dataset saved by datasets" in refusal(tmp_path / "d").message
    write(tmp_path / "e" / "state.json", '{"_data_files": [{"filename": "gone.arrow"}]}')
    assert refusal(tmp_path / "e").message == f"{tmp_path / 'e' / 'gone.arrow'}: No such file or directory"


def test_a_hub_id_is_loaded_through_datasets_without_remote_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = datasets.Dataset.from_dict(DATA)
    datasets.DatasetDict({"train": part, "test": part.select(range(5))}).save_to_disk(tmp_path / "d")
    calls: list[Any] = []

    def load_dataset(*arguments: Any, **options: Any) -> Any:
        calls.append((arguments, options))
        return datasets.load_from_disk(str(tmp_path / "d"))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert count("someone/reviews:ko") == {"train": 20, "test": 5}
    assert calls == [(("someone/reviews", "ko"), {})]


def test_an_unreachable_hub_is_said_so_with_a_way_out() -> None:
    error = refusal("nobody/no-such-dataset-of-ours")
    assert error.message.startswith("nobody/no-such-dataset-of-ours: no such local file, and the Hub did not return it: ")
    assert "HF_HUB_OFFLINE" in error.hint


def test_the_hub_is_asked_once_for_what_it_could_not_give_a_moment_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*arguments: Any) -> Any:
        asked.append(arguments)
        raise ConnectionError("no network")

    monkeypatch.setattr(hfdataset, "_refused", {})
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert refusal("someone/unknown").message == refusal("someone/unknown").message
    refusal("someone/other")
    assert [name for name, _ in asked] == ["someone/unknown", "someone/other"]
    monkeypatch.setattr(hfdataset, "ASKED_AGAIN", 0.0)
    refusal("someone/unknown")
    assert len(asked) == 3


def test_a_missing_path_with_a_data_suffix_never_asks_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("asked the hub"))
    assert refusal("data/train.jsonl").message == "data/train.jsonl: no such file or directory"


def test_results_that_datasets_keeps_beside_a_saved_set_are_no_rows_of_it(tmp_path: Path) -> None:
    """`map` on a set from `load_from_disk` writes its results as cache-*.arrow into the same folder: every row was read once more for each."""
    for name in ("a", "b"):
        datasets.Dataset.from_dict(DATA).save_to_disk(tmp_path / name)
        kept = datasets.load_from_disk(tmp_path / name)
        kept.map(lambda row: {"text": row["text"] + "!"}, load_from_cache_file=False)
        kept.map(lambda row: {"text": row["text"] + "?"}, cache_file_name=str(tmp_path / name / "mine.arrow"))
        assert len(list((tmp_path / name).glob("*.arrow"))) == 3
    for source in (tmp_path, tmp_path / "*" / "*.arrow", tmp_path / "**" / "*.arrow"):
        assert rows(source) == DATA["text"] * 2
        (note,) = (note for note in plan(source).notes if "datasets keeps" in note)
        assert note.startswith(f"{source}: left out files that datasets keeps beside a saved dataset: a/cache-")
        assert note.count("mine.arrow") == 2


def test_arrow_files_without_a_saved_set_are_read_whatever_their_names(tmp_path: Path) -> None:
    datasets.Dataset.from_dict(DATA).save_to_disk(tmp_path / "d")
    (data,) = (tmp_path / "d").glob("*.arrow")
    for name in ("cache-1.arrow", "b.arrow"):
        write(tmp_path / "own" / name, data.read_bytes())
    assert rows(tmp_path / "own" / "*.arrow") == DATA["text"] * 2
    write(tmp_path / "own" / "state.json", '{"of": "something else"}')
    assert rows(tmp_path / "own" / "*.arrow") == DATA["text"] * 2
    write(tmp_path / "own" / "dataset_info.json", "{}")  # as in the cache of `load_dataset`
    (tmp_path / "own" / "state.json").unlink()
    assert rows(tmp_path / "own" / "*.arrow") == DATA["text"]
