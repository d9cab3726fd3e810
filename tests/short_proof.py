"""Engines are tried on a hundredth of the corpus wherever a test is not about the proof itself: all of it takes 12 s of CPU a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ftcli.core.engines import adversarial, proof
from ftcli.core.engines.adversarial import Run

LONG = 1_200
"""Characters of the longest texts."""


@cache
def sweep(unknown: bool) -> list[Run]:
    return adversarial.sweep(unknown)[::100]


def texts(added: Sequence[str], vocabulary: Sequence[str]) -> list[str]:
    before, adversarial.LONG = adversarial.LONG, LONG
    try:
        return [*adversarial._around(added), *adversarial.texts((), vocabulary)[::20]]
    finally:
        adversarial.LONG = before


WHOLE = {name: vars(proof)[name] for name in ("sweep", "texts")}
SHORT = {"sweep": sweep, "texts": texts}


def decide(whole: bool) -> None:
    """What the proof of the next engine covers."""
    vars(proof).update(WHOLE if whole else SHORT)
