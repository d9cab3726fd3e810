"""`ftcli train-tokenizer`: a fast tokenizer for one's own text, as a complete Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from ftcli.context import Context
from ftcli.core.files.objects import refuse_url
from ftcli.core.reading.read import make_plan, read_shard
from ftcli.core.reading.reject import strict
from ftcli.core.tokenizer.train_tokenizer import Kind, train_tokenizer
from ftcli.errors import DataError, UsageError
from ftcli.records import BadRow, Report


def run(context: Context, kind: str, vocab_size: int, output: Path) -> Report:
    """Train on the train split of the sources.

    Raises:
        UsageError: no sources, an unknown kind, a vocabulary that cannot be, or an output that holds something.
        DataError: a bad row, or more of them than `dataset.max_bad` allows.
    """
    settings = context.settings
    if not settings.dataset.sources:
        raise UsageError("no data source given", "Example: ftcli train-tokenizer reviews.jsonl --output DIR")
    kinds: tuple[Kind, ...] = get_args(Kind)
    chosen = next((known for known in kinds if known == kind), None)
    if chosen is None:
        raise UsageError(f"there is no tokenizer kind {kind!r}", f"Kinds: {', '.join(kinds)}.")
    refuse_url(output, "a tokenizer")
    formats = context.plugins.registry("source")
    plan = make_plan(settings, formats, context.progress, texts_alone=True)
    for note in plan.notes:
        context.note(note)

    first: list[BadRow] = []
    bad = read = 0

    def put_aside(row: BadRow) -> None:
        nonlocal bad
        bad += 1
        if not first:
            first.append(row)

    def texts() -> Iterator[str]:
        nonlocal read
        reject = strict if settings.dataset.on_bad == "strict" else put_aside
        for shard in plan.shards:
            if shard.split == "train":
                for _, batch in read_shard(shard, plan.columns, settings, formats, unkept=reject):
                    read += len(batch)
                    yield from batch.column("text").to_pylist()
        if bad > settings.dataset.max_bad * (read + bad):
            raise DataError(
                f"{bad:,} of {read + bad:,} rows cannot be used, dataset.max_bad allows {settings.dataset.max_bad:.4%}: "
                f"the first is in {first[0].path}: {first[0].reason}",
                "Correct them, or raise --max-bad.",
            )

    context.progress.start("train-tokenizer", None, "rows")
    metrics = train_tokenizer(
        texts(), output, chosen, vocab_size, max_length=settings.packing.max_length, on_progress=context.progress.advance
    )
    context.progress.close()
    for note in metrics.pop("notes"):
        context.note(note)
    if bad:
        context.note(f"{bad:,} rows that cannot be used were left out, the first in {first[0].path}: {first[0].reason}")
    metrics["rows_rejected"] = bad
    return context.report("train-tokenizer", metrics, paths={"output": str(output)})
