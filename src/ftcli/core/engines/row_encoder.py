"""The encoder that the pipeline uses: the chosen engine, and the reference where that is not proved or fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ftcli.contracts import Encoded, Encoder
from ftcli.core.arrays import flags
from ftcli.core.engines.auditor import audited
from ftcli.core.engines.backend import Backend
from ftcli.core.engines.character_search import CharacterSearch
from ftcli.core.engines.guard import encode_checked, encode_named, not_hung
from ftcli.core.engines.proof import reference_version, rows_with_pair
from ftcli.core.engines.reference import taken, with_affixes
from ftcli.core.figures import counted
from ftcli.core.ragged import to_offsets
from ftcli.errors import EngineError

REFERENCE = "hf"


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Everything a worker process needs to encode; picklable."""

    engine: str
    version: str
    backend: Backend
    excluded: str = ""
    """Texts with one of these characters go to the reference."""
    doubled: int | None = None
    """Texts for which the engine gives this id twice in a row go to the reference."""
    threads: int = 1
    add_special_tokens: bool = True
    audit: float = 0.0
    """Share of the texts that the reference encodes as well."""

    def by_reference(self) -> EncoderSpec:
        """The same ids from the reference."""
        return replace(self, engine=REFERENCE, version=reference_version().split()[1], excluded="")

    @property
    def whole(self) -> bool:
        """Whether `encode` gives rows with their special tokens, because no fixed prefix and suffix stand for them."""
        return self.add_special_tokens and not self.backend.constant

    @property
    def prefix(self) -> tuple[int, ...]:
        """Special tokens to put before the ids of `encode`."""
        return self.backend.prefix if self.add_special_tokens else ()

    @property
    def suffix(self) -> tuple[int, ...]:
        """Special tokens to put behind the ids of `encode`."""
        return self.backend.suffix if self.add_special_tokens else ()

    @property
    def ends(self) -> int | None:
        """EOS to put behind those ids of `encode` that do not end with it."""
        return self.backend.ends if self.add_special_tokens else None


class RowEncoder:
    """The encoder of one process: the chosen engine, and the reference for texts outside the proved characters.

    `rows_by_reference` counts the texts that went to the reference, `failures` says in words where the engine failed, `texts_audited`
    counts those that both encoded.

    Args:
        encoder: the engine; None: the reference encodes everything.
        whose: `comes_with` of the engine.
    """

    def __init__(self, spec: EncoderSpec, encoder: Encoder | None, whose: str = "") -> None:
        self.spec, self._whose = spec, whose
        self.rows_by_reference = 0
        self.texts_audited = 0
        self.failures: list[str] = []
        self._fast = encoder
        self._excluded = CharacterSearch(spec.excluded)

    @cached_property
    def _reference(self) -> Encoder:
        """Loaded when the first text needs it: 0.25 s and 150 MB for Qwen3."""
        return self.spec.backend.reference(self.spec.threads, self.spec.whole)

    def encode(self, texts: pa.Array) -> Encoded:
        """Ids of every text, in order; without special tokens unless `spec.whole`.

        Args:
            texts: string or large_string, UTF-8, no nulls.

        Raises:
            EngineError: the reference failed, or an audited text has other ids.
        """
        texts = texts.cast(pa.large_string())
        if self._fast is None:
            return self._by_reference(texts)
        marked = self._excluded.marked(texts)
        if marked is None:
            return self._by_engine(self._fast, texts)
        fast = self._by_engine(self._fast, texts.filter(flags(~marked)))
        return _interleave(marked, self._by_reference(texts.filter(flags(marked))), fast)

    def encode_whole(self, texts: pa.Array) -> Encoded:
        """Ids as `tokenizer(text)["input_ids"]` gives them."""
        return with_affixes(self.encode(texts), self.spec.prefix, self.spec.suffix, self.spec.ends)

    def _by_engine(self, encoder: Encoder, texts: pa.Array) -> Encoded:
        name = f"{self.spec.engine} {self.spec.version}"
        if self.spec.engine == REFERENCE:
            return encode_named(encoder, texts, "the tokenizer itself", self.spec.backend.id_limit)
        try:
            with not_hung(texts):
                encoded = encode_checked(encoder, texts, name, self.spec.backend.id_limit)
        except EngineError as error:
            self.failures.append(f"{error.message}{self._whose}; the reference encoded {counted(len(texts), 'text')} instead")
            return self._by_reference(texts)
        encoded = self._without_pairs(texts, encoded)
        if self.spec.audit:
            self.texts_audited += audited(texts, encoded, self._reference, f"{name}{self._whose}", self.spec.audit)
        return encoded

    def _without_pairs(self, texts: pa.Array, encoded: Encoded) -> Encoded:
        if self.spec.doubled is None:
            return encoded
        marked = rows_with_pair(encoded, self.spec.doubled)
        if not marked.any():
            return encoded
        return _interleave(marked, self._by_reference(texts.filter(flags(marked))), taken(encoded, np.flatnonzero(~marked)))

    def _by_reference(self, texts: pa.Array) -> Encoded:
        self.rows_by_reference += len(texts)
        return encode_named(self._reference, texts, "the reference tokenizer")


def _interleave(marked: np.ndarray[Any, np.dtype[np.bool_]], ones: Encoded, others: Encoded) -> Encoded:
    """Rows of `ones` where `marked`, rows of `others` elsewhere, each in order."""
    lengths = np.empty(len(marked), np.int64)
    lengths[marked] = np.diff(ones.offsets)
    lengths[~marked] = np.diff(others.offsets)
    of_ones = np.repeat(marked, lengths)
    ids = np.empty(len(of_ones), np.int32)
    ids[of_ones] = ones.ids
    ids[~of_ones] = others.ids
    return Encoded(ids, to_offsets(lengths))
