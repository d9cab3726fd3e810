"""The reference: ids as the Hugging Face tokenizer gives them. Every engine is compared with it; `hf` is it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ftcli.contracts import Encoded, Encoder
from ftcli.core.arrays import values
from ftcli.core.engines.guard import guarded, limited_pool
from ftcli.core.engines.unigram_scores import restore
from ftcli.core.ragged import Ids, append_where, lacking, surround, take_ranges, to_offsets
from ftcli.errors import EngineError, TokenizerError

CHUNK_BYTES = 1_000_000
"""Text encoded at a time: an `Encoding` takes about 100 bytes a token, so a chunk stays under 100 MB."""


def to_encoded(rows: Sequence[Sequence[int]]) -> Encoded:
    """Lists of ids as one `Encoded`."""
    offsets = to_offsets(np.fromiter(map(len, rows), np.int64, len(rows)))
    return Encoded(np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets)


def join(parts: Iterable[Encoded]) -> Encoded:
    """The rows of all parts, in order."""
    parts = list(parts)
    lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(part.offsets) for part in parts)])
    return Encoded(np.concatenate([np.zeros(0, np.int32), *(part.ids for part in parts)]), to_offsets(lengths))


def row_of(encoded: Encoded, row: int) -> Ids:
    return encoded.ids[encoded.offsets[row] : encoded.offsets[row + 1]]


def taken(encoded: Encoded, rows: NDArray[np.int64]) -> Encoded:
    """Some of the rows."""
    lengths = np.diff(encoded.offsets)[rows]
    return Encoded(take_ranges(encoded.ids, encoded.offsets[rows], lengths), to_offsets(lengths))


def with_affixes(encoded: Encoded, prefix: Sequence[int], suffix: Sequence[int], eos: int | None = None) -> Encoded:
    """Every row with `prefix` before and `suffix` behind it, and with `eos` at its end if it has another one."""
    ids, lengths = surround(encoded.ids, np.diff(encoded.offsets), np.array(prefix, np.int32), np.array(suffix, np.int32))
    if eos is not None:
        ids, lengths = append_where(ids, lengths, lacking(ids, lengths, eos), eos)
    return Encoded(ids, to_offsets(lengths))


class BackendEncoder:
    """A `tokenizers` backend: a serialised one, or a live one whose truncation and padding are off."""

    def __init__(self, backend: str | Tokenizer, threads: int, add_special_tokens: bool = False) -> None:
        with limited_pool(threads):
            self.backend: Any = restore(backend) if isinstance(backend, str) else backend
            # One without an unknown token may know neither letter; the pool is there then, too.
            with suppress(EngineError), guarded("the tokenizer"):
                self.backend.encode_batch_fast(["a", "b"])
        self._special = add_special_tokens

    def encode(self, texts: pa.Array) -> Encoded:
        return join(self._chunk(chunk) for chunk in _chunks(texts))

    def _chunk(self, rows: list[str]) -> Encoded:
        encodings = self.backend.encode_batch_fast(rows, add_special_tokens=self._special)
        return to_encoded([encoding.ids for encoding in encodings])


class PythonEncoder:
    """A loaded Hugging Face tokenizer, called as users call it."""

    def __init__(self, tokenizer: Any, add_special_tokens: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = add_special_tokens

    def encode(self, texts: pa.Array) -> Encoded:
        return join(self._chunk(chunk) for chunk in _chunks(texts))

    def _chunk(self, rows: list[str]) -> Encoded:
        options = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # ByT5's, of a text that ends with EOS
            return to_encoded(self._tokenizer(rows, add_special_tokens=self._special, **options)["input_ids"])


def load_reference(
    backend_json: str, folder: Path | str, threads: int, add_special_tokens: bool = False, revision: str | None = None, trust: bool = False
) -> Encoder:
    """The reference encoder; from `folder` (or hub id, at a revision) where the tokenizer has no (exact) backend.

    Args:
        trust: the tokenizer's own Python code may run. Without, transformers is told so, else it would ask whoever sits there.

    Raises:
        TokenizerError: the folder cannot be loaded.
    """
    if backend_json:
        return BackendEncoder(backend_json, threads, add_special_tokens)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), revision=revision, trust_remote_code=trust)
    except Exception as error:
        hint = "Give a folder that AutoTokenizer.from_pretrained loads."
        raise TokenizerError(f"the tokenizer {folder} cannot be loaded: {error}", hint) from error
    return PythonEncoder(tokenizer, add_special_tokens)


def _chunks(texts: pa.Array) -> Iterator[list[str]]:
    """Rows in order, about CHUNK_BYTES at a time."""
    ends = np.cumsum(values(pc.binary_length(texts)))
    start = 0
    while start < len(texts):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + CHUNK_BYTES, side="right")))
        stop = min(stop, 2 * start + 1)  # a regex that gives up does so after 0.2 s: not in every row of a chunk before anybody hears of it
        yield texts.slice(start, stop - start).to_pylist()
        start = stop
