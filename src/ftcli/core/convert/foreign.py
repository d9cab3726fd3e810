"""Configuration files of other trainers as settings of ours: every key is mapped, has no effect here, or is listed as lost with the reason.

What each key means stands in `import_NAME.toml` beside this file, a line a key; docs/settings-import.md says how they are read.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ftcli.configfile import Bare
from ftcli.core.convert.foreign_values import CONVERSIONS, Lost, sharded, within, word
from ftcli.errors import UsageError
from ftcli.settings import get, walk
from ftcli.sources import resolve

if TYPE_CHECKING:
    from ftcli.core.convert.registered import Registry

KINDS = {"axolotl": "axolotl", "llama-factory": "llamafactory", "trl": "trl", "trainer": "trainer"}
"""Name on the command line → name of the table."""
LISTS = frozenset({"dataset.sources", "dataset.rename_columns"})
"""Settings to which every data set adds."""
Outcome = Literal["mapped", "no effect", "no counterpart"]
UNKNOWN = "ftcli does not know this key of {name}"
TRAINS = "ftcli trains language models on texts (pretrain) and conversations (sft), classifiers and regressions: use the trainer the file was written for."


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one key."""

    key: str
    outcome: Outcome
    words: str
    """The settings it became, or why it became none."""
    note: str = ""
    """How what it became differs."""


@dataclass(slots=True)
class Imported:
    """A configuration file, read."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    """ "section.field" → value, as its type wants it."""
    origins: dict[str, str] = field(default_factory=dict)
    """The key, or what the other trainer does without one, behind each value."""
    lines: list[Line] = field(default_factory=list)
    unsaid: list[Line] = field(default_factory=list)
    """What the file does not say: keys, where that means something for which there is no setting, and settings that it leaves in doubt."""

    def of(self, outcome: str) -> list[Line]:
        return [line for line in self.lines if line.outcome == outcome]


def read_foreign(config: Mapping[str, Any], kind: str | None, file: Path) -> Imported:
    """Translate a configuration.

    Args:
        config: the file's table.
        kind: whose it is, a key of `KINDS`; None: found out by its keys.
        file: for messages.

    Raises:
        UsageError: nobody knows whose it is, or it trains in a way that ftcli does not.
        SettingsError: a value is impossible here; names key, value and file.
    """
    table = _table(KINDS[kind or recognise(config, file)])
    found = Imported(table["name"])
    context = {**table.get("assumed", {}), **{key: value for key, value in config.items() if value is not None}}
    if "registry" in table:
        from ftcli.core.convert.registered import Registry  # pyarrow is not loaded for other settings

        context["registry"] = registry = Registry.of(config, file)
        context["registered"] = not registry.reason
    for rule in table.get("refused", ()):
        fine = {word(each) for each in [False, *rule.get("known", ())]}
        asked = next((key for key in rule["keys"] if word(context.get(key, False)) not in fine), None)
        if asked and not any(config.get(key) for key in rule.get("unless", ())):
            given = "set" if isinstance(context[asked], list | Mapping) else word(context[asked])
            raise UsageError(f"{file}: {asked} is {given}: {rule['why']}", rule.get("way", TRAINS))
    told: dict[str, list[Line]] = {}
    known = [key for key in table["keys"] if key in config]
    for key in known:  # in the table's order: where two keys mean one setting, the first of the table decides
        told[key] = list(_key(found, table, key, config[key], {**context, **found.values}))
    for key, value in config.items():
        unset, unknown = Line(str(key), "no effect", "not set"), Line(str(key), "no counterpart", UNKNOWN.format(name=table["name"]))
        found.lines += told.get(key) or [unset if value is None else unknown]
    for default in table.get("defaults", ()):
        silent = default["to"] not in found.values and not any(config.get(key) for key in default.get("unless", ()))
        silent = silent and not any(key in config for key in default.get("unless_said", ()))
        silent = silent and _multiple(*(found.values.get(key) for key in default.get("multiple", ())))
        if silent and _holds(default.get("when", {}), {**context, **found.values}):
            found.values[default["to"]] = default["value"]
            found.origins[default["to"]] = f"{table['name']}: {default['why']}"
            found.unsaid += [Line(default["to"], "mapped", default["note"])] if "note" in default else []
    for key, words in table.get("unsaid", {}).items():
        meant: dict[str, Any] = {"words": words} if isinstance(words, str) else words
        if key not in config and not ("unless" in meant and _holds(meant["unless"], found.values)):
            found.unsaid.append(Line(key, "no counterpart", meant["words"]))
    settings = resolve({key: (value, f"{file}: {found.origins[key]}") for key, value in found.values.items()}, environ={}).settings
    order = [f"{section}.{name}" for section, name, _ in walk()]
    found.values = {key: get(settings, key) for key in sorted(found.values, key=order.index)}
    return found


def recognise(config: Mapping[str, Any], file: Path) -> str:
    """Whose configuration it is: the trainer of whose own keys it has most.

    Raises:
        UsageError: it has none, or as many of two.
    """
    marks = {kind: len(set(_table(name)["marks"]) & set(config)) for kind, name in KINDS.items()}
    best = max(marks.values())
    winners = [kind for kind, count in marks.items() if count == best]
    if {"compute_environment", "distributed_type"} & set(config) and not best:
        way = f"accelerate launch --config_file {file} -m ftcli train …"
        raise UsageError(
            f"{file} is a configuration of accelerate's launcher and holds no training settings", f"Use it to start the run: {way}"
        )
    if not best or len(winners) > 1:
        raise UsageError(f"{file}: its keys do not show which trainer it belongs to", f"Name the trainer: --from {' | '.join(KINDS)}")
    return winners[0]


def meanings(key: str) -> Iterator[tuple[str, list[str]]]:
    """What a key of a configuration file sets here: the trainer's name and the "section.field" names, for every trainer that has it."""
    for table in map(_table, KINDS.values()):
        rule = table["keys"].get(key, {})
        rules = rule if isinstance(rule, list) else [{"to": rule}] if isinstance(rule, str) else [rule]
        if to := next((each["to"] for each in rules if "to" in each), None):
            yield table["name"], [to] if isinstance(to, str) else list(to)


