"""The identity proof: an engine's ids against the reference's over Unicode, adversarial texts and rows of the data."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ftcli.contracts import Encoded, Encoder
from ftcli.core import arrays
from ftcli.core.engines.adversarial import Run, corpus_version, sweep, texts
from ftcli.core.engines.backend import Backend
from ftcli.core.engines.guard import encode_checked, encode_named
from ftcli.core.engines.reference import BackendEncoder
from ftcli.core.files.durable import put, writing
from ftcli.errors import PublishError
from ftcli.versions import version

EXCLUDED_LIMIT = 8_192
"""Characters that may go to the reference; an engine that is wrong on more is refused. splintr 0.22.0 is wrong on 618 with
bert-base-uncased, gigatoken 0.10.0 on 4,748 with Qwen3 (letters newer than its tables, ideograph extension J among them)."""

BLAMED_LIMIT = 500
"""Of them, those that differ beside others only: each is found by itself, in 5 ms of CPU. The engines that are exact with the data's tokenizers have none."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A text, cut as short as it still shows the difference, with the ids of both sides."""

    text: str
    reference: tuple[int, ...]
    engine: tuple[int, ...]

    def words(self) -> str:
        text = repr(self.text) if len(self.text) <= 120 else f"{self.text[:100]!r}… ({len(self.text):,} characters)"
        pairs = enumerate(zip(self.reference, self.engine, strict=False))
        start = max(0, next((place for place, (one, other) in pairs if one != other), len(self.reference)) - 4)
        where = f" from id {start}" if start else ""
        return f"{text}: reference {list(self.reference[start : start + 12])}, engine {list(self.engine[start : start + 12])}{where}"


@dataclass(frozen=True, slots=True)
class Proof:
    """What one engine was proved on for one tokenizer; JSON by `dataclasses.asdict`."""

    tokenizer: str
    engine: str
    version: str
    reference: str
    corpus: str
    strings: int
    bytes: int
    excluded: str
    """Characters on which the engine differs; texts that hold one must go to the reference."""
    doubled: int | None
    """An id that the reference joins to one where the engine gives two in a row; texts with such a pair must go to the reference."""
    difference: Difference | None
    """Why the engine is refused; None when it passed."""
    seconds: float
    """CPU seconds of the proof (the reference's share included for the first engine)."""


class Reference:
    """The corpus for one tokenizer and its own ids over it, made once for all engines that are tried."""

    def __init__(self, tokenizer: Any, backend: Backend, threads: int) -> None:
        self.backend = backend
        self._tokenizer = tokenizer
        self._threads = threads

    @cached_property
    def encoder(self) -> BackendEncoder:
        """The tokenizer's live backend, so that what its serialised form loses shows; not where it draws lots."""
        return BackendEncoder(self.backend.json if self.backend.random else self._tokenizer.backend_tokenizer, self._threads)

    @cached_property
    def runs(self) -> list[Run]:
        return sweep(unknown=len(self._encode(["\U00040000"])[1].ids) < len("\U00040000".encode()))

    @property
    def unknown(self) -> int | None:
        """The id of what the vocabulary does not hold."""
        unknown: int | None = self._tokenizer.unk_token_id
        return unknown

    @cached_property
    def swept(self) -> tuple[pa.Array, Encoded]:
        return self._encode([run.text for run in self.runs])

    @cached_property
    def texts(self) -> tuple[pa.Array, Encoded]:
        backend = self.encoder.backend
        vocabulary = backend.decode_batch([[index] for index in range(backend.get_vocab_size())], skip_special_tokens=False)
        return self._encode(texts(self.backend.added_tokens, vocabulary))

    def _encode(self, strings: list[str]) -> tuple[pa.Array, Encoded]:
        array = to_array(strings)
        return array, encode_checked(self.encoder, array, "the reference tokenizer")


def to_array(strings: Sequence[str]) -> pa.Array:
    return arrays.strings(strings)


def prove(encoder: Encoder, engine: str, engine_version: str, reference: Reference) -> Proof:
    """Compare an engine with the reference over the stored corpus.

    Raises:
        EngineError: the engine raised or panicked; names the text.
    """
    return _Trial(encoder, f"{engine} {engine_version}", reference).proof(engine, engine_version)


