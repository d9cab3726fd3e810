"""`ftcli sample-data`: a corpus of our own grammar, to try everything on without a download."""

from __future__ import annotations

from pathlib import Path

from ftcli.context import Context
from ftcli.core.corpus.sample import write_sample
from ftcli.core.files.objects import refuse_url
from ftcli.records import Report


def run(context: Context, output: Path, rows: int, seed: int, labels: int) -> Report:
    """Write train, validation and test files of short Korean and English business texts.

    Raises:
        UsageError: rows, seed or labels are out of range, or the output exists and `runtime.overwrite` is not set.
    """
    refuse_url(output, "a corpus")
    context.progress.start("rows", rows, "rows")
    metrics = write_sample(
        output, rows, seed, labels=labels, overwrite=context.settings.runtime.overwrite, on_progress=context.progress.advance
    )
    context.progress.close()
    return context.report("sample-data", metrics, paths={"output": str(output)})
