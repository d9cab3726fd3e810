"""Verdicts above info on the real data that were looked into and are true: what `benchmarks/false_alarms.py` need not show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Known:
    """A verdict of `check` for tokenizers, data sets and modes that match the patterns, and why it is right."""

    check: str
    tokenizer: str
    dataset: str
    mode: str
    why: str


TRUE: Sequence[Known] = (
    Known("FT101", "spm-only-mistral", "*", "*", "the folder has a SentencePiece model only, and no package that reads it is installed"),
    Known("FT101", "slow-byt5", "*", "*", "ByT5 has no fast tokenizer"),
    Known("FT102", "gpt2", "*", "classify", "the folder names no PAD token"),
    Known("FT102", "mistral-7b-v0.1", "*", "classify", "the folder names no PAD token"),
    Known("FT102", "phi-2", "*", "classify", "the folder names no PAD token"),
    Known("FT103", "deepseek-coder", "*", "pretrain", "PAD is EOS, and the rows are not packed"),
    Known("FT103", "phi-3-mini", "*", "pretrain", "PAD is EOS, and the rows are not packed"),
    Known("FT103", "deepseek-coder", "*", "pretrain-split", "PAD is EOS, and the rows are not packed"),
    Known("FT103", "phi-3-mini", "*", "pretrain-split", "PAD is EOS, and the rows are not packed"),
    Known("FT115", "deepseek-coder", "ko_docs_long", "*", "a tokenizer for code, which spells Hangul in bytes"),
    Known("FT203", "*", "world_cities", "classify", "244 countries: in a part of the rows some stand in the validation split alone"),
    Known("FT115", "deepseek-coder", "songys_chatbot", "*", "a tokenizer for code, which spells Hangul in bytes"),
    Known("FT115", "phi-3-mini", "songys_chatbot", "*", "Llama's vocabulary has few Hangul, the others are three bytes each"),
    Known("FT113", "t5-small", "*_docs_long", "*", "T5 has no token for Hangul, nor for <, {, } and the backslash of code"),
    Known("FT113", "t5-small", "gsm8k", "*", "T5 has no token for the < of the set's calculations"),
    Known("FT113", "t5-small", "songys_chatbot", "*", "T5 has no token for Hangul"),
    Known("FT113", "t5-small", "world_cities", "*", "T5 has no token for many letters of the names, such as ā, ł and ş"),
    Known("FT106", "phi-3-mini", "*", "*", "transformers 5 leaves out the normalizer of its tokenizer.json"),
    Known(
        "FT106",
        "spm-only-mistral",
        "banking77",
        "*",
        "AutoTokenizer cuts texts with two spaces otherwise than the folder's tokenizer.model",
    ),
    Known("FT102", "spm-only-mistral", "*", "classify", "the folder names no PAD token"),
    *(
        Known("FT115", tokenizer, "kor_3i4k", "*", "few Hangul in its vocabulary")
        for tokenizer in ("bert-base-uncased", "deepseek-coder", "gpt2", "phi-2", "phi-3-mini")
    ),
    *(Known("FT115", tokenizer, "goemotions_ko", "*", "few Hangul in its vocabulary") for tokenizer in ("deepseek-coder", "gpt2")),
    *(Known("FT113", tokenizer, "kor_3i4k", "*", "no token for most Hangul") for tokenizer in ("bert-base-uncased", "t5-small")),
    Known("FT113", "bert-base-uncased", "goemotions_ko", "*", "no token for most Hangul"),
)


def why_true(check: str, tokenizer: str, dataset: str, mode: str) -> str | None:
    """Why a verdict is right; None where nobody has looked into it."""
    for known in TRUE:
        patterns = ((check, known.check), (tokenizer, known.tokenizer), (dataset, known.dataset), (mode, known.mode))
        if all(fnmatchcase(value, pattern) for value, pattern in patterns):
            return known.why
    return None
