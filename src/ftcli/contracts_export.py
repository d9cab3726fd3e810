"""What an exporter must look like, and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from ftcli.core.storage.store import Store


def _nothing(rows: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ExportJob:
    """What is wanted of an export."""

    splits: tuple[str, ...]
    tokens_only: bool = False
    """Labels may be left out; without it a format that has no place for them must refuse."""
    decode: Callable[[np.ndarray[Any, np.dtype[np.int32]]], str | None] | None = None
    """The text of some ids where it gives exactly these ids again, else None. Only for exporters with `texts`."""
    advance: Callable[[int], None] = _nothing
    """Called with the number of rows that were written, some times a second."""


class Exporter(Protocol):
    """Writes prepared data in another format. The same store and job give the same bytes.

    A class may have `texts = True` (it writes text where it is given a tokenizer) and `is_store = True` (what it writes is a store
    again, all files that the manifest lists; then it always gets all splits).
    """

    name: str

    def export(self, store: Store, output: Path, job: ExportJob) -> Iterable[Path]:
        """Write files into the folder `output`, which is there and empty, and return their paths.

        They are synced, hashed and published by the caller; an OSError is put into words there.

        Raises:
            UsageError: the format has no place for the labels.
            StoreError: a row that the format cannot hold; names split and row.
        """
        ...
