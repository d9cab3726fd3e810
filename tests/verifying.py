"""A small world to verify: tokenizers, prepared data, configurations, a healthy machine; and a table of what caught which fault."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftcli.commands import tokenize
from ftcli.context import Context
from ftcli.core.storage.store import Store
from ftcli.core.tokenizer.train_tokenizer import train_tokenizer
from ftcli.core.verify.probe import Probe
from ftcli.core.verify.rules import chosen, run_checks
from ftcli.pluginmanager import Plugins
from ftcli.records import Check, Machine
from stores import Row, write_store
from tokenizing import here

LABELS = ("billing", "delivery", "login", "refund")
STORY = (
    "the order invoice parcel account password refund card late again please help with my of not yet for and where is when can you "
    "배송이 아직 도착하지 않았습니다 비밀번호를 잊어버렸어요 환불받고 싶습니다 영수증을 보내 주세요 확인 부탁드립니다 주문한 상품"
)
MACHINE = Machine(
    cores=4,
    memory_bytes=64 * 2**30,
    memory_available_bytes=32 * 2**30,
    cpu_model="a processor",
    cpu_flags=("avx2", "avx512_bf16"),
    disk_kind="ssd",
    disk_free_bytes=100 * 2**30,
    gpus=(),
    platform="Linux",
    python="3.11",
    load_average=0.5,
    how={"cores": "affinity", "memory_bytes": "physical", "disk_kind": "rotational = 0", "gpus": "no nvidia-smi"},
)
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_LAUNCH_BLOCKING",
    "MKL_SERVICE_FORCE_INTEL",
    "MKL_THREADING_LAYER",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "RAYON_NUM_THREADS",
    "OMP_PROC_BIND",
    "TOKENIZERS_PARALLELISM",
)
BAD = ("warn", "fail", "error")
BEYOND = {"info": ("warn", "fail"), "warn": ("fail",), "fail": ()}
COLLATOR = """
import ftcli
import torch
from ftcli.contracts import CollatorKind
from ftcli.core.batches.collate import {base}

class Altered({base}):
    def __call__(self, rows):
        batch = super().__call__(rows)
        {change}
        return batch

@ftcli.hookimpl
def register_collators(register):
    register("{name}", CollatorKind(Altered, packed={packed}), replace=True)
"""
MODEL = """
import ftcli
import torch
from ftcli.core.batches.tasks import {base}

class Altered:
    @staticmethod
    def from_config(config, **options):
        model = {base}().model_class().from_config(config, **options)
        {change}
        return model

class Task({base}):
    def model_class(self):
        return Altered

@ftcli.hookimpl
def register_tasks(register):
    register({base}.name, Task, replace=True)
