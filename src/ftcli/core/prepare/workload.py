"""How the work is done on this machine: engine, workers, memory. Nothing here changes an output byte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.core.engines.engine import EngineChoice, Load, choose_engine
from ftcli.core.files.streams import codec_of
from ftcli.core.prepare.beginning import first_batches, forget
from ftcli.core.prepare.dialogue import template_of
from ftcli.core.prepare.job import Job
from ftcli.core.prepare.join import JOINED_BYTES, first_rows
from ftcli.core.prepare.recipe import Recipe
from ftcli.core.reading.read import Plan
from ftcli.core.tokenizer.lost_text import lost_text
from ftcli.machine import cut_to_cores
from ftcli.records import Choice

SAMPLE_ROWS = 2_000
SMALL_JOB_BYTES = 32_000_000
"""Below this one worker is faster: each takes about 1 s of a core to start and load its engine."""
FILE_BYTES = 20_000
"""What a file costs beside its bytes, as so many of them: 0.7 ms to open, read, count and look at again, whatever it holds."""
WAITED = 1.5
"""Times a core's share of all bytes that one file has to have so that it is worth a word."""
WORKER_BYTES = 600_000_000
"""Memory of a worker: 430 MB with Qwen3's 151,669 tokens and the engine's caches warm."""
MODES = {"memory": 200_000, "balanced": 50_000, "disk": 5_000}
"""Rows buffered before writing at most, by memory mode (incident 4)."""


@dataclass(frozen=True, slots=True)
class Workload:
    engine: EngineChoice
    workers: int
    threads: int
    """Threads of each worker."""
    batch_size: int
    buffer_rows: int

    def job(self, context: Context, recipe: Recipe, directory: Path, label_ids: Mapping[str | int, int] | None) -> Job:
        return Job(
            directory=directory,
            settings=context.settings,
            columns=recipe.plan.columns,
            encoder=replace(self.engine.spec, threads=self.threads),
            # The rows may have shown that no fixed prefix and suffix stand for the special tokens; then the encoder adds them.
            policy=replace(recipe.policy, prefix=self.engine.spec.prefix, suffix=self.engine.spec.suffix),
            packing=recipe.packing,
            label_ids=label_ids,
            chat=recipe.template is not None,
            day=recipe.day,
            files=recipe.files(),
            hashes=recipe.plan.hashes,
            fractions=recipe.fractions,
            batch_size=self.batch_size,
            buffer_rows=self.buffer_rows,
            plugins_dir=context.plugins.plugins_dir,
            allow=context.plugins.allow,
            loaded=context.plugins.describe(),
        )


def settle_workload(context: Context, recipe: Recipe, load: Load | None = None) -> Workload:
    """Choose engine, workers and buffers, and note each choice with its reason.

    Args:
        load: see `choose_engine`.

    Raises:
        EngineError: the engine that was asked for is not there or not exact for this tokenizer.
        DataError: the first rows cannot be read.
    """
    workers = worker_count(context, recipe.plan)
    context.note(f"workers: {workers.reason}")
    if uncut := _uncut(recipe.plan, min(context.machine.cores, context.settings.dataset.num_proc or context.machine.cores)):
        context.note(uncut)
    batch_size, buffer_rows = _buffers(context)
    sample = _sample(context, recipe)
    choice = choose_engine(
        recipe.tokenizer,
        recipe.tokenizer_path,
        context.plugins,
        requested=context.settings.tokenizer.engine,
        cache_dir=context.cache_dir,
        sample=sample,
        threads=thread_count(context),
        add_special_tokens=context.settings.tokenizer.add_special_tokens and recipe.template is None,
        audit=context.settings.tokenizer.audit,
        load=load,
        backend=recipe.backend,
    )
    for note in (*choice.notes, f"engine {choice.reason}", *filter(None, [lost_text(context, recipe.tokenizer, sample)])):
        context.note(note)
    return Workload(choice, workers.value, worker_threads(context, workers.value), batch_size, buffer_rows)


