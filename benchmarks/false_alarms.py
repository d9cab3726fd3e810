"""What `ftcli verify` says of every tokenizer × data set of a data folder that are sound: each verdict above info is true, or a false alarm.

python benchmarks/false_alarms.py --data ../shared/data --work work --out verdicts.jsonl --most-mb 1

Each pair is prepared by `ftcli tokenize` and verified: pretrain one text a row (cut, and long texts split), pretrain packed, and classify where there are labels.
One JSON line a pair is added to --out; pairs that it has are passed over, so that the program can be ended and begun again. It ends with code 1 when a verdict above info
is not in `true_verdicts.py`. The stage env is left out: it says nothing about tokenizers and data.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # this folder holds a tokenize.py, and the standard library's modules import one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - before anything is imported

import argparse
import gc
import importlib.util
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.true_verdicts import why_true

from ftcli.commands import tokenize
from ftcli.context import Context
from ftcli.core.verify.probe import Probe
from ftcli.core.verify.rules import RANK, chosen, run_checks
from ftcli.errors import FtcliError
from ftcli.records import STAGES

ROOT = Path(__file__).resolve().parents[1]
SEED = 11
STAGES_HERE = tuple(stage for stage in STAGES if stage != "env")
MODES: dict[str, dict[str, Any]] = {
    "pretrain": {"packing.max_length": 1024},
    "pretrain-split": {"packing.max_length": 128, "packing.truncation_strategy": "split"},
    "pretrain-packed": {"packing.strategy": "bfd", "packing.max_length": 256},
    "classify": {"dataset.label_column": "label", "packing.max_length": 256},
}
TINY = {
    "bert": ("bert-base-uncased", "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=2"),
    "qwen3": (
        "qwen3-0.6b",
        "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=2,head_dim=16,max_window_layers=2",
    ),
}
"""Configurations of the data folder made small, for --level full."""
ENCODERS = ("bert-base-multilingual-cased", "bert-base-uncased", "koelectra-v3")
Rows = list[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class Pair:
    tokenizer: str
    dataset: str
    mode: str
    level: str

    @property
    def name(self) -> str:
        return f"{self.tokenizer} × {self.dataset}, {self.mode}, {self.level}"


class Sweep:
    """Pairs of one data folder, with a folder of its own for this process."""

    def __init__(self, data: Path, work: Path, rows: int, most_bytes: int) -> None:
        self.data, self.rows, self.most_bytes = data, rows, most_bytes
        self.folder = work
        self.sets = _sets()
        self._parts: dict[str, dict[str, Rows]] = {}
        self._written: dict[tuple[str, bool], list[str]] = {}

    def pairs(self, tokenizers: Sequence[str], datasets: Sequence[str], level: str) -> Iterator[Pair]:
        for dataset in datasets or self.sets:
            labelled = any(label is not None for _, label in self._splits(dataset)["train"][:1])
            for tokenizer in tokenizers or sorted(path.name for path in (self.data / "tokenizers").iterdir()):
                for mode in MODES:
                    if mode != "classify" or labelled:
                        yield Pair(tokenizer, dataset, mode, level)

    def run(self, pair: Pair) -> dict[str, Any]:
        """The record of one pair: verdicts above info, or why it could not be prepared."""
        clock = time.process_time()
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        values = {
            "tokenizer.path": str(self.data / "tokenizers" / pair.tokenizer),
            "runtime.report_dir": folder / "reports",
            "runtime.cache_dir": self.folder / "cache",
        }
        error = None
        try:
            prepare = {
                **values,
                **MODES[pair.mode],
                "dataset.sources": self._sources(pair),
                "dataset.output_dir": folder / "prepared",
                "dataset.num_proc": 1,
                "tokenizer.engine": "hf",
            }
            if len(self._splits(pair.dataset)) == 1:
                prepare["dataset.validation_fraction"] = 0.1
            tokenize.run(Context.make(prepare, environ={}))
            given = [str(folder / "prepared")]
        except FtcliError as failed:
            error, given = failed.message, []
        mode = "classify" if pair.mode == "classify" else "pretrain"
        run = {**values, "train.mode": mode, **({"dataset.sources": given} if given else {})}
        if pair.level == "full":
            run |= self._model(pair)
        context = Context.make(run, environ={})
        registry = context.plugins.registry("check")
        stages = tuple(stage for stage in STAGES_HERE if pair.level == "full" or stage in {"settings", "tokenizer", "data"})
        checks = run_checks(Probe(context), chosen(registry, stages, pair.level, (), ()), registry.owner, lambda _: None)
        found = [{"id": check.id, "status": check.status, "summary": check.summary} for check in checks if RANK[check.status]]
        shutil.rmtree(folder)
        gc.collect()
        return {
            "tokenizer": pair.tokenizer,
            "dataset": pair.dataset,
            "mode": pair.mode,
            "level": pair.level,
            "cpu_seconds": round(time.process_time() - clock, 2),
            "not_prepared": error,
            "verdicts": found,
        }

    def _model(self, pair: Pair) -> dict[str, Any]:
        kind = "bert" if pair.tokenizer in ENCODERS and pair.mode == "classify" else "qwen3"
        config, overrides = TINY[kind]
        return {
            "model.config": self.data / "configs" / config / "config.json",
            "model.config_overrides": f"{overrides},vocab_size=152000",
            "train.per_device_train_batch_size": 4,
        }

    def _splits(self, dataset: str) -> dict[str, Rows]:
        """A random part of each split: --rows of train, a quarter of the others, --most-mb of text. Of the last data set asked for."""
        if dataset not in self._parts:
            whole = self.sets[dataset](self.data)
            self._parts = {
                dataset: {split: self._part(rows, self.rows if split == "train" else self.rows // 4) for split, rows in whole.items()}
            }
        return self._parts[dataset]

    def _part(self, rows: Rows, most: int) -> Rows:
        chosen = random.Random(SEED).sample(rows, min(most, len(rows)))
        room = self.most_bytes
        kept: Rows = []
        for text, label in chosen:
            room -= len(text.encode())
            if kept and room < 0:
                break
            kept.append((text, label))
        return kept

    def _sources(self, pair: Pair) -> list[str]:
        """Files of the part, a split each. Labels that training rows lack would be refused, and are left out."""
        key = pair.dataset, pair.mode == "classify"
        if key not in self._written:
            splits = self._splits(pair.dataset)
            labels = {label for _, label in splits["train"]}
            made = []
            for split, rows in splits.items():
                path = self.folder / f"{pair.dataset}-{split}-{key[1]}.jsonl"
                lines = [json.dumps({"text": text, "label": label}) for text, label in rows if not key[1] or label in labels]
                path.write_text("\n".join(lines), encoding="utf-8")
                made.append(f"{split}={path}")
            self._written[key] = made
        return self._written[key]


def _sets() -> dict[str, Callable[[Path], dict[str, Rows]]]:
    """The readers of the data sets, which the tests have."""
    spec = importlib.util.spec_from_file_location("realsets", ROOT / "tests" / "realsets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Callable[[Path], dict[str, Rows]]] = module.SETS
    return found


def read_records(path: Path) -> dict[Pair, dict[str, Any]]:
    """The last record of every pair."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return {Pair(*(record[key] for key in ("tokenizer", "dataset", "mode", "level"))): record for record in records}


