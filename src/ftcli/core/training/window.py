"""The steps that no line of the log has told yet: a checkpoint keeps them, so that the next line of a resumed run is the mean over all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import Trainer

NAME = "unlogged"


@dataclass(frozen=True, slots=True)
class Window:
    """Of the steps since the last line of the log.

    Args:
        loss: sum of their losses, the mean over all ranks.
        steps: how many they are.
        dropped: how many of them were not trained on.
    """

    loss: float
    steps: int
    dropped: int

    @classmethod
    def of(cls, trainer: Trainer, dropped: int) -> Window:
        """The trainer's own. Every rank must call it."""
        told = getattr(trainer, "_tr_loss", None)
        if told is None:
            return cls(0.0, 0, 0)
        loss = float(trainer.accelerator.reduce(told, reduction="mean"))
        return cls(loss, trainer.state.global_step - trainer._globalstep_last_logged, dropped)

    @classmethod
    def kept(cls, kept: Mapping[str, Any]) -> Window | None:
        """Of a checkpoint; None: every step was told, or their sum was no number."""
        found = cls(*kept.get(NAME, (0.0, 0, 0)))
        return found if found.steps else None

    def to_json(self) -> list[float]:
        """As a checkpoint keeps it: loss, steps, dropped. JSON has no NaN: steps whose sum is no number are not kept."""
        return [self.loss, self.steps, self.dropped] if math.isfinite(self.loss) else [0.0, 0, self.dropped]

    def give_back(self, trainer: Trainer) -> None:
        """Count them in the trainer's next line, and not in its mean over the steps that it made itself."""
        trainer._tr_loss += self.loss
        trainer._total_loss_scalar -= self.loss
        trainer._globalstep_last_logged -= self.steps
