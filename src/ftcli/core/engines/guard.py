"""Calls into tokenizer libraries: whatever they raise becomes an `EngineError`, whatever they return is checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ftcli.contracts import Encoded, Encoder
from ftcli.core.alarm import within
from ftcli.errors import EngineError, FtcliError

if TYPE_CHECKING:
    from ftcli.pluginmanager import Plugins

_POOLS = ("RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS")
HUNG_SECONDS, HUNG_BYTES = 300.0, 20_000
"""An engine hangs where a batch takes 300 s and 1 s for every 20,000 bytes: 8.5 minutes of 4 MB. The slowest of 4 MB, one word of random letters,
took gigatoken 8 s with Mistral's tokenizer (one core of an AMD EPYC)."""

NO_UNKNOWN = (
    "The tokenizer has no unknown token, and its vocabulary lacks something in this text: name one in tokenizer.json "
    "(unk_token of WordLevel and WordPiece, unk_id of Unigram), or use another tokenizer."
)
"""What to do where the `tokenizers` library says that a model has none."""
FORM = "ftcli.contracts.Encoded says what an engine returns; docs/hooks.md has a small one."
"""What to do where it returns something else, whatever the texts."""


def comes_with(name: str, plugins: Plugins) -> str:
    """Behind what an engine failed with: whose it is. "" of ftcli's own."""
    owner = plugins.outsider("engine", name)
    return f" (the engine {name} comes with plugin {owner!r})" if owner else ""


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Turn any exception of a library into an EngineError that begins with `what`.

    A Rust panic is a BaseException, not an Exception. A MemoryError counts too: the reference takes a batch in small pieces.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, FtcliError):
        raise
    except BaseException as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise EngineError(f"{what}: {type(error).__name__}: {reason[:300]}") from error


def encode_checked(encoder: Encoder, texts: pa.Array, name: str, id_limit: int = 2**31) -> Encoded:
    """`encoder.encode(texts)`.

    Raises:
        EngineError: it raised, panicked, or returned something that is not one range of ids in 0 … id_limit - 1 a text.
    """
    with guarded(f"{name} failed while encoding"):
        encoded = encoder.encode(texts)
    if other := _other(encoded):
        raise EngineError(f"{name} returned {other}", FORM)
    ids, offsets = encoded.ids, encoded.offsets
    typed = ids.dtype == np.int32 and offsets.dtype == np.int64 and ids.ndim == offsets.ndim == 1
    fits = typed and len(offsets) == len(texts) + 1 and offsets[0] == 0 and offsets[-1] == len(ids)
    sound = fits and bool((np.diff(offsets) >= 0).all())
    largest = int(ids.view(np.uint32).max(initial=0)) if sound else 0  # a negative id becomes a large one
    if not typed:
        raise EngineError(f"{name} returned ids of {ids.dtype}{list(ids.shape)} and offsets of {offsets.dtype}{list(offsets.shape)}", FORM)
    if not sound:
        raise EngineError(f"{name} returned {len(offsets) - 1} rows and {len(ids)} ids that do not fit {len(texts)} texts")
    if largest >= id_limit:
        raise EngineError(f"{name} returned the id {np.uint32(largest).view(np.int32)}, which is not in 0 … {id_limit - 1}")
    return encoded


def _other(encoded: object) -> str | None:
    """What it is in words, where it is nothing like an `Encoded`."""
    if not hasattr(encoded, "ids") or not hasattr(encoded, "offsets"):
        return f"{type(encoded).__name__}, not Encoded"
    odd = next((part for part in ("ids", "offsets") if not isinstance(getattr(encoded, part), np.ndarray)), None)
    return odd and f"{odd} as {type(getattr(encoded, odd)).__name__}, not as an array"


def encode_named(encoder: Encoder, texts: pa.Array, name: str, id_limit: int = 2**31) -> Encoded:
    """As `encode_checked`; an error that has to do with one of the texts names it, found by halving."""
    try:
        return encode_checked(encoder, texts, name, id_limit)
    except EngineError as error:
        if error.hint == FORM:
            raise
        while len(texts) > 1:
            half = texts.slice(0, len(texts) // 2)
            try:
                encode_checked(encoder, half, name, id_limit)
                texts = texts.slice(len(half))
            except EngineError:
                texts = half
        hint = NO_UNKNOWN if any(words in error.message for words in ("Missing [UNK] token", "`unk_id` is missing")) else error.hint
        raise EngineError(f"{error.message}; on the text {str(texts[0])[:200]!r}", hint) from error


@contextmanager
def not_hung(texts: pa.Array) -> Iterator[None]:
    """An engine that hangs over these texts inside of the block ends its worker, which costs the shard a rescue; see `ftcli.core.alarm`."""
    with within(HUNG_SECONDS + texts.nbytes / HUNG_BYTES):
        yield


@contextmanager
def limited_pool(threads: int) -> Iterator[None]:
    """Let a Rust library that starts its thread pool inside take `threads` threads. The first batch starts the pool, which then stays."""
    before = {name: os.environ.get(name) for name in _POOLS}
    os.environ.update(dict.fromkeys(_POOLS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
