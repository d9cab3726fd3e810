"""What a fingerprint covers, as it stands in the manifest, and how two of them differ in words."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FORMAT_VERSION = 3
"""Raised when the same inputs would give other bytes."""
DAY = "date in the chat template"
"""Name of the one input that changes by itself, where a template asks for today's date."""
SHOWN = 60
"""Characters of a value that a message shows."""
ABSENT = "not there"
CONTENT, STAMP = "other content", "another modification time or name"


def recorded(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs for the manifest, which lists the sources anyway."""
    return {name: value for name, value in inputs.items() if name != "sources"}


def differences(there: Mapping[str, Any], now: Mapping[str, Any], *, stamped: bool = False) -> list[str]:
    """How the inputs of a manifest differ from those of this run, each in words; empty when the manifest does not tell them.

    Args:
        there: a manifest with "inputs" and "sources".
        now: the inputs of this run; "sources" are [format, split, bytes, xxh3] in order.
        stamped: what stands for a content is made of name and modification time (`source_versions.Stamps`).
    """
    before = there.get("inputs")
    if not isinstance(before, Mapping):
        return []
    found: list[str] = []
    for name in [*now, *(name for name in before if name not in now)]:
        if name == "sources":
            keys = ("format", "split", "bytes", "xxh3")
            found += _sources(
                [[file.get(key) for key in keys] for file in there.get("sources", ())], now[name], STAMP if stamped else CONTENT
            )
        elif before.get(name) != now.get(name):
            found.append(_difference(name, before.get(name), now.get(name)))
    return found


def changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, str, str]] | None:
    """Every input in which two manifests differ, with both values in full; a line for every file that has other content, came, went or moved.

    None when one of them does not tell its inputs.
    """
    first, second = one.get("inputs"), other.get("inputs")
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return None
    found = list(_changed_sources(one.get("sources") or (), other.get("sources") or ()))
    for name in [*first, *(name for name in second if name not in first)]:
        if first.get(name) == second.get(name):
            continue
        if name == "plugins":
            found += _changed_plugins(first.get(name) or (), second.get(name) or ())
        elif name == "tokenizer":
            pair = [f"{(manifest.get('tokenizer') or {}).get('path')}, {_full(manifest['inputs'].get(name))}" for manifest in (one, other)]
            found.append((name, pair[0], pair[1]))
        else:
            found.append((name, _full(first.get(name)), _full(second.get(name))))
    return found


def _changed_sources(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """File by file, paired by path and then by content; where all are the same, their order may not be."""
    first, second = [{str(file["path"]): file for file in files} for files in (one, other)]
    moved = defaultdict[tuple[Any, ...], list[str]](list)
    for path, file in second.items():
        if path not in first:
            moved[_content(file)].append(path)
    for path, file in first.items():
        twin = second.get(path)
        if twin is None:
            if away := moved[_content(file)]:  # a path is no input
                second.pop(away.pop(0))
            else:
                yield f"source {path}", _file(file), ABSENT
        elif _file(file) != _file(twin):
            yield f"source {path}", _file(file), _file(twin)
    yield from ((f"source {path}", ABSENT, _file(file)) for path, file in second.items() if path not in first)
    orders = [[_content(file) for file in files] for files in (one, other)]
    if orders[0] != orders[1] and sorted(map(str, orders[0])) == sorted(map(str, orders[1])):
        at = next(place for place, (left, right) in enumerate(zip(*orders, strict=True)) if left != right)
        yield "order of sources", f"number {at + 1} is {one[at]['path']}", f"number {at + 1} is {other[at]['path']}"


def _content(file: Mapping[str, Any]) -> tuple[Any, ...]:
    return file.get("format"), file["xxh3"], file.get("split")


def _file(file: Mapping[str, Any]) -> str:
    return f"{file.get('format')} for {file.get('split')}, {file.get('bytes', 0):,} bytes, content {file.get('xxh3')}"


def _changed_plugins(one: Sequence[Sequence[str]], other: Sequence[Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    first, second = [{plugin[0]: f"version {plugin[1]}, file {plugin[2]}" for plugin in plugins} for plugins in (one, other)]
    for name in sorted({*first, *second}):
        if first.get(name) != second.get(name):
            yield f"plugin {name}", first.get(name, ABSENT), second.get(name, ABSENT)


def _full(value: Any) -> str:
    return "unset" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _difference(name: str, there: Any, now: Any) -> str:
    if name == "tokenizer":
        return "tokenizer: other files"
    if name == "plugins":
        return f"plugins: {_plugins(there, now)}"
    return f"{name}: {_shown(there)} there, {_shown(now)} now"


def _plugins(there: Any, now: Any) -> str:
    """Names of the plugins of which one side has none or another version."""
    names = {str(plugin[0]) for plugin in [*(there or ()), *(now or ())] if plugin not in (there or ()) or plugin not in (now or ())}
    return f"{', '.join(sorted(names))} changed, added or removed"


def _sources(there: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]], content: str) -> Iterator[str]:
    if list(map(list, there)) == list(map(list, now)):
        return
    if len(there) != len(now):
        yield f"sources: {len(there):,} files there, {len(now):,} now"
        return
    differing = [number for number, (one, other) in enumerate(zip(there, now, strict=True)) if list(one) != list(other)]
    one, other = there[differing[0]], now[differing[0]]
    kind = (
        content
        if one[:3] == other[:3]
        else f"{one[2]:,} bytes of {one[0]} for {one[1]} there, {other[2]:,} of {other[0]} for {other[1]} now"
    )
    yield f"sources: {len(differing):,} of {len(now):,} files differ, the first is number {differing[0] + 1}: {kind}"


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = ", ".join(map(str, value)) or "none" if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
