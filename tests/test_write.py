"""Arrow files whose bytes depend on the rows only, and that `datasets` opens."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcli.core.prepare import write
from ftcli.core.prepare.write import RowWriter, schema, split_metadata


def put(
    path: Path,
    rows: list[list[int]],
    sizes: list[int],
    *,
    buffer_rows: int,
    labels: bool = True,
    packed: bool = False,
    tokens: int = 1 << 22,
) -> bytes:
    """Write the rows in portions of `sizes` (round and round)."""
    with RowWriter(path, labels=labels, packed=packed, tokens=tokens, buffer_rows=buffer_rows) as writer:
        start = place = 0
        while start < len(rows):
            part = rows[start : start + sizes[place % len(sizes)]]
            place += 1
            start += len(part)
            ids = np.array([token for row in part for token in row], np.int32)
            lengths = np.array([len(row) for row in part], np.int64)
            writer.add(
                ids, lengths, lengths % 3 if labels else None, (lengths.astype(np.int32), np.ones(len(part), np.int64)) if packed else None
            )
    return path.read_bytes()


def random_rows(count: int) -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(1, 1000, generator.integers(0, 9)).tolist() for _ in range(count)]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.integers(1, 40),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
)
def test_bytes_do_not_depend_on_the_portions_or_the_buffer(count, sizes, buffer_rows, tokens, labels, packed):
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as name:
        patch.setattr(write, "BATCH_ROWS", 7)
        folder = Path(name)
        rows = random_rows(count)
        whole = put(folder / "a.arrow", rows, [count], buffer_rows=1, tokens=tokens, labels=labels, packed=packed)
        assert put(folder / "b.arrow", rows, sizes, buffer_rows=buffer_rows, tokens=tokens, labels=labels, packed=packed) == whole


def test_bytes_do_not_depend_on_the_portions_at_the_real_batch_size(tmp_path):
    rows = random_rows(3 * write.BATCH_ROWS + 5)
    portions = [[len(rows)], [10_000], [20_000], [write.BATCH_ROWS], [777]]
    assert len({put(tmp_path / "a.arrow", rows, sizes, buffer_rows=buffer) for sizes in portions for buffer in (1, 20_000)}) == 1


def test_rows_come_back_in_batches_of_the_fixed_size(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "BATCH_ROWS", 4)
    rows = random_rows(10)
    put(tmp_path / "a.arrow", rows, [3], buffer_rows=5, packed=True)
    with pa.memory_map(str(tmp_path / "a.arrow")) as source:
        reader = pa.ipc.open_stream(source)
        assert reader.schema == schema(labels=True, packed=True)
        batches = list(reader)
    for batch in batches:
        batch.validate(full=True)
    assert [batch.num_rows for batch in batches] == [4, 4, 2]
    table = pa.Table.from_batches(batches)
    assert table["input_ids"].to_pylist() == rows
    assert table["length"].to_pylist() == [len(row) for row in rows]
    assert table["labels"].to_pylist() == [len(row) % 3 for row in rows]
    assert table["seq_lengths"].to_pylist() == [[len(row)] for row in rows]


def test_long_rows_are_written_as_they_come(tmp_path):
    with RowWriter(tmp_path / "a.arrow", labels=False, packed=False, tokens=100, buffer_rows=100_000) as writer:
        for rows in range(1, 11):
            writer.add(np.ones(60, np.int32), np.array([60]))
            assert writer._pending_tokens == 60 * (rows % 2)
    with pa.memory_map(str(tmp_path / "a.arrow")) as source:
        assert [batch.num_rows for batch in pa.ipc.open_stream(source)] == [2] * 5


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([50, 50, 50], [2, 1]), ([99, 0, 1, 0], [3, 1]), ([250, 1, 1], [1, 2]), ([100, 100], [1, 1]), ([1] * 10, [4, 4, 2])],
)
def test_a_record_batch_ends_with_the_row_that_fills_it(tmp_path, monkeypatch, lengths, expected):
    monkeypatch.setattr(write, "BATCH_ROWS", 4)
    rows = [[7] * length for length in lengths]
    put(tmp_path / "a.arrow", rows, [len(rows)], buffer_rows=1, labels=False, tokens=100)
    with pa.memory_map(str(tmp_path / "a.arrow")) as source:
        batches = list(pa.ipc.open_stream(source))
    assert [batch.num_rows for batch in batches] == expected
    assert pa.Table.from_batches(batches)["input_ids"].to_pylist() == rows


def test_the_tokens_of_a_record_batch_come_from_the_size_of_the_shard():
    assert [write.batch_tokens(size) for size in (0, 16 << 20, 64 << 20, 1 << 40)] == [1 << 18, 1 << 20, 1 << 22, 1 << 22]


def test_padding_on_disk_holds_no_token_of_another_row(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "BATCH_ROWS", 1)
    data = put(tmp_path / "a.arrow", [[1], [0x01020304]], [2], buffer_rows=1, labels=False)
    assert data.count((0x01020304).to_bytes(4, "little")) == 1


def test_no_rows_are_an_empty_data_set(tmp_path):
    put(tmp_path / "data.arrow", [], [1], buffer_rows=1)
    metadata = split_metadata(
        files=["data.arrow"], fingerprint="f" * 32, split="test", label_names=["a", "b"], packed=False, rows=0, size=0
    )
    for name, content in metadata.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    loaded = Dataset.load_from_disk(str(tmp_path))
    assert len(loaded) == 0
    assert loaded.features["labels"].names == ["a", "b"]


def test_metadata_are_json_with_the_names_as_they_are():
    metadata = split_metadata(files=["a"], fingerprint="f" * 32, split="train", label_names=['"긍정"'], packed=True, rows=3, size=9)
    info, state = json.loads(metadata["dataset_info.json"]), json.loads(metadata["state.json"])
    assert info["features"]["labels"] == {"names": ['"긍정"'], "_type": "ClassLabel"}
    assert info["splits"]["train"] == {"name": "train", "num_bytes": 9, "num_examples": 3, "dataset_name": "ftcli"}
    assert state["_data_files"] == [{"filename": "a"}]
    assert "긍정" in metadata["dataset_info.json"]


def test_an_error_in_the_block_closes_the_file_and_is_not_hidden(tmp_path):
    writer = RowWriter(tmp_path / "a.arrow", labels=False, packed=False)

    def fail() -> None:
        with writer:
            writer.add(np.array([1], np.int32), np.array([1]))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert writer.file.closed


def test_ids_and_lengths_that_do_not_fit_are_a_bug(tmp_path):
    with pytest.raises(AssertionError), RowWriter(tmp_path / "a.arrow", labels=False, packed=False) as writer:
        writer.add(np.array([1, 2], np.int32), np.array([1]))
