"""Reading the documentation as a program: fences with the remarks before them, console lines, links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("ko/*.md")), ROOT / "README.md", ROOT / "README.ko.md"]

_FENCE = re.compile(r"^(`{3,})(\w*)\s*$")
_REMARK = re.compile(r"^<!-- ([^:>]+?)(?:: (.+?))? -->$")
_SHELL = set("|<>;&$`*(){}~")


@dataclass(frozen=True, slots=True)
class Fence:
    """A fenced block. `remarks`: the `<!-- name: value -->` lines right before it."""

    page: Path
    line: int
    language: str
    remarks: dict[str, str]
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether `<!-- run -->`, or `<!-- run: EXIT CODE -->`, stands before it."""
        return "run" in self.remarks

    @property
    def exit_code(self) -> int:
        return int(self.remarks.get("run") or 0)

    @property
    def variables(self) -> dict[str, str]:
        """What `<!-- with: NAME=VALUE -->` sets for the test alone: steps that a reader's machine takes and that prove nothing more."""
        return dict(word.split("=", 1) for word in self.remarks.get("with", "").split())

    def commands(self) -> list[str]:
        """What a reader would type: the lines behind `$ `, with their continuations."""
        lines = self.text.splitlines()
        found: list[str] = []
        for number, line in enumerate(lines):
            if line.startswith("$ "):
                found.append(line.removeprefix("$ "))
            elif found and number and lines[number - 1].endswith("\\"):
                found[-1] = found[-1].removesuffix("\\") + line
        return found

    def shown(self) -> list[str]:
        """The output that the page shows: what is no command and no continuation."""
        lines = self.text.splitlines()
        typed = {number for number, line in enumerate(lines) if line.startswith("$ ")}
        for number in range(1, len(lines)):
            if number - 1 in typed and lines[number - 1].endswith("\\"):
                typed.add(number)
        return [line for number, line in enumerate(lines) if number not in typed and line.strip()]


def fences(text: str, page: Path = DOCS) -> Iterator[Fence]:
    """Every fence of a page, in order."""
    opened: tuple[int, str, str, dict[str, str]] | None = None
    inside: list[str] = []
    remarks: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is not None:
            if fence and fence[1] == opened[1] and not fence[2]:
                yield Fence(page, opened[0], opened[2], opened[3], "".join(f"{each}\n" for each in inside))
                opened, inside = None, []
            else:
                inside.append(line)
        elif fence:
            opened, remarks = (number, fence[1], fence[2], remarks), {}
        elif remark := _REMARK.match(line):
            remarks[remark[1]] = remark[2] or ""
        elif line.strip():
            remarks = {}


def page_fences(page: Path) -> list[Fence]:
    return list(fences(page.read_text(encoding="utf-8"), page))


def ftcli_words(command: str) -> list[str] | None:
    """The words behind `ftcli` in a shell line, without variables before it and what it is piped into; None for other commands."""
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    if not words or words[0] != "ftcli":
        return None
    end = next((place for place, word in enumerate(words) if word in {"|", "||", "&&", ";", ">", ">>", "2>"}), len(words))
    return words[1:end]


def needs_shell(command: str) -> bool:
    """Whether anything but plain words stands in the line."""
    quoted = re.sub(r"'[^']*'", "", command)
    return not command.startswith("ftcli ") or bool(_SHELL & set(quoted))


def links(text: str) -> list[tuple[str, str]]:
    """Relative links outside of fences: (target, anchor); a target of this page is ""."""
    prose = re.sub(r"^(`{3,}).*?^\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose))
    return [(target.partition("#")[0], target.partition("#")[2]) for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings."""
    prose = re.sub(r"^(`{3,}).*?^\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)}