def is_done(record: dict[str, Any] | None, redo: Sequence[str]) -> bool:
    """Whether a pair has a record, and none of the verdicts that are to be tried again."""
    return record is not None and not any(verdict["id"].startswith(tuple(redo)) for verdict in record["verdicts"] if redo)


def unknown(records: dict[Pair, dict[str, Any]]) -> list[str]:
    """Verdicts above info that nobody has looked into, one line each; and pairs that were not prepared though their tokenizer loads."""
    lines = []
    for pair, record in records.items():
        bad = [verdict for verdict in record["verdicts"] if why_true(verdict["id"], pair.tokenizer, pair.dataset, pair.mode) is None]
        lines += [f"{pair.name}: {verdict['id']} {verdict['status']}: {verdict['summary'][:200]}" for verdict in bad]
        if record["not_prepared"] and not record["verdicts"]:
            lines.append(f"{pair.name}: not prepared: {record['not_prepared']}")
    return lines


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("FTCLI_REAL_DATA") or ROOT.parent / "shared" / "data")
    parser.add_argument("--work", type=Path, required=True, help="a folder for temporary files; each process makes its own inside")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one a pair; added to")
    parser.add_argument("--level", choices=("quick", "full"), default="quick")
    parser.add_argument("--most-mb", type=float, default=1.0, help="text of a split, at most")
    parser.add_argument("--rows", type=int, default=400, help="rows of train, at most; a quarter of the other splits")
    parser.add_argument("--tokenizers", type=lambda text: text.split(","), default=[])
    parser.add_argument("--datasets", type=lambda text: text.split(","), default=[])
    parser.add_argument("--modes", type=lambda text: text.split(","), default=list(MODES))
    parser.add_argument("--redo", type=lambda text: text.split(","), default=[], help="ids: pairs with such verdicts once more")
    given = parser.parse_args(words)
    given.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        sweep = Sweep(given.data, Path(folder), given.rows, int(given.most_mb * 1e6))
        before = read_records(given.out)
        for pair in sweep.pairs(given.tokenizers, given.datasets, given.level):
            now = read_records(given.out).get(pair)
            if pair.mode not in given.modes or (is_done(now, given.redo) if now == before.get(pair) else now is not None):
                continue
            record = sweep.run(pair)
            with given.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
            seen = " ".join(f"{verdict['id']}:{verdict['status']}" for verdict in record["verdicts"])
            print(f"{pair.name}: {seen or 'nothing above info'} ({record['cpu_seconds']} s)", flush=True)
    records = read_records(given.out)
    lines = unknown(records)
    print("\n".join(lines))
    print(
        f"{len(records):,} pairs, {sum(bool(record['verdicts']) for record in records.values()):,} with verdicts above info, {len(lines):,} verdicts not looked into"
    )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
