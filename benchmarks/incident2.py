"""Incident 2 replayed: the first loss of a 280-class Qwen3 classifier under plain `Trainer` and under `ftcli train`, however a step of 96 rows is cut.

python -m benchmarks.incident2 --tokenizer ../shared/data/tokenizers/qwen3 --config ../shared/data/configs/qwen3-4b/config.json --write docs/incident-2.md

The tokenizer and the configuration are the real ones; only the sizes of the model are small. One optimizer step at a learning rate of 1e-12.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LABELS, ROWS = 280, 96
CUTS = ((1, 1), (1, 12), (2, 6))
"""(processes, accumulation steps) of one optimizer step of 96 rows."""
SMALL = "hidden_size=64,intermediate_size=128,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=16,layer_types=null,max_window_layers=2"
ROOT = Path(__file__).resolve().parents[1]
"""Where processes start: beside `benchmarks`, whose tokenize.py would hide the standard library's if its own folder came first."""
BEGIN, END = "<!-- table of benchmarks/incident2.py -->", "<!-- end of table -->"


def prepare(folder: Path, tokenizer: Path) -> Path:
    """Data of 280 labels under `folder`, by the commands of ftcli."""
    _ftcli("sample-data", "--output", folder / "corpus", "--rows", 1200, "--labels", LABELS)
    words = ("tokenize", folder / "corpus", "--label-column", "label", "--tokenizer-path", tokenizer, "--max-length", 320)
    _ftcli(*words, "--output-dir", folder / "prepared", "--num-proc", 1)
    return folder / "prepared"


def options(prepared: Path, tokenizer: Path, config: Path, overrides: str = SMALL) -> list[str]:
    """Options of the run, for `ftcli train` and `ftcli verify`."""
    given = ["--mode", "classify", "--dataset", prepared, "--tokenizer-path", tokenizer, "--model-config", config]
    return [str(word) for word in (*given, "--config-overrides", overrides)]


def with_ftcli(folder: Path, given: list[str], processes: int, accumulation: int) -> dict[str, float]:
    """Loss and gradient norm of step 1 of `ftcli train`."""
    output = folder / f"ftcli-{processes}x{accumulation}"
    run = [
        "train",
        *given,
        "--output-dir",
        output,
        "--max-steps",
        1,
        "--learning-rate",
        1e-12,
        "--save-strategy",
        "no",
        "--eval-strategy",
        "no",
    ]
    run += ["--per-device-train-batch-size", ROWS // processes // accumulation, "--gradient-accumulation-steps", accumulation, "--use-cpu"]
    run += [
        "--no-bf16",
        "--no-verify",
        "--set",
        "train.train_sampling_strategy=sequential",
        *(["--set", "train.ddp_backend=gloo"] if processes > 1 else []),
    ]
    _start(processes, ["-m", "ftcli"], [str(word) for word in run])
    log = json.loads((output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    return {"loss": log["loss"], "grad_norm": log["grad_norm"]}


def with_trainer(folder: Path, given: list[str], processes: int, accumulation: int) -> dict[str, float]:
    """The same by plain `transformers.Trainer`, on the same model and rows."""
    result = folder / f"plain-{processes}x{accumulation}.json"
    _start(processes, ["-m", "benchmarks.incident2"], ["--plain", str(result), "--accumulation", str(accumulation), *given])
    found: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
    return found


def plain(result: Path, accumulation: int, given: list[str]) -> None:
    """In a process of its own: one step of plain `Trainer`; rank 0 writes the log's first line."""
    from transformers import Trainer, TrainingArguments

    from ftcli.context import Context
    from ftcli.core.training.run import prepare as ready

    names = {"--mode": "train.mode", "--dataset": "dataset.sources", "--tokenizer-path": "tokenizer.path", "--model-config": "model.config"}
    names |= {"--config-overrides": "model.config_overrides"}
    values: dict[str, Any] = {names[key]: value for key, value in zip(given[::2], given[1::2], strict=True)}
    with tempfile.TemporaryDirectory() as folder:
        values |= {"dataset.sources": [values["dataset.sources"]], "train.output_dir": Path(folder) / "none", "train.bf16": False}
        run = ready(Context.make({**values, "model.config": Path(values["model.config"]), "train.use_cpu": True}))
        data = run.train.rows(list(range(ROWS)))
        assert data.labels is not None
        rows = [{"input_ids": data.input_ids.row(row).tolist(), "labels": int(data.labels[row])} for row in range(ROWS)]
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=1,
            learning_rate=1e-12,
            per_device_train_batch_size=ROWS // processes // accumulation,
            gradient_accumulation_steps=accumulation,
            train_sampling_strategy="sequential",
            ddp_backend="gloo" if processes > 1 else None,
            use_cpu=True,
            remove_unused_columns=False,
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            report_to=[],
        )
        trainer = Trainer(model=run.model, args=arguments, train_dataset=rows, processing_class=run.tokenizer)
        trainer.train()
        if arguments.process_index == 0:
            log = trainer.state.log_history[0]
            result.write_text(json.dumps({"loss": log["loss"], "grad_norm": float(log["grad_norm"])}), encoding="utf-8")


def table(figures: dict[tuple[int, int], dict[str, dict[str, float]]]) -> str:
    """The figures as Markdown."""
    lines = [
        "| processes × accumulation steps | plain `Trainer`: loss | gradient norm | `ftcli train`: loss | gradient norm |",
        "|---|---|---|---|---|",
    ]
    for (processes, accumulation), found in figures.items():
        cells = [f"{found[who][what]:.2f}" for who in ("plain", "ftcli") for what in ("loss", "grad_norm")]
        lines.append(f"| {processes} × {accumulation} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--tokenizer", type=lambda path: Path(path).resolve())
    parser.add_argument("--config", type=lambda path: Path(path).resolve())
    parser.add_argument("--write", type=Path, help="a Markdown file with the table's markers")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--accumulation", type=int, help=argparse.SUPPRESS)
    known, rest = parser.parse_known_args()
    if known.plain:
        plain(known.plain, known.accumulation, rest)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = options(prepare(folder, known.tokenizer), known.tokenizer, known.config)
        figures = {}
        for cut in CUTS:
            figures[cut] = {"plain": with_trainer(folder, given, *cut), "ftcli": with_ftcli(folder, given, *cut)}
            print(cut, figures[cut], f"ln {LABELS} = {math.log(LABELS):.4f}", file=sys.stderr, flush=True)
    found = table(figures)
    print(found)
    if known.write:
        text = known.write.read_text(encoding="utf-8")
        before, _, behind = text.partition(BEGIN)
        known.write.write_text(f"{before}{BEGIN}\n{found}\n{END}{behind.partition(END)[2]}", encoding="utf-8")


def _start(processes: int, program: list[str], words: list[str]) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    _run([sys.executable, *launch, *program, *words])


def _ftcli(*words: object) -> None:
    _run([sys.executable, "-m", "ftcli", *map(str, words), "--quiet"])


def _run(command: list[str]) -> None:
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")


if __name__ == "__main__":
    main()
