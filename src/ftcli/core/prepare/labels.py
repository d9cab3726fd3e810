"""From labels in the sources to ids: one map for all splits, made before encoding."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from pathlib import Path

from ftcli.context import Context
from ftcli.contracts import Executor
from ftcli.core.files.durable import put, writing
from ftcli.core.files.manifest import seal, unseal
from ftcli.core.prepare.executed import results
from ftcli.core.prepare.recipe import Recipe
from ftcli.core.reading.label_names import by_value, in_id_order
from ftcli.core.reading.read import Plan
from ftcli.core.reading.split_arguments import only_splits
from ftcli.errors import DataError, UsageError
from ftcli.records import ShardPlan
from ftcli.settings import DatasetSettings

Label = str | int
Found = dict[str, set[Label]]
"""Split → its labels."""
KEPT = "found.json"
MANY = 10_000
"""Distinct labels that are spoken of. A judgement: extreme classification has more, and knows it."""
UNLABELLED = ("-1", "-")
"""How many data sets mark a row without a label."""
JOINED = r"""(.[{}] | .. | strings) |= (gsub("\\s+"; " ") | ltrimstr(" ") | rtrimstr(" "))"""
"""For jq: spaces around the labels of a column go, and of several in one place one stays."""
MANY_NAMES = 50
"""Labels that are named in a command to be typed."""
ITEM = r"""(?:-?\d+(?:\.\d*)?|'[^']*'|"[^"]*")"""
INTEGER = re.compile("-?[0-9]+")
NUMBER = re.compile(r"-?[0-9]+(?:[.][0-9]+)?")
LIST = re.compile(rf"[\[({{]\s*(?:{ITEM}(?:\s*,\s*|\s+))*{ITEM}?\s*[\])}}]")
"""A list as Python or numpy prints it: [3, 10], ['x' 'y'], (3,). Labels in brackets without quotes, such as [neg], are none."""
FIRST, LAST = re.compile(rf"[\[({{]\s*{ITEM}"), re.compile(rf"{ITEM}\s*[\])}}]")
"""Its first and its last item, where it was cut at a separator."""


def label_map(
    context: Context,
    recipe: Recipe,
    executor: Executor,
    collect: Callable[[ShardPlan], list[Label]],
    beat: Callable[[], None],
    kept: Path,
) -> tuple[list[str] | None, dict[Label, int] | None]:
    """Label names in id order and the map from label to id; (None, None) without a label column.

    Args:
        executor: started.
        collect: picklable; gives the distinct labels of one shard.
        beat: called as work goes on.
        kept: folder of the working directory where the labels are written down, and found again by whoever goes on there.

    Raises:
        DataError: fewer than two labels, or lists of labels that are written as text.
        UsageError: the label names that were given cannot be.
    """
    dataset = context.settings.dataset
    if recipe.plan.columns.number:
        return None, None
    if not dataset.labelled:
        return None, None
    if (named := named_labels(dataset, recipe.plan)) is not None:
        return named
    assert dataset.label_column is not None, "several columns name their labels"
    found = _recall(kept)
    if found is None:
        found = _collect(context, recipe, executor, collect, beat)
        _keep(kept, found)
    labels = set().union(*found.values())
    _refuse_written_lists(dataset.label_column, labels)
    _refuse_unlabelled(
        found, partial(only_splits, dataset.sources or (), [make() for _, make in context.plugins.registry("source").items()])
    )
    names, ids = number(labels)
    if len(names) < 2:
        raise DataError(
            f"the column {dataset.label_column!r} holds {len(names)} distinct label(s): {', '.join(map(repr, names))}",
            "A classifier needs at least two; check --label-column.",
        )
    moved = next((label for label, place in ids.items() if isinstance(label, int) and label != place), None)
    if moved is not None:
        context.note(f"the {len(ids)} labels {names[0]} to {names[-1]} get the ids 0 to {len(ids) - 1} ({moved} is {ids[moved]})")
    _note_odd(context, names)
    _note_strange(context, found)
    return names, ids


