"""The shards of a run: those that an earlier run finished are taken as they are, the others are made by the executor."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ftcli.context import Context
from ftcli.contracts import Distant, Executor
from ftcli.core.prepare.dialogue import prepare_worker
from ftcli.core.prepare.encode import Rescue, collect_labels, encode_shard, shard_name
from ftcli.core.prepare.engine_trials import Early
from ftcli.core.prepare.executed import results
from ftcli.core.prepare.job import Job
from ftcli.core.prepare.labels import label_map
from ftcli.core.prepare.recipe import Recipe
from ftcli.core.prepare.space import Shortage
from ftcli.core.prepare.workload import Workload, settle_workload
from ftcli.core.processes.footprint import Footprint
from ftcli.core.reading.read import HASH_THREADS
from ftcli.core.reading.reject import REJECTS, Budget, join, whole
from ftcli.records import ShardPlan

Record = Mapping[str, Any]


class Desk(Protocol):
    """Where shards are made: an `Attempt`, or a part of one (`ftcli.core.prepare.parts`)."""

    directory: Path

    def done(self, name: str) -> dict[str, Any] | None:
        """The record of a finished shard that is still whole; called from several threads."""
        ...

    def beat(self, **progress: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Work:
    """What came of it."""

    workload: Workload
    job: Job
    label_names: list[str] | None
    resumed: list[Record]
    """Records of the shards that an earlier run had finished."""
    made: list[Record]
    seconds: float


def make_shards(
    context: Context, executor: Executor, early: Early, recipe: Recipe, shards: Sequence[ShardPlan], desk: Desk, footprint: Footprint
) -> Work:
    """Settle how the work is done on this machine, and do it.

    Args:
        shards: of the recipe's plan, those to be made here.
    """
    workload = settle_workload(context, replace(recipe, plan=replace(recipe.plan, shards=tuple(shards))), early)
    early.close()
    executor.start(workload.workers)
    if isinstance(executor, Distant):
        executor.share(desk.directory)
    job = workload.job(context, recipe, desk.directory, None)
    names, ids = label_map(context, recipe, executor, partial(collect_labels, job), desk.beat, desk.directory / "labels")
    job = workload.job(context, recipe, desk.directory, ids)
    executor.each(partial(prepare_worker, job))
    clock = time.perf_counter()
    resumed, made = _encode(context, recipe, shards, job, desk, executor, workload.workers, footprint)
    return Work(workload, job, names, resumed, made, time.perf_counter() - clock)


def _encode(
    context: Context,
    recipe: Recipe,
    shards: Sequence[ShardPlan],
    job: Job,
    desk: Desk,
    executor: Executor,
    workers: int,
    footprint: Footprint,
) -> tuple[list[Record], list[Record]]:
    """The records of the shards that an earlier run had finished, and those of this one."""
    progress = context.progress
    records: list[Record] = []
    waiting: list[ShardPlan] = []
    strict, over = context.settings.dataset.on_bad == "strict", False
    budget = Budget(context.settings.dataset.max_bad, sum(shard.size for shard in recipe.plan.shards))
    with ThreadPoolExecutor(HASH_THREADS) as pool:
        for shard, record in zip(shards, pool.map(desk.done, map(shard_name, shards)), strict=True):
            if record is None or not whole(desk.directory, record) or (record["rejects"] and strict):
                waiting.append(shard)
            else:
                records.append(record)
                over = budget.spend(record, shard.size)
            desk.beat()
    if records:
        context.note(f"resuming after {len(records)} of {len(shards)} shards finished by an earlier run")
    progress.start("tokenize", sum(shard.size for shard in waiting), "B")
    figures = {"rows": 0, "tokens": 0, "workers": min(workers, len(waiting))}
    total, left = sum(shard.size for shard in shards), sum(shard.size for shard in waiting)
    state = {"done": total - left, "total": total, "shards_done": len(records), "shards": len(shards)}
    desk.beat(**state)

    def on_progress(size: int, rows: int, tokens: int, file: str = "") -> None:
        figures["rows"] += rows
        figures["tokens"] += tokens
        state["done"] += size
        desk.beat(**state)
        progress.advance(size, **figures, memory_mb=footprint.now_mb, **({"file": file} if file else {}))

    made: list[Record] = []
    shortage = Shortage(desk.directory, left)
    found = () if over else executor.run(partial(encode_shard, job), waiting, on_progress, Rescue(job, context.note))
    for made_now in results(context, found, () if over else waiting, Mapping):
        made.append(made_now)
        shortage.finished(recipe.plan.shards[made_now["shard"]].size, made_now)
        state["shards_done"] += 1
        over = budget.spend(made_now, recipe.plan.shards[made_now["shard"]].size)
        if over:
            break
    if over:
        where = desk.directory / "records" / REJECTS
        _, first, advice = join(desk.directory, [*records, *made], recipe.plan.shards, where)
        raise budget.refusal(first, advice, where)
    progress.close()
    return records, made
