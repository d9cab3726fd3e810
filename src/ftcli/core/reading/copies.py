"""Files that hold the same: a copy under another name, or packed beside itself. Both are read, and that is said."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ftcli.core.files.stamps import Hashed
from ftcli.core.files.streams import codec_of
from ftcli.core.reading.find import Found

SHOWN = 3
"""Groups of files that are named."""


def notes_on_copies(found: Sequence[Found], hashed: Sequence[Hashed]) -> list[str]:
    """What is read more than once, in words.

    Args:
        hashed: the content of each of `found`.
    """
    by_content: dict[tuple[int, str], list[Found]] = {}
    for file, content in zip(found, hashed, strict=True):
        if content.stamp.size:
            by_content.setdefault((content.stamp.size, content.xxh3), []).append(file)
    same = [files for files in by_content.values() if len(files) > 1]
    copies = {file.path for files in same for file in files[1:]}
    by_path = {file.path: file for file in found}
    packed = [
        [plain, file]
        for file in found
        if file.path not in copies and codec_of(file.path) and (plain := by_path.get(os.path.splitext(file.path)[0]))  # noqa: PTH122
    ]
    said = {"the same bytes under several names, all of them read": same, "packed and unpacked, probably the same rows, both read": packed}
    return [f"{what}: {_groups(groups)}" for what, groups in said.items() if groups]


def _groups(groups: Sequence[Sequence[Found]]) -> str:
    more = f" and {len(groups) - SHOWN:,} more" if len(groups) > SHOWN else ""
    return "; ".join(_group(files) for files in groups[:SHOWN]) + more


def _group(files: Sequence[Found]) -> str:
    splits = {file.split for file in files}
    names = [file.path + (f" ({file.split})" if len(splits) > 1 else "") for file in files]
    return " = ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
