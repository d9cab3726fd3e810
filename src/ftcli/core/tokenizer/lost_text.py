"""Rows that do not come back from their ids: said before the work, which would otherwise publish data without their text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ftcli.context import Context
from ftcli.core.engines.guard import guarded
from ftcli.core.figures import percent
from ftcli.core.files.cached_document import forget, kept
from ftcli.core.files.manifest import hash_bytes
from ftcli.core.reading.receipt import tokenizer_key
from ftcli.core.tokenizer.round_trip import MOSTLY, Ids, folded
from ftcli.errors import EngineError

ROWS = 40
CHARACTERS = 100
"""Rows, and characters of each, that are looked at."""
KEPT = 32


def lost_text(context: Context, tokenizer: Any, texts: Sequence[str]) -> str:
    """What to say of a tokenizer that loses much of these rows, by what FT112 and FT113 fail; "" of any other.

    Args:
        tokenizer: of the run, loaded or known.
    """
    some = [text[:CHARACTERS] for text in texts[:: -(-len(texts) // ROWS) or 1] if text.strip()]

    path, sources = context.settings.tokenizer.path or "", context.settings.dataset.sources or ("SOURCE",)

    def compute() -> dict[str, Any]:
        with suppress(EngineError), guarded("the tokenizer"):  # one without an unknown token may know a text, and not the beginning of it
            return {"words": _words(tokenizer, Ids(tokenizer, some), Path(path) / "tokenizer.json")}
        return {"words": ""}

    if (key := tokenizer_key(context)) is None:
        words = compute()["words"]
    else:
        words = kept(context.cache_dir / f"lost-{hash_bytes(chr(0).join((key, *some)).encode())}.json", compute)["words"]
        forget(context.cache_dir, "lost-*.json", KEPT)
    return words and f"{words}; ftcli verify --tokenizer-path {path} --dataset {sources[0]} says more"


def _words(tokenizer: Any, ids: Ids, own: Path) -> str:
    lost, unknown = ids.lost_share, ids.unknown_share
    if max(lost, unknown) <= MOSTLY:
        return ""
    if lost > MOSTLY:
        text, back = ids.trip.example or ("", "")
        what = f"{percent(lost)} of the characters of {len(ids.texts)} rows do not come back from their ids: {text[:40]!r} comes back as {back[:40]!r}"
    else:
        text = next(text for text, row in zip(ids.texts, ids.rows, strict=True) if tokenizer.unk_token_id in row)
        what = f"{percent(unknown)} of the tokens of {len(ids.texts)} rows are {tokenizer.unk_token!r}, as in {text[:40]!r}"
    advice = "Use a tokenizer made for this text, or train one: ftcli train-tokenizer SOURCE --output DIR"
    if _comes_back(own, ids.texts):
        what += ". By the folder's own tokenizer.json they do, which AutoTokenizer follows only in part, because of the class in tokenizer_config.json"
        advice = "If the model was trained with that file, set tokenizer_class to PreTrainedTokenizerFast there"
    return f"the tokenizer loses much of the text: {what}. {advice}"


def _comes_back(path: Path, texts: Sequence[str]) -> bool:
    """Whether most of the texts come back from the ids that a tokenizer.json gives them by itself."""
    if not path.is_file():
        return False
    with suppress(EngineError), guarded(str(path)):
        own: Any = Tokenizer.from_file(str(path))
        own.no_truncation()
        own.no_padding()
        rows = [own.encode(text, add_special_tokens=False).ids for text in texts]
        back = [own.decode(row, skip_special_tokens=False) for row in rows]
        return sum(folded(one) == folded(other) for one, other in zip(texts, back, strict=True)) > len(texts) / 2
    return False
