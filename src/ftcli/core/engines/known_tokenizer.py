"""What an earlier run learned of a tokenizer, kept so that this run need not load it: transformers and torch take 2.5 s of CPU.

Kept is what tokenizing asks of a tokenizer: its serialised backend and a few figures. The key covers whatever decides them (bytes of all
files of the folder, plugins, ftcli's source, versions of the libraries: `ftcli.core.reading.receipt`), so a change of any of them loads it anew.
Nothing is kept of a tokenizer whose Python class takes part in encoding, or that draws lots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.core.engines.backend import Backend, encodes_alone, strip
from ftcli.core.engines.reference import BackendEncoder
from ftcli.core.files.cached_document import forget, used
from ftcli.core.files.durable import put, writing
from ftcli.core.files.manifest import hash_bytes
from ftcli.errors import PublishError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEPT = 8
"""Tokenizers kept, the last used: 11 MB for Qwen3."""
ASKED = ("model_max_length", "eos_token", "eos_token_id", "unk_token", "unk_token_id", "all_special_tokens", "all_special_ids")


class KnownTokenizer:
    """Stands for a tokenizer in `prepare`: gives its ids and figures without transformers.

    Args:
        figures: `ASKED` and "size".
        load: loads the tokenizer itself, for whoever needs its live backend (a proof).
    """

    is_fast = True

    def __init__(self, backend: Backend, figures: Mapping[str, Any], load: Callable[[], PreTrainedTokenizerBase]) -> None:
        self.backend = backend
        self.model_max_length: int = figures["model_max_length"]
        self.eos_token: str | None = figures["eos_token"]
        self.eos_token_id: int | None = figures["eos_token_id"]
        self.unk_token: str | None = figures["unk_token"]
        self.unk_token_id: int | None = figures["unk_token_id"]
        self.all_special_tokens: list[str] = figures["all_special_tokens"]
        self.all_special_ids: list[int] = figures["all_special_ids"]
        self._size: int = figures["size"]
        self.load = load

    def __len__(self) -> int:
        return self._size

    @cached_property
    def backend_tokenizer(self) -> Any:
        """The live one, which may cut and pad as its file says: a proof must see what the serialised form loses, and whole texts."""
        tokenizer = self.load()
        strip(tokenizer)
        return tokenizer.backend_tokenizer

    @cached_property
    def _plain(self) -> Any:
        return BackendEncoder(self.backend.json, 1).backend

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True, **_: object) -> dict[str, Any]:
        """`input_ids` as the tokenizer's own `__call__` gives them: a list for one text, a list of lists for several."""
        rows = [text] if isinstance(text, str) else list(text)
        ids = [encoding.ids for encoding in self._plain.encode_batch_fast(rows, add_special_tokens=add_special_tokens)]
        return {"input_ids": ids[0] if isinstance(text, str) else ids}

    def decode(self, ids: Sequence[int], **_: object) -> str:
        """As the tokenizer's own `decode` without clean-up, special tokens included."""
        text: str = self._plain.decode(ids, skip_special_tokens=False)
        return text


def recall(cache_dir: Path, key: str, load: Callable[[], PreTrainedTokenizerBase]) -> KnownTokenizer | None:
    """What is kept under `key`; None when nothing is, or it is damaged."""
    path = _path(cache_dir, key)
    with suppress(OSError, ValueError, TypeError, KeyError):
        check, head, body = path.read_bytes().split(b"\n", 2)
        if hash_bytes(head + b"\n" + body).encode() != check:
            return None
        document = json.loads(head)
        backend: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in document["backend"].items()}
        known = KnownTokenizer(Backend(json=body.decode(), **backend), document["figures"], load)
        used(path)
        return known
    return None


def keep(cache_dir: Path, key: str, tokenizer: PreTrainedTokenizerBase, backend: Backend) -> str:
    """Keep what the next run asks for, if the tokenizer allows it; the words for what kept it from being kept, or ""."""
    if not backend.json or backend.random or not encodes_alone(tokenizer):
        return ""
    fields = asdict(backend)
    body = fields.pop("json").encode()
    figures = {name: getattr(tokenizer, name, None) for name in ASKED} | {"size": len(tokenizer)}
    data = json.dumps({"backend": fields, "figures": figures}).encode() + b"\n" + body
    path = _path(cache_dir, key)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with writing(cache_dir):
            cache_dir.mkdir(parents=True, exist_ok=True)
        put(hash_bytes(data).encode() + b"\n" + data, temporary, path)
    except PublishError as error:
        with suppress(OSError):
            temporary.unlink()
        return f"the tokenizer is loaded again by the next run: {error.message}"
    forget(cache_dir, "tokenizer-*.kept", KEPT)
    return ""


def _path(cache_dir: Path, key: str) -> Path:
    return cache_dir / f"tokenizer-{key}.kept"
