"""`ftcli inspect`: rows of prepared data or of sources, token by token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.core.files.manifest import is_prepared
from ftcli.core.files.objects import url_of
from ftcli.core.files.run_folder import refuse_run
from ftcli.core.inspect.look import described, learned
from ftcli.core.inspect.look_raw import of_sources
from ftcli.core.inspect.look_store import of_store, spelling_of
from ftcli.core.inspect.row_selection import RowSelection
from ftcli.core.inspect.tokenlines import PIPE_WIDTH, lines
from ftcli.core.publishing.fetched_set import opened
from ftcli.core.reports.document import check_document, write_document
from ftcli.core.storage.store import Store
from ftcli.errors import StoreError, UsageError
from ftcli.masking import Clean, masked_json
from ftcli.records import MANIFEST_NAME, SPLITS, Report, to_json

FORMATS = ("text", "html", "json")


def run(
    context: Context,
    split: str | None = None,
    rows: str | None = None,
    random: int | None = None,
    seed: int = 0,
    format: str = "text",  # noqa: A002 - the option's name
    output: Path | None = None,
    width: int | None = None,
    ids: bool = False,
) -> Report:
    """`details["looked"]` has every row, as `ftcli.core.inspect.look.described` gives it, and how it is to be shown.

    Args:
        rows: "0-4,17"; random: so many by `seed`; neither: the first few.
        width: columns; None: those of the terminal.

    Raises:
        UsageError, StoreError, DataError, TokenizerError: named in the message.
    """
    if format not in FORMATS:
        raise UsageError(f"there is no format {format!r}", f"--format takes {', '.join(FORMATS)}.")
    if width is not None and width < 20:
        raise UsageError(f"--width {width}: too narrow for tokens", "Give at least 20 columns.")
    context = opened(context)
    sources = context.settings.dataset.sources or []
    if not sources:
        raise UsageError("nothing to inspect: give prepared data or sources", "Example: ftcli inspect prepared --rows 0-4")
    if output is not None:
        check_document(output, read=sources)
    picked = RowSelection.of_words(rows, random, seed)
    named = sources[0].partition("=")[2] if sources[0].partition("=")[0] in SPLITS else sources[0]
    first = Path(named)
    if not context.settings.tokenizer.path and url_of(named) is None and not first.exists():
        raise StoreError(f"{first} does not exist", "Give prepared data, or sources together with --tokenizer-path.")
    counts: dict[str, int] = {}
    ready = [source for source in sources if is_prepared(Path(source))]
    if ready and len(sources) > 1:
        raise UsageError(f"{ready[0]} is prepared, but {len(sources)} paths are given", "Inspect one prepared directory at a time.")
    prepared = bool(ready)
    if prepared:
        store = Store.open(Path(sources[0]))
        looked = of_store(context, store, split, picked)
        spelling = spelling_of(context, store, looked.rows)
    else:
        refuse_run(first, StoreError)
        if not context.settings.tokenizer.path:
            raise UsageError(
                f"{named} is not prepared ({MANIFEST_NAME} is missing), and sources need a tokenizer",
                "Add --tokenizer-path, and the options of ftcli tokenize that you mean to use.",
            )
        looked, spelling, counts = of_sources(context, split, picked)
    found = described(looked, spelling)
    known = [count for row in found if (count := learned(row)) is not None]
    metrics: dict[str, Any] = {
        "rows_shown": len(found),
        "rows": looked.total,
        "tokens_shown": sum(row["tokens"] for row in found),
        "tokens_learned": sum(known) if known else None,
        **counts,
    }
    details = {"looked": {"what": ", ".join(sources), "prepared": prepared, "rows": found, "ids": ids, "width": width}}
    report = context.report("inspect", metrics, details=details)
    return _formatted(report, format, output)


def _formatted(report: Report, kind: str, output: Path | None) -> Report:
    """The report with a page in place of the rows, or with the file that was written."""
    if kind == "html":
        from ftcli.core.inspect.look_page import page

        text = page(report)
        if output is None:
            return replace(report, details={**report.details, "lines": text.splitlines()})
    elif output is None:
        return report
    elif kind == "json":
        text = masked_json(to_json(report), ensure_ascii=False, indent=1)
    else:
        looked = report.details["looked"]
        text = Clean("\n".join(lines(looked["rows"], looked["width"] or PIPE_WIDTH, ids=looked["ids"])) + "\n")
    write_document(output, text)
    return replace(report, paths={**report.paths, kind: str(output)})
