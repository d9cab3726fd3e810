"""What the formats of single files have in common."""

from __future__ import annotations

from ftcli.records import Piece
from ftcli.settings import Settings


class FileFormat:
    """A format that its suffix decides: it claims no directory and no hub id."""

    def claims(self, item: str) -> bool:
        return False

    def expand(self, item: str, settings: Settings) -> dict[str | None, list[str]]:
        return {None: [item]}

    def found_columns(self, path: str, settings: Settings) -> dict[str, bool]:
        """The columns by the header or the first row, each with whether it holds texts, lists or objects; none where nobody knows."""
        return {}


def byte_range(piece: Piece) -> tuple[int, int | None]:
    """From where to where a piece reads its file; to None, the end, where it is the whole of one that is compressed."""
    return (piece.start, piece.stop) if piece.unit == "bytes" else (0, None)
