"""The exporters: bytes by the format's description, and token by token by the format's own reader where it is installed."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from ftcli.plugins import export_mds

from foreign_readers import call
from ftcli.contracts_export import ExportJob
from ftcli.core.storage.store import Store
from ftcli.errors import StoreError, UsageError
from ftcli.pluginmanager import Plugins
from stores import Row, write_store

PLAIN: list[Row] = [([1, 2, 3], None), ([4], None), ([5, 6], None)]
CLASSES: list[Row] = [([1, 2, 3], 1), ([4], 0)]
SEVERAL: list[Row] = [([1, 2, 3], (1.0, 1.0)), ([4], (0.0, 0.0))]
ANSWERS: list[Row] = [([1, 2, 3], [-100, -100, 3]), ([4, 5], [-100, 5])]
PACKED: list[Row] = [([1, 2, 3, 4], None, [3, 1]), ([5, 6], None, [2])]
LONG: list[Row] = [(list(range(start, start + length)), None) for start, length in [(0, 300), (7, 1), (60_000, 255), (9, 256), (1, 70_000)]]


def a_store(folder: Path, rows: Sequence[Row], vocab_size: int = 1000) -> Store:
    labelled = isinstance(rows[0][1], int | tuple)
    names = ["bad", "good"] if labelled else None
    tokenizer = {"path": "tokenizer", "hash": "none", "vocab_size": vocab_size}
    return write_store(folder, {"train": rows}, label_names=names, tokenizer=tokenizer)


def export(store: Store, output: Path, kind: str, **wishes: object) -> list[Path]:
    output.mkdir()
    job = ExportJob(tuple(store.split_names), **wishes)  # type: ignore[arg-type]
    return list(Plugins(allow=()).registry("exporter").get(kind)().export(store, output, job))


# -- jsonl -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (PLAIN[:1], {"input_ids": [1, 2, 3], "length": 3}),
        (CLASSES[:1], {"input_ids": [1, 2, 3], "length": 3, "labels": 1}),
        (SEVERAL[:1], {"input_ids": [1, 2, 3], "length": 3, "labels": [1.0, 1.0]}),
        (ANSWERS[:1], {"input_ids": [1, 2, 3], "length": 3, "labels": [-100, -100, 3]}),
        (PACKED[:1], {"input_ids": [1, 2, 3, 4], "length": 4, "seq_lengths": [3, 1]}),
    ],
)
def test_a_line_of_json_has_what_the_row_has(rows: Sequence[Row], expected: object, tmp_path: Path) -> None:
    export(a_store(tmp_path / "store", rows), tmp_path / "out", "jsonl")

    assert json.loads((tmp_path / "out/train.jsonl").read_text()) == expected


def test_text_is_written_for_every_text_and_null_where_it_would_mislead(tmp_path: Path) -> None:
    def decode(ids: np.ndarray) -> str | None:
        return None if ids[0] == 4 else "가 " + " ".join(map(str, ids))

    export(a_store(tmp_path / "plain", PLAIN), tmp_path / "one", "jsonl", decode=decode)
    export(a_store(tmp_path / "packed", PACKED), tmp_path / "many", "jsonl", decode=decode)

    assert [json.loads(line)["text"] for line in (tmp_path / "one/train.jsonl").read_text().splitlines()] == ["가 1 2 3", None, "가 5 6"]
    assert [json.loads(line)["texts"] for line in (tmp_path / "many/train.jsonl").read_text().splitlines()] == [
        ["가 1 2 3", None],
        ["가 5 6"],
    ]


# -- megatron ----------------------------------------------------------------------------------------------------------


def test_the_megatron_index_says_where_every_text_of_a_packed_row_lies(tmp_path: Path) -> None:
    export(a_store(tmp_path / "store", PACKED), tmp_path / "out", "megatron")

    assert (tmp_path / "out/train.bin").read_bytes() == struct.pack("<6H", 1, 2, 3, 4, 5, 6)
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 4)
    assert (tmp_path / "out/train.idx").read_bytes() == head + struct.pack("<3i3q4q", 3, 1, 2, 0, 6, 8, 0, 1, 2, 3)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_499, "uint16"), (65_500, "int32")])
@pytest.mark.parametrize("rows", [PACKED, LONG[:2]], ids=["packed", "plain"])
def test_megatron_reads_and_writes_the_same(rows: Sequence[Row], vocab_size: int, dtype: str, tmp_path: Path) -> None:
    texts = [[1, 2, 3], [4], [5, 6]] if rows is PACKED else [list(row[0]) for row in rows]
    call("megatron-writer", tmp_path / "theirs", json.dumps(texts), dtype)
    export(a_store(tmp_path / "store", rows, vocab_size), tmp_path / "out", "megatron")

    read = call("megatron", tmp_path / "out/train")
    assert read == {"texts": texts, "documents": list(range(len(texts) + 1)), "dtype": dtype}
    for suffix in ("bin", "idx"):
        assert (tmp_path / f"out/train.{suffix}").read_bytes() == (tmp_path / f"theirs.{suffix}").read_bytes()


# -- nanotron ----------------------------------------------------------------------------------------------------------


def test_the_datatrove_files_hold_tokens_ends_and_what_is_learned(tmp_path: Path) -> None:
    export(a_store(tmp_path / "store", ANSWERS, 65_536), tmp_path / "out", "nanotron")

    tokens = tmp_path / "out/train/00000_unshuffled.ds"
    assert tokens.read_bytes() == struct.pack("<5H", 1, 2, 3, 4, 5)
    assert Path(f"{tokens}.index").read_bytes() == struct.pack("<2Q", 3, 5)
    assert Path(f"{tokens}.loss").read_bytes() == bytes([0, 0, 1, 0, 1])
    assert Path(f"{tokens}.metadata").read_text() == "tokenizer|2\n5\n5.00 T"


@pytest.mark.parametrize("vocab_size", [65_536, 65_537])
@pytest.mark.parametrize("rows", [LONG, ANSWERS], ids=["plain", "answers"])
def test_datatrove_reads_and_writes_the_same(rows: Sequence[Row], vocab_size: int, tmp_path: Path) -> None:
    rows = [([token % 65_000 for token in row[0]], row[1]) for row in rows]
    texts, width = [list(row[0]) for row in rows], 2 if vocab_size == 65_536 else 4
    losses = None if rows[0][1] is None else [[label != -100 for label in row[1]] for row in rows if isinstance(row[1], list)]
    if len(json.dumps(texts)) > 100_000:
        texts = [text[:300] for text in texts]
        rows = [(text, None) for text in texts]
    call("nanotron-writer", tmp_path / "theirs", json.dumps(texts), json.dumps(losses), width)
    export(a_store(tmp_path / "store", rows, vocab_size), tmp_path / "out", "nanotron")

    joined, positions = [token for text in texts for token in text], [place for text in texts for place in range(len(text))]
    read = call("nanotron", tmp_path / "out/train", len(joined), width)
    assert [window["input_ids"] for window in read] == [joined]
    assert [window["positions"] for window in read] == [positions]
    names = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert sorted(path.name for path in (tmp_path / "out/train").iterdir()) == names
    for name in names:
        assert (tmp_path / "out/train" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name


# -- mds ---------------------------------------------------------------------------------------------------------------


def test_an_mds_shard_by_its_description(tmp_path: Path) -> None:
    export(a_store(tmp_path / "store", CLASSES), tmp_path / "out", "mds")

    index = json.loads((tmp_path / "out/train/index.json").read_text())
    (shard,) = index["shards"]
    assert (index["version"], shard["samples"], shard["column_names"], shard["column_sizes"]) == (2, 2, ["input_ids", "labels"], [None, 8])
    data = (tmp_path / "out/train/shard.00000.mds").read_bytes()
    count, *places = struct.unpack_from("<4I", data)
    assert (count, places[-1], shard["raw_data"]["bytes"]) == (2, len(data), len(data))
    assert data[places[0] : places[1]] == struct.pack("<IBB3iq", 14, 4, 3, 1, 2, 3, 1)


MDS = [(PLAIN, {"tokens": "ndarray:int32"}), (CLASSES, {"input_ids": "ndarray:int32", "labels": "int"})]
MDS += [(ANSWERS, {"input_ids": "ndarray:int32", "labels": "ndarray:int32"}), (LONG, {"tokens": "ndarray:int32"})]
MDS += [(PACKED, {"tokens": "ndarray:int32", "seq_lengths": "ndarray:int32"})]


@pytest.mark.parametrize(("rows", "columns"), MDS, ids=["plain", "classes", "answers", "long", "packed"])
def test_mds_reads_and_writes_the_same(
    rows: Sequence[Row], columns: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(a_store(tmp_path / "store", rows), tmp_path / "out", "mds")
    expected = [
        dict(zip(sorted(columns, key=["tokens", "input_ids", "labels", "seq_lengths"].index), _cells(row), strict=True)) for row in rows
    ]

    assert call("mds", tmp_path / "out/train") == expected
    if rows is not LONG:
        call("mds-writer", tmp_path / "theirs", json.dumps(columns), json.dumps(expected))
        for name in ("index.json", "shard.00000.mds"):
            assert (tmp_path / "out/train" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name


def _cells(row: Row) -> list[object]:
    return [list(row[0]), *([row[1]] if row[1] is not None else []), *([list(row[2])] if len(row) > 2 else [])]


def test_a_full_shard_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_mds, "MOST_BYTES", 300)
    written = export(a_store(tmp_path / "store", PLAIN * 5), tmp_path / "out", "mds")

    shards = json.loads((tmp_path / "out/train/index.json").read_text())["shards"]
    assert sum(shard["samples"] for shard in shards) == 15
    assert len(shards) > 1
    assert all(shard["raw_data"]["bytes"] <= 300 for shard in shards)
    assert [path.name for path in written] == [*(f"shard.{number:05d}.mds" for number in range(len(shards))), "index.json"]


def test_mds_refuses_a_row_without_tokens(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="row 1 of train has no tokens"):
        export(a_store(tmp_path / "store", [([1], None), ([], None)]), tmp_path / "out", "mds")


# -- what does not fit -------------------------------------------------------------------------------------------------


LOSING = [
    ("megatron", CLASSES),
    ("megatron", ANSWERS),
    ("megatron", SEVERAL),
    ("nanotron", CLASSES),
    ("nanotron", SEVERAL),
    ("mds", SEVERAL),
]


@pytest.mark.parametrize(("kind", "rows"), LOSING)
def test_labels_are_never_lost_in_silence(kind: str, rows: Sequence[Row], tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", rows)

    with pytest.raises(UsageError, match="mds exporter does not write" if kind == "mds" else f"{kind} stores tokens only"):
        export(store, tmp_path / "refused", kind)
    assert export(store, tmp_path / "asked", kind, tokens_only=True)


@pytest.mark.parametrize("kind", ["megatron", "nanotron"])
def test_an_id_beyond_the_vocabulary_is_named(kind: str, tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", [([1, 2], None), ([3, 70_000], None)])

    with pytest.raises(StoreError, match="row 1 of train has the id 70000, outside the vocabulary"):
        export(store, tmp_path / "out", kind)


@pytest.mark.parametrize("kind", ["jsonl", "megatron", "nanotron", "mds"])
def test_the_same_rows_give_the_same_bytes_however_they_are_divided(kind: str, tmp_path: Path) -> None:
    one = write_store(tmp_path / "one", {"train": PLAIN * 4, "test": PLAIN})
    other = write_store(tmp_path / "other", {"train": PLAIN * 4, "test": PLAIN}, shards=3)

    first, second = export(one, tmp_path / "a", kind), export(other, tmp_path / "b", kind)

    assert [path.relative_to(tmp_path / "a") for path in first] == [path.relative_to(tmp_path / "b") for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
