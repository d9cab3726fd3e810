"""How fast `ftcli train` is beside plain `Trainer`, a plain torch loop and TRL, on the same model, rows and step. See README.md.

python benchmarks/train.py --works incident1,lm --repeats 3 --json result.json
python benchmarks/train.py --works gpu-incident1 --ways dynamic,best            # on a machine with a GPU
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # this folder holds a tokenize.py, and the standard library's modules import one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - before anything is imported

import argparse
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.compare import spread
from benchmarks.ending import ending
from benchmarks.equal import DifferentError
from benchmarks.process import ROOT, RunError, environment, python
from benchmarks.process import run as run_process
from benchmarks.train_table import markdown
from benchmarks.train_works import WORKS, Made, Work, make

from ftcli import __version__
from ftcli.machine import detect
from ftcli.records import to_json

SCHEMA = "ftcli.benchmark-train/1"
WAYS = ("ftcli", "fixed", "dynamic", "best", "torch", "trl")
LOSS, GRADIENT = 1e-5, 1e-4
"""Largest relative difference of loss and gradient between two ways."""
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "GOMP_SPINCOUNT": "1000"}
"""What `best` has in its environment: what ftcli sets for itself."""
HALF_LOSS, HALF_GRADIENT = 1e-2, 1e-1
"""The same where ftcli computes in bfloat16 and the other way in float32: on a GPU that has it, ftcli's packed attention has no float32."""
BF16 = ("amx_bf16", "avx512_bf16")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ftcli train beside Trainer, a torch loop and TRL, as ratios of real tokens a second.")
    parser.add_argument("--works", help=f"which of {', '.join(WORKS)}; all for one device (default: all for the CPU)")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"which of {', '.join(WAYS)}; ftcli is always measured (default: all)")
    parser.add_argument("--rows", type=int, help="rows of each work; one epoch is trained (default: 480; 3,200 on a GPU)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; in each every way runs once, in a fresh process")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads and CPUs of every way")
    parser.add_argument("--quick", action="store_true", help="a try: 96 rows, one round; the ratios say little")
    parser.add_argument(
        "--option", action="append", default=[], help="one more word for ftcli train; may be repeated (--option=--lean-step=off)"
    )
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--work-dir", type=Path, help="keep data and models here; default: a temporary folder")
    found = parser.parse_args(argv)
    found.works = found.works or ",".join(name for name, work in WORKS.items() if work.device == "cpu")
    devices = {WORKS[name].device for name in found.works.split(",") if name in WORKS}
    if len(devices) > 1:
        parser.error("--works: some are for the CPU and some for a GPU")
    found.device = next(iter(devices), "cpu")
    found.rows = found.rows or (480 if found.device == "cpu" else 3_200)
    if found.quick:
        found.rows, found.repeats = min(found.rows, 96), 1
    for name, known in (("works", tuple(WORKS)), ("ways", WAYS)):
        chosen = [word.strip() for word in getattr(found, name).split(",") if word.strip()]
        if unknown := [word for word in chosen if word not in known]:
            parser.error(f"--{name}: there is no {unknown[0]!r}; there are {', '.join(known)}")
        setattr(found, name, chosen)
    if found.threads > len(os.sched_getaffinity(0)):
        parser.error(f"{found.threads} threads need as many CPUs, there are {len(os.sched_getaffinity(0))}")
    if found.rows < (least := 4 * max(WORKS[name].batch for name in found.works)):
        parser.error(f"a rate needs a few steps: at least {least} rows")
    return found


