"""Some rows of prepared data, with what the manifest says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.core.engines.backend import tokenizer_hash
from ftcli.core.inspect.look import Looked, together
from ftcli.core.inspect.row_selection import RowSelection
from ftcli.core.storage.excerpt import document_starts
from ftcli.core.storage.label_flags import names_of
from ftcli.core.storage.store import Rows, Store
from ftcli.core.tokenizer.spelling import Spelling
from ftcli.errors import FtcliError
from ftcli.settings import update

WORDS = {
    "keep_start": "the text may have been cut (keep_start)",
    "keep_end": "the text may have been cut (keep_end)",
    "split": "the text may go on in the next row (split)",
}
"""What a full row may mean, by the truncation strategy."""


def of_store(context: Context, store: Store, split: str | None, picked: RowSelection) -> Looked:
    """
    Raises:
        StoreError: there is no such split; UsageError: it has no such rows.
    """
    name = split or ("train" if "train" in store.split_names else store.split_names[0])
    data = store.split(name)
    rows = data.few(picked.of(len(data), name))
    label_names, label_ids = None, None
    if rows.labels is not None:
        names, label_ids = store.label_names or [], rows.labels.tolist()
        label_names = [names[number] if 0 <= number < len(names) else None for number in label_ids]
    elif rows.numbers is not None:
        label_names = [str(number) for number in rows.numbers]
    elif rows.flags is not None:
        label_names = [together(names_of(flags, store.label_names)) for flags in rows.flags]
    task = None
    try:
        task = context.plugins.registry("task").get(store.manifest.get("task") or "pretrain", "the manifest's task")()
    except FtcliError as error:
        context.note(f"which tokens are learned is not known: {error.message}")
    return Looked(name, rows, task, label_names, label_ids, _notes(store.manifest, rows), total=len(data))


def spelling_of(context: Context, store: Store, rows: Rows) -> Spelling | None:
    """The texts of the rows' tokens; None where the manifest's tokenizer is not to be had, which is noted.

    Raises:
        TokenizerError, MissingExtraError: the tokenizer that was asked for cannot be used.
    """
    asked, known = context.settings.tokenizer.path, store.manifest.get("tokenizer") or {}
    path = asked or known.get("path")
    if not path:
        context.note("the manifest names no tokenizer: ids stand for tokens; name one with --tokenizer-path")
        return None
    if not asked:
        path = _beside(store.path, str(path))
        if path is None:
            context.note(f"ids stand for tokens: the tokenizer {known['path']} of the manifest is not here; name it: --tokenizer-path")
            return None
    settings = update(context.settings, {"tokenizer.path": str(path)})
    try:
        tokenizer = context.plugins.load_tokenizer(settings)
    except FtcliError as error:
        if asked:
            raise
        context.note(
            f"ids stand for tokens, because the tokenizer of the manifest cannot be used ({error.message}); name one: --tokenizer-path"
        )
        return None
    if known.get("hash") and tokenizer_hash(tokenizer, str(path)) != known["hash"]:
        context.note(f"{path} is not the tokenizer these data were prepared with: the texts of the tokens may be wrong")
    return Spelling(tokenizer, rows.input_ids.values)


def _beside(store: Path, path: str) -> str | None:
    """The manifest's tokenizer from here: a folder that was named from the working directory of then, or an id of the hub.

    What is no folder here is looked for from the folders that the store lies in. A hub id is a name, or an owner and a name, without a leading dot.
    """
    if Path(path).is_absolute() or Path(path).exists():
        return path
    for folder in store.absolute().parents:
        if (folder / path).exists():
            return str(folder / path)
    return None if path.startswith(".") or path.count("/") > 1 else path


def _notes(manifest: Mapping[str, Any], rows: Rows) -> dict[int, list[str]]:
    """What can be told from a row's length and its ends, by place in `rows`: prepared data do not keep what was cut."""
    policy: Mapping[str, Any] = manifest.get("policy") or {}
    metrics: Mapping[str, Any] = manifest.get("metrics") or {}
    truncation, limit = policy.get("truncation"), policy.get("max_length")
    happened = metrics.get("texts_split", 1) if truncation == "split" else metrics.get("rows_truncated", 1)
    happened = happened or (truncation == "split" and policy.get("packer_splits"))  # a packer counts none
    if truncation not in WORDS or not happened:
        return {}
    ended = policy.get("prefix") or policy.get("suffix") or policy.get("eos") is not None
    found: dict[int, list[str]] = {}
    for place in range(len(rows)):
        ids = rows.input_ids.row(place)
        starts = document_starts(rows, place).tolist() if policy.get("packed") else [0, len(ids)]
        if policy.get("packed") and ended:
            found[place] = _ends([ids[low:high].tolist() for low, high in pairwise(starts)], policy)
        elif truncation == "split" and policy.get("eos") is not None and not policy.get("parts_end", True):
            found[place] = _ends([ids.tolist()], policy)
        elif len(ids) == limit and len(starts) == 2:  # a document that fills a pack is alone in it
            found[place] = [f"as many tokens as fit ({limit:,}): {WORDS[truncation]}"]
    return {place: notes for place, notes in found.items() if notes}


def _ends(documents: Sequence[list[int]], policy: Mapping[str, Any]) -> list[str]:
    """Documents that lack what every whole text begins or ends with: they were cut after it was added."""
    first = tuple(policy.get("prefix") or ())
    last = (int(policy["eos"]),) if policy.get("eos") is not None else tuple(policy.get("suffix") or ())
    parted = policy["truncation"] == "split"
    notes = []
    for number, ids in enumerate(documents, 1):
        name = "the text" if len(documents) == 1 else f"document {number}"
        if last and tuple(ids[-len(last) :]) != last:
            notes.append(f"{name} {'goes on elsewhere (split)' if parted else 'was cut at its end'}")
        if first and tuple(ids[: len(first)]) != first:
            notes.append(f"{name} {'is the rest of a longer one (split)' if parted else 'was cut at its beginning'}")
    return notes
