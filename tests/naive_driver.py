"""Prepares data the usual way, by `datasets.map` and `save_to_disk`: the program of the positive controls.

With arguments (SOURCE CACHE OUTPUT LOG [STOP]) it maps a file of JSON lines with two workers and saves it. Without any it imports `datasets` once, reads "OUTPUT VERSION" lines from stdin and forks a child for each. The child prints its pid, waits for an
empty line, so that a tracer can attach, and saves. Its exit status follows (negative: the signal that ended it).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import publish_driver

ROWS, SHARDS = 4_000, 4


def texts(version: str) -> list[str]:
    """Rows of a version; all versions have the same size, as a rerun with another seed has."""
    return [f"{version} {number:06d} {'and so on ' * 5}" for number in range(ROWS)]


def save(output: Path, version: str) -> None:
    from datasets import Dataset

    Dataset.from_dict({"text": texts(version)}).save_to_disk(str(output), num_shards=SHARDS)


def seen(output: Path, versions: tuple[str, ...]) -> str:
    """What a reader of the usual way sees: a version, "none", "refused" (an error), or "wrong" (rows of no version, without any error)."""
    from datasets import load_from_disk

    if not output.exists():
        return "none"
    try:
        rows = list(load_from_disk(str(output))["text"])
    except Exception:  # noqa: BLE001 - whatever it raises, it did not pass wrong rows on
        return "refused"
    return next((version for version in versions if rows == texts(version)), "wrong")


def serve() -> None:
    import datasets

    datasets.disable_progress_bars()
    while line := sys.stdin.readline():
        output, version = line.split()
        pid = os.fork()
        if pid == 0:
            print(os.getpid(), flush=True)
            os.read(0, 1)
            publish_driver.mark(publish_driver.START)
            save(Path(output), version)
            publish_driver.mark(publish_driver.END)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def prepare(source: str, cache: str, output: str, log: str, stop: str = "") -> None:
    """`LOG` gets the number of rows of every batch that was worked on; after STOP rows the workers hang, to be killed."""
    import time

    from datasets import load_dataset

    def words(batch: dict[str, list[str]]) -> dict[str, list[int]]:
        if stop and sum(map(int, Path(log).read_text().split())) >= int(stop):
            time.sleep(100_000)
        with Path(log).open("a") as file:
            file.write(f"{len(batch['text'])}\n")
        return {"words": [len(text.split()) for text in batch["text"]]}

    dataset = load_dataset("json", data_files=source, cache_dir=cache, split="train")
    dataset.map(words, batched=True, batch_size=100, writer_batch_size=100, num_proc=2).save_to_disk(output)


if __name__ == "__main__":
    prepare(*sys.argv[1:]) if sys.argv[1:] else serve()
