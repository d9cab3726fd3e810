"""The usual way, as a program: load_dataset, `map(batched=True)`, save_to_disk.

Every worker loads the tokenizer from its folder. Handed over by `map` it would be pickled, by way of JSON, which changes the last digit of
Unigram scores: T5 then cuts a row of dashes elsewhere than `AutoTokenizer.from_pretrained` does.
"""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from typing import Any


@cache
def load(path: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def encode(batch: dict[str, list[Any]], path: str) -> Any:
    if "messages" in batch:
        return {"input_ids": load(path).apply_chat_template(batch["messages"], tokenize=True)["input_ids"]}
    return load(path)(batch["text"])


def main(path: str, tokenizer_path: str, output: str, workers: int) -> None:
    clock = time.perf_counter()
    from datasets import load_dataset

    seconds = {"start": time.perf_counter() - clock}
    clock = time.perf_counter()
    kind = "parquet" if path.endswith(".parquet") else "json"
    rows = load_dataset(kind, data_files=path, split="train")
    seconds["load_dataset"] = time.perf_counter() - clock
    clock = time.perf_counter()
    options = {"batched": True, "num_proc": workers, "remove_columns": rows.column_names, "fn_kwargs": {"path": tokenizer_path}}
    ids = rows.map(encode, **options)
    seconds["map"] = time.perf_counter() - clock
    clock = time.perf_counter()
    ids.save_to_disk(output)
    seconds["save_to_disk"] = time.perf_counter() - clock
    print(json.dumps({"rows": len(rows), "seconds": seconds}))


if __name__ == "__main__":
    from benchmarks import naive  # by its name, so that the workers import `encode` instead of getting this module's pieces pickled

    naive.main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
