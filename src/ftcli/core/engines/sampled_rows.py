"""Rows of the data that every engine is compared on, in every run."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ftcli.contracts import Encoded, Encoder
from ftcli.core.engines.backend import Backend
from ftcli.core.engines.guard import encode_checked, encode_named
from ftcli.core.engines.known_tokenizer import KnownTokenizer
from ftcli.core.engines.proof import Difference, differing_rows, reference_version, rows_with_pair, to_array
from ftcli.core.engines.reference import PythonEncoder, load_reference, row_of, with_affixes
from ftcli.core.files.cached_document import forget, kept
from ftcli.core.files.manifest import hash_bytes
from ftcli.errors import EngineError, TokenizerError

ROWS = 2_000
BYTES = 400_000
"""Costs about 0.2 s, once a run: `tokenizer(rows)` does 2.5 to 5 MB/s."""
KEPT = 32
"""Samples whose ids are kept, the last used: 300 kB each at most. To load Qwen3's reference takes 0.6 s of CPU, to encode a sample with it 0.03."""


class SampledRows:
    """Rows with the ids that `tokenizer(text)` itself gives.

    Args:
        texts: up to ROWS rows and about BYTES bytes of them are used.
        tokenizer: the tokenizer of the run.
        backend: what was prepared of it.
        special: whether the ids are those with special tokens.
        cache_dir: where the ids that a known tokenizer gives for these rows are kept, so that the next run on the same rows need not load it: the
            engine is compared with them in every run. None keeps nothing.
    """

    def __init__(self, texts: Sequence[str], tokenizer: object, backend: Backend, special: bool, cache_dir: Path | None = None) -> None:
        rows: list[str] = []
        size = 0
        for text in texts[:ROWS]:
            size += len(text.encode())
            if rows and size > BYTES:
                break
            rows.append(text)
        self.texts = to_array(rows)
        self.backend = backend
        self._tokenizer = tokenizer
        self._whole = special and not backend.constant
        self._affixes = (backend.prefix, backend.suffix, backend.ends) if special else ((), (), None)
        self._expected = self._ids(special, cache_dir)

    def _ids(self, special: bool, cache_dir: Path | None) -> Encoded:
        if cache_dir is None or not isinstance(self._tokenizer, KnownTokenizer):
            return self._encode(self.texts, special)
        lines = (self.backend.hash, reference_version(), str(special), *map(str, self.texts.to_pylist()))
        key = hash_bytes(b"".join(len(line.encode()).to_bytes(8) + line.encode() for line in lines))

        def compute() -> dict[str, Any]:
            encoded = self._encode(self.texts, special)
            return {"ids": b64encode(encoded.ids.tobytes()).decode(), "offsets": b64encode(encoded.offsets.tobytes()).decode()}

        found = kept(cache_dir / f"rows-{key}.json", compute)
        forget(cache_dir, "rows-*.json", KEPT)
        return Encoded(np.frombuffer(b64decode(found["ids"]), np.int32), np.frombuffer(b64decode(found["offsets"]), np.int64))

    def _encode(self, texts: pa.Array, special: bool) -> Encoded:
        random = self.backend.random
        encoder = load_reference(self.backend.json, "", 1, special) if random else PythonEncoder(self._tokenizer, special)
        try:
            return encode_named(encoder, texts, "the tokenizer itself")
        except EngineError as error:
            raise TokenizerError(
                error.message, error.hint or "Correct that row of the data or leave it out, or use another tokenizer."
            ) from error

    def difference(self, encoder: Encoder, name: str, excluded: str = "", doubled: int | None = None) -> tuple[int, Difference] | None:
        """The first row whose ids are not the tokenizer's, with its number; rows that go to the reference are passed over.

        Raises:
            EngineError: the engine failed, or the tokenizer puts something else around a row than the backend's prefix and suffix.
        """
        encoded = with_affixes(encode_checked(encoder, self.texts, name), *self._affixes)
        characters = set(excluded)
        pairs = None if doubled is None else rows_with_pair(encoded, doubled)
        for row in differing_rows(self._expected, encoded).tolist():
            self._check_affixes(row)
            text = self.texts[row].as_py()
            if characters.isdisjoint(text) and (pairs is None or not pairs[row]):
                return row, Difference(text, tuple(row_of(self._expected, row).tolist()), tuple(row_of(encoded, row).tolist()))
        return None

    def _check_affixes(self, row: int) -> None:
        if self._whole or self._affixes == ((), (), None):
            return
        plain = with_affixes(self._encode(self.texts.slice(row, 1), special=False), *self._affixes)
        if row_of(self._expected, row).tolist() != plain.ids.tolist():
            raise EngineError(
                f"the tokenizer adds different special tokens to row {row} of the data than to other texts: {self.texts[row].as_py()[:80]!r}",
                "Use --no-add-special-tokens, or a tokenizer whose post-processor adds a fixed prefix and suffix.",
            )

    def confirmed(self, threads: int) -> Backend:
        """The backend, without its JSON where the tokenizer's Python class gives other ids for these rows.

        Raises:
            EngineError: only the folder can be used, and it holds another tokenizer than the one in use.
        """
        note = "the tokenizer's Python class gives different ids from its backend, so the (slow) class encodes"
        for backend in (self.backend, replace(self.backend, json="", notes=(*self.backend.notes, note))):
            if self.difference(backend.reference(threads, self._whole), "the reference") is None:
                return backend
        raise EngineError(
            f"the tokenizer in use and the one in {self.backend.folder} give different ids for a row of the data",
            "Save the tokenizer with save_pretrained and give that folder.",
        )
