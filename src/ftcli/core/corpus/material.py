"""Tables of finished sentences that the sample corpus draws from: every slot is filled here once, so that a row is made of look-ups."""

from __future__ import annotations

import itertools
import math
import operator
import random
from collections import ChainMap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ftcli.core.corpus import filler
from ftcli.core.corpus.grammar import AREAS, INTENTS, OTHER_AREA, OTHER_INTENT

Language = Literal["ko", "en", "mixed"]

_VARIANTS = 128  # filled forms of a neutral template
_PEOPLE = 128  # signed forms of an opening with a closing
_VALUES = 1024  # dates and amounts


@dataclass(frozen=True, slots=True)
class Material:
    """What rows of one language are made of."""

    prefix: str
    labelled: tuple[tuple[tuple[str, ...], ...], ...]
    """By label number and noun of its area: the sentences that say it."""
    topics: tuple[tuple[str, ...], ...]
    """By label number and noun: the label in a few words."""
    neutral: tuple[str, ...]
    """Filled sentences, template after template, over and over."""
    strides: tuple[int, ...]
    """Steps through `neutral` that come back to a template only after all others."""
    people: tuple[tuple[str, str], ...]
    """An opening and a closing signed by the same person."""
    references: tuple[str, ...]
    """Templates with the slots ticket, date, amount and topic."""
    dates: tuple[str, ...]
    amounts: tuple[str, ...]
    other_areas: tuple[str, ...]
    other_intents: tuple[str, ...]


def pair(label: int) -> tuple[int, int]:
    """Area and intent of a label number; neighbours differ in both, and 0 to 279 cover every pair once."""
    area, turn = label % len(AREAS), label // len(AREAS)
    return area, (area + turn) % len(INTENTS)


@cache
def material(language: Language) -> Material:
    """The tables of one language, always the same; the mixed ones hold both, so that a row changes language between its sentences."""
    if language == "mixed":
        return _mixed(material("ko"), material("en"))
    korean = language == "ko"
    slots = _Slots(language)
    sentences = filler.KOREAN_SENTENCES if korean else filler.ENGLISH_SENTENCES
    openings = filler.KOREAN_OPENINGS if korean else filler.ENGLISH_OPENINGS
    closings = filler.KOREAN_CLOSINGS if korean else filler.ENGLISH_CLOSINGS
    nouns = [area.korean if korean else area.english for area in AREAS]
    patterns = [intent.korean if korean else intent.english for intent in INTENTS]
    pairs = [pair(label) for label in range(len(AREAS) * len(INTENTS))]
    return Material(
        prefix="KR" if korean else "PO",
        labelled=tuple(tuple(_filled(patterns[intent], [noun]) for noun in nouns[area]) for area, intent in pairs),
        topics=tuple(tuple(f"{noun} {INTENTS[intent].topic[korean]}" for noun in nouns[area]) for area, intent in pairs),
        neutral=tuple(template.format_map(slots) for _ in range(_VARIANTS) for template in sentences),
        strides=_strides(len(sentences)),
        people=tuple(_signed(slots, *couple) for _ in range(_PEOPLE) for couple in itertools.product(openings, closings)),
        references=filler.KOREAN_REFERENCES if korean else filler.ENGLISH_REFERENCES,
        dates=tuple(slots["date"] for _ in range(_VALUES)),
        amounts=tuple(slots["amount"] for _ in range(_VALUES)),
        other_areas=_filled(OTHER_AREA[korean], itertools.chain(*nouns)),
        other_intents=_filled(OTHER_INTENT[korean], (intent.topic[korean] for intent in INTENTS)),
    )


def _mixed(korean: Material, english: Material) -> Material:
    k, e = len(filler.KOREAN_SENTENCES), len(filler.ENGLISH_SENTENCES)
    rounds = (korean.neutral[n * k : (n + 1) * k] + english.neutral[n * e : (n + 1) * e] for n in range(_VARIANTS))
    return Material(
        prefix="ORD",
        labelled=tuple(tuple(map(operator.add, *both)) for both in zip(korean.labelled, english.labelled, strict=True)),
        topics=english.topics,
        neutral=tuple(itertools.chain.from_iterable(rounds)),
        strides=_strides(k + e),
        people=korean.people + english.people,
        references=korean.references + english.references,
        dates=korean.dates + english.dates,
        amounts=korean.amounts + english.amounts,
        other_areas=korean.other_areas + english.other_areas,
        other_intents=korean.other_intents + english.other_intents,
    )


