"""Texts encoded as a run's own data were: what its length policy put around them and where it cut them, which `ftcli-run.json` keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ftcli.contracts import Encoded
from ftcli.core.prepare.pairs import SECOND, PairTemplate, types_of, unmarked
from ftcli.core.prepare.policy import Counts, LengthPolicy
from ftcli.core.ragged import to_offsets

KEPT = ("max_length", "truncation", "prefix", "suffix", "eos", "pair")


def kept(manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """What of the prepared data's manifest says how their texts were encoded; None where it does not."""
    policy = manifest.get("policy")
    return {name: policy[name] for name in KEPT} if policy and not set(KEPT) - set(policy) else None


def policy_of(document: Mapping[str, Any]) -> LengthPolicy:
    """The policy by what `kept` gave. No text is left out: one that would have been is cut at its end.

    Raises:
        LookupError, TypeError, ValueError: it says something else.
    """
    pair = document["pair"]
    around = {name: tuple(map(int, pair[name])) for name in ("prefix", "middle", "suffix")} if pair else {}
    return LengthPolicy(
        max_length=int(document["max_length"]),
        min_length=0,
        truncation="keep_end" if document["truncation"] == "keep_end" else "keep_start",
        prefix=tuple(map(int, document["prefix"])),
        suffix=tuple(map(int, document["suffix"])),
        eos=None if document["eos"] is None else int(document["eos"]),
        pair=PairTemplate(**around, types=bool(pair["types"]), slow=bool(pair.get("slow"))) if pair else None,
    )


def encode(policy: LengthPolicy, tokenizer: Any, sides: Sequence[list[str]], room: int) -> tuple[list[list[int]], list[list[int]] | None]:
    """Ids of each row, and where the model wants to know which are the second text's, their types.

    Args:
        sides: the texts, or the first and the second ones.
        room: tokens that the model takes.
    """
    texts = [bare(tokenizer, side) for side in sides]
    marked = [[*texts[0][row], *(int(id_ | SECOND) for side in texts[1:] for id_ in side[row])] for row in range(len(texts[0]))]
    ids = np.array([id_ for row in marked for id_ in row], np.int32)
    encoded = Encoded(ids, to_offsets(np.array([len(row) for row in marked], np.int64)))
    documents = replace(policy, max_length=min(policy.max_length, room)).apply(encoded, Counts())
    cuts = list(pairwise(to_offsets(documents.lengths).tolist()))
    plain, types = unmarked(documents.ids).tolist(), types_of(documents.ids).tolist()
    wanted = policy.pair is not None and policy.pair.types
    return [plain[start:stop] for start, stop in cuts], [types[start:stop] for start, stop in cuts] if wanted else None


def bare(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Ids without special tokens."""
    ids: list[list[int]] = tokenizer(
        texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
    )["input_ids"]
    return ids
