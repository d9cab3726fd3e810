"""What a Ray cluster of three nodes costs beside one machine, and what it costs there when somebody is killed every 5 s. See README.md.

python benchmarks/cluster.py --repeats 3 --json cluster.json
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # this folder holds a tokenize.py, and the standard library's modules import one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - before anything is imported

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from benchmarks import process
from benchmarks.compare import record, spread
from benchmarks.ending import ending
from benchmarks.inputs import Library, Source
from benchmarks.process import ROOT, RunError, on_cpus
from benchmarks.tables import _machine, _table
from benchmarks.ways import ROWS_WHOLE, Bench

from ftcli import __version__
from ftcli.machine import detect
from ftcli.records import MANIFEST_NAME, to_json

SCHEMA = "ftcli.benchmark-cluster/1"
WAYS = ("ray", "worker", "actor", "node", "beside")
"""Without faults; one that makes shards is killed; one of Ray's own processes around them; a node with everything on it, which is replaced. And
what replacing nodes takes from this machine: the local run while the nodes, which do nothing, are replaced beside it."""
FAULTS = WAYS[1:]
WORDS = {
    "ray": "Ray, nobody is killed",
    "worker": "Ray, a worker process is killed",
    "actor": "Ray, an actor is killed with all it holds",
    "node": "Ray, a node is taken out and another put in",
    "beside": "local, idle Ray nodes are replaced beside it",
}
SLOWER = 1.10
"""Issue and roadmap: a worker or a node killed every 5 s costs a tenth at most."""
SEED = 11
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
"""The least store that Ray takes is 75 MB."""


class WrongError(Exception):
    """A run on the cluster did not give the bytes of the local one."""


class Nodes:
    """`ray.cluster_utils.Cluster`: three nodes of one CPU each, as processes on these CPUs."""

    def __init__(self, cpus: Collection[int]) -> None:
        from ray.cluster_utils import Cluster

        self._folder = tempfile.mkdtemp(prefix="ftcli-ray-", dir="/tmp")
        os.environ |= {"RAY_TMPDIR": self._folder, "RAY_USAGE_STATS_ENABLED": "0"}
        self._cpus = cpus
        with on_cpus(cpus):
            self._made = Cluster(initialize_head=True, head_node_args={**NODE, "node_name": "head", "include_dashboard": False})
            self._others = [self._made.add_node(**NODE, node_name=f"node-{number}") for number in (1, 2)]
        self.address: str = self._made.address

    def replace(self, number: int) -> None:
        """Take one out, as if its machine had failed, and put another in."""
        self._made.remove_node(self._others[number], allow_graceful=False)
        with on_cpus(self._cpus):
            self._others[number] = self._made.add_node(**NODE, node_name=f"node-{number + 1}")

    def settle(self) -> None:
        """Until Ray has noticed who is gone: it counts a node for 3 s and more after its death."""
        self._made.wait_for_nodes()

    def close(self) -> None:
        self._made.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)


class Killer:
    """Kills somebody."""

    def __init__(self, nodes: Nodes, what: str) -> None:
        self._nodes, self._what, self._random = nodes, what, random.Random(SEED)

    def kill(self) -> bool:
        """False where nobody is there yet or any more."""
        if self._what in ("node", "beside"):
            self._nodes.replace(self._random.randrange(2))
            return True
        with suppress(psutil.Error, IndexError):
            self._random.choice(victims(self._what)).kill()
            return True
        return False


def victims(what: str) -> list[psutil.Process]:
    """The processes that make shards, or those of Ray that hold them, whoever started them."""
    found = []
    for one in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            words, holder = " ".join(one.info["cmdline"] or ()), one.parent()
            if what == "actor" and words.startswith("ray::Worker"):
                found.append(one)
            if (
                what == "worker" and "ftcli.core.processes.child" in words and holder and _is_child(holder)
            ):  # the copy, not what it is one of
                found.append(one)
    return found


def _is_child(one: psutil.Process) -> bool:
    return "ftcli.core.processes.child" in " ".join(one.cmdline())


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ftcli tokenize --executor ray beside local, with and without kills.")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"which of {', '.join(WAYS)} (default: all)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; in each local and every way run once")
    parser.add_argument("--seconds", type=float, default=5.0, help="between two kills")
    parser.add_argument("--scale", type=float, default=4.0, help="how often the 7 million short Korean reviews of tokenize.py are repeated")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FTCLI_REAL_DATA", ROOT.parent / "shared" / "data")))
    parser.add_argument("--work-dir", type=Path, help="keep the inputs here; default: a temporary folder")
    found = parser.parse_args(argv)
    found.ways = [name.strip() for name in found.ways.split(",") if name.strip()]
    if unknown := [name for name in found.ways if name not in WAYS]:
        parser.error(f"no way is named {unknown[0]!r}; there are {', '.join(WAYS)}")
    if find_spec("ray") is None:
        parser.error("ray is not installed: pip install 'ftcli[ray]'")
    if not (found.data / "tokenizers").is_dir():
        parser.error(f"{found.data} has no folder tokenizers: give the data folder by --data or FTCLI_REAL_DATA")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    with tempfile.TemporaryDirectory(prefix="ftcli-benchmark-") as temporary:
        work = (given.work_dir or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "machine": to_json(detect(work)),
            "versions": {"ftcli": __version__, "ray": version("ray"), "gigatoken": version("gigatoken")},
            "arguments": {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()},
            "cpus": sorted(os.sched_getaffinity(0))[:2],
            "results": [],
        }
        with ending(document, markdown, given.json, (RunError, WrongError)) as outcome:
            bench = Bench(given.data.resolve(), work, document["cpus"], len(document["cpus"]))
            source = Library(bench.data, work, given.scale, 0).get("nsmc")
            result: dict[str, Any] = {"work": "cluster", "rows": source.rows, "file_bytes": source.file_bytes, "rounds": []}
            with closing(Nodes(document["cpus"])) as nodes:
                document["results"].append(result)
                for each in rounds(bench, source, nodes, given):
                    result["rounds"].append(each)
                    over = {way: [one[way]["wall"] / one["local"]["wall"] for one in result["rounds"]] for way in given.ways}
                    result["over_local"] = {way: spread(ratios, None) for way, ratios in over.items()}
        return outcome.code


def rounds(bench: Bench, source: Source, nodes: Nodes, given: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    """In each, local and the ways once, the first of them another one every time.

    Raises:
        WrongError: other bytes, a row too few or too many.
    """
    bench.prove(source, bench.tokenizer("qwen3"))
    expected = ""
    for number in range(given.repeats):
        found: dict[str, Any] = {}
        order = ["local", *given.ways]
        order = order[number % len(order) :] + order[: number % len(order)]
        for way in order:
            found[way] = once(bench, source, nodes, way, given.seconds)
            say(f"  {way}: {found[way]['wall']:.1f} s, {found[way]['kills']} kills, {found[way]['rows']:,} rows")
            expected = expected or found[way]["content_hash"]
            if found[way]["content_hash"] != expected or found[way]["rows"] != source.rows:
                raise WrongError(
                    f"{way}: {found[way]['rows']:,} rows of {source.rows:,}, content hash {found[way]['content_hash']}, not {expected}"
                )
        yield found


def once(bench: Bench, source: Source, nodes: Nodes, way: str, seconds: float) -> dict[str, Any]:
    """One whole command; who is killed meanwhile is what the way says."""
    shutil.rmtree(bench.output, ignore_errors=True)
    options = ["--num-proc", "2"] if way in ("local", "beside") else ["--executor", "ray", "--ray-address", nodes.address]
    tokenizer = bench.tokenizer("qwen3")
    words: list[str | Path] = [
        "tokenize",
        source.path,
        "--tokenizer-path",
        tokenizer,
        "--output-dir",
        bench.output,
        "--report-dir",
        bench.work / "reports",
    ]
    command = process.python("-m", "ftcli", *words, *ROWS_WHOLE, *options, "--json")
    nodes.settle()
    killer, kills = Killer(nodes, way), 0
    with ThreadPoolExecutor(1) as beside:  # Ray starts nodes from the main thread only
        running = beside.submit(process.run, command, bench.cpus, bench.environment(), bench.work)
        due = time.monotonic() + seconds
        while way in FAULTS and not wait([running], max(0.0, due - time.monotonic())).done:
            kills += killer.kill()
            due += seconds
        outcome = running.result()
    manifest = json.loads((bench.output / MANIFEST_NAME).read_text(encoding="utf-8"))
    metrics = json.loads(outcome.output.splitlines()[-1])["metrics"]
    return {**record(outcome), "kills": kills, "rows": metrics["rows_written"], "content_hash": manifest["content_hash"]}


def markdown(document: Mapping[str, Any]) -> str:
    parts = []
    for each in document["results"]:
        if not each["rounds"]:
            continue
        head = ("way", "seconds", "over local", "wanted", "kills")
        rows = []
        for way in ("local", *document["arguments"]["ways"]):
            runs, ratio = [one[way] for one in each["rounds"]], each["over_local"].get(way)
            walls = sorted(one["wall"] for one in runs)
            rows.append(
                (
                    WORDS.get(way, "local, 2 workers"),
                    f"{walls[len(walls) // 2]:.1f} ({walls[0]:.1f} to {walls[-1]:.1f})",
                    "" if ratio is None else f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})",
                    f"{SLOWER:.2f}" if way in FAULTS[:3] else "",
                    ", ".join(str(one["kills"]) for one in runs),
                )
            )
        parts += [f"{each['rows']:,} rows, {each['file_bytes'] / 1e9:.2f} GB; every run gave the same content hash.", _table(head, rows)]
    if "error" in document:
        parts.append(f"**FAILED**: {document['error']}")
    return "\n\n".join([*parts, _machine(document)])


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
