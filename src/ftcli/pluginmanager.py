"""Plugins of one invocation: built-ins, installed entry points, and a folder only when it is named."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import PackagePath, entry_points
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from ftcli import hookspecs
from ftcli.contracts import CheckKind, CollatorKind
from ftcli.errors import FtcliError, PluginError
from ftcli.markers import PROJECT
from ftcli.plugincode import source_hash
from ftcli.pluginfaults import culprit, misuse, places, reason_of
from ftcli.pluginparts import CONTRACTS, Made, sound
from ftcli.records import PluginInfo
from ftcli.registry import AnyRegistry, Registry
from ftcli.versions import version

if TYPE_CHECKING:
    from ftcli.settings import Settings

BUILT_IN = "built-in"
BUILT_INS = (
    "ftcli.plugins.environment",
    "ftcli.plugins.tokenizer",
    "ftcli.plugins.sources",
    "ftcli.plugins.engines",
    "ftcli.plugins.tasks",
    "ftcli.plugins.packers",
    "ftcli.plugins.collators",
    "ftcli.plugins.checks",
    "ftcli.plugins.executors",
    "ftcli.plugins.executor_ray",
    "ftcli.plugins.exporters",
    "ftcli.plugins.steplog",
)
KINDS = ("source", "engine", "task", "packer", "collator", "check", "executor", "exporter")
RECORDS: Mapping[str, Any] = {"collator": CollatorKind, "check": CheckKind}
"""Kinds that are registered as a record; of the others a factory is."""
TOKENIZER = ("get_vocab", "pad_token_id", "is_fast")
"""What a tokenizer of transformers has."""


class Plugins:
    """The plugin manager that is built per invocation and passed in.

    Args:
        plugins_dir: folder whose `*.py` files are loaded as plugins, or one such file; None loads none. The current directory is never
            searched.
        allow: names of entry points to load; None loads all, an empty sequence none.

    Raises:
        PluginError: a plugin cannot be imported, misspells a hook or clashes with another; names plugin and origin.
    """

    def __init__(self, plugins_dir: Path | None = None, allow: Sequence[str] | None = None) -> None:
        self.plugins_dir = plugins_dir
        self.allow = None if allow is None else tuple(allow)
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._info: dict[str, PluginInfo] = {}
        self._registries: dict[str, AnyRegistry] = {}
        ours = version(PROJECT)
        for name in BUILT_INS:  # pluggy calls the last registered first, so that outsiders come before the built-ins
            self._add(importlib.import_module(name), name.removeprefix("ftcli.plugins."), BUILT_IN, ours)
        self._load_entry_points(allow)
        if plugins_dir is not None:
            self._load_folder(plugins_dir)

    @property
    def hook(self) -> Any:
        """pluggy's caller: `plugins.hook.on_step(step=…)`."""
        return self._manager.hook

    def registry(self, kind: str) -> AnyRegistry:
        """The registry of a kind ("engine", "collator" …), filled on first use by asking every plugin."""
        if kind not in KINDS:
            raise AssertionError(f"unknown kind {kind!r}")
        if kind not in self._registries:
            registry: AnyRegistry = Registry(kind, RECORDS.get(kind, Callable))
            hook = f"register_{kind}s"
            for name, caller in self._callers(hook):
                look = None if self._info[name].origin == BUILT_IN else partial(Made if kind in CONTRACTS else sound, kind, name)
                self._guard(name, hook, caller, register=registry.registrar(name, look))
            self._registries[kind] = registry
        return self._registries[kind]

    def each(self, hook: str, **arguments: Any) -> Iterator[tuple[str, Any]]:
        """Call a hook plugin by plugin: (plugin's name, its result), built-ins first.

        Raises:
            PluginError: one raised anything but an `FtcliError`; names plugin and hook.
        """
        for name, caller in self._callers(hook):
            for result in self._guard(name, hook, caller, **arguments):
                yield name, result

    def load_tokenizer(self, settings: Settings) -> Any:
        """The tokenizer of the hook `load_tokenizer`.

        Raises:
            PluginError: a plugin's implementation raised anything but an `FtcliError`, or gave something else; names the plugin.
        """
        hook = self.hook.load_tokenizer
        try:
            found = hook(settings=settings)
        except FtcliError:
            raise
        except (Exception, SystemExit) as error:
            if (name := self._raised(hook, error)) is None or self._info[name].origin == BUILT_IN:
                raise
            raise self._failure(name, "load_tokenizer", reason_of(error)) from error
        outsiders = [impl.plugin_name for impl in hook.get_hookimpls() if self._info[impl.plugin_name].origin != BUILT_IN]
        if outsiders and not all(hasattr(found, attribute) for attribute in TOKENIZER):
            raise self._failure(
                outsiders[-1], "load_tokenizer", f"it returned {type(found).__name__}, which is not a transformers tokenizer"
            )
        return found

    @staticmethod
    def _raised(hook: Any, error: BaseException) -> str | None:
        """The plugin whose implementation of a hook an error came through."""
        codes = {getattr(impl.function, "__code__", None): impl.plugin_name for impl in hook.get_hookimpls()}
        names = [codes[frame.f_code] for frame, _ in walk_tb(error.__traceback__) if frame.f_code in codes]
        return names[-1] if names else None

    def outsider(self, kind: str, name: str) -> str | None:
        """The plugin that offers this part; None when it is ftcli's own."""
        owner = self.registry(kind).owner(name)
        return None if self._info[owner].origin == BUILT_IN else owner

    def blamed(self, error: BaseException) -> str | None:
        """In words, whose code an error is laid on: a plugin's, or that of a model which brought it; None where it is a bug of ftcli."""
        owners: dict[Path, str] = {}
        for name, plugin in self.objects().items():
            owners |= dict.fromkeys(places(plugin), "" if self._info[name].origin == BUILT_IN else f"plugin {name!r}")
        return culprit(error, owners)

    def describe(self) -> tuple[PluginInfo, ...]:
        """Every loaded plugin with version, origin, file hash and hooks, built-ins first."""
        return tuple(self._info.values())

    def objects(self) -> dict[str, Any]:
        """Name → module or object of every loaded plugin."""
        return {name: plugin for name, plugin in self._manager.list_name_plugin() if plugin is not None}

    def _callers(self, hook: str) -> Iterator[tuple[str, Any]]:
        everyone = self.objects()
        for name, plugin in everyone.items():
            others = [other for other in everyone.values() if other is not plugin]
            yield name, self._manager.subset_hook_caller(hook, remove_plugins=others)

    def _guard(self, name: str, hook: str, caller: Any, **arguments: Any) -> Any:
        try:
            return caller(**arguments)
        except FtcliError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(name, hook, reason_of(error)) from error

    def _failure(self, name: str, hook: str, reason: str) -> PluginError:
        return PluginError(f"plugin {name!r} ({self._info[name].origin}) failed in {hook}: {reason}", "Run: ftcli plugins doctor")

    def _add(self, plugin: Any, name: str, origin: str, plugin_version: str, shipped: Iterable[PackagePath] = ()) -> None:
        if name in self._info:
            raise PluginError(
                f"two plugins are called {name!r}: {self._info[name].origin} and {origin}",
                "Rename or remove one of them.",
            )
        if fault := misuse(plugin):
            raise PluginError(f"plugin {name!r} ({origin}): {fault[0]}", fault[1])
        try:
            self._manager.register(plugin, name=name)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:  # a wrapper that does not yield
            raise PluginError(f"plugin {name!r} ({origin}): {error}", "Fix the hook, or remove the plugin.") from error
        digest = source_hash(plugin, built_in=origin == BUILT_IN, shipped=shipped)
        hooks = tuple(sorted(caller.name for caller in self._manager.get_hookcallers(plugin) or ()))
        self._info[name] = PluginInfo(name, plugin_version, origin, digest, hooks)

    def _load_entry_points(self, allow: Sequence[str] | None) -> None:
        if allow is not None and not allow:
            return  # nor are the metadata of everything that is installed read
        seen: set[str] = set()
        for point in sorted(entry_points(group=PROJECT), key=lambda point: point.name):
            if allow is not None and point.name not in allow:
                continue
            seen.add(point.name)
            assert point.dist is not None  # only entry points made by hand have none
            origin = f"entry point {point.name} of {point.dist.name}"
            try:
                plugin = point.load()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a panic of Rust code and pytest.skip are no Exception
                hint = "Fix or uninstall it, or load only other plugins: FTCLI_PLUGINS=name,name (empty: none)."
                if isinstance(error, ModuleNotFoundError) and error.name == point.module.partition(".")[0]:
                    hint = f"Its distribution has no such module: compare the entry point with what its pyproject.toml packs. {hint}"
                raise PluginError(f"plugin {point.name!r} ({origin}) cannot be imported: {reason_of(error)}", hint) from error
            self._add(plugin, point.name, origin, point.dist.version, point.dist.files or ())
        missing = [name for name in allow or () if name not in seen]
        if missing:
            raise PluginError(f"FTCLI_PLUGINS names {missing[0]!r}, which no installed distribution offers", "Run: ftcli plugins list")

    def _load_folder(self, folder: Path) -> None:
        if not folder.exists():
            raise PluginError(f"the plugins folder {folder} does not exist", "Check --plugins-dir and FTCLI_PLUGINS_DIR.")
        files = [folder] if folder.is_file() else sorted(folder.glob("*.py"))
        if not files or any(path.suffix != ".py" for path in files):
            below = folder / "src"
            hint = (
                f"Give --plugins-dir {below}."
                if any(below.glob("*.py"))
                else "A plugin is a .py file in that folder; packages are installed with pip."
            )
            raise PluginError(f"{folder} holds no plugin: there is no .py file", hint)
        loaded = {Path(file).resolve() for plugin in self.objects().values() if (file := getattr(plugin, "__file__", None))}
        for path in files:
            if path.resolve() in loaded:  # an editable install's entry point has brought it
                continue
            self._add(_import_file(path), path.stem, str(path), "0")


def _import_file(path: Path) -> ModuleType:
    name = f"ftcli_local_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # as above
        del sys.modules[name]
        raise PluginError(
            f"plugin {path.stem!r} ({path}) cannot be imported: {reason_of(error)}", "Fix the file or move it out of the folder."
        ) from error
    return module
