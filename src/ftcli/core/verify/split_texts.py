"""The texts of the splits of one planned run, and a number for each, which the checks of leaks and copies share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ftcli.core.ragged import row_hash, take_ranges, to_offsets
from ftcli.core.storage.documents import Documents, documents
from ftcli.core.storage.near_duplicates import LEAST_TOKENS
from ftcli.core.storage.store import Ragged
from ftcli.core.storage.windows import every_for, known_windows, width_for, within
from ftcli.core.tokenizer.tokentext import TokenText, unknown_of
from ftcli.core.verify.missing import Missing
from ftcli.errors import FtcliError

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

SOME = 0.01
"""Share of a held-out split that warns."""
HALF = 0.5
"""Part of a text that makes it the same as what it stands in, and of a split's rows that have to be compared for a verdict on it."""
BYTES = 4.0
"""Of a token that nobody can spell."""
LONGER = "Raise --max-length: the part that distinguishes these texts is cut off."


def held_out(probe: Probe) -> list[str]:
    names: list[str] = [name for name in ("validation", "test") if name in probe.store.split_names]
    if not names:
        raise Missing("there is no validation or test split")
    return names


def texts_of(probe: Probe, name: str) -> Documents:
    key = f"texts of {name}"
    if probe.ready(key) is None:
        probe.give(**{key: documents(probe.store.split(name))})
    found: Documents = probe.ready(key)
    return found


def hashes_of(probe: Probe, name: str, loose: bool = False) -> tuple[NDArray[np.uint64], float]:
    """What `hash_texts` gives for a split, kept for the next check, and the share of its rows that were looked at.

    Args:
        loose: the second of the two, for leaks; of copies with several labels the last sign alone may tell them apart.
    """
    texts, key = texts_of(probe, name), f"hashes of {name}"
    if probe.ready(key) is None:
        probe.give(**{key: hash_texts(probe, texts)})
    found: NDArray[np.uint64] = probe.ready(key)[loose]
    return found, texts.share


def hash_texts(probe: Probe, texts: Documents) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Two numbers a text as `TokenText.hashes` has them; twice the one of the ids where there is no fast tokenizer to spell them."""
    spelling, ids = spelling_of(probe), texts.ids
    return (row_hash(ids.values, ids.lengths, 1),) * 2 if spelling is None else spelling.hashes(ids.values, ids.lengths)


def spelling_of(probe: Probe) -> TokenText | None:
    if probe.ready("spelling") is None:
        tokenizer = own_tokenizer(probe)
        pieces = None if tokenizer is None else probe.pieces
        probe.give(spelling=(None if pieces is None else TokenText.of(pieces, unknown_of(tokenizer)),))
    found: TokenText | None = probe.ready("spelling")[0]
    return found


def own_tokenizer(probe: Probe) -> Any:
    """The tokenizer, if there is one and the data were prepared with it."""
    try:
        tokenizer = probe.tokenizer
    except (Missing, FtcliError):
        return None
    same = probe.tokenizer_hash == probe.store.manifest["tokenizer"]["hash"]
    return tokenizer if same else None


def unknown_token(probe: Probe) -> int | None:
    tokenizer = own_tokenizer(probe)
    return None if tokenizer is None else unknown_of(tokenizer)


def is_within(probe: Probe, texts: Documents, other: str) -> NDArray[np.bool_]:
    """By text, whether half of it stands in the texts of the split `other`, wherever either was cut. Of a small sample of a split nobody can say."""
    others = texts_of(probe, other)
    width, every, unknown = window_of(probe, others), every_for(len(others.ids.values)), unknown_token(probe)
    if others.share < HALF or not width:
        return np.zeros(len(texts.ids), np.bool_)
    key = f"windows of {other}"
    if probe.ready(key) is None:
        probe.give(**{key: known_windows(others.ids, width, every, unknown)})
    return within(texts.ids, probe.ready(key), HALF * others.share)


def window_of(probe: Probe, texts: Documents) -> int:
    """Tokens of the windows that the texts of this run are compared by; 0 where its rows are too short."""
    spelling = spelling_of(probe)
    return width_for(probe.store.max_length, BYTES if spelling is None else spelling.bytes_a_token(texts.ids.values[:100_000]))


def take(texts: Documents, chosen: NDArray[np.int64]) -> Ragged:
    lengths = texts.ids.lengths[chosen]
    return Ragged(take_ranges(texts.ids.values, texts.ids.offsets[:-1][chosen], lengths), to_offsets(lengths))


def cut_words(probe: Probe, lengths: NDArray[np.int64]) -> str:
    """What is to be said of equal texts, by their lengths, most of which end where they were cut; empty for others."""
    limit = probe.store.max_length
    if not len(lengths) or not probe.store.manifest.get("metrics", {}).get("rows_truncated") or (lengths >= limit).mean() <= 0.5:
        return ""
    return f"; most of them have exactly {limit:,} tokens, where they were cut, and may differ after that"


def split_by_ftcli(probe: Probe, name: str) -> bool:
    """Whether a split was drawn by `ftcli tokenize`, which keeps equal texts on one side."""
    return bool((probe.store.manifest.get("inputs") or {}).get(f"dataset.{name}_fraction"))


def in_parts(probe: Probe) -> bool:
    """Whether long texts stand in the rows as several parts."""
    manifest = probe.store.manifest
    divided = splits_texts(probe) and (manifest.get("metrics") or {}).get("texts_split")
    return bool(divided or (manifest.get("policy") or {}).get("packer_splits"))


def splits_texts(probe: Probe) -> bool:
    return (probe.store.manifest.get("inputs") or {}).get("packing.truncation_strategy") == "split"


def is_passage(probe: Probe, name: str, texts: Ragged) -> NDArray[np.bool_]:
    """By text of a split that ftcli drew: whether it is, or may be, only a part of a longer one. All may be where long texts were cut into several."""
    if not split_by_ftcli(probe, name):
        return np.zeros(len(texts), np.bool_)
    if splits_texts(probe) or in_parts(probe):
        return np.full(len(texts), in_parts(probe))
    return texts.lengths >= probe.store.max_length


def is_remainder(probe: Probe, name: str) -> NDArray[np.bool_]:
    """By text of a split, whether it is the short end of a longer one: its few last words may well stand elsewhere."""
    split, texts = probe.store.split(name), texts_of(probe, name)
    if split.packed or not splits_texts(probe):
        return np.zeros(len(texts.ids), np.bool_)
    before = np.where(texts.index > 0, split.lengths[texts.index - 1], 0)
    policy = probe.store.manifest.get("policy") or {}
    full = probe.store.max_length - (
        policy.get("eos") is not None and not policy.get("parts_end", True)
    )  # the place of the EOS that a last part has
    return (before >= full) & (texts.ids.lengths < LEAST_TOKENS)
