"""`ftcli merge`: an adapter and its base as one plain model."""

from __future__ import annotations

from pathlib import Path

from ftcli.context import Context
from ftcli.core.files.objects import refuse_url
from ftcli.core.models.merge import merge
from ftcli.core.processes.libraries import libraries
from ftcli.records import Report


def run(context: Context, adapter: Path, output: Path) -> Report:
    """Write the merged model, whose logits were compared with those of the adapter on its base.

    Raises:
        UsageError, ModelError, MissingExtraError, PublishError: named in the message; then nothing was written.
    """
    refuse_url(output, "a model")
    with libraries():
        settings = context.settings
        made = merge(adapter, output, trust=settings.tokenizer.trust_remote_code, overwrite=settings.runtime.overwrite)
        return context.report("merge", made, paths={"output": str(output)})
