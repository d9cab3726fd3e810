"""Unigram scores that survive a fast but inexact JSON parser.

`tokenizers` and splintr read JSON with serde_json, which takes a decimal as digits / 10^places in two roundings: 8,334 of T5's 32,100 scores
come back one unit in the last place off, and a row of dashes is then cut elsewhere.
"""

from __future__ import annotations

import json
import math
from typing import Any

from tokenizers import Tokenizer, models

from ftcli.errors import EngineError

_MODEL = '"model":{"type":"Unigram"'
_LARGEST = 2.0**64
"""Digits that such a parser counts fit into 64 bits."""


def restore(backend_json: str) -> Any:
    """The backend that was serialised, with its exact scores."""
    backend = Tokenizer.from_str(backend_json)
    start = backend_json.rfind(_MODEL)
    if start >= 0:
        model = json.JSONDecoder().raw_decode(backend_json, start + len('"model":'))[0]
        vocabulary = [(token, score) for token, score in model["vocab"]]
        backend.model = models.Unigram(vocabulary, model["unk_id"], model["byte_fallback"])
    return backend


def with_surviving_scores(backend_json: str) -> str:
    """A serialised Unigram tokenizer with decimals that digits / 10^places turns into the scores; any other tokenizer unchanged.

    Raises:
        EngineError: some scores have no such decimal.
    """
    model = backend_json.rfind(_MODEL)
    if model < 0:
        return backend_json
    start = backend_json.index('"vocab":', model) + len('"vocab":')
    entries, end = json.JSONDecoder().raw_decode(backend_json, start)
    texts = [decimal_text(score) for _, score in entries]
    lost = sum(text is None for text in texts)
    if lost:
        raise EngineError(f"the scores of {lost:,} of {len(texts):,} tokens cannot be handed over exactly")
    rows = (f"[{json.dumps(token, ensure_ascii=False)},{text}]" for (token, _), text in zip(entries, texts, strict=True))
    return f"{backend_json[:start]}[{','.join(rows)}]{backend_json[end:]}"


def decimal_text(number: float) -> str | None:
    """The shortest text, or one with other last digits, of which digits / 10^places gives `number`; None for the 0.2 % that have none."""
    shortest = repr(number)
    digits, _, fraction = shortest.lstrip("-").partition(".")
    if (digits + fraction).isdecimal() and float(digits + fraction) / 10.0 ** len(fraction) == abs(number):
        return shortest
    for places in range(20):
        scaled = abs(number) * 10.0**places
        for candidate in (scaled, math.nextafter(scaled, math.inf), math.nextafter(scaled, 0.0)):
            if candidate < _LARGEST and candidate.is_integer() and candidate / 10.0**places == abs(number):
                text = f"{int(candidate):0{places + 1}d}"
                return f"{'-' if number < 0 else ''}{text[: len(text) - places]}.{text[len(text) - places :] or '0'}"
    return None
