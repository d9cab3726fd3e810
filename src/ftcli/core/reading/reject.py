"""Bad rows: strict stops at the first one, quarantine keeps what each of them was and goes on."""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from ftcli.contracts import Locating, Place, Reject
from ftcli.core.files.durable import sync, writing
from ftcli.core.files.manifest import damage_of, describe
from ftcli.core.files.streams import LineCounter, line_of
from ftcli.core.publishing.shard import ShardWriter
from ftcli.errors import DataError
from ftcli.records import BadCode, BadRow, Piece, ShardPlan
from ftcli.registry import AnyRegistry
from ftcli.settings import Settings

REJECTS = "rejects.jsonl"
TRIED = 100
"""Rows at the beginning of a file of which one must be good."""
RAW_BYTES = 4096
"""Of a bad row's bytes so many are kept; the hash is of all of them."""
HINT = "Correct or remove the row, or set such rows aside with --on-bad quarantine. ftcli does not convert values."
DENSER = 2
"""The early stop allows for a rest with so many times more rows a byte, all good."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a row, where the finder does not know its place."""

    code: BadCode
    reason: str
    field: str
    hint: str = ""


def strict(bad: BadRow) -> None:
    """Raises `DataError` that names place and reason."""
    line = line_of(bad.path, bad.start) if bad.line is None and bad.start is not None else bad.line
    raise DataError(f"{_where(bad.path, line, bad.start, bad.row)}: {bad.reason}", bad.hint or HINT)


def passing(settings: Settings) -> Reject:
    """For a pass over the rows that does not account for them: under quarantine it leaves bad ones out without a word."""
    return strict if settings.dataset.on_bad == "strict" else unheard


def unheard(_: BadRow) -> None:
    """For bad rows that another pass accounts for."""


def usable(rows: Iterable[BadRow | None], settings: Settings) -> bool:
    """Whether a file has rows, told by its first ones: None stands for a good row.

    Raises:
        DataError: the first row is bad, in strict mode; none of the first `TRIED` is good, under quarantine: a wrong column name must not
            go through 100 GB.
    """
    first = None
    for count, bad in enumerate(rows, 1):
        if bad is None:
            return True
        first = first or bad
        if settings.dataset.on_bad == "strict" or count == TRIED:
            strict(first)
    return first is not None


class Rejects:
    """The bad rows of one shard, on their way to its part of the rejects file.

    Readers and encoder find them at different times, maybe in different threads, each in the order of the shard: two runs, merged by
    `commit`. In strict mode the first one raises.
    """

    def __init__(self, shard: ShardPlan, settings: Settings, formats: AnyRegistry, writer: ShardWriter) -> None:
        self._strict = settings.dataset.on_bad == "strict"
        self._settings, self._formats, self._writer = settings, formats, writer
        self._early = _Run(writer, "rejects.read")
        self._late = _Run(writer, "rejects.encoded")
        self._known: dict[int, array[int]] = {}
        self._indexes = {piece: index for index, piece in enumerate(shard.pieces)}
        self._places: tuple[int, Iterator[tuple[int, Place]]] = (-1, iter(()))

    def of(self, piece: Piece) -> Reject:
        """The `reject` for the reader of a piece."""
        return strict if self._strict else partial(self._read, self._indexes[piece], piece)

    def _read(self, index: int, piece: Piece, bad: BadRow) -> None:
        self._known.setdefault(index, array("q")).append(_key(bad))
        self._early.add(index, piece, bad)

    def encoded(self, piece: Piece, faults: Mapping[int, Fault]) -> None:
        """Bad rows that were found after reading.

        Args:
            faults: by the row's number (from 0) among those that the reader gave out of `piece`; ascending, over all calls as well.
        """
        index = self._indexes[piece]
        if self._places[0] != index:
            self._places = index, enumerate(self._given(index, piece))
        for number, fault in faults.items():
            at = next((place for row, place in self._places[1] if row == number), Place())
            bad = BadRow(
                piece.path,
                fault.code,
                fault.reason,
                line=at.line,
                row=at.row,
                start=at.start,
                size=None if at.raw is None else len(at.raw),
                field=fault.field,
                raw=at.raw,
                hint=fault.hint,
            )
            if self._strict:
                strict(bad)
            self._late.add(index, piece, bad)

    def _given(self, index: int, piece: Piece) -> Iterator[Place]:
        """The places of the rows that the reader gave out: it is read again, without those that it rejected."""
        reader = self._formats.get(piece.format)()
        if not isinstance(reader, Locating):
            return
        known, passed = self._known.setdefault(index, array("q")), 0  # grows while the reader goes on
        for place in reader.places(piece, self._settings):
            if passed < len(known) and known[passed] == (place.start if place.row is None else place.row):
                passed += 1
            else:
                yield place

    @property
    def rows(self) -> Counter[str]:
        """How many, by path."""
        return self._early.rows + self._late.rows

    def commit(self, name: str) -> dict[str, Any] | None:
        """Make the part durable, before the shard is said to be finished, and describe it for the shard's record; None without bad rows."""
        runs = [run.path for run in (self._early, self._late) if run.close()]
        if not runs:
            return None
        merged = self._writer.path("rejects.merged")
        final = _folder(self._writer.directory) / f"{name}.{REJECTS}"
        with writing(merged), ExitStack() as stack:
            files: list[Iterable[bytes]] = [stack.enter_context(run.open("rb")) for run in runs]
            stack.enter_context(merged.open("wb")).writelines(heapq.merge(*files, key=_order))
        with writing(final):
            sync(merged)
            part = describe(merged, final.name)
            merged.replace(final)
            sync(final.parent)
        return part


