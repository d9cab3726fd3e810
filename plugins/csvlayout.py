"""How a CSV file is laid out, told by its header."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from ftcli.contracts import Columns
from ftcli.errors import DataError
from ftcli.settings import Settings

if TYPE_CHECKING:
    from ftcli.core.reading.columns import Kind, Role

COUNTED = "If the first line is a row, not a header, give columns by number, counted from 0: --text-column 0"
PASTED = "If the labels are in a separate file: paste texts.txt labels.txt > data.tsv, then --text-column 0 --label-column 1."
HEADER_ALONE = 1 << 16
"""Characters of a file beyond which it is taken to have rows."""
MOST_BEFORE = 50
"""Lines before a header that are looked at."""
MOST_ROWS = 100
"""Rows by whose fields a file without a header is laid out."""
FEW = 5
"""Rows a label, at the least, where a first field is taken for one."""
DELIMITERS = (",", ";", "\t", "|")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is laid out. `names` are the header's, or "0", "1" … when there is none."""

    delimiter: str
    names: tuple[str, ...]
    header: bool
    rows: bool = True
    """False: the header is all there is."""
    other: str = ""
    """Of a file without a header: another delimiter that cuts its rows alike."""


def header_columns(settings: Settings) -> Columns:
    """Those whose names say whether there is a header."""
    from ftcli.core.reading.conversation import MODE, chat_columns

    dataset = settings.dataset
    if settings.train.mode == MODE:
        return chat_columns(settings)
    flags = tuple(dataset.label_columns or ())
    return Columns(
        dataset.text_column, dataset.label_column, pair=dataset.text_pair_column, flags=flags, flag_kinds=tuple("string" for _ in flags)
    )


def layout_of(path: str, columns: Columns) -> Layout | None:
    """None when the file has no line.

    Raises:
        DataError: a column is missing.
    """
    from ftcli.core.files.streams import bare_suffix, head, refuse_page
    from ftcli.core.reading.column_names import need_column
    from ftcli.core.reading.columns import wanted

    columns = replace(columns, labels_only=False)  # every pass over a file must find it laid out in the same way
    delimiter = "," if bare_suffix(path) == ".csv" else "\t"
    size = 1 << 20
    while b"\n" not in (start := head(path, size)) and len(start) > size - 4:  # a header of a million columns
        size *= 4
    refuse_page(path, start)
    text = start.decode("utf-8", errors="replace")
    first = _first(text, delimiter)
    if first is None:
        return None
    if columns.chat is not None:
        try:
            return _told_empty(_of_conversations(path, columns, text, delimiter, first), text)
        except DataError:
            _refuse_undecoded(path, start)
            raise
    names, other = [name for _, name, _ in wanted(columns)], ""
    numbers = _columns(first, header=False)
    header = first in (numbers, ["", *numbers[:-1]]) or not all(name.isdecimal() for name in names)
    if not set(names) <= set(_columns(first, header)):
        delimiter, first = _other(text, names, delimiter, first, header)
    elif not header and (marks := _even_marks(text, delimiter, 1 + max(map(int, names)))):
        delimiter, first, other = marks[0], _first(text, marks[0]) or [], "".join(marks[1:2])
    layout = Layout(delimiter, tuple(_columns(first, header)), header, other=other)
    try:
        for role, name, _ in wanted(columns):
            need_column(path, role, name, layout.names, flags=bool(columns.flags))
    except DataError as error:
        _refuse_undecoded(path, start)
        if (not header and len(first) > 1) or "Did you mean" in error.hint:
            raise
        way = _before_header(text, names) or _elsewhere(path, first, names, delimiter)
        if not header:
            raise DataError(error.message, way or error.hint) from None
        counted = COUNTED + (" --label-columns 1,2." if columns.flags else " --label-column 1." if columns.label else ".")
        raise DataError(error.message, way or f"{error.hint} {counted}") from None
    return _told_empty(layout, text)


