"""FT009's estimate of a training step's memory against what steps really take on a CPU, each case in a process of its own.

python -m benchmarks.footprint [--write PAGE]

A case is a small model from its configuration, random rows, two AdamW steps in float32. Measured is the largest resident size of the process (the kernel's own
figure) less its size before the model was made: torch and the libraries are loaded by then and have multiplied and differentiated something.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- table of benchmarks/footprint.py -->", "<!-- end of table -->"
SIZES = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4}
QWEN = {**SIZES, "num_key_value_heads": 2, "head_dim": 64}
CASES: dict[str, dict[str, Any]] = {
    "classify, BERT, 32 × 128": {"type": "bert", "config": {**SIZES, "vocab_size": 8_000}, "head": 77, "rows": 32, "width": 128},
    "classify, Qwen3, 16 × 256": {"type": "qwen3", "config": {**QWEN, "vocab_size": 8_000}, "head": 280, "rows": 16, "width": 256},
    "pretrain, Qwen3, 4 × 512": {"type": "qwen3", "config": {**QWEN, "vocab_size": 32_000}, "head": None, "rows": 4, "width": 512},
    "pretrain, GPT-2, 4 × 512": {
        "type": "gpt2",
        "config": {"n_embd": 256, "n_layer": 6, "n_head": 4, "vocab_size": 32_000},
        "head": None,
        "rows": 4,
        "width": 512,
    },
    "pretrain, Qwen3, 8 × 512, recomputed": {
        "type": "qwen3",
        "config": {**QWEN, "vocab_size": 8_000, "num_hidden_layers": 12},
        "head": None,
        "rows": 8,
        "width": 512,
        "recompute": True,
    },
}


def measure(case: dict[str, Any]) -> dict[str, float]:
    """Megabytes (10⁶ bytes) of two steps in this process: `estimated`, `measured`, and `model`, what it had with the weights alone."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    from ftcli.core.batches.tasks import Classify, Pretrain
    from ftcli.core.models.step_memory import training_step
    from ftcli.core.models.trainable_weights import learned
    from ftcli.core.processes.footprint import resident_bytes
    from ftcli.settings import Settings

    config = AutoConfig.for_model(case["type"], **case["config"], pad_token_id=0)
    head, rows, width = case["head"], case["rows"], case["width"]
    warm = torch.nn.Linear(64, 64)
    torch.autograd.backward(torch.nn.functional.gelu(warm(torch.randn(8, 64))).sum())
    torch.optim.AdamW(warm.parameters()).step()
    before = resident_bytes([os.getpid()])
    if head is None:
        model = AutoModelForCausalLM.from_config(config)
    else:
        config.num_labels = head
        model = AutoModelForSequenceClassification.from_config(config)
    if case.get("recompute"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    weights = resident_bytes([os.getpid()]) - before
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4)
    ids = torch.randint(1, case["config"]["vocab_size"], (rows, width))
    labels = ids if head is None else torch.randint(0, head, (rows,))
    task = Pretrain() if head is None else Classify()
    for _ in range(2):
        optimizer.zero_grad()
        torch.autograd.backward(task.loss(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits, labels, None))
        optimizer.step()
    counted = learned(Settings(), config, head)
    assert counted is not None
    step = training_step(
        config,
        counted,
        head=head,
        rows=rows,
        width=width,
        optimizer="adamw_torch",
        half=False,
        half_weights=False,
        recompute=bool(case.get("recompute")),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return {"estimated": step.total / 1e6, "measured": peak / 1e6, "model": weights / 1e6}


def table(found: dict[str, dict[str, float]]) -> list[str]:
    lines = ["| case (rows × tokens) | estimated, MB | measured, MB | estimated / measured |", "|---|---|---|---|"]
    for name, figures in found.items():
        share = figures["estimated"] / figures["measured"]
        lines.append(f"| {name} | {figures['estimated']:,.0f} | {figures['measured']:,.0f} | {share:.2f} |")
    return lines


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", help="measure this one here, as JSON")
    parser.add_argument("--write", type=Path, help="a page with the two marks that the table goes between")
    given = parser.parse_args(words)
    if given.case:
        print(json.dumps(measure(json.loads(given.case))))
        return 0
    found = {}
    for name, case in CASES.items():
        run = [sys.executable, "-m", "benchmarks.footprint", "--case", json.dumps(case)]
        done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: {done.stderr[-500:]}", file=sys.stderr)
            return 1
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(table({name: found[name]})[-1], flush=True)
    if given.write:
        page = given.write.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        _, _, tail = rest.partition(END)
        given.write.write_text("\n".join([f"{head}{BEGIN}", *table(found), f"{END}{tail}"]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
