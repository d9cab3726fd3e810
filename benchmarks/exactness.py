"""Every tokenizer × every engine × every text of a data folder against AutoTokenizer's own ids; exits 1 where one id differs.

Run: python benchmarks/exactness.py DATA [--tokenizers gpt2 qwen3] [--cap BYTES]
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # this folder holds a tokenize.py, and the standard library's modules import one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - before anything is imported

import argparse
import csv
import gzip
import io
import json
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from transformers import AutoTokenizer

from ftcli.core.engines.backend import prepare_backend
from ftcli.core.engines.engine import choose_engine, load_encoder
from ftcli.core.engines.proof import Reference, differing_rows
from ftcli.core.engines.reference import PythonEncoder
from ftcli.core.engines.row_encoder import EncoderSpec, RowEncoder
from ftcli.errors import EngineError, MissingExtraError
from ftcli.pluginmanager import Plugins

BATCH_BYTES = 4_000_000
LINES = 20
"""Lines of a plain text that make one text."""


@dataclass(slots=True)
class Line:
    """One line of the table."""

    tokenizer: str
    engine: str
    texts: int = 0
    bytes: int = 0
    differing: int = 0
    by_reference: int = 0
    failures: int = 0
    refused: str = ""

    def __str__(self) -> str:
        start = f"| {self.tokenizer} | {self.engine} |"
        if self.refused:
            return f"{start} – | – | – | – | {self.refused[:110]} |"
        return f"{start} {self.texts:,} | {self.bytes / 1e6:.1f} | {self.differing} | {self.by_reference:,} | failures: {self.failures} |"


def strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def texts_of(path: Path) -> Iterator[str]:
    """The texts of one file: strings of JSON, fields of tables, runs of lines, members of archives."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(member).decode("utf-8", "replace") for member in archive.namelist())
        return
    data = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    content = data.decode("utf-8", "replace")
    if name.endswith(".jsonl"):
        for line in filter(None, content.split("\n")):
            yield from strings(json.loads(line))
    elif name.endswith(".json"):
        yield from strings(json.loads(content))
    elif name.endswith(".csv"):
        for row in csv.reader(io.StringIO(content, newline="")):
            yield from row
    elif name.endswith(".tsv"):
        for line in filter(None, content.split("\n")):
            yield from line.split("\t")
    else:
        lines = io.StringIO(content, newline="")
        while run := "".join(islice(lines, LINES)):
            yield run


def all_texts(data: Path, cap: int | None) -> list[str]:
    """The different texts of all files, at most `cap` bytes of each file (evenly from all of it)."""
    seen: dict[str, None] = {}
    for path in sorted(path for kind in ("classification", "instruct", "text") for path in (data / kind).rglob("*") if path.is_file()):
        texts = list(dict.fromkeys(texts_of(path)))
        step = max(1, sum(len(text.encode()) for text in texts) // cap) if cap else 1
        seen.update(dict.fromkeys(texts[::step]))
    return list(seen)


def batches(texts: list[str]) -> Iterator[pa.Array]:
    start = size = 0
    for number, text in enumerate(texts):
        size += len(text.encode())
        if size > BATCH_BYTES or number == len(texts) - 1:
            yield pa.array(texts[start : number + 1], pa.large_string())
            start, size = number + 1, 0


def compare(folder: Path, texts: list[str], plugins: Plugins, cache_dir: Path | None, engines: Sequence[str]) -> Iterable[Line]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    except Exception as error:  # noqa: BLE001 - a folder may fail in any way, which is a line of the table
        return [Line(folder.name, "-", refused=f"AutoTokenizer cannot load it: {str(error).splitlines()[0]}")]
    lines: list[tuple[Line, RowEncoder | None]] = []
    shared = Reference(tokenizer, prepare_backend(tokenizer, folder), 1)
    for name in engines:
        try:
            choice = choose_engine(tokenizer, folder, plugins, requested=name, cache_dir=cache_dir, sample=texts[:200], reference=shared)
        except (EngineError, MissingExtraError) as error:
            lines.append((Line(folder.name, name, refused=error.message), None))
            continue
        label = f"auto: {choice.name}" if name == "auto" else name
        lines.append((Line(folder.name, label), encoder_of(choice.spec, plugins)))
    reference = PythonEncoder(tokenizer, add_special_tokens=True)
    for batch in batches(texts):
        expected = reference.encode(batch)
        for line, encoder in lines:
            if encoder is not None:
                encoded = encoder.encode_whole(batch)
                line.texts += len(batch)
                line.bytes += batch.nbytes - 8 * len(batch)
                line.differing += len(differing_rows(expected, encoded))
                line.by_reference, line.failures = encoder.rows_by_reference, len(encoder.failures)
    return [line for line, _ in lines]


def encoder_of(spec: EncoderSpec, plugins: Plugins) -> RowEncoder:
    load_encoder.cache_clear()
    return load_encoder(spec, plugins)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with tokenizers/, classification/, instruct/ and text/")
    parser.add_argument("--tokenizers", nargs="*", metavar="NAME", help="these only (default: all)")
    parser.add_argument("--engines", nargs="*", metavar="NAME", help="these only (default: auto and all)")
    parser.add_argument("--cap", type=int, metavar="BYTES", help="bytes of each file, evenly from all of it (default: everything)")
    parser.add_argument("--cache-dir", type=Path, help="where proofs are kept (default: nowhere)")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "This sequence already has")  # ByT5, of texts that end with </s>
    texts, plugins = all_texts(args.data, args.cap), Plugins(allow=())
    print(
        "| tokenizer | engine | texts | MB | texts with another id | texts by the reference | |\n|---|---|---|---|---|---|---|", flush=True
    )
    wrong = 0
    for folder in sorted((args.data / "tokenizers").iterdir()):
        if not args.tokenizers or folder.name in args.tokenizers:
            for line in compare(folder, texts, plugins, args.cache_dir, args.engines or ("auto", *plugins.registry("engine").names())):
                print(line, flush=True)
                wrong += line.differing + (line.engine.startswith("auto") and bool(line.refused))
    print(f"{len(texts):,} texts; {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
