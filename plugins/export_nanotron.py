"""The tokenized files of datatrove, which nanotron trains on: one `.ds` a split, with its index.

`00000_unshuffled.ds` holds the tokens, uint16 or uint32 little-endian; `.ds.index` the end of every text in tokens, uint64; `.ds.loss` one
byte a token, 1 where it is learned; `.ds.metadata` the tokenizer and width of a token, the number of tokens, and the same for people.
Source: datatrove 0.10, pipeline/tokens/tokenizer.py (writer) and utils/dataset.py (reader).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ftcli.contracts_export import ExportJob

if TYPE_CHECKING:
    from ftcli.core.storage.store import Store

FILE = "00000_unshuffled.ds"
MOST_SHORT = 65_536
"""Vocabularies up to this are stored in two bytes a token, as datatrove does; nanotron expects it."""
PREFIXES = ("", "k", "M", "G", "T", "P")


class Nanotron:
    """A folder a split, for `dataset_folder` of nanotron or `DatatroveFolderDataset`."""

    name = "nanotron"

    def export(self, store: Store, output: Path, job: ExportJob) -> Iterable[Path]:
        """See `ftcli.contracts_export.Exporter`."""
        import numpy as np

        from ftcli.core.convert.tokenfile import batches, narrowed, refuse_labels, texts, vocabulary

        refuse_labels(store, job, self.name, tokens_too=True)
        size = vocabulary(store)
        width = 2 if size is not None and size <= MOST_SHORT else 4
        for split in job.splits:
            (output / split).mkdir()
            tokens = output / split / FILE
            index, loss = tokens.with_name(f"{FILE}.index"), tokens.with_name(f"{FILE}.loss")
            learned = store.split(split).targeted and not job.tokens_only
            with ExitStack() as files:
                out, ends_out = files.enter_context(tokens.open("wb")), files.enter_context(index.open("wb"))
                loss_out = files.enter_context(loss.open("wb")) if learned else None
                end = 0
                for rows in batches(store, split, job):
                    narrowed(rows, f"u{width}", split).tofile(out)
                    ends = end + np.cumsum(texts(rows))
                    ends_out.write(ends.astype("<u8").tobytes())
                    end = int(ends[-1]) if len(ends) else end
                    if loss_out is not None and rows.targets is not None:
                        loss_out.write((rows.targets.values != -100).tobytes())
            metadata = tokens.with_name(f"{FILE}.metadata")
            metadata.write_text(f"{store.manifest['tokenizer']['path']}|{width}\n{end}\n{_for_people(end)}", encoding="utf-8")
            yield from (tokens, index, *([loss] if learned else []), metadata)


def _for_people(tokens: int) -> str:
    """1234 as "1.23 kT": three digits, a prefix for every thousand."""
    exponent = math.floor(math.log10(tokens)) if tokens else 0
    thousands = min(exponent // 3, len(PREFIXES) - 1)
    return f"{tokens / 1000**thousands:.{max(0, 2 - exponent % 3)}f} {PREFIXES[thousands]}T"
