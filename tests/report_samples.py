"""A report of each command with everything in it, for tests and for looking at."""

from __future__ import annotations

import math
import random

from ftcli.records import Check, Gpu, Machine, Measurement, PluginInfo, Report, Value

MACHINE = Machine(
    cores=16,
    memory_bytes=128 << 30,
    memory_available_bytes=97 << 30,
    cpu_model="AMD EPYC 9354 32-Core Processor",
    cpu_flags=("avx2", "avx512f"),
    disk_kind="ssd",
    disk_free_bytes=812_000_000_000,
    gpus=(Gpu("NVIDIA H200", 139 << 30, "9.0"),),
    platform="Linux 6.8 x86_64",
    python="3.11.9",
    load_average=None,
    how={
        "cores": "16 by affinity, no cgroup quota",
        "memory_bytes": "cgroup limit",
        "disk_kind": "/sys/block/nvme0n1/queue/rotational",
    },
)
SETTINGS = {
    "dataset.num_proc": Value(16, "DATASET_NUM_PROC"),
    "tokenizer.path": Value("models/qwen3", "--tokenizer-path"),
    "dataset.text_column": Value("text", "run.toml"),
    "dataset.batch_size": Value(20000, "profile highend"),
    "packing.strategy": Value("none", "default"),
    "model.model_name_or_path": Value(None, "default"),
    "train.report_to": Value([], "default"),
}
PLUGINS = (PluginInfo("engine_gigatoken", "0.1.0", "built-in", "9c1f0a77d2e4b310", ("register_engines",)),)
NOTES = (
    "Workers: 48 by profile highend, 16 used: 16 cores by affinity.",
    "TOKENIZERS_PARALLELISM was set by you and left alone.",
)


def _bell(edges: list[int], centre: float, width: float, rows: int) -> list[int]:
    weights = [math.exp(-(((edge - centre) / width) ** 2)) for edge in edges[:-1]]
    return [round(rows * weight / sum(weights)) for weight in weights]


def tokenize_report() -> Report:
    edges = list(range(0, 324, 4))
    names = [f"분류 {index:03d}" for index in range(280)]
    return Report(
        command="tokenize",
        status="ok",
        seconds=129.4,
        metrics={
            "rows_read": 2_988_208,
            "rows_written": 2_988_190,
            "rows_rejected": 0,
            "rows_filtered": 18,
            "rows_truncated": 1204,
            "tokens": 631_999_811,
            "tokens_cut": 20_411,
            "bytes_read": 3_912_004_112,
            "seconds_read": 41.2,
            "seconds_encode": 76.0,
            "seconds_write": 8.1,
            "examples_per_second": 23_184.6,
            "megabytes_per_second": 30.23,
            "tokens_per_second": 4_884_079.0,
            "peak_rss_mb": 5120.4,
            "packing_waste": None,
            "engine": "gigatoken",
            "engine_proof": "equal on 4,096 texts",
            "content_hash": "xxh3:9f3c5a01",
            "reused": False,
        },
        paths={"output": "data/prepared", "manifest": "data/prepared/ftcli-manifest.json"},
        machine=MACHINE,
        settings=SETTINGS,
        plugins=PLUGINS,
        notes=NOTES,
        details={
            "lengths": {"edges": edges, "counts": _bell(edges, 214, 48, 2_988_190)},
            "max_length": 287,
            "labels": {"names": names, "counts": [max(120, round(42_000 / (1 + index / 9))) for index in range(280)]},
            "splits": {"train": {"rows": 2_900_000, "tokens": 613_000_000}, "validation": {"rows": 88_190, "tokens": 18_999_811}},
            "sources": [
                {
                    "path": f"raw/part-{index:02d}.jsonl.zst",
                    "rows_read": 747_052,
                    "rows_written": 747_043,
                    "rows_rejected": 0,
                    "rows_filtered": 9,
                }
                for index in range(4)
            ],
            "time": {"read": 41.2, "encode": 76.0, "write": 8.1, "wait": 3.3},
            "floor": {
                "engine_tokens_per_second": 6_880_000.0,
                "engine_text_mb_per_second": 31.5,
                "workers": 16,
                "disk_write_mb_per_second": 812.0,
                "disk_read_mb_per_second": None,
            },
            "rating": "very fast (23,184 examples/s; over 20,000 is very fast, 10,000 to 20,000 fast, 5,000 to 10,000 normal)",
        },
    )


CHECKS = (
    Check("cores", "env", "pass", "16 cores are usable, 16 processes are asked for.", {"cores": 16, "num_proc": 16}),
    Check("variables", "env", "warn", "CUDA_LAUNCH_BLOCKING=1 serialises every kernel launch.", {"CUDA_LAUNCH_BLOCKING": "1"},
          "Unset CUDA_LAUNCH_BLOCKING; it is for debugging."),
    Check("disk-kind", "env", "info", "The data lies on an SSD.", {"kind": "ssd"}),
    Check("fast-tokenizer", "tokenizer", "pass", "The tokenizer is a fast one (Qwen2TokenizerFast)."),
    Check("pad-token", "tokenizer", "pass", "PAD is set and is not EOS.", {"pad_token_id": 151643, "eos_token_id": 151645}),
    Check("first-batch", "batch", "pass", "8 rows of at most 287 tokens, right padded.", {"input_ids": [8, 288], "labels": [8]}),
    Check("logits", "model", "pass", "Logits have mean 0.01 and standard deviation 0.42.", {"mean": 0.0123, "range": [-2.1, 2.3]}),
    Check("first-loss", "steps", "fail", "The first loss is 67.7 where ln(280) = 5.63 is expected: 12.0 times that.",
          {"first_loss": 67.7123, "expected": 5.6348, "factor": 12.02, "gradient_accumulation_steps": 12},
          "The loss is multiplied by the accumulation steps: train with `ftcli train`, which divides by them, or use 1 step."),
    Check("grad-norm", "steps", "skipped", "Needs a first loss that is right."),
)  # fmt: skip


