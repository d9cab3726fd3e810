"""The interface of exporters, and what they receive."""

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
    """What to export."""

    splits: tuple[str, ...]
    tokens_only: bool = False
    """Labels may be omitted; if False, a format that cannot store them must refuse."""
    decode: Callable[[np.ndarray[Any, np.dtype[np.int32]]], str | None] | None = None
    """The text of the given ids if it encodes to exactly these ids again, else None. Only for exporters with `texts`."""
    advance: Callable[[int], None] = _nothing
    """To be called with the number of rows written, a few times per second."""


class Exporter(Protocol):
    """Writes prepared data in another format. The same store and job give the same bytes.

    A class may set `texts = True` (it writes text if given a tokenizer) and `is_store = True` (its output is a store again, with all
    files that the manifest lists; it then always receives all splits).
    """

    name: str

    def export(self, store: Store, output: Path, job: ExportJob) -> Iterable[Path]:
        """Write files into the folder `output`, which exists and is empty, and return their paths.

        The caller syncs, hashes and publishes them, and turns an OSError into a message.

        Raises:
            UsageError: the format cannot store the labels.
            StoreError: the format cannot store a row; names split and row.
        """
        ...
