"""Watching a run's logged figures: gradient norm, learning rate, clipping, a loss that does not move or runs away, held-out rows.

Logged figures are means over all ranks, so that every rank comes to the same verdict at the same step.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ftcli.core.training.schedule import Schedule
from ftcli.records import Check

SPIKE = 100
"""Times the larger of the first norm and the median. A judgement: far above what noise does, not measured on many runs."""
LEAST_END = 50
"""Steps of a run that has to show something at its end: shorter ones are trials."""
LEAST_STEPS = 200
"""Full-rate steps before a loss is said to stand still; also a quarter of the run's."""
STILL = 0.98
"""Share of what knows nothing of the texts (prior entropy, uniform guessing) that a loss must come under."""
AWAY = 2.0
"""Times the larger of the first loss and chance: a loss that stays above it is worse than knowing nothing."""
TAUGHT = 0.9
"""Share of what knows nothing of the texts that a training loss is under where the rows have taught something. A judgement."""
RISE, LEAST_RISE, RISE_AT_ONCE = 0.05, 0.02, 0.2
"""Share and size by which the held-out losses of a run's last quarter may all be above its best before it is overfitting, and share where the best is the
last but one. Simulated, 3 to 40 evaluations: of plateaus whose evaluations vary by 2 % at most 1.3 % are called overfitting, by 4 % at most 10 % (with the
last evaluation alone 27 and 59 %); of losses that rise by a third, more than 97 % where there are 5 evaluations and more, 73 % of 3."""
FALL = 0.1
"""Share by which the training loss falls meanwhile, beyond its noise."""
RIGHT = ("eval_accuracy", "eval_micro_f1", "eval_pearson")
"""Figures that may grow on while the loss rises, because wrong answers are given with more certainty: no overfitting that counts."""
PLAIN = ("sgd",)
"""Optimizers whose step is as long as the gradient: clipping shortens it. Adam and its kin divide by the gradient's size."""


