from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ftcli.plugins import columnar, rowrange
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.contracts import Columns
from ftcli.core.reading.read import read_shard
from ftcli.records import Piece
from reading import accounted, formats, labels, plan, refusal, rows, settings, write
from reliability import size

TABLE = pa.table({"text": [f"글 {i}" for i in range(1000)], "label": [i % 5 for i in range(1000)], "more": [[i] for i in range(1000)]})
EXPECTED = [(f"글 {i}", i % 5) for i in range(1000)]
WAYS = ("parquet", "file", "stream", "feather")


def save(folder: Path, way: str, table: pa.Table, rows_each: int = 100, compression: str | None = None) -> Path:
    path = folder / {"parquet": "a.parquet", "file": "a.arrow", "stream": "b.arrow", "feather": "a.feather"}[way]
    if way == "parquet":
        pq.write_table(table, path, row_group_size=rows_each)
        return path
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if way == "stream" else pa.ipc.new_file
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows_each)
    return path


def test_a_stream_is_read_by_the_suffix_of_its_own(tmp_path: Path) -> None:
    assert rows(save(tmp_path, "stream", TABLE).rename(tmp_path / "a.arrows"), label_column="label") == EXPECTED


def test_fields_of_objects_become_columns_by_the_command_of_the_hint(tmp_path: Path) -> None:
    """Translations as the Hub has them: a column of objects, with a text for each language."""
    pq.write_table(pa.table({"translation": [{"en": "so", "ko": "글"}]}), tmp_path / "OLD")
    (tmp_path / "a.parquet").write_bytes((tmp_path / "OLD").read_bytes())
    command, _, name = refusal(tmp_path / "a.parquet", text_column="translation").hint.partition(" makes columns of its fields, such as ")
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert rows(tmp_path / "NEW.parquet", text_column=name.rstrip(".")) == ["so"]


@pytest.mark.parametrize("way", WAYS)
def test_rows_come_back_from_every_layout(tmp_path: Path, way: str) -> None:
    path = save(tmp_path, way, TABLE)
    assert rows(path, label_column="label") == EXPECTED
    assert labels(path, label_column="label") == {0, 1, 2, 3, 4}


def batch_rows(path: Path, **dataset: Any) -> list[int]:
    made = plan(path, **dataset)
    return [batch.num_rows for shard in made.shards for _, batch in read_shard(shard, made.columns, settings(path, **dataset), formats())]


@pytest.mark.parametrize("way", WAYS)
def test_long_rows_are_read_a_few_at_a_time_and_short_ones_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    table = pa.table({"text": [f"{i} " + "x" * 1000 * (i < 64) for i in range(9000)], "beside": ["y" * 500] * 9000})
    path = save(tmp_path, way, table.slice(64), rows_each=9000)
    assert batch_rows(path) == ([8192, 744] if way == "parquet" else [8936])
    assert rows(path) == table["text"].to_pylist()[64:]
    monkeypatch.setattr(columnar, "BATCH_BYTES", 10_000)
    path = save(tmp_path, way, table.slice(0, 96), rows_each=32)
    assert batch_rows(path) == [8] * 8 + [32]
    assert rows(path) == table["text"].to_pylist()[:96]
    monkeypatch.setattr(columnar, "BATCH_BYTES", 10)
    assert batch_rows(path) == [1] * 96


@pytest.mark.parametrize("way", ["file", "stream"])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_record_batches_are_read(tmp_path: Path, way: str, compression: str) -> None:
    assert rows(save(tmp_path, way, TABLE, compression=compression), label_column="label", shard_bytes=2000) == EXPECTED


