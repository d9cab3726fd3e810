"""A batch in two halves side by side, each computed by a thread of its own on half of the cores.

The operations of a small model are short: many have too few numbers to be divided among cores, and where they are divided the cores wait for each other
after each. A thread that has half of the rows to itself waits for nobody until its gradient is whole. Measured, 2 cores of a Xeon with amx_bf16,
milliseconds of forward and backward, both ways in turn: causal language model, 4 layers of 256, 8 rows of 256 tokens 213 → 163; classifier of the same
size, 16 rows of 211 tokens 252 → 201; 8 layers of 768, 16 rows 1,595 → 1,448, 4 rows 655 → 625, in float32 1,110 → 1,079.

The loss is a sum over targets divided by those of the whole step, so that halves add up to the same loss and gradient. They are added in one order, and
a run that goes on is bitwise what it would have been.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, TrainingArguments

from ftcli.core.batches.tasks import count_targets
from ftcli.core.models import lean_layers
from ftcli.core.models.adapter_base import inner
from ftcli.core.models.dropout_proof import dropping
from ftcli.core.models.flops import multiplied
from ftcli.core.models.lean_proof import EXACT, HALF
from ftcli.core.training import huge_pages

if TYPE_CHECKING:
    from ftcli.core.training.trainer import FtcliTrainer

Tensor = torch.Tensor
Batch = Mapping[str, Any]
LossOf = Callable[[Batch, Any], Tensor]
"""The loss of some rows of a batch with so many targets."""
SWITCH = 1e-4
"""Seconds after which a thread that computes in Python lets the other one; with Python's own 5 ms a step took 188 ms in place of 163."""
LARGEST = 100_000_000
"""Weights that are trained: operations of larger models keep all cores busy, and the second half needs memory for a gradient of its own."""
LEAST = 500
"""Tokens of a batch, times the weights that each is multiplied with, for every trained weight: below, a second gradient costs more than halves save. 32 texts of 14 tokens
on 20 million weights, nearly all of them embeddings (17): 97 ms a step whole and 150 to 187 in halves; 8 layers of 768 on 4 texts of 211 tokens (760): 655 and 625."""
HEAP = 60 * 2**20
"""Bytes of an array that a second thread's heap (64 MB) keeps from step to step: larger ones are new pages each time. 4 layers of 256 with 151,936 ids, 8 rows of 256
tokens, 2 cores of an EPYC, float32: 6.3 and 5.9 s a step in halves, 6.2 and 5.8 whole, with some 65,000 page faults a step fewer."""
CHANGING = ("dynamic", "longrope")
"""Kinds of rotary positions that a forward pass changes for the next one."""


