"""Slowdowns that were planted on purpose: does `ftcli benchmark attribute` rank them first, and is their share right?

python benchmarks/planted.py --work-dir planted [--cases sleep,padding] [--json planted.json]

Every case is a pair of configurations that differ in the planted setting and in two that change no speed. The planted one has to be the
first factor, called slower, with a share of 1 ± 0.15. Needs an idle machine with two cores; ten to fifteen minutes a case.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SHARE = 0.15
"""By which a share may be wrong."""
PLUGIN = """
import time

from ftcli import hookimpl
from ftcli.contracts import CollatorKind
from ftcli.core.batches.collate import Dynamic


class Sleepy(Dynamic):
    def __call__(self, rows):
        time.sleep(0.1)
        return super().__call__(rows)


@hookimpl
def register_collators(register):
    register("sleepy", CollatorKind(Sleepy))
"""
MODEL = {
    "model_type": "qwen3",
    "vocab_size": 4000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
}
DECOYS = {"dataset": {"writer_batch_size": 10_000}, "train": {"logging_steps": 5}}
"""Settings of the slow configuration that cost nothing."""

Tree = dict[str, dict[str, Any]]


def cases() -> Mapping[str, tuple[Tree, Tree, Sequence[str]]]:
    """Name → (base, planted, options): what differs, and how much is run."""
    training, preparing = ("--rows", "1000", "--steps", "12"), ("--rows", "40000", "--steps", "3")
    few = {"train": {"max_steps": 3}}  # measured: of an epoch of 140 s preparing is 2, and a slow tokenizer no difference
    single = {"runtime": {"threads": 1}}  # measured: else one worker computes with as many threads as two have together, 1.01 x
    return {
        "sleep": ({"loader": {"collator": "dynamic"}}, {"loader": {"collator": "sleepy"}}, training),
        "padding": (
            {"loader": {"collator": "dynamic"}, "packing": {"max_length": 1024}},
            {"loader": {"collator": "fixed"}, "packing": {"max_length": 1024}},
            training,
        ),
        "workers": (
            {"dataset": {"num_proc": 2}, "tokenizer": {"engine": "hf"}, **single, **few},
            {"dataset": {"num_proc": 1}, "tokenizer": {"engine": "hf"}, **single, **few},
            preparing,
        ),
        "tokenizer": ({"tokenizer": {"engine": "auto"}, **few}, {"tokenizer": {"engine": "hf"}, **few}, preparing),
    }


def ftcli(*words: str | Path) -> Mapping[str, Any]:
    """The JSON document of a command.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run([sys.executable, "-m", "ftcli", *map(str, words), "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"ftcli {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    document: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def prepare(work: Path, rows: int) -> None:
    """Corpus, tokenizer, model and plugin."""
    if not (work / "tokenizer").exists():
        ftcli("sample-data", "--output", work / "corpus", "--rows", str(rows), "--labels", "8", "--overwrite")
        ftcli("train-tokenizer", work / "corpus" / "train.jsonl", "--vocab-size", "4000", "--output", work / "tokenizer")
    (work / "model.json").write_text(json.dumps(MODEL))
    (work / "plugins").mkdir(exist_ok=True)
    (work / "plugins" / "sleepy.py").write_text(PLUGIN)


def configuration(work: Path, *parts: Tree) -> Tree:
    """What both configurations share, with the parts laid over it."""
    tree: Tree = {
        "dataset": {"sources": [str(work / "corpus" / "train.jsonl")], "label_column": "label"},
        "tokenizer": {"path": str(work / "tokenizer")},
        "packing": {"max_length": 320},
        "model": {"config": str(work / "model.json")},
        "train": {"mode": "classify", "num_train_epochs": 1, "max_steps": -1},
    }
    for part in parts:
        for section, values in part.items():
            tree[section] = {**tree.get(section, {}), **values}
    return tree


def judge(metrics: Mapping[str, Any], planted: Tree) -> tuple[bool, str]:
    """Whether the planted setting is ranked first with its share, and the words for it."""
    first = metrics["factors"][0]
    wanted = {f"{section}.{name}" for section, values in planted.items() for name in values}
    share = first["share"]
    found = bool(set(first["base"]) & wanted) and first["alone"]["verdict"] == "slower"
    right = share is not None and abs(share - 1) <= SHARE
    return found and right, f"first: {first['name']}, {first['alone']['median']:.2f}x, share {share if share is None else round(share, 3)}"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work-dir", type=Path, default=Path("planted"))
    parser.add_argument("--cases", default=",".join(cases()))
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--repeats", default="5")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(words)
    unknown = set(given.cases.split(",")) - set(cases())
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; cases: {', '.join(cases())}")
    work: Path = given.work_dir
    work.mkdir(parents=True, exist_ok=True)
    prepare(work, given.rows)
    results = []
    for name in given.cases.split(","):
        base, planted, options = cases()[name]
        for file, tree in (("base", configuration(work, base)), ("new", configuration(work, DECOYS, planted))):
            (work / f"{name}-{file}.json").write_text(json.dumps(tree))
        files = (work / f"{name}-base.json", work / f"{name}-new.json")
        folder = ("--plugins-dir", work / "plugins", "--report-dir", work / "reports" / name)
        report = ftcli("benchmark", "attribute", *files, *options, "--repeats", given.repeats, *folder)
        right, said = judge(report["metrics"], planted)
        results.append({"case": name, "found": right, "said": said, "metrics": report["metrics"], "machine": report["machine"]})
        print(f"{'found' if right else 'MISSED':6}  {name:10} {said}", flush=True)
        if given.json is not None:  # a case takes minutes: what is done is kept, whatever becomes of the next
            given.json.write_text(json.dumps(results, indent=1))
    return 0 if all(each["found"] for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
