"""The counts of all shards together, as the fixed metric names and as what the plots show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ftcli.errors import DataError

HISTOGRAM_BINS = 40
BANDS = ((20_000, "very fast"), (10_000, "fast"), (5_000, "normal"), (0, "slow"))
"""Examples per second at least, and the word for it: the bands of incident 4, whose texts had about 200 tokens."""
BAND_TOKENS = 1_000
"""Tokens a text, on average, up to which the bands say anything: a longer text takes longer."""
BAND_ROWS = 20_000
"""Rows from which the bands say anything but "very fast": of fewer, the engine's start takes most of the time, and a slower speed says nothing."""
LISTED = 200
"""Files whose rows are told one by one; a report of 300,000 had 67 MB and took a minute."""


@dataclass(slots=True)
class Tally:
    """Sums over shards. Built from their records, so that finished shards of an earlier attempt count as well."""

    counts: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    """Documents, by split; shards that an earlier version made do not tell them."""
    tokens: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    labels: Counter[int] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)
    """Tokens that are learned, by split; of conversations only."""
    lists: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    sources: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)
    output_bytes: Counter[str] = field(default_factory=Counter)
    """Bytes written per split."""
    texts_by_reference: int = 0
    texts_audited: int = 0
    failures: list[str] = field(default_factory=list)
    """Where the engine failed and the reference stood in, in words."""

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Tally:
        """Raises `DataError` unless rows read = rows written + rejected + filtered, in every source and in all: the accounting law."""
        total = cls()
        for record in sorted(records, key=lambda record: int(record["shard"])):  # they come as workers finish
            shard = record["tally"]
            for name in ("counts", "rows", "texts", "tokens", "seconds", "targets", "lists", "shapes"):
                getattr(total, name).update(shard.get(name, {}))
            for name in ("lengths", "labels"):
                getattr(total, name).update({int(key): count for key, count in shard[name].items()})
            for path, counts in shard["sources"].items():
                total.sources.setdefault(path, Counter()).update(counts)
            for entry in record["files"]:
                total.output_bytes[entry["path"].split("/")[0]] += entry["bytes"]
            total.texts_by_reference += shard["texts_by_reference"]
            total.texts_audited += shard["texts_audited"]
            total.failures += shard["failures"]
        total._check()
        return total

    def _check(self) -> None:
        counts, written = self.counts, sum(self.lengths.values())
        sums = Counter[str]()
        for path, own in self.sources.items():
            sums.update(own)
            if own["rows_read"] != own["rows_kept"] + own["rows_rejected"] + own["rows_filtered"]:
                raise _lost(f"{path}: {_words(own)}")
        if sums != counts or written != counts["rows_kept"] + counts["parts_added"]:
            raise _lost(f"{_words(counts)}, {written} written; the sources: {_words(sums)}")

    @property
    def tokens_per_text(self) -> float:
        """Tokens of a text before truncation, on average; 0.0 without texts."""
        return (sum(self.tokens.values()) + self.counts["tokens_cut"]) / max(1, self.counts["rows_kept"])

    def speeds(self, *, seconds: float, source_bytes: int) -> dict[str, float | None]:
        """What these shards took, a second; None where there was nothing to do."""
        done = {
            "examples": self.counts["rows_read"],
            "megabytes": source_bytes / 1e6,
            "tokens": sum(self.tokens.values()),
        }
        return {f"{unit}_per_second": amount / seconds if self.counts["rows_read"] else None for unit, amount in done.items()}

    def metrics(self, *, slots: int | None, workers: int, source_bytes: int) -> dict[str, Any]:
        """Everything but the speeds. Stage seconds are summed over workers, then divided by their number.

        Args:
            slots: places for tokens in the packs (rows × max_length); None when not packed.
        """
        tokens = sum(self.tokens.values())
        return {
            "rows_read": self.counts["rows_read"],
            "rows_written": self.counts["rows_kept"],
            "rows_rejected": self.counts["rows_rejected"],
            "rows_filtered": self.counts["rows_filtered"],
            "rows_too_long": self.counts["rows_too_long"],
            "rows_truncated": self.counts["rows_truncated"],
            **(self._of_conversations() if self.shapes else {}),
            "texts_split": self.counts["texts_split"],
            "rows_out": sum(self.rows.values()),
            "tokens": tokens,
            "tokens_cut": self.counts["tokens_cut"],
            "bytes_read": source_bytes,
            "texts_by_reference": self.texts_by_reference,
            "texts_audited": self.texts_audited,
            "bytes_written": sum(self.output_bytes.values()),
            **{f"seconds_{stage}": self.seconds[stage] / workers for stage in ("read", "encode", "write")},
            "packing_waste": None if not slots else 1 - tokens / slots,
        }

    def _of_conversations(self) -> dict[str, int]:
        rows = {name: self.counts[name] for name in ("rows_untargeted", "rows_unanswered")}
        return {**rows, "target_tokens": sum(self.targets.values())}

    def details(self, label_names: list[str] | None, max_length: int) -> dict[str, Any]:
        """What is behind the plots; see `ftcli.core.reports.report`."""
        sources = [
            {
                "path": path,
                "rows_read": counts["rows_read"],
                "rows_written": counts["rows_kept"],
                "rows_rejected": counts["rows_rejected"],
                "rows_filtered": counts["rows_filtered"],
            }
            for path, counts in self.sources.items()
        ]
        details: dict[str, Any] = {
            "max_length": max_length,
            "splits": {split: {"rows": self.rows[split], "tokens": self.tokens[split]} for split in self.rows},
            **listed({"sources": sources}, max(LISTED, sum(map(_lossy, sources)))),
        }
        if self.shapes:
            details["conversations"] = {"shapes": dict(self.shapes), "target_tokens": dict(self.targets)}
        if self.lengths:
            low, high = min(self.lengths), max(self.lengths)
            width = -(-(high - low + 1) // HISTOGRAM_BINS)
            edges = np.arange(low, high + width + 1, width)
            counts, _ = np.histogram(list(self.lengths), edges, weights=list(self.lengths.values()))
            details["lengths"] = {"edges": edges.tolist(), "counts": counts.astype(int).tolist()}
        if label_names is not None:
            details["labels"] = {"names": label_names, "counts": [self.labels[number] for number in range(len(label_names))]}
        return details


def listed(details: Mapping[str, Any], most: int = LISTED) -> dict[str, Any]:
    """The details with no more `sources` than that, those that lost rows first; the others are counted together as `further_sources`."""
    sources, before = details["sources"], details.get("further_sources") or {}
    if len(sources) <= most:
        return dict(details)
    ranked = sorted(sources, key=_lossy, reverse=True)
    names = ("rows_read", "rows_written", "rows_rejected", "rows_filtered")
    further = {name: before.get(name, 0) + sum(source.get(name, 0) for source in ranked[most:]) for name in names}
    return {**details, "sources": ranked[:most], "further_sources": {"files": before.get("files", 0) + len(ranked) - most, **further}}


def _lossy(source: Mapping[str, Any]) -> bool:
    return bool(source.get("rows_read") != source.get("rows_written"))


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[f'rows_{name}']} {name}" for name in ("read", "kept", "rejected", "filtered"))


def _lost(what: str) -> DataError:
    return DataError(f"the row counts do not add up: {what}", "This is a bug in ftcli or in a plugin; nothing was published.")


def rating(examples_per_second: float | None, tokens_per_text: float, rows: int) -> str | None:
    """Incident 4's word for a speed; None where it is unknown, or the texts are too long or too few for the bands."""
    if examples_per_second is None or tokens_per_text > BAND_TOKENS:
        return None
    best, word = BANDS[0][1], next(word for least, word in BANDS if examples_per_second >= least)
    if rows < BAND_ROWS and word != best:
        return None
    return f"{word} ({examples_per_second:,.0f} examples/s; over 20,000 very fast, 10,000 fast, 5,000 normal)"