@dataclass
class Course:
    """What a run's log says so far. Every rule speaks once.

    Args:
        chance: loss of uniform guessing.
        unlearned: loss of knowing the labels' shares only, or of uniform guessing; None: any progress is small (a trained language model).
        schedule: the planned learning rate; None: it is not compared.
        held_out_majority: accuracy of always saying the commonest label, with the number of held-out rows; None: no classes.
        held_out_unlearned: `unlearned` of the held-out rows, where that is another (numbers); None: it is the same.
        held_out_labels: how many labels the held-out rows have; 0: no classes.
        weighed: classes count by weight, so that a model which learns them may be right less often than one that says the commonest label.
        few: the held-out rows are so few that their figures say nothing at the end; FT214 has said so.
    """

    chance: float
    unlearned: float | None
    peak: float
    optimizer: str
    schedule: Schedule | None
    held_out_majority: tuple[float, int] | None = None
    held_out_unlearned: float | None = None
    held_out_labels: int = 0
    weighed: bool = False
    few: bool = False
    _losses: list[tuple[int, float]] = field(default_factory=list)
    _norms: list[float] = field(default_factory=list)
    """Ascending: a line is compared with their median."""
    _first_norm: float | None = None
    _rates: list[float] = field(default_factory=list)
    _said: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)
    """What a warning said before may still become certain."""

    @property
    def unlearned_elsewhere(self) -> float:
        """`unlearned`, of the held-out rows."""
        return (self.unlearned or 0.0) if self.held_out_unlearned is None else self.held_out_unlearned

    def log(self, entry: Mapping[str, Any], clipped_share: float | None) -> list[Check]:
        """Verdicts that a line of the log brings, worse than "info" all of them."""
        found: list[Check | None]
        if "eval_loss" in entry and not math.isfinite(entry["eval_loss"]):
            found = [_no_numbers(entry)]
        elif "eval_accuracy" in entry:
            found = [self._memorised(entry)]
        elif "loss" in entry:
            self._losses.append((entry["step"], entry["loss"]))
            found = [self._gradient(entry), self._rate(entry), self._away(), self._still(), self._clipping(entry, clipped_share)]
            norm = entry.get("grad_norm") or 0.0
            self._first_norm = norm if self._first_norm is None else self._first_norm
            if math.isfinite(norm):
                insort(self._norms, norm)
        else:
            return []
        new = [check for check in found if check is not None and check.id not in (self._failed if check.status == "fail" else self._said)]
        self._said |= {check.id for check in new}
        self._failed |= {check.id for check in new if check.status == "fail"}
        return new

    def _gradient(self, entry: Mapping[str, Any]) -> Check | None:
        norm, loss, step = entry.get("grad_norm"), entry["loss"], entry["step"]
        if norm is None or not math.isfinite(norm):
            return None
        evidence = {"step": step, "grad_norm": norm, "loss": loss}
        if norm == 0 and loss > 0.01:
            return _check(
                "gradient-norm",
                "fail",
                f"step {step}: the gradient is zero and the loss {loss:.3f}: nothing is learned",
                "The loss is detached from the weights: run ftcli verify (FT405).",
                evidence,
            )
        usual = max(self._first_norm or 0.0, self._norms[len(self._norms) // 2]) if len(self._norms) >= 5 else math.inf
        if norm > SPIKE * usual:
            return _check(
                "gradient-norm",
                "warn",
                f"step {step}: the gradient norm is {norm:.3g}, {norm / usual:.0f} times its usual value",
                "Lower the learning rate or warm up longer; look at the rows of this step.",
                {**evidence, "usual": usual},
            )
        return None

    def _rate(self, entry: Mapping[str, Any]) -> Check | None:
        rate, step = entry.get("learning_rate"), entry["step"]
        if rate is None or self.schedule is None:
            return None
        self._rates.append(rate)
        steps, known = self.schedule.steps, self.schedule.known
        planned = self.schedule.share(step) * self.peak
        evidence = {"step": step, "learning_rate": rate, "planned": planned if known else None}
        if known and planned > 0.01 * self.peak and self._rates[-2:] == [0.0, 0.0] and step < 0.98 * steps:
            return _check(
                "learning-rate",
                "fail",
                f"step {step}: the learning rate has been 0 since the previous log line, the schedule says {planned:.3g}: nothing is learned from here on",
                "The schedule ends too early: check --max-steps, the scheduler and the checkpoint.",
                evidence,
            )
        if known and abs(rate - planned) > max(0.05 * planned, 0.01 * self.peak):
            return _check(
                "learning-rate",
                "warn",
                f"step {step}: the learning rate is {rate:.3g}, the schedule says {planned:.3g}",
                "A checkpoint's optimizer keeps its old rate, and a missing scheduler restarts: check what was resumed.",
                evidence,
            )
        return None

    def _away(self) -> Check | None:
        recent = [loss for _, loss in self._losses[-3:]]
        high = max(self._losses[0][1], self.chance)
        if len(self._losses) < 4 or min(recent) < AWAY * high:
            return None
        step, loss = self._losses[-1]
        certain = len(self._losses) >= 6 and min(loss for _, loss in self._losses[-5:]) > 2 * AWAY * high
        return _check(
            "diverged" if certain else "rising-loss",
            "fail" if certain else "warn",
            f"step {step}: the loss is {loss:.3f}, it began with {self._losses[0][1]:.3f}, and uniform guessing is {self.chance:.3f}",
            "Lower the learning rate or warm up longer.",
            {"step": step, "loss": loss, "first": self._losses[0][1], "chance": self.chance},
        )

    def _still(self) -> Check | None:
        if self.unlearned is None or self.schedule is None or len(self._losses) < 8:
            return None
        if len(self._losses) % (1 << max(0, len(self._losses).bit_length() - 7)):  # at each of 40,000 lines it took 5 ms
            return None
        step = self._losses[-1][0]
        done = self.schedule.full_rate_steps(step)
        if done < max(LEAST_STEPS, 0.25 * self.schedule.total):
            return None
        lines = max(2, len(self._losses) // 4)
        before, recent = (median(loss for _, loss in part) for part in (self._losses[-2 * lines : -lines], self._losses[-lines:]))
        if not math.isfinite(recent) or recent < STILL * max(self.unlearned, before):  # still falling from a head that began too large
            return None
        if {"rising-loss", "diverged"} & self._said or recent > AWAY * max(self._losses[0][1], self.chance):
            return None
        return _check(
            "stalled-loss",
            "warn",
            f"step {step}: after {done:,.0f} steps at the full rate the loss is {recent:.3f}; ignoring the texts gives {self.unlearned:.3f}",
            "If it does not improve, raise the learning rate, or check whether the labels belong to the texts (ftcli verify --learnability-steps 200).",
            {"step": step, "full_rate_steps": done, "loss": recent, "unlearned": self.unlearned},
        )

    def _clipping(self, entry: Mapping[str, Any], share: float | None) -> Check | None:
        if share is None or share < 0.99 or entry["step"] < 100 or not self.optimizer.startswith(PLAIN):
            return None
        return _check(
            "clip-share",
            "warn",
            f"step {entry['step']}: {share:.1%} of the steps were clipped, so that {self.optimizer} moves by max_grad_norm × learning rate whatever the gradient",
            "Raise --max-grad-norm, or use AdamW, which does not depend on the gradient's size.",
            {"step": entry["step"], "clipped_share": share},
        )

    def _memorised(self, entry: Mapping[str, Any]) -> Check | None:
        if self.held_out_majority is None or self.unlearned is None or self.weighed or not self._losses:
            return None
        majority, _ = self.held_out_majority
        accuracy, loss = entry["eval_accuracy"], self._losses[-1][1]
        if loss > 0.5 * self.unlearned or self._above_majority(accuracy) or entry["eval_loss"] < self.unlearned:
            return None
        return _check(
            "held-out",
            "warn",
            f"step {entry['step']}: the training loss is {loss:.3f}, but on held-out rows only {accuracy:.1%} are right, no more than by always predicting the "
            f"most frequent label ({majority:.1%}): the rows are memorized",
            "Look for shuffled or wrong labels; if they are right, use more data, fewer epochs or a lower learning rate.",
            {"step": entry["step"], "loss": loss, "eval_accuracy": accuracy, "majority_accuracy": majority},
        )

    def _above_majority(self, accuracy: float) -> bool:
        """Whether held-out rows are right more often than the commonest label is, beyond the noise of so many rows."""
        assert self.held_out_majority is not None
        majority, rows = self.held_out_majority
        return accuracy > majority + 2 * math.sqrt(max(majority * (1 - majority), 1e-9) / max(1, rows))

    def _above_guessing(self, macro: float) -> bool:
        """Whether macro F1 is above what knowing nothing of the texts gives, beyond the noise of so many rows.

        Labels that are said by the shares q and occur by p have an F1 of 2pq / (p + q), whose mean over the labels is largest at q = p: 1 / labels, with a
        variance of 1 / (labels × rows).
        """
        assert self.held_out_majority is not None
        return macro > 1 / self.held_out_labels + 2 / math.sqrt(self.held_out_labels * max(1, self.held_out_majority[1]))

    def end(self, history: Sequence[Mapping[str, Any]], steps: int, *, best: bool) -> Check | None:
        """The verdict on a whole run: whether what was learned holds on other rows, and still did at the end. Unless a line of the log said so.

        Args:
            history: the log, whose last evaluation is of the model that the run ends with.
            best: that is the best model, and not the last step's.
        """
        evaluations = [entry for entry in history if "eval_loss" in entry]
        known = [entry for entry in evaluations if math.isfinite(entry["eval_loss"])]
        if (
            not known
            or known[-1] is not evaluations[-1]
            or steps < LEAST_END
            or self.few
            or self._said & {"stalled-loss", "held-out", "diverged", "rising-loss"}
        ):
            return None
        entry, lines = known[-1], [(one["step"], one["loss"]) for one in history if "loss" in one]
        if not best and (check := self._outgrown(known, lines, steps)):
            return check
        if self.unlearned is None or entry["eval_loss"] < STILL * self.unlearned_elsewhere:
            return None
        accuracy, macro, right = entry.get("eval_accuracy"), entry.get("eval_macro_f1"), ""
        if self.weighed:
            if self.held_out_majority is None or not self.held_out_labels or accuracy is None or macro is None:
                return None
            if self._above_majority(accuracy) or self._above_guessing(macro):
                return None
            right = f", and macro F1 is {macro:.2%}, where guessing gives {1 / self.held_out_labels:.2%}"
        elif self.held_out_majority is not None and accuracy is not None:
            if self._above_majority(accuracy):
                return None
            right = f", and {accuracy:.1%} are right ({self.held_out_majority[0]:.1%} by always predicting the most frequent label)"
        trained = _recent(lines, entry["step"])
        evidence = {
            "steps": steps,
            "eval_loss": entry["eval_loss"],
            "unlearned": self.unlearned_elsewhere,
            "eval_accuracy": accuracy,
            **({"eval_macro_f1": macro} if self.weighed else {}),
            "loss": trained,
        }
        said = f"the held-out loss is {entry['eval_loss']:.3f}, where ignoring the texts gives {self.unlearned_elsewhere:.3f}{right}"
        if trained is not None and trained < TAUGHT * self.unlearned:
            return _check(
                "overfitting",
                "warn",
                f"after {steps:,} steps the training loss is {trained:.3f}, but {said}: the model does not generalize beyond the training rows",
                "Use more data, fewer epochs or a lower learning rate; if no step was better, check whether the labels belong to the texts: "
                "ftcli verify --learnability-steps 200.",
                evidence,
            )
        return _check(
            "nothing-learned",
            "warn",
            f"after {steps:,} steps {said}",
            "Train longer or at a higher learning rate; if it does not improve, check whether the labels belong to the texts: ftcli verify --learnability-steps 200.",
            evidence,
        )

    def _outgrown(self, evaluations: Sequence[Mapping[str, Any]], lines: Sequence[tuple[int, float]], steps: int) -> Check | None:
        """Overfitting: the held-out loss had learned something and rose again, while the training loss fell on."""
        last, least = evaluations[-1], min(evaluations, key=lambda entry: entry["eval_loss"])
        lately = evaluations[-max(2, len(evaluations) // 4 + 1) :]
        share = RISE
        if lately[-2:-1] == [least]:
            lately, share = lately[-1:], RISE_AT_ONCE
        rise = min(entry["eval_loss"] for entry in lately) - least["eval_loss"]
        if rise <= max(LEAST_RISE, share * least["eval_loss"]) or any(last.get(name, 0.0) > least.get(name, 0.0) for name in RIGHT):
            return None
        if self.unlearned is not None and not self.weighed and least["eval_loss"] >= STILL * self.unlearned_elsewhere:
            return None
        before, after = _recent(lines, least["step"]), _recent(lines, steps)
        if before is None or after is None or after >= (1 - FALL) * before:
            return None
        return _check(
            "overfitting",
            "warn",
            f"the held-out loss was best at step {least['step']:,} ({least['eval_loss']:.3f}) and is {last['eval_loss']:.3f} after "
            f"{steps:,}, while the training loss fell from {before:.3f} to {after:.3f}: the run overfits",
            "Keep the best model (--load-best-model-at-end) or stop in time (--patience 2, fewer epochs); more data or a lower learning rate delay that step.",
            {
                "best_step": least["step"],
                "best_eval_loss": least["eval_loss"],
                "steps": steps,
                "eval_loss": last["eval_loss"],
                "loss": after,
            },
        )


def _no_numbers(entry: Mapping[str, Any]) -> Check:
    loss, step = entry["eval_loss"], entry["step"]
    said = f"step {step}: the held-out loss is {loss} although the weights are finite"
    fix = "Lower the learning rate and resume from a checkpoint before that step; with 16-bit weights, try float32."
    return _check("held-out-nan", "fail", said, fix, {"step": step, "eval_loss": str(loss)})


def _recent(lines: Sequence[tuple[int, float]], step: int) -> float | None:
    """The training loss around a step: the median of an eighth of the lines up to it."""
    until = [loss for at, loss in lines if at <= step]
    return median(until[-max(1, len(until) // 8) :]) if until else None


def clipping(share: float | None, optimizer: str) -> Check | None:
    """At the end: how many steps were clipped, where that is most of them."""
    if share is None or share < 0.9 or optimizer.startswith(PLAIN):
        return None
    return _check(
        "clip-share",
        "info",
        f"{share:.1%} of the steps were clipped, which does not affect {optimizer}: it divides by the gradient's size",
        "",
        {},
    )


def _check(name: str, status: str, summary: str, fix: str, evidence: dict[str, Any]) -> Check:
    return Check(name, "steps", status, summary, evidence, fix)  # type: ignore[arg-type]
