"""What people and programs read: the report on stdout, errors on stderr."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from ftcli.cli.streams import emit
from ftcli.core.figures import GAP, number, quantity, seconds
from ftcli.core.headline import headline, lede
from ftcli.errors import InterruptedRun
from ftcli.records import Report, to_json

COLOURS = {"pass": 32, "ok": 32, "warn": 33, "interrupted": 33, "fail": 31, "error": 31, "failed": 31, "skipped": 2, "dim": 2}


def write_json(report: Report, stream: TextIO) -> None:
    """The report as one line, ASCII only, so that no locale can break it."""
    emit(json.dumps(to_json(report), allow_nan=False) + "\n", stream)


def write_human(report: Report, stream: TextIO, *, notes: bool = True) -> None:
    """The report for people.

    `details["lines"]` is all that is printed, for the shell; else `details["title"]`, and `details["table"]` = {"head", "rows"} as columns
    in place of figures.

    Args:
        notes: whether notes are printed; not needed where stderr has said them already.
    """
    lines: list[str] = [report.details["title"]] if "title" in report.details else []
    lines += report.details.get("lines", ())
    if "table" in report.details:
        lines += columns(report.details["table"]["head"], report.details["table"]["rows"])
    if "lines" not in report.details:
        lines += _checks(report, stream) + ([] if "table" in report.details else _figures(report))
        if notes:
            lines += _block("Notes", (f"- {note}" for note in report.notes))
        if report.paths:
            lines += _block("Files", columns((), sorted(report.paths.items())))
    emit("".join(f"{line.replace(GAP, ' ').rstrip()}\n" for line in lines), stream)


def write_status(report: Report, stream: TextIO) -> None:
    """The last line for people, on stderr: what ran, how it ended, how long it took."""
    status = colour(report.status, report.status, stream)
    emit(f"{report.command}: {status} after {seconds(report.seconds).replace(GAP, ' ')}\n", stream)


def write_error(error: Mapping[str, str], stream: TextIO) -> None:
    """A report's error: message and hint, no traceback."""
    word = "interrupted" if error["code"] == InterruptedRun.code else "error"
    hint = f"  {error['hint']}\n" if error["hint"] else ""
    emit(f"{colour(word, word, stream)}: {error['message']}\n{hint}", stream)


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows with aligned columns; `head` may be empty."""
    table = [[str(cell) for cell in row] for row in ([head, *rows] if head else rows)]
    if not table:
        return []
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def colour(text: str, tone: str, stream: TextIO) -> str:
    """`text` in the colour of a tone, on a terminal that wants colour (https://no-color.org)."""
    plain = not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or tone not in COLOURS
    return text if plain else f"\x1b[{COLOURS[tone]}m{text}\x1b[0m"


def _checks(report: Report, stream: TextIO) -> list[str]:
    lines = []
    shown = [check for check in report.checks if report.command != "train" or check.status in {"warn", "fail", "error"}]
    wide = max((len(check.id) for check in shown), default=0)
    for check in shown:
        lines.append(f"{colour(f'{check.status:<7}', check.status, stream)}  {check.id:<{wide}}  {check.summary}")
        if check.fix and check.status in {"fail", "error", "warn"}:
            lines.append(f"{'':<7}  {'':<{wide}}  → {check.fix}")
    return lines


def _figures(report: Report) -> list[str]:
    doc = to_json(report)
    lines = [lede(doc)] if lede(doc) else []
    if "measurements" in report.metrics:
        lines += columns(("variant", "median", "95 % interval", "n"), (_measured(row) for row in doc["metrics"]["measurements"]))
        ratios = doc["metrics"].get("ratios") or ()
        return lines + _block("Compared", columns((), ([row["name"], quantity(row["median"], "×"), row["verdict"]] for row in ratios)))
    cards = [[card.label, card.value, card.note] for card in headline(doc)]
    if not cards:
        cards = [[name.replace("_", " "), number(value), ""] for name, value in doc["metrics"].items() if _is_plain(value)]
    return lines + columns((), cards)


def _measured(row: dict[str, Any]) -> list[str]:
    low, high = quantity(row["low"], row["unit"]), quantity(row["high"], row["unit"])
    return [row["name"], quantity(row["median"], row["unit"]), f"{low} to {high}", number(row["n"])]


def _is_plain(value: Any) -> bool:
    return value is not None and isinstance(value, (str, int, float))


def _block(title: str, lines: Iterable[str]) -> list[str]:
    inner = [f"  {line}" for line in lines]
    return ["", title, *inner] if inner else []
