"""Where settings come from: CLI > environment > config file > profile > defaults, and the origin of every value."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ftcli.configfile import load_file, plain
from ftcli.errors import SettingsError
from ftcli.fields import kinds_of, variable_of
from ftcli.home import home
from ftcli.machine import cut_to_cores
from ftcli.masking import masked_values, secrets
from ftcli.records import Machine, Value
from ftcli.settings import Settings, sections, update, walk
from ftcli.settings_train import NOT_OFFERED, REMOVED
from ftcli.wanted import for_example, wanted

CLI_ONLY = {"tokenizer.trust_remote_code", "dataset.trust_pickle"}
"""Keys that run code: a file, a variable or a profile found on disk must not be able to turn them on."""
PROFILE_KEYS: Mapping[str, tuple[Any, float | None, str]] = {
    "description": (str, None, "a text"),
    "min_cores": (int, 1, "a number of cores, 1 or more"),
    "min_memory_gb": ((int, float), 0, "a number of GB, 0 or more"),
    "measured": ((str, list), None, "a list of texts"),
}
"""What a profile may say of itself: types, least value, and both in words."""
SWITCHES = ("FTCLI_PROFILE", "FTCLI_CONFIG", "FTCLI_PLUGINS", "FTCLI_PLUGINS_DIR", "FTCLI_LOG")


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings with the origin of every value ("section.field" → Value) and what should be said about them."""

    settings: Settings
    origins: Mapping[str, Value]
    warnings: tuple[str, ...]
    profile: str | None = None

    def origin(self, key: str) -> str:
        return self.origins[key].origin


def within_cores(resolved: Resolved, machine: Machine) -> Resolved:
    """The settings with no more threads than there are cores, where a profile, a ceiling, says more; the origin of their number says so."""
    key = "runtime.threads"
    choice = cut_to_cores(resolved.settings.runtime.threads, resolved.origin(key), machine)
    if resolved.settings.runtime.threads is None or choice.value == resolved.settings.runtime.threads:
        return resolved
    origins = {**resolved.origins, key: Value(choice.value, choice.reason)}
    return replace(resolved, settings=update(resolved.settings, {key: choice.value}), origins=origins)


@dataclass(frozen=True, slots=True)
class Layer:
    """Raw values of one source: "section.field" → (value, origin)."""

    values: Mapping[str, tuple[Any, str]]

    def tree(self, above: Sequence[Layer]) -> dict[str, dict[str, Any]]:
        """Section → field → value, without what a layer above sets: pydantic would merge two tables, and the value would have two origins."""
        nested: dict[str, dict[str, Any]] = {}
        for key, (value, _) in self.values.items():
            section, _, name = key.partition(".")
            if not any(key in layer.values for layer in above):
                nested.setdefault(section, {})[name] = value
        return nested


