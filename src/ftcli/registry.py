"""Names to factories, one registry a kind. A clash is an error that names both plugins."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from ftcli.errors import PluginError, SettingsError

F = TypeVar("F")


class Registry(Generic[F]):
    """What plugins offered for one kind ("engine", "collator" …). The order of registration decides nothing."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._offers: dict[str, tuple[F, str]] = {}
        self._replacements: dict[str, tuple[F, str]] = {}

    def registrar(self, plugin: str) -> Callable[..., None]:
        """The callback handed to one plugin's `register_*` hook."""

        def register(name: str, factory: F, *, replace: bool = False) -> None:
            where = self._replacements if replace else self._offers
            if name in where:
                verb = "replace" if replace else "register"
                raise PluginError(
                    f"plugins {where[name][1]!r} and {plugin!r} both {verb} the {self.kind} {name!r}",
                    "Uninstall one of them." if replace else "Rename one, or pass replace=True where replacing is meant.",
                )
            where[name] = (factory, plugin)

        return register

    def get(self, name: str, setting: str = "") -> F:
        """The factory of that name.

        Raises:
            SettingsError: no plugin offers it; names `setting`, the offers and the nearest one.
        """
        entries = self._entries()
        if name not in entries:
            near = difflib.get_close_matches(name, entries, n=1)
            where = f"{setting} = {name!r}: " if setting else f"{name!r}: "
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise SettingsError(f"{where}no plugin offers this {self.kind}", f"Available: {', '.join(sorted(entries))}.{meant}")
        return entries[name][0]

    def owner(self, name: str) -> str:
        """The plugin whose factory `get` returns."""
        return self._entries()[name][1]

    def names(self) -> list[str]:
        return list(self._entries())

    def items(self) -> Iterator[tuple[str, F]]:
        return ((name, factory) for name, (factory, _) in self._entries().items())

    def __contains__(self, name: object) -> bool:
        return name in self._entries()

    def _entries(self) -> dict[str, tuple[F, str]]:
        return {**self._offers, **self._replacements}


AnyRegistry = Registry[Any]
