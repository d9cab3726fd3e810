"""Watching a run live: numbers that are none, and a first loss that its logits do not explain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn import functional

from ftcli.core.batches.tasks import IGNORED, any_number, measured
from ftcli.core.distributed.sharding import whole
from ftcli.errors import TrainError
from ftcli.records import Check

TOLERANCE = 0.2
"""Share by which the first loss may differ from uniform guessing before it is explained. Clean models with small heads stay under 5 %."""
SAMPLE = 256
SUSPECTS = (
    "Look for weights that are no numbers, for a root, a norm or a division at 0 in the model's own code, and with 16-bit numbers for overflow (use float32 weights, "
    "no fp16)."
)
"""What leaves a gradient or a loss without a number before any step."""


class Watch:
    """Remembers the first step whose loss or gradient norm is not finite; looking (`check`) is the only device synchronisation.

    Args:
        stop: raise at the next look; otherwise note it.
        clip: gradient norm that is clipped to; 0: none.
        scaled: losses are scaled for float16, whose gradient norms are infinite now and then and whose steps are then skipped.
        record: gets the verdict before that.
    """

    def __init__(
        self, note: Callable[[str], None], *, stop: bool, clip: float, scaled: bool, record: Callable[[Check], None] = lambda _: None
    ) -> None:
        self.note = note
        self.record = record
        self.stop = stop
        self.clip = clip
        self.scaled = scaled
        self.steps = 0
        self._first: torch.Tensor | None = None
        self._clipped: torch.Tensor | None = None
        self._said = False
        self._before = 0, 0
        self._number, self._rows = 0, cast("Sequence[int]", ())

    @property
    def clipped_share(self) -> float | None:
        """Share of the steps whose gradient was clipped. Under AdamW even 99 % is no fault."""
        steps, clipped = self.kept()
        return clipped / steps if steps and self.clip else None

    def kept(self) -> list[int]:
        """Steps so far, and how many of them were clipped, for a run that goes on from here."""
        return [self._before[0] + self.steps, self._before[1] + (0 if self._clipped is None else int(self._clipped))]

    def take(self, kept: Sequence[int] | None) -> None:
        """Go on with what `kept` gave."""
        self._before = (kept[0], kept[1]) if kept else (0, 0)

    def step(self, number: int, loss: torch.Tensor, norm: torch.Tensor, rows: Sequence[int] = ()) -> None:
        """Called before the weights change. On a CPU it looks at once.

        Args:
            rows: row numbers of the step's batch on this rank.
        """
        self._number, self._rows = number, rows
        loss, norm = loss.detach().float(), norm.detach().float().to(loss.device)
        bad = ~torch.isfinite(loss) if self.scaled else ~(torch.isfinite(loss) & torch.isfinite(norm))
        if self._first is None or self._clipped is None:
            self._first, self._clipped = torch.zeros(3, device=loss.device), torch.zeros((), device=loss.device)
        self.steps += 1
        self._clipped = self._clipped + (norm > self.clip)
        seen = torch.stack([torch.full_like(loss, number), loss, norm])
        self._first = torch.where((self._first[0] == 0) & bad, seen, self._first)
        if loss.device.type == "cpu":
            self.check()

    def check(self) -> None:
        """Look.

        Raises:
            TrainError: a step was not finite, and the run is to stop; names step, loss and gradient norm.
        """
        if self._first is None or self._said:
            return
        number, loss, norm = self._first.tolist()
        if not number:
            return
        self._said = True
        message = f"step {int(number)}: the loss is {loss:.4g} and the gradient norm {norm:.4g}"
        hint = "Lower the learning rate or warm up longer, and prefer bf16 to fp16. No checkpoint was written after it."
        if number == 1:
            hint = f"No weight has changed yet, so the learning rate is not the cause. {SUSPECTS} ftcli verify names the first of them."
        # a report holds numbers only, so that NaN stands in it as text
        evidence: dict[str, Any] = {"step": int(number), "loss": f"{loss:g}", "grad_norm": f"{norm:g}"}
        if int(number) == self._number:
            evidence["rows"] = list(self._rows)
        self.record(Check("not-finite", "steps", "fail", message, evidence, hint))
        if self.stop:
            raise TrainError(message, hint)
        self.note(f"{message}. {hint}")


@dataclass(frozen=True, slots=True)
class Start:
    """The model's logits in the first batch: their standard deviation, and the loss that they mean for labels drawn at random."""

    logit_std: float
    uniform_loss: float
    any_number: bool = False
    """A row has any number of labels. Then the labels of random rows stand for random ones: few hold, and logits that lean one way meet that."""


