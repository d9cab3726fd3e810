"""What is measured, and what is required of it."""

from __future__ import annotations

from dataclasses import dataclass

JOB_SECONDS = 300.0
JOB_RSS_MB = 2_000.0
SCALING = 1.8


@dataclass(frozen=True, slots=True)
class Work:
    """One comparison: an input with a tokenizer."""

    name: str
    source: str
    """Name of an input in `inputs.Library`."""
    tokenizer: str
    """Folder in the data's tokenizers, or "llama-3-style", which is made."""
    over_naive: float
    """How many times as fast as the usual way it has to be."""
    of_engine: float | None = None
    """Share of the engine's own speed that the pipeline has to reach; None: it is only reported."""


WORKS = {
    "docs": (Work("docs", "docs", "qwen3", 30, 0.6),),
    "nsmc": (Work("nsmc", "nsmc", "qwen3", 25, 0.6),),
    "nsmc-parquet": (Work("nsmc-parquet", "nsmc-parquet", "qwen3", 30, 0.7),),
    "code": (Work("code", "code", "qwen3", 30, 0.6),),
    "tokenizers": (
        Work("docs, gpt2", "docs", "gpt2", 25),
        Work("docs, llama-3-style", "docs", "llama-3-style", 25),
        Work("docs, mistral-7b-v0.1", "docs", "mistral-7b-v0.1", 8),
        Work("docs, bert-base-uncased", "docs", "bert-base-uncased", 10),
        Work("docs, t5-small", "docs", "t5-small", 8),
    ),
}
"""By the name on the command line; "sft", "scaling", "job" and "megatron" are measured in their own ways."""
NAMES = (*WORKS, "sft", "scaling", "job", "megatron")
