"""What the formats of single files have in common."""

from __future__ import annotations

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
