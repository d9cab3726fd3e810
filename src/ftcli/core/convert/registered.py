"""The data sets that LLaMA-Factory's configuration names: looked up in `dataset_info.json`, which says where they are and what their columns are called.

Settings are the same for all sources: a data set whose columns have other names than those of one before it is listed as lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcli.core.reading.conversation import MODE, READ
from ftcli.core.reading.messages import CALL, ROLES

INFO = "dataset_info.json"
FOLDER = "data"
"""Default of dataset_dir, from where LLaMA-Factory is started."""
ONLINE, REMOTE = "ONLINE", "REMOTE:"
"""As dataset_dir: names are of the Hub; the file is there."""
ALPACA = {"prompt": "instruction", "query": "input", "response": "output"}
"""Their columns → ours, which are the names that they have if no `columns` are given."""
MORE = {"history": "history", "system": "system", "tools": "tools"}
"""Columns that are read if they are named."""
PLACES = frozenset({"file_name", "hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"})
ROLE_OF = {"user_tag": "user", "assistant_tag": "assistant", "observation_tag": "tool", "system_tag": "system"}
FIELDS = {("from", "value"), ("from", "content"), ("role", "content")}
Rule = Mapping[str, Any]
Told = tuple[str, Any, Any]
"""Key behind the data set's, its rule (None: the one of the table) and its value."""


@dataclass(slots=True)
class Registry:
    """The data sets that can be named."""

    folder: Path
    entries: Mapping[str, Any] | None
    """None: names are of the Hub, or there is no file, for which there is a `reason`."""
    reason: str = ""
    _names: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Our column → its name, and the data set that has it so."""

    @classmethod
    def of(cls, config: Mapping[str, Any], file: Path) -> Registry:
        """The file in `dataset_dir`, from here or from the configuration's folder, else the one beside the configuration."""
        said = str(config.get("dataset_dir") or FOLDER)
        if said == ONLINE:
            return cls(Path(), None)
        if said.startswith(REMOTE):
            return cls(Path(), None, f"names an entry of {INFO} on the Hub: give its file as dataset.sources")
        folders = dict.fromkeys([Path(said), file.parent / said, file.parent])
        folder = next((folder for folder in folders if (folder / INFO).is_file()), None)
        if folder is None:
            return cls(
                Path(), None, f"names an entry of {INFO}, which is not in {said} or beside this file: give its file as dataset.sources"
            )
        try:
            entries = json.loads((folder / INFO).read_text(encoding="utf-8-sig"))
            if not isinstance(entries, dict):
                raise TypeError("it is not an object")
        except (OSError, TypeError, ValueError, RecursionError) as error:
            return cls(folder, None, f"{folder / INFO} cannot be read: {error}")
        return cls(folder, entries)

    def told(self, key: str, name: str, stage: str) -> Iterator[Told]:
        """What is to be said of a data set of this name, as keys with their rules.

        Args:
            key: it is called so.
            stage: sft or pt.
        """
        if self.entries is None:
            yield "", {"to": "dataset.sources", "as": "source"}, name
            return
        entry = self.entries.get(name)
        if not isinstance(entry, Mapping):
            why = "is not an object" if name in self.entries else "has no entry of this name"
            yield "", {"lost": f"{self.folder / INFO} {why}"}, name
            return
        named, texts, lost = _meant(entry, stage)
        lost = lost or ("" if PLACES & entry.keys() else f"{self.folder / INFO} names no file")
        lost = lost or self._taken_otherwise(key, named)
        if lost:
            yield "", {"lost": lost}, name
            return
        columns = _table(entry, "columns")
        given = {ours: theirs for ours, theirs in named.items() if ours != "text"}
        if texts is not None and "text" in named:  # a text column, or that of messages, which the file need not name
            yield f"{'.columns.' + texts if texts in columns else ''}", {"to": "dataset.text_column"}, named["text"]
        for column, theirs in columns.items():
            ours = {**ALPACA, **MORE}.get(column)
            if column == texts and "text" in named:
                continue
            if ours in given and theirs is not None:
                yield f".columns.{column}", _renamed(ours, str(theirs)), theirs
            else:
                yield f".columns.{column}", {"same": "found by its name"} if column == texts else None, theirs
        for tag, theirs in _table(entry, "tags").items():
            yield f".tags.{tag}", _tagged(tag, _table(entry, "tags")), theirs
        for said, value in entry.items():
            if said not in {"columns", "tags"}:
                yield f".{said}", self._place(said, entry, query="input" in given and stage == MODE), value

    def _taken_otherwise(self, key: str, named: Mapping[str, str]) -> str:
        """Why these columns cannot be had beside those of the data sets before; "" if they can, and then they are remembered."""
        for ours, theirs in named.items():
            there, first = self._names.get(ours, (theirs, key))
            if there != theirs:
                what = "text" if ours == "text" else ours
                return f"its {what} column is {theirs!r}, that of {first} is {there!r}, and there is one name for all sources: rename it, or prepare it on its own"
        for ours, theirs in named.items():
            self._names.setdefault(ours, (theirs, key))
        return ""

    def _place(self, said: str, entry: Mapping[str, Any], *, query: bool) -> Rule | None:
        """The rule of a key that says where the data are; None of any other."""
        hub = entry.get("hf_hub_url")
        if said not in {"file_name", "hf_hub_url"}:
            return {"same": "hf_hub_url is used"} if said in {"ms_hub_url", "om_hub_url"} and hub else None
        if said == "file_name" and hub:
            return {"same": "hf_hub_url is used"}
        value = str(entry[said])
        note = {"note": "instruction and input are joined with a blank line between them, there with a line break"} if query else {}
        return {"to": "dataset.sources", "as": "source", "values": {value.lower(): str(self.folder / value)} if not hub else {}, **note}