def resolve(
    cli: Mapping[str, tuple[Any, str]] | None = None,
    config: Path | None = None,
    profile: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """Merge all sources into validated settings.

    Args:
        cli: "section.field" → (raw value, flag as typed).
        config: a .toml, .yaml, .yml or .json file.
        profile: name of a packaged or user's profile, or a path ending in .toml.
        environ: default `os.environ`.

    Raises:
        SettingsError: an unknown key or an impossible value; names key, value, origin and the nearest known key.
    """
    environ = os.environ if environ is None else environ
    warnings = misspelt_variables(environ)
    for key, (_, origin) in (cli or {}).items():
        check_key(key, origin)
    layers = [
        Layer({key: (parse(key, value, origin), origin) for key, (value, origin) in (cli or {}).items()}),
        environment_layer(environ),
        file_layer(config) if config else Layer({}),
        profile_layer(profile) if profile else Layer({}),
    ]
    for layer in layers[1:]:
        for key in CLI_ONLY & set(layer.values):
            value, origin = layer.values[key]
            raise SettingsError(
                f"{key} = {value!r} (from {origin}): only the command line may set this",
                "It runs code. Give it as a flag.",
            )
    settings = _validate(layers)
    origins: dict[str, Value] = {}
    hidden = secrets(os.environ)
    for section, name, _ in walk():
        key = f"{section}.{name}"
        origin = next((layer.values[key][1] for layer in layers if key in layer.values), "default")
        origins[key] = Value(masked_values(getattr(getattr(settings, section), name), hidden), origin)
    return Resolved(settings, origins, tuple(warnings), profile)


class _Layered(BaseSettings, Settings):
    model_config = SettingsConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - its name is pydantic's
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def _validate(layers: list[Layer]) -> Settings:
    tree: dict[str, dict[str, Any]] = {}
    for place, layer in enumerate(layers):
        for section, values in layer.tree(above=layers[:place]).items():
            tree.setdefault(section, {}).update(values)
    try:
        merged = _Layered(**tree)  # type: ignore[arg-type]
    except ValidationError as error:
        raise _explain(error, layers) from None
    return Settings.model_construct(**{name: getattr(merged, name) for name in Settings.model_fields})


def _explain(error: ValidationError, layers: list[Layer]) -> SettingsError:
    """Every bad value with its origin, what is taken there, and an example as it would be typed there."""
    lines: dict[str, str] = {}
    examples = []
    for problem in error.errors(include_url=False, include_input=False):
        section, name = str(problem["loc"][0]), str(problem["loc"][1])
        key, info = f"{section}.{name}", sections()[section].model_fields[name]
        value, origin = next((layer.values[key] for layer in layers if key in layer.values), ("", "default"))
        told = problem["type"] == "value_error"
        why = problem["msg"].removeprefix("Value error, ") if told else f"it takes {wanted(info)}"
        if problem["type"] == "finite_number":
            why = why.replace("a number", "a finite number")
        if isinstance(value, list) and problem["type"] == "string_type" and any(isinstance(item, bool) for item in value):
            why += ". YAML takes yes, no, on and off for true and false: write them in quotes"
        if key not in lines and not told:
            examples.append(for_example(section, name, info, value, origin))
        lines.setdefault(key, f"{key} = {value!r} (from {origin}): {why}")
    hint = f"For example: {'; '.join(examples)}" if examples else "Correct it where it was set (see the brackets)."
    return SettingsError("\n".join(lines.values()), hint)


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """SECTION_FIELD variables; an empty one counts as unset."""
    values: dict[str, tuple[Any, str]] = {}
    for section, name, _ in walk():
        variable = variable_of(section, name)
        if environ.get(variable, "").strip():
            key = f"{section}.{name}"
            values[key] = (parse(key, environ[variable], variable), variable)
    return Layer(values)


def misspelt_variables(environ: Mapping[str, str]) -> list[str]:
    """Warnings for variables that look like settings but are none: DATASET_NUMPROC, FTCLI_PROFIL."""
    known = {variable_of(section, name) for section, name, _ in walk()} | set(SWITCHES)
    prefixes = (*(section.upper() + "_" for section in sections()), "FTCLI_")
    warnings = []
    for variable in environ:
        if variable in known or not variable.startswith(prefixes):
            continue
        section, _, name = variable.lower().partition("_")
        if elsewhere := _elsewhere(section, name):
            warnings.append(f"the variable {variable} is not a setting and has no effect; use {elsewhere}")
        elif near := difflib.get_close_matches(variable, known, n=1, cutoff=0.8):
            warnings.append(f"the variable {variable} is not a setting and has no effect; did you mean {near[0]}?")
    return warnings


def _elsewhere(section: str, name: str) -> str | None:
    """What to use for one of transformers' names that is no setting."""
    return NOT_OFFERED.get(name) or REMOVED.get(name) if section == "train" else None


def file_layer(path: Path) -> Layer:
    """A config file's values; unknown keys are fatal."""
    if not path.is_file():
        wrong = "is a folder" if path.is_dir() else "does not exist"
        raise SettingsError(f"the config file {path} {wrong}", "Check --config and FTCLI_CONFIG.")
    return _from_tree(load_file(path), str(path))


def profile_layer(name: str) -> Layer:
    """A profile's values, by name (user's profiles first, then the packaged ones) or by path."""
    path = profile_path(name)
    values = load_file(path) if isinstance(path, Path) else tomllib.loads(path.read_text(encoding="utf-8"))
    about_profile(values.pop("profile", {}), name, path)
    return _from_tree(values, f"profile {Path(name).stem}")


def about_profile(table: Any, name: str, path: Any) -> Mapping[str, Any]:
    """What a profile says of itself under [profile], checked.

    Raises:
        SettingsError: a key is none of `PROFILE_KEYS`, or its value is not what is wanted there.
    """
    if not isinstance(table, Mapping):
        raise SettingsError(f"profile {name!r} ({path}) cannot be read: profile = {table!r} is no table", "Write [profile].")
    for key, value in table.items():
        if key not in PROFILE_KEYS:
            near = difflib.get_close_matches(key, PROFILE_KEYS, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(PROFILE_KEYS)}."
            raise SettingsError(f"profile {name!r} ({path}): profile.{key} is not a profile key", hint)
        kinds, least, wanted = PROFILE_KEYS[key]
        fits = isinstance(value, kinds) and not isinstance(value, bool)
        if not fits or (least is not None and not (least <= value < math.inf)):
            raise SettingsError(f"profile {name!r} ({path}) cannot be read: profile.{key} = {value!r} is not {wanted}", "Fix the file.")
    return table


def user_profiles() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or home() / ".config") / "ftcli" / "profiles"


