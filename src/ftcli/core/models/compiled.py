"""`--torch-compile auto`: layers compiled where that pays, tried on the run's own first batches before its first step.

Nothing is left of the trial but the decision: weights, gradients, buffers and random states are as they were. It is made once, by rank 0 for all, and
a run that goes on from a checkpoint keeps the form that it had, compiled on the same batches.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel, TrainingArguments

from ftcli.contracts import Task
from ftcli.core.distributed.agree import gathered
from ftcli.core.models import compiled_layers
from ftcli.core.models.compiled_layers import CompiledLayers
from ftcli.core.models.last_layer import logits_of
from ftcli.core.models.lean_head import LeanHead
from ftcli.core.models.lean_proof import EXACT, HALF, Batch, computed, difference

T = TypeVar("T")
COLD = 60.0
"""Seconds that compiling takes, about: the layer of a small Qwen3, forward and backward, on a loaded core (decision 0037). Faster machines take less."""
GAIN = 0.5
"""Part of a batch's forward and backward that compiling saves at best."""
COLD_GPU, GAIN_GPU = 12.0, 0.6
"""The same on a GPU: an H200 took 10.9 s for the layers of Qwen3-0.6B, which then saved 0.62."""
NOISE = 1.03
"""How many times faster the compiled form must be to be called faster, and in all pairs but one faster at all."""
TRIED = 5
"""Batches that both forms are timed on, one after the other, each once before."""
FEWEST = 60
"""Batches under which nothing is tried: a trial is the work of some 25, and later ones repay half of each at best."""
MISSED = 0.1
"""Part of the layers' calls that compiled code does not fit, from which on that is said."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried, and on what.

    Args:
        head: computes the loss in place of the task.
        batches: gives the run's first ones, `TRIED` of them; the same ones for a run that goes on.
        left: gives the batches that the run has before it.
        dynamic: the shapes of batches vary.
    """

    model: PreTrainedModel
    task: Task
    arguments: TrainingArguments
    batches: Callable[[int], Sequence[Batch]]
    left: Callable[[], int]
    head: LeanHead | None = None
    dynamic: bool = True
    backend: str | None = None
    mode: str | None = None
    compiler: Callable[..., Any] = field(default_factory=lambda: torch.compile)
    clock: Callable[[], float] = time.perf_counter

    def first(self) -> list[Batch]:
        """The batches, on the device."""
        device = self.arguments.device
        return [{name: value.to(device) for name, value in batch.items()} for batch in self.batches(TRIED)]

    @property
    def sixteen_bits(self) -> bool:
        return bool(self.arguments.bf16 or self.arguments.fp16 or self.model.dtype != torch.float32)

    def autocast(self) -> torch.autocast:
        """The types of a step of the run."""
        kind = torch.float16 if self.arguments.fp16 else torch.bfloat16
        return torch.autocast(self.arguments.device.type, kind, enabled=self.arguments.bf16 or self.arguments.fp16)

    def seconds(self, batch: Batch) -> float:
        """Of the batch's forward and backward pass."""
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self._wait()
        began = self.clock()
        with self.autocast():
            logits = logits_of(self.model, batch)
        loss = (self.head or self.task).loss(logits, batch["labels"], None)
        torch.autograd.grad(loss, weights, allow_unused=True)
        self._wait()
        return self.clock() - began

    def _wait(self) -> None:
        if self.arguments.device.type == "cuda":
            torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class Compiled:
    """What was decided, and by what. Seconds are of forward and backward of a batch, the median of those tried; None: not measured."""

    on: bool
    reason: str
    cold_seconds: float | None = None
    """Of compiling: what the first pass over the batches took more than the model's own code."""
    eager_seconds: float | None = None
    compiled_seconds: float | None = None
    batches_left: int | None = None
    layers: CompiledLayers | None = field(default=None, repr=False)

    @property
    def said(self) -> str:
        return f"torch.compile {'on' if self.on else 'off'}: {self.reason}"

    @property
    def missed(self) -> float:
        """Share of the layers' calls that the code did not fit."""
        calls = self.layers.fitted + self.layers.missed if self.layers else 0
        return self.layers.missed / calls if self.layers and calls else 0.0

    def record(self) -> dict[str, Any]:
        """For the report."""
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "layers"}
        return {**found, "share_not_fitted": self.missed if self.on else None}


@contextmanager
def compiled(trial: Trial, before: bool | None, note: Callable[[str], None]) -> Iterator[Compiled]:
    """Inside, the model's layers compute by compiled code where that pays; yields what was decided and why. Every rank must call it.

    Args:
        before: what the run decided that this one goes on from.
    """
    found = _decided(trial, before)
    note(found.said)
    if found.layers is None:
        yield found
        return
    found.layers.seal()
    found.layers.put()
    try:
        yield found
    finally:
        found.layers.take()
        if found.missed >= MISSED:
            note(
                f"torch.compile: the compiled code did not fit {found.missed:.0%} of the layers' calls because of their shapes; these ran uncompiled"
            )


def _decided(trial: Trial, before: bool | None) -> Compiled:
    if before is False:
        return Compiled(False, "as decided by the run that this one resumes")
    if reason := _anyones(compiled_layers.why_not(trial.model, trial.arguments, backend=trial.backend, mode=trial.mode)):
        return Compiled(False, reason)
    with _untouched(trial.model):
        if before:
            return _again(trial)
        left = trial.left()
        if left < FEWEST:
            return Compiled(False, f"{left:,} batches are left, too few to pay for compiling: nothing was tried", batches_left=left)
        return _tried(trial, left)


