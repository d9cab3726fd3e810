"""What columns are called: the one that is asked for, and what to say when it is not there."""

from __future__ import annotations

import difflib
import re
import shlex
import unicodedata
from collections.abc import Iterable

from ftcli.core.files.streams import head
from ftcli.core.reading import jq
from ftcli.core.reading.columns import BadValue, Role
from ftcli.core.reading.split_names import ALIASES, role_of
from ftcli.errors import DataError

CONVERSATIONS = (
    {"messages"},
    {"conversations"},
    {"conversation"},
    {"prompt", "completion"},
    {"instruction", "output"},
    {"instruction", "response"},
    {"instruction", "instances"},
)
"""Columns that make a row a conversation (`ftcli.core.reading.conversation`)."""
TEXTS = re.compile(
    "texts?|sentences?|contents?|document|reviews?|comments?|tweets?|utt|utterances?|body|message|query|question|article|title|headline"
    "|문장|내용|리뷰|본문|댓글|텍스트|질문|제목"
)
LABELS = re.compile("labels?|category|class|target|sentiment|intent|emotion|topic|tag|라벨|레이블|감정|분류|카테고리")
"""Words in the names of columns that hold texts, or what is said of them."""
WORD = re.compile(r"[^\W_]+")
HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""Between the words of a name such as reviewText."""
PLAIN = re.compile(r"[\w@%+=:,./-]+")
ALIKE = 0.7
"""Nearness of a name that was meant, as difflib measures it; "intent" is as near to "text" as 0.6."""
LONGEST = 60
"""Characters of a name that are shown: where the first line is a row, it is a text."""


def need_column(where: str, role: Role, name: str, existing: Iterable[str], *, flags: bool = False) -> None:
    """
    Args:
        flags: whether labels have a column each.

    Raises:
        DataError: `existing` lacks the column, or has it twice; lists what there is with the nearest name.
    """
    try:
        need_key(role, name, existing, flags=flags)
    except BadValue as bad:
        raise DataError(f"{where}: {bad.reason}", bad.hint) from None


def need_key(role: Role, name: str, existing: Iterable[str], *, flags: bool = False) -> None:
    """As `need_column`, of one row: raises BadValue (index 0)."""
    names = [str(column) for column in existing]
    if names.count(name) == 1:
        return
    if name in names:
        raise BadValue(0, "duplicate-key", f"the column {name!r} exists {names.count(name)} times", name, "Rename one of them.")
    composed = unicodedata.normalize("NFC", name)
    same = [column for column in names if unicodedata.normalize("NFC", column) == composed][:1]
    near = same or _nearest(name, names) or usual_columns(role, names)
    flag = "--text-pair-column" if role == "pair" else f"--{role}-column{'s' if flags and role == 'label' else ''}"
    meant = f"Did you mean {flag} {' or '.join(map(as_argument, near))}?" if near else f"Name a column with {flag}."
    if same:
        meant += " It looks the same but is encoded differently (macOS decomposes letters, NFD): copy the name from this message."
    elif role == "text" and any(set(names) >= shape for shape in CONVERSATIONS):
        meant = "For conversations use --mode sft; to read one column as plain text, name it with --text-column."
    elif {"title", "paragraphs"} <= {*names}:
        meant = jq.SQUAD
    elif {"data", "annotations"} <= {*names}:
        meant = jq.LABEL_STUDIO
    elif len(names) > 1 and all(map(role_of, names)):
        meant = f"These are splits: write each to its own file (from .json: jq .{names[0]} OLD > {names[0]}.json; from a pickle: json.dump each)."
    elif "input_ids" in names:
        meant = (
            "The data are already token ids, but ftcli tokenize reads texts. If ftcli prepared them, pass them to ftcli train --dataset."
        )
    elif names and names == [str(number) for number in range(len(names))] and not name.isdecimal():
        meant = "The columns have no names, so give their numbers, counted from 0: --text-column 0 --label-column 1."
    shown = ", ".join(map(_short, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    raise BadValue(0, "missing-field", f"no column {name!r}", name, f"Columns: {shown or 'none'}. {meant}")


def _nearest(name: str, names: list[str]) -> list[str]:
    """The column that is called nearly so, after those with that word among others: gold_label, and not label5, of label1 … label5. "test" is no "text"."""
    close = difflib.get_close_matches(name, [column for column in names if column not in ALIASES], n=1, cutoff=ALIKE)
    within = [column for column in names if name.casefold() in WORD.findall(HUMP.sub("_", column).casefold()) and column not in close]
    return within + [column for column in close if not column[-1].isdecimal()] if 0 < len(within) <= 2 else close


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def has_columns(path: str, names: Iterable[str]) -> bool:
    """Whether a text's first line, cut at its tabs, has these columns, by name or counted from 0."""
    first = head(path, 1 << 16).partition(b"\n")[0].decode("utf-8", "replace").rstrip("\r").split("\t")
    there = {field.strip('"') for field in first} | {str(number) for number in range(len(first))}
    return len(first) > 1 and there.issuperset(names)


def as_argument(name: str) -> str:
    """A column's name as a shell takes it; letters of any alphabet need no quotes.

    >>> as_argument("제목"), as_argument(" label"), as_argument("# text")
    ('제목', "' label'", "'# text'")
    """
    return name if PLAIN.fullmatch(name) else shlex.quote(name)


def usual_columns(role: Role, names: list[str]) -> list[str]:
    """The columns whose names usually mean that role: a few words, of which one says so; none where many do."""
    usual = LABELS if role == "label" else TEXTS
    found = [name for name in names if len(parts := WORD.findall(HUMP.sub("_", name).casefold())) <= 3 and any(map(usual.fullmatch, parts))]
    return found if len(found) <= 3 else []
