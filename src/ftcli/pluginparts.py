"""Parts that plugins register, looked at when they are made: what one lacks is named before it is used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ftcli.contracts import Engine, Executor, Packer, SourceFormat, Task
from ftcli.contracts_export import Exporter
from ftcli.errors import FtcliError, PluginError
from ftcli.pluginfaults import reason_of

CONTRACTS: Mapping[str, Any] = {
    "source": SourceFormat,
    "engine": Engine,
    "packer": Packer,
    "task": Task,
    "executor": Executor,
    "exporter": Exporter,
}
"""Kinds of which a factory is registered, called without arguments."""
BY_OWN_NAME = frozenset({"source", "engine"})
"""Kinds that are looked up again by the part's own name, which pieces and proofs carry."""
TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "str": (str, "a string"),
    "int": ((int, float), "a number"),
    "tuple[str, ...]": ((tuple, list), "a tuple"),
}
"""Type of a part's attribute, as its protocol writes it → what is taken for it, in words."""


class Made:
    """A plugin's factory, which raises nothing but `FtcliError` and gives nothing but parts that have what their protocol names."""

    def __init__(self, kind: str, plugin: str, name: str, factory: Callable[[], Any]) -> None:
        self.kind = kind
        self.plugin = plugin
        self.name = name
        self.factory = factory

    def __call__(self) -> Any:
        said = f"the {self.kind} {self.name!r} of plugin {self.plugin!r}"
        contract = CONTRACTS[self.kind]
        try:
            part = self.factory()
            fault = _fault(part, self.kind, self.name)
        except FtcliError:
            raise
        except (Exception, SystemExit) as error:
            hint = "Register a class, or a function, that is called without arguments and gives the part."
            raise PluginError(f"{said} cannot be made: {reason_of(error)}", hint) from error
        if fault:
            raise PluginError(f"{said} {fault}", f"{contract.__module__}.{contract.__name__} says what it has.")
        return part


R = TypeVar("R")


def sound(kind: str, plugin: str, name: str, record: R) -> R:
    """A record that a plugin registers, as it is.

    Raises:
        PluginError: a field holds what its type does not: another word than those there are, a text in place of a tuple, nothing that can be called.
    """
    for field, form in get_type_hints(type(record)).items():
        if hint := _other(field, getattr(record, field), form):
            said = f"plugin {plugin!r} registers the {kind} {name!r} with the {field} {getattr(record, field)!r}"
            raise PluginError(said, hint)
    return record


def _other(field: str, value: Any, form: Any) -> str:
    """What a record's field holds where this value is none for it; nothing where it is."""
    origin, choices = get_origin(form), get_args(form)
    if origin is Literal:
        return "" if value in choices else f"{field} is one of {', '.join(map(repr, choices))}."
    if origin is tuple:
        sample = repr((value,)) if isinstance(value, str) else '("one",)'
        return "" if isinstance(value, (tuple, list)) else f"{field} is a tuple, and a tuple of one has a comma: {field}={sample}."
    if origin is Callable:
        return "" if callable(value) else f"{field} is a function, or a class, that can be called."
    return "" if form is not bool or isinstance(value, bool) else f"{field} is True or False."


def _refused(method: Callable[..., Any], written: Callable[..., Any]) -> str:
    """The arguments of a protocol's method where a part's own cannot be called with them, as one written for an older ftcli; else nothing."""
    _, *names = inspect.signature(written).parameters
    try:
        inspect.signature(method).bind(*names)
    except TypeError:
        return ", ".join(names)
    except ValueError:  # written in C, without a signature
        return ""
    return ""


def _fault(part: Any, kind: str, name: str) -> str:
    """What makes a part useless; nothing where it has all that its protocol names."""
    values: Mapping[str, str] = CONTRACTS[kind].__annotations__
    others = {other: value for other, value in vars(CONTRACTS[kind]).items() if not other.startswith("_")}
    missing = sorted(other for other in values.keys() | others.keys() if not hasattr(part, other))
    if missing:
        return f"has no {' or '.join([', '.join(missing[:-1]), missing[-1]] if missing[1:] else missing)}"
    for other, value in others.items():
        if callable(value) and not callable(getattr(part, other)):
            return f"is one whose {other} cannot be called"
        if callable(value) and (arguments := _refused(getattr(part, other), value)):
            return f"is one whose {other} does not take the arguments ({arguments})"
    for other, written in values.items():
        value = getattr(part, other)
        form, words = TYPES.get(written, (object, ""))
        if not isinstance(value, form):
            return f"is one whose {other} {'are' if other.endswith('s') else 'is'} {value!r}, not {words}"
    if kind in BY_OWN_NAME and part.name != name:
        return f"is one whose name is {part.name!r}: both must be the same"
    for suffix in part.suffixes if kind == "source" else ():
        if not isinstance(suffix, str) or not suffix.startswith(".") or suffix != suffix.lower():
            return f"is one whose suffix {suffix!r} is not lower case with a dot in front"
    return ""
