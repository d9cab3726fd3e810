"""What becomes of a step whose loss or gradient is no number, or whose loss jumps: the run stops, leaves the step out, or goes back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ftcli.core.training.health import SUSPECTS
from ftcli.errors import TrainError
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.training.run import Run

Policy = Literal["stop", "skip", "rollback"]
SPIKE = 10.0
"""A loss this many times the larger of what is usual and uniform guessing is no noise: a mislabelled batch costs a few times guessing at most."""
USUAL, FEWEST = 64, 8
"""Steps whose median is usual, and how many of them it takes to say so; before that their largest loss is."""
MOST_SKIPPED = 5
"""Steps in a row that are left out before the run stops: bad data come alone, weights that are broken stay so."""
MOST_ROLLBACKS = 3
SPAN = 8
"""Each time the run goes back, this many times as many steps are left out: 1, 8, 64."""
ROWS_SHOWN, CHECKS_SHOWN = 64, 20


def most_usual(chance: float, rows: int, task: Any, numbers: NDArray[Any] | None) -> float:
    """The loss of a step that guesses and meets the rarest row: with weighed classes or squares of far numbers one row may be most of it.

    Args:
        chance: loss of guessing, on average.
        rows: of a step.
        task: perhaps with weights of classes.
        numbers: that are to be predicted.
    """
    weights: NDArray[Any] | None = getattr(task, "class_weights", None)
    if weights is not None:
        return chance * max(1.0, float(weights.max()) / rows)
    if numbers is not None:
        return max(chance, float(np.square(numbers, dtype=np.float64).max(initial=0.0)) / rows)
    return chance


def rows_of_a_step(run: Run) -> int:
    """At least."""
    arguments = run.arguments
    return int((1 if run.token_batches else arguments.train_batch_size) * arguments.gradient_accumulation_steps * arguments.world_size)


def be_seen(model: torch.nn.Module) -> None:
    """Give a weight a gradient of 0: of a step that has none torch's `GradScaler` says `No inf checks were recorded`."""
    weight = next(weight for weight in model.parameters() if weight.requires_grad)
    weight.grad = torch.zeros_like(weight)


class Rollback(Exception):  # noqa: N818 - the run goes on
    """The run is to go on from a checkpoint at or before step `before`, without the batches of the steps `left_out`."""

    def __init__(self, before: int, left_out: range, message: str) -> None:
        super().__init__(message)
        self.before = before
        self.left_out = left_out
        self.message = message

    @property
    def without_checkpoint(self) -> str:
        """What to do where there is nothing to go back to."""
        if self.before < 1:
            return f"No step comes before it, so the learning rate is not the cause: if --on-nonfinite skip does not help, no step has a number. {SUSPECTS}"
        return f"Skip single steps (--on-nonfinite skip), or save before step {self.before + 1} (--save-strategy steps --save-steps {min(self.before, 100)})."


