"""The engine alone, as a program: all text as one Arrow array in memory, the engine loaded and warmed, then the clock."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ftcli.contracts import Encoder

CHUNK = 32_000_000
"""Text of one call. Smaller calls than the whole use memory again, which is faster than one call: the harder figure to reach."""
WARM_ROWS = 100
PATIENCE = 600.0
"""Seconds after which a process no longer waits for the others: one of them has failed."""

Span = tuple[float, float, int, int]
"""When a process began and ended, rows and bytes of text that it encoded."""


@dataclass(frozen=True, slots=True)
class Job:
    engine: str
    path: str
    """Arrow file with the column "text"."""
    tokenizer_path: str
    processes: int
    threads: int
    """Of each process."""


def load(engine: str, tokenizer_path: str, threads: int) -> Encoder:
    """The engine's encoder, without ftcli's routing of rare characters and its checks of results."""
    from ftcli.context import Context
    from ftcli.core.engines.backend import prepare_backend
    from ftcli.pluginmanager import Plugins

    folder = os.environ.get("FTCLI_PLUGINS_DIR")
    context = Context.make({"tokenizer.path": tokenizer_path}, Plugins(Path(folder) if folder else None))
    backend = prepare_backend(context.plugins.hook.load_tokenizer(settings=context.settings), tokenizer_path)
    encoder: Encoder = context.plugins.registry("engine").get(engine, "tokenizer.engine")().load(backend.json, backend.folder, threads)
    return encoder


def read(path: str) -> pa.Array:
    """The text column as one large_string array, in this process's own memory."""
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).read_all().column("text").combine_chunks()


def slices(texts: pa.Array) -> list[pa.Array]:
    """The array in parts of about `CHUNK` bytes."""
    ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    cuts = np.searchsorted(ends, np.arange(int(ends[0]) + CHUNK, int(ends[-1]), CHUNK))
    edges = np.unique([0, *cuts.tolist(), len(texts)]).tolist()
    return [texts.slice(start, stop - start) for start, stop in pairwise(edges)]


def encode(job: Job, part: int, gate: Barrier, answers: SimpleQueue[Span]) -> None:
    """One process: its share of the rows, timed from when all processes are ready."""
    encoder = load(job.engine, job.tokenizer_path, job.threads)
    texts = read(job.path)
    first, last = (len(texts) * edge // job.processes for edge in (part, part + 1))
    texts = texts.slice(first, last - first)
    work = slices(texts)
    encoder.encode(texts.slice(0, WARM_ROWS))
    gate.wait(PATIENCE)
    began = time.perf_counter()  # one clock for all processes of a machine
    for batch in work:
        encoder.encode(batch)
    answers.put((began, time.perf_counter(), len(texts), int(pc.sum(pc.binary_length(texts)).as_py())))


def main(job: Job) -> None:
    os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(job.threads)
    spawn = get_context("spawn")
    gate, answers = spawn.Barrier(job.processes), spawn.SimpleQueue()
    workers = [spawn.Process(target=encode, args=(job, part, gate, answers)) for part in range(job.processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            sys.exit(f"the engine's process ended with {worker.exitcode}")
    spans: list[Span] = [answers.get() for _ in workers]
    seconds = max(stop for _, stop, _, _ in spans) - min(start for start, _, _, _ in spans)
    rows, size = sum(span[2] for span in spans), sum(span[3] for span in spans)
    print(json.dumps({"seconds": seconds, "text_bytes": size, "rows": rows}))


if __name__ == "__main__":
    main(Job(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