def profile_names() -> list[str]:
    found = {entry.name.removesuffix(".toml") for entry in resources.files("ftcli.profiles").iterdir() if entry.name.endswith(".toml")}
    with suppress(OSError):  # a home that may not be entered has none for this user
        found.update(path.stem for path in user_profiles().glob("*.toml") if path.is_file())
    return sorted(found)


def profile_path(name: str) -> Any:
    """Path or packaged resource of a profile.

    Raises:
        SettingsError: there is none; names the ones that exist.
    """
    for candidate in (Path(name), user_profiles() / f"{name}.toml"):
        if candidate.suffix == ".toml" and os.path.isfile(candidate):  # noqa: PTH113 - Path.is_file raises where a folder may not be entered
            return candidate
    packaged = resources.files("ftcli.profiles") / f"{name}.toml"
    if packaged.is_file():
        return packaged
    near = difflib.get_close_matches(name, profile_names(), n=1)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    raise SettingsError(f"there is no profile {name!r}", f"Profiles: {', '.join(profile_names())}.{meant}")


def _from_tree(tree: Mapping[str, Any], origin: str) -> Layer:
    values: dict[str, tuple[Any, str]] = {}
    for section, fields in tree.items():
        if fields is None and section in sections():  # YAML's, of which every line is a comment
            continue
        if not isinstance(fields, Mapping):
            near = [f"[{s}] {n}" for s, n, _ in walk() if n == section]
            hint = f"Did you mean {' or '.join(near)}?" if near else f"Sections are: {', '.join(sections())}."
            raise SettingsError(f"{origin}: {section} is outside a section", hint)  # without its value, which may be a token
        for name, value in fields.items():
            check_key(f"{section}.{name}", origin)
            values[f"{section}.{name}"] = (_from_file(section, name, value), origin)
    return Layer(values)


def _from_file(section: str, name: str, value: Any) -> Any:
    """A file's value: a number that YAML takes for a text is one in a table, one text stands for a list of one, and a bare `no` of YAML for the word where that is a choice."""
    value = plain(value)
    kinds = kinds_of(sections()[section].model_fields[name].annotation)
    if isinstance(value, str) and list in kinds and str not in kinds:
        return [value]
    return "no" if value is False and "no" in _choices(section, name) else value


def _choices(section: str, name: str) -> tuple[Any, ...]:
    """The words a field accepts; YAML reads a bare `no` among them as False."""
    annotation = sections()[section].model_fields[name].annotation
    return next((get_args(part) for part in (annotation, *get_args(annotation)) if get_origin(part) is Literal), ())


def check_key(key: str, origin: str) -> None:
    """Raise `SettingsError` with the nearest known key if `key` is not "section.field"."""
    section, _, name = key.partition(".")
    known = sections()
    if section in known and name in known[section].model_fields:
        return
    if elsewhere := _elsewhere(section, name):
        raise SettingsError(f"{key} (from {origin}) is not a setting", f"Use {elsewhere}.")
    every = [f"{s}.{n}" for s, n, _ in walk()]
    near = difflib.get_close_matches(key, every, n=1) or [k for k in every if k.endswith(f".{name or section}")][:1]
    raise SettingsError(f"{key} (from {origin}) is not a setting", f"Did you mean {near[0]}?" if near else "See: ftcli settings")


def parse(key: str, raw: Any, origin: str) -> Any:
    """Text from a flag or a variable as what the field's type wants: lists split at commas, JSON for tables; the rest is left to pydantic."""
    section, _, name = key.partition(".")
    info: FieldInfo = sections()[section].model_fields[name]
    kinds = kinds_of(info.annotation)
    raw = plain(raw)
    if not isinstance(raw, str):
        return raw
    text = raw.strip()
    if list in kinds and text[:1] != "[":
        return [item.strip() for item in re.split(r",", text) if item.strip()]
    if (dict in kinds and text[:1] == "{") or (list in kinds and text[:1] == "["):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise SettingsError(
                f"{key} = {raw!r} (from {origin}): not JSON: {error}", f"For example: {for_example(section, name, info, raw, origin)}"
            ) from error
    return raw