def _told_empty(layout: Layout, text: str) -> Layout:
    """The layout, with whether a row follows the header; `text` is the file's beginning."""
    if not layout.header or len(text) > HEADER_ALONE:
        return layout
    with wide_fields():
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=layout.delimiter)
        return replace(layout, rows=sum(1 for _ in islice(filter(None, reader), 2)) > 1)


def _before_header(text: str, names: list[str]) -> str:
    """What to do about lines before the header that are none of the table: Excel's separator, comments; "" where there is none."""
    lines = text.split("\n", MOST_BEFORE + 1)
    above = 1 if re.fullmatch(r"\ufeff?\"?sep=.{1,2}\"?\r?", lines[0], re.IGNORECASE) else sum(1 for _ in takewhile(_is_remark, lines))
    rest = "\n".join(lines[above:])
    if not above or not any(set(names) <= set(_first(rest, mark) or []) for mark in DELIMITERS):
        return ""
    what = "A line precedes the header" if above == 1 else f"{above} lines precede the header"
    return (
        f"{what} ({lines[0].strip()[:60]}). Remove {'it' if above == 1 else 'them'}: sed {'1' if above == 1 else f'1,{above}'}d OLD > NEW"
    )


def _is_remark(line: str) -> bool:
    return line.startswith("#") or not line.strip()


def _elsewhere(path: str, first: list[str], names: list[str], delimiter: str) -> str:
    """What to do where the labels of texts stand in no column; "" where they may."""
    from ftcli.core.reading.file_notes import FASTTEXT, tagged
    from ftcli.core.reading.folders import labels_in_folders
    from ftcli.core.reading.unread_formats import ADVICE

    if tagged(path):
        return ADVICE[".conll"]
    if first[0].startswith("__label__"):
        return FASTTEXT
    if len(names) == 1:
        return ""
    one = len(first) == 1
    ways = [PASTED] if one else []
    if (one or delimiter != "\t") and (way := labels_in_folders(path)):  # a text may hold a comma
        ways.append(way)
    return " ".join(["The file has one column.", *ways]) if ways else ""


def _refuse_undecoded(path: str, start: bytes) -> None:
    """A header in another encoding lacks every column that is named in letters beyond ASCII."""
    from ftcli.core.files.encodings import utf8_hint
    from ftcli.core.files.streams import bad_utf8

    if bad := bad_utf8(start.lstrip().partition(b"\n")[0]):
        raise DataError(f"{path}: the header is {bad[1]}", utf8_hint(start))


def _of_conversations(path: str, columns: Columns, text: str, delimiter: str, first: list[str]) -> Layout:
    """The layout of a table whose columns make conversations; without a header where they are all counted, as in --rename instruction=0,output=1."""
    from ftcli.core.reading.conversation import present

    header = not columns.renamed or not all(theirs.isdecimal() for theirs, _ in columns.renamed)

    def layout(mark: str, row: list[str]) -> Layout:
        return Layout(mark, tuple(row if header else map(str, range(len(row)))), header)

    for mark in (delimiter, *DELIMITERS):
        made = layout(mark, _first(text, mark) or [])
        with suppress(DataError):
            present(columns, made.names, path)
            return made
    present(columns, layout(delimiter, first).names, path)
    raise AssertionError(path)


def fields_of(path: str, columns: Columns, layout: Layout) -> list[tuple[Role, str, Kind]]:
    """(role, column, kind) of the columns to read.

    Raises:
        DataError: a column is missing, or is there twice.
    """
    from ftcli.core.reading.column_names import need_column
    from ftcli.core.reading.columns import wanted
    from ftcli.core.reading.conversation import present

    if columns.chat is None:
        return wanted(columns)
    fields: list[tuple[Role, str, Kind]] = [("text", name, "string") for name in present(columns, layout.names, path)]
    for role, name, _ in fields:
        need_column(path, role, name, layout.names)
    return fields


def _first(text: str, delimiter: str) -> list[str] | None:
    """The first row that is not blank."""
    with wide_fields():
        return next((row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row), None)


def _columns(first: list[str], header: bool) -> list[str]:
    """The names that the first row gives, or the numbers of its columns."""
    return first if header else [str(number) for number in range(len(first))]


