"""The data of a planned run as they are given: prepared, or sources that `ftcli train` prepares first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ftcli.core.files.manifest import is_prepared
from ftcli.core.storage.ignored_settings import refuse_ignored_settings
from ftcli.core.storage.store import Store
from ftcli.core.verify.missing import Missing
from ftcli.errors import FtcliError, UsageError

if TYPE_CHECKING:
    from ftcli.context import Context
    from ftcli.core.prepare.own_texts import OwnTexts
    from ftcli.settings import Settings


def unprepared(settings: Settings) -> bool:
    """Whether there are sources, and `ftcli tokenize` has still to read them. Damaged prepared data are refused when they are opened.

    Raises:
        StoreError: this user may not look.
    """
    sources = settings.dataset.sources or []
    return len(sources) > 1 or any(not is_prepared(Path(source)) for source in sources)


def open_store(context: Context) -> Store:
    """The prepared data. Raises `Missing` (none yet), `UsageError` (they were prepared otherwise than asked for) or `StoreError`."""
    sources = context.settings.dataset.sources
    if not sources:
        raise Missing("no --dataset")
    if unprepared(context.settings):
        raise Missing("the sources are not prepared yet: ftcli train prepares them first, ftcli tokenize --output-dir does it now")
    return prepared(context)


def prepared(context: Context) -> Store:
    """The prepared data, for what is of no use without them. Raises `UsageError` or `StoreError`, where `open_store` raises `Missing`."""
    sources = context.settings.dataset.sources or []
    if len(sources) != 1 or Path(sources[0]).is_file():
        hint = "Prepare the data first (ftcli tokenize … --output-dir PREPARED), then give --dataset PREPARED."
        raise UsageError(f"{', '.join(sources) or 'no --dataset'}: prepared data are needed", hint)
    store = Store.open(Path(sources[0]))
    refuse_ignored_settings(context, store)
    return store


def read_texts(context: Context) -> OwnTexts:
    """A sample of the texts, prepared or not. Raises `Missing`."""
    from ftcli.core.prepare.own_texts import own_texts

    if not context.settings.dataset.sources:
        raise Missing("no --dataset")
    try:
        found = own_texts(context)
    except FtcliError as error:  # what is wrong with the data is said of the data, not of the tokenizer
        raise Missing(f"the texts cannot be read: {error.message}") from error
    if found is not None and found.texts:
        return found
    if unprepared(context.settings):
        raise Missing("no text can be read in the sources (see FT201)")
    raise Missing("the source texts of the prepared data were removed or changed")