def shrink(encoder: Encoder, name: str, reference: Reference, text: str) -> Difference | None:
    """The difference on a text, on as little of it as shows it; None when there is none."""
    trial = _Trial(encoder, name, reference)
    return trial.difference(text) if trial.wrong(text) else None


class _Trial:
    """One engine against the reference."""

    def __init__(self, encoder: Encoder, name: str, reference: Reference) -> None:
        self._engine = encoder
        self._name = name
        self._reference = reference
        self._excluded: set[str] = set()
        self._blamed = 0
        self._doubled: int | None = None

    def proof(self, engine: str, engine_version: str) -> Proof:
        clock = time.process_time()
        difference = self._sweep() or self._texts()
        sizes = [self._reference.swept[0], self._reference.texts[0]]
        return Proof(
            tokenizer=self._reference.backend.hash,
            engine=engine,
            version=engine_version,
            reference=reference_version(),
            corpus=corpus_version(),
            strings=sum(len(array) for array in sizes),
            bytes=sum(array.nbytes - 8 * len(array) for array in sizes),
            excluded="".join(sorted(self._excluded)),
            doubled=self._doubled,
            difference=difference,
            seconds=round(time.process_time() - clock, 3),
        )

    def _sweep(self) -> Difference | None:
        """Fill `_excluded`; the difference when the engine is wrong on too many characters."""
        array, expected = self._reference.swept
        wrong = [self._reference.runs[row] for row in self._differing(array, expected)]
        singles = [Run(run.context, character) for run in wrong for character in run.characters]
        fewest = max(Counter(run.context for run in wrong).values(), default=0)  # runs of one context share no character
        if fewest <= EXCLUDED_LIMIT:
            for start in range(0, len(singles), 2 * EXCLUDED_LIMIT):
                if len(self._excluded) > EXCLUDED_LIMIT:
                    break
                part = singles[start : start + 2 * EXCLUDED_LIMIT]
                self._exclude(part[row].characters for row in self._differing_runs(part))
            for run in (self._without_excluded(run) for run in wrong if not self._too_many()):
                if self._blame(run):
                    return self.difference(Run(run.context, "").text)
        if fewest > EXCLUDED_LIMIT or self._too_many():
            return self.difference(next(run.text for run in (*singles[: len(wrong[0].characters)], *wrong) if self.wrong(run.text)))
        return None

    def _texts(self) -> Difference | None:
        array, expected = self._reference.texts
        encoded = self._encode(array)
        unknown = self._reference.unknown
        pairs = set() if unknown is None else set(np.flatnonzero(rows_with_pair(encoded, unknown)).tolist())
        for row in differing_rows(expected, encoded).tolist():
            text = array[row].as_py()
            if not self._excluded.isdisjoint(text):
                continue
            if row not in pairs:
                return self.difference(text)
            self._doubled = unknown
        return None

    def difference(self, text: str) -> Difference:
        """The shortest prefix of `text` that differs, then the shortest suffix of that."""
        text = text[: _edge(len(text), lambda size: self.wrong(text[:size]))]
        text = text[len(text) - _edge(len(text), lambda size: self.wrong(text[len(text) - size :])) :]
        array = to_array([text])
        return Difference(text, tuple(self._reference.encoder.encode(array).ids.tolist()), tuple(self._encode(array).ids.tolist()))

    def _blame(self, run: Run) -> bool:
        """Exclude characters until the rest of the run agrees: the last one of a prefix that differs while the one before it does not. True: none is to
        blame, because what stands around them differs alone."""
        while self.wrong(run.text) and not self._too_many():
            if self.wrong(Run(run.context, "").text):
                return True
            place = _edge(len(run.characters), partial(self._prefix_wrong, run))
            self._exclude(run.characters[place - 1])
            self._blamed += 1
            run = self._without_excluded(run)
        return False

    def _too_many(self) -> bool:
        return len(self._excluded) > EXCLUDED_LIMIT or self._blamed > BLAMED_LIMIT

    def _prefix_wrong(self, run: Run, size: int) -> bool:
        return self.wrong(Run(run.context, run.characters[:size]).text)

    def _without_excluded(self, run: Run) -> Run:
        return Run(run.context, "".join(character for character in run.characters if character not in self._excluded))

    def _exclude(self, characters: Iterable[str]) -> None:
        self._excluded.update(characters)

    def _differing_runs(self, runs: Sequence[Run]) -> NDArray[np.int64]:
        array = to_array([run.text for run in runs])
        return self._differing(array, self._reference.encoder.encode(array))

    def wrong(self, text: str) -> bool:
        array = to_array([text])
        return len(self._differing(array, self._reference.encoder.encode(array))) > 0

    def _differing(self, array: pa.Array, expected: Encoded) -> NDArray[np.int64]:
        return differing_rows(expected, self._encode(array))

    def _encode(self, array: pa.Array) -> Encoded:
        return encode_named(self._engine, array, self._name)