class Bench:
    """Runs the ways; everything lies in `folder`."""

    def __init__(self, folder: Path, threads: int, *, device: str, bf16: bool, options: Sequence[str]) -> None:
        self.folder, self.threads, self.device, self.bf16, self.options = folder, threads, device, bf16, list(options)
        self.cpus = sorted(os.sched_getaffinity(0))[:threads]

    def run(self, way: str, work: Work, made: Made, *, equal: bool = False) -> dict[str, Any]:
        """What one way measured; with `equal` the loss of one step, whose weights are in `output(way)`."""
        shutil.rmtree(self.output(way), ignore_errors=True)
        return self._ftcli(work, made, equal=equal) if way == "ftcli" else self._other(way, work, made, equal=equal)

    def output(self, way: str) -> Path:
        return self.folder / f"output-{way}"

    def _other(self, way: str, work: Work, made: Made, *, equal: bool) -> dict[str, Any]:
        words: list[str | Path] = ["--way", way, "--task", work.task, "--store", made.store, "--tokenizer", made.tokenizer]
        words += ["--model", made.model, "--output", self.output(way), "--batch", str(work.batch), "--max-length", str(work.max_length)]
        words += ["--device", self.device]
        words += ["--equal"] if equal else ["--bf16"] if self.bf16 and way == "best" else []
        more = KEPT if way == "best" else {}
        variables = environment(self.folder, OMP_NUM_THREADS=str(self.threads), **more)
        outcome = run_process(python("-m", "benchmarks.train_way", *words), self.cpus, variables, self.folder)
        found: dict[str, Any] = json.loads(outcome.output.splitlines()[-1])
        return {**found, "wall": outcome.wall, "cpu": outcome.cpu, "peak_rss_mb": outcome.peak_rss_mb}

    def _ftcli(self, work: Work, made: Made, *, equal: bool) -> dict[str, Any]:
        stopwatch, output = self.folder / "stopwatch.jsonl", self.output("ftcli")
        stopwatch.unlink(missing_ok=True)
        words: list[str | Path] = ["train", "--mode", work.task, "--dataset", made.store, "--tokenizer-path", made.tokenizer]
        words += ["--model-name-or-path", made.model, "--output-dir", output, "--per-device-train-batch-size", str(work.batch)]
        words += ["--num-train-epochs", "1", "--save-strategy", "no", "--threads", str(self.threads), "--no-verify", "--json"]
        words += ["--use-cpu"] if self.device == "cpu" else []
        words += ["--plugins-dir", ROOT / "benchmarks" / "plugins", "--on-unhealthy", "warn", *self.options]
        if equal:
            words += [
                "--optim",
                "sgd",
                "--learning-rate",
                "1",
                "--lr-scheduler-type",
                "constant",
                "--max-grad-norm",
                "0",
                "--max-steps",
                "1",
            ]
            words += ["--set", "train.train_sampling_strategy=sequential", *([] if self._halves else ["--no-bf16"])]
        else:
            words += ["--learning-rate", "1e-4", "--logging-steps", "10"]
        variables = environment(self.folder, FTCLI_STOPWATCH=str(stopwatch), OMP_NUM_THREADS=str(self.threads))
        outcome = run_process(python("-m", "ftcli", *words), self.cpus, variables, self.folder)
        report = json.loads(outcome.output.splitlines()[-1])
        metrics = report["metrics"]
        readings = [json.loads(line) for line in stopwatch.read_text(encoding="utf-8").splitlines()]
        wall, cpu = (readings[-1][name] - readings[0][name] for name in ("wall", "cpu"))
        found = {"loss": metrics["first_loss"], "steps": metrics["steps"], "peak_rss_mb": outcome.peak_rss_mb}
        if equal:
            return found
        rate = metrics["real_tokens_per_second"]
        rates = {"real_tokens_per_second": rate, "real_tokens_per_cpu_second": rate * wall / cpu}
        more = {name: metrics[name] for name in ("padding_share", "mfu", "peak_gpu_mb")}
        return {**found, **rates, "wall": outcome.wall, "cpu": outcome.cpu, **more, "notes": report.get("notes", [])}

    @property
    def _halves(self) -> bool:
        return self.device == "cuda" and self.bf16

    @property
    def limits(self) -> tuple[float, float]:
        """Largest differences of loss and gradient that are rounding."""
        return (HALF_LOSS, HALF_GRADIENT) if self._halves else (LOSS, GRADIENT)