class Halves:
    """Computes two halves at a time.

    Args:
        threads: of torch's operations, in both halves together.
    """

    def __init__(self, model: torch.nn.Module, threads: int) -> None:
        self.threads = threads
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._asked: SimpleQueue[tuple[Context, Callable[[], Tensor]] | None] = SimpleQueue()
        self._found: SimpleQueue[tuple[Tensor, tuple[Tensor | None, ...]] | BaseException] = SimpleQueue()
        Thread(target=self._serve, daemon=True, name="ftcli second half").start()

    def run(self, first: Callable[[], Tensor], second: Callable[[], Tensor], waiting: AbstractContextManager[Any] | None = None) -> Tensor:
        """The sum of two losses. `first` adds its gradient to the weights' itself; that of what `second` gives is added behind it.

        Args:
            waiting: is entered when `first` has ended.

        Raises:
            BaseException: what one of them raises, when both have ended.
        """
        torch.set_num_threads(self.threads // 2)
        self._asked.put((copy_context(), second))
        try:
            loss = first()
        except BaseException:
            self._found.get()
            torch.set_num_threads(self.threads)
            raise
        with waiting or nullcontext():
            found = self._found.get()
            torch.set_num_threads(self.threads)
            if isinstance(found, BaseException):
                raise found
            other, gradients = found
            self._add(gradients)
        return loss + other

    def _add(self, gradients: Sequence[Tensor | None]) -> None:
        both = []
        for weight, gradient in zip(self._weights, gradients, strict=True):
            if weight.grad is None:
                weight.grad = gradient
            elif gradient is not None:
                both.append((weight.grad, gradient))
        if both:
            torch._foreach_add_([grad for grad, _ in both], [gradient for _, gradient in both])

    def close(self) -> None:
        self._asked.put(None)

    def _serve(self) -> None:
        torch.get_num_threads()  # else a thread's first operation would set what the other one has set last
        torch.set_num_threads(self.threads - self.threads // 2)
        huge_pages.reserve(*huge_pages.THREAD)
        torch.set_autocast_cache_enabled(False)  # it is the process's, and whichever thread ends first would clear it
        while (asked := self._asked.get()) is not None:
            context, second = asked
            try:
                self._found.put(context.run(self._gradients, second))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                self._found.put(error)
            del asked, context, second

    def _gradients(self, second: Callable[[], Tensor]) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        with torch.enable_grad():
            loss = second()
            gradients = torch.autograd.grad(loss, self._weights, allow_unused=True)
        return loss.detach(), gradients


def cut(batch: Batch, *, by_tokens: bool = False) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The rows of a batch in two parts; None: there is one row.

    Args:
        by_tokens: the parts have about as many tokens; else as many rows.
    """
    rows = len(batch["input_ids"])
    if rows < 2:
        return None
    middle = rows // 2
    mask = batch.get("attention_mask")
    if by_tokens and mask is not None and mask.ndim == 2:
        until = mask.sum(1).cumsum(0)
        middle = int((until[:-1] - until[-1] / 2).abs().argmin()) + 1

    def part(rows: slice) -> dict[str, Any]:
        return {name: value[rows] if isinstance(value, Tensor) and value.ndim else value for name, value in batch.items()}

    return part(slice(None, middle)), part(slice(middle, None))


@contextmanager
def halves(trainer: FtcliTrainer, batch: Batch, *, wanted: str, tokens: float) -> Iterator[str | None]:
    """Inside, batches are computed in halves where that gives the same; yields what was done and why, None where nobody would expect it.

    Args:
        batch: two rows, for the proof.
        wanted: "auto" or "off".
        tokens: of a batch of the run, on average.
    """
    model, arguments, threads = trainer.model, trainer.args, torch.get_num_threads()
    if wanted == "off" or arguments.device.type != "cpu":
        yield None
        return
    compiled = trainer.compiled is not None and trainer.compiled.on
    reason = "its layers are compiled" if compiled else why_not(model, arguments, threads) or too_little(model, tokens)
    if reason is not None:
        yield f"halves of a batch side by side off ({reason})"
        return
    before = sys.getswitchinterval()
    made = Halves(model, threads)
    try:
        sys.setswitchinterval(SWITCH)
        reason = differs(model, made, batch, trainer.loss_of, HALF.gradient if arguments.bf16 else EXACT.gradient)
        trainer.use_halves(made if reason is None else None)
        yield f"halves of a batch side by side {'on, proved equal on this model' if reason is None else f'off ({reason})'}"
    finally:
        trainer.use_halves(None)
        made.close()
        sys.setswitchinterval(before)


def why_not(model: PreTrainedModel, arguments: TrainingArguments, threads: int) -> str | None:
    """Why it cannot be tried. What is known to compute nothing but its own rows, and to keep nothing from one call to the next, is the lean step's layers."""
    if threads < 2:
        return "one thread computes"
    if arguments.world_size > 1:
        return "every process has its own cores"
    own = inner(model)
    layers = list(getattr(own.base_model, "layers", ()))
    if len(layers) < 2 or not all(lean_layers.is_lean(vars(layer).get("forward")) for layer in layers[:-1]):
        return "its decoder layers are customized"
    if dropping(model):
        return "dropout draws its numbers in one order"
    if arguments.neftune_noise_alpha is not None:
        return "NEFTune draws its numbers in one order"
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    if rope.get("rope_type") in CHANGING:
        return f"{rope['rope_type']} positions change with the batch"
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if sum(weight.numel() for weight in weights) > LARGEST:
        return f"it has more than {LARGEST // 10**6} million weights, whose operations keep all cores busy"
    if any(weight._post_accumulate_grad_hooks for weight in weights):
        return "its optimizer works inside the backward pass"
    return None


def too_little(model: PreTrainedModel, tokens: float) -> str | None:
    """Why it would not pay, from nothing but the model and the run's settings: a run that goes on does as before."""
    sizes = [weight.numel() for weight in model.parameters() if weight.requires_grad]
    if tokens * multiplied(model) < LEAST * sum(sizes):
        return f"a second gradient of {sum(sizes):,} weights costs more than halves of {tokens:,.0f} tokens save"
    if 4 * max(sizes, default=0) > HEAP:
        return f"a second gradient of {4 * max(sizes) / 2**20:,.0f} MB for one of its weights does not stay in memory from step to step"
    return None


def differs(model: PreTrainedModel, made: Halves, batch: Batch, loss_of: LossOf, limit: float) -> str | None:
    """How two rows in halves differ from the two together; the model's gradients are none afterwards.

    Args:
        limit: of the difference of a weight's gradients, of its norm.
    """
    parts = cut(batch)
    if parts is None:
        return "there is one row"
    items = count_targets(batch["labels"])
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    training = model.training
    try:
        model.train().zero_grad(set_to_none=True)
        loss_of(batch, items).backward()  # type: ignore[no-untyped-call]
        truth = {name: weight.grad for name, weight in named.items() if weight.grad is not None}
        model.zero_grad(set_to_none=True)

        def first() -> Tensor:
            loss = loss_of(parts[0], items)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        made.run(first, lambda: loss_of(parts[1], items))
        whole = float(torch.stack([gradient.norm() for gradient in truth.values()]).norm())
        for name, gradient in truth.items():
            found = named[name].grad
            apart = float("inf") if found is None else float((gradient - found).norm())
            if not apart <= limit * float(gradient.norm()) + EXACT.tiny * whole:
                return f"the gradient of {name} differs by {apart / max(float(gradient.norm()), 1e-30):.1g}"
    finally:
        model.zero_grad(set_to_none=True)
        model.train(training)
    return None
