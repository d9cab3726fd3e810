"""From what the user named (files, globs, directories, hub ids, SPLIT=PATH) to files with format and split; nothing is left out in silence."""

from __future__ import annotations

import difflib
import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.contracts import SourceFormat
from ftcli.core.files.objects import in_small_letters, url_of
from ftcli.core.files.run_folder import refuse_run
from ftcli.core.files.streams import SUFFIXES, bare_suffix, natural
from ftcli.core.reading.column_names import has_columns
from ftcli.core.reading.dataset_card import CARD, said_by_card
from ftcli.core.reading.file_notes import refuse_lesser
from ftcli.core.reading.readable import check_file
from ftcli.core.reading.skipped_files import SkippedFiles, inside
from ftcli.core.reading.split_names import ALIASES, parted, role_of
from ftcli.core.reading.unread_formats import ADVICE
from ftcli.errors import DataError, PluginError, SettingsError
from ftcli.records import SPLITS, Split
from ftcli.registry import AnyRegistry
from ftcli.settings import Settings

if TYPE_CHECKING:
    from ftcli.context import Progress

TEXT_COLUMN = Settings().dataset.text_column
"""The one that is asked for where nobody names one."""
NOT_DATA = ("readme", "license", "licence", "source.", "changelog", "requirements")
"""Beginnings of the names of text files that describe data."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file to read. `name` is what its split may be read from: the path below the directory that was named, or that all share."""

    path: str
    format: str
    name: str
    split: Split | None = None