class Guard:
    """Judges every step before the weights change, alike on all ranks when it is given what all of them share.

    Args:
        policy: what becomes of a bad step.
        chance: loss of guessing, of the worst step.
        scaled: float16, whose infinite gradients are skipped anyway.
        fatal: whether "stop" raises; otherwise it only notes.
        record: gets a check for every bad step.
    """

    def __init__(
        self,
        policy: Policy,
        chance: float,
        *,
        scaled: bool,
        fatal: bool,
        record: Callable[[Check], None],
        note: Callable[[str], None],
    ) -> None:
        self.policy, self.chance, self.scaled, self.fatal = policy, chance, scaled, fatal
        self.record, self.note = record, note
        self.skipped: list[int] = []
        self.rollbacks = 0
        self._recorded = 0
        self._losses: deque[float] = deque(maxlen=USUAL)
        self._in_a_row = 0

    def kept(self) -> dict[str, Any]:
        """What a run that goes on judges its next steps by."""
        return {"losses": [*self._losses], "in_a_row": self._in_a_row, "rollbacks": self.rollbacks}

    def take(self, kept: Mapping[str, Any]) -> None:
        """Go on with what `kept` gave."""
        self._losses.extend(kept["losses"])
        self._in_a_row, self.rollbacks = kept["in_a_row"], kept["rollbacks"]

    def looks(self, device: torch.device) -> bool:
        """Whether steps are judged: looking waits for a device other than the CPU, so that there it needs a policy."""
        return self.policy != "stop" or device.type == "cpu"

    def judge(self, step: int, loss: float, norm: float, rows: Callable[[], Sequence[int]]) -> bool:
        """Whether the step is to be left out.

        Args:
            loss: mean over all ranks.
            rows: row numbers of the step's batch on all ranks; asked for when the step is bad.

        Raises:
            TrainError: the run is to stop.
            Rollback: it is to go back.
        """
        reason = self._reason(loss, norm)
        if not reason:
            self._losses.append(loss)
            self._in_a_row = 0
            return False
        message = f"step {step}: {reason}"
        if self.policy == "stop":
            if not math.isfinite(loss) or not math.isfinite(norm):
                return False  # `Watch` says so, on every device
            self._record(step, loss, norm, rows(), message, "fail", "Lower the learning rate or warm up longer, and look at the rows.")
            if self.fatal:
                raise TrainError(message, "Lower --learning-rate, or skip such steps: --on-nonfinite skip (or rollback).")
            self.note(message)
            return False
        if self.policy == "skip":
            return self._skip(step, loss, norm, rows(), message)
        raise self._rollback(step, loss, norm, rows(), message)

    def _reason(self, loss: float, norm: float) -> str:
        if not math.isfinite(loss) or not (math.isfinite(norm) or self.scaled):
            return f"the loss is {loss:.4g} and the gradient norm {norm:.4g}"
        if not self._losses:
            return ""
        usual = max(median(self._losses) if len(self._losses) >= FEWEST else max(self._losses), self.chance)
        return f"the loss is {loss:.4g}, {loss / usual:.0f} times its usual value" if loss > SPIKE * usual else ""

    def _skip(self, step: int, loss: float, norm: float, rows: Sequence[int], message: str) -> bool:
        self._in_a_row += 1
        self.skipped.append(step)
        self._record(step, loss, norm, rows, f"{message}; the step was skipped", "warn", "Look at the rows of this step.")
        if self._in_a_row > MOST_SKIPPED:
            raise TrainError(
                f"{message}, as in the {MOST_SKIPPED} steps before",
                "Skipping steps does not help: lower --learning-rate, or use --on-nonfinite rollback."
                if self._losses
                else f"No step had a number, so the learning rate is not the cause. {SUSPECTS}",
            )
        self.note(f"{message}; the step was skipped: rows {_shown(rows)}")
        return True

    def _rollback(self, step: int, loss: float, norm: float, rows: Sequence[int], message: str) -> Exception:
        self._record(step, loss, norm, rows, message, "warn", "Look at the rows of this step.")
        if self.rollbacks == MOST_ROLLBACKS:
            return TrainError(f"{message}, after {MOST_ROLLBACKS} rollbacks", "Lower --learning-rate or warm up longer.")
        span = SPAN**self.rollbacks
        self.rollbacks += 1
        self._losses.clear()
        left_out = range(max(1, step - span + 1), step + 1)
        return Rollback(left_out.start - 1, left_out, f"{message}: rows {_shown(rows)}")

    def _record(
        self, step: int, loss: float, norm: float, rows: Sequence[int], message: str, status: Literal["warn", "fail"], fix: str
    ) -> None:
        self._recorded += 1
        if self._recorded > CHECKS_SHOWN and status == "warn":
            return  # the notes go on
        evidence = {"step": step, "loss": f"{loss:g}", "grad_norm": f"{norm:g}", "rows": list(rows)[:ROWS_SHOWN], "row_count": len(rows)}
        self.record(Check("bad-step", "steps", status, message, evidence, fix))


def _shown(rows: Sequence[int]) -> str:
    words = ", ".join(str(row) for row in rows[:10])
    return f"{words} … ({len(rows)} in all)" if len(rows) > 10 else words
