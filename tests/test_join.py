"""Many small files: their rows are encoded together, and accounted for apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durability import watched
from ftcli.core.prepare import join
from ftcli.core.prepare.join import as_batch, joined
from ftcli.core.publishing.shard import ShardWriter
from ftcli.core.reading import shards
from ftcli.core.reading.reject import Rejects, whole
from ftcli.errors import DataError
from ftcli.records import BadRow, Piece, ShardPlan
from reading import formats, plan, settings
from reading import write as write_file
from tokenizing import corpus, ids, manifest, prepare, small_tokenizers, without_plots, write

__all__ = ["small_tokenizers", "without_plots"]


def batch(texts: list[str]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(texts, pa.large_string())], names=["text"])


@given(st.lists(st.lists(st.text(max_size=5), max_size=9), max_size=9), st.integers(1, 7), st.integers(1, 60))
def test_groups_have_the_same_rows_in_the_same_order(files: list[list[str]], most: int, size: int) -> None:
    source = [(Piece(str(number), "text", 0, 1, "file", 1), batch(texts)) for number, texts in enumerate(files)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "JOINED_BYTES", size)
        groups = list(joined(source, most))
    assert [(piece.path, text) for group in groups for piece, rows in group for text in rows["text"].to_pylist()] == [
        (str(number), text) for number, texts in enumerate(files) for text in texts
    ]
    for group in groups:
        assert 0 < as_batch(group).num_rows == sum(rows.num_rows for _, rows in group) <= most
        assert as_batch(group).num_rows == 1 or sum(rows.nbytes for _, rows in group) <= size


def test_a_batch_of_long_rows_is_cut_by_bytes_and_one_of_short_rows_is_not() -> None:
    piece = Piece("a", "parquet", 0, 1, "rows", 1)
    rows = [as_batch(group).num_rows for group in joined([(piece, batch(["x" * (join.JOINED_BYTES // 3)] * 8))], 1000)]
    assert rows == [2, 2, 2, 2]
    assert [as_batch(group).num_rows for group in joined([(piece, batch(["x"] * 2500))], 1000)] == [1000, 1000, 500]
    assert [as_batch(group).num_rows for group in joined([(piece, batch(["x" * (join.JOINED_BYTES + 1)] * 2))], 1000)] == [1, 1]


def test_an_error_of_the_source_comes_after_the_rows_before_it() -> None:
    def source() -> object:
        yield Piece("a", "text", 0, 1, "file", 1), batch(["one"])
        raise DataError("b is damaged", "")

    groups = joined(source(), 10)  # type: ignore[arg-type]
    assert len(next(groups)) == 1
    with pytest.raises(DataError, match="b is damaged"):
        next(groups)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"packing__truncation_strategy": "split"},
        {"packing__truncation_strategy": "drop"},
        {"packing__min_length": 12},
        {"dataset__max_row_tokens": 20},
    ],
)
def test_the_rows_and_counts_of_small_files_are_those_of_files_read_alone(
    small_tokenizers: Mapping[str, Path], without_plots: None, tmp_path: Path, values: Mapping[str, object]
) -> None:
    texts = corpus(120)
    for start in range(0, 120, 3):
        write(tmp_path / "in" / f"{start:03d}.jsonl", texts[start : start + 3])
    values = {"packing__max_length": 16, "dataset__on_bad": "quarantine", "dataset__max_bad": 1.0, **values}
    for name, most in (("together", 1000), ("apart", 3)):  # three rows a file
        prepare(small_tokenizers["bpe"], tmp_path / "in", tmp_path / name, dataset__batch_size=most, **values)
    assert ids(tmp_path / "together") == ids(tmp_path / "apart")
    together, apart = manifest(tmp_path / "together"), manifest(tmp_path / "apart")
    assert together["content_hash"] == apart["content_hash"]
    assert together["details"]["sources"] == apart["details"]["sources"]
    assert len(together["details"]["sources"]) == 40
    for name in ("rows_truncated", "tokens_cut", "texts_split", "rows_filtered", "rows_too_long", "rows_rejected"):
        assert together["metrics"][name] == apart["metrics"][name]
    assert (together["metrics"]["rows_too_long"] > 0) == (values.get("packing__truncation_strategy") == "drop")


def test_many_small_files_are_the_work_of_several_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MOST_PIECES", 10)
    for number in range(25):
        write_file(tmp_path / f"{number}.txt", "a\n")
    assert [len(shard.pieces) for shard in plan(tmp_path).shards] == [10, 10, 5]


def test_rejects_are_durable_before_they_have_their_name_and_their_name_before_the_shard_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tmp", "records"):
        (tmp_path / name).mkdir()
    piece = Piece("a.jsonl", "jsonl", 0, 1, "bytes", 1)
    found = BadRow(piece.path, "null", "text is null", line=1, start=0, raw=b"{}")
    with ShardWriter(tmp_path, "train-0") as writer:
        rejects = Rejects(ShardPlan(0, "train", (piece,)), settings(on_bad="quarantine"), formats(), writer)
        rejects.of(piece)(found)
        steps = watched(monkeypatch)
        part = rejects.commit("train-0")
    assert part is not None
    assert steps[:3] == ["sync rejects.merged", "move train-0.rejects.jsonl", "sync records"]
    assert whole(tmp_path, {"rejects": part})
