"""What tokenizing on a cluster takes, played from what one machine measured: shards, memory, network, hours, cost.

python -m benchmarks.scale                                       the table of docs/scale.md
python -m benchmarks.scale --terabytes 2 --nodes 4 --cores 64 --network-gbit 100 --node-price 3

Speed of a core, seconds of a start, memory of a process and size of the output come from benchmarks/results/tokenize.json (`benchmarks/tokenize.py`);
everything else is an argument. Shard by shard, with a queue: workers that are killed and begin anew, slow nodes, the network of a node and the storage behind.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "tokenize.json"
SHARD_BYTES = 64_000_000
"""What the planner makes of sources of 4 GB and more; a test compares."""
SEED = 3
MONTH = 730.0
"""Hours."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one work of `benchmarks/tokenize.py`, medians over its rounds."""

    work: str
    machine: str
    core_rate: float
    """Source bytes a second and core, of the pipeline alone."""
    start_seconds: float
    """Of a command before and after the pipeline."""
    process_bytes: float
    """Memory of one process, at its peak."""
    output_share: float
    """Bytes of ids written for a byte read."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked. Rates are bytes a second."""

    size: float = 10e12
    nodes: int = 16
    cores: int = 32
    network: float = 25e9 / 8
    """Of a node, reading and writing together."""
    storage: float = 40e9
    """Of the shared file system, all nodes together."""
    slow_share: float = 0.0
    """Share of the nodes that work at half speed."""
    kill_seconds: float = 0.0
    """Between two kills of a worker, somewhere in the cluster; 0: none."""
    file_seconds: float = 0.01
    """Of one operation on a small file of the shared file system; publishing makes one a shard, one after the other."""
    node_price: float = 1.5
    """Of an hour of a node."""
    storage_price: float = 20.0
    """Of a terabyte a month, for what was written."""


@dataclass(frozen=True, slots=True)
class Outcome:
    shards: int
    hash_hours: float
    """The driver reads every source once for its hash, over its network."""
    work_hours: float
    publish_hours: float
    made_again: int
    """Shards whose worker was killed."""
    busy_share: float
    """Of the workers' time between the first shard and the last; the rest is waiting for stragglers and starting again."""
    node_memory: float
    node_network: float
    """Bytes a second, while it works."""
    limit: str

    @property
    def hours(self) -> float:
        return self.hash_hours + self.work_hours + self.publish_hours


def measured(work: str = "docs", path: Path = RESULTS) -> Measured:
    """
    Raises:
        SystemExit: the work was not measured.
    """
    document = json.loads(path.read_text(encoding="utf-8"))["result"]
    found = [each for each in document["results"] if each["work"] == work and each.get("rounds")]
    if not found:
        sys.exit(f"{path} has no rounds of {work!r}")
    result, workers = found[0], document["arguments"]["workers"]
    ours = [each["ours"] for each in result["rounds"]]
    tokens = result["tokens_compared"] / result["rows_compared"] * result["rows"]
    card = document["machine"]
    return Measured(
        work=work,
        machine=f"{card['cpu_model']}, {card['cores']} cores",
        core_rate=statistics.median(result["file_bytes"] / each["pipeline_seconds"] / workers for each in ours),
        start_seconds=statistics.median(each["wall"] - each["pipeline_seconds"] for each in ours),
        process_bytes=statistics.median(1e6 * each["peak_rss_mb"] / workers for each in ours),
        output_share=4 * tokens / result["file_bytes"],
    )


