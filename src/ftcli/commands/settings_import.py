"""`ftcli settings import`: the configuration file of another trainer as a file of ours."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftcli.configfile import MOST_BYTES, load_file
from ftcli.context import Context
from ftcli.core.convert.foreign import Imported, read_foreign
from ftcli.core.files.durable import put, writing
from ftcli.core.toml import toml
from ftcli.errors import PublishError, SettingsError, UsageError
from ftcli.masking import masked_values
from ftcli.records import Report
from ftcli.sources import file_layer


def run(context: Context, file: Path, kind: str | None, output: Path | None) -> Report:
    """Translate a file; without `output` the result is in `details["lines"]`.

    Raises:
        UsageError: nobody knows whose file it is, or the output's name does not end in .toml.
        SettingsError: the file cannot be read, or a value is impossible here.
        PublishError: the output exists and may not be replaced, or cannot be written.
    """
    if output is not None and output.suffix != ".toml":
        raise UsageError(f"--output {output} is no .toml file", f"Write --output {output.with_suffix('.toml')}.")
    if output is not None and output.exists() and not context.settings.runtime.overwrite:
        raise PublishError(f"{output} exists", "Choose another name, or replace it with --overwrite.")
    found = read_foreign(load_file(file), kind, file)
    for line in found.unsaid:
        context.note(f"{line.key}, which {file.name} does not say: {line.words}")
    lines = as_lines(found, file)
    lost = found.of("no counterpart")
    metrics = {
        "keys": len(found.lines),
        "mapped": len(found.of("mapped")),
        "no_effect": len(found.of("no effect")),
        "no_counterpart": len(lost),
        "settings": len(found.values),
    }
    details: dict[str, Any] = {
        "from": found.name,
        "keys": [{"key": line.key, "outcome": line.outcome, "words": line.words} for line in found.lines],
        "values": {key: masked_values(str(value) if isinstance(value, Path) else value) for key, value in found.values.items()},
    }
    if output is None:
        return context.report("settings import", metrics, details={**details, "lines": lines})
    data = _readable(lines, file)
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    put(data, output.with_name(f".{output.name}.tmp"), output)
    file_layer(output)
    title = f"{found.name}: {metrics['mapped']} of {metrics['keys']} keys are mapped, {len(lost)} {'has' if len(lost) == 1 else 'have'} no counterpart"
    table = {"head": ["key", "outcome", "what"], "rows": [[line.key, line.outcome, line.words] for line in found.lines]}
    return context.report("settings import", metrics, paths={"output": str(output)}, details={**details, "title": title, "table": table})


def as_lines(found: Imported, file: Path) -> list[str]:
    """The TOML file: every setting with the key it came from, then what has no counterpart."""
    lines, section = [f"# {found.name}'s {file.name}, by `ftcli settings import`."], ""
    for key, value in found.values.items():
        name = key.partition(".")[2]
        if section != (section := key.partition(".")[0]):
            lines += ["", f"[{section}]"]
        written = str(value) if isinstance(value, Path) else value
        lines.append(f"{name} = {toml(written)}  # {_one_line(found.origins[key])}")
    if noted := [*((line.key, line.note) for line in found.lines if line.note), *((line.key, line.words) for line in found.unsaid)]:
        lines += ["", "# Not quite the same:", *(f"#   {_one_line(key)}: {_one_line(note)}" for key, note in noted)]
    for outcome in ("no counterpart", "no effect"):
        if told := found.of(outcome):
            lines += ["", f"# {outcome.capitalize()}:", *(f"#   {_one_line(line.key)}: {_one_line(line.words)}" for line in told)]
    return lines


def _readable(lines: Sequence[str], file: Path) -> bytes:
    """The file's bytes, read back before they replace anything.

    Raises:
        SettingsError: no config file can be so.
    """
    text = "\n".join(lines) + "\n"
    try:
        data = text.encode()
        tomllib.loads(text)
    except ValueError as error:
        raise SettingsError(
            f"{file}: what it says cannot stand in a TOML file: {error}", "Take odd characters out of its values."
        ) from error
    if len(data) > MOST_BYTES:
        raise SettingsError(f"{file} makes {len(data):,} bytes, a config file has {MOST_BYTES:,} at most", "Shorten its values.")
    return data


def _one_line(text: str) -> str:
    """Without line breaks, and with what cannot be printed, and no comment of TOML may hold, as an escape."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in " ".join(text.split()))
