"""From a slow tokenizer to a fast one, tried for real: the folder's own tokenizer.json, then transformers' converters; each may refuse, or give other ids."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftcli.core.engines.adversarial import WORDS

MOST_TEXTS = 500
MOST_CHARACTERS = 20_000
"""Of the user's texts: a slow tokenizer encodes 100,000 a second."""
GUESSES = ("BertConverter", "GPT2Converter")
"""Converters for classes that transformers has none for, though they are of these kinds (ProphetNet is WordPiece). Only equal ids count."""
RARE = 0.05
"""Share of the words made to differ on which a conversion may differ: Python's Unicode tables are older than those of tokenizers, so that a slow BERT drops
new emoji which a fast one calls unknown."""
CONVERTERS = "transformers.convert_slow_tokenizer"


@dataclass(frozen=True, slots=True)
class Conversion:
    """`how` names what gives the same ids on `compared` texts, all of the user's among them: "tokenizer.json" or a converter; "" when nothing does.
    `why` says what differs."""

    how: str = ""
    compared: int = 0
    why: str = ""

    def words(self, path: str) -> str:
        """What to do with the folder."""
        if self.how == "tokenizer.json":
            return 'Set "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json.'
        folder = path.replace("\\", "/").replace("'", "")
        return (
            'Convert it: python -c "from transformers import AutoTokenizer, PreTrainedTokenizerFast as Fast; '
            f"from {CONVERTERS} import {self.how} as C; t = AutoTokenizer.from_pretrained('{folder}'); "
            "Fast(tokenizer_object=C(t).converted(), **t.special_tokens_map).save_pretrained('fast-tokenizer')\", and give --tokenizer-path fast-tokenizer."
        )


def convert(tokenizer: Any, path: str, texts: Sequence[str]) -> Conversion:
    """Make fast tokenizers in memory and compare their ids, with and without special tokens, on `texts` and some that are made to differ.

    Args:
        tokenizer: a slow one.
        path: its folder (or hub id).
        texts: of the user; few are taken.
    """
    own = list(_few(texts))
    pairs = [(text, ids) for text in (*own, *WORDS) if (ids := _both(tokenizer, text)) is not None]
    compared, slow = [text for text, _ in pairs], [ids for _, ids in pairs]
    different = ""
    for how, make in _ways(tokenizer, Path(path)):
        try:
            fast = make()
            made = [_both(fast, text) for text in compared]
        except Exception:  # noqa: BLE001, S112 - converters assume what they like
            continue
        wrong = [row for row, ids in enumerate(made) if ids != slow[row]]
        first = ""
        if wrong:
            one, other = (made[wrong[0]] or ([], []))[0][:8], slow[wrong[0]][0][:8]
            first = f"{compared[wrong[0]][:40]!r} becomes {one}, not {other}"
        if not wrong or (wrong[0] >= len(own) and len(wrong) <= RARE * len(WORDS)):
            return Conversion(how, len(compared) - len(wrong), f"not on {len(wrong)} rare ones: {first}" if wrong else "")
        if how not in GUESSES:
            different = f"{how} gives other ids for {len(wrong)} of {len(compared)} texts: {first}"
    return Conversion(compared=len(compared), why=different or f"transformers has no conversion for {type(tokenizer).__name__}")


def _ways(tokenizer: Any, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    from transformers import PreTrainedTokenizerFast

    special = tokenizer.special_tokens_map
    file = folder / "tokenizer.json"
    if file.is_file():
        yield "tokenizer.json", lambda: PreTrainedTokenizerFast(tokenizer_file=str(file), **special)
    module = importlib.import_module(CONVERTERS)
    known = [module.SLOW_TO_FAST_CONVERTERS.get(kind.__name__) for kind in type(tokenizer).__mro__]
    names = [kind.__name__ for kind in known if kind is not None]
    for name in dict.fromkeys([*names, *GUESSES]):
        converter = getattr(module, name, None)
        if converter is not None:
            yield name, lambda converter=converter: PreTrainedTokenizerFast(tokenizer_object=converter(tokenizer).converted(), **special)  # type: ignore[misc]


def _both(tokenizer: Any, text: str) -> tuple[list[int], list[int]] | None:
    """The ids with special tokens and without; None where it has none for a part of the text, as a slow CTC tokenizer without an unknown token."""
    try:
        with_, without = (tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"] for special in (True, False))
    except Exception:  # noqa: BLE001 - of a text that begins so, transformers cannot tell the kind of its ids
        return None
    return None if None in with_ else (with_, without)


def _few(texts: Sequence[str]) -> Iterator[str]:
    room = MOST_CHARACTERS
    for text in texts[:MOST_TEXTS]:
        room -= len(text)
        if room < 0:
            return
        yield text
