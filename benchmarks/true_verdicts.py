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


BERTS = ("bert-base-multilingual-cased", "bert-base-uncased", "koelectra-v3")
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
    *(
        Known("FT113", "bert-base-uncased", dataset, "*", "no token for most Hangul")
        for dataset in ("goemotions_ko", "ko_docs_long", "kor_law", "kornlu", "nsmc_raw", "react_docs_ko", "songys_chatbot")
    ),
    *(
        Known("FT113", "bert-base-multilingual-cased", dataset, "*", "no token for the backtick, nor for some Hangul and emoji")
        for dataset in ("code_sympy", "ko_docs_long", "nsmc_raw", "react_docs_ko", "songys_chatbot")
    ),
    *(
        Known("FT113", "t5-small", dataset, "*", "T5 has no token for Hangul, nor for <, {, } and the backslash of code")
        for dataset in ("code_sympy", "goemotions_ko", "gpteacher", "kor_law", "kornlu", "nsmc_raw", "react_docs_ko")
    ),
    Known("FT113", "koelectra-v3", "world_cities", "*", "no token for many letters of the names, such as ả, ṭ and ŏ"),
    *(
        Known("FT115", tokenizer, dataset, "*", "few Hangul in its vocabulary")
        for tokenizer in ("deepseek-coder", "gpt2", "phi-2", "phi-3-mini")
        for dataset in ("goemotions_ko", "ko_docs_long", "kor_law", "kornlu", "nsmc_raw", "react_docs_ko", "songys_chatbot")
    ),
    *(
        Known("FT115", "kobart", dataset, "*", "a vocabulary of 30,000 made of Korean text, which cuts other words into letters")
        for dataset in ("code_sympy", "en_docs_long", "world_cities")
    ),
    *(
        Known("FT110", tokenizer, "*", "pretrain", "its model has 512 positions, and rows of 1,024 tokens were asked for")
        for tokenizer in (*BERTS, "t5-small")
    ),
    *(
        Known("FT204", "*", dataset, "pretrain", "documents longer than the 1,024 tokens that were asked for")
        for dataset in ("code_sympy", "en_docs_long", "ko_docs_long", "react_docs_ko", "self_instruct", "state_union")
    ),
    Known("FT203", "*", "nsmc_raw", "classify", "ten ratings: in a part of the rows some stand in the validation split alone"),
    Known("FT203", "*", "onet_tasks", "classify", "hundreds of classes: in a part of the rows some stand in the validation split alone"),
    Known(
        "FT205", "*", "kor_law", "pretrain*", "26 of its 1,682 different texts are another one but for spaces, and ftcli splits by content"
    ),
    Known("FT207", "*", "onet_tasks", "classify", "tasks that several occupations have"),
    Known("FT208", "*", "state_union", "pretrain*", "some files are not UTF-8, and are read here with replacement characters"),
)


def why_true(check: str, tokenizer: str, dataset: str, mode: str) -> str | None:
    """Why a verdict is right; None where nobody has looked into it."""
    for known in TRUE:
        patterns = ((check, known.check), (tokenizer, known.tokenizer), (dataset, known.dataset), (mode, known.mode))
        if all(fnmatchcase(value, pattern) for value, pattern in patterns):
            return known.why
    return None
