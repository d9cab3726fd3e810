"""What a tokenizer does to texts: which come back from their ids, which characters are lost, which texts become the same ids."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ftcli.core.engines.guard import guarded
from ftcli.errors import EngineError

WORDS = re.compile(r"[A-Za-z가-힣]\s+[A-Za-z가-힣]")
"""White space that tells two words apart, in scripts that have it."""
MOSTLY = 0.2
"""Share of the characters that are lost, or of the tokens that are the unknown one, above which little of the text reaches the model: T5 on Korean 25 to
50 %, BERT on Korean 4 to 8 %."""
MOST_JOINED = 200
MOST_SLOW = 20_000
"""Characters that a slow tokenizer gets: it encodes 100,000 a second."""


@dataclass(frozen=True, slots=True)
class Trip:
    """How rows come back from their ids. A row counts under the first of these that holds: exact, spaces, forms, unknown, lost."""

    exact: int = 0
    spaces: int = 0
    """Only white space or invisible characters differ."""
    forms: int = 0
    """Only case, accents or compatibility forms (NFKC) differ: a normaliser at work."""
    unknown: int = 0
    """Some characters became the unknown token."""
    lost: int = 0
    """Characters are gone, or others have come, without an unknown token that would say so."""
    characters: int = 0
    """Of all rows, without white space."""
    lost_characters: Counter[str] = field(default_factory=Counter)
    """Characters that are gone from rows without an unknown token."""
    unknown_characters: Counter[str] = field(default_factory=Counter)
    example: tuple[str, str] | None = None
    """The first row that lost something, and how it came back."""


class Ids:
    """Texts and their ids without what the post-processor adds.

    Args:
        tokenizer: a Hugging Face tokenizer, called a text at a time, so that no thread pool is started in a process that may fork.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.texts = list(texts) if tokenizer.is_fast else _first(texts, MOST_SLOW)
        self.rows: list[list[int]] = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in self.texts]

    @cached_property
    def tokens(self) -> int:
        return sum(map(len, self.rows))

    @cached_property
    def special_texts(self) -> Mapping[str, int]:
        """Text of every special token, with its id."""
        return dict(zip(self.tokenizer.all_special_tokens, self.tokenizer.all_special_ids, strict=True))

    @cached_property
    def special_rows(self) -> dict[str, list[int]]:
        """Special tokens whose text stands in rows and became their id there, with those rows."""
        found: dict[str, list[int]] = {}
        if not self.special_texts:
            return found
        pattern = re.compile("|".join(map(re.escape, sorted(self.special_texts, key=len, reverse=True))))
        for row, text in enumerate(self.texts):
            for token in dict.fromkeys(pattern.findall(text)):
                if self.special_texts[token] in self.rows[row]:
                    found.setdefault(token, []).append(row)
        return found

    @cached_property
    def unknown(self) -> int:
        """Unknown tokens, but for those that stand in the text as such."""
        unk = self.tokenizer.unk_token_id
        if unk is None:
            return 0
        written = sum(self.texts[row].count(self.tokenizer.unk_token) for row in self.special_rows.get(self.tokenizer.unk_token, ()))
        return max(0, sum(row.count(unk) for row in self.rows) - written)

    @cached_property
    def unknown_share(self) -> float:
        return self.unknown / max(1, self.tokens)

    @cached_property
    def lost_share(self) -> float:
        """Of the characters, without white space and without an unknown token that would say so."""
        return self.trip.lost_characters.total() / max(1, self.trip.characters)

    @cached_property
    def trip(self) -> Trip:
        counts: Counter[str] = Counter()
        lost: Counter[str] = Counter()
        unknown: Counter[str] = Counter()
        example: tuple[str, str] | None = None
        unk, unk_text = self.tokenizer.unk_token_id, self.tokenizer.unk_token or ""
        for text, ids in zip(self.texts, self.rows, strict=True):
            known = [token for token in ids if token != unk]
            back = self.tokenizer.decode(known, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            kind = _kind(text, back)
            if kind is not None:
                counts[kind] += 1
                continue
            there = text.replace(unk_text, "") if unk_text and len(known) < len(ids) else text
            one, other = Counter(folded(there)), Counter(folded(back))
            if len(known) < len(ids):
                counts["unknown"] += 1
                unknown.update(one - other)
                continue
            counts["lost"] += 1
            lost.update(one - other)
            example = example or (text, back)
        characters = sum(len("".join(text.split())) for text in self.texts)
        return Trip(
            **counts, characters=characters, lost_characters=self._named(lost), unknown_characters=self._named(unknown), example=example
        )

    def _named(self, found: Counter[str]) -> Counter[str]:
        """The same characters as they stand in the texts."""
        if not found:
            return found
        written = {folded(character): character for character in sorted(set("".join(self.texts)))}
        return Counter({written.get(character, character): times for character, times in found.items()})

    @cached_property
    def collisions(self) -> list[tuple[str, str, bool]]:
        """Pairs of texts that have the same ids though they differ in more than white space, case, accents and forms, and whether an unknown token
        is among the ids."""
        seen: dict[tuple[int, ...], str] = {}
        pairs = []
        for text, ids in dict(zip(self.texts, self.rows, strict=True)).items():
            other = seen.setdefault(tuple(ids), text)
            if other != text and folded(other) != folded(text):
                pairs.append((other, text, self.tokenizer.unk_token_id in ids))
        return pairs

    @cached_property
    def joined(self) -> tuple[int, int]:
        """Texts that have the same ids without any white space, and of how many: those in which it parts Latin or Korean words."""
        parted = [number for number, text in enumerate(self.texts) if WORDS.search(text)][:MOST_JOINED]
        bare = ("".join(self.texts[number].split()) for number in parted)
        same = 0
        for number, text in zip(parted, bare, strict=True):
            with suppress(EngineError), guarded("the tokenizer"):  # one without an unknown token may not know a text without spaces
                same += self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] == self.rows[number]
        return same, len(parted)

    @cached_property
    def distinct(self) -> int:
        return len(set(self.texts))


def folded(text: str) -> str:
    """The text as normalisers make it: NFKC, without case, accents, white space and invisible characters."""
    parts = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text).casefold())
    kept = "".join(character for character in parts if character.isascii() or unicodedata.category(character) not in {"Mn", "Cc", "Cf"})
    return "".join(character for character in unicodedata.normalize("NFC", kept) if not character.isspace() and character.isprintable())


def _kind(text: str, back: str) -> str | None:
    """How a row that lost nothing came back."""
    if text == back:
        return "exact"
    if "".join(text.split()) == "".join(back.split()):
        return "spaces"
    return "forms" if folded(text) == folded(back) else None


def _first(texts: Sequence[str], most: int) -> list[str]:
    kept: list[str] = []
    for text in texts:
        kept.append(text)
        most -= len(text)
        if most < 0:
            break
    return kept