@cache
def _table(name: str) -> dict[str, Any]:
    table = tomllib.loads((resources.files("ftcli.core.convert") / f"import_{name}.toml").read_text(encoding="utf-8"))
    if "base" in table:
        table["keys"] |= {key: rule for key, rule in _table(table["base"])["keys"].items() if key not in table["keys"]}
    return table


def _key(found: Imported, table: Mapping[str, Any], key: str, value: Any, context: Mapping[str, Any]) -> Iterator[Line]:
    rule = _counting(table["keys"][key], context)
    if rule.get("as") == "registered":
        yield from _registered(found, table, key, value, context)
        return
    if rule.get("as") == "list":
        items = value if isinstance(value, list) else [value]
        for number, item in enumerate(items):
            where = f"{key}[{number}]"
            if not isinstance(item, Mapping):
                yield _line(found, where, table["items"]["path"], item, {**context, "": key})
                continue
            files = within(item, table["items"]["path"]["harmless"])
            for name, inner in {**item, **files}.items():
                inside = table["items"].get(name, {"lost": UNKNOWN.format(name=table["name"])})
                inside = {"same": "data_files names the files in it"} if files and name == "path" else inside
                yield _line(found, f"{where}.{name}", inside, inner, {**context, "": key, "item": item.get("type")})
        if not items:
            yield Line(key, "no effect", "empty")
        return
    if rule.get("as") == "fsdp" and isinstance(value, Mapping):
        value, unread = sharded(value, context.get("fsdp_version"))
        yield from (Line(f"{key}.{name}", "no counterpart", why) for name, why in unread.items())
    yield _line(found, key, rule, value, {**context, "": key})


def _registered(found: Imported, table: Mapping[str, Any], key: str, value: Any, context: Mapping[str, Any]) -> Iterator[Line]:
    registry: Registry = context["registry"]
    if registry.reason:
        yield Line(key, "no counterpart", registry.reason)
        return
    names = value if isinstance(value, list) else str(value).split(",")
    for name in filter(None, (str(each).strip() for each in names)):
        for behind, rule, inner in registry.told(f"{key}[{name}]", name, context["stage"]):
            meant = rule or table["items"].get(behind.lstrip("."), {"lost": UNKNOWN.format(name=table["name"])})
            yield _line(found, f"{key}[{name}]{behind}", meant, inner, {**context, "": key})