class _Run:
    """Bad rows in the order of the shard, in a temporary file: JSON of (piece, place in it, whether the line was counted from the piece's start, entry, hint)."""

    def __init__(self, writer: ShardWriter, name: str) -> None:
        self._writer, self._name = writer, name
        self._file: BinaryIO | None = None
        self._lines: tuple[int, LineCounter] | None = None
        self.rows: Counter[str] = Counter()

    @property
    def path(self) -> Path:
        return self._writer.path(self._name)

    def add(self, index: int, piece: Piece, bad: BadRow) -> None:
        if self._file is None:
            self._file = self.path.open("wb")
        line = bad.line
        if line is None and bad.start is not None:
            if self._lines is None or self._lines[0] != index:
                self._lines = index, LineCounter(bad.path, piece.start if piece.unit == "bytes" else 0)
            line = 1 + self._lines[1].count(bad.start)  # in the piece: `join` adds what lies before it
        raw = bad.raw
        entry = {
            "line": line,
            "row": bad.row,
            "byte_start": bad.start,
            "byte_len": bad.size,
            "reason_code": bad.code,
            "field": bad.field,
            "sha256": bad.sha256 or (None if raw is None else hashlib.sha256(raw).hexdigest()),
            "raw": None if raw is None else base64.b64encode(raw[:RAW_BYTES]).decode(),
            "reason": bad.reason,
        }
        self._file.write(json.dumps([index, _key(bad), bad.line is None, entry, bad.hint]).encode() + b"\n")
        self.rows[bad.path] += 1

    def close(self) -> bool:
        """End the file; whether there is one."""
        if self._file is None:
            return False
        self._file.close()
        return True


def whole(directory: Path, record: Mapping[str, Any]) -> bool:
    """Whether the part of the rejects that a finished shard's record names is there, undamaged."""
    return record["rejects"] is None or damage_of(_folder(directory), record["rejects"], full=True) is None


