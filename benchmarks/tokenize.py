"""How fast `ftcli tokenize` is beside the usual way and beside its engine alone. See README.md.

python benchmarks/tokenize.py --works docs,nsmc --repeats 3 --json result.json
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # this folder holds a tokenize.py, and the standard library's modules import one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - before anything is imported

import argparse
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.compare import compare, job, scaling
from benchmarks.conversations import conversations
from benchmarks.ending import ending
from benchmarks.equal import DifferentError
from benchmarks.inputs import JOB_ROWS, Library
from benchmarks.kills import LostError, kill_and_resume
from benchmarks.megatron import installed, megatron
from benchmarks.process import ROOT, RunError
from benchmarks.tables import markdown
from benchmarks.ways import Bench
from benchmarks.works import NAMES, WORKS

from ftcli import __version__
from ftcli.machine import detect
from ftcli.records import to_json

DISTRIBUTIONS = ("datasets", "transformers", "tokenizers", "pyarrow", "numpy", "gigatoken", "fastokens", "splintr-rs")
SCHEMA = "ftcli.benchmark-tokenize/1"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ftcli tokenize beside datasets.map and beside its engine alone.")
    parser.add_argument("--works", default=",".join(NAMES), help=f"which of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; in each every way runs once")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the inputs' full sizes; the job has --rows")
    parser.add_argument("--rows", type=int, default=JOB_ROWS, help="rows of the job, about 2 kB each")
    parser.add_argument("--kills", type=int, default=5, help="kills in the job's kill-and-resume run; 0 leaves it out")
    parser.add_argument("--workers", type=int, default=2, help="processes of each way, on as many CPUs")
    parser.add_argument("--baseline-mb", type=float, default=100.0, help="MB of the input that the usual way gets")
    parser.add_argument("--baseline-share", type=float, help="share of the input that it gets instead: 1 is all")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FTCLI_REAL_DATA", ROOT.parent / "shared" / "data")))
    parser.add_argument("--work-dir", type=Path, help="keep the inputs here; default: a temporary folder")
    found = parser.parse_args(argv)
    found.works = [name.strip() for name in found.works.split(",") if name.strip()]
    if unknown := [name for name in found.works if name not in NAMES]:
        parser.error(f"no work is named {unknown[0]!r}; there are {', '.join(NAMES)}")
    if not (found.data / "tokenizers").is_dir():
        parser.error(f"{found.data} has no folder tokenizers: give the data folder by --data or FTCLI_REAL_DATA")
    if found.workers > len(os.sched_getaffinity(0)):
        parser.error(f"{found.workers} workers need as many CPUs, there are {len(os.sched_getaffinity(0))}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    with tempfile.TemporaryDirectory(prefix="ftcli-benchmark-") as temporary:
        work = (given.work_dir or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "machine": to_json(detect(work)),
            "versions": {"ftcli": __version__, **{name: version(name) for name in DISTRIBUTIONS}},
            "arguments": {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()},
            "cpus": sorted(os.sched_getaffinity(0))[: given.workers],
            "results": [],
        }
        with ending(document, markdown, given.json, (DifferentError, LostError, RunError)) as outcome:
            measure(given, Bench(given.data.resolve(), work, document["cpus"], given.workers), document["results"])
        return outcome.code


def measure(given: argparse.Namespace, bench: Bench, results: list[dict[str, Any]]) -> None:
    """Add the results one by one, so that those before a failure are kept."""
    library = Library(bench.data, bench.work, given.scale, given.rows)
    size = round(given.baseline_mb * 1e6)

    def baseline(name: str) -> int:
        share: float | None = given.baseline_share
        return size if share is None else round(share * library.get(name).file_bytes)

    for name in given.works:
        results.extend(
            compare(bench, library, each, repeats=given.repeats, baseline_bytes=baseline(each.source), say=say)
            for each in WORKS.get(name, ())
        )
        if name == "sft":
            results.append(conversations(bench, library, repeats=given.repeats, baseline_bytes=size, say=say))
        if name == "scaling":
            results.append(scaling(bench, library, repeats=given.repeats, say=say))
        if name == "job":
            results.append(job(bench, library, baseline_bytes=size, say=say))
            if given.kills:
                undisturbed, seconds = results[-1]["content_hash"], results[-1]["ours"]["wall"]
                killed = kill_and_resume(bench, library, content_hash=undisturbed, seconds=seconds, kills=given.kills, say=say)
                results[-1]["kill_and_resume"] = killed
        if name == "megatron":
            if installed():
                results.append(megatron(bench, library, repeats=given.repeats, baseline_bytes=size, say=say))
            else:
                say("megatron is left out: megatron-core is not installed")


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