def simulate(plan: Plan, one: Measured) -> Outcome:
    """Play the queue of shards over the workers of the plan; the same arguments give the same result."""
    generator, workers = random.Random(SEED), plan.nodes * plan.cores
    shards = max(1, round(plan.size / SHARD_BYTES))
    moved = 1 + one.output_share  # bytes over the network for a byte of source
    rates = {
        "cores": one.core_rate,
        "network": plan.network / plan.cores / moved,
        "storage": plan.storage / workers / moved,
    }
    limit = min(rates, key=lambda name: rates[name])
    rate = rates[limit]
    slow = round(plan.nodes * plan.slow_share)
    seconds = [SHARD_BYTES / min(rate, one.core_rate / 2 if node < slow else rate) for node in range(plan.nodes)]
    each_kill = plan.kill_seconds * workers  # between two kills of one worker
    # Worker: when it is free, its number; beside it the time of its next death.
    free = [(one.start_seconds, number) for number in range(workers)]
    death = [generator.expovariate(1 / each_kill) if each_kill else float("inf") for _ in range(workers)]
    left, made_again, busy, end = shards, 0, 0.0, 0.0
    while left:
        now, number = free[0]
        took = seconds[number // plan.cores] * generator.uniform(0.9, 1.1)
        while death[number] < now:  # it was killed with nothing in hand, as it started
            death[number] += generator.expovariate(1 / each_kill)
        if now + took > death[number]:
            made_again += 1
            heapq.heapreplace(free, (death[number] + one.start_seconds, number))
            death[number] += generator.expovariate(1 / each_kill)
            continue
        left -= 1
        busy += took
        end = max(end, now + took)
        heapq.heapreplace(free, (now + took, number))
    return Outcome(
        shards=shards,
        hash_hours=plan.size / min(plan.network, plan.storage) / 3600,
        work_hours=end / 3600,
        publish_hours=shards * plan.file_seconds / 3600,
        made_again=made_again,
        busy_share=busy / workers / end,
        node_memory=plan.cores * one.process_bytes,
        node_network=plan.size * moved / end / plan.nodes,
        limit=limit,
    )


def cost(plan: Plan, one: Measured, outcome: Outcome) -> tuple[float, float]:
    """Of the nodes, and of a month of what was written, in whatever the prices are in."""
    return plan.nodes * outcome.hours * plan.node_price, plan.size * one.output_share / 1e12 * plan.storage_price


def cases(plan: Plan) -> list[tuple[str, Plan]]:
    """The rows of the table: numbers of nodes, then what may go wrong with the plan's own number."""
    return [
        *((f"{nodes} nodes", replace(plan, nodes=nodes)) for nodes in (4, plan.nodes, 4 * plan.nodes)),
        ("a worker killed every 5 s", replace(plan, kill_seconds=5.0)),
        ("one node in eight at half speed", replace(plan, slow_share=1 / 8)),
        ("a tenth of the network", replace(plan, network=plan.network / 10)),
    ]


def lines(plan: Plan, one: Measured) -> Iterator[str]:
    """The table in Markdown, under what it was made from."""
    yield (
        f"Measured on {one.machine}, `{one.work}`: {one.core_rate / 1e6:.1f} MB/s a core, {one.start_seconds:.1f} s to start and end,"
        f" {one.process_bytes / 1e6:,.0f} MB a process, {one.output_share:.2f} bytes written for a byte read."
    )
    yield (
        f"Asked: {plan.size / 1e12:g} TB in shards of {SHARD_BYTES / 1e6:.0f} MB, nodes of {plan.cores} cores with {plan.network * 8 / 1e9:g} Gbit/s,"
        f" storage of {plan.storage / 1e9:g} GB/s, {plan.node_price:g} an hour of a node, {plan.storage_price:g} a TB and month"
        f" (seed {SEED})."
    )
    yield ""
    yield "| | shards | made again | hours: hash + work + publish | limit | workers busy | memory a node | network a node | nodes cost | a month of storage |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for words, asked in cases(plan):
        found = simulate(asked, one)
        nodes, storage = cost(asked, one, found)
        yield (
            f"| {words} | {found.shards:,} | {found.made_again:,} | {found.hours:.1f}: {found.hash_hours:.1f} + {found.work_hours:.1f} +"
            f" {found.publish_hours:.1f} | {found.limit} | {100 * found.busy_share:.0f} % | {found.node_memory / 1e9:.0f} GB |"
            f" {found.node_network * 8 / 1e9:.1f} Gbit/s | {nodes:,.0f} | {storage:,.0f} |"
        )


def parse(words: Sequence[str]) -> tuple[Plan, str]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Plan()
    parser.add_argument("--work", default="docs", help="work of benchmarks/tokenize.py whose figures are taken")
    flags: dict[str, tuple[str, float, str]] = {
        "--terabytes": ("size", 1e12, "of text, as it lies on the disk"),
        "--nodes": ("nodes", 1, "of the middle row"),
        "--cores": ("cores", 1, "of a node"),
        "--network-gbit": ("network", 1e9 / 8, "of a node, reading and writing together"),
        "--storage-gb": ("storage", 1e9, "a second, of the shared file system"),
        "--file-seconds": ("file_seconds", 1, "of one operation on a small file there"),
        "--node-price": ("node_price", 1, "of an hour of a node"),
        "--storage-price": ("storage_price", 1, "of a terabyte a month"),
    }
    for flag, (name, unit, words_) in flags.items():
        kind: Any = int if name in {"nodes", "cores"} else float
        value = getattr(default, name) if kind is int else getattr(default, name) / unit
        parser.add_argument(flag, type=kind, default=value, help=f"{words_} (default {value:g})")
    given = vars(parser.parse_args(words))
    values = {
        name: given[flag[2:].replace("-", "_")] * (1 if name in {"nodes", "cores"} else unit) for flag, (name, unit, _) in flags.items()
    }
    if min(values.values()) <= 0:
        parser.error("every number has to be above 0")
    return Plan(**values), given["work"]


def main(words: Sequence[str]) -> None:
    plan, work = parse(words)
    print("\n".join(lines(plan, measured(work))))


if __name__ == "__main__":
    main(sys.argv[1:])
