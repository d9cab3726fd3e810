"""Damaged files are read or refused by name: no crash, no other exception, no endless loop."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.errors import DataError
from reading import accounted, rows, write
from reliability import size
from tokenizing import prepare, small_tokenizers, without_plots

__all__ = ["small_tokenizers", "without_plots"]

TEXTS = [f'글 {i}, "q"' for i in range(40)]
TABLE = pa.table({"text": pa.array(TEXTS).dictionary_encode(), "label": [i % 5 for i in range(40)]})
LINES = [json.dumps({"text": text, "label": i, "x": [None, {"y": 1}]}, ensure_ascii=i % 2 == 0) for i, text in enumerate(TEXTS)]


def made(name: str) -> bytes:
    sink = pa.BufferOutputStream()
    if name == "a.parquet":
        pq.write_table(TABLE, sink, row_group_size=15)
    elif name in {"file.arrow", "stream.arrow"}:
        with (pa.ipc.new_file if name == "file.arrow" else pa.ipc.new_stream)(sink, TABLE.schema) as writer:
            writer.write_table(TABLE.unify_dictionaries(), max_chunksize=15)
    else:
        text = {
            "a.jsonl": "\n".join(LINES),
            "a.jsonl.gz": "\n".join(LINES),
            "a.json": "[" + ",\n".join(LINES) + "]",
            "a.csv": "text,label\n" + "".join(f'"{text.replace(chr(34), chr(34) * 2)}",{i}\r\n' for i, text in enumerate(TEXTS)),
            "a.tsv": "text\tlabel\n" + "".join(f"{text}\t{i}\n" for i, text in enumerate(TEXTS)),
        }[name].encode()
        return gzip.compress(text) if name.endswith(".gz") else text
    return bytes(sink.getvalue())


BYTES = st.sampled_from([b"", b"\x00", b"\xff", b'"', b"\n", b"\r\n", b"null", b"{", b"}", b"\xff\xff\xff\x7f", b"\\"])


NAMES = ("a.jsonl", "a.jsonl.gz", "a.json", "a.csv", "a.tsv", "a.parquet", "file.arrow", "stream.arrow")


@pytest.mark.parametrize("name", NAMES)
@hypothesis_settings(max_examples=size(20, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), BYTES), min_size=1, max_size=3), target=st.sampled_from([20, 300, 10**6])
)
def test_damage_is_refused_by_name_or_harmless(tmp_path: Path, name: str, places: list[tuple[float, int, bytes]], target: int) -> None:
    data = made(name)
    assert len(rows(write(tmp_path / name, data), label_column="label", shard_bytes=target)) == 40
    for where, width, instead in places:
        place = int(where * len(data))
        data = data[:place] + instead + data[place + width :]
    file = write(tmp_path / name, data)
    try:
        rows(file, label_column="label", shard_bytes=target)
        refused = None
    except DataError as error:
        refused = error
    assert refused is None or (str(file) in refused.message and refused.hint)
    with suppress(DataError):  # what cannot be read at all is refused under quarantine, too
        good, bad = accounted(file, label_column="label", shard_bytes=target, on_bad="quarantine")
        assert (written := rows_of(name, data)) is None or len(good) + len(bad) == written


def rows_of(name: str, data: bytes) -> int | None:
    """How many rows there are, by another reader; None: in a damaged file of this format nobody can say."""
    if name == "a.jsonl":
        return sum(bool(line.strip()) for line in data.split(b"\n"))
    return pq.ParquetFile(pa.BufferReader(data)).metadata.num_rows if name == "a.parquet" else None


ROWS = {
    "a good one": {"text": '글, "q"', "label": 1},
    "no text": {"text": None, "label": 2},
    "no label": {"text": "words", "label": None},
    "white space": {"text": " \n\t", "label": 3},
    "nothing in it": {"text": "", "label": 4},
}
"""Rows that every format can hold."""
WORDS = ("a.csv", "a.tsv")
"""Whose values are all text: none is missing."""


def holding(name: str, table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    if name == "a.parquet":
        pq.write_table(table, sink, row_group_size=3)
    elif name.endswith(".arrow"):
        with (pa.ipc.new_file if name == "file.arrow" else pa.ipc.new_stream)(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    elif name.endswith(("csv", "tsv")):
        mark = "," if name == "a.csv" else "\t"
        quoted = [
            ["" if value is None else f'"{str(value).replace(chr(34), 2 * chr(34))}"' for value in row.values()]
            for row in table.to_pylist()
        ]
        return "".join(mark.join(cells) + "\n" for cells in (table.column_names, *quoted)).encode()
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in table.to_pylist()]
        text_of = "[" + ",\n".join(lines) + "]" if name == "a.json" else "\n".join(lines)
        return gzip.compress(text_of.encode()) if name.endswith(".gz") else text_of.encode()
    return bytes(sink.getvalue())


@pytest.mark.parametrize("name", NAMES)
@hypothesis_settings(max_examples=size(15, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.lists(st.sampled_from(sorted(ROWS)), max_size=12), target=st.sampled_from([20, 300, 10**6]))
def test_every_row_that_is_written_is_given_out_or_rejected(tmp_path: Path, name: str, kinds: list[str], target: int) -> None:
    kinds = ["a good one", *kinds]
    schema = pa.schema({"text": pa.string(), "label": pa.int64()})
    file = write(tmp_path / name, holding(name, pa.Table.from_pylist([ROWS[kind] for kind in kinds], schema)))
    good, bad = accounted(file, label_column="label", shard_bytes=target, on_bad="quarantine")
    assert len(good) + len(bad) == len(kinds)
    assert len(good) >= kinds.count("a good one")
    assert len(bad) >= (0 if name in WORDS else kinds.count("no label"))


@pytest.mark.parametrize("name", NAMES)
def test_rows_read_are_rows_written_rejected_and_filtered(
    name: str, tmp_path: Path, small_tokenizers: Mapping[str, Path], without_plots: None
) -> None:
    """The accounting law, by the whole command."""
    rows_in = ["a good one", *sorted(ROWS)] * 3
    schema = pa.schema({"text": pa.string(), "label": pa.int64()})
    file = write(tmp_path / name, holding(name, pa.Table.from_pylist([ROWS[kind] for kind in rows_in], schema)))
    values = {"dataset__label_column": "label", "dataset__on_bad": "quarantine", "dataset__max_bad": 0.9, "dataset__shard_bytes": 100}
    metrics = prepare(small_tokenizers["bpe"], file, tmp_path / "out", **values).metrics
    assert metrics["rows_read"] == len(rows_in) == metrics["rows_written"] + metrics["rows_rejected"] + metrics["rows_filtered"]
    assert metrics["rows_written"] >= 6
    assert metrics["rows_rejected"] >= (0 if name in WORDS else 3)
