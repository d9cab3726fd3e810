"""Megatron-LM's way, as a program: transformers row by row in a pool of processes, and one process that writes the indexed dataset.

It is what Megatron-LM's tools/preprocess_data.py does, which megatron-core's wheel does not contain, with that wheel's `IndexedDatasetBuilder`.

Source: https://github.com/NVIDIA/Megatron-LM, tools/preprocess_data.py (read for what is done in which process).
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from functools import cache, partial
from typing import Any

ROWS_AT_A_TIME = 32


@cache
def load(path: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def encode(line: str, path: str) -> list[int]:
    ids: list[int] = load(path)(json.loads(line)["text"])["input_ids"]
    return ids


def main(path: str, tokenizer_path: str, prefix: str, workers: int) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=DType.optimal_dtype(len(load(tokenizer_path))))
    rows = tokens = 0
    with open(path, encoding="utf-8") as lines, multiprocessing.Pool(workers) as pool:  # noqa: PTH123 - as long as a line is a row
        for ids in pool.imap(partial(encode, path=tokenizer_path), lines, ROWS_AT_A_TIME):
            builder.add_document(torch.tensor(ids), [len(ids)])
            rows, tokens = rows + 1, tokens + len(ids)
    builder.finalize(f"{prefix}.idx")
    print(json.dumps({"rows": rows, "tokens": tokens}))


if __name__ == "__main__":
    from benchmarks import megatron_way  # by its name, so that the workers import `encode`

    megatron_way.main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