"""


def texts(rows: int, seed: int) -> list[str]:
    """Different texts of 3 to 40 words."""
    random = np.random.default_rng(seed)
    return [
        " ".join([str(number), *random.choice(STORY.split(), int(random.integers(3, 40)))])
        for number in range(seed * 1000, seed * 1000 + rows)
    ]


@dataclass
class World:
    """What tests share; each thing is made once, when it is first asked for."""

    folder: Path
    table: list[tuple[str, str, str, float]] = field(default_factory=list)
    """Cause, the check that caught it, the others that saw it, seconds."""

    @cached_property
    def bpe(self) -> Path:
        train_tokenizer(texts(200, 1), self.folder / "bpe", "bpe", 400)
        return self.folder / "bpe"

    @cached_property
    def wordpiece(self) -> Path:
        train_tokenizer(texts(200, 1), self.folder / "wordpiece", "wordpiece", 300)
        return self.folder / "wordpiece"

    @cached_property
    def labelled(self) -> Path:
        """240 and 40 rows with 4 labels, by `bpe`."""
        return self.prepare("labelled", self.bpe, {"dataset.label_column": "label"})

    @cached_property
    def labelled_wordpiece(self) -> Path:
        return self.prepare("labelled_wordpiece", self.wordpiece, {"dataset.label_column": "label"})

    @cached_property
    def plain(self) -> Path:
        """The same texts for pretrain, one a row, each with EOS."""
        return self.prepare("plain", self.bpe, {})

    @cached_property
    def packed(self) -> Path:
        return self.prepare("packed", self.bpe, {"packing.strategy": "bfd", "packing.max_length": 128})

    def prepare(self, name: str, tokenizer: Path, values: Mapping[str, Any], sources: Sequence[str] = ()) -> Path:
        """Data by `ftcli tokenize`: of `sources`, or of 240 and 40 rows of our own."""
        made = []
        for number, (split, rows) in enumerate([] if sources else [("train", 240), ("test", 40)], 2):
            path = self.folder / f"{name}-{split}.jsonl"
            lines = [json.dumps({"text": text, "label": LABELS[row % 4]}) for row, text in enumerate(texts(rows, number))]
            path.write_text("\n".join(lines), encoding="utf-8")
            made.append(f"{split}={path}")
        given = {
            "dataset.sources": [*sources, *made],
            "dataset.output_dir": self.folder / name,
            "dataset.num_proc": 1,
            "tokenizer.path": str(tokenizer),
            "tokenizer.engine": "hf",
            "runtime.report_dir": self.folder / "reports",
            "runtime.cache_dir": self.folder / "cache",
            **values,
        }
        with pytest.MonkeyPatch.context() as patch:
            here(patch)
            tokenize.run(Context.make(given, environ={}))
        return self.folder / name

    def config(self, kind: str, **changes: Any) -> Path:
        """A two-layer model's config.json with as many embedding rows as `bpe` has ids, and 100 more than `wordpiece`."""
        own: dict[str, Any] = {
            "qwen3": {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
            "roberta": {"pad_token_id": 1},
            "gpt2": {"n_inner": 64},
        }.get(kind, {})
        size = {"vocab_size": 400, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        path = self.folder / f"{kind}-{abs(hash(json.dumps(changes, sort_keys=True)))}.json"
        path.write_text(
            json.dumps(
                {"model_type": kind, **size, "max_position_embeddings": 1024, "pad_token_id": 0, "eos_token_id": 1, **own, **changes}
            )
        )
        return path

    def run(self, kind: str, model: str | None = None, **changes: Any) -> dict[str, Any]:
        """A planned run that is healthy: classify with qwen3, gpt2 or bert, pretrain with qwen3 or gpt2, packed with qwen3."""
        data = {"classify": self.labelled_wordpiece if model == "bert" else self.labelled, "pretrain": self.plain, "packed": self.packed}
        return {
            "tokenizer.path": str(self.wordpiece if model == "bert" else self.bpe),
            "dataset.sources": [str(data[kind])],
            **({"model.config": self.config(model)} if model else {}),
            **changes,
        }

    def plugins(self, source: str) -> Plugins:
        """The built-ins and one plugin with this source."""
        folder = self.folder / "plugins"
        folder.mkdir(exist_ok=True)
        path = folder / f"altered_{abs(hash(source))}.py"
        path.write_text(source, encoding="utf-8")
        return Plugins(path, allow=())

    def collator(self, change: str, base: str = "Dynamic", name: str = "bucketed") -> Plugins:
        """A plugin whose collator does what the built-in does, then `change` to the batch."""
        return self.plugins(COLLATOR.format(base=base, change=change, name=name, packed=base == "Packed"))

    def model(self, change: str, base: str = "Classify") -> Plugins:
        """A plugin whose task builds what the built-in builds, then does `change` to the model."""
        return self.plugins(MODEL.format(base=base, change=change))

    def tokenizer(self, folder: Path, like: Path | None = None, **changes: Any) -> str:
        """A copy of a tokenizer with changes to its tokenizer_config.json; None takes a key out."""
        shutil.copytree(like or self.bpe, folder)
        path = folder / "tokenizer_config.json"
        settings = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
        return str(folder)

    def rows(self, store: Path, split: str = "train") -> list[Row]:
        """The rows of a store, to be written again with a fault."""
        data = Store.open(store).split(split)
        found = data.rows(np.arange(len(data)))
        return [(found.input_ids.row(row).tolist(), None if found.labels is None else int(found.labels[row])) for row in range(len(found))]

    def rewritten(self, folder: Path, splits: Mapping[str, Sequence[Row]], like: Path | None = None, **options: Any) -> dict[str, Any]:
        """`dataset.sources` of a store with these rows and the tokenizer, labels and task of another one."""
        manifest = Store.open(like or self.labelled).manifest
        options = {"label_names": manifest["label_names"], "task": manifest["task"], "max_length": manifest["max_length"], **options}
        write_store(folder, splits, tokenizer=manifest["tokenizer"], **options)
        return {"dataset.sources": [str(folder)]}

    def verify(
        self,
        values: Mapping[str, Any],
        *,
        plugins: Plugins | None = None,
        env: Mapping[str, str] | None = None,
        stages: Sequence[str] = (),
        level: str = "full",
        profile: str | None = None,
        select: Sequence[str] = (),
        **machine: Any,
    ) -> dict[str, Check]:
        """Every verdict by id, on a healthy machine with the given differences."""
        with pytest.MonkeyPatch.context() as patch:
            for name in VARIABLES:
                patch.delenv(name, raising=False)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            context = Context.make({"runtime.cache_dir": self.folder / "cache", **values}, plugins, profile=profile)
            context.machine = replace(MACHINE, **machine)
            registry = context.plugins.registry("check")
            checks = run_checks(Probe(context), chosen(registry, stages, level, select, ()), registry.owner, lambda check: None)
        severities = {kind.id: kind.severity for _, kind in registry.items()}
        for check in checks:
            assert check.summary
            assert bool(check.fix) == (check.status in BAD), check
            assert check.status not in BEYOND[severities[check.id]], "a verdict is worse than the check says it can be"
        return {check.id: check for check in checks}

    def caught(self, cause: str, values: Mapping[str, Any], *ids: str, status: str = "fail", words: str = "", **options: Any) -> Check:
        """Assert that the first of `ids` catches the fault with `status` and `words`, and that exactly these ids see it."""
        clock = time.perf_counter()
        checks = self.verify(values, **options)
        seconds = time.perf_counter() - clock
        seen = {name: check for name, check in checks.items() if check.status in BAD}
        assert set(seen) == set(ids), {name: check.summary for name, check in seen.items()}
        verdict = checks[ids[0]]
        assert verdict.status == status, verdict
        assert words in verdict.summary, verdict
        self.table.append((cause, f"{ids[0]} {status}", " ".join(ids[1:]), seconds))
        return verdict

    def quiet(self, what: str, values: Mapping[str, Any], **options: Any) -> dict[str, Check]:
        """Assert that nothing warns or fails, and that what was selected has run."""
        clock = time.perf_counter()
        checks = self.verify(values, **options)
        assert not [check for check in checks.values() if check.status in BAD], what
        assert all(checks[name].status != "skipped" for name in options.get("select", ()) if name in checks), what
        self.table.append((what, "nothing", "", time.perf_counter() - clock))
        return checks

    def print_table(self) -> None:
        """What was caught so far, for people who run pytest -s."""
        if self.table:
            print("\n\n| cause | caught by | also seen by | seconds |\n|---|---|---|---|")
            for cause, by, others, seconds in self.table:
                print(f"| {cause} | {by} | {others} | {seconds:.2f} |")
