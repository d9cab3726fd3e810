"""JSON lines: one file a split, one line a row."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.contracts_export import ExportJob

if TYPE_CHECKING:
    from ftcli.core.storage.store import Rows, Store


class Jsonl:
    """`input_ids`, `length`, `labels` and `seq_lengths` where there are any; `text`, or `texts` of packed rows, where a tokenizer is given."""

    name = "jsonl"
    texts = True

    def export(self, store: Store, output: Path, job: ExportJob) -> Iterable[Path]:
        """See `ftcli.contracts_export.Exporter`. A text that does not give the same ids again is null."""
        from ftcli.core.convert.tokenfile import batches

        for split in job.splits:
            path = output / f"{split}.jsonl"
            with path.open("w", encoding="utf-8", newline="\n") as file:
                for rows in batches(store, split, job):
                    file.writelines(_line(rows, number, job) for number in range(len(rows)))
            yield path


def _line(rows: Rows, number: int, job: ExportJob) -> str:
    ids = rows.input_ids.row(number)
    row: dict[str, Any] = {"input_ids": ids.tolist(), "length": len(ids)}
    if rows.types is not None:
        row["token_type_ids"] = rows.types.row(number).tolist()
    if not job.tokens_only and rows.labels is not None:
        row["labels"] = int(rows.labels[number])
    if not job.tokens_only and rows.numbers is not None:
        row["labels"] = float(rows.numbers[number])
    if not job.tokens_only and rows.flags is not None:
        row["labels"] = rows.flags[number].tolist()
    if not job.tokens_only and rows.targets is not None:
        row["labels"] = rows.targets.row(number).tolist()
    if rows.seq_lengths is not None:
        row["seq_lengths"] = rows.seq_lengths.row(number).tolist()
    if job.decode is not None and rows.seq_lengths is None:
        row["text"] = job.decode(ids)
    elif job.decode is not None:
        row["texts"], start = [], 0
        for length in row["seq_lengths"]:
            row["texts"].append(job.decode(ids[start : start + length]))
            start += length
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"
