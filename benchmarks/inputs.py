"""The texts that are tokenized, built from the data folder once and kept in the work folder."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet as pq

from ftcli.core.corpus.sample import Sampler

SEED = 7
CODE_BYTES = 500_000_000
JOB_ROWS = 7_500_000
JOB_ROW_BYTES = 2_000
JOB_TEXTS = 200_000
TEXTS_BYTES = 1_000_000_000
"""Text that the engine alone gets, at most: it has to be in memory."""
TEXTS = pa.schema([pa.field("text", pa.large_string())])

Row = tuple[bytes, str]
"""A JSON line with its line end, and its text."""


@dataclass(frozen=True, slots=True)
class Source:
    """An input file. `texts` is an Arrow file of its text column (its first rows, where that would be too much to hold)."""

    path: Path
    texts: Path
    rows: int
    file_bytes: int
    text_bytes: int


class Library:
    """Builds inputs in `work` from `data`, or finds them there."""

    def __init__(self, data: Path, work: Path, scale: float, job_rows: int) -> None:
        self.data, self.work, self.scale, self.job_rows = data, work, scale, job_rows

    def get(self, name: str) -> Source:
        folder = self.work / "inputs" / (f"{name}-{self.job_rows}" if name == "job" else f"{name}-{self.scale:g}")
        note = folder / "source.json"
        if not note.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            source = self._builders()[name](folder)
            record = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(source).items()}
            note.write_text(json.dumps(record))
        found = json.loads(note.read_text())
        return Source(Path(found["path"]), Path(found["texts"]), found["rows"], found["file_bytes"], found["text_bytes"])

    def _builders(self) -> dict[str, Callable[[Path], Source]]:
        return {
            "docs": self._docs,
            "nsmc": self._nsmc,
            "nsmc-parquet": self._nsmc_parquet,
            "code": self._code,
            "sft": self._sft,
            "job": self._job,
        }

    def _docs(self, folder: Path) -> Source:
        texts = self.data / "text"
        rows = _rows(texts / "en_docs_long" / "en_docs.jsonl.gz") + _rows(texts / "ko_docs_long" / "ko_docs.jsonl.gz")
        return _write(folder, repeated(rows, round(5 * self.scale * len(rows))))

    def _nsmc(self, folder: Path) -> Source:
        rows = _rows(self.data / "classification" / "nsmc_raw" / "nsmc_raw.jsonl.gz")
        return _write(folder, repeated(rows, round(20 * self.scale * len(rows))))

    def _nsmc_parquet(self, folder: Path) -> Source:
        source = self.get("nsmc")
        table = pyarrow.json.read_json(source.path)
        path = folder / "data.parquet"
        pq.write_table(table, path, row_group_size=100_000)
        return Source(path, source.texts, table.num_rows, path.stat().st_size, source.text_bytes)

    def _code(self, folder: Path) -> Source:
        rows: list[Row] = []
        for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
            if "site-packages" in path.parts:
                continue
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:  # tests of other encodings
                continue
            rows.append((json.dumps({"text": text}, ensure_ascii=False).encode(errors="replace") + b"\n", text))
        once = sum(len(line) for line, _ in rows)
        return _write(folder, repeated(rows, round(CODE_BYTES * self.scale / once * len(rows))))

    def _sft(self, folder: Path) -> Source:
        rows: list[Row] = []
        with gzip.open(self.data / "instruct" / "gsm8k_train" / "train.jsonl.gz") as lines:
            for line in lines:
                row = json.loads(line)
                messages = [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]
                rows.append((json.dumps({"messages": messages}, ensure_ascii=False).encode() + b"\n", row["question"] + row["answer"]))
        return _write(folder, repeated(rows, round(30 * self.scale * len(rows))))

    def _job(self, folder: Path) -> Source:
        return _write(folder, generated(self.job_rows))


def repeated(rows: Sequence[Row], count: int) -> Iterator[Row]:
    """`count` rows: all of them in a shuffled order, again and again in another one, so that any beginning is a fair sample."""
    generator = random.Random(SEED)
    left = max(2, count)
    while left > 0:
        order = list(range(len(rows)))
        generator.shuffle(order)
        yield from (rows[number] for number in order[:left])
        left -= len(rows)


def generated(count: int) -> Iterator[Row]:
    """Rows of about 2 kB, all different: each joins random texts of 200,000 that `ftcli sample-data` would write."""
    sampler = Sampler(SEED)
    texts = [sampler.row(number)[0] for number in range(min(JOB_TEXTS, max(1_000, count)))]
    lines = [json.dumps(text, ensure_ascii=False).encode()[1:-1] for text in texts]
    parts = JOB_ROW_BYTES * len(lines) / sum(map(len, lines))  # of a row on average
    generator = np.random.default_rng(SEED)
    for start in range(0, count, 10_000):
        rows = min(10_000, count - start)
        longer = generator.random(rows) < parts % 1
        for drawn, more in zip(generator.integers(0, len(texts), (rows, int(parts) + 1)).tolist(), longer.tolist(), strict=True):
            row = drawn if more else drawn[:-1]
            yield b'{"text": "' + b" ".join([lines[number] for number in row]) + b'"}\n', " ".join([texts[number] for number in row])


def beginning(source: Source, folder: Path, *, size: int) -> Source:
    """The first rows of a source, of about `size` bytes of its file, as a file of the same kind; the source itself if it is no larger."""
    if source.file_bytes <= size:
        return source
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"beginning-{size}{source.path.suffix}"
    if source.path.suffix == ".parquet":
        rows = max(2, source.rows * size // source.file_bytes)
        pq.write_table(pq.read_table(source.path).slice(0, rows), path, row_group_size=100_000)
    else:
        rows = written = 0
        with source.path.open("rb") as lines, path.open("wb") as out:
            for line in lines:
                if rows >= 2 and written + len(line) > size:
                    break
                rows, written = rows + 1, written + out.write(line)
    return Source(path, source.texts, rows, path.stat().st_size, text_bytes(source.texts, rows))


def text_bytes(texts: Path, rows: int) -> int:
    """Bytes of UTF-8 in the first `rows` texts."""
    with pa.memory_map(str(texts)) as file:
        column = pa.ipc.open_file(file).read_all().column("text").slice(0, rows)
        return int(pc.sum(pc.binary_length(column)).as_py())


def _rows(path: Path) -> list[Row]:
    """Rows of a JSON-lines file, compressed or not, whose text is in the field "text"."""
    with gzip.open(path) as lines:
        return [(line, json.loads(line)["text"]) for line in lines]


def _write(folder: Path, rows: Iterator[Row]) -> Source:
    """Both files at once, streamed."""
    path, texts = folder / "data.jsonl", folder / "texts.arrow"
    count = size = 0
    with path.open("wb", buffering=1 << 22) as out, pa.OSFile(str(texts), "wb") as file, pa.ipc.new_file(file, TEXTS) as column:
        held = 0
        while chunk := list(islice(rows, 2_000)):
            out.writelines(line for line, _ in chunk)
            array = pa.array([text for _, text in chunk], pa.large_string())
            count += len(chunk)
            size += int(pc.sum(pc.binary_length(array)).as_py())
            if held < TEXTS_BYTES:
                column.write_batch(pa.record_batch([array], schema=TEXTS))
                held = size
    return Source(path, texts, count, path.stat().st_size, size)
