"""Checks of what the stored texts are: sound characters, known tokens, ends that a model can learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ftcli.core.verify.probe import Probe

SAMPLE = 2_000
"""Train rows that are decoded: 0.3 s."""
TOKENS = 128
"""Tokens of a row that are decoded."""
DAMAGED = 0.005
"""Share of decoded rows that warns. Eight sound sets (Korean, English, city names, documentation): none of up to 3,000 rows with signs above ASCII."""
UNKNOWN = 0.01
"""Share of unknown tokens that warns: bert-base-uncased on Korean has 6.3 %, koelectra 0.02 %."""


def encoding(probe: Probe) -> Check:
    from ftcli.core.storage.encoding_damage import find_damage, repaired
    from ftcli.core.verify.verdict import noted, passed, warned

    tokenizer, split = probe.tokenizer, probe.train_split
    rows, texts = _decoded(probe)
    found = find_damage(texts, spaced="WordPiece" in repr(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", "")))
    damaged = found.all()
    kinds = {
        "UTF-8 read as cp1252 or latin-1": found.utf8_as_latin,
        "EUC-KR read as cp1252 or latin-1": found.korean_as_latin,
        "UTF-8 read as another encoding": found.utf8_as_other,
        "replacement characters": found.replaced,
    }
    evidence: dict[str, Any] = {
        "rows_looked_at": len(texts),
        "of": len(split),
        "damaged": len(damaged),
        **{kind: len(those) for kind, those in kinds.items()},
    }
    if not damaged:
        return passed(f"no damaged character in {len(texts):,} decoded rows", **evidence)
    first = damaged[0]
    kind = max(kinds, key=lambda name: len(kinds[name]))
    evidence |= {"row": int(rows[first]), "text": texts[first][:200], "repaired": (repaired(texts[first]) or "")[:200]}
    words = f"{len(damaged) / len(texts):.1%} of the rows hold damaged text ({kind}), first row {int(rows[first])}: {texts[first][:40]!r}"
    if len(damaged) >= max(2, DAMAGED * len(texts)):
        return warned(words, "Read the sources again in the encoding in which they were written, and prepare the data again.", **evidence)
    return noted(words, **evidence)


def unknown(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.tokenizer.tokentext import unknown_of
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import passed, warned

    if probe.ready("text_ids") is not None:  # one cause, one check; there the token's name written out in a text is told apart
        raise Missing("FT113 has judged the texts themselves")
    unk = unknown_of(probe.tokenizer)
    if unk is None:
        raise Missing("the tokenizer has no unknown token of its own: it can spell everything")
    rows = _sample(probe, 20_000)
    ids = probe.train_split.rows(rows).input_ids
    share = float((ids.values == unk).mean()) if len(ids.values) else 0.0
    hit = np.flatnonzero(np.diff(np.concatenate([[0], np.cumsum(ids.values == unk)])[ids.offsets]))
    evidence: dict[str, Any] = {
        "share": round(share, 5),
        "rows_looked_at": len(rows),
        "rows_hit": len(hit),
        "first_rows": rows[hit[:5]].tolist(),
    }
    words = f"{share:.2%} of the tokens are {probe.tokenizer.unk_token}"
    if share > UNKNOWN:
        return warned(words, "Use a tokenizer that knows this language: ftcli train-tokenizer makes one of the data.", **evidence)
    return passed(words, **evidence)


def ends(probe: Probe) -> Check:
    import numpy as np

    from ftcli.core.storage.documents import documents, ended
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import passed, warned

    if probe.task_name != "pretrain":
        raise Missing(f"mode {probe.task_name} learns no end of a text")
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
        return warned(words, "Prepare the data with --add-eos: a model that sees no end does not learn to stop.", share=share, eos=eos)
    return passed(words, share=share, eos=eos)


def _sample(probe: Probe, most: int) -> NDArray[np.int64]:
    import numpy as np

    split = probe.train_split
    if len(split) <= most:
        return np.arange(len(split))
    return np.sort(np.random.default_rng(0).choice(len(split), size=most, replace=False))


def _decoded(probe: Probe) -> tuple[list[int], list[str]]:
    """Beginnings of train rows as the tokens' own bytes spell them: a decoder may not know how, and what a cut left of a character is no damage."""
    from ftcli.core.storage.encoding_damage import REPLACEMENT

    rows = _sample(probe, SAMPLE)
    ids, pieces, known = probe.train_split.rows(rows).input_ids, probe.pieces, len(probe.tokenizer)
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