def _note_strange(context: Context, found: Found) -> None:
    """Labels that no train row has, and so many that they may be none."""
    if (many := len(set().union(*found.values()))) > MANY:
        context.note(
            f"the column {context.settings.dataset.label_column!r} has {many:,} distinct labels, each a class of its own: if it holds an id or free text, "
            "name another with --label-column"
        )
    for split, labels in found.items():
        if "train" in found and (strange := sorted(map(str, labels - found["train"]))):
            words = f"{', '.join(map(repr, strange[:5]))}{' …' if len(strange) > 5 else ''}"
            context.note(f"{len(strange):,} of {len(labels):,} labels of {split} have no train row and will not be learned: {words}")


def _note_odd(context: Context, names: list[str]) -> None:
    """Names that are told apart, or ordered, as nobody may have meant."""
    equal: dict[float, list[str]] = {}
    for name in filter(NUMBER.fullmatch, names):
        equal.setdefault(float(name), []).append(name)
    if twice := next((each for each in equal.values() if len(each) > 1 and any("." in name for name in each)), None):
        way = ",".join(f"{name}={min(equal[number], key=len)}" for number in sorted(equal) for name in equal[number])
        joined = f": --label-names {way} makes them one" if sum(map(len, equal.values())) == len(names) <= MANY_NAMES else ""
        context.note(f"the labels {twice[0]!r} and {twice[1]!r} are one number and two classes{joined}")
    if len(names) > 2 and all(map(NUMBER.fullmatch, names)) and any("." in name for name in names):
        context.note(
            f"the {len(names)} labels are numbers with decimals ({names[0]} to {names[-1]}), each a class of its own: --mode regress predicts the number itself"
        )
    elif names != (by_value := sorted(names, key=lambda name: (len(name), name))) and all(map(str.isdigit, names)):
        moved = next(name for place, name in enumerate(names) if by_value[place] != name)
        context.note(
            f"the {len(names)} labels are numbers sorted as text ({moved} has the id {names.index(moved)}): to keep the order of numbers, "
            "name them with --label-names"
        )
    elif mark := next((mark for mark in ",|;" if _joins(mark, names)), ""):
        context.note(
            f"{sum(mark in name for name in names):,} of the {len(names):,} labels hold a {mark!r} between parts of other labels, each such set a class of "
            f"its own: --label-separator '{mark}' gives a row any number of labels"
        )
    seen: dict[str, str] = {}
    folded: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(" ".join(name.split()), name)) is not name:
            column = json.dumps(context.settings.dataset.label_column)
            context.note(
                f"the labels {other!r} and {name!r} differ only in spaces, but are two classes: if they mean the same, correct the sources, as pandas does "
                f"by .str.split().str.join(' '), or {shlex.join(['jq', '-c', JOINED.format(column)])} OLD > NEW.jsonl"
            )
            return
        if len(name) > 1 and (other := folded.setdefault(name.casefold(), name)) is not name:
            context.note(f"the labels {other!r} and {name!r} differ only in case, but are two classes{_merged(names)}")
            return


def _merged(names: Sequence[str]) -> str:
    """The option that makes one class of labels that differ in case only; "" where it would be long."""
    first: dict[str, str] = {}
    if len(names) > MANY_NAMES or any(mark in name for name in names for mark in "=,"):
        return ""
    merged = ",".join(f"{name}={first.setdefault(name.casefold(), name)}" for name in names)
    return f" (to merge them: --label-names {shlex.quote(merged)})"


def _joins(mark: str, names: list[str]) -> bool:
    """Whether names are sets, with `mark` between what is in them: at least half of their parts are names, or in two names."""
    parts = Counter(part for name in names if mark in name for part in {part.strip() for part in name.split(mark)})
    alone = set(names)
    return bool(parts) and 2 * sum(count > 1 or part in alone for part, count in parts.items()) >= len(parts)