def _counting(rule: Any, context: Mapping[str, Any]) -> dict[str, Any]:
    """A rule as a table, of several the first whose `when` holds."""
    if isinstance(rule, list):
        rule = next(each for each in rule if _holds(each.get("when", {}), context))
    return {"to": rule} if isinstance(rule, str) else dict(rule)


def _line(found: Imported, key: str, rule: Any, value: Any, context: Mapping[str, Any]) -> Line:
    """Read one key by its rule: a setting's name, a table, or a list of tables."""
    if value is None:
        meant = rule.get("null") if isinstance(rule, dict) else None
        return Line(key, "no counterpart" if meant else "no effect", meant or "not set")
    rule = _counting(rule, context)
    if word(value) in {word(each) for each in rule.get("harmless", ())}:
        return Line(key, "no effect", f"{word(value)}: the same in ftcli")
    try:
        wanted = _wanted(rule, value, context)
    except Lost as lost:
        anyway = {} if lost.anyway is None else _taken(found, key, {**rule.get("also", {}), **lost.anyway})
        return Line(key, "no counterpart", str(lost) + (f"; the rest is kept: {', '.join(anyway)}" if anyway else ""))
    except ZeroDivisionError:
        return Line(key, "no counterpart", "division by a value of 0")
    if not wanted:
        return Line(key, "no effect", rule.get("same") or f"{word(value)}: the same in ftcli", rule.get("note", ""))
    taken = _taken(found, key, wanted)
    if not taken:
        to = next(iter(wanted))
        return Line(key, "no counterpart", f"{to} is already set by {found.origins[to]}")
    return Line(key, "mapped", ", ".join(taken) + (f" ({rule['note']})" if "note" in rule else ""), rule.get("note", ""))


def _taken(found: Imported, key: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Put the settings of a key among those that are found, but for what another key decided already."""
    taken = {to: given for to, given in wanted.items() if to not in found.values or found.values[to] == given or to in LISTS}
    for to, given in taken.items():
        held = found.values.get(to, ())
        found.values[to] = [*held, *(each for each in given if to == "dataset.sources" or each not in held)] if to in LISTS else given
        found.origins.setdefault(to, key)
    return taken


def _wanted(rule: Mapping[str, Any], value: Any, context: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a value.

    Raises:
        Lost: it has no counterpart.
    """
    to = rule.get("to", [])
    targets: list[str] = [to] if isinstance(to, str) else to
    values, given = rule.get("values", {}), value
    if word(value) in values:
        given = values[word(value)]
    elif values and not rule.get("pass"):
        raise Lost(f"{word(value)} has no counterpart")
    if "lost" in rule:
        raise Lost(rule["lost"])
    if isinstance(given, str) and given == "?":
        raise Lost(f"{word(value)} has no counterpart")
    if isinstance(given, str) and not given:
        return {}
    wanted = dict.fromkeys(targets, given)
    if convert := CONVERSIONS.get(rule.get("as", "")):
        wanted = convert(targets[0] if targets else "", given, value, context)
    if any(_has_none(each) for each in wanted.values()):
        raise Lost("it holds a null, which TOML cannot represent")
    if endless := next((each for value in wanted.values() for each in _numbers(value) if not math.isfinite(each)), None):
        raise Lost(f"{endless:g} is not a finite number")
    return {**wanted, **rule.get("also", {})} if wanted else {}


def _holds(when: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
    return all(word(context.get(key)) in {word(each) for each in wanted} for key, wanted in when.items())


def _multiple(of: Any = 1, step: Any = 1) -> bool:
    """Whether a number is a multiple of another one; shares are none of whole numbers."""
    return isinstance(of, int | float) and isinstance(step, int | float) and step > 0 and (of < 1) == (step < 1) and of % step == 0


def _has_none(value: Any) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return value is None or any(map(_has_none, inner))


def _numbers(value: Any) -> Iterator[float]:
    """The fractions in a value."""
    if isinstance(value, Bare | float):
        yield float(value)
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _numbers(inner)
