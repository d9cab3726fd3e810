from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ftcli.core.files.stamps import SourceHashes
from ftcli.core.prepare import recipe
from ftcli.core.reading import dataset_card, receipt
from reading import count, plan, refusal, rows, write
from tokenizing import context, manifest, prepare, small_tokenizers, without_plots

kinds = small_tokenizers
no_html = without_plots

DEFAULT = """configs:
- config_name: default
  data_files:
  - split: train
    path: main.csv
  - split: test
    path: heldout.csv
"""


def folder(path: Path, head: str, *names: str) -> Path:
    """A data set whose files each hold one row, their own name."""
    write(path / "README.md", f"---\nlicense: mit\n{head}---\n# A data set\n")
    for name in names:
        write(path / name, f"text\n{name}\n")
    return path


def by_split(made: Any, base: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in made.files:
        found.setdefault(file.split, []).append(str(Path(file.path).relative_to(base)))
    return found


def test_the_card_of_a_data_set_says_which_files_are_which_split(tmp_path: Path) -> None:
    data = folder(tmp_path / "d", DEFAULT, "main.csv", "heldout.csv", "old.csv")
    made = plan(data)
    assert by_split(made, data) == {"train": ["main.csv"], "test": ["heldout.csv"]}
    assert made.notes == (f"{data}: splits taken from its README.md: train ← main.csv; test ← heldout.csv; left out old.csv",)
    assert rows(f"test={data}") == ["heldout.csv"]
    assert rows(f"train={data}") == ["main.csv"]
    assert "no validation split" in refusal(f"validation={data}").message


NAMES = ("main.csv", "data/a-2.csv", "data/a-10.csv", "data/b/c.csv", "more/d.csv")


@pytest.mark.parametrize(
    ("config", "splits"),
    [
        ("data_files: main.csv", {"train": ["main.csv"]}),
        ("data_files: data/*.csv", {"train": ["data/a-2.csv", "data/a-10.csv"]}),
        ("data_files: data/**", {"train": ["data/a-2.csv", "data/a-10.csv", "data/b/c.csv"]}),
        ("data_files: '**/*.csv'", {"train": ["data/a-2.csv", "data/a-10.csv", "data/b/c.csv", "main.csv", "more/d.csv"]}),
        ("data_files: [main.csv, './more/*']", {"train": ["main.csv", "more/d.csv"]}),
        ("data_files: [{split: dev, path: [main.csv, 'data/a-?.csv']}]", {"validation": ["data/a-2.csv", "main.csv"]}),
        ("data_files: [{split: train_x, path: main.csv}, {split: test_x, path: more/*}]", {"train": ["main.csv"], "test": ["more/d.csv"]}),
        ("data_files: {split: valid, path: main.csv}", {"validation": ["main.csv"]}),
        ("{data_dir: data, data_files: [{split: test, path: 'a-*'}]}", {"test": ["data/a-2.csv", "data/a-10.csv"]}),
        ("data_dir: data/b", {"train": ["data/b/c.csv"]}),
        ("description: of nothing", {"train": ["data/a-2.csv", "data/a-10.csv", "data/b/c.csv", "main.csv", "more/d.csv"]}),
    ],
)
@pytest.mark.parametrize("beside", [False, True])
def test_a_config_names_its_files_in_every_way_of_datasets(
    tmp_path: Path, config: str, splits: Mapping[str, list[str]], beside: bool
) -> None:
    inner = config.strip("{}") if config.startswith("{data_dir") else config
    lines = inner.split(", ", 1) if inner.startswith("data_dir: data,") else [inner]
    head = "configs:\n- config_name: one\n" + "".join(f"  {line}\n" for line in lines)
    if beside:
        head += "  default: true\n- config_name: two\n  data_files: more/*\n"
    data = folder(tmp_path / "d", head, *NAMES)
    assert by_split(plan(data), data) == splits


def test_of_several_configs_without_a_default_all_files_are_read_and_the_way_to_one_is_said(tmp_path: Path) -> None:
    head = "configs:\n"
    for name in ("cola", "sst2"):
        head += (
            f"- config_name: {name}\n  data_files:\n  - {{split: train, path: {name}/train-*}}\n  - {{split: test, path: {name}/test-*}}\n"
        )
    data = folder(tmp_path / "d", head, *(f"{name}/{split}-0.csv" for name in ("cola", "sst2") for split in ("train", "test")))
    note = plan(data).notes[0]
    assert note == (
        f"{data}: README.md has 2 configs (cola, sst2), none marked as the default: the files of all are read. "
        f"To read one, name its files: 'train={data}/cola/train-*' 'test={data}/cola/test-*'"
    )
    assert count(data) == {"train": 2, "test": 2}
    assert count(f"train={data}/cola/train-*", f"test={data}/cola/test-*") == {"train": 1, "test": 1}


def test_splits_that_are_none_of_ours_are_refused_by_name(tmp_path: Path) -> None:
    splits = ("train_sft", "train_gen", "test_sft", "test_gen")
    head = "configs:\n- config_name: default\n  data_files:\n" + "".join(f"  - split: {name}\n    path: {name}-*\n" for name in splits)
    error = refusal(data := folder(tmp_path / "d", head, *(f"{name}-0.csv" for name in splits)))
    assert error.message == f"{data} has none of the splits train, validation, test"
    assert error.hint == f"It has: {', '.join(splits)}. Name its files: 'train={data}/train_sft-0.csv' …"


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ("---\nconfigs:\n- config_name: [\n---\n", "its YAML header is invalid ("),
        ("---\nconfigs:\n" + "- [" * 3000 + "\n---\n", "its YAML header is invalid"),
        ("---\nconfigs:\n- config_name: a\n  data_files: main.csv\n", "its YAML header is not closed"),
        ("---\nconfigs: all\n---\n", "its configs are not a list"),
        ("---\nconfigs:\n- data_files: a\n---\n", "its configs are not a list"),
        (
            "---\nconfigs:\n- config_name: a\n  data_files: [{split: train}]\n---\n",
            "its data_files are neither paths nor pairs of split and path",
        ),
        ("---\nconfigs:\n- config_name: a\n  data_files: [{split: test, path: [1]}]\n---\n", "its data_files are neither"),
        ("---\nconfigs:\n- config_name: a\n  data_files: no.csv\n---\n", "names no.csv, which are not present"),
        ("---\nconfigs:\n- config_name: a\n  data_dir: gone\n---\n", "names gone, which are not present"),
        ("---\nconfigs:\n- config_name: a\n  data_files: ../secret.csv\n---\n", "names ../secret.csv, which are not present"),
        ("---\nconfigs:\n- config_name: a\n  data_files: /**\n---\n", "which are not present"),
    ],
)
def test_a_card_that_maps_nothing_is_noted_and_all_files_are_read(tmp_path: Path, card: str, words: str) -> None:
    write(tmp_path / "secret.csv", "text\nsecret\n")
    data = folder(tmp_path / "d", "", "main.csv", "heldout.csv")
    write(data / "README.md", card)
    assert rows(data) == ["heldout.csv", "main.csv"]
    assert plan(data).notes[0].startswith(f"{data}/README.md: ")
    assert words in plan(data).notes[0]