def _edge(size: int, wrong: Callable[[int], bool]) -> int:
    """A size n with wrong(n) and not wrong(n - 1), by halving; `wrong(size)` holds, and nothing of nothing is taken to be right."""
    right = 0
    while size - right > 1:
        middle = (right + size) // 2
        if wrong(middle):
            size = middle
        else:
            right = middle
    return size


def differing_rows(one: Encoded, other: Encoded) -> NDArray[np.int64]:
    """Numbers of the rows whose ids differ; both have the same number of rows."""
    lengths = np.diff(one.offsets)
    unequal = lengths != np.diff(other.offsets)
    ids, others, kept = one.ids, other.ids, np.flatnonzero(~unequal)
    if unequal.any():
        ids = ids[np.repeat(~unequal, lengths)]
        others = others[np.repeat(~unequal, np.diff(other.offsets))]
    places = np.flatnonzero(ids != others)
    ends = np.cumsum(lengths[kept])
    return np.union1d(np.flatnonzero(unequal), kept[np.searchsorted(ends, places, side="right")])


def rows_with_pair(encoded: Encoded, token: int) -> NDArray[np.bool_]:
    """Which rows hold the token twice in a row."""
    places = np.flatnonzero((encoded.ids[1:] == token) & (encoded.ids[:-1] == token))
    rows = np.searchsorted(encoded.offsets, places, side="right") - 1
    found = np.zeros(len(encoded.offsets) - 1, np.bool_)
    found[rows[places + 1 < encoded.offsets[rows + 1]]] = True
    return found


def reference_version() -> str:
    return f"tokenizers {version('tokenizers')}"


def stored_proof(cache_dir: Path | None, backend: Backend, engine: str, engine_version: str, mark: str = "") -> Proof | None:
    """The proof of an earlier run over the same tokenizer, engine, reference and corpus; None when there is none (or it cannot be read).

    Args:
        mark: what tells two engines of one name and version apart: the hash of a plugin, whose author may forget to raise the version.
    """
    path = _path(cache_dir, backend, engine, engine_version, mark)
    if path is None:
        return None
    try:
        document: Mapping[str, Any] = json.loads(path.read_bytes())
        difference = document["difference"]
        return Proof(**{**document, "difference": Difference(**difference) if difference else None})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def store_proof(cache_dir: Path | None, backend: Backend, proof: Proof, mark: str = "") -> str:
    """Keep a proof; the words for what kept it from being kept, or ""."""
    path = _path(cache_dir, backend, proof.engine, proof.version, mark)
    if path is None:
        return ""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        put(json.dumps(asdict(proof)).encode(), temporary, path)
    except PublishError as error:
        with suppress(OSError):
            temporary.unlink()
        return f"the proof of {proof.engine} is not kept for the next run: {error.message}"
    return ""


def _path(cache_dir: Path | None, backend: Backend, engine: str, engine_version: str, mark: str) -> Path | None:
    if cache_dir is None:
        return None
    key = "-".join(
        (backend.hash[:16], engine, engine_version, *filter(None, (mark,)), reference_version().replace(" ", "-"), corpus_version())
    )
    return cache_dir / f"proof-{key}.json"
