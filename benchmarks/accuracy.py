"""Whether `ftcli train` reaches the accuracy of a plain, correct torch loop on the same budget, and in what time. See README.md.

python benchmarks/accuracy.py --works banking77 --seeds 1,2,3 --json result.json
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # this folder holds a tokenize.py, and the standard library's modules import one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - before anything is imported

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.accuracy_table import markdown
from benchmarks.accuracy_way import EVERY
from benchmarks.accuracy_works import WORKS, Made, Work, make, start
from benchmarks.compare import spread
from benchmarks.ending import ending
from benchmarks.equal import DifferentError
from benchmarks.process import ROOT, RunError, environment, python
from benchmarks.process import run as run_process
from benchmarks.train import BF16, say

from ftcli import __version__
from ftcli.core.benchmark.student import quantile
from ftcli.machine import detect
from ftcli.records import to_json

SCHEMA = "ftcli.benchmark-accuracy/1"
POINTS = 1.0
"""By which the accuracy may be lower than the plain loop's, in percentage points."""
WARMUP = 0.1
"""Share of the steps."""
Reading = Mapping[str, float]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ftcli train beside a plain torch loop: accuracy on held-out rows, and time.")
    parser.add_argument("--works", default=",".join(WORKS), help=f"which of {', '.join(WORKS)} (default: all)")
    parser.add_argument("--seeds", default="1,2,3", help="one run of both ways each, from the same weights (default: 1,2,3)")
    parser.add_argument("--epochs", type=int, help="instead of each work's own")
    parser.add_argument("--rows", type=int, help="rows of each split at most (a try: the accuracies say little)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU where there is one")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads and CPUs of both ways")
    parser.add_argument(
        "--whole-vocabulary", action="store_true", help="all 151,936 rows of Qwen3's embedding in place of those that the texts need"
    )
    parser.add_argument("--option", action="append", default=[], help="one more word for ftcli train; may be repeated")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FTCLI_REAL_DATA", ROOT.parent / "shared" / "data")))
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--work-dir", type=Path, help="keep data and models here; default: a temporary folder")
    found = parser.parse_args(argv)
    found.works = [name.strip() for name in found.works.split(",") if name.strip()]
    if unknown := [name for name in found.works if name not in WORKS]:
        parser.error(f"--works: there is no {unknown[0]!r}; there are {', '.join(WORKS)}")
    try:
        found.seeds = [int(word) for word in found.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds: {found.seeds!r} are no numbers; write 1,2,3")
    if not (found.data / "classification").is_dir():
        parser.error(f"{found.data} has no folder classification: give the data folder by --data or FTCLI_REAL_DATA")
    return found


class Bench:
    """Runs both ways; everything lies in `folder`."""

    def __init__(self, folder: Path, device: str, threads: int, *, bf16: bool, options: Sequence[str]) -> None:
        self.folder, self.device, self.threads, self.bf16, self.options = folder, device, threads, bf16, list(options)
        self.cpus = sorted(os.sched_getaffinity(0))[:threads]

    def run(self, way: str, work: Work, made: Made, seed: int, model: Path) -> dict[str, Any]:
        """What one way measured; its model is in `output(way)`."""
        shutil.rmtree(self.output(way), ignore_errors=True)
        steps = work.epochs * -(-made.train_rows // work.batch)
        warmup = math.ceil(WARMUP * steps)
        found = (self._ftcli if way == "ftcli" else self._plain)(work, made, seed, model, warmup)
        if found["steps"] != steps:
            raise DifferentError(f"{work.name}: {way} made {found['steps']} steps, not {steps}")
        return {**found, **inside(found.pop("readings"), steps, work.epochs)}

    def output(self, way: str) -> Path:
        return self.folder / f"output-{way}"

    def judge(self, way: str, work: Work, made: Made) -> dict[str, Any]:
        """Which held-out rows the model of a way gets right, loaded by transformers alone and computed in float32."""
        words: list[str | Path] = [
            "judge",
            "--store",
            made.store,
            "--model",
            self.output(way),
            "--batch",
            str(work.batch),
            "--device",
            self.device,
        ]
        found: dict[str, Any] = json.loads(self._run("benchmarks.accuracy_way", *words)[0])
        return found

    def _plain(self, work: Work, made: Made, seed: int, model: Path, warmup: int) -> dict[str, Any]:
        words: list[str | Path] = ["plain", "--store", made.store, "--model", model, "--output", self.output("plain"), "--seed", str(seed)]
        words += ["--batch", str(work.batch), "--epochs", str(work.epochs), "--rate", str(work.learning_rate), "--warmup", str(warmup)]
        words += ["--device", self.device, *(["--bf16"] if self.bf16 else [])]
        text, outcome = self._run("benchmarks.accuracy_way", *words)
        found: dict[str, Any] = json.loads(text)
        return {**found, **outcome, "own_accuracy": found.pop("accuracies")[-1]}

    def _ftcli(self, work: Work, made: Made, seed: int, model: Path, warmup: int) -> dict[str, Any]:
        stopwatch = self.folder / "stopwatch.jsonl"
        stopwatch.unlink(missing_ok=True)
        words: list[str | Path] = ["train", "--mode", "classify", "--dataset", made.store, "--tokenizer-path", made.tokenizer]
        words += ["--model-name-or-path", model, "--output-dir", self.output("ftcli"), "--seed", str(seed), "--json"]
        words += ["--num-train-epochs", str(work.epochs), "--learning-rate", str(work.learning_rate), "--warmup-steps", str(warmup)]
        words += ["--per-device-train-batch-size", str(work.batch), "--per-device-eval-batch-size", str(work.batch)]
        words += ["--logging-steps", str(EVERY), "--plugins-dir", ROOT / "benchmarks" / "plugins", "--threads", str(self.threads)]
        words += [*(["--use-cpu"] if self.device == "cpu" else []), *self.options]
        text, outcome = self._run("ftcli", *words, FTCLI_STOPWATCH=str(stopwatch))
        metrics = json.loads(text)["metrics"]
        readings = [json.loads(line) for line in stopwatch.read_text(encoding="utf-8").splitlines()]
        kept = {name: metrics[name] for name in ("first_loss", "final_loss", "steps", "padding_share", "real_tokens_per_second")}
        seconds = {name: value for name, value in metrics.items() if name.startswith("time_") and value}
        return {**kept, **seconds, **outcome, "own_accuracy": metrics["eval_accuracy"], "readings": readings}

    def _run(self, module: str, *words: str | Path, **more: str) -> tuple[str, dict[str, float]]:
        """The last line that a program prints, and its wall and CPU seconds."""
        variables = environment(self.folder, OMP_NUM_THREADS=str(self.threads), **more)
        if self.device == "cuda":
            variables.setdefault("CUDA_VISIBLE_DEVICES", "0")  # of several, both ways use one
        outcome = run_process(python("-m", module, *words), self.cpus, variables, self.folder)
        return outcome.output.splitlines()[-1], {"wall": outcome.wall, "cpu": outcome.cpu, "peak_rss_mb": outcome.peak_rss_mb}


def inside(readings: Sequence[Reading], steps: int, epochs: int) -> dict[str, float]:
    """Seconds of all steps, from those between two readings of one epoch: evaluations and checkpoints stand between epochs and are not in them.

    Args:
        readings: step, wall and cpu at the end of a step, before the evaluation that may follow it; in order.
    """
    an_epoch = steps // epochs
    pairs = [(one, two) for one, two in pairwise(readings) if (one["step"] - 1) // an_epoch == (two["step"] - 1) // an_epoch]
    counted = sum(two["step"] - one["step"] for one, two in pairs)
    if not counted:
        raise RunError(f"no two of {len(readings)} readings stand in one epoch: more rows are needed")
    return {f"train_{name}": sum(two[name] - one[name] for one, two in pairs) / counted * steps for name in ("wall", "cpu")}


def paired(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """The mean difference in points with its 95 % interval by Student's t of the pairs; without bounds for a single pair."""
    gaps = 100 * (np.array(ours) - np.array(theirs))
    mean, count = float(gaps.mean()), len(gaps)
    reach = quantile(0.95, count - 1) * float(gaps.std(ddof=1)) / math.sqrt(count) if count > 1 else None
    bounds = (None, None) if reach is None else (mean - reach, mean + reach)
    return {"mean": mean, "low": bounds[0], "high": bounds[1], "n": count, "allowed": POINTS, "met": round(mean, 9) >= -POINTS}


def compare(bench: Bench, work: Work, made: Made, seeds: Sequence[int]) -> dict[str, Any]:
    """Both ways for every seed, forth and back, and what they differ in.

    Raises:
        DifferentError: a way made other steps than it was to make.
        RunError: one failed.
    """
    runs: list[dict[str, Any]] = []
    for number, seed in enumerate(seeds):
        model = start(made, seed, bench.folder / f"start-{work.name}-{seed}")
        found: dict[str, Any] = {"seed": seed}
        for way in ("ftcli", "plain") if number % 2 == 0 else ("plain", "ftcli"):
            found[way] = {**bench.run(way, work, made, seed, model), **bench.judge(way, work, made)}
        ours, theirs = (found[way].pop("right") for way in ("ftcli", "plain"))
        found["rows"] = {name: sum(pair == of for pair in zip(ours, theirs, strict=True)) for name, of in AGREEMENT.items()}
        runs.append(found)
        words = (
            f"{way} {100 * found[way]['accuracy']:.2f} % in {found[way]['train_wall']:.0f} s ({found[way]['wall']:.0f} s)"
            for way in ("ftcli", "plain")
        )
        say(f"{work.name}, seed {seed}: {', '.join(words)}")
    accuracies = {way: [run[way]["accuracy"] for run in runs] for way in ("ftcli", "plain")}
    return {
        **{name: value for name, value in asdict(work).items() if name not in {"name", "rows"}},
        **{name: value for name, value in asdict(made).items() if isinstance(value, int)},
        "work": work.name,
        "runs": runs,
        "accuracy": {way: float(np.mean(each)) for way, each in accuracies.items()},
        "difference": paired(accuracies["ftcli"], accuracies["plain"]),
        "ratios": {
            key: spread([run["plain"][key] / run["ftcli"][key] for run in runs], 1.0 if key == "train_wall" else None) for key in TIMES
        },
    }


AGREEMENT = {"both": ("1", "1"), "ftcli": ("1", "0"), "plain": ("0", "1"), "neither": ("0", "0")}
"""Who gets a held-out row right."""
TIMES = ("train_wall", "train_cpu", "wall", "cpu")
"""Seconds of the steps, and of the whole command."""


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    import torch

    if given.device == "auto":
        given.device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory(prefix="ftcli-benchmark-") as temporary:
        folder = (given.work_dir or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        machine = detect(folder)
        bf16 = (
            torch.cuda.is_bf16_supported(including_emulation=False)
            if given.device == "cuda"
            else any(flag in machine.cpu_flags for flag in BF16)
        )
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "machine": to_json(machine),
            "device": torch.cuda.get_device_name() if given.device == "cuda" else "cpu",
            "bf16": bf16,
            "versions": {"ftcli": __version__, **{name: version(name) for name in ("torch", "transformers", "accelerate", "datasets")}},
            "arguments": {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()},
            "results": [],
        }
        bench = Bench(folder, given.device, given.threads, bf16=bf16, options=given.option)
        with ending(document, markdown, given.json, (DifferentError, RunError)) as outcome:
            for name in given.works:
                work = WORKS[name] if given.epochs is None else WORKS[name].over(given.epochs)
                made = make(work, given.data.resolve(), folder, whole=given.whole_vocabulary, most=given.rows)
                document["results"].append(compare(bench, work, made, given.seeds))
        return outcome.code


if __name__ == "__main__":
    sys.exit(main())
