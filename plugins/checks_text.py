"""Checks of what the stored texts are: sound characters, known tokens, ends that a model can learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ftcli.core.storage.store import SplitData
    from ftcli.core.verify.probe import Probe

SAMPLE = 2_000
"""Rows of a split that are decoded: 0.3 s."""
TOKENS = 128
"""Tokens of a row that are decoded."""
DAMAGED = 0.005
"""Share of decoded rows that warns. Eight sound sets (Korean, English, city names, documentation): none of up to 3,000 rows with signs above ASCII."""
UNKNOWN = 0.01
"""Share of unknown tokens that warns: bert-base-uncased on Korean has 6.3 %, koelectra 0.02 %."""
TIMES = 2.0
"""How many times the share of train a held-out split must have, where the train texts are judged otherwise: WikiText's `<unk>` is as common in all."""
FEWEST = 5
"""Rows with one that a held-out split must have: of few tokens one row is many."""
MOST_IDS = 20_000
"""Rows of a split whose ids are looked at."""


def encoding(probe: Probe) -> Check:
    from ftcli.core.storage.encoding_damage import find_damage, repaired
    from ftcli.core.verify.verdict import noted, passed, warned

    spaced = "WordPiece" in repr(getattr(getattr(probe.tokenizer, "backend_tokenizer", None), "decoder", ""))
    seen, worst = 0, None
    for name, split in _filled(probe):
        rows, texts = _decoded(probe, split)
        found = find_damage(texts, spaced=spaced)
        seen += len(texts)
        share = len(found.all()) / len(texts)
        many = len(found.all()) >= max(2, DAMAGED * len(texts))
        if share and (worst is None or (many, share) > worst[:2]):
            worst = many, share, name, rows, texts, found
    if worst is None:
        return passed(f"no damaged character in {seen:,} decoded rows", rows_looked_at=seen, damaged=0)
    many, share, name, rows, texts, found = worst
    kinds = {
        "UTF-8 read as cp1252 or latin-1": found.utf8_as_latin,
        "EUC-KR read as cp1252 or latin-1": found.korean_as_latin,
        "UTF-8 read as another encoding": found.utf8_as_other,
        "replacement characters": found.replaced,
    }
    first = found.all()[0]
    kind = max(kinds, key=lambda name: len(kinds[name]))
    evidence: dict[str, Any] = {
        "split": name,
        "rows_looked_at": len(texts),
        "of": len(probe.store.split(name)),
        "damaged": len(found.all()),
        **{kind: len(those) for kind, those in kinds.items()},
        "row": int(rows[first]),
        "text": texts[first][:200],
        "repaired": (repaired(texts[first]) or "")[:200],
    }
    words = f"{share:.1%} of the {name} rows contain damaged text ({kind}), first row {int(rows[first])}: {texts[first][:40]!r}"
    if many:
        return warned(words, "Re-read the sources in the encoding they were written in, and prepare the data again.", **evidence)
    return noted(words, **evidence)


def unknown(probe: Probe) -> Check:
    """Of every split; of the held-out ones alone where FT113 has judged the train texts, and then only what train has no such share of: a token's name
    that is written out in the texts is told apart there."""
    from ftcli.core.tokenizer.tokentext import unknown_of
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import passed, warned

    judged = probe.ready("text_ids") is not None
    splits = _filled(probe)
    if judged and len(splits) < 2:  # one cause, one check
        raise Missing("FT113 has checked the texts themselves")
    if not splits:
        raise Missing("there are no rows")
    unk = unknown_of(probe.tokenizer)
    if unk is None:
        raise Missing("the tokenizer has no unknown token of its own: it covers every text")
    shares, rows = {}, {}
    for name, split in splits:
        rows[name] = _sample(split, MOST_IDS)
        shares[name], hit = _share(split, rows[name], unk)
        rows[name] = rows[name][hit]
    usual = TIMES * shares.get("train", 0.0) if judged else 0.0
    looked = [name for name in shares if not judged or name != "train"]
    many = [name for name in looked if shares[name] > max(UNKNOWN, usual) and (name == "train" or len(rows[name]) >= FEWEST)]
    name = max(many or looked, key=lambda name: shares[name])
    evidence: dict[str, Any] = {
        "split": name,
        "share": round(shares[name], 5),
        "shares": {name: round(share, 5) for name, share in shares.items()},
        "rows_hit": len(rows[name]),
        "first_rows": rows[name][:5].tolist(),
    }
    words = f"{shares[name]:.2%} of the tokens of {name} are {probe.tokenizer.unk_token}"
    if many:
        return warned(words, "Use a tokenizer that covers this language: ftcli train-tokenizer trains one on the data.", **evidence)
    return passed(f"{words}, and FT113 has checked the train texts themselves" if judged else words, **evidence)


