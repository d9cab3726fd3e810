"""What the numbers of a label column are called, where the files say so: `datasets` writes a ClassLabel's names into their schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Protocol, runtime_checkable

from ftcli.contracts import SourceFormat
from ftcli.core.reading.find import Found
from ftcli.errors import DataError


@runtime_checkable
class Naming(Protocol):
    """A format whose files may hold the names."""

    def label_names(self, path: str, column: str) -> tuple[str, ...] | None:
        """The names in the order of the numbers, from 0; None where the file has none."""
        ...


def class_names(metadata: Mapping[bytes, bytes] | None, column: str) -> tuple[str, ...] | None:
    """The names of a column, or of the items of its lists, by the metadata of an Arrow schema.

    >>> class_names({b"huggingface": b'{"info": {"features": {"y": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}'}, "y")
    ('no', 'yes')
    """
    with suppress(ValueError, KeyError, TypeError, IndexError):  # what others write under that key
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]
        feature = feature[0] if isinstance(feature, list) else feature.get("feature") or feature
        names = feature["names"] if feature["_type"] == "ClassLabel" else ()
        if len(set(names)) == len(names) > 1 and all(isinstance(name, str) for name in names):
            return tuple(names)
    return None


def names_in(found: Iterable[Found], formats: Mapping[str, SourceFormat], column: str | None) -> tuple[tuple[str, ...], str]:
    """The names that the files give, and the first that does; none and "" where none does, or no column is asked for.

    Raises:
        DataError: two files give different ones, so that a number means two things.
    """
    first: dict[tuple[str, ...], str] = {}
    for file in found:
        reader = formats[file.format]
        if column is not None and isinstance(reader, Naming) and (names := reader.label_names(file.path, column)):
            first.setdefault(names, file.path)
    if len(first) > 1:
        (one, path), (other, second), *_ = first.items()
        place = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        said = [f"{names[place]!r}" if place < len(names) else "nothing" for names in (one, other)]
        raise DataError(
            f"label {place} of the column {column!r} means {said[0]} in {path} and {said[1]} in {second}",
            "Give each number one meaning in all files (`Dataset.align_labels_with_mapping`), or name all labels with --label-names.",
        )
    return next(iter(first.items()), ((), ""))