def _strides(templates: int) -> tuple[int, ...]:
    return tuple(step for step in range(1, 32 * templates) if math.gcd(step, templates) == 1)


def _filled(patterns: Iterable[str], nouns: Iterable[str]) -> tuple[str, ...]:
    return tuple(pattern.format(x=noun, **_particles(noun)) for noun, pattern in itertools.product(nouns, patterns))


def _particles(noun: str) -> dict[str, str]:
    closed = "가" <= noun[-1] <= "힣" and (ord(noun[-1]) - ord("가")) % 28 > 0
    return {"을": "을" if closed else "를", "이": "이" if closed else "가", "은": "은" if closed else "는", "와": "과" if closed else "와"}


def _signed(slots: _Slots, opening: str, closing: str) -> tuple[str, str]:
    person = ChainMap({"name": slots["name"], "firm": slots["firm"]}, slots)
    return opening.format_map(person), closing.format_map(person)


class _Slots(dict[str, str]):
    """A mapping for `str.format_map` that fills a slot anew each time."""

    def __init__(self, language: Literal["ko", "en"]) -> None:
        super().__init__()
        self._rng = random.Random(language)
        self._korean = language == "ko"

    def __missing__(self, slot: str) -> str:
        return _SLOTS[slot](self._rng, self._korean)


def _name(rng: random.Random, korean: bool) -> str:
    return "".join(map(rng.choice, filler.KOREAN_NAMES)) if korean else " ".join(map(rng.choice, filler.ENGLISH_NAMES))


def _firm(rng: random.Random, korean: bool) -> str:
    return "".join(map(rng.choice, filler.KOREAN_FIRMS if korean else filler.ENGLISH_FIRMS))


def _date(rng: random.Random, korean: bool) -> str:
    year, month, day = rng.randint(2024, 2026), rng.randint(1, 12), rng.randint(1, 28)
    return f"{year}년 {month}월 {day}일" if korean else f"{day} {filler.ENGLISH_MONTHS[month - 1]} {year}"


def _amount(rng: random.Random, korean: bool) -> str:
    whole = rng.randint(1, 9999)
    return f"{whole * 1000:,}원" if korean else f"USD {whole:,}.{rng.randint(0, 99):02}"


def _phone(rng: random.Random, korean: bool) -> str:
    return f"{'010' if korean else '+82 2'}-{rng.randint(0, 9999):04}-{rng.randint(0, 9999):04}"


def _time(rng: random.Random, korean: bool) -> str:
    hour, minute = rng.randint(1, 5), rng.choice((0, 10, 15, 20, 30, 40, 45, 50))
    return f"오후 {hour}시 {minute}분" if korean else f"{hour}:{minute:02} pm"


_SLOTS: dict[str, Callable[[random.Random, bool], str]] = {
    "name": _name,
    "firm": _firm,
    "date": _date,
    "amount": _amount,
    "phone": _phone,
    "time": _time,
    "city": lambda rng, korean: rng.choice(filler.KOREAN_CITIES if korean else filler.ENGLISH_CITIES),
    "day": lambda rng, korean: rng.choice(filler.KOREAN_DAYS if korean else filler.ENGLISH_DAYS),
    "month": lambda rng, korean: str(rng.randint(1, 12)) if korean else rng.choice(filler.ENGLISH_MONTHS),
    "few": lambda rng, _: str(rng.randint(2, 9)),
    "nth": lambda rng, _: rng.choice(("second", "third", "fourth", "fifth")),
    "year": lambda rng, _: str(rng.randint(2009, 2025)),
    "hour": lambda rng, _: str(rng.randint(4, 7)),
    "count": lambda rng, _: str(rng.randint(2, 90)),
    "code": lambda rng, _: f"{rng.choice('ABCDEFGHKMNPRSTVWX')}{rng.choice('ABCDEFGHKMNPRSTVWX')}-{rng.randint(100, 9999)}",
    "email": lambda rng, _: f"{rng.choice(filler.ENGLISH_NAMES[1]).lower()}{rng.randint(1, 99)}@example.com",
    "file": lambda rng, _: f"{rng.choice(('report', 'letter', 'summary', 'notes', 'record'))}_{rng.randint(1000, 9999)}.pdf",
}