class Finder:
    """Finds the files of `settings.dataset.sources`; `notes` says what was decided."""

    def __init__(self, settings: Settings, formats: AnyRegistry, progress: Progress | None = None) -> None:
        self.settings = settings
        self._progress = progress
        self.formats: dict[str, SourceFormat] = {name: factory() for name, factory in formats.items()}
        self.suffixes: dict[str, str] = {}
        for name, reader in self.formats.items():
            for suffix in reader.suffixes:
                if suffix in self.suffixes:
                    raise PluginError(
                        f"the formats {self.suffixes[suffix]!r} and {name!r} both read {suffix}", "Uninstall one of the plugins."
                    )
                self.suffixes[suffix] = name
        self.given = self._given()
        """The format that every source is said to be of, whatever its suffix."""
        self.notes: list[str] = []
        self.common = ""
        self._lesser: dict[str, dict[str, str]] = {}
        """First file that was chosen in a folder → path and format of those that were not."""

    def _given(self) -> str | None:
        name = self.settings.dataset.source_format
        known = sorted(format_ for format_, reader in self.formats.items() if reader.suffixes)
        if name is not None and name not in known:
            near = self.suffixes.get(f".{name}") or next(iter(difflib.get_close_matches(name, known, n=1)), None)
            meant = f"Did you mean {near}? " if near else ""
            raise SettingsError(f"dataset.source_format = {name!r} is not a file format", f"{meant}Known formats: {', '.join(known)}.")
        return name

    def _kind(self, path: str) -> str | None:
        """The format of a file, by its suffix unless it was given; None where neither says."""
        return self.given or self.suffixes.get(bare_suffix(path))

    def find(self) -> list[Found]:
        """All files, every one with its split, in the order of the sources; globs and directories in natural order.

        Raises:
            DataError: a source is missing, unreadable, no file, of no known format, or in two splits.
        """
        items = [(split, self._local(path)) for split, path in map(parted, self.settings.dataset.sources or ())]
        folders = [folder for _, path in items if (folder := _folder(path))]
        self.common = os.path.commonpath(folders) if folders else ""
        found = [file for split, path in items for file in self._source(split, path)]
        tables = self._tables(found)
        for file in tables if self.settings.train.mode != "sft" and self.settings.dataset.on_bad == "strict" else ():
            if left := self._lesser.get(file.path):
                refuse_lesser(file, left, self.formats, self.settings)
        return self._unique(self._by_name(tables))

    def _local(self, path: str) -> str:
        """The path; of what lies in an object store that of the copies."""
        if (url := url_of(path)) is None:
            return path
        from ftcli.context import Quiet
        from ftcli.core.files.mirror import mirrored
        from ftcli.core.publishing.ranks import Wait

        with closing(Wait(self._progress or Quiet(), url, self.settings.runtime.lease_timeout, does="copies")) as wait:
            path, note = mirrored(url, self.settings, self._progress, wait.see)
        self.notes += [note] if note else []
        return path

    def _source(self, split: Split | None, path: str) -> list[Found]:
        claimer = next((name for name, reader in self.formats.items() if reader.claims(path)), None)
        if os.path.isdir(path):  # noqa: PTH112 - never raises, unlike Path.is_dir on a name that is too long
            refuse_run(Path(path), DataError)
            files = self._claimed(claimer, path, split) if claimer else self._directory(path, split)
        elif os.path.lexists(path):
            files = [Found(path, self._format(path), os.path.relpath(path, self.common or None))]
        elif glob.has_magic(path):
            files = self._glob(path)
        elif claimer and self._kind(path) is None:
            files = self._claimed(claimer, path, split)
        else:
            raise missing(path)
        if split is None:
            return files
        if others := [file.path for file in files if file.split is None and len(files) > 1 and role_of(file.name) not in {None, split}]:
            self.notes.append(
                f"{path}: read as {split} like the other files there, although their names suggest another split: {_names(others)}"
            )
        return [file if file.split else replace(file, split=split) for file in files]

    def _below(self, folder: str) -> str:
        """What stands before the names of a folder's files, so that they begin below what all sources share."""
        inner = os.path.relpath(folder, self.common or None)
        return "" if inner == "." else f"{inner}/"

    def _claimed(self, claimer: str, item: str, split: Split | None) -> list[Found]:
        """Files of a dataset that knows its splits; `split` asks for one of them."""
        parts = self.formats[claimer].expand(item, self.settings)
        way = f" Name one by its folder: {split or 'train'}={item.rstrip('/')}/{_likely(parts, split) or 'NAME'}."
        if not os.path.isdir(item):  # noqa: PTH112
            asked = ", ".join(map(repr, item.split(":")))
            way = f""" To take one, save it: python -c "import datasets; datasets.load_dataset({asked})['{_likely(parts, split) or "NAME"}'].save_to_disk('NEW')\""""
        return self._chosen(item, split, parts, way, lambda path: self.suffixes.get(bare_suffix(path), claimer))

    def _chosen(
        self, item: str, split: Split | None, parts: Mapping[Any, Sequence[str]], way: str, kind: Callable[[str], str]
    ) -> list[Found]:
        """The files of the splits that are called as ours, by the names in `parts`; `way`: what to do about others of a directory."""
        own = {name: ALIASES.get(name.lower()) if name else None for name in parts}
        if not any(own.values()):  # train_sft and test_sft, but not train_sft and train_gen
            roles = {name: role_of(name) for name in parts if name}
            own |= {name: role for name, role in roles.items() if [*roles.values()].count(role) == 1}
            if told := [f"{role} ← {name}" for name, role in own.items() if role]:
                self.notes.append(f"{item}: splits by their names: {'; '.join(told)}")
        chosen = [name for name in parts if name is None or own[name]]
        if split:
            chosen = list(parts) if len(parts) == 1 else [name for name in parts if own[name] == split]
        there = f"It has: {', '.join(map(str, parts)) or 'nothing'}."
        if None not in parts and parts:
            there += way
        if not chosen:
            raise DataError(f"{item} has no {split} split" if split else f"{item} has none of the splits {', '.join(SPLITS)}", there)
        left = [name for name in parts if name is not None and name not in chosen]
        if left:
            self.notes.append(f"{item}: left out the splits {_names(left)}")
        below = self._below(item) if os.path.isdir(item) else ""  # noqa: PTH112
        files = [Found(path, kind(path), below, split or own[name]) for name in chosen for path in parts[name]]
        if not files:
            raise DataError(f"{item} has no data files", there)
        for file in files:
            check_file(file.path)
        return files

    def _directory(self, folder: str, split: Split | None) -> list[Found]:
        """The files that the card of a data set names, else those of the one format that has most bytes, at any depth."""
        out = SkippedFiles(self.settings, folder)
        names, left = inside(folder, out)
        said = said_by_card(folder, names, [name for name in names if self._is_data(name)])
        if said.parts:
            self.notes += [*_told(folder, out), *said.notes]
            return self._mapped(folder, split, said.parts, [*names, *left])
        by_format: dict[str, list[str]] = {}
        sizes: Counter[str] = Counter()
        for name in said.data:
            kind = self._kind(name) or ""
            sizes[kind] += check_file(os.path.join(folder, name))  # noqa: PTH118
            by_format.setdefault(kind, []).append(name)
        if not by_format:
            told = "".join(f"{note}. " for note in _told(folder, out))
            known = ", ".join(sorted(set(self.suffixes) - {".md"}))
            named = "State their format: --source-format text, csv, jsonl …"
            ways = Counter(ADVICE.get(bare_suffix(name), named) for name in names if self._kind(name) is None).most_common(1)
            raise DataError(
                f"{folder}: no data files in this directory",
                f"{told}{''.join(f'{way} ' for way, _ in ways)}These suffixes are read: {known} ({SUFFIXES}). Links that lead out of the folder are followed only if a glob or their own name selects them.",
            )
        self.notes += [*_told(folder, out), *said.notes]
        chosen = max(sorted(by_format), key=lambda name: sizes[name])
        left += set(names) - set(by_format[chosen])
        if left:
            self.notes.append(f"{folder}: read as {chosen}; left out {_names(sorted(left, key=natural))}")
        below = self._below(folder)
        files = [Found(os.path.join(folder, name), chosen, below + name) for name in sorted(by_format[chosen], key=natural)]  # noqa: PTH118 - keeps "./" as given
        others = {os.path.join(folder, name): kind for kind, names in by_format.items() if kind != chosen for name in names}  # noqa: PTH118
        self._lesser[files[0].path] = others
        return files

    def _mapped(self, folder: str, split: Split | None, mapped: Mapping[str, list[str]], names: Iterable[str]) -> list[Found]:
        """The files of a directory whose card maps them to splits; `names`: all that it holds."""
        left = set(names).difference({CARD}, *mapped.values())
        told = "; ".join(f"{name} ← {_names(files)}" for name, files in mapped.items())
        beside = f"; left out {_names(sorted(left, key=natural))}" if left else ""
        self.notes.append(f"{folder}: splits taken from its {CARD}: {told}{beside}")
        parts = {name: [os.path.join(folder, file) for file in files] for name, files in mapped.items()}  # noqa: PTH118
        likely = mapped[name] if (name := _likely(mapped, split)) else ()
        pattern = f"{os.path.commonprefix(likely)}*" if len(likely) > 1 else "".join(likely) or "PATTERN"  # noqa: RUF071 - letters are meant
        return self._chosen(folder, split, parts, f" Name its files: '{split or 'train'}={folder.rstrip('/')}/{pattern}' …", self._format)

    def _is_data(self, name: str) -> bool:
        """Whether a file of a directory is read where nobody named it."""
        suffix = bare_suffix(name)
        known = self.given or suffix in self.suffixes
        return bool(known) and suffix != ".md" and not os.path.basename(name).lower().startswith(NOT_DATA)  # noqa: PTH119

    def _glob(self, pattern: str) -> list[Found]:
        paths = sorted(glob.glob(pattern, recursive=True), key=natural)  # noqa: PTH207 - takes absolute patterns
        files = [path for path in paths if not os.path.isdir(path)]  # noqa: PTH112
        named = ".md" in Path(pattern).name
        known = [path for path in files if (self._kind(path) and bare_suffix(path) != ".md") or (named and path.endswith(".md"))]
        fixed = _fixed(pattern)
        out = SkippedFiles(self.settings, str(fixed))
        data = [path for path in known if not out.file(path)]
        if not data:
            matches = f"only {_names(files)}, which {'hold no data' if known else 'have no known format'}" if files else "nothing"
            told = "".join(f"{note}. " for note in _told(pattern, out))
            raise DataError(
                f"{pattern}: the pattern matches {matches}",
                f"{told}Check the pattern (** matches directories at any depth) and quote it for the shell.",
            )
        self.notes += _told(pattern, out)
        if len(known) < len(files):
            self.notes.append(f"{pattern}: left out {_names(sorted(set(files) - set(known), key=natural))}")
        below = self._below(str(fixed))
        return [Found(path, self._format(path), below + os.path.relpath(path, fixed)) for path in data]

    def _format(self, path: str) -> str:
        check_file(path)
        kind, suffix = self._kind(path), bare_suffix(path)
        if kind is None:
            known = ", ".join(sorted(self.suffixes))
            way = ADVICE.get(suffix, "State its format: --source-format csv, jsonl, text, parquet …")
            raise DataError(
                f"{path}: no known format for {suffix or 'a file without a suffix'}", f"{way} Known suffixes: {known} ({SUFFIXES})."
            )
        return kind

    def _tables(self, found: list[Found]) -> list[Found]:
        """Plain text has no columns: a .txt is read as tab-separated where it has those that are asked for, or labels are."""
        dataset = self.settings.dataset
        label = dataset.label_column or next(iter(dataset.label_columns or ()), None)
        named = [dataset.text_column, *([dataset.text_pair_column] if dataset.text_pair_column else ())]
        if (label is None and named == [TEXT_COLUMN]) or self.given or "csv" not in self.formats:
            return found
        plain = [file.path for file in found if file.format == "text" and bare_suffix(file.path) == ".txt"]
        tables = dict.fromkeys(path for path in plain if label is not None or has_columns(path, named))
        if tables:
            column = ", ".join(map(repr, named))
            why = f"the first line has the column {column}" if label is None else f"the label column {label!r} is asked for"
            self.notes.append(f"read as tab-separated, because {why}: {_names(tables)}")
        return [replace(file, format="csv") if file.path in tables else file for file in found]

    def _by_name(self, found: list[Found]) -> list[Found]:
        """Splits from file names, when they tell train from held-out files; otherwise everything is train."""
        open_ = [file for file in found if file.split is None]
        roles = {file.path: role_of(file.name) for file in open_}
        told = set(roles.values()) - {None}
        if "train" in told and len(told) > 1:
            found = [file if file.split else replace(file, split=roles[file.path] or "train") for file in found]
            parts = [(split, [file.path for file in found if file.path in roles and file.split == split]) for split in SPLITS]
            self.notes.append("splits by file name: " + "; ".join(f"{split} ← {_names(paths)}" for split, paths in parts if paths))
            return found
        if told - {"train"}:
            held = [path for path, role in roles.items() if role not in {None, "train"}]
            self.notes.append(f"read as train, because no file is named train: {_names(held)} (to set the split: SPLIT=PATH)")
        return [file if file.split else replace(file, split="train") for file in found]

    def _unique(self, found: list[Found]) -> list[Found]:
        seen: dict[str, Found] = {}
        again = []
        folder = cache(os.path.realpath)
        for file in found:
            parent, name = os.path.split(file.path)
            real = os.path.realpath(file.path) if os.path.islink(file.path) else f"{folder(parent)}/{name}"  # noqa: PTH114
            first = seen.setdefault(real, file)
            if first is file:
                continue
            if first.split != file.split:
                raise DataError(f"{file.path} is given both as {first.split} and as {file.split}", "Give each file to one split only.")
            again.append(file.path)
        if again:
            self.notes.append(f"given more than once, read once: {_names(again)}")
        return list(seen.values())


