"""Readers of other projects, run in a Python that has them: their requirements do not fit with ours (mosaicml-streaming wants transformers < 5)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from timing import PATIENCE

VARIABLE = "FOREIGN_READERS"
"""A Python with megatron-core, datatrove and mosaicml-streaming; unset: the one that runs the tests."""

SCRIPTS = {
    "megatron": """
from megatron.core.datasets.indexed_dataset import IndexedDataset
data = IndexedDataset(sys.argv[1])
answer = {"texts": [data[i].tolist() for i in range(len(data))], "documents": data.document_indices.tolist(), "dtype": data.index.dtype.__name__}
""",
    "megatron-writer": """
import numpy, torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
builder = IndexedDatasetBuilder(sys.argv[1] + ".bin", dtype=getattr(numpy, sys.argv[3]))
for text in json.loads(sys.argv[2]):
    builder.add_document(torch.tensor(text), [len(text)])
builder.finalize(sys.argv[1] + ".idx")
answer = None
""",
    "nanotron": """
from datatrove.utils.dataset import DatatroveFolderDataset
data = DatatroveFolderDataset(sys.argv[1], seq_len=int(sys.argv[2]) - 1, token_size=int(sys.argv[3]), return_positions=True)
answer = [{name: value.tolist() for name, value in data[i].items()} for i in range(len(data))]
""",
    "nanotron-writer": """
import numpy
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
texts, losses, width = json.loads(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
file = TokenizedFile(sys.argv[1], "00000_unshuffled.ds", save_loss_metadata=losses is not None, save_final_metadata=True,
                     tokenizer_name_or_path="tokenizer", token_size=width)
for number, text in enumerate(texts):
    file.write(text, None if losses is None else numpy.array(losses[number], bool))
file.close()
answer = None
""",
    "mds": """
from streaming.base.format import reader_from_json
rows = []
for shard in json.load(open(sys.argv[1] + "/index.json"))["shards"]:
    reader = reader_from_json(sys.argv[1], "", shard)
    rows += [{name: value.tolist() if hasattr(value, "tolist") else value for name, value in reader[i].items()} for i in range(len(reader))]
answer = rows
""",
    "mds-writer": """
import numpy
from streaming import MDSWriter
columns = json.loads(sys.argv[2])
with MDSWriter(columns=columns, out=sys.argv[1]) as writer:
    for row in json.loads(sys.argv[3]):
        writer.write({name: value if columns[name] == "int" else numpy.array(value, numpy.int32) for name, value in row.items()})
answer = None
""",
}


def call(script: str, *arguments: object) -> Any:
    """What a script of `SCRIPTS` answers; the test is skipped where its package is missing."""
    done = _run(script, tuple(map(str, arguments)))
    missing = [line for line in done.stderr.splitlines() if line.startswith(("ModuleNotFoundError", "ImportError"))]
    if done.returncode and missing:
        pytest.skip(f"the reader of {script.partition('-')[0]} is not installed: {missing[-1]}; name a Python that has it in {VARIABLE}")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@cache
def _run(script: str, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    code = f"import json, sys\n{SCRIPTS[script]}\nprint(json.dumps(answer))"
    python = os.environ.get(VARIABLE) or sys.executable
    return subprocess.run(
        [python, "-W", "ignore", "-c", code, *arguments], capture_output=True, text=True, timeout=PATIENCE, cwd=Path.home()
    )
