"""`ftcli doctor`: what a bug report needs, each part examined for itself, nothing secret."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftcli.core.doctor import installed, surroundings
from ftcli.core.doctor.part import Found, Part, examine
from ftcli.core.processes.isolated_process import Silent, Ward
from ftcli.machine import gpu_words
from ftcli.masking import private_values
from ftcli.records import Check, Machine, PluginInfo, Report, Value, to_json

QUESTIONS = "ftcli.commands.diagnosis"
BUILT_INS = "built-ins"
GIB = 2**30
SLOW = 2.0
"""Seconds of CPU above which the page says how to have less."""
BAD = frozenset({"fail", "error"})


@dataclass(frozen=True, slots=True)
class Asked:
    """What was typed and set: settings, config file, profile, plugins. Nothing of it has been read yet."""

    settings: dict[str, tuple[Any, str]] = field(default_factory=dict)
    config: Path | None = None
    profile: str | None = None
    plugins_dir: Path | None = None
    allow: tuple[str, ...] | None = None


def run(asked: Asked, *, quick: bool) -> Report:
    """The report; its status is "failed" when something is broken. Raises nothing that the installation causes.

    Args:
        quick: import neither torch nor the engines.
    """
    started = time.monotonic()
    return private_values(Examination(asked, quick).report(started))


class Examination:
    """All parts, each of them found in its own way, and what the report has beside them."""

    def __init__(self, asked: Asked, quick: bool) -> None:
        self.quick = quick
        self.given: tuple[dict[str, tuple[Any, str]], Path | None, str | None] | None = (asked.settings, asked.config, asked.profile)
        self.sources: tuple[Path | None, tuple[str, ...] | None] = (asked.plugins_dir, asked.allow)
        self.machine: Machine | None = None
        self.beside: dict[str, Any] = {}
        """What was found with the machine card."""
        self.settings: dict[str, Value] = {}
        self.plugins: tuple[PluginInfo, ...] = ()
        self.checks: tuple[Check, ...] = ()

    def report(self, started: float) -> Report:
        with _wards(QUESTIONS, 1 if self.quick else 2) as (self.ward, *others):
            for ward in others:
                ward.begin("torch")  # while the rest is looked at
            looks: dict[str, tuple[str, Callable[[], Found]]] = {
                "installation": ("Installation", installed.installation),
                "python": ("Python", installed.python),
                "system": ("System", surroundings.system),
                "machine": ("Machine", self._machine),
                "gpus": ("GPUs", self._gpus),
                "limits": ("Limits", self._limits),
                "libraries": ("Libraries", installed.libraries),
                "extras": ("Extras", installed.extras),
                "plugins": ("Plugins", self._plugins),
                "settings": ("Settings that are set", self._settings),
                "variables": ("Variables", self._variables),
                "checks": ("Checks of the environment", self._checks),
                "engines": ("Engines", self._engines),
                "torch": ("torch", installed.torch_by_file if self.quick else lambda: self._torch(others[0])),
                "places": ("Disk", surroundings.places),
                "terminal": ("Terminal", surroundings.terminal),
            }
            parts = [examine(name, title, look) for name, (title, look) in looks.items()]
        spent = sum(os.times()[:4])
        parts.append(Part("doctor", "This report", {"CPU": _cost(spent, self.quick)}))
        return self._report(parts, round(spent, 2), time.monotonic() - started)

    def _report(self, parts: Sequence[Part], spent: float, seconds: float) -> Report:
        count = Counter(check.status for check in self.checks)
        by_name = {part.name: part for part in parts}
        broken = sum(len(part.problems) for part in parts)
        metrics = {
            "parts": len(parts),
            "broken": broken,
            "plugins_broken": len(by_name["plugins"].problems),
            "engines_broken": len(by_name["engines"].problems),
            **{f"checks_{status}": count[status] for status in ("pass", "info", "warn", "fail", "error", "skipped")},
            "cpu_seconds": spent,
        }
        return Report(
            command="doctor",
            status="failed" if broken else "ok",
            seconds=seconds,
            metrics=metrics,
            checks=self.checks,
            machine=self.machine,
            settings=self.settings,
            plugins=self.plugins,
            details={"parts": to_json(list(parts))},
        )

    # -- parts that are asked for in the ward --------------------------------------------------------------------------

    def _machine(self) -> Found:
        self.beside = self.ward.ask("machine")
        card: Machine = self.beside["card"]
        self.machine = card
        return {
            "cores": f"{card.cores} by {card.how.get('cores')}, {os.cpu_count()} in the machine",
            "CPU": card.cpu_model,
            "CPU flags": " ".join(card.cpu_flags) or "none that decide something",
            "memory": f"{card.memory_available_bytes / GIB:.1f} of {card.memory_bytes / GIB:.1f} GB free, by {card.how.get('memory_bytes')}",
            "disk": f"{card.disk_kind} ({card.how.get('disk_kind')})",
            "load": "unknown" if card.load_average is None else f"{card.load_average:.1f}",
            "threads": f"{self.beside['threads'].value}: {self.beside['threads'].reason}",
        }, []

    def _gpus(self) -> Found:
        if self.machine is None:
            return {"GPUs": None}, []  # the machine part says why
        names = [gpu_words(gpu) for gpu in self.machine.gpus]
        return {"GPUs": names or "none", "found by": self.machine.how.get("gpus"), "driver": self.beside.get("driver") or "none"}, []

    def _limits(self) -> Found:
        cgroup = {f"cgroup {name}": value for name, value in self.beside.get("cgroup", {}).items() if value is not None}
        shared = self.beside.get("shared_memory")
        facts, broken = surroundings.limits()
        return {
            **(cgroup or {"cgroup": "no limit"}),
            **({"shared memory": f"{shared / GIB:.1f} GB free"} if shared else {}),
            **facts,
        }, broken

    def _plugins(self) -> Found:
        facts: dict[str, Any] = {}
        broken, names = [], self.ward.ask("plugin_names", self.sources)
        for title, file, points in names:
            try:
                check, infos = self.ward.ask("plugin", title, file, points)
            except Silent as reason:
                facts[title] = {"file": str(file) if file else None, "error": str(reason)}
                broken.append(f"{title}: {reason}")
                continue
            self.plugins += tuple(PluginInfo(**{name: value for name, value in info.items() if name != "file"}) for info in infos)
            if check.status in BAD:
                facts[title] = {"file": str(file) if file else None, "error": check.summary}
                broken.append(f"{title}: {check.summary} {check.fix}".strip())
            elif title == BUILT_INS:
                facts[title] = f"{len(infos)}: {', '.join(info['name'] for info in infos)}"
            else:
                facts |= {info["name"]: _described(info, check) for info in infos}
        if not broken and len(names) > 1:
            try:
                together, _ = self.ward.ask("plugin", "all together", *self.sources)
                broken += [f"all together: {together.summary}"] if together.status in BAD else []
            except Silent as reason:
                broken.append(f"all together: {reason}")
        if broken:
            self.sources = None, ()
        return facts, broken

    def _settings(self) -> Found:
        try:
            self.settings, words, warnings = self.ward.ask("settings", self.given)
        except Silent:
            self.given = None
            raise
        return {**words, **({"warnings": list(warnings)} if warnings else {})}, []

    def _variables(self) -> Found:
        try:
            known = self.ward.ask("variables")
        except Silent:
            known = []  # then none of theirs is shown
        return surroundings.variables(known)

    def _checks(self) -> Found:
        self.checks = self.ward.ask("checks", self.given, self.sources)
        facts = {check.id: f"{check.status:<7}  {check.summary}" for check in self.checks}
        bad = [f"{check.id}: {check.summary} {check.fix}".strip() for check in self.checks if check.status in BAD]
        return facts, bad

    def _engines(self) -> Found:
        facts: dict[str, Any] = {}
        broken = []
        for name in self.ward.ask("engine_names", self.sources):
            if self.quick:
                facts[name] = "not loaded (--quick)"
                continue
            try:
                found = self.ward.ask("engine", name, self.sources)
                facts[name] = f"{found['version']} loads and encodes"
            except Silent as reason:
                facts[name] = f"does not load: {reason}"
                broken.append(f"{name}: {reason}")
        return facts, broken

    def _torch(self, ward: Ward) -> Found:
        facts = ward.answer()
        if self.machine is not None and self.machine.gpus and facts["GPUs"] == "none":
            facts["warning"] = "nvidia-smi lists a GPU that torch cannot use: is it a build for another CUDA, or for the CPU?"
        return facts, []


@contextmanager
def _wards(module: str, count: int) -> Iterator[list[Ward]]:
    """So many processes, which end with the block."""
    wards = [Ward(module) for _ in range(count)]
    try:
        yield wards
    finally:
        for ward in wards:
            ward.close()


def _described(info: dict[str, Any], check: Check) -> dict[str, Any]:
    facts = {"version": info["version"], "from": info["origin"], "file": info["file"], "hash": info["file_hash"], "hooks": info["hooks"]}
    return {**facts, **({"warning": check.summary} if check.status == "warn" else {})}


def _cost(spent: float, quick: bool) -> str:
    hint = "; --quick leaves out torch and the engines" if spent > SLOW and not quick else ""
    return f"{spent:.1f} s, with the processes that were started{hint}"