def differences(start: Path, one: Path, other: Path) -> float:
    """Relative difference of two gradients, each the change of the weights from `start` by one step of rate 1."""
    from safetensors.numpy import load_file

    first, ours, theirs = (load_file(folder / "model.safetensors") for folder in (start, one, other))
    if set(ours) != set(theirs):
        raise DifferentError(f"{one} and {other} do not hold the same weights: {sorted(set(ours) ^ set(theirs))[:3]}")
    gap = size = 0.0
    for name, values in ours.items():
        gap += float(((values.astype(np.float64) - theirs[name]) ** 2).sum())
        size += float(((theirs[name].astype(np.float64) - first[name]) ** 2).sum())
    return float(np.sqrt(gap / size)) if size else float("inf")


def prove(bench: Bench, work: Work, made: Made, ways: Sequence[str]) -> dict[str, dict[str, float]]:
    """Loss and gradient of one step on the same rows by every way, held against ftcli's.

    Raises:
        DifferentError: they are not the same.
    """
    ours = bench.run("ftcli", work, made, equal=True)["loss"]
    most_loss, most_gradient = bench.limits
    found = {}
    for way in ways:
        theirs = bench.run(way, work, made, equal=True)["loss"]
        gap = {"loss": abs(ours - theirs) / abs(theirs), "gradient": differences(made.model, bench.output("ftcli"), bench.output(way))}
        if not (gap["loss"] <= most_loss and gap["gradient"] <= most_gradient):
            raise DifferentError(f"{work.name}: ftcli and {way} differ: loss {ours} and {theirs}, gradient by {gap['gradient']:.2g}")
        found[way] = gap
    return found


def compare(bench: Bench, work: Work, rows: int, repeats: int, ways: Sequence[str]) -> dict[str, Any]:
    """Rounds of all ways, forth and back, and ftcli's ratio to each."""
    made = make(work, rows, bench.folder)
    others = [way for way in ways if way != "ftcli" and (way != "trl" or work.task == "pretrain")]
    equal = prove(bench, work, made, others)
    gaps = ", ".join(f"{way} {gap['gradient']:.1e}" for way, gap in equal.items())
    say(f"{work.name}: loss and gradient are equal; gradients differ by {gaps}")
    rounds: list[dict[str, Any]] = []
    order = ["ftcli", *others]
    for number in range(repeats):
        found = {way: bench.run(way, work, made) for way in (order if number % 2 == 0 else order[::-1])}
        rounds.append(found)
        speeds = ", ".join(f"{way} {each['real_tokens_per_second']:,.0f}" for way, each in found.items())
        say(f"  round {number + 1}: {speeds} tokens/s")
    return {
        "work": work.name,
        "rows": rows,
        "batch": work.batch,
        "equal": equal,
        "rounds": rounds,
        "ratios": {way: ratios(rounds, way, work.required.get(way)) for way in others},
    }


def ratios(rounds: Sequence[Mapping[str, Any]], way: str, required: float | None) -> dict[str, Any]:
    """ftcli over `way`, by wall and by CPU seconds; the requirement is of the wall."""
    found = {}
    for name, key in (("wall", "real_tokens_per_second"), ("cpu", "real_tokens_per_cpu_second")):
        found[name] = spread([each["ftcli"][key] / each[way][key] for each in rounds], required if name == "wall" else None)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    with tempfile.TemporaryDirectory(prefix="ftcli-benchmark-") as temporary:
        folder = (given.work_dir or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        machine = detect(folder)
        bf16 = bool(machine.gpus) if given.device == "cuda" else any(flag in machine.cpu_flags for flag in BF16)
        if given.device == "cuda" and not machine.gpus:
            say("FAILED: these works are for a GPU, and there is none")
            return 1
        ways = given.ways if importlib.util.find_spec("trl") else [way for way in given.ways if way != "trl"]
        if ways != given.ways:
            say("trl is left out: it is not installed")
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "machine": to_json(machine),
            "device": given.device,
            "bf16": bf16,
            "versions": {"ftcli": __version__, **{name: version(name) for name in ("torch", "transformers", "accelerate", "datasets")}},
            "arguments": {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()},
            "results": [],
        }
        bench = Bench(folder, given.threads, device=given.device, bf16=bf16, options=given.option)
        with ending(document, markdown, given.json, (DifferentError, RunError)) as outcome:
            for name in given.works:
                document["results"].append(compare(bench, WORKS[name], given.rows, given.repeats, ways))
        return outcome.code


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