def verify_report() -> Report:
    edges = [round(-2.5 + index * 0.1, 1) for index in range(51)]
    texts = [
        "배송이 너무 늦어서 환불을 요청합니다. 주문 번호는 2024-1182입니다.",
        "Please change the delivery address of my order.",
        "<script>alert(1)</script> & so on",
    ]
    return Report(
        command="verify",
        status="failed",
        seconds=8.24,
        metrics={"first_loss": 67.7123, "expected_first_loss": 5.6348, "first_grad_norm": 204.1},
        checks=CHECKS,
        machine=MACHINE,
        settings=SETTINGS,
        plugins=PLUGINS,
        details={
            "rows": [
                {"row": index, "text": text, "label": "환불", "tokens": 31 + index, "ids": [128_000 + 7 * index, 912, 44, 10_233, 5]}
                for index, text in enumerate(texts)
            ],
            "logits_histogram": {"edges": edges, "counts": _bell([round(100 * edge) for edge in edges], 0, 60, 2240)},
        },
    )


def train_report() -> Report:
    chance = random.Random(7)
    log = []
    for step in range(10, 1410, 10):
        loss = 1.2 + 4.43 * math.exp(-step / 380) + chance.gauss(0, 0.12)
        log.append({
            "step": step, "epoch": step / 700, "loss": loss, "grad_norm": 2.2 + 30 * math.exp(-step / 60) + chance.random(),
            "learning_rate": 1e-5 * min(step / 140, (1400 - step) / 1260), "eval_loss": None, "eval_accuracy": None,
        })  # fmt: skip
        if step % 200 == 0:
            held_out = 1.35 + 4.3 * math.exp(-step / 370)
            log.append({"step": step, "epoch": step / 700, "eval_loss": held_out, "eval_accuracy": 0.91 - 0.9 * math.exp(-step / 420)})
    return Report(
        command="train",
        status="ok",
        seconds=4321.0,
        metrics={
            "first_loss": 5.641,
            "expected_first_loss": 5.6348,
            "final_loss": 1.318,
            "eval_loss": 1.447,
            "eval_accuracy": 0.8731,
            "chance_accuracy": 1 / 280,
            "majority_accuracy": 0.034,
            "first_grad_norm": 31.2,
            "steps": 1400,
            "epochs": 2.0,
            "real_tokens_per_second": 48_211.3,
            "slots_per_second": 51_902.0,
            "padding_share": 0.0711,
            "data_wait_share": 0.0042,
            "host_overhead_share": 0.0113,
            "mfu": None,
            "peak_rss_mb": 6120.0,
            "peak_gpu_mb": None,
            "resumed_from": None,
        },
        paths={"output": "runs/qwen3-280"},
        machine=MACHINE,
        settings=SETTINGS,
        plugins=PLUGINS,
        notes=NOTES,
        details={
            "log": log,
            "expected_first_loss": 5.6348,
            "time": {"forward_backward": 3890.0, "optimizer": 240.0, "evaluation": 121.0, "checkpoints": 52.0, "data_wait": 18.0},
            "padding": {"real tokens": 208_320_000, "padding": 15_940_000},
            "gpu": {"name": "NVIDIA H200", "capability": "9.0"},
        },
    )


def benchmark_report() -> Report:
    chance = random.Random(3)

    def measured(name: str, unit: str, centre: float) -> Measurement:
        samples = tuple(centre * (1 + chance.gauss(0, 0.025)) for _ in range(7))
        middle = sorted(samples)
        return Measurement(name, unit, middle[3], middle[1], middle[5], 7, samples)

    return Report(
        command="benchmark",
        status="ok",
        seconds=75.0,
        metrics={
            "measurements": [
                measured("hf, 1 process", "examples/s", 1711),
                measured("hf, 16 processes", "examples/s", 9200),
                measured("gigatoken, 16 threads", "examples/s", 23_184),
                measured("한국어 본문으로 재는 gigatoken with a name that is much too long for a phone", "examples/s", 21_050),
                measured("first batch", "s", 0.0132),
                measured("collate 64 rows", "s", 0.0021),
            ],
            "ratios": [
                {"name": "gigatoken / hf, 16 processes", "median": 2.52, "low": 2.41, "high": 2.66, "verdict": "faster"},
                {"name": "fixed / longest padding", "median": 0.81, "low": 0.79, "high": 0.83, "verdict": "slower"},
                {"name": "prefetch 4 / prefetch 2", "median": 1.01, "low": 0.97, "high": 1.04, "verdict": "no difference"},
            ],
        },
        machine=MACHINE,
        settings=SETTINGS,
        plugins=PLUGINS,
        notes=NOTES,
    )


FULL = {"tokenize": tokenize_report, "verify": verify_report, "train": train_report, "benchmark": benchmark_report}