def unlabelled_note(names: Sequence[str], rows: Mapping[int, int], read: int) -> str | None:
    """What to say of a class that stands for no label in many data sets; -1 beside other numbers below 0 is one of a scale.

    Args:
        names: the labels that were found, in id order.
        rows: label id → its rows; `read` is the number of all rows.
    """
    marks = [name for name in names if name in UNLABELLED]
    others = [name for name in names if name not in UNLABELLED]
    if not marks or len(others) < 2 or any(name.startswith("-") and NUMBER.fullmatch(name) for name in others):
        return None
    count = sum(rows.get(names.index(mark), 0) for mark in marks)
    words = f"{count:,} of {read:,} rows have the label {' or '.join(marks)}, which counts as a class; many data sets use it for rows without a label"
    if len(others) > MANY_NAMES or any("," in name or name != name.strip() or not name for name in others):
        return f"{words}: if this one does, remove these rows from the sources"
    share = min(100, ceil(100 * count / read) + 1)
    return f"{words}. To leave them out: --label-names {shlex.quote(','.join(others))} --on-bad quarantine --max-bad {share}%"


def named_labels(dataset: DatasetSettings, plan: Plan) -> tuple[list[str], dict[Label, int]] | None:
    """Names in id order and ids, where settings or sources name the labels."""
    if dataset.label_columns:
        return dataset.label_columns, by_name(dataset.label_columns, integers=False)
    if dataset.label_names:
        return in_id_order(dataset.label_names), by_name(dataset.label_names, integers=plan.columns.label_kind in {"int", "ints"})
    return (list(plan.label_names), {place: place for place in range(len(plan.label_names))}) if plan.label_names else None


def _refuse_written_lists(column: str, found: set[Label]) -> None:
    """A table that was saved with lists in it holds their text, and every list would be a class of its own."""
    labels = sorted(label for label in found if isinstance(label, str) and label)
    lists = bool(labels) and len(labels) == len(found - {""}) and all(map(LIST.fullmatch, labels))
    cut = [next(filter(end.fullmatch, labels), None) for end in (FIRST, LAST)]
    if lists or all(cut):
        shown = max(labels, key=len) if lists else f"{cut[0]} and {cut[1]}"
        raise DataError(
            f"the column {column!r} holds lists written as text: {shown[:100]}; each of {len(labels):,} would be a class of its own",
            "Any number of labels a row: JSON lists in a .jsonl (pandas: to_json(NEW, orient='records', lines=True), after ast.literal_eval where they"
            " are text already), or a|b with --label-separator '|'. To keep them as they are, name each with --label-names.",
        )


def _refuse_unlabelled(found: Found, only: Callable[[list[str]], str]) -> None:
    """The test rows of many benchmarks say -1 where the others have a label: it would be a class, and move the ids of all others.

    Args:
        only: how the sources are named with these splits alone.
    """
    bare = [split for split, labels in found.items() if labels in ({-1}, {"-1"})]
    rest = {split: labels for split, labels in found.items() if split not in bare}
    if bare and rest and {-1, "-1"}.isdisjoint(set().union(*rest.values())):
        raise DataError(
            f"every label of {' and '.join(sorted(bare))} is -1, and none of {' and '.join(sorted(rest))}: many data sets mark rows without a label like that",
            f"Leave {'it' if len(bare) == 1 else 'them'} out by listing the others: {only(sorted(rest))}."
            " The trained model labels such texts: ftcli predict.",
        )


def _collect(
    context: Context, recipe: Recipe, executor: Executor, collect: Callable[[ShardPlan], list[Label]], beat: Callable[[], None]
) -> Found:
    context.progress.start("labels", sum(shard.size for shard in recipe.plan.shards), "B")
    found: Found = {}

    def on_progress(size: int, *_: object) -> None:
        beat()
        context.progress.advance(size)

    given = executor.run(partial(_of_split, collect), recipe.plan.shards, on_progress)
    for split, labels in results(context, given, recipe.plan.shards, tuple):
        found.setdefault(split, set()).update(labels)
    context.progress.close()
    return found


