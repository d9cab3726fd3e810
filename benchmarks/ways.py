"""The ways that are compared, each as a command in fresh processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import llama, process
from benchmarks.inputs import Source, beginning
from benchmarks.process import Outcome, environment, python

ROWS_WHOLE = ("--max-length", "100000000", "--min-length", "0", "--no-add-eos", "--truncation-strategy", "error")
"""Every id of every row, as `tokenizer(text)` gives them: nothing cut, nothing filtered, nothing added."""
TINY = 2_000_000
"""Bytes of the input whose run measures what the usual way takes before it works."""


@dataclass(frozen=True, slots=True)
class Ours:
    """A run of `ftcli tokenize`."""

    outcome: Outcome
    metrics: Mapping[str, Any]
    seconds: float
    """Of the pipeline alone, by ftcli's own clock."""


class Bench:
    """Runs the ways. Everything they write lies in `work`, and `output` holds what ftcli made last.

    Args:
        cpus: every measured process runs on these only.
        workers: processes of each way.
    """

    def __init__(self, data: Path, work: Path, cpus: Collection[int], workers: int) -> None:
        self.data, self.work, self.cpus, self.workers = data, work, tuple(cpus), workers
        self.output, self.theirs = work / "ours", work / "theirs"
        self.files, self.theirs_indexed = work / "ours-indexed", work / "theirs-indexed"
        """What `exported` makes, and what `indexed` does: the latter without `.bin` and `.idx`."""
        self._proved: set[str] = set()

    def tokenizer(self, name: str) -> Path:
        folder = self.data / "tokenizers" / name
        return llama.build(self.data / "tokenizers" / "qwen3", self.work / "tokenizers" / name) if name == "llama-3-style" else folder

    def command(self, source: Source, tokenizer: Path, workers: int, *more: str) -> list[str]:
        arguments: list[str | Path] = ["tokenize", source.path, "--tokenizer-path", tokenizer, "--output-dir", self.output]
        options: list[str | Path] = ["--report-dir", self.work / "reports", "--num-proc", str(workers), "--json"]
        return python("-m", "ftcli", *arguments, *ROWS_WHOLE, *more, *options)

    def environment(self, **more: str) -> dict[str, str]:
        return environment(self.work, **more)

    def prove(self, source: Source, tokenizer: Path) -> None:
        """Have the engine's proof for this tokenizer in the cache, as it is from the second command on."""
        if str(tokenizer) not in self._proved:
            self.ours(beginning(source, self.work / "beginnings", size=TINY), tokenizer, self.workers)
            self._proved.add(str(tokenizer))

    def ours(self, source: Source, tokenizer: Path, workers: int, *more: str) -> Ours:
        """The whole command into a fresh directory; with fewer workers than CPUs it gets as many CPUs as workers. What an earlier round left in
        the cache about these very rows is removed: a user meets data for the first time."""
        shutil.rmtree(self.output, ignore_errors=True)
        for kept in (self.work / "cache").rglob("rows-*.json"):
            kept.unlink()
        outcome = process.run(self.command(source, tokenizer, workers, *more), self.cpus[:workers], self.environment(), self.work)
        metrics = json.loads(outcome.output.splitlines()[-1])["metrics"]
        return Ours(outcome, metrics, metrics["bytes_read"] / 1e6 / metrics["megabytes_per_second"])

    def naive(self, source: Source, tokenizer: Path) -> Outcome:
        """load_dataset, map and save_to_disk with an empty cache, into `theirs`."""
        cache = self.work / "hf"
        for folder in (cache, self.theirs):
            shutil.rmtree(folder, ignore_errors=True)
        command = python("-m", "benchmarks.naive", source.path, tokenizer, self.theirs, str(self.workers))
        return process.run(command, self.cpus, self.environment(HF_HOME=str(cache)), self.work)

    def exported(self) -> Outcome:
        """What `ours` made last as Megatron's files, into `files`."""
        shutil.rmtree(self.files, ignore_errors=True)
        command = python("-m", "ftcli", "export", self.output, "--format", "megatron", "--output", self.files, "--json")
        return process.run(command, self.cpus, self.environment(), self.work)

    def indexed(self, source: Source, tokenizer: Path) -> Outcome:
        """Megatron's way to such files."""
        command = python("-m", "benchmarks.megatron_way", source.path, tokenizer, self.theirs_indexed, str(self.workers))
        return process.run(command, self.cpus, self.environment(), self.work)

    def alone(self, engine: str, source: Source, tokenizer: Path, *, processes: int, threads: int) -> tuple[Outcome, Mapping[str, float]]:
        """The engine on text in memory."""
        command = python("-m", "benchmarks.alone", engine, source.texts, tokenizer, str(processes), str(threads))
        outcome = process.run(command, self.cpus, self.environment(), self.work)
        return outcome, json.loads(outcome.output.splitlines()[-1])
