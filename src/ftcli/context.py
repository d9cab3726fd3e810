"""What a command receives: settings with origins, the machine, the plugins, and where progress is shown."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ftcli.errors import FtcliError
from ftcli.machine import detect
from ftcli.masking import as_dict, masked
from ftcli.pluginmanager import Plugins
from ftcli.records import Check, Choice, Machine, Report, RunStatus
from ftcli.settings import Settings, cache_folder
from ftcli.sources import Resolved, resolve


class Progress(Protocol):
    """A progress bar, or nothing. One stage at a time; `start` ends the previous stage."""

    def start(self, stage: str, total: float | None, unit: str, before: float = 0.0) -> None:
        """Begin a stage ("encode") of `total` units ("B", "rows", "steps"); None: the total is unknown. `before` units were done in an earlier run."""
        ...

    def advance(self, amount: float, **figures: Any) -> None:
        """Add to the stage; `figures` (rows=…, tokens=…, loss=…) are shown next to the bar."""
        ...

    def say(self, message: str) -> None:
        """Print one line on stderr, above the bar."""
        ...

    def close(self) -> None: ...


class Quiet:
    """Progress that shows nothing."""

    def start(self, stage: str, total: float | None, unit: str, before: float = 0.0) -> None: ...

    def advance(self, amount: float, **figures: Any) -> None: ...

    def say(self, message: str) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Context:
    """One invocation of a command. `notes` collects automatic choices with their reasons for the report."""

    resolved: Resolved
    machine: Machine
    plugins: Plugins
    progress: Progress = field(default_factory=Quiet)
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    room: Choice | None = None
    """Number of workers that the executor has room for, if this machine does not determine it."""

    @classmethod
    def make(cls, values: Mapping[str, Any] | None = None, plugins: Plugins | None = None, **resolve_options: Any) -> Context:
        """A context from "section.field" values, for tests, benchmarks and plugin authors."""
        cli = {key: (value, "argument") for key, value in (values or {}).items()}
        return cls(resolve(cli, **resolve_options), detect(), plugins or Plugins(allow=()))

    @property
    def settings(self) -> Settings:
        return self.resolved.settings

    @property
    def cache_dir(self) -> Path:
        """Folder in which proofs, source hashes, tokenizers and copies of objects are kept between runs."""
        return cache_folder(self.settings)

    def note(self, message: str) -> None:
        """Record a choice or a warning and show it."""
        message = masked(message)
        self.notes.append(message)
        self.progress.say(message)

    def with_settings(self, settings: Settings) -> Context:
        """The same invocation with other settings (a benchmark's variant); origins of changed values are not kept."""
        return replace(self, resolved=replace(self.resolved, settings=settings), notes=list(self.notes))

    def report(
        self,
        command: str,
        metrics: Mapping[str, Any],
        *,
        status: RunStatus = "ok",
        checks: tuple[Check, ...] = (),
        paths: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
        error: FtcliError | None = None,
    ) -> Report:
        """The command's report, with everything that the context knows filled in."""
        return Report(
            command=command,
            status=status,
            seconds=time.monotonic() - self.started,
            metrics=metrics,
            checks=checks,
            paths=paths or {},
            machine=self.machine,
            settings=self.resolved.origins,
            plugins=self.plugins.describe(),
            error=None if error is None else as_dict(error),
            notes=(*self.resolved.warnings, *self.notes),
            details=details or {},
        )
