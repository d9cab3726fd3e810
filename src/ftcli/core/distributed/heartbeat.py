"""Progress of a run as marks of its rank's pulse, and the end of a rank that nobody else would end."""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ftcli.core.distributed.pulse import Pulse, stack_file
from ftcli.errors import RankError

LATER_SECONDS = 10.0
"""What a rank under another launcher waits beyond the limit: so that the one that is named is the one that began it."""


class Heartbeat(TrainerCallback):  # type: ignore[misc]
    """Marks every part of the work.

    Args:
        limit: seconds without progress that are too many.
        stacks: folder for the stack.
    """

    def __init__(self, pulse: Pulse, limit: float, stacks: Path) -> None:
        self.pulse = pulse
        self.limit = limit
        self.stacks = stacks

    def on_train_begin(self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self.pulse.mark("reading its first batch")
        self.pulse.watched = True
        self.pulse.watch_itself(self.limit + LATER_SECONDS, self._end)

    def on_step_begin(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self.pulse.mark(f"in step {state.global_step + 1}")

    on_substep_end = on_step_begin

    def on_step_end(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self.pulse.mark(f"after step {state.global_step}: logging, saving or reading a batch")

    def on_prediction_step(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self.pulse.mark(f"in the evaluation after step {state.global_step}")

    def on_save(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self.pulse.mark(f"after the checkpoint of step {state.global_step}")

    def on_train_end(self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self.pulse.mark("after the last step: evaluating or saving")

    def _end(self, seconds: float) -> None:
        """The main thread hangs, so that nothing but the end of the process is left."""
        self.stacks.mkdir(parents=True, exist_ok=True)
        path = stack_file(self.stacks, self.pulse.rank)
        with path.open("w") as file:
            faulthandler.dump_traceback(file)
        print(  # noqa: T201 - the report is the main thread's, which hangs
            f"error: rank {self.pulse.rank} (pid {os.getpid()}) has made no progress for {seconds:.0f} s (launch.rank_timeout is {self.limit:g}):"
            f" it was {self.pulse.where}; its stack is in {path}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(RankError.exit_code)
