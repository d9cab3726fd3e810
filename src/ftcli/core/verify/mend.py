"""Safe fixes: the edits that checks propose, made in a copy of the tokenizer's or configuration's folder, never in the folder itself."""

from __future__ import annotations

import difflib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.contracts import CheckKind, Edit
from ftcli.core.verify.probe import Missing, Probe
from ftcli.errors import FtcliError, PublishError
from ftcli.records import Check

LINKED = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"})
"""Weights are linked into the copy, not copied."""


@dataclass(frozen=True, slots=True)
class Mended:
    """One folder's copy."""

    part: str
    source: Path
    copy: Path
    edits: tuple[Edit, ...]
    diff: str
    """Unified; from the folder to the copy."""
    settings: dict[str, Any]
    """What a run sets to use the copy: "tokenizer.path" or "model.config" or "model.name_or_path"."""


def proposed(probe: Probe, kinds: Sequence[CheckKind], checks: Sequence[Check], owner: Callable[[str], str]) -> list[Edit]:
    """The edits of all checks that found something, without contradictions: the first one of a key counts, the others are noted."""
    verdicts = {check.id: check for check in checks}
    found: dict[tuple[str, str, str], Edit] = {}
    for kind in kinds:
        if kind.mend is None or kind.id not in verdicts or verdicts[kind.id].status not in {"info", "warn", "fail"}:
            continue
        try:
            edits = list(kind.mend(probe, verdicts[kind.id]))
        except (Missing, FtcliError):
            continue  # what it would have looked at is not there
        except Exception as error:  # noqa: BLE001 - a broken fix must not hide the others
            probe.context.note(f"{kind.id}: the fix of plugin {owner(kind.id)!r} broke: {type(error).__name__}: {error}")
            continue
        for edit in edits:
            first = found.setdefault((edit.part, edit.file, edit.key), edit)
            if first.value != edit.value:
                probe.context.note(f"{kind.id}: {edit.file}: {edit.key} = {edit.value!r} is left out, {first.value!r} is set already")
    return list(found.values())


def mend(context: Context, edits: Sequence[Edit], folder: Path) -> list[Mended]:
    """Make the edits in copies below `folder`, which are new each time.

    Raises:
        PublishError: a copy cannot be written.
    """
    made = []
    for part in ("tokenizer", "model"):
        mine = [edit for edit in edits if edit.part == part]
        place = _place(context, part)
        if not mine:
            continue
        if place is None:
            context.note(
                f"--fix: the {part} is not a local folder; download it first, then {', '.join(edit.key for edit in mine)} can be set in a copy"
            )
            continue
        source, setting, only = place
        try:
            copy = _fresh(folder, f"{part}-{source.resolve().name}")
            _copy(source, copy, only)
            diff = "".join(
                _apply(source, copy, name, [edit for edit in mine if edit.file == name])
                for name in dict.fromkeys(edit.file for edit in mine)
            )
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or error
            raise PublishError(
                f"no fixed copy of {source} can be made in {folder}: {words}", "Fix the folder by hand, or choose another --report-dir."
            ) from error
        value = copy / only if only else copy
        made.append(Mended(part, source, copy, tuple(mine), diff, {setting: str(value)}))
    return made


def _place(context: Context, part: str) -> tuple[Path, str, str | None] | None:
    """Folder, the setting that names it, and the one file that is meant where it names a file."""
    model = context.settings.model
    if part == "tokenizer":
        path = Path(context.settings.tokenizer.path or "")
        return (path, "tokenizer.path", None) if context.settings.tokenizer.path and path.is_dir() else None
    if model.config is not None:
        file = Path(model.config)
        return (file, "model.config", None) if file.is_dir() else (file.parent, "model.config", file.name)
    path = Path(model.name_or_path or "")
    return (path, "model.name_or_path", None) if model.name_or_path and path.is_dir() else None


def _fresh(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        place = folder / (name if number == 1 else f"{name}-{number}")
        try:
            place.mkdir()
        except FileExistsError:
            continue
        return place
    raise OSError(f"{folder} is full of copies")


def _copy(source: Path, copy: Path, only: str | None) -> None:
    for file in sorted(source.iterdir()):
        if only is not None and file.name != only:
            continue
        if file.is_file() and file.suffix in LINKED:
            (copy / file.name).symlink_to(file.resolve())
        elif file.is_file():
            shutil.copyfile(file, copy / file.name)
        elif file.is_dir() and file.name == "additional_chat_templates":
            shutil.copytree(file, copy / file.name)


def _apply(source: Path, copy: Path, name: str, edits: Sequence[Edit]) -> str:
    """The edits in one file of the copy; returns the unified diff."""
    target = copy / name
    if not target.exists() and len(files := [file for file in copy.iterdir() if file.suffix == ".json"]) == 1 and edits[0].part == "model":
        target = files[0]  # a configuration of another name
    if target.resolve().parent != copy.resolve():
        raise OSError(f"{name} lies outside of the folder")
    before = target.read_text(encoding="utf-8") if target.exists() else ""
    values: dict[str, Any] = json.loads(before) if before else {}
    indent, ascii_only = _style(before, values)
    for edit in edits:
        nested = values.get("text_config") if edit.part == "model" and edit.key not in values else None
        (nested if isinstance(nested, dict) and edit.key in nested else values)[edit.key] = edit.value
    after = json.dumps(values, indent=indent, ensure_ascii=ascii_only) + ("\n" if before.endswith("\n") or not before else "")
    target.write_text(after, encoding="utf-8")
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    lines = list(difflib.unified_diff(old, new, os.fspath(source / target.name), os.fspath(target), n=2))
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _style(text: str, values: Any) -> tuple[int | str | None, bool]:
    """Indent and ASCII of the file as it is, so that the difference is the edit alone."""
    for indent in (2, 4, None, "\t", 1, 3):
        for ascii_only in (False, True):
            if json.dumps(values, indent=indent, ensure_ascii=ascii_only) == text.rstrip("\n"):
                return indent, ascii_only
    return 2, False