def _share(split: SplitData, rows: NDArray[np.int64], unk: int) -> tuple[float, NDArray[np.int64]]:
    """Unknown tokens of some rows of a split as a share, and which of these rows have one."""
    import numpy as np

    ids = split.rows(rows).input_ids
    there = ids.values == unk
    hit = np.flatnonzero(np.diff(np.concatenate([[0], np.cumsum(there)])[ids.offsets]))
    return float(there.mean()) if len(there) else 0.0, hit


def ends(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.storage.documents import documents, ended
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import passed, warned

    if probe.task_name != "pretrain":
        raise Missing(f"mode {probe.task_name} does not train on the end of a text")
    eos = probe.tokenizer.eos_token_id
    if eos is None:
        raise Missing("the tokenizer has no EOS")
    if ended(probe.store.manifest, eos):
        return passed("ftcli tokenize ended every text with EOS", eos=eos)
    texts = documents(probe.train_split, 5_000_000)
    filled = texts.ids.lengths > 0
    last = texts.ids.values[np.maximum(texts.ids.offsets[1:] - 1, 0)] == eos
    share = float(last[filled].mean()) if filled.any() else 0.0
    words = f"{share:.1%} of the texts end with EOS"
    if share < 0.5:
        return warned(words, "Prepare the data with --add-eos: a model that never sees EOS does not learn to stop.", share=share, eos=eos)
    return passed(words, share=share, eos=eos)


def _filled(probe: Probe) -> list[tuple[str, SplitData]]:
    """Every split that has rows, train first."""
    splits = [(name, probe.store.split(name)) for name in probe.store.split_names]
    return sorted(((name, split) for name, split in splits if len(split)), key=lambda split: split[0] != "train")


def _sample(split: SplitData, most: int) -> NDArray[np.int64]:
    import numpy as np

    if len(split) <= most:
        return np.arange(len(split))
    return np.sort(np.random.default_rng(0).choice(len(split), size=most, replace=False))


def _decoded(probe: Probe, split: SplitData) -> tuple[list[int], list[str]]:
    """Beginnings of rows as the tokens' own bytes spell them: a decoder may not know how, and what a cut left of a character is no damage."""
    from ftcli.core.storage.encoding_damage import REPLACEMENT

    rows = _sample(split, SAMPLE)
    ids, pieces, known = split.rows(rows).input_ids, probe.pieces, len(probe.tokenizer)
    cut = [[token for token in ids.row(row)[:TOKENS].tolist() if 0 <= token < known] for row in range(len(ids))]
    if pieces is None:
        texts = probe.tokenizer.batch_decode(cut, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return rows.tolist(), [text.strip(REPLACEMENT) for text in texts]
    return rows.tolist(), [b"".join([pieces[token] for token in row]).decode("utf-8", "ignore") for row in cut]


CHECKS = (
    CheckKind("FT208", "data", "Encoding", encoding, ("store", "tokenizer"), severity="warn", after=("FT201", "FT202")),
    CheckKind("FT209", "data", "Unknown tokens", unknown, ("store", "tokenizer"), severity="warn", after=("FT201", "FT202")),
    CheckKind("FT210", "data", "Ends of texts", ends, ("store", "tokenizer"), severity="warn", after=("FT201", "FT202")),
)
