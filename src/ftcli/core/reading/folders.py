"""Folders that are labels, with a text in each file: how they become rows."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ftcli.core.reading.column_names import as_argument
from ftcli.core.reading.split_names import role_of

MANY = 20
"""Folders that are named in a command to be typed."""


def labels_in_folders(path: str) -> str:
    """What to do about a text of a tree such as train/pos/1.txt, or sci.space/59497: a command that writes a file of rows for each split; "" where its folder is alone, or one of splits."""
    suffix = Path(path).suffix
    if suffix not in {".txt", ""}:
        return ""
    above = Path(path).absolute().parent.parent
    with suppress(OSError):  # one that cannot be listed
        if len(names := _with_texts(above, suffix)) < 2 or all(map(role_of, names)):
            return ""
        splits = [above]
        if role_of(above.name):
            splits = [
                folder
                for folder in sorted(above.parent.iterdir())
                if folder.is_dir() and role_of(folder.name) and len(_with_texts(folder, suffix)) > 1
            ]
        common = set.intersection(*(_with_texts(folder, suffix) for folder in splits))
        names = common if len(common) > 1 else names
        which = "*" if len(names) > MANY else f"{{{','.join(map(as_argument, sorted(names)))}}}"
        texts, absolute = f"{which}/*{suffix}", Path(path).is_absolute()
        ways = [_way(folder, texts, absolute, "data" if len(splits) == 1 else folder.name) for folder in splits]
        return f"If the folder names are the labels and each file is a text: {'; '.join(ways)}"
    return ""


def _with_texts(folder: Path, suffix: str) -> set[str]:
    return {
        each.name for each in folder.iterdir() if each.is_dir() and any(file.suffix == suffix and file.is_file() for file in each.iterdir())
    }


def _way(folder: Path, texts: str, absolute: bool, made: str) -> str:
    where = as_argument(str(folder) if absolute else os.path.relpath(folder))
    rows = """jq -Rsc --arg name "$(basename "$(dirname "$f")")" '{text: ., label: $name}' "$f\""""
    return f"for f in {where}/{texts}; do {rows}; done > {as_argument(made)}.jsonl"
