"""What checks ask about a tokenizer as a whole, kept from run to run: its hash, which is made of 11 MB of JSON for Qwen3, and its ids, 151,669."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftcli.core.tokenizer.vocabulary import Vocabulary, vocabulary

if TYPE_CHECKING:
    from ftcli.context import Context
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

    found: str = _kept(probe.context, "hash", probe.ready(KEY), compute)["hash"]
    return found


def ids_of(probe: Probe) -> Vocabulary:
    """`ftcli.core.tokenizer.vocabulary.vocabulary` of the probe's tokenizer."""
    tokenizer = probe.tokenizer
    if probe.ready("ids") is None:
        answer = _kept(probe.context, "ids", probe.ready(KEY), lambda: vocabulary(tokenizer).as_json())
        probe.give(ids=Vocabulary.of_json(answer))
    found: Vocabulary = probe.ready("ids")
    return found


def remembered(context: Context, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `compute` gives, or gave an earlier run on the same tokenizer, code and libraries. A cache that cannot be used costs time only.

    Args:
        name: of the answer.
        compute: gives what JSON can hold.
    """
    from ftcli.core.reading.receipt import tokenizer_key

    return _kept(context, name, tokenizer_key(context), compute)


def _kept(context: Context, name: str, key: str | None, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if key is None:
        return compute()
    from ftcli.core.files.cached_document import kept

    return kept(context.cache_dir / f"{name}-{key}.json", compute)