def join(directory: Path, records: Iterable[Mapping[str, Any]], shards: Sequence[ShardPlan], target: Path) -> tuple[int, list[str], str]:
    """Write the rejects of all shards into one file, in the order of the shards; how many there are, the first three in words, and what to do
    about the first ("" where nobody knows).

    Paths are those of `shards`: a shard may have been finished when its source was called otherwise.
    """
    count, first, advice = 0, list[str](), ""
    lines: tuple[str, LineCounter] | None = None
    with writing(target), target.open("wb") as out:
        for record in sorted(records, key=lambda record: int(record["shard"])):
            if record["rejects"] is None:
                continue
            pieces, base = shards[record["shard"]].pieces, (-1, 0)
            with (_folder(directory) / record["rejects"]["path"]).open("rb") as part:
                for line in part:
                    index, _, counted, entry, *hint = json.loads(line)  # none in a shard that an earlier version finished
                    piece = pieces[index]
                    if counted and piece.unit == "bytes" and piece.start:
                        if lines is None or lines[0] != piece.path:
                            lines = piece.path, LineCounter(piece.path, 0)
                        if base[0] != index:
                            base = index, lines[1].count(piece.start)
                        entry["line"] += base[1]
                    out.write(json.dumps({"path": piece.path, **entry}, ensure_ascii=False).encode() + b"\n")
                    count += 1
                    advice = advice if first else next(iter(hint), "")
                    if len(first) < 3:
                        first.append(f"{_where(piece.path, entry['line'], entry['byte_start'], entry['row'])}: {entry['reason']}")
    return count, first, advice


class Budget:
    """Whether the share of bad rows can stay within `dataset.max_bad`.

    Args:
        size: bytes of all shards.
    """

    def __init__(self, limit: float, size: int) -> None:
        self._limit, self._left, self._done = limit, size, 0
        self.read = self.rejected = 0

    def spend(self, record: Mapping[str, Any], size: int) -> bool:
        """Count a finished shard of so many bytes. True when it is over: even if all the rest were good, and had `DENSER` times as many rows
        a byte as what was read so far. When all is read, this is exact."""
        counts = record["tally"]["counts"]
        self.read += counts["rows_read"]
        self.rejected += counts["rows_rejected"]
        self._left -= size
        self._done += size
        rest = DENSER * self.read * self._left / max(1, self._done)
        return self.rejected > self._limit * (self.read + rest)

    def refusal(self, first: Sequence[str], advice: str, where: Path) -> DataError:
        """The error that names rows, share and the first rejects, which can be read at `where`, with what to do about the first."""
        return DataError(
            f"{self.rejected:,} of {self.read:,} rows read cannot be used ({self.rejected / max(1, self.read):.4%}), more than dataset.max_bad allows "
            f"({self._limit:.4%}); nothing was published. The first: {'; '.join(first)}",
            f"{advice + ' ' if advice else ''}All of them are listed in {where}. Correct the sources, or allow more with --max-bad: finished shards are kept.",
        )


def accept(manifest: Mapping[str, Any], settings: Settings, output: Path) -> None:
    """Data that are there already have as few rejects as these settings ask for; else `DataError`."""
    metrics, dataset = manifest["metrics"], settings.dataset
    rejected, read = metrics["rows_rejected"], metrics["rows_read"]
    limit = 0.0 if dataset.on_bad == "strict" else dataset.max_bad
    if rejected > limit * read:
        raise DataError(
            f"{output} holds these data, but without {rejected:,} of {read:,} rows ({rejected / read:.4%}), which are listed in {output / REJECTS}",
            f"Accept them with --on-bad quarantine --max-bad {math.ceil(rejected / read * 1e6) / 1e6:g}, or correct the sources.",
        )


def _folder(directory: Path) -> Path:
    """Where an attempt keeps the parts: not among the data, because they are not published."""
    return directory / "records"


def _order(line: Any) -> tuple[int, int]:
    """Of a line of a run."""
    index, key, *_ = json.loads(line)
    return index, key


def _key(bad: BadRow) -> int:
    return next((place for place in (bad.start, bad.row, bad.line) if place is not None), 0)


def _where(path: str, line: int | None, start: int | None, row: int | None) -> str:
    if line is not None:
        return f"{path}:{line}" + ("" if start is None else f" (byte {start:,})")
    return path if row is None else f"{path}: row {row}"
