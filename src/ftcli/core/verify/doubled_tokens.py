"""BOS or EOS that stands in the text and is added once more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ftcli.core.verify.probe import Missing
from ftcli.errors import FtcliError, TokenizerError

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

MOST_ROWS = 1000
MOST_WORDS = 100


@dataclass(frozen=True, slots=True)
class Doubles:
    """Rows that begin with `begin` twice or end with `end` twice."""

    rows: int
    """How many were looked at."""
    where: str
    first: list[int]
    last: list[int]
    begin: str | None
    end: str | None
    template: bool
    """The chat template writes `begin`, and the tokenizer adds it as well."""


def doubles(probe: Probe) -> Doubles:
    """Prepared rows as they are; else the texts as `tokenize` would encode them; else the tokenizer alone (0 rows)."""
    tokenizer = probe.tokenizer
    before, after = added(tokenizer) or ([], [])
    begin = before[-1] if before else tokenizer.bos_token_id
    end = after[0] if after else tokenizer.eos_token_id
    rows, where, numbers = _rows(probe, before, after)
    first = [
        number
        for number, row in zip(numbers, rows, strict=True)
        if begin is not None and _twice(row[len(before) - 1 if before else 0 :], begin)
    ]
    last = [
        number
        for number, row in zip(numbers, rows, strict=True)
        if end is not None and _twice(row[::-1][len(after) - 1 if after else 0 :], end)
    ]
    names = [None if number is None else str(tokenizer.convert_ids_to_tokens(number)) for number in (begin, end)]
    return Doubles(len(rows), where, first, last, names[0], names[1], bool(before) and _template_begins(tokenizer, begin))


def _twice(row: list[int], token: int) -> bool:
    return row[:2] == [token, token]


def added(tokenizer: Any) -> tuple[list[int], list[int]] | None:
    """The ids that the tokenizer puts before a text and behind it; None where it changes those of the text itself.

    Asked with "a", or, of a tokenizer that neither knows that letter nor has an unknown token, with a word of its vocabulary.

    Raises:
        TokenizerError: it encodes none of them.
    """
    failure: Exception | None = None
    for text in islice(_words(tokenizer), MOST_WORDS):
        try:
            with_, without = (tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"] for special in (True, False))
        except Exception as error:  # noqa: BLE001 - tokenizers raises nothing more special
            failure = failure or error
            continue
        for start in range(len(with_) - len(without) + 1):
            if with_[start : start + len(without)] == without:
                return with_[:start], with_[start + len(without) :]
        return None
    raise TokenizerError(f"the tokenizer cannot encode 'a': {failure}", "Use another tokenizer.") from failure


def _words(tokenizer: Any) -> Iterator[str]:
    yield "a"
    yield from (word for word, _ in sorted(tokenizer.get_vocab().items(), key=itemgetter(1)) if word.isalpha())


def _rows(probe: Probe, before: list[int], after: list[int]) -> tuple[list[list[int]], str, list[int]]:
    try:
        split = probe.train_split
        if not split.packed and len(split):
            drawn = np.sort(np.random.default_rng(probe.settings.train.seed).choice(len(split), min(MOST_ROWS, len(split)), replace=False))
            found = split.rows(drawn)
            return [found.input_ids.row(row).tolist() for row in range(len(found))], "prepared rows", drawn.tolist()
    except (Missing, FtcliError):  # FT201 says what is wrong with the data
        pass
    try:
        ids = probe.text_ids.rows
    except Missing:
        return [], "rows", []
    if not probe.settings.tokenizer.add_special_tokens:
        before, after = [], []
    return [[*before, *row, *after] for row in ids], "texts", list(range(len(ids)))


def _template_begins(tokenizer: Any, begin: int) -> bool:
    """Whether the chat template itself writes the token that the tokenizer adds."""
    if not getattr(tokenizer, "chat_template", None):
        return False
    messages = [{"role": "user", "content": "a"}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # noqa: BLE001 - FT117 says what is wrong with the template
        return False
    ids = tokenizer(text, verbose=False)["input_ids"]
    return _twice(ids, begin)