def _uncut(plan: Plan, cores: int) -> str:
    """The largest file that one worker has to read alone, where that keeps others waiting, and what to do about it; "" where there is none."""
    files = (piece for shard in plan.shards for piece in shard.pieces if piece.unit == "file")
    largest = max(files, key=lambda piece: piece.size, default=None)
    if largest is None or largest.size < SMALL_JOB_BYTES or largest.size * cores < WAITED * plan.bytes:
        return ""
    way = "unpack it" if codec_of(largest.path) else "write its rows as JSON lines"
    return f"{largest.path} ({largest.size / 1e6:,.0f} MB) cannot be cut, so one worker reads all of it; to use more cores, {way}"


def thread_count(context: Context) -> int:
    """Threads that one process may compute with while no other works."""
    return context.settings.runtime.threads or context.machine.cores


def worker_threads(context: Context, workers: int) -> int:
    """Threads of each of so many workers: what is asked for, but of several no more than their share of the cores; on Ray that is Ray's to give."""
    asked = context.settings.runtime.threads
    if context.room is not None:
        return asked or 1
    share = max(1, context.machine.cores // workers)
    return asked if asked and workers == 1 else min(asked or share, share)


def is_small(size: int, files: int) -> bool:
    """Whether so many bytes in so many files are done before a second process has started."""
    return size + files * FILE_BYTES < SMALL_JOB_BYTES


def worker_count(context: Context, plan: Plan) -> Choice:
    """Worker processes for a plan, and why so many."""
    origin = context.resolved.origin("dataset.num_proc")
    asked = context.settings.dataset.num_proc
    machine, room = context.machine, context.room
    if room is not None:
        machine = replace(machine, cores=room.value, how={**machine.how, "cores": room.reason})
    choice = cut_to_cores(asked, origin, machine)
    if room is not None and room.value < choice.value:
        choice = Choice(room.value, f"{choice.reason}, {room.value} used: {room.reason}")
    shards = len(plan.shards)
    if shards < choice.value:
        choice = Choice(shards, f"{choice.reason}, {shards} used: {shards} shard{'s' * (shards != 1)} of work")
    by_user = asked is not None and origin != "default" and not origin.startswith("profile ")
    fit = max(1, context.machine.memory_available_bytes // WORKER_BYTES)
    if fit < choice.value and not by_user and room is None:
        free = f"{context.machine.memory_available_bytes / 2**30:.1f} GB of memory are free"
        choice = Choice(fit, f"{choice.reason}, {fit} used: {free}, and a worker may take {WORKER_BYTES / 1e6:.0f} MB")
    if (asked is None or origin == "default") and is_small(plan.bytes, len(plan.files)) and choice.value > 1:
        choice = Choice(1, f"{choice.reason}, 1 used: {plan.bytes / 1e6:.1f} MB are processed before a second process would have started")
    return choice


def _buffers(context: Context) -> tuple[int, int]:
    """(rows encoded at a time, rows buffered before writing)."""
    dataset, free = context.settings.dataset, context.machine.memory_available_bytes / 2**30
    mode: Any = dataset.memory_mode
    if mode == "auto":
        mode = "memory" if free > 50 else "balanced" if free >= 20 else "disk"
        said = f"{free:.0f} GB" if free >= 10 else f"{1024 * free:,.0f} MB"
        context.note(f"memory mode {mode}: {said} free by {context.machine.how.get('memory_bytes', 'the system')}")
    origin = context.resolved.origin("dataset.writer_batch_size")
    by_user = origin != "default" and not origin.startswith("profile ")
    asked = dataset.writer_batch_size
    return dataset.batch_size, asked if by_user else min(asked, MODES[mode])


def _sample(context: Context, recipe: Recipe) -> list[str]:
    """The first rows, for the engine's proof on the user's own text."""
    texts: list[str] = []
    for _, batch in first_batches(context, recipe.plan):
        rows = first_rows(batch, SAMPLE_ROWS - len(texts), JOINED_BYTES)
        texts += [text for column in ("text", "pair") if column in rows.schema.names for text in rows.column(column).to_pylist()]
        if len(texts) >= SAMPLE_ROWS:
            break
    forget()
    if recipe.template is not None:
        return [text for text in template_of(recipe.tokenizer, context.settings, recipe.day).render(texts).texts if text]
    return texts
