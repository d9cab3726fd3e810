"""What people and programs read: the report on stdout, errors on stderr."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from ftcli.cli.streams import emit
from ftcli.core.doctor.part import page
from ftcli.core.figures import GAP, number, quantity, seconds
from ftcli.core.inspect.tokenlines import PIPE_WIDTH
from ftcli.core.inspect.tokenlines import lines as token_lines
from ftcli.core.reports.headline import headline, lede
from ftcli.errors import InterruptedRun
from ftcli.masking import Clean, coloured, masked, masked_json, printable
from ftcli.records import Report, to_json

SHOWN = 3
"""Rows of evidence that a terminal shows; the HTML page and the JSON document have all."""
WIDEST = 240
ROWS_SHOWN = 3
COLOURS = {
    "pass": 32,
    "ok": 32,
    "warn": 33,
    "interrupted": 33,
    "fail": 31,
    "error": 31,
    "failed": 31,
    "skipped": 2,
    "dim": 2,
    "learned": 32,
    "special": 35,
    "head": 1,
}


def write_json(report: Report, stream: TextIO) -> None:
    """The report as one line, ASCII only, so that no locale can break it."""
    emit(masked_json(to_json(report), allow_nan=False), stream)


def write_human(report: Report, stream: TextIO, *, notes: bool = True, verbose: bool = False) -> None:
    """The report for people.

    `details["lines"]` is all that is printed, for the shell; else `details["title"]`, and `details["table"]` = {"head", "rows"} as columns
    in place of figures; `details["parts"]` as a page of Markdown.

    Args:
        notes: whether notes are printed; not needed where stderr has said them already.
        verbose: show what is behind every verdict, not only behind those that want something done.
    """
    lines: list[str] = [report.details["title"]] if "title" in report.details else []
    lines += report.details.get("lines", ())
    lines += page(report.details["parts"]) if "parts" in report.details else ()
    if "table" in report.details:
        lines += columns(report.details["table"]["head"], report.details["table"]["rows"])
    looked = "looked" in report.details and "lines" not in report.details and not report.paths
    if looked:  # its tokens are masked one by one: beside each other they look like what they are not
        lines = [*map(masked, lines), *_looked(report.details["looked"], stream)]
    elif not {"lines", "parts"} & set(report.details):
        lines += _checks(report, stream, verbose=verbose) + ([] if "table" in report.details else _figures(report))
        lines += _mended(report.details["mended"], stream) if "mended" in report.details else []
        if notes:
            lines += _block("Notes", (f"- {note}" for note in report.notes))
        if report.paths:
            lines += _block("Files", columns((), sorted(report.paths.items())))
    text = "".join(f"{line.replace(GAP, ' ').rstrip()}\n" for line in lines)
    emit(Clean(printable(text)) if looked else text, stream)


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
    """Rows with aligned columns, a line each; `head` may be empty."""
    table = [[printable(str(cell)).replace("\n", "\\n") for cell in row] for row in ([head, *rows] if head else rows)]
    if not table:
        return []
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def colour(text: str, tone: str, stream: TextIO) -> str:
    """`text` in the colour of a tone, on a terminal that wants colour (https://no-color.org)."""
    plain = not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or tone not in COLOURS
    return text if plain else coloured(text, COLOURS[tone])


def _checks(report: Report, stream: TextIO, *, verbose: bool) -> list[str]:
    lines = []
    shown = [check for check in report.checks if report.command != "train" or check.status in {"warn", "fail", "error"}]
    wide = max((len(check.id) for check in shown), default=0)
    for check in shown:
        lines.append(f"{colour(f'{check.status:<7}', check.status, stream)}  {check.id:<{wide}}  {check.summary}")
        bad = check.status in {"fail", "error", "warn"}
        if check.fix and bad:
            lines.append(f"{'':<7}  {'':<{wide}}  → {check.fix}")
        if report.command == "verify" and (bad or verbose):
            lines += [colour(f"{'':<7}  {'':<{wide}}    {line}", "dim", stream) for line in evidence_lines(check.evidence)]
    if named := [check.id for check in shown if check.page and check.status in {"fail", "error", "warn"}]:
        lines.append(f"More: {'; '.join(f'ftcli verify --explain {name}' for name in named[:5])}")
    return lines


def evidence_lines(evidence: Mapping[str, Any]) -> list[str]:
    """What is behind a verdict: plain figures on one line, lists of rows with a line each, `SHOWN` of them."""
    plain, lines = [], []
    for name, value in to_json(evidence).items():
        label = name if name.isupper() or "." in name else name.replace("_", " ")  # the name of a variable or of a setting
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [_short(f"{label}: {json.dumps(row, ensure_ascii=False)}") for row in value[:SHOWN]]
        elif isinstance(value, (list, dict)):
            lines.append(_short(f"{label}: {json.dumps(value, ensure_ascii=False)}"))
        elif isinstance(value, str):
            plain.append(_short(f"{label} {json.dumps(value, ensure_ascii=False)}"))
        elif value is not None:
            plain.append(f"{label} {value:.6g}" if isinstance(value, float) else f"{label} {value}")
    return [*([", ".join(plain)] if plain else []), *lines]


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _mended(mended: Mapping[str, Any], stream: TextIO) -> list[str]:
    """What --fix did: the difference, where the copy lies, and what is left."""
    if not mended["copies"]:
        return [
            "",
            "--fix: nothing can be fixed safely" + (f"; left to you: {', '.join(mended['left'])}." if mended["left"] else "."),
        ]
    lines = []
    for copy in mended["copies"]:
        lines += ["", f"Fixed in a copy of {copy['source']}: {copy['copy']}", ""]
        tones = {"+": "pass", "-": "fail", "@": "dim"}
        lines += [f"  {colour(line, tones.get(line[:1], ''), stream)}" for line in copy["diff"].splitlines()]
        lines += ["", *(f"  {key}: {reason}" for key, reason in copy["reasons"].items())]
    lines += ["", "The copy, verified again"]
    lines += [f"  {each['id']}: {each['before']} → {each['after']}  {each['summary']}" for each in mended["changed"]] or [
        "  no verdict changed"
    ]
    lines += [f"      → {each['fix']}" for each in mended["changed"] if each["fix"] and each["after"] in {"warn", "fail", "error"}]
    flags = {"tokenizer.path": "--tokenizer-path", "model.config": "--model-config", "model.name_or_path": "--model-name-or-path"}
    use = " ".join(f"{flags.get(key, key)} {value}" for copy in mended["copies"] for key, value in copy["use"].items())
    return [*lines, "", f"Use it: {use}", *([f"Still to do: {', '.join(mended['left'])}"] if mended["left"] else [])]


def _looked(looked: Mapping[str, Any], stream: TextIO) -> list[str]:
    """Rows token by token, as wide as the terminal."""
    width = looked["width"] or (shutil.get_terminal_size((PIPE_WIDTH, 24)).columns if stream.isatty() else PIPE_WIDTH)
    return token_lines(looked["rows"], width, lambda text, tone: colour(text, tone, stream), ids=looked["ids"])


def _read_back(report: Report) -> list[str]:
    """The first rows of the audited batch as the model gets them."""
    rows = report.details.get("rows") if report.command == "verify" else None
    lines: list[str] = []
    for row in (rows or [])[:ROWS_SHOWN]:
        label = "" if row.get("label") is None else f", label {row['label']}"
        added = "".join(f", {key} {row[key]}" for key in ("mask", "positions", "targets") if key in row)
        lines += [f"row {row['row']}: {row['tokens']} tokens{label}{added}", f"  {json.dumps(row['text'], ensure_ascii=False)}"]
    return _block(f"The first batch, decoded (the report has all {len(rows or ())} rows)", lines)


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
