"""What a fingerprint covers, as it stands in the manifest, and how two of them differ in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FORMAT_VERSION = 2
"""Raised when the same inputs would give other bytes."""
SHOWN = 60
"""Characters of a value that a message shows."""


def recorded(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs for the manifest, which lists the sources anyway."""
    return {name: value for name, value in inputs.items() if name != "sources"}


def differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How the inputs of a manifest differ from those of this run, each in words; empty when the manifest does not tell them.

    Args:
        there: a manifest with "inputs" and "sources".
        now: the inputs of this run; "sources" are [format, split, bytes, xxh3] in order.
    """
    before = there.get("inputs")
    if not isinstance(before, Mapping):
        return []
    found: list[str] = []
    for name in [*now, *(name for name in before if name not in now)]:
        if name == "sources":
            keys = ("format", "split", "bytes", "xxh3")
            found += _sources([[file.get(key) for key in keys] for file in there.get("sources", ())], now[name])
        elif before.get(name) != now.get(name):
            found.append(_difference(name, before.get(name), now.get(name)))
    return found


def _difference(name: str, there: Any, now: Any) -> str:
    if name == "tokenizer":
        return "tokenizer: other files"
    if name == "plugins":
        return f"plugins: {_plugins(there, now)}"
    return f"{name}: {_shown(there)} there, {_shown(now)} now"


def _plugins(there: Any, now: Any) -> str:
    """Names of the plugins of which one side has none or another version."""
    names = {str(plugin[0]) for plugin in [*(there or ()), *(now or ())] if plugin not in (there or ()) or plugin not in (now or ())}
    return f"{', '.join(sorted(names))} changed, came or went"


def _sources(there: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]]) -> Iterator[str]:
    if list(map(list, there)) == list(map(list, now)):
        return
    if len(there) != len(now):
        yield f"sources: {len(there):,} files there, {len(now):,} now"
        return
    differing = [number for number, (one, other) in enumerate(zip(there, now, strict=True)) if list(one) != list(other)]
    one, other = there[differing[0]], now[differing[0]]
    kind = (
        "other content"
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
