"""The real data sets as plain splits of (text, label), for checks that must say nothing of sound data and must find what is wrong with the others."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

Splits = dict[str, list[tuple[str, str | None]]]


def _lines(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    yield from (line.rstrip("\r") for line in text.split("\n") if line.strip())


def _table(path: Path, text: str, label: str, delimiter: str) -> list[tuple[str, str | None]]:
    rows = csv.DictReader(
        io.StringIO("\n".join(_lines(path))), delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE
    )
    return [(row[text], row[label]) for row in rows if row[text] and row[label]]


def banking77(root: Path) -> Splits:
    folder = root / "classification" / "banking77"
    return {name: _table(folder / f"{name}.csv", "text", "category", ",") for name in ("train", "test")}


def kor_3i4k(root: Path) -> Splits:
    folder = root / "classification" / "kor_3i4k"
    files = {"train": folder / "fci_train_val.txt.gz", "test": folder / "fci_test.txt"}
    return {name: [(text, label) for label, text in (line.split("\t", 1) for line in _lines(path))] for name, path in files.items()}


def goemotions_ko(root: Path) -> Splits:
    """Rows with one label only."""
    folder = root / "classification" / "goemotions_ko"
    files = {"train": folder / "train.tsv.gz", "validation": folder / "dev.tsv", "test": folder / "test.tsv"}
    rows = {name: [line.split("\t")[:2] for line in _lines(path)] for name, path in files.items()}
    return {name: [(text, label) for text, label in found if "," not in label] for name, found in rows.items()}


def kornlu(root: Path) -> Splits:
    """Both sentences of a pair as one text."""
    folder = root / "classification" / "kornlu"
    files = {"train": folder / "xnli.test.ko.tsv", "test": folder / "xnli.dev.ko.tsv"}
    rows = {name: [line.split("\t") for line in _lines(path)][1:] for name, path in files.items()}
    return {name: [(f"{one}\n{other}", label) for one, other, label in found] for name, found in rows.items()}


def songys_chatbot(root: Path) -> Splits:
    return {"train": _table(root / "classification" / "songys_chatbot" / "ChatbotData.csv", "Q", "label", ",")}


def world_cities(root: Path) -> Splits:
    return {"train": _table(root / "classification" / "world_cities" / "world-cities.csv", "name", "country", ",")}


def onet_tasks(root: Path) -> Splits:
    return {"train": _table(root / "classification" / "onet_tasks" / "task_statements.tsv", "Task", "O*NET-SOC Code", "\t")}


def nsmc_raw(root: Path) -> Splits:
    rows = [json.loads(line) for line in _lines(root / "classification" / "nsmc_raw" / "nsmc_raw.jsonl.gz")]
    return {"train": [(row["text"], str(row["rating"])) for row in rows if row["text"]]}


def _jsonl(*path: str) -> Callable[[Path], Splits]:
    return lambda root: {"train": [(json.loads(line)["text"], None) for line in _lines(root.joinpath("text", *path))]}


def _plain(*path: str) -> Callable[[Path], Splits]:
    return lambda root: {"train": [(line, None) for line in _lines(root.joinpath("text", *path))]}


def _law(root: Path) -> Splits:
    return {"train": [(line, None) for path in sorted((root / "text" / "kor_law").rglob("*.txt")) for line in _lines(path)]}


def _state_union(root: Path) -> Splits:
    with zipfile.ZipFile(root / "text" / "state_union" / "state_union.zip") as archive:
        names = [name for name in archive.namelist() if name.endswith(".txt")]
        return {"train": [(archive.read(name).decode("utf-8", "replace"), None) for name in names if "README" not in name]}


def _gsm8k(root: Path) -> Splits:
    rows = [json.loads(line) for line in _lines(root / "instruct" / "gsm8k_train" / "train.jsonl.gz")]
    return {"train": [(f"{row['question']}\n{row['answer']}", None) for row in rows]}


def _gpteacher(root: Path) -> Splits:
    found = []
    for path in sorted((root / "instruct" / "gpteacher").glob("*.gz")):
        found += json.loads(gzip.decompress(path.read_bytes()))
    return {"train": [("\n".join(filter(None, (row["instruction"], row["input"], row["response"]))), None) for row in found]}


def _self_instruct(root: Path) -> Splits:
    rows = [json.loads(line) for line in _lines(root / "instruct" / "self_instruct_seed" / "seed_tasks.jsonl")]
    return {"train": [("\n".join((row["instruction"], one["input"], one["output"])), None) for row in rows for one in row["instances"]]}


SETS: dict[str, Callable[[Path], Splits]] = {
    "banking77": banking77,
    "kor_3i4k": kor_3i4k,
    "goemotions_ko": goemotions_ko,
    "kornlu": kornlu,
    "songys_chatbot": songys_chatbot,
    "world_cities": world_cities,
    "onet_tasks": onet_tasks,
    "nsmc_raw": nsmc_raw,
    "ko_docs_long": _jsonl("ko_docs_long", "ko_docs.jsonl.gz"),
    "en_docs_long": _jsonl("en_docs_long", "en_docs.jsonl.gz"),
    "react_docs_ko": _jsonl("react_docs_ko", "react_docs_ko.jsonl.gz"),
    "code_sympy": _jsonl("code_sympy", "code_sympy.jsonl.gz"),
    "kor_law": _law,
    "state_union": _state_union,
    "tiny_shakespeare": _plain("tiny_shakespeare", "input.txt"),
    "war_and_peace": _plain("war_and_peace", "war-and-peace.txt.gz"),
    "wikitext2_valid": _plain("wikitext2_valid", "wikitext2_valid.txt"),
    "gsm8k": _gsm8k,
    "gpteacher": _gpteacher,
    "self_instruct": _self_instruct,
}
