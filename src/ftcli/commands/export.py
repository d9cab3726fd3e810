"""`ftcli export`: prepared data in the format of another trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ftcli.context import Context
from ftcli.core.convert.export import export
from ftcli.core.files.objects import refuse_url
from ftcli.core.publishing.fetched_set import folder_of
from ftcli.core.storage.store import Store
from ftcli.records import Report


def run(context: Context, store: Path, kind: str, output: Path, splits: Sequence[str], tokens_only: bool) -> Report:
    """Write a store in another format.

    Raises:
        SettingsError, UsageError, StoreError, PublishError: as in `ftcli.core.convert.export.export`; then nothing was written.
    """
    refuse_url(output, "an export")
    metrics = export(context, Store.open(folder_of(context, store)), output, kind, splits, tokens_only=tokens_only)
    return context.report("export", metrics, paths={"output": str(output)})
