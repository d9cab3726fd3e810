"""Files that hold the same: a copy under another name, packed beside itself, or in two formats. All are read, and that is said."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from ftcli.core.files.stamps import Hashed
from ftcli.core.files.streams import bare_suffix, codec_of
from ftcli.core.reading.find import Found

SHOWN = 3
"""Groups of files that are named."""


def notes_on_copies(found: Sequence[Found], hashed: Sequence[Hashed], suffixes: Collection[str]) -> list[str]:
    """What is read more than once, in words.

    Args:
        hashed: the content of each of `found`.
        suffixes: those of formats; behind another, such as .1 of a log, a name goes on.
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
    copies |= {file.path for _, file in packed}
    by_stem: dict[str, list[Found]] = {}
    for file, content in zip(found, hashed, strict=True):
        if content.stamp.size and file.path not in copies and bare_suffix(file.path) in suffixes:
            by_stem.setdefault(_stem(file.path), []).append(file)
    twice = [files for files in by_stem.values() if len(files) > 1]
    said = {
        "identical files under several names, all of them read": same,
        "compressed and uncompressed, probably the same rows, both read": packed,
    }
    if twice:
        first = Path(twice[0][0].path)
        pattern = first.parent / f"*{first.name.removeprefix(Path(_stem(str(first))).name)}"
        said |= {f"the same name in several formats, probably the same rows, all of them read (to read one format: '{pattern}')": twice}
    return [f"{what}: {_groups(groups)}" for what, groups in said.items() if groups]


def _stem(path: str) -> str:
    """The path without the suffixes of the format and of the compression."""
    plain = os.path.splitext(path)[0] if codec_of(path) else path  # noqa: PTH122
    return os.path.splitext(plain)[0]  # noqa: PTH122


def _groups(groups: Sequence[Sequence[Found]]) -> str:
    more = f" and {len(groups) - SHOWN:,} more" if len(groups) > SHOWN else ""
    return "; ".join(_group(files) for files in groups[:SHOWN]) + more


def _group(files: Sequence[Found]) -> str:
    splits = {file.split for file in files}
    names = [file.path + (f" ({file.split})" if len(splits) > 1 else "") for file in files]
    return " = ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