def look_at(logits: torch.Tensor, labels: torch.Tensor, layer: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Start:
    """`logits` [rows, labels] with `labels` [rows] or [rows, labels], or [rows, width, vocabulary] with [rows, width]; some hundred targets are
    enough.

    Args:
        layer: gives logits, where they are states for it.
    """
    if measured(labels):
        some = logits.detach().squeeze(-1).float()
        return Start(float(some.std()), strangers_square(some, labels[labels.ne(IGNORED)].float()))
    if any_number(labels):
        taught = labels.ne(IGNORED).any(1).nonzero().flatten()[:SAMPLE]
        some = logits.detach()[taught].float()
        return Start(float(some.std()), strangers_loss(some, labels[taught]), any_number=True)
    targets = labels if labels.ndim == 1 else functional.pad(labels[:, 1:], (0, 1), value=IGNORED).flatten()
    places = targets.ne(IGNORED).nonzero().flatten()[:SAMPLE]
    chosen = logits.detach().flatten(0, -2)[places]
    chosen = (chosen if layer is None else layer(chosen)).float()
    return Start(float(chosen.std()), float((chosen.logsumexp(-1) - chosen.mean(-1)).mean()))


def strangers_loss(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Loss of `logits` [rows, labels] when each row has the labels of any other: what they mean where they know nothing of the text."""
    share = labels.clamp_min(0).float().mean(0)
    return float((functional.softplus(logits).mean(0) - share * logits.mean(0)).mean())


def strangers_square(answers: torch.Tensor, numbers: torch.Tensor) -> float:
    """Mean square of `answers` [rows] less the number of any other row."""
    return float(answers.var(correction=0) + numbers.var(correction=0) + (answers.mean() - numbers.mean()).square())


def first_loss(loss: float, chance: float, start: Start, *, fresh: bool, language: bool = False) -> Check:
    """The verdict on the first loss.

    Args:
        chance: loss of uniform guessing.
        fresh: the weights are random.
        language: a language model, which once trained is at least 1 below uniform guessing on any text.
    """
    evidence = {
        "first_loss": loss,
        "expected": chance,
        "logit_std": start.logit_std,
        "loss_of_these_logits_for_random_labels": start.uniform_loss,
    }
    ratio = loss / chance

    def verdict(status: str, summary: str, fix: str = "") -> Check:
        return Check("first-loss", "steps", status, summary, evidence, fix)  # type: ignore[arg-type]

    if language and not fresh and loss > chance - 1:
        fix = (
            "The tokenizer, the weights or the configuration may belong to another model, or the model was hardly trained on such texts: "
            "run ftcli verify."
        )
        return verdict(
            "warn", f"first loss {loss:.3f} of a pretrained language model is near or above uniform guessing ({chance:.3f})", fix
        )
    if abs(ratio - 1) <= TOLERANCE:
        return verdict("pass", f"first loss {loss:.3f}, uniform guessing {chance:.3f}")
    if ratio < 1:
        if start.any_number and loss >= start.uniform_loss * (1 - TOLERANCE):
            return verdict("pass", f"first loss {loss:.3f}; the first logits favour the most frequent labels (uniform: {chance:.3f})")
        if not fresh:
            return verdict("info", f"first loss {loss:.3f} is below uniform guessing ({chance:.3f}): the model already knows something")
        fix = "Look for a constant label, or for targets leaked into the input."
        return verdict("warn", f"first loss {loss:.3f} is below uniform guessing ({chance:.3f}), which random weights cannot do", fix)
    if loss <= start.uniform_loss * (1 + TOLERANCE):
        return verdict(
            "warn" if start.uniform_loss - chance > 1 else "info",
            f"first loss {loss:.3f} instead of {chance:.3f}, because the first logits have a standard deviation of {start.logit_std:.2f}",
            "Not caused by the data: the head's initial weights are too large. Use a smaller initializer_range."
            if fresh
            else "Not caused by the data: the loaded head confidently predicts other labels. It was trained on other labels or texts.",
        )
    return verdict(
        "fail" if fresh and loss > 2 * start.uniform_loss else "warn",
        f"first loss {loss:.3f} is {ratio:.1f} times uniform guessing ({chance:.3f}), but its logits explain only {start.uniform_loss:.3f}",
        "The loss is multiplied, or the labels do not match this model's outputs (different tokenizer, label map or weights): run ftcli verify.",
    )


def warm_up(steps: int, total: int) -> Check | None:
    """A warning when the warm-up takes half of the run or more."""
    if steps < 0.5 * total:
        return None
    summary = f"the warm-up takes {steps:,} of {total:,} steps"
    summary += ": the learning rate never reaches its peak" if steps >= total else ""
    fix = "Lower --warmup-steps (a value under 1 is a share of the run: 0.03)."
    return Check("warm-up", "steps", "warn", summary, {"warmup_steps": steps, "steps": total}, fix)


def finite(model: torch.nn.Module) -> bool:
    """Whether every weight is a number."""
    return bool(torch.stack([torch.isfinite(whole(parameter)).all() for parameter in model.parameters()]).all())


def finite_states(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether everything that the optimizer keeps is a number."""
    kept = [] if optimizer is None else [value for state in optimizer.state.values() for value in state.values()]
    tensors = [value for value in kept if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return not tensors or bool(torch.stack([torch.isfinite(whole(tensor)).all().cpu() for tensor in tensors]).all())
