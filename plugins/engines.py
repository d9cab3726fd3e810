"""Tokenization engines: gigatoken, fastokens, splintr, and hf, the reference.

What a library raises while loading or encoding becomes an EngineError in `ftcli.core.engines.guard`, for these and for every other plugin's engine.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli import hookimpl
from ftcli.contracts import Encoded, Encoder, Engine
from ftcli.errors import EngineError, MissingExtraError
from ftcli.hookspecs import Register
from ftcli.versions import version as installed_version

if TYPE_CHECKING:
    import pyarrow as pa

_POST_PROCESSOR = '"post_processor":'


def _version(distribution: str) -> str:
    try:
        return installed_version(distribution)
    except PackageNotFoundError:
        return ""


def _without_post_processor(backend_json: str) -> str:
    """Engines add no special tokens; fastokens refuses RoBERTa's post-processor, and splintr's batches have no switch for it."""
    start = backend_json.index(_POST_PROCESSOR) + len(_POST_PROCESSOR)
    end = json.JSONDecoder().raw_decode(backend_json, start)[1]
    return f"{backend_json[:start]}null{backend_json[end:]}"


class HfEngine:
    """The `tokenizers` backend, or the Python class of a slow tokenizer: 2-4 MB/s a core."""

    name = "hf"
    rank = 100

    def __init__(self) -> None:
        self.version = _version("tokenizers")

    def load(self, backend_json: str, folder: Path, threads: int) -> Encoder:
        from ftcli.core.engines.reference import load_reference

        return load_reference(backend_json, folder, threads)


class _FlatEngine:
    """What the three fast libraries have in common."""

    name: str
    rank: int
    distribution: str

    def __init__(self) -> None:
        self.version = _version(self.distribution)

    def load(self, backend_json: str, folder: Path, threads: int) -> Encoder:
        if not self.version:
            raise MissingExtraError(f"{self.distribution} is not installed", f"Run: pip install {self.distribution}")
        if not backend_json:
            raise EngineError(f"{self.name} needs a fast tokenizer, {folder} holds a slow one", "Make one with: ftcli train-tokenizer")
        from ftcli.core.arrays import strings
        from ftcli.core.engines.guard import limited_pool

        with limited_pool(threads):
            encoder = self.build(_without_post_processor(backend_json), threads)
            encoder.encode(strings(["one", "two"]))
        return encoder

    def build(self, backend_json: str, threads: int) -> Encoder:
        raise AssertionError


class GigatokenEngine(_FlatEngine):
    """Byte-level and SentencePiece BPE, straight from Arrow buffers: 40-150 MB/s a core."""

    name = "gigatoken"
    rank = 10
    single_threaded = True
    distribution = "gigatoken"

    def build(self, backend_json: str, threads: int) -> Encoder:
        return _GigatokenEncoder(_gigatoken(backend_json), parallel=threads > 1)


@lru_cache(maxsize=1)
def _gigatoken(backend_json: str) -> Any:
    """The tokenizer, which any number of threads may share: loading it takes 0.3 s for Qwen3, and it is not always known at first how many there are."""
    from gigatoken import Tokenizer

    return Tokenizer.from_json(backend_json)


class _GigatokenEncoder:
    def __init__(self, tokenizer: Any, parallel: bool) -> None:
        self._tokenizer = tokenizer
        self._parallel = parallel

    def encode(self, texts: pa.Array) -> Encoded:
        import awkward as ak
        import numpy as np

        _, offsets, data = texts.buffers()
        starts = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        characters = ak.contents.NumpyArray(np.frombuffer(data or b"", np.uint8), parameters={"__array__": "char"})
        strings = ak.contents.ListOffsetArray(ak.index.Index64(starts), characters, parameters={"__array__": "string"})
        rows = self._tokenizer.encode_batch(ak.Array(strings), parallel=self._parallel).layout
        return Encoded(np.asarray(rows.content.data).view(np.int32), np.asarray(rows.offsets.data))


class FastokensEngine(_FlatEngine):
    """Byte-level BPE: 30-110 MB/s a core."""

    name = "fastokens"
    rank = 20
    distribution = "fastokens"

    def build(self, backend_json: str, threads: int) -> Encoder:
        from fastokens import Tokenizer

        return _FlatEncoder(Tokenizer.from_json_str(backend_json))


class SplintrEngine(_FlatEngine):
    """Also WordPiece and Unigram: 20-80 MB/s a core."""

    name = "splintr"
    rank = 30
    distribution = "splintr-rs"

    def build(self, backend_json: str, threads: int) -> Encoder:
        from splintr import from_json_bytes

        from ftcli.core.engines.unigram_scores import with_surviving_scores

        return _FlatEncoder(from_json_bytes(with_surviving_scores(backend_json).encode()))


class _FlatEncoder:
    """A library whose `encode_batch_flat` takes a list of strings and returns the bytes of uint32 ids and uint64 offsets."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, texts: pa.Array) -> Encoded:
        import numpy as np

        ids, offsets = self._tokenizer.encode_batch_flat(texts.to_pylist())
        return Encoded(np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.int64))


ENGINES: tuple[type[Engine], ...] = (GigatokenEngine, FastokensEngine, SplintrEngine, HfEngine)


@hookimpl
def register_engines(register: Register[object]) -> None:
    for engine in ENGINES:
        register(engine.name, engine)