def _other(text: str, names: list[str], delimiter: str, first: list[str], header: bool) -> tuple[str, list[str]]:
    """The delimiter with which the first row has all wanted columns, and that row. Where none does: of one column, what is cut into most; else what the suffix says."""
    tried = {mark: _first(text, mark) or [] for mark in DELIMITERS if mark != delimiter}
    for mark, row in tried.items():
        if set(names) <= set(_columns(row, header)):
            return mark, row
    mark = max(tried, key=lambda each: len(tried[each]))
    return (mark, tried[mark]) if len(first) == 1 < len(tried[mark]) else (delimiter, first)


def _even_marks(text: str, delimiter: str, columns: int) -> list[str]:
    """What cuts the first rows of a file without a header into as many fields each, `columns` at least: `delimiter` first, if it does. A text before a tab may
    hold a comma."""
    return [
        mark
        for mark in dict.fromkeys((delimiter, *DELIMITERS))
        if len(counts := set(map(len, _rows(text, mark)))) == 1 and min(counts) >= max(columns, 1 + (mark != delimiter))
    ]


def _rows(text: str, mark: str, size: int = HEADER_ALONE, quote: str = '"') -> list[list[str]]:
    """The first rows of a file in so many characters, without one that these end in."""
    whole = text if len(text) <= size else text[: text.rfind("\n", 0, size) + 1] or text
    with wide_fields():
        return list(islice(filter(None, csv.reader(io.StringIO(whole, newline=""), delimiter=mark, quotechar=quote)), MOST_ROWS))


def mark_note(path: str, layout: Layout) -> str | None:
    """What to say of a file that either of two delimiters cuts evenly."""
    if not layout.other:
        return None
    text = _beginning(path)
    return f"{path}: its rows are split at {layout.delimiter!r}, though {layout.other!r} would also give every row the same number of fields. If {layout.other!r} is the delimiter: {_rewritten(text, layout.other)}"


@lru_cache(8)  # asked of every bad row
def mark_hint(path: str, layout: Layout) -> str:
    """At what the rows of a file without a header are cut, and at what they may have to be: what leaves few values in the first field, as labels are."""
    text = _beginning(path)
    found = {mark: _rows(text, mark, len(text)) for mark in DELIMITERS if mark != layout.delimiter}
    few = {mark: len({row[0] for row in rows}) for mark, rows in found.items() if rows and min(map(len, rows)) > 1}
    mark = min(few, key=lambda each: few[each], default="")
    hint = f"The rows are split at {layout.delimiter!r}."
    if not mark or not 1 < few[mark] <= len(found[mark]) / FEW:
        return hint
    values = f"would have {few[mark]} distinct values in {len(found[mark])} rows"
    return f"{hint} Split at {mark!r}, the first field {values}. If {mark!r} is the delimiter: {_rewritten(text, mark)}"


def flags_of(path: str, layout: Layout) -> list[str]:
    """The columns with a name whose first values are 0 and 1 alone."""
    rows = _rows(_beginning(path), layout.delimiter)[1:] if layout.header else []
    columns = zip(*(row for row in rows if len(row) == len(layout.names)), strict=True)
    return [name for name, values in zip(layout.names, columns, strict=False) if {*values} <= {"0", "1"}]


def _beginning(path: str) -> str:
    from ftcli.core.files.streams import head

    return head(path).decode("utf-8", errors="replace")


def _rewritten(text: str, mark: str) -> str:
    """The command that makes commas of another delimiter, and double quotes of single ones."""
    single = [len({len(row) for row in _rows(text, mark, len(text), quote)}) == 1 for quote in "'\""] == [True, False]
    how = f'delimiter="{mark}"'.replace("\t", r"\t") + ", quotechar=chr(39)" * single
    return f"python -c 'import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, {how}))' < OLD > NEW.csv"


@contextmanager
def wide_fields() -> Iterator[None]:
    """The csv module's limit of 131,072 characters a field, lifted for a while."""
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(limit)
