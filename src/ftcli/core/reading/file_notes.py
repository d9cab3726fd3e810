"""What is said of files before they are read: what a guess about their rows was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ftcli.contracts import SourceFormat
from ftcli.core.files.streams import ends_in_cr, head, separator
from ftcli.core.reading.column_names import as_argument, usual_columns
from ftcli.core.reading.split_arguments import only_splits
from ftcli.core.reading.unread_formats import ADVICE
from ftcli.errors import DataError
from ftcli.settings import Settings

if TYPE_CHECKING:
    from ftcli.core.reading.find import Found

FLAGS = 3
"""Columns of 0 and 1 that are taken for labels of a row."""
FASTTEXT = (
    "The labels precede the texts, in fastText format: "
    r"sed -E 's/^__label__([^ ]+) +/\1\t/' OLD > NEW.tsv, then --text-column 1 --label-column 0."
)
TAG = re.compile(rb"O|[BIESLMU]-\S+")
"""What data for token labels (CoNLL) have at the end of each line."""
DOCUMENTS = 20
"""Text files from which on each may be a document."""
LONGEST = 1 << 16
"""Bytes that a document has."""
LOOKED_AT = 100
"""Files of a kind that are looked at: there may be a million."""


@runtime_checkable
class OwnFormat(SourceFormat, Protocol):
    """A format of ftcli's own, or of a plugin that tells as much."""

    def found_columns(self, path: str, settings: Settings) -> Mapping[str, bool]:
        """The columns by the header or the first row, each with whether it holds texts, lists or objects: for notes on those that are not read. Counted columns hold none."""
        ...


@runtime_checkable
class Tables(OwnFormat, Protocol):
    """.csv and .tsv, by ftcli's own reader or by one that tells as much."""

    def layout_note(self, path: str, settings: Settings) -> str | None:
        """What to say of a file that two delimiters cut evenly, or whose quotes are characters, though fields of it look quoted."""
        ...

    def flag_columns(self, path: str, settings: Settings) -> Sequence[str]:
        """The columns whose first values are 0 and 1 alone."""
        ...


def notes_on_files(files: Sequence[Found], formats: Mapping[str, SourceFormat], settings: Settings) -> list[str]:
    """Of tables without a header, of delimiters and quotes that may be none, of columns that folders name as well, of lines that end in CR alone, and of those that part documents."""
    notes = []
    tables = [file.path for file in files if file.format == "csv"]
    if isinstance(reader := formats["csv"], Tables):
        if settings.dataset.text_column.isdecimal() and any(not any(reader.found_columns(path, settings).values()) for path in tables):
            notes.append("columns are counted from 0: the .csv, .tsv and .txt files are assumed to have no header line")
        notes += [note for path in tables[:LOOKED_AT] if (note := reader.layout_note(path, settings))]
    lines = [file.path for file in files if file.format == "text" and settings.dataset.sample_by == "line"]
    notes += [
        f"{path}: read as one row, because its lines end in CR alone (to fix: tr '\\r' '\\n' < OLD > NEW)"
        for path in lines[:LOOKED_AT]
        if ends_in_cr(path)
    ]
    notes += _twice_named(files, settings)
    notes += [f"{path}: read as it stands. {FASTTEXT}" for path in lines[:LOOKED_AT] if head(path, 1 << 16).startswith(b"__label__")][:1]
    notes += [
        f"{path}: every line is a text, although each seems to hold a word and its tag (CoNLL). {ADVICE['.conll']}"
        for path in [*lines[:LOOKED_AT], *(tables[:LOOKED_AT] if isinstance(reader, Tables) else ())]
        if tagged(path)
    ][:1]
    if len(lines) >= DOCUMENTS and (count := _lines_a_file(lines)) > 1:
        notes.append(
            f"{len(lines):,} text files: every line is a text, about {count:,} of each file. If each file is one document: --sample-by document"
        )
    return notes + [
        f"{path}: every line is a text, also lines that hold only {mark!r}. If these separate documents: "
        f'jq -Rsc \'split("{mark}")[] | select(test("\\\\S")) | {{text: .}}\' OLD > NEW.jsonl'
        for path in lines[:LOOKED_AT]
        if (mark := separator(path))
    ]


def _twice_named(files: Sequence[Found], settings: Settings) -> list[str]:
    """Of a column that is asked for and stands in the name of a folder as well, as in label=1/part.parquet: a file that lacks it is refused."""
    dataset = settings.dataset
    asked = [name for name in (dataset.text_column, dataset.text_pair_column, dataset.label_column, *(dataset.label_columns or ())) if name]
    return [
        f"{file.path}: {name!r} is read from the file; its folder's name ({part}) is not"
        for file in files[:LOOKED_AT]
        for part in Path(file.path).parent.parts
        for name in asked
        if part.startswith(f"{name}=")
    ][:1]


