"""Damaged files are read or refused by name: no crash, no other exception, no endless loop."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ftcli.errors import DataError
from reading import rows, write

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


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.csv", "a.tsv", "a.parquet", "file.arrow", "stream.arrow"])
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