def _meant(entry: Mapping[str, Any], stage: str) -> tuple[dict[str, str], str | None, str]:
    """Our columns with the names that they have, "text" among them; their column that is the text's; and why the data are none of ours."""
    columns = {name: str(theirs) for name, theirs in _table(entry, "columns").items() if theirs is not None}
    if entry.get("ranking"):
        return {}, None, "preference data, on which ftcli does not train"
    chat = entry.get("formatting", "alpaca") != "alpaca"
    if stage != MODE:
        if chat:
            return {}, None, "conversations, of which stage pt reads the first message only: write it as a text column"
        return {"text": columns.get("prompt", ALPACA["prompt"])}, "prompt", ""
    named = {ours: columns[theirs] for theirs, ours in MORE.items() if theirs in columns}
    if chat:
        messages = columns.get("messages", "conversations")
        return {**named, **({} if messages in {"messages", *READ["sharegpt"]} else {"text": messages})}, "messages", ""
    asked = {theirs: ours for theirs, ours in ALPACA.items() if theirs in columns} if columns else ALPACA
    return {**{ours: columns.get(theirs, ours) for theirs, ours in asked.items()}, **named}, None, ""


def _table(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = entry.get(key)
    return found if isinstance(found, Mapping) else {}


def _renamed(ours: str, theirs: str) -> Rule:
    if ours == theirs:
        return {"harmless": [theirs]}
    return {"to": "dataset.rename_columns", "values": {theirs.lower(): [f"{ours}={theirs}"]}}


def _tagged(tag: str, tags: Mapping[str, Any]) -> Rule | None:
    """The rule of a tag; None of one that nobody knows."""
    theirs = str(tags[tag])
    if tag in {"role_tag", "content_tag"}:
        fine = (tags.get("role_tag", "from"), tags.get("content_tag", "value")) in FIELDS
        return (
            {"same": "found by its name"}
            if fine
            else {"lost": "a message has role and content, or from and value: rename them in the data"}
        )
    if tag == "function_tag":
        fine = theirs == CALL
    elif tag in ROLE_OF:
        fine = ROLES.get(theirs.lower()) == ROLE_OF[tag]
    else:
        return None
    return (
        {"same": "known by this name"} if fine else {"lost": f"roles are user, assistant, system and tool, those of ShareGPT, and {CALL}"}
    )
