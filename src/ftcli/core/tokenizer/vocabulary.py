"""The ids of a tokenizer: how many rows an embedding needs for them, which are not used, which are used twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

from ftcli.errors import ModelError


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`size` is len(tokenizer); `rows` the rows that an embedding needs: one more than the largest id, which may be more than `size`."""

    size: int
    rows: int
    holes: list[int]
    """Ids below `rows` that no token has."""
    shared: dict[int, list[str]]
    """Ids that several tokens have, with those."""

    def as_json(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "rows": self.rows,
            "holes": self.holes,
            "shared": [[number, names] for number, names in self.shared.items()],
        }

    @classmethod
    def of_json(cls, document: dict[str, Any]) -> Self:
        return cls(document["size"], document["rows"], document["holes"], dict(document["shared"]))


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
    return Vocabulary(len(tokenizer), rows, sorted(set(range(rows)) - used), shared)


def beside_embedding(ids: int, config: Any) -> tuple[int, int]:
    """Rows that a tokenizer's ids need, and those of the model's embedding. Raises `ModelError` when an id would have none."""
    rows = getattr(config.get_text_config(), "vocab_size", None)
    if rows is None:
        raise ModelError(f"{config.model_type} is not a text model: it has no vocabulary", "For example qwen3, llama or bert.")
    if ids > rows:
        raise ModelError(
            f"the tokenizer has {ids:,} ids, but the model's embedding has {rows:,} rows: some ids would have no vector",
            f"From scratch: --config-overrides vocab_size={ids}. A pretrained model needs its own tokenizer.",
        )
    return ids, rows