def _of_split(collect: Callable[[ShardPlan], list[Label]], shard: ShardPlan) -> tuple[str, list[Label]]:
    return shard.split, collect(shard)


def _recall(folder: Path) -> Found | None:
    with suppress(OSError, ValueError, KeyError):  # absent, damaged or of an earlier version: they are collected
        return {split: set(labels) for split, labels in unseal((folder / KEPT).read_bytes())["labels of splits"].items()}
    return None


def _keep(folder: Path, found: Found) -> None:
    with writing(folder):
        folder.mkdir(exist_ok=True)
    put(
        seal({"labels of splits": {split: sorted(labels) for split, labels in found.items()}}),
        folder / f"{os.urandom(6).hex()}.tmp",
        folder / KEPT,
    )


def by_name(names: Sequence[str], *, integers: bool) -> dict[Label, int]:
    """Label → id for names given in id order, or as VALUE=NAME. Where the column holds integers and the names are words, an integer is the id itself.

    Raises:
        UsageError: fewer than two names, or one twice; or a value that is no integer, where the column holds integers.

    >>> by_name(["bad", "good"], integers=False)
    {'bad': 0, 'good': 1}
    >>> by_name(["bad", "good"], integers=True)
    {0: 0, 1: 1}
    >>> by_name(["-1", "1"], integers=True)
    {-1: 0, 1: 1}
    >>> by_name(["1=bad", "2=bad", "3=good"], integers=True)
    {1: 0, 2: 0, 3: 1}
    """
    if (named := by_value(names)) is not None:
        return _by_value(names, named, integers)
    labels: Iterable[Label] = names
    if integers:
        labels = [int(name) for name in names] if all(map(INTEGER.fullmatch, names)) else range(len(names))
    ids = {label: place for place, label in enumerate(labels)}
    if len(ids) < len(names) or len(set(names)) < len(names):
        raise UsageError(f"dataset.label_names names a label twice: {', '.join(names)[:200]}", "List each label once.")
    if len(ids) < 2:
        file = "".join(names)
        is_file = os.path.isfile(file)  # noqa: PTH113 - a name may be too long for a path
        hint = (
            "File names are not accepted: write the labels themselves, separated by commas."
            if is_file
            else "A classifier needs at least two."
        )
        raise UsageError(f"dataset.label_names names {len(ids)} label: {', '.join(names)}", hint)
    return ids


def _by_value(given: Sequence[str], named: Mapping[str, str], integers: bool) -> dict[Label, int]:
    classes = in_id_order(given)
    if len(named) < len(given) or len(classes) < 2:
        problem = "names a value twice" if len(named) < len(given) else f"names {len(classes)} label"
        raise UsageError(
            f"dataset.label_names {problem}: {', '.join(given)[:200]}", "As in 1=bad,2=bad,3=good: each value once, two names at least."
        )
    if integers and (odd := next((value for value in named if not INTEGER.fullmatch(value)), None)):
        raise UsageError(f"dataset.label_names: the labels are whole numbers, and {odd!r} is none", "As in 0=negative,1=positive.")
    return {int(value) if integers else value: classes.index(name) for value, name in named.items()}


def number(labels: set[Label]) -> tuple[list[str], dict[Label, int]]:
    """Names in id order and ids. Strings are sorted; integers that start at 0 keep their value (a gap is a class without rows), others are
    sorted and numbered.

    >>> number({"b", "a"})
    (['a', 'b'], {'a': 0, 'b': 1})
    >>> number({0, 2})
    (['0', '1', '2'], {0: 0, 1: 1, 2: 2})
    >>> number({1, 5})
    (['1', '5'], {1: 0, 5: 1})
    """
    ordered: list[Label] = sorted(labels)  # all strings or all integers: one column has one type
    low, high = (ordered[0], ordered[-1]) if ordered else (None, None)
    if low == 0 and isinstance(high, int) and high < 2 * len(ordered):
        ordered = list(range(high + 1))
    return [str(label) for label in ordered], {label: place for place, label in enumerate(ordered)}
