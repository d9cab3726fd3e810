"""What the catalog of commands is made of: a command, and an option that is no setting.

Nothing here imports the settings, so that `ftcli --help` stays cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["text", "int", "float", "path", "switch", "list", "words", "paths"]
"""words, paths: the last positional argument, which takes all words that are left."""


@dataclass(frozen=True, slots=True)
class Own:
    """An option (or, without flags, a positional argument) of one command that is no setting.

    It reaches `run` as the keyword argument `name`: str, int, Path, bool, tuple[str, ...] or tuple[Path, ...] by `kind`.
    """

    name: str
    help: str
    kind: Kind = "text"
    flags: tuple[str, ...] = ()
    default: Any = None
    choices: tuple[str, ...] = ()
    required: bool = False
    once: bool = False
    """Two values are refused, which look as if each were for another text; elsewhere the last one counts."""


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """One command of `ftcli`."""

    name: str
    summary: str
    """One line of `ftcli --help`."""
    text: str
    """What it does, in two or three sentences."""
    examples: tuple[str, ...]
    shows: tuple[str, ...] = ()
    """Sections ("packing") and fields ("train.mode") that are options of this command."""
    hides: tuple[str, ...] = ()
    """Fields of those sections that are not: two fields may share a flag."""
    says: tuple[tuple[str, str], ...] = ()
    """Fields that mean something else here than their settings' words: the field, and the words of its help."""
    own: tuple[Own, ...] = ()
    sources: bool = False
    """Whether positional arguments are sources, as with --dataset."""
    works: bool = True
    """Whether it does work that can be interrupted and continued: then a last line says how it ended and how long it took."""
    again: str = "Run the same command again to continue."
    """What to do after an interruption, of a command that works."""
    computes: bool = True
    """Whether the environment is set up before it runs."""
    loads_plugins: bool = True
    """Whether installed and local plugins are loaded before it runs; the built-ins always are."""
    launches: bool = False
    """Whether it starts several processes of itself when `launch` says so."""
    alone: bool = False
    """Whether it runs before settings, machine and plugins are known, because these may be what is broken."""
    ahead: str = ""
    """A module whose `begin(context)` is called before the command's own module is imported, for what can go on meanwhile in another process."""
    every_rank: bool = False
    """Whether every rank of a job writes a JSON report: they differ in what each of them did."""
    actions: tuple[str, ...] = ()
    """Actions that are commands of their own in reports: `benchmark train`, `benchmark sweep train`."""

    def named(self, *words: str) -> str:
        """Its name in a report; `words`: the action, and what it is of."""
        action = next((" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in self.actions), "")
        return f"{self.name} {action}".rstrip()

    @property
    def module(self) -> str:
        return "ftcli.commands." + self.name.replace("-", "_")
