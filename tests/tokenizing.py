"""What the tests of tokenizing share: tokenizers of every kind, corpora, contexts, and what was published."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from datasets import Dataset
from ftcli.plugins.executors import Local

from ftcli.commands import tokenize
from ftcli.context import Context
from ftcli.core import progress
from ftcli.core.processes import footprint
from ftcli.core.tokenizer.train_tokenizer import Kind, train_tokenizer
from ftcli.pluginmanager import Plugins
from ftcli.records import MANIFEST_NAME, Report
from ftcli.testing import TEXTS

WORDS = " ".join(TEXTS).split()


def corpus(rows: int, start: int = 0) -> list[str]:
    """Different texts of 1 to 30 words; some hold special tokens, white space or letters of few texts."""
    odd = ("<|endoftext|> inside", "[SEP] and </s>", "  two  spaces\n", "é e\u0301 😀👍🏽", "Ω", "\t", "日本語 русский")
    texts = []
    for number in range(start, start + rows):
        words = [WORDS[(number * 7 + place * (number % 5 + 1)) % len(WORDS)] for place in range(number * number % 30)]
        texts.append(f"{number} {' '.join(words)}{odd[number % len(odd)] if number % 4 == 0 else ''}")
    return texts


@pytest.fixture(scope="session")
def small_tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Kind, Path]:
    """A small tokenizer of each kind, made once a session (the fixture is imported into several modules)."""
    root = tmp_path_factory.getbasetemp() / "small-tokenizers"
    made: dict[Kind, Path] = {"bpe": root / "bpe", "wordpiece": root / "wordpiece", "unigram": root / "unigram"}
    for kind, folder in made.items():
        if not folder.exists():
            train_tokenizer(corpus(300), folder, kind, 600)
    return made


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `here`."""
    here(monkeypatch)


def here(patch: pytest.MonkeyPatch) -> None:
    """`tokenize` writes no page, and one worker is this process: they take nine tenths of a small run. Its memory is not walked page by page: 20 of
    the 80 ms that are left, where torch is in it."""
    patch.setattr(tokenize, "filed", lambda report, *_: report)
    patch.setattr(footprint, "_share", footprint._whole)
    patch.setattr("ftcli.plugins.executors.Local", Here)


class Here(Local):
    """One worker is this process, so that what a test patches is patched there too; several are processes, as ever."""

    def start(self, workers: int) -> None:
        if workers > 1:
            super().start(workers)

    def each(self, function: Callable[[], Any]) -> list[Any]:
        return super().each(function) if self._workers else [function()]

    def run(
        self, function: Callable[..., Any], shards: Sequence[Any], on_progress: Callable[..., None], rescue: Any = None
    ) -> Iterator[Any]:
        if self._workers:
            yield from super().run(function, shards, on_progress, rescue)
            return
        for shard in shards:
            with progress.to(on_progress):
                result = function(shard)
            yield result


def write(path: Path, texts: Iterable[str], labels: Iterable[str | int] | None = None) -> Path:
    """JSON lines with text and label."""
    rows = [{"text": text} for text in texts] if labels is None else [{"text": a, "label": b} for a, b in zip(texts, labels, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def context(tokenizer: Path, source: Path | Sequence[Path | str], output: Path, plugins: Plugins | None = None, **values: Any) -> Context:
    """Values are settings with "__" for the dot. The reference engine is used unless another is named: it needs no proof."""
    sources = [str(source)] if isinstance(source, Path) else [str(item) for item in source]
    given = {
        "dataset__sources": sources,
        "dataset__output_dir": output,
        "tokenizer__path": str(tokenizer),
        "tokenizer__engine": "hf",
        "runtime__report_dir": output.parent / "reports",
        "runtime__cache_dir": tokenizer.parent / "proofs",
        **values,
    }
    return Context.make({key.replace("__", "."): value for key, value in given.items()}, plugins)


def prepare(tokenizer: Path, source: Path | Sequence[Path | str], output: Path, plugins: Plugins | None = None, **values: Any) -> Report:
    return tokenize.run(context(tokenizer, source, output, plugins, **values))


def rows(output: Path, split: str = "train") -> list[dict[str, Any]]:
    return list(Dataset.load_from_disk(str(output / split)).to_list())


def ids(output: Path, split: str = "train") -> list[list[int]]:
    return [row["input_ids"] for row in rows(output, split)]


def manifest(output: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((output / MANIFEST_NAME).read_text(encoding="utf-8"))
    return document


def documents(row: Mapping[str, Any]) -> list[list[int]]:
    """The documents of a packed row."""
    ends = [0]
    for length in row["seq_lengths"]:
        ends.append(ends[-1] + length)
    assert ends[-1] == len(row["input_ids"])
    return [row["input_ids"][start:stop] for start, stop in pairwise(ends)]


def stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Everything that would show a write."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        stat = path.stat()
        found[str(path)] = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
    return found


def left_behind(output: Path) -> list[str]:
    """Attempts and set-aside directories beside the output."""
    return sorted(path.name for path in output.parent.iterdir() if path.name.startswith(f".{output.name}"))


class Bar:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.stages: dict[str, list[float]] = {}
        self.totals: dict[str, float | None] = {}
        self.said: list[str] = []
        self._stage = ""

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self._stage = stage
        self.totals[stage], self.stages[stage] = total, []

    def advance(self, amount: float, **figures: Any) -> None:
        self.stages[self._stage].append(amount)

    def say(self, message: str) -> None:
        self.said.append(message)

    def close(self) -> None: ...


ENGINE = '''
from ftcli import hookimpl
from ftcli.core.engines.reference import load_reference
from ftcli.core.ragged import to_offsets
from ftcli.contracts import Encoded
import numpy as np

class Twisted:
    """The reference, but a text with "zebra" gets another last id, and one with "boom" raises."""
    def __init__(self, encoder):
        self.encoder = encoder

    def encode(self, texts):
        words = texts.to_pylist()
        if any("boom" in text for text in words):
            raise RuntimeError("boom")
        encoded = self.encoder.encode(texts)
        ids = encoded.ids.copy()
        for row, text in enumerate(words):
            if "zebra" in text:
                ids[encoded.offsets[row + 1] - 1] ^= 1
        return Encoded(ids, encoded.offsets)

class Engine:
    name, version, rank = "double", "1", 1
    def load(self, backend_json, folder, threads):
        return Twisted(load_reference(backend_json, folder, threads))

@hookimpl
def register_engines(register):
    register("double", Engine)
'''


def plugins(folder: Path, text: str = ENGINE, name: str = "other") -> Plugins:
    """The built-in plugins and one in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(dedent(text))
    return Plugins(folder, allow=())
