"""`ftcli train-tokenizer`: a fast tokenizer for one's own text, as a complete Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from ftcli.context import Context
from ftcli.core.files.objects import refuse_url
from ftcli.core.reading.read import make_plan, read_shard
from ftcli.core.tokenizer.train_tokenizer import Kind, train_tokenizer
from ftcli.errors import UsageError
from ftcli.records import Report


def run(context: Context, kind: str, vocab_size: int, output: Path) -> Report:
    """Train on the train split of the sources.

    Raises:
        UsageError: no sources, an unknown kind, a vocabulary that cannot be, or an output that holds something.
        DataError: a bad row.
    """
    settings = context.settings
    if not settings.dataset.sources:
        raise UsageError("no data: name a source", "Example: ftcli train-tokenizer reviews.jsonl --output DIR")
    kinds: tuple[Kind, ...] = get_args(Kind)
    chosen = next((known for known in kinds if known == kind), None)
    if chosen is None:
        raise UsageError(f"there is no tokenizer kind {kind!r}", f"Kinds: {', '.join(kinds)}.")
    refuse_url(output, "a tokenizer")
    formats = context.plugins.registry("source")
    plan = make_plan(settings, formats, context.progress, texts_alone=True)
    for note in plan.notes:
        context.note(note)

    def texts() -> Iterator[str]:
        for shard in plan.shards:
            if shard.split == "train":
                for _, batch in read_shard(shard, plan.columns, settings, formats):
                    yield from batch.column("text").to_pylist()

    context.progress.start("train-tokenizer", None, "rows")
    metrics = train_tokenizer(
        texts(), output, chosen, vocab_size, max_length=settings.packing.max_length, on_progress=context.progress.advance
    )
    context.progress.close()
    for note in metrics.pop("notes"):
        context.note(note)
    return context.report("train-tokenizer", metrics, paths={"output": str(output)})