def _likely(names: Iterable[Any], split: Split | None) -> str | None:
    """The first of the splits that may be meant, by its name."""
    return next((name for name in names if name and role_of(name) == (split or "train")), None)


def _folder(path: str) -> str | None:
    """The folder that a source's files lie in, as far as its name says; None of a hub id, and of what is not there."""
    absolute = os.path.abspath(path)  # noqa: PTH100 - as below
    if os.path.isdir(path):  # noqa: PTH112 - as below
        return absolute
    if os.path.lexists(path):
        return os.path.dirname(absolute)  # noqa: PTH120
    return os.path.abspath(_fixed(path)) if glob.has_magic(path) else None  # noqa: PTH100


def _fixed(pattern: str) -> Path:
    """The folder that a pattern begins with."""
    return Path(*takewhile(lambda part: not glob.has_magic(part), Path(pattern).parent.parts))


def missing(path: str) -> DataError:
    """What to say of a source that is not there."""
    parent, prefix = Path(path).parent, path.partition("=")[0]
    siblings = os.listdir(parent) if os.path.isdir(parent) and os.access(parent, os.R_OK) else []  # noqa: PTH112, PTH208 - as above
    near = difflib.get_close_matches(Path(path).name, siblings, n=1) or difflib.get_close_matches(prefix, ALIASES, n=1)
    hint = f"Did you mean {near[0]}?" if near else "Check the path."
    if path == "-":
        return DataError("-: stdin is not read", "Write the data to a file: it is read twice.")
    if "://" in path:
        hint = in_small_letters(path) or "Download it first (curl -LO). A dataset on the Hub is named ORG/NAME."
    return DataError(f"{path}: no such file or directory", hint)


def _told(source: str, out: SkippedFiles) -> list[str]:
    return [f"{source}: left out {what}: {_names(names)}" for what, names in out.groups()]


def _names(names: Iterable[str]) -> str:
    every = [str(name) for name in names]
    return ", ".join(every[:5]) + (f" and {len(every) - 5} more" if len(every) > 5 else "")