def _again(trial: Trial) -> Compiled:
    """Compiled as the run was that this one goes on from."""

    def compile_all() -> tuple[CompiledLayers, float]:
        batches = trial.first()
        with _made(trial) as layers:
            return layers, sum(map(trial.seconds, batches))

    try:
        layers, seconds = _on_all(compile_all)
    except _Cannot as reason:
        return Compiled(False, f"{reason}; the earlier run was compiled, so the weights may differ in their last bits")
    return Compiled(True, "as decided by the run that this one resumes", cold_seconds=seconds, layers=layers)


def _tried(trial: Trial, left: int) -> Compiled:
    def own() -> tuple[Sequence[Batch], list[float]]:
        batches = trial.first()
        trial.seconds(batches[0])  # fills caches
        return batches, [trial.seconds(batch) for batch in batches]

    usual = None
    try:
        batches, eager = _on_all(own)
        usual = gathered(statistics.median(eager))[0]
        cold, gain = (COLD_GPU, GAIN_GPU) if trial.arguments.device.type == "cuda" else (COLD, GAIN)
        if usual * left * gain <= cold:
            words = f"the {left:,} remaining batches take {usual * left:.3g} s, which cannot pay the cold cost of some {cold:.0f} s"
            return Compiled(False, f"{words}: nothing was compiled", eager_seconds=usual, batches_left=left)
        layers, cold, pairs = _on_all(lambda: _both(trial, batches, sum(eager)))
    except _Cannot as reason:
        return Compiled(False, str(reason), eager_seconds=usual, batches_left=left)
    cold, pairs = gathered((cold, pairs))[0]
    usual, fast = (statistics.median(side) for side in zip(*pairs, strict=True))
    figures = {"cold_seconds": cold, "eager_seconds": usual, "compiled_seconds": fast}
    times = f"a batch takes {fast:.3g} s compiled and {usual:.3g} s without; compiling took {cold:.3g} s"
    if not _faster(pairs):
        return Compiled(False, f"not faster: {times}", batches_left=left, **figures)
    saved = f"the {left:,} remaining batches save {(usual - fast) * left:.3g} s"
    return Compiled(True, f"{times}, and {saved}", batches_left=left, layers=layers, **figures)


def _faster(pairs: Sequence[tuple[float, float]]) -> bool:
    """Whether the seconds with are less than those without, beyond the noise."""
    return sum(one > other for one, other in pairs) >= len(pairs) - 1 and statistics.median(one / other for one, other in pairs) >= NOISE


def _both(trial: Trial, batches: Sequence[Batch], eager: float) -> tuple[CompiledLayers, float, list[tuple[float, float]]]:
    """The compiled form, the seconds of compiling it, and those of each batch without and with.

    Raises:
        _Cannot: it does not give the same, or does not fit.
    """
    with _made(trial) as layers:
        cold = sum(map(trial.seconds, batches)) - eager
        layers.seal()
        pairs = []
        for batch in batches:
            layers.take()
            without = trial.seconds(batch)
            layers.put()
            pairs.append((without, trial.seconds(batch)))
        if layers.missed:
            raise _Cannot("compiled code does not fit the batches it was compiled for")
        for batch in batches[:2]:
            found = []
            for form in (layers.take, layers.put):
                form()
                with trial.autocast():
                    found.append(computed(trial.model, trial.task, batch, trial.head, drops=True))
            if words := difference(found[0], found[1], HALF if trial.sixteen_bits else EXACT):
                raise _Cannot(f"compiled code gives different results: {words}")
    return layers, max(cold, 0.0), pairs


def _made(trial: Trial) -> CompiledLayers:
    return CompiledLayers(trial.model, trial.compiler, dynamic=trial.dynamic, backend=trial.backend, mode=trial.mode)


class _Cannot(Exception):  # noqa: N818 - no failure: the model's own code stands
    """Why, in words."""


def _on_all(work: Callable[[], T]) -> T:
    """What the work gives on this rank; raises `_Cannot` on every rank where it failed on one."""
    try:
        found, reason = [work()], None
    except _Cannot as said:
        found, reason = [], str(said)
    except Exception as error:  # noqa: BLE001 - whatever compilers raise
        lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
        cause = next((line for line in lines if "error:" in line), lines[0] if lines else "")
        found, reason = [], f"{type(error).__name__}: {cause[:200]}"
    if reason := _anyones(reason):
        raise _Cannot(reason)
    return found[0]


def _anyones(reason: str | None) -> str | None:
    """The first rank's reason, on every rank."""
    found = gathered(reason)
    return next((f"{each} (rank {rank})" if rank else each for rank, each in enumerate(found) if each), None)


@contextmanager
def _untouched(model: PreTrainedModel) -> Iterator[None]:
    """What the model keeps beside its weights, its mode and all random states are as before at the end."""
    training = model.training
    buffers = [
        (module, name, value, value.clone()) for module in model.modules() for name, value in module._buffers.items() if value is not None
    ]
    drawn, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one is what others draw from
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        try:
            model.train()
            yield
        finally:
            with torch.no_grad():
                for module, name, value, old in buffers:
                    module._buffers[name] = value.copy_(old)
            model.train(training)
            random.setstate(drawn)
            np.random.set_state(numbers)  # noqa: NPY002 - as above
