"""The ids of a tokenizer: how many rows an embedding needs for them, which are not used, which are used twice."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from ftcli.core.tokenizer.order import BYTE, Order, order
from ftcli.errors import ModelError

ASKED = 2_000
"""Ids of which the merges of a BPE vocabulary are asked: 20 to 50 ms."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`size` is len(tokenizer); `rows` the rows that an embedding needs: one more than the largest id, which may be more than `size`."""

    size: int
    rows: int
    holes: list[int]
    """Ids below `rows` that no token has."""
    shared: dict[int, list[str]]
    """Ids that several tokens have, with those."""
    asked: int = 0
    """How many entries were asked for by their own text, see `unmade`."""
    unmade: tuple[tuple[str, list[str]], ...] = ()
    """Those of them that are none of its tokens, with these."""
    order: Order = field(default_factory=Order)

    def as_json(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "rows": self.rows,
            "holes": self.holes,
            "shared": [[number, names] for number, names in self.shared.items()],
            "asked": self.asked,
            "unmade": self.unmade,
            "order": self.order,
        }

    @classmethod
    def of_json(cls, document: dict[str, Any]) -> Self:
        return cls(
            document["size"],
            document["rows"],
            document["holes"],
            dict(document["shared"]),
            document["asked"],
            tuple(map(tuple, document["unmade"])),
            Order(*document["order"]),
        )


def vocabulary(tokenizer: Any) -> Vocabulary:
    tokens: dict[str, int] = tokenizer.get_vocab()
    used = set(tokens.values())
    rows = max(len(tokenizer), max(used, default=-1) + 1)
    shared: dict[int, list[str]] = {}
    if len(used) < len(tokens):
        twice = {number for number, count in Counter(tokens.values()).items() if count > 1}
        shared = {number: [] for number in sorted(twice)}
        for token, number in tokens.items():
            if number in twice:
                shared[number].append(token)
    return Vocabulary(len(tokenizer), rows, sorted(set(range(rows)) - used), shared, *unmade(tokenizer, tokens, rows), order(tokenizer))


def unmade(tokenizer: Any, tokens: dict[str, int], rows: int) -> tuple[int, tuple[tuple[str, list[str]], ...]]:
    """Entries of a BPE vocabulary that its merges do not make of their own text, of a sample, and how many were asked.

    The model alone is asked, without normalizer and pre-tokenizer, and for what the merges make also where it takes a word that is an entry
    as it is (`ignore_merges`). Other models, and merges that are dropped at random, tell nothing.
    """
    model: Any = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if type(model).__name__ != "BPE" or model.dropout:
        return 0, ()
    drawn = set(random.Random(0).sample(range(rows), min(ASKED, rows)))
    added, suffix, prefix = tokenizer.get_added_vocab(), model.end_of_word_suffix or "", model.continuing_subword_prefix or ""
    words = {token: token.removesuffix(suffix) for token, number in tokens.items() if number in drawn and token not in added}
    own = {
        token: word
        for token, word in words.items()
        if len(word) > 1 and token.endswith(suffix) and not (prefix and token.startswith(prefix)) and not BYTE.fullmatch(token)
    }
    whole, model.ignore_merges = model.ignore_merges, False
    try:
        made = {token: [piece.value for piece in model.tokenize(word)] for token, word in own.items()}
    except Exception:  # noqa: BLE001 - tokenizers raises nothing more special, where the unknown token is none of the vocabulary
        return 0, ()
    finally:
        model.ignore_merges = whole
    return len(made), tuple((token, pieces) for token, pieces in made.items() if pieces != [token])


def beside_embedding(ids: int, config: Any) -> tuple[int, int]:
    """Rows that a tokenizer's ids need, and those of the model's embedding. Raises `ModelError` when an id would have none."""
    rows = getattr(config.get_text_config(), "vocab_size", None)
    if rows is None:
        raise ModelError(f"{config.model_type} has no vocabulary: it is no model of tokens", "Use one, for example qwen3, llama or bert.")
    if ids > rows:
        raise ModelError(
            f"the tokenizer has {ids:,} ids, but the model's embedding has {rows:,} rows: some ids would have no vector",
            f"From scratch: --config-overrides vocab_size={ids}. A pretrained model needs its own tokenizer.",
        )
    return ids, rows
