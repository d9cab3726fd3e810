"""Splits by their names: before the `=` of a source, as words of a file's name, and in a description of a data set."""

from __future__ import annotations

import os
import re

from ftcli.records import Split

_HELD_OUT: Split = "validation"
ALIASES: dict[str, Split] = {
    **dict.fromkeys(("train", "training", "trainset"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "eval", "valset", "devset"), _HELD_OUT),
    **dict.fromkeys(("test", "testset"), "test"),
}
"""Names of splits, before `=` and as words of a file's name."""
WORDS = re.compile(r"[^\W\d_]+?(?=[\W\d_]|$|(?<=[^\W\d_A-Z])[A-Z])")
"""Of a name such as test2.csv, train1of4.csv or trainData.jsonl."""


def role_of(name: str) -> Split | None:
    """The split that a file name tells, by its words, then its directories' from the innermost: "fci_train_val.txt" is train."""
    for part in reversed(name.split("/")):
        for word in WORDS.findall(part):
            if split := ALIASES.get(word.lower()):
                return split
    return None


def parted(item: str) -> tuple[Split | None, str]:
    """SPLIT=PATH in its parts; anything else before the sign belongs to the path."""
    name, _, rest = item.partition("=")
    split = ALIASES.get(name.lower()) if rest else None
    return split, os.path.expanduser(rest if split else item)  # noqa: PTH111 - never raises, and keeps "./"
