"""A part of what `ftcli doctor` finds out, and the page of all parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftcli.core.processes.isolated_process import words_of

Found = tuple[Mapping[str, Any], Sequence[str]]
"""Facts, and what of them is broken."""
WIDEST = 300


@dataclass(frozen=True, slots=True)
class Part:
    """Facts by name: words, numbers, lists of words, or records of these. `broken` says what needs mending; `error` why there are no facts."""

    name: str
    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    error: str = ""

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self.broken, *([self.error] if self.error else []))


def examine(name: str, title: str, look: Callable[[], Found]) -> Part:
    """The part that `look` finds, or the part with the error that it raised."""
    try:
        facts, broken = look()
        return Part(name, title, dict(facts), tuple(broken))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a broken part must not hide the others
        return Part(name, title, error=words_of(error))


def page(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: what is broken, then every part as a block, in which nothing is a mention, a link or a tag.

    Args:
        parts: `Part`s as `to_json` gives them.
    """
    problems = [(part["title"], problem) for part in parts for problem in (*part["broken"], *([part["error"]] if part["error"] else []))]
    yield from ("## ftcli doctor", "")
    if problems:
        yield "**Broken:**"
        yield from ("", "```text", *(_plain(f"{title}: {problem}") for title, problem in problems), "```")
    else:
        yield "No problems found."
    for part in parts:
        yield from ("", f"### {part['title']}", "", "```text", *_lines(part), "```")


def _lines(part: Mapping[str, Any]) -> Iterator[str]:
    wide = min(32, max((len(name) for name in part["facts"]), default=0))
    for name, value in part["facts"].items():
        rows = list(_rows(value))
        for number, row in enumerate(rows or ["none"]):
            yield _plain(f"{name if number == 0 else '':<{wide}}  {row}")
    if part["error"]:
        yield _plain(f"error  {part['error']}")
    elif not part["facts"]:
        yield "none"


def _rows(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        return [", ".join(f"{name} {_words(item)}" for name, item in value.items() if item not in (None, "", [], ()))]
    return [_words(item) for item in value] if isinstance(value, (list, tuple)) else [_words(value)]


def _words(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _plain(text: str) -> str:
    """One line of the block, which no line can end."""
    line = text.replace("\r", " ").replace("\n", " ").replace("```", "'''").rstrip()
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 1]}…"
