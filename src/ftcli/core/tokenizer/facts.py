"""What checks ask about a tokenizer as a whole, kept from run to run: its hash, which is made of 11 MB of JSON for Qwen3, and its ids, 151,669."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftcli.core.tokenizer.vocabulary import Vocabulary, vocabulary

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

KEY = "tokenizer_key"
"""The part of a probe that says of which folder, code and libraries answers may be kept; there is none for a tokenizer that it was given."""


def loaded(probe: Probe, load: Callable[[], Any]) -> Any:
    """The tokenizer that `load` gives. Answers about it may be kept if its folder was the same before and behind."""
    from ftcli.core.reading.receipt import tokenizer_key

    before = tokenizer_key(probe.context)
    tokenizer = load()
    if before is not None and before == tokenizer_key(probe.context):
        probe.give(**{KEY: before})
    return tokenizer


def hash_of(probe: Probe) -> str:
    """`ftcli.core.engines.backend.tokenizer_hash` of the probe's tokenizer."""
    tokenizer, path = probe.tokenizer, probe.settings.tokenizer.path or ""

    def compute() -> dict[str, Any]:
        from ftcli.core.engines.backend import tokenizer_hash

        return {"hash": tokenizer_hash(tokenizer, path)}

    found: str = _remembered(probe, "hash", compute)["hash"]
    return found


def ids_of(probe: Probe) -> Vocabulary:
    """`ftcli.core.tokenizer.vocabulary.vocabulary` of the probe's tokenizer."""
    tokenizer = probe.tokenizer
    if probe.ready("ids") is None:
        probe.give(ids=Vocabulary.of_json(_remembered(probe, "ids", lambda: vocabulary(tokenizer).as_json())))
    found: Vocabulary = probe.ready("ids")
    return found


def _remembered(probe: Probe, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    key = probe.ready(KEY)
    if key is None:
        return compute()
    from ftcli.core.files.cached_document import kept

    return kept(probe.context.cache_dir / f"{name}-{key}.json", compute)
