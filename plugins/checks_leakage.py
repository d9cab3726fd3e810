"""Checks of texts that stand more than once: on both sides of an evaluation, under several labels, or often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ftcli.core.storage.documents import Documents
    from ftcli.core.storage.store import Ragged
    from ftcli.core.tokenizer.tokentext import TokenText
    from ftcli.core.verify.probe import Probe

NEAR_TOKENS = 2_000_000
"""Train tokens that near duplicates are looked for in: 1 s. More are sampled, and what is found is scaled."""
NEAR_ROWS = 10_000
"""Held-out texts that are looked for."""
AFTER = ("FT201", "FT113")
"""Where most of a text is the unknown token, different texts are the same ids: copies that are none."""
SOME = 0.01
"""Share of a held-out split that warns."""
CONFLICTS = 0.005
"""Share of rows in conflict that warns. banking77 has none; 3i4k 0.8 %, GoEmotions 0.8 %, O*NET 9 %."""


TORN = 0.5
"""Share of rows in conflict that fails: most of what is learned is contradicted."""
LONGER = "Raise --max-length: what tells these texts apart is cut off."


def leakage(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.verify.verdict import failed, noted, passed, warned

    names = _held_out(probe)
    train, taken = _hashes(probe, "train")
    known = np.unique(train)
    again = {name: np.flatnonzero(np.isin(_hashes(probe, name)[0], known) & ~_is_remainder(probe, name)) for name in names}
    passages = {name: int(_is_passage(probe, name, _texts(probe, name).ids)[again[name]].sum()) for name in names}
    whole = {name: _share(probe, name, len(again[name]) - passages[name], taken) for name in names}
    shares = {name: _share(probe, name, len(again[name]), taken) for name in names}
    name = max(names, key=lambda split: (whole[split], shares[split]))
    share, rows = whole[name], _texts(probe, name).index[again[name]]
    evidence: dict[str, Any] = {"split": name, "rows": len(rows), "of": len(_hashes(probe, name)[0]), "first_rows": rows[:5].tolist()}
    evidence |= {"shares": shares, "train_share_looked_at": round(taken, 4), "with_unknown_tokens": (unspelled := _unspelled(probe, name))}
    found = "found" if taken < 1 else "stand"
    words = f"{share:.2%} of the {name} rows ({len(rows) - passages[name]:,}) {found} in train as well"
    if passages[name]:
        evidence["passages"] = passages[name]
    if passages[name] and shares[name] > SOME and share <= SOME:
        return noted(
            f"{shares[name]:.2%} of the {name} rows ({len(rows):,}) {found} in train as well: passages that longer texts have in common, such as licences. "
            "ftcli split the texts themselves, equal ones to one side, so that no other split would mend it; the evaluation is too good by about that share",
            **evidence,
        )
    if taken < 1:
        words = f"about {words}, by {taken:.1%} of the train rows"
    if unspelled:
        words += f"; {unspelled:,} of {evidence['of']:,} have an unknown token and were not compared"
    own = " ftcli split the texts, equal ones to one side: these differ in case or spaces." if _split_by_ftcli(probe, name) else ""
    if share > SOME and (cut := _cut(probe, _texts(probe, name).ids.lengths[again[name]])):
        return (failed if share > 0.05 else warned)(words + cut, LONGER, **evidence)
    if share > 0.05:
        fix = own or " Or let ftcli split: --validation-fraction keeps equal texts on one side."
        return failed(words, f"Remove the duplicates.{fix}", **evidence)
    if share > SOME:
        return warned(words, f"Remove the duplicates: the evaluation is too good by about that share.{own}", **evidence)
    return passed(words, **evidence)


def _cut(probe: Probe, lengths: NDArray[np.int64]) -> str:
    """What is to be said of equal texts, by their lengths, most of which end where they were cut; empty for others."""
    limit = probe.store.max_length
    if not len(lengths) or not probe.store.manifest.get("metrics", {}).get("rows_truncated") or (lengths >= limit).mean() <= 0.5:
        return ""
    return f"; most of them have exactly {limit:,} tokens, where they were cut, and may differ behind"


def _share(probe: Probe, name: str, rows: int, taken: float) -> float:
    return min(1.0, rows / max(1, len(_hashes(probe, name)[0])) / taken)


def _split_by_ftcli(probe: Probe, name: str) -> bool:
    """Whether a split was drawn by `ftcli tokenize`, which keeps equal texts on one side."""
    return bool((probe.store.manifest.get("inputs") or {}).get(f"dataset.{name}_fraction"))


def _is_passage(probe: Probe, name: str, texts: Ragged) -> NDArray[np.bool_]:
    """By text of a split that ftcli drew: whether it is, or may be, only a part of a longer one. All may be where long texts were cut into several."""
    import numpy as np

    manifest = probe.store.manifest
    if not _split_by_ftcli(probe, name):
        return np.zeros(len(texts), np.bool_)
    if manifest["inputs"].get("packing.truncation_strategy") == "split":
        return np.full(len(texts), bool(manifest["metrics"].get("texts_split") or manifest["policy"].get("packer_splits")))
    return texts.lengths >= probe.store.max_length


def _is_remainder(probe: Probe, name: str) -> NDArray[np.bool_]:
    """By text of a split, whether it is the short end of a longer one: its few last words may well stand elsewhere."""
    import numpy as np

    from ftcli.core.storage.near_duplicates import LEAST_TOKENS

    split, texts = probe.store.split(name), _texts(probe, name)
    if split.packed or (probe.store.manifest.get("inputs") or {}).get("packing.truncation_strategy") != "split":
        return np.zeros(len(texts.ids), np.bool_)
    before = np.where(texts.index > 0, split.lengths[texts.index - 1], 0)
    policy = probe.store.manifest.get("policy") or {}
    full = probe.store.max_length - (
        policy.get("eos") is not None and not policy.get("parts_end", True)
    )  # the place of the EOS that a last part has
    return (before >= full) & (texts.ids.lengths < LEAST_TOKENS)


def near(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.storage.documents import documents
    from ftcli.core.storage.near_duplicates import LEAST_TOKENS, SAME, near_pairs, scale
    from ftcli.core.verify.verdict import noted, passed, warned

    names = _held_out(probe)
    train = documents(probe.train_split, NEAR_TOKENS)
    known = np.unique(_hashes(probe, "train")[0])
    spelling = _spelling(probe)
    width, least = (2, LEAST_TOKENS) if spelling is None else scale(spelling.bytes_a_token(train.ids.values[:100_000]))
    found: dict[str, Any] = {}
    whole: dict[str, float] = {}
    for name in names:
        held = documents(probe.store.split(name), NEAR_TOKENS)
        alike = np.isin(_hash(probe, held), known)
        if spelling is not None:  # unknown tokens are equal where the words are not
            alike |= spelling.unspelled(held.ids.values, held.ids.lengths)
        chosen = np.flatnonzero(~alike)[:NEAR_ROWS]
        pairs = near_pairs(_take(held, chosen), train.ids, width, least)
        share = min(1.0, len(pairs.rows) / max(1, min(len(held.ids), NEAR_ROWS)) / train.share)
        rows = [(int(held.index[chosen[row]]), int(train.index[other])) for row, other in zip(pairs.rows, pairs.others, strict=True)]
        passages = float(_is_passage(probe, name, held.ids)[chosen[pairs.rows]].mean()) if rows else 0.0
        whole[name] = share * (1 - passages)
        found[name] = {
            "share": round(share, 5),
            "rows": len(rows),
            "passages": round(passages, 4),
            "pairs": rows[:5],
            "similarity": pairs.similarity[:5].round(3).tolist(),
        }
    name = max(found, key=lambda split: float(found[split]["share"]))
    share, shown = float(found[name]["share"]), _shown(probe, name, found[name]["pairs"][:2])
    evidence = {
        **found,
        "split": name,
        "examples": shown,
        "similarity_from": SAME,
        "shortest_tokens": least,
        "train_share": train.share,
    }
    sampled = "" if train.share == 1 else f" (estimated from {train.share:.1%} of the train rows)"
    words = f"{share:.2%} of the {name} rows ({found[name]['rows']:,}) are nearly the same as a train row{sampled}"
    if whole[name] <= SOME < share:
        return noted(f"{words}: passages of longer texts, which ftcli split by the texts themselves", **evidence)
    if share > SOME and found[name]["rows"] > 1:
        return warned(words, "Split by source or by template instead of by row: rows made from one another belong on one side.", **evidence)
    return noted(words, **evidence) if found[name]["rows"] else passed(words, **evidence)


def duplicates(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.verify.verdict import failed, noted, passed, warned

    hashes, taken = _hashes(probe, "train")
    texts, place, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    share = 1 - len(texts) / max(1, len(hashes))
    evidence: dict[str, Any] = {
        "duplicate_share": round(share, 5),
        "most_copies": int(counts.max(initial=0)),
        "share_looked_at": round(taken, 4),
    }
    flags, rows, lengths = probe.train_split.flags, _texts(probe, "train").index, _texts(probe, "train").ids.lengths
    labels: Any = probe.train_split.labels if flags is None else flags.codes
    if labels is not None and probe.task_name == "classify" and not probe.train_split.packed:
        order = np.lexsort((labels[rows], place))
        sorted_place, sorted_label = place[order], labels[rows][order]
        changes = np.flatnonzero((np.diff(sorted_place) == 0) & (sorted_label[1:] != sorted_label[:-1]))
        torn = np.unique(sorted_place[changes])
        conflict = int(counts[torn].sum())
        evidence |= {"texts_in_conflict": len(torn), "rows_in_conflict": conflict}
        if len(torn):
            first = rows[np.flatnonzero(place == torn[0])]
            evidence |= {"first_rows": first[:5].tolist(), "labels": _labels_of(probe, first[:5])}
        differ = "several labels" if flags is None else "other labels where they stand again"
        words = f"{len(torn):,} texts have {differ} ({conflict / max(1, len(hashes)):.2%} of the rows)"
        if conflict > max(2, CONFLICTS * len(hashes)):
            cut = _cut(probe, lengths[np.isin(place, torn)])
            fix = LONGER if cut else "Decide for one answer a text: of rows that contradict each other at most one can be learned."
            return (failed if conflict > TORN * len(hashes) else warned)(words + cut, fix, **evidence)
        if len(torn):
            return noted(words, **evidence)
    words = f"{share:.2%} of the train rows repeat another one"
    if share > 1 / 3 and probe.task_name == "classify":
        cut = _cut(probe, lengths[counts[place] > 1])
        fix = LONGER if cut else "Remove the copies: they weigh as much as other texts and hide how few there are."
        return warned(words + cut, fix, **evidence)
    return noted(words, **evidence) if share > 0.05 else passed(words, **evidence)


def _labels_of(probe: Probe, rows: Any) -> list[Any]:
    """Names of the labels of some train rows, or their numbers where they have none."""
    from ftcli.core.storage.label_flags import names_of

    names, taken = probe.store.label_names or [], probe.train_split.rows(rows)
    if taken.flags is not None:
        return [names_of(row, names) for row in taken.flags]
    assert taken.labels is not None
    return [names[label] if 0 <= label < len(names) else label for label in taken.labels.tolist()]


def _held_out(probe: Probe) -> list[str]:
    from ftcli.core.verify.probe import Missing

    names: list[str] = [name for name in ("validation", "test") if name in probe.store.split_names]
    if not names:
        raise Missing("there is no validation or test split")
    return names


def _texts(probe: Probe, name: str) -> Documents:
    from ftcli.core.storage.documents import documents

    key = f"texts of {name}"
    if probe.ready(key) is None:
        probe.give(**{key: documents(probe.store.split(name))})
    found: Documents = probe.ready(key)
    return found


def _hashes(probe: Probe, name: str) -> tuple[NDArray[np.uint64], float]:
    """A number for every text of a split, and the share of the rows that were looked at."""
    texts, key = _texts(probe, name), f"hashes of {name}"
    if probe.ready(key) is None:
        probe.give(**{key: _hash(probe, texts)})
    found: NDArray[np.uint64] = probe.ready(key)
    return found, texts.share


def _hash(probe: Probe, texts: Documents) -> NDArray[np.uint64]:
    """By the text with one case and single spaces; by the ids where there is no fast tokenizer to spell them."""
    from ftcli.core.ragged import row_hash

    spelling, ids = _spelling(probe), texts.ids
    return row_hash(ids.values, ids.lengths, 1) if spelling is None else spelling.hashes(ids.values, ids.lengths)


def _unspelled(probe: Probe, name: str) -> int:
    """Texts of a split that are like no other because they have an unknown token."""
    spelling, ids = _spelling(probe), _texts(probe, name).ids
    return 0 if spelling is None else int(spelling.unspelled(ids.values, ids.lengths).sum())


def _spelling(probe: Probe) -> TokenText | None:
    from ftcli.core.tokenizer.tokentext import TokenText, unknown_of

    if probe.ready("spelling") is None:
        tokenizer = _tokenizer(probe)
        pieces = None if tokenizer is None else probe.pieces
        probe.give(spelling=(None if pieces is None else TokenText.of(pieces, unknown_of(tokenizer)),))
    found: TokenText | None = probe.ready("spelling")[0]
    return found


def _tokenizer(probe: Probe) -> Any:
    """The tokenizer, if there is one and the data were prepared with it."""
    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    try:
        tokenizer = probe.tokenizer
    except (Missing, FtcliError):
        return None
    same = probe.tokenizer_hash == probe.store.manifest["tokenizer"]["hash"]
    return tokenizer if same else None


def _take(texts: Documents, chosen: Any) -> Any:
    from ftcli.core.ragged import take_ranges, to_offsets
    from ftcli.core.storage.store import Ragged

    lengths = texts.ids.lengths[chosen]
    return Ragged(take_ranges(texts.ids.values, texts.ids.offsets[:-1][chosen], lengths), to_offsets(lengths))


def _shown(probe: Probe, name: str, pairs: list[tuple[int, int]]) -> list[list[str]]:
    tokenizer = _tokenizer(probe)
    if tokenizer is None:
        return []
    sides = ((probe.store.split(name), 0), (probe.train_split, 1))
    return [[tokenizer.decode(split.rows([pair[side]]).input_ids.values)[:300] for split, side in sides] for pair in pairs]


CHECKS = (
    CheckKind("FT205", "data", "Leakage", leakage, ("store",), after=AFTER),
    CheckKind("FT206", "data", "Near leakage", near, ("store",), severity="warn", after=AFTER),
    CheckKind("FT207", "data", "Duplicates", duplicates, ("store",), after=AFTER),
)
