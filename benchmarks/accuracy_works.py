"""What `benchmarks/accuracy.py` trains on: real texts with real tokenizers, and the weights that both ways start from."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.process import environment, python
from benchmarks.trim import trim

Rows = dict[str, list[tuple[str, str]]]
"""Split → (text, label)."""
WORDS = 280
A_WORD = 100
"""Reviews of each word, at most."""
HELD_OUT = 5
"""One in so many reviews of a word is held out."""
MODEL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
WHOLE = 151_936
"""Rows of Qwen3's own embedding."""


def banking77(data: Path) -> Rows:
    """Customers' questions to a bank, 77 intents, in the split they were published in."""
    folder, rows = data / "classification" / "banking77", Rows()
    for split in ("train", "test"):
        with (folder / f"{split}.csv").open(encoding="utf-8", newline="") as file:
            rows[split] = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    return rows


def nsmc(data: Path) -> Rows:
    """Reviews of films, 280 labels: which of 280 words a review is about.

    The words are the commonest of two Hangul syllables that begin the reviews' words ("연기" begins 연기, 연기가 and 연기력). A review has the label of the one such word
    that it holds; reviews with none or with several are left out. Particles that follow a word make other tokens of it, so that a model has to learn many
    spellings of each. One in five reviews of a word is held out, by the hash of its text, and copies of a text are left out.
    """
    path = data / "classification" / "nsmc_raw" / "nsmc_raw.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = list(dict.fromkeys(text for line in lines if (text := json.loads(line)["text"].strip())))
    return by_word(texts, WORDS, A_WORD)


def by_word(texts: list[str], words: int, a_word: int) -> Rows:
    """Texts by the one of the commonest `words` beginnings that they hold, at most `a_word` of each."""
    begun = [set(_BEGINNING.findall(text)) for text in texts]
    commonest = {
        word for word, _ in sorted(Counter(word for each in begun for word in each).items(), key=lambda item: (-item[1], item[0]))[:words]
    }
    taken, rows = Counter[str](), Rows(train=[], test=[])
    for text, held in zip(texts, begun, strict=True):
        if len(held & commonest) == 1:
            [word] = held & commonest
            if taken[word] < a_word:
                taken[word] += 1
                rows["train" if zlib.crc32(text.encode()) % HELD_OUT else "test"].append((text, word))
    return rows


_BEGINNING = re.compile(r"(?<![가-힣])[가-힣]{2}")


@dataclass(frozen=True, slots=True)
class Work:
    """One comparison. Both ways get the same rows, epochs, batch, peak learning rate and schedule."""

    name: str
    rows: Callable[[Path], Rows]
    max_length: int
    epochs: int
    batch: int
    learning_rate: float

    def over(self, epochs: int) -> Work:
        return replace(self, epochs=epochs)


WORKS = {work.name: work for work in (Work("banking77", banking77, 128, 8, 32, 3e-3), Work("nsmc", nsmc, 160, 3, 32, 3e-3))}


@dataclass(frozen=True, slots=True)
class Made:
    """Folders of one work, and what is in them."""

    store: Path
    tokenizer: Path
    labels: int
    train_rows: int
    test_rows: int
    vocabulary: int


def make(work: Work, data: Path, folder: Path, *, whole: bool, most: int | None = None) -> Made:
    """Texts, tokenizer and data prepared by `ftcli tokenize`; what already exists is made again.

    Args:
        whole: the tokenizer as it is, and an embedding of its size; else both cut down to what the train texts need.
        most: rows of each split at most (a try).
    """
    rows = {split: _some(found, most) for split, found in work.rows(data).items()}
    place = folder / work.name
    shutil.rmtree(place, ignore_errors=True)
    (place / "texts").mkdir(parents=True)
    for split, found in rows.items():
        with (place / "texts" / f"{split}.jsonl").open("w", encoding="utf-8") as out:
            out.writelines(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n" for text, label in found)
    own = data / "tokenizers" / "qwen3"
    tokenizer = own if whole else place / "tokenizer"
    vocabulary = WHOLE if whole else trim(own, tokenizer, [text for text, _ in rows["train"]])
    words: list[str | Path] = ["tokenize", place / "texts", "--label-column", "label", "--tokenizer-path", tokenizer]
    words += ["--max-length", str(work.max_length), "--output-dir", place / "store", "--report-dir", folder / "reports"]
    process.run(python("-m", "ftcli", *words), os.sched_getaffinity(0), environment(folder), folder)
    labels = len({label for found in rows.values() for _, label in found})
    return Made(place / "store", tokenizer, labels, len(rows["train"]), len(rows["test"]), vocabulary)


def start(made: Made, seed: int, folder: Path, values: dict[str, Any] | None = None) -> Path:
    """Random weights of a small Qwen3 classifier for the prepared data, the same for both ways."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made.tokenizer)
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model("qwen3", **(values or MODEL), vocab_size=made.vocabulary, num_labels=made.labels, **ends)
    torch.manual_seed(seed)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(str(folder))
    return folder


def _some(rows: list[tuple[str, str]], most: int | None) -> list[tuple[str, str]]:
    """At most so many rows, spread over all."""
    return rows if most is None or most >= len(rows) else rows[:: -(-len(rows) // most)]
