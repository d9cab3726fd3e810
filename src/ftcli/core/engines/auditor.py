"""The audit: some of the texts of a run are encoded by the reference as well, while it goes on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ftcli.contracts import Encoded, Encoder
from ftcli.core.arrays import numbers
from ftcli.core.engines.guard import encode_checked
from ftcli.core.engines.proof import Difference, differing_rows
from ftcli.core.engines.reference import row_of, taken
from ftcli.errors import EngineError

SEED = 20_260_801


def audited(texts: pa.Array, encoded: Encoded, reference: Encoder, name: str, share: float) -> int:
    """Compare a sample of the texts with the reference; how many these were.

    Args:
        texts: large_string.
        encoded: what the engine `name` made of the texts.
        share: of all texts, 0 … 1; a text is taken by its hash, so that batches, workers and resumed runs take the same.

    Raises:
        EngineError: the ids of a text differ; names the text and both ids.
    """
    rows = sampled(texts, share)
    if not len(rows):
        return 0
    chosen = texts.take(numbers(rows))
    expected = encode_checked(reference, chosen, "the reference tokenizer")
    given = taken(encoded, rows)
    wrong = differing_rows(expected, given)
    if len(wrong):
        row = int(wrong[0])
        ids = (tuple(row_of(side, row).tolist()) for side in (expected, given))
        raise EngineError(
            f"the audit found that {name} differs from the reference on {Difference(chosen[row].as_py(), *ids).words()}",
            "Nothing was published. Run it again with --tokenizer-engine hf, and please report the text.",
        )
    return len(rows)


def sampled(texts: pa.Array, share: float) -> NDArray[np.int64]:
    """Rows whose text's hash lies in the first `share` of all hashes."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1].tolist()
    view = memoryview(data or b"")
    limit = share * 2.0**64
    return np.array([row for row in range(len(texts)) if xxhash.xxh3_64_intdigest(view[ends[row] : ends[row + 1]], SEED) < limit], np.int64)
