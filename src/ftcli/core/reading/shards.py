"""Files cut into pieces, and pieces joined to shards: by their content and the target's bytes, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ftcli.contracts import SourceFormat
from ftcli.core.progress import to
from ftcli.core.reading.find import Found
from ftcli.core.reading.of_plugins import planned_pieces
from ftcli.records import Piece, ShardPlan, Split
from ftcli.settings import Settings

if TYPE_CHECKING:
    from ftcli.context import Progress

UNCUT = 1 << 62
"""Bytes of a piece: no file is cut. To cut a JSON array or a table with quotes all of it is read, 3 to 6 s a GB."""
MOST_PIECES = 4096
"""Pieces in a shard: many small files cost by their number, and 100,000 of them must not be the work of one core."""


def shard_size(total: int) -> int:
    """Bytes of a shard for so many bytes of sources: small enough that some 64 of them keep many cores busy to the end, large enough
    that committing one (20 ms) is little beside encoding it (0.1 s for 16 MB)."""
    return min(64_000_000, max(16_000_000, total // 64))


def pieces_of(
    path: str, reader: SourceFormat, target: int, settings: Settings, progress: Progress, owner: str | None = None
) -> list[Piece]:
    """A file's pieces of about `target` bytes. A reader that has to go through the file for it reports how far it is.

    Args:
        owner: the plugin that offers the format; None for ftcli's own.

    Raises:
        DataError: the file does not have this format.
    """
    begun = False

    def tell(size: int, *_: object) -> None:
        nonlocal begun
        if not begun:
            begun = True
            progress.start("plan", Path(path).stat().st_size, "B")
        progress.advance(size)

    with to(tell):
        pieces = planned_pieces(reader, path, target, settings, owner)
    if begun:
        progress.close()
    return pieces


def joined_pieces(found: list[Found], pieces: list[list[Piece]], target: int) -> tuple[ShardPlan, ...]:
    """Consecutive pieces of a split joined up to `target` bytes and `MOST_PIECES`."""
    groups: list[tuple[Split, list[Piece]]] = []
    filled = 0
    for file, planned in zip(found, pieces, strict=True):
        for piece in planned:
            if not groups or groups[-1][0] != file.split or filled + piece.size > target or len(groups[-1][1]) == MOST_PIECES:
                groups.append((file.split or "train", []))
                filled = 0
            groups[-1][1].append(piece)
            filled += piece.size
    return tuple(ShardPlan(index, split, tuple(group)) for index, (split, group) in enumerate(groups))