def _lines_a_file(paths: Sequence[str]) -> int:
    """The median of the first; 0 where most are too large for one document."""
    starts = [head(path, LONGEST) for path in paths[:LOOKED_AT]]
    return sorted(0 if len(start) == LONGEST else sum(1 for line in start.splitlines() if line.strip()) for start in starts)[
        len(starts) // 2
    ]


def tagged(path: str) -> bool:
    """Whether lines hold a word and its tag, all but those between sentences and documents."""
    lines = [line.split()[-1] for line in head(path, 1 << 16).splitlines()[:-1] if line.strip() and not line.startswith((b"#", b"-DOC"))]
    return len(tags := [last for last in lines if TAG.fullmatch(last)]) > 0.9 * len(lines) and any(tag.startswith(b"B-") for tag in tags)


def notes_on_labels(there: Iterable[str], files: Sequence[Found], formats: Mapping[str, SourceFormat], settings: Settings) -> list[str]:
    """Of files of which the texts alone are read: in which of the columns (`there`) labels may stand."""
    if usual := usual_columns("label", [name for name in there if name != settings.dataset.text_column]):
        return [f"no labels are read: {' or '.join(usual)} may contain them (--label-column {as_argument(usual[0])})"]
    above = {part.partition("=")[0]: part for part in Path(files[0].path).parent.parts if "=" in part}
    if usual := usual_columns("label", list(above)):
        return [f"no labels are read: the names of folders may contain them ({above[usual[0]]}), and no column does"]
    reader = formats[files[0].format]
    flags = reader.flag_columns(files[0].path, settings) if isinstance(reader, Tables) else ()
    if len(flags) < FLAGS:
        return []
    return [f"no labels are read: {len(flags)} columns contain only 0 and 1 (--label-columns {as_argument(','.join(flags))})"]


def way_without_labels(error: DataError, files: Sequence[Found], formats: Mapping[str, SourceFormat], settings: Settings) -> str:
    """What to do about a file without the column of the labels beside one that has it, as the test rows of a competition are; "" where `error` says otherwise."""
    dataset = settings.dataset
    labels = dataset.label_columns or [name for name in (dataset.label_column,) if name]
    lacking = next((label for label in labels if error.message.endswith(f": no column {label!r}")), None)
    if lacking is None:
        return ""
    having: list[Found] = []
    for file in files[:LOOKED_AT]:
        if isinstance(reader := formats[file.format], OwnFormat):
            with suppress(DataError):
                having += [file] if {dataset.text_column, *labels} <= reader.found_columns(file.path, settings).keys() else []
    if not having:
        return ""
    if "Did you mean" in error.hint:
        return f"{error.hint} Otherwise give the column the same name in all files: in {having[0].path} it is {lacking}."
    words = only_splits(dataset.sources or (), formats.values(), dict.fromkeys(file.split or "train" for file in having))
    how = "" if "=PATH" in words else f" by naming the others ({words})"
    return f"{having[0].path} has it. Exclude the files without labels{how}; the trained model can label their texts: ftcli predict."


def refuse_lesser(first: Found, left: Mapping[str, str], formats: Mapping[str, SourceFormat], settings: Settings) -> None:
    """
    Args:
        first: of the files that were chosen in a folder.
        left: path → format of those that were not.

    Raises:
        DataError: `first` lacks a column that is asked for, and one of the others has them all.
    """
    dataset, reader = settings.dataset, formats[first.format]
    labels = dataset.label_columns or (dataset.label_column,)
    asked = {name: None for name in (dataset.text_column, dataset.text_pair_column, *labels) if name}
    try:
        there = reader.found_columns(first.path, settings) if isinstance(reader, OwnFormat) else {}
        lacking = [name for name in asked if there and name not in there]
        error = DataError(f"{first.path}: no column {lacking[0]!r}", f"Columns: {', '.join(there)}.") if lacking else None
    except DataError as refused:
        error = refused if ": no column " in refused.message else None
    for path, kind in [*left.items()][:LOOKED_AT] if error else ():
        columns: Mapping[str, bool] = {}
        if isinstance(other := formats.get(kind), OwnFormat):
            with suppress(DataError):
                columns = other.found_columns(path, settings)
        if error and asked.keys() <= columns.keys():
            way = f"{path} has the columns asked for but was left out, because {first.format} has the most bytes: name that file, or give a pattern."
            raise DataError(error.message, f"{error.hint} {way}")
