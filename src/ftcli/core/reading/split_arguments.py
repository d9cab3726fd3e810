"""The sources of a command, said again with fewer splits."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from ftcli.contracts import SourceFormat
from ftcli.core.reading.split_names import parted


def only_splits(sources: Sequence[str], readers: Collection[SourceFormat], splits: Collection[str]) -> str:
    """What to write in place of `sources` to read these splits alone: a hub id or a saved data set is asked for each, other files stand as PATH.

    >>> only_splits(["train=a.csv", "test=b.csv"], [], ["train"])
    'train=a.csv'
    """
    words: list[str] = []
    for source in sources:
        split, path = parted(source)
        if split is not None:
            words += [source] if split in splits else []
        elif (os.path.isdir(path) or not os.path.lexists(path)) and any(reader.claims(path) for reader in readers):  # noqa: PTH112 - as `Finder` asks
            words += [f"{name}={path}" for name in splits]
        else:
            words += [f"{name}=PATH" for name in splits]
    return " ".join(dict.fromkeys(words))