@hypothesis_settings(max_examples=size(25, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(way=st.sampled_from(WAYS), target=st.integers(1, 60_000), rows_each=st.integers(30, 1100))
def test_no_row_is_lost_or_doubled_whatever_the_piece_size(tmp_path: Path, way: str, target: int, rows_each: int) -> None:
    path = save(tmp_path, way, TABLE, rows_each)
    made = plan(path, label_column="label", shard_bytes=target)
    assert sum(shard.size for shard in made.shards) == path.stat().st_size
    assert rows(path, label_column="label", shard_bytes=target) == EXPECTED


@pytest.mark.parametrize("way", WAYS)
def test_pieces_follow_the_target(tmp_path: Path, way: str) -> None:
    path = save(tmp_path, way, TABLE)
    size = path.stat().st_size
    assert len(plan(path, shard_bytes=size).shards) == 1
    assert len(plan(path, shard_bytes=size // 2).shards) in {2, 3}
    assert len(plan(path, shard_bytes=1).shards) == 640


@pytest.mark.parametrize("way", WAYS)
def test_one_row_group_is_the_work_of_several_workers(tmp_path: Path, way: str) -> None:
    """As pandas writes a million rows; it was one piece. A bad row has its place in the file."""
    texts: list[str | None] = [f"글 {number}" for number in range(2000)]
    texts[1500] = None
    path = save(tmp_path, way, pa.table({"text": texts}), 2000)
    given = {"shard_bytes": path.stat().st_size // 5}
    pieces = [piece for shard in plan(path, **given).shards for piece in shard.pieces]
    assert len(pieces) == 5
    assert [(piece.start, piece.stop) for piece in pieces] == [(400 * i, 400 * i + 400) for i in range(5)]
    good, bad = accounted(path, on_bad="quarantine", **given)
    assert good == [text for text in texts if text is not None]
    assert [row.row for row in bad] == [1501]
    places = formats().get(pieces[3].format)().places(pieces[3], settings(path))
    assert next(places).row == 1201


@pytest.mark.parametrize("way", WAYS)
def test_a_row_group_is_decoded_once_by_all_of_its_pieces_that_a_process_reads(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every piece decoded all that lies before it. Pieces that another process read, and those out of order, change nothing of the rows."""
    table = pa.table({"text": [f"글 {number}" for number in range(2000)]})
    monkeypatch.setattr(columnar, "BATCH_BYTES", 1000)
    path = save(tmp_path, way, table, 2000 if way == "parquet" else 50)
    chosen, read = settings(path), Columns("text")
    reader = formats().get("parquet" if way == "parquet" else "arrow")()
    pieces = reader.plan(str(path), path.stat().st_size // 8, chosen)
    assert len(pieces) == 8
    begun: list[int] = []
    begin = rowrange.RowRange.__init__
    monkeypatch.setattr(rowrange.RowRange, "__init__", lambda self, *given: (begun.append(1), begin(self, *given))[1])

    def texts(piece: Piece) -> list[str]:
        return [text for batch in reader.read(piece, read, chosen, print) for text in batch["text"].to_pylist()]

    for order, times in (([0, 1, 2, 3, 4, 5, 6, 7], 1), ([0, 2, 5, 7], 1), ([3, 1, 6, 2], 3)):
        rowrange._kept.clear()
        begun.clear()
        for number in order:
            assert texts(pieces[number]) == table["text"].to_pylist()[pieces[number].start : pieces[number].stop]
        assert len(begun) == times
    texts(pieces[0])
    save(tmp_path, way, pa.table({"text": [f"new {number}" for number in range(2000)]}), 2000)
    assert texts(pieces[1])[0] == f"new {pieces[1].start}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("column", "row"), [(pa.array(["x"] * 250 + [None] + ["x"] * 749), 251), (pa.array([None] * 1000, pa.null()), 1)], ids=["one", "all"]
)
def test_a_null_is_named_by_its_row(tmp_path: Path, way: str, column: pa.Array, row: int) -> None:
    path = save(tmp_path, way, TABLE.set_column(0, "text", column))
    assert refusal(path).message == f"{path}: row {row}: 'text' is null; text must be a string"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "BATCH_BYTES", 300)
        assert refusal(path).message == f"{path}: row {row}: 'text' is null; text must be a string"
    assert refusal(path, shard_bytes=1).message == f"{path}: row {row}: 'text' is null; text must be a string"


def not_utf8(rows_: int, bad: int) -> pa.Array:
    values = pa.array([b"x"] * bad + [b"\xff"] + [b"x"] * (rows_ - bad - 1), pa.binary())
    return pa.Array.from_buffers(pa.string(), rows_, values.buffers())


@pytest.mark.parametrize("way", WAYS)
def test_text_that_is_not_utf8_is_named_by_its_row(tmp_path: Path, way: str) -> None:
    path = save(tmp_path, way, TABLE.set_column(0, "text", not_utf8(1000, 777)))
    assert refusal(path).message == f"{path}: row 778: 'text' is not UTF-8"


@pytest.mark.parametrize(
    ("values", "type_", "word"),
    [
        ([1], pa.int32(), "int32"),
        ([["a"]], pa.list_(pa.string()), "list"),
        ([b"a"], pa.binary(), "binary"),
        ([1.5], pa.float64(), "double"),
    ],
)
def test_a_text_column_of_another_type_is_refused(tmp_path: Path, values: list[Any], type_: pa.DataType, word: str) -> None:
    error = refusal(save(tmp_path, "parquet", pa.table({"text": pa.array(values, type_)})))
    assert f"column 'text' holds {word}" in error.message
    assert "text must be a string" in error.message


@pytest.mark.parametrize(("type_", "word"), [(pa.float64(), "double"), (pa.list_(pa.bool_()), "list"), (pa.list_(pa.float64()), "list")])
def test_a_label_column_of_another_type_is_refused(tmp_path: Path, type_: pa.DataType, word: str) -> None:
    table = pa.table({"text": ["a"], "label": pa.array([None], type_)})
    assert f"column 'label' holds {word}" in refusal(save(tmp_path, "parquet", table), label_column="label").message


@pytest.mark.parametrize("way", ["parquet", "stream"])
@pytest.mark.parametrize(
    "type_", [pa.int8(), pa.uint16(), pa.uint64(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_every_string_and_whole_number_type_is_read(tmp_path: Path, way: str, type_: pa.DataType) -> None:
    values: list[Any] = [3, 1] if pa.types.is_integer(type_) else ["y", "x"]
    table = pa.table({"text": pa.array(["a", "b"], pa.dictionary(pa.int8(), pa.string())), "label": pa.array(values, type_)})
    assert rows(save(tmp_path, way, table), label_column="label") == list(zip(["a", "b"], values, strict=True))


def test_a_number_beyond_64_bits_is_named_by_its_row(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "label": pa.array([1, 2**63], pa.uint64())})
    path = save(tmp_path, "stream", table)
    assert refusal(path, label_column="label").message == f"{path}: row 2: 'label' does not fit into a signed 64-bit integer"


@pytest.mark.parametrize("way", WAYS)
def test_a_missing_column_lists_what_there_is(tmp_path: Path, way: str) -> None:
    path = save(tmp_path, way, TABLE)
    error = refusal(path, text_column="txt")
    assert error.message == f"{path}: no column 'txt'"
    assert error.hint == "Columns: text, label, more. Did you mean --text-column text?"


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.parquet.gz", "a.arrow.zst"])
@pytest.mark.parametrize("content", [b"\x00\xff\x12garbage" * 100, b"ARROW1garbage", b"PAR1garbage", b"x"])
def test_garbage_is_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    path = write(tmp_path / name, content)
    assert refusal(path).message.startswith(f"{path}: ")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_truncated_file_is_refused(tmp_path: Path, way: str, keep: float) -> None:
    path = save(tmp_path, way, TABLE)
    write(path, path.read_bytes()[: int(path.stat().st_size * keep)])
    assert str(path) in refusal(path).message


@pytest.mark.parametrize("way", WAYS)
def test_a_table_without_rows_is_said_so(tmp_path: Path, way: str) -> None:
    assert "no rows" in refusal(save(tmp_path, way, TABLE.slice(0, 0))).message


def test_a_file_whose_offsets_are_damaged_is_refused_and_does_not_crash(tmp_path: Path) -> None:
    path = save(tmp_path, "stream", pa.table({"text": ["abc", "def"]}))
    data = path.read_bytes()
    place = data.index(b"\x03\x00\x00\x00\x06\x00\x00\x00")
    write(path, data[:place] + b"\xff\xff\xff\x7f" + data[place + 4 :])
    assert str(path) in refusal(path).message


def test_a_column_that_is_a_folder_s_name_is_pointed_at(tmp_path: Path) -> None:
    folder = tmp_path / "label=pos"
    folder.mkdir()
    pq.write_table(pa.table({"text": ["a", "b"]}), folder / "part.parquet")
    error = refusal(folder / "part.parquet", label_column="label")
    assert "its value is in the folder name (label=pos)" in error.message
    assert "partitioning='hive'" in error.hint
