"""A tokenizer as engines get it: its serialised backend, what its post-processor adds, and its hash."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ftcli.core.arrays import strings
from ftcli.core.engines.guard import guarded
from ftcli.core.engines.reference import load_reference
from ftcli.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ftcli.contracts import Encoder

_PROBES = ("", "a", "Hello, world!", "안녕하세요 세계", "  two  spaces ", "한 1\n\n2")


@dataclass(frozen=True, slots=True)
class Backend:
    """One tokenizer, picklable."""

    sent_once: ClassVar = True
    """To a worker: see `ftcli.core.processes.child`."""
    folder: str
    json: str
    """tokenizer.json without truncation, padding and dropout; empty where only the tokenizer's Python class gives the right ids."""
    hash: str
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    constant: bool
    """Whether `prefix` and `suffix`, and `ends`, are all that is added to a text."""
    added_tokens: tuple[str, ...]
    id_limit: int
    """One more than the largest id."""
    random: bool
    """Whether the tokenizer itself draws lots (BPE dropout), so that ids are compared with `json` only."""
    notes: tuple[str, ...]
    revision: str | None = None
    """Of a hub id."""
    trust: bool = False
    """Whether the tokenizer's own Python code may run, where it is loaded again."""
    ends: int | None = None
    """EOS where the tokenizer's Python class adds it to texts that do not end with it already, as ByT5's does."""

    def reference(self, threads: int, add_special_tokens: bool) -> Encoder:
        """See `load_reference`."""
        return load_reference(self.json, self.folder, threads, add_special_tokens, self.revision, self.trust)


def prepare_backend(tokenizer: PreTrainedTokenizerBase, folder: Path | str, revision: str | None = None, trust: bool = False) -> Backend:
    """What engines need to know of a loaded tokenizer; `notes` names what was taken out of it, and why it may need its Python class."""
    added = tuple(sorted(tokenizer.get_added_vocab()))
    serialised, notes, random = _serialise(tokenizer)
    vocabulary = tokenizer.get_vocab()
    problem = _python_only(tokenizer) or _shared(tokenizer, vocabulary)
    special_tokens = tokenizer.all_special_tokens[:32]
    probes = [*_PROBES, *(probe for token in special_tokens for probe in (token, f"{token}a", f"a{token}", f"a {token} b"))]
    if serialised and random:
        kinds = [load_reference(serialised, folder, 1, special) for special in (False, True)]
        probes = _known(lambda texts: _ids(kinds[0], texts), probes)
        plain, whole = (_ids(kind, probes) for kind in kinds)
    else:
        options: dict[str, Any] = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
        with warnings.catch_warnings(action="ignore"):  # ByT5 warns of the special tokens that probes hold
            probes = _known(lambda texts: tokenizer(texts, add_special_tokens=True, **options), probes)
            plain, whole = (tokenizer(probes, add_special_tokens=special, **options)["input_ids"] for special in (False, True))
        if not problem and [encoding.ids for encoding in _live(tokenizer).encode_batch_fast(probes, add_special_tokens=False)] != plain:
            problem = f"{type(tokenizer).__name__} gives different ids from its own backend"
    affixes, ends = _affixes(plain, whole), None
    if affixes is None and (eos := tokenizer.eos_token_id) is not None and whole == [ended(row, eos) for row in plain]:
        affixes, ends = ((), ()), int(eos)
    if problem:
        notes.append(f"{problem}: only the reference engine hf can encode with it")
    if affixes is None:
        notes.append(
            "the post-processor adds more than a fixed prefix and suffix: the reference encodes whole rows, and truncation may cut these tokens"
        )
    prefix, suffix = affixes or ((), ())
    return Backend(
        folder=str(folder),
        json="" if problem else serialised,
        hash=_hash(tokenizer, folder, serialised),
        prefix=prefix,
        suffix=suffix,
        constant=affixes is not None,
        added_tokens=added,
        id_limit=max(vocabulary.values(), default=0) + 1,
        random=random,
        notes=tuple(notes),
        revision=revision,
        trust=trust,
        ends=ends,
    )


def _known(encode: Callable[[list[str]], object], probes: list[str]) -> list[str]:
    """Those that can be encoded: a tokenizer without an unknown token refuses what its vocabulary lacks."""
    try:
        with guarded("the tokenizer"):
            encode(probes)
    except EngineError:
        if len(probes) == 1:
            return []
        middle = len(probes) // 2
        return [*_known(encode, probes[:middle]), *_known(encode, probes[middle:])]
    return probes


def ended(ids: Sequence[int], eos: int) -> list[int]:
    """The ids, which end with EOS."""
    return [*ids] if ids and ids[-1] == eos else [*ids, eos]


_ENCODING = ("__call__", "_encode_plus", "_convert_encoding", "set_truncation_and_padding", "backend_tokenizer")