@pytest.mark.parametrize(
    "card", ["", "# configs:\n", "---\nlicense: mit\n---\n", "---\nconfigs: []\n---\n", "---\nconfigs:\n---\n", "---\n---\n"]
)
def test_a_card_without_configs_says_nothing(tmp_path: Path, card: str) -> None:
    data = folder(tmp_path / "d", "", "main.csv", "heldout.csv")
    write(data / "README.md", card)
    assert plan(data).notes == (f"{data}: read as csv; left out README.md",)


def test_a_part_that_is_not_here_is_noted_and_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "secret.csv", "text\nsecret\n")
    data = folder(tmp_path / "d", DEFAULT.replace("main.csv", "'*.csv'").replace("heldout", "none/heldout"), "main.csv")
    (data / "link.csv").symlink_to(tmp_path / "secret.csv")
    made = plan(data)
    assert by_split(made, data) == {"train": ["main.csv"]}
    assert made.notes == (
        f"{data}/README.md: names none/heldout.csv, which are not present",
        f"{data}: splits taken from its README.md: train ← main.csv; left out link.csv",
    )
    (data / "README.md").unlink()
    os.mkfifo(data / "README.md")
    assert rows(data) == ["main.csv"]


def test_a_file_in_two_splits_of_a_card_is_refused(tmp_path: Path) -> None:
    data = folder(tmp_path / "d", DEFAULT.replace("main.csv", "'*.csv'"), "main.csv", "heldout.csv")
    assert f"{data}/heldout.csv is given both as train and as test" in refusal(data).message


def test_a_head_that_is_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_card, "MOST_CONFIGS", 50)
    data = folder(tmp_path / "d", DEFAULT, "main.csv", "heldout.csv")
    assert "its configs section has more than 50 characters" in plan(data).notes[0]


def test_a_changed_mapping_is_noticed_by_receipt_and_fingerprint(tmp_path: Path, kinds: Mapping[str, Path], no_html: None) -> None:
    data, output = folder(tmp_path / "d", DEFAULT, "main.csv", "heldout.csv"), tmp_path / "out"

    def made() -> Any:
        return context(kinds["bpe"], data, output, runtime__cache_dir=tmp_path / "cache")

    prepare(kinds["bpe"], data, output, runtime__cache_dir=tmp_path / "cache")
    assert receipt.still_there(made(), SourceHashes(tmp_path / "cache")) is not None
    before = recipe.settle(made()).fingerprint
    assert before == manifest(output)["fingerprint"]
    folder(data, DEFAULT.replace("split: test", "split: validation"))
    assert receipt.still_there(made(), SourceHashes(tmp_path / "cache")) is None
    assert recipe.settle(made()).fingerprint != before
