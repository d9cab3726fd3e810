"""The same thing under two names: does `ftcli benchmark` call it no difference, at least 19 times out of 20?

python benchmarks/twins.py --work-dir twins [--actions tokenize,compare] [--times 20] [--json twins.json]

`tokenize`, `batch` and `train` time an engine and a collator that a plugin registers twice (a plugin's collator is watched, which costs 3 µs a
batch: beside ftcli's own it is slower, and was found to be); `attribute` gets two configurations that differ in two settings which cost nothing; `compare` holds each report of `tokenize` and `batch` against the one before. Every action runs
--times times in fresh processes, with the numbers of runs that users get by default. Needs an idle machine with two cores; three quarters of an hour.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.planted import DECOYS, configuration, ftcli, prepare

MOST = 0.05
"""Share of equal variants that may be called different."""
PLUGIN = """
from ftcli import hookimpl
from ftcli.contracts import CollatorKind
from ftcli.core.batches.collate import Dynamic
from ftcli.plugins.engines import GigatokenEngine


class One(GigatokenEngine):
    name = "one"


class Other(GigatokenEngine):
    name = "other"


@hookimpl
def register_engines(register):
    register("one", One)
    register("other", Other)


@hookimpl
def register_collators(register):
    register("one", CollatorKind(Dynamic))
    register("other", CollatorKind(Dynamic))
"""
Document = Mapping[str, Any]
Comparisons = Iterator[tuple[str, float]]
"""Verdict and median ratio."""


def runs(work: Path) -> Mapping[str, Sequence[str]]:
    """Action → the words of one measurement."""
    rows = ("--dataset", str(work / "prepared"), "--tokenizer-path", str(work / "tokenizer"))
    return {
        "tokenize": (
            "tokenize", "--dataset", str(work / "corpus" / "train.jsonl"), "--tokenizer-path", str(work / "tokenizer"),
            "--variants", "one,other", "--rows", "20000",
        ),
        "batch": ("batch", *rows, "--variants", "one,other", "--rows", "20000"),
        "train": ("train", *rows, "--model-config", str(work / "model.json"), "--variants", "one/fp32,other/fp32", "--steps", "6"),
        "attribute": ("attribute", str(work / "twin-base.json"), str(work / "twin-new.json"), "--rows", "1000", "--steps", "12"),
    }  # fmt: skip


def of_ratios(document: Document) -> Comparisons:
    """What `tokenize`, `batch` and `compare` say of every pair, in the first unit."""
    first = document["metrics"]["ratios"][0]["unit"]
    for each in document["metrics"]["ratios"]:
        if each["unit"] == first:
            yield each["verdict"], each["median"]


def of_factors(document: Document) -> Comparisons:
    """What `attribute` says of the whole and of each setting, alone and taken back."""
    yield document["metrics"]["total"]["verdict"], document["metrics"]["total"]["median"]
    for each in document["metrics"]["factors"]:
        for way in ("alone", "taken_back"):
            yield each[way]["verdict"], each[way]["median"]


def summary(action: str, comparisons: Sequence[tuple[str, float]], machine: Document) -> dict[str, Any]:
    """How often each verdict was given, and between which ratios the equal things lay."""
    verdicts = Counter(verdict for verdict, _ in comparisons)
    different = sum(count for verdict, count in verdicts.items() if verdict in {"faster", "slower"})
    return {
        "action": action,
        "comparisons": len(comparisons),
        "different": different,
        "verdicts": dict(verdicts),
        "ratios": [median for _, median in comparisons],
        "machine": machine,
    }


def ready(work: Path) -> None:
    """Corpus, tokenizer, model, plugin, prepared data and the two configurations."""
    prepare(work, 50_000)
    (work / "plugins" / "twin.py").write_text(PLUGIN)
    if not (work / "prepared").exists():
        given = (
            "--label-column",
            "label",
            "--tokenizer-path",
            work / "tokenizer",
            "--max-length",
            "320",
            "--output-dir",
            work / "prepared",
        )
        ftcli("tokenize", work / "corpus" / "train.jsonl", *given)
    for name, more in (("base", {}), ("new", DECOYS)):
        (work / f"twin-{name}.json").write_text(json.dumps(configuration(work, more)))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work-dir", type=Path, default=Path("twins"))
    parser.add_argument("--actions", default="tokenize,batch,train,compare,attribute")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--attribute-times", type=int, default=4, help="each holds five comparisons")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(words)
    work: Path = given.work_dir.resolve()
    actions, known = given.actions.split(","), (*runs(work), "compare")
    if unknown := set(actions) - set(known):
        parser.error(f"no such action: {', '.join(sorted(unknown))}; actions: {', '.join(known)}")
    work.mkdir(parents=True, exist_ok=True)
    ready(work)
    results: list[dict[str, Any]] = []

    def report(action: str, number: int) -> Path:
        return work / "reports" / action / str(number) / f"benchmark-{action}.json"

    def measured(action: str, number: int) -> Document:
        folder = report(action, number).parent
        return ftcli("benchmark", *runs(work)[action], "--plugins-dir", work / "plugins", "--report-dir", folder)

    def add(action: str, documents: Iterator[Document], read: Callable[[Document], Comparisons]) -> None:
        found, machine = [], {}
        for document in documents:
            found += list(read(document))
            machine = document["machine"]
        results.append(summary(action, found, machine))
        print({key: value for key, value in results[-1].items() if key not in {"machine", "ratios"}}, flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps(results, indent=1))

    for action in actions:
        if action == "compare":
            made = [report(each, number) for each in ("tokenize", "batch") if each in actions for number in range(given.times)]
            pairs = [(old, new) for old, new in pairwise(made) if old.name == new.name]
            add(action, (ftcli("benchmark", "compare", *pair, "--report-dir", work / "reports" / "compare") for pair in pairs), of_ratios)
        else:
            times = given.attribute_times if action == "attribute" else given.times
            add(action, (measured(action, number) for number in range(times)), of_factors if action == "attribute" else of_ratios)
    return 0 if all(each["different"] <= MOST * each["comparisons"] for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