def encodes_alone(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the backend alone makes the ids: the tokenizer's class changes no method of transformers that takes part in it."""
    from transformers import PreTrainedTokenizerFast

    own = type(tokenizer)
    return issubclass(own, PreTrainedTokenizerFast) and all(
        getattr(own, name) is getattr(PreTrainedTokenizerFast, name) and name not in vars(tokenizer) for name in _ENCODING
    )


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase, folder: Path | str) -> str:
    """sha256 over everything that decides ids or templates: backend or vocabulary files, added and special tokens, chat template."""
    return _hash(tokenizer, folder, _serialise(tokenizer)[0])


def _hash(tokenizer: PreTrainedTokenizerBase, folder: Path | str, serialised: str) -> str:
    state: dict[str, Any] = {
        "class": type(tokenizer).__name__,
        "special_tokens": {name: str(token) for name, token in sorted(tokenizer.special_tokens_map.items())},
        "added_tokens": {str(index): str(token.__getstate__()) for index, token in sorted(tokenizer.added_tokens_decoder.items())},
        "split_special_tokens": bool(getattr(tokenizer, "split_special_tokens", False)),
        "chat_template": tokenizer.chat_template,
        "backend": hashlib.sha256(serialised.encode()).hexdigest(),
    }
    if not tokenizer.is_fast:
        names = {*tokenizer.vocab_files_names.values(), "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}
        files = sorted(path for path in Path(folder).glob("*") if path.name in names or path.suffix == ".py")
        state["files"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        if not files:  # a hub id
            state["vocabulary"] = hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _live(tokenizer: PreTrainedTokenizerBase) -> Any:
    return tokenizer.backend_tokenizer if tokenizer.is_fast else None


def _python_only(tokenizer: PreTrainedTokenizerBase) -> str:
    """Why the backend cannot stand for the tokenizer; empty when it can."""
    if not tokenizer.is_fast:
        return f"{type(tokenizer).__name__} is a slow tokenizer without a backend (`ftcli train-tokenizer` makes a fast one)"
    if tokenizer.split_special_tokens:
        return "split_special_tokens is set, which the serialised backend does not store"
    return ""


def _shared(tokenizer: PreTrainedTokenizerBase, vocabulary: dict[str, int]) -> str:
    """Why a backend cannot be serialised of which several tokens have one id; empty when none have. An added token may share one."""
    if len(set(vocabulary.values())) == len(vocabulary):
        return ""
    own = _live(tokenizer).get_vocab(with_added_tokens=False)
    twice = len(own) - len(set(own.values()))
    return f"{twice:,} tokens have the id of another one, and the serialised backend stores one token an id" if twice else ""


def _serialise(tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[str], bool]:
    """tokenizer.json of the live backend, what was taken out of it in words, and whether it draws lots; "" for a slow tokenizer."""
    backend = _live(tokenizer)
    if backend is None:
        return "", [], False
    dropout = getattr(backend.model, "dropout", None)
    notes = []
    if backend.truncation is not None:
        notes.append(f"the tokenizer's own truncation ({backend.truncation['max_length']} tokens) is ignored: packing.max_length decides")
    if backend.padding is not None:
        notes.append("the tokenizer's own padding is ignored: the collator pads")
    if dropout:
        notes.append(f"the tokenizer's BPE dropout ({dropout}) is turned off: prepared ids must not be random")
    with stripped(backend, dropout):
        return str(backend.to_str()), notes, bool(dropout)


def strip(tokenizer: PreTrainedTokenizerBase) -> None:
    """Take truncation, padding and dropout out of a tokenizer for good: it is to give the ids of whole texts, the same every time."""
    if (backend := _live(tokenizer)) is not None:
        backend.no_truncation()
        backend.no_padding()
        if getattr(backend.model, "dropout", None):
            backend.model.dropout = None


@contextmanager
def stripped(backend: Any, dropout: float | None = None) -> Iterator[None]:
    """The backend without truncation, padding and dropout, put back at the end. Parsing its JSON again would take 0.25 s for Qwen3."""
    truncation, padding = backend.truncation, backend.padding
    backend.no_truncation()
    backend.no_padding()
    if dropout:
        backend.model.dropout = None
    try:
        yield
    finally:
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)
        if dropout:
            backend.model.dropout = dropout


def _ids(encoder: Any, texts: Sequence[str]) -> list[list[int]]:
    encoded = encoder.encode(strings(texts))
    return [encoded.ids[start:stop].tolist() for start, stop in zip(encoded.offsets, encoded.offsets[1:], strict=False)]


def _affixes(plain: Sequence[Sequence[int]], whole: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The ids that the post-processor puts before and behind every text, or None where no such pair explains all probes."""
    extra = whole[0][:]  # the first probe is the empty text
    for cut in range(len(extra) + 1):
        prefix, suffix = list(extra[:cut]), list(extra[cut:])
        if all([*prefix, *inner, *suffix] == list(outer) for inner, outer in zip(plain, whole, strict=True)):
            return tuple(prefix), tuple(suffix)
    return None
