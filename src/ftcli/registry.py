"""Maps names to factories, one registry per kind. A clash is an error that names both plugins."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from ftcli.errors import PluginError, SettingsError

F = TypeVar("F")


class Registry(Generic[F]):
    """The parts that plugins register for one kind ("engine", "collator" …). The order of registration does not matter."""

    def __init__(self, kind: str, form: type | None = None) -> None:
        """`form`: the type that registered objects must have, a record or `Callable`; None: any."""
        self.kind = kind
        self.form = form
        self._offers: dict[str, tuple[F, str]] = {}
        self._replacements: dict[str, tuple[F, str]] = {}

    def registrar(self, plugin: str, wrap: Callable[[str, F], F] | None = None) -> Callable[..., None]:
        """The callback handed to one plugin's `register_*` hook.

        Args:
            wrap: gives what is kept in place of the plugin's factory.
        """

        def register(name: str, factory: F, *, replace: bool = False) -> None:
            if not isinstance(name, str) or not name:
                raise PluginError(
                    f"plugin {plugin!r} registers {'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind} under {name!r}, which is no name",
                    'A name is a string: register("name", …).',
                )
            self._refuse_other(plugin, name, factory)
            where = self._replacements if replace else self._offers
            if name in where and where[name][1] == plugin:
                raise PluginError(f"plugin {plugin!r} registers the {self.kind} {name!r} twice", "Remove one, or give it another name.")
            if name in where:
                verb = "replace" if replace else "register"
                raise PluginError(
                    f"plugins {where[name][1]!r} and {plugin!r} both {verb} the {self.kind} {name!r}",
                    "Uninstall one of them." if replace else "Rename one, or pass replace=True to replace the other.",
                )
            where[name] = (factory if wrap is None else wrap(name, factory), plugin)

        return register

    def _refuse_other(self, plugin: str, name: str, factory: object) -> None:
        if self.form is None or isinstance(factory, self.form):
            return
        noun = "class" if isinstance(factory, type) else "function" if inspect.isroutine(factory) else type(factory).__name__
        said = f"plugin {plugin!r} registers the {self.kind} {name!r} as {'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
        form = self.form.__name__
        if form == "Callable":
            raise PluginError(
                f"{said}, which cannot be called", "Register the class itself or a function that creates an instance, not an instance."
            )
        raise PluginError(f"{said}, not as ftcli.contracts.{form}", f'Write register("{name}", {form}(…)).')

    def get(self, name: str, setting: str = "") -> F:
        """The factory of that name.

        Raises:
            SettingsError: no plugin registers it; names `setting`, the available names and the nearest one.
        """
        entries = self._entries()
        if name not in entries:
            near = difflib.get_close_matches(name, entries, n=1)
            where = f"{setting} = {name!r}: " if setting else f"{name!r}: "
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise SettingsError(f"{where}no plugin provides this {self.kind}", f"Available: {', '.join(sorted(entries))}.{meant}")
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
