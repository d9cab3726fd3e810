"""Too little memory for a batch: how it shows, what would fit, and a step in smaller pieces that is the same training."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import TrainingArguments

from ftcli.core.batches.slots import TokenBatches
from ftcli.core.models.refusals import ran_out
from ftcli.errors import TrainError
from ftcli.records import Check


def advice(
    arguments: TrainingArguments,
    error: BaseException,
    shape: tuple[int, int] | None,
    *,
    evaluating: bool,
    batches: TokenBatches | None = None,
) -> TrainError:
    """What did not fit, in rows and tokens, and the options that train the same in less memory."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    size = "" if shape is None else f" ({shape[0]:,} × {shape[1]:,} = {shape[0] * shape[1]:,} slots)"
    if evaluating:
        batch = arguments.per_device_eval_batch_size
        return TrainError(
            f"an evaluation batch of {batch} rows does not fit into the device's memory: {reason}",
            f"--per-device-eval-batch-size {max(1, batch // 2)} gives the same results.",
        )
    batch, accumulation = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    held = f"{batch} rows" if batches is None else f"at most {batches.budget:,} tokens"
    message = f"a batch of {held}{size} does not fit into the device's memory: {reason}"
    several = shape is None or shape[0] > 1
    if batches is not None and several and (budget := max(int(batches.widths.max()), batches.budget // 2)) < batches.budget:
        return TrainError(
            message,
            f"--max-tokens-per-batch {budget} --gradient-accumulation-steps {-(-accumulation * batches.budget // budget)} trains on about as many "
            "tokens per step, and --auto-batch on exactly the same rows; --activation-checkpointing saves more memory.",
        )
    smaller = 0 if batches is not None else next((half for half in range(batch // 2, 0, -1) if batch % half == 0), 0)
    if not smaller:
        return TrainError(
            message, "The batch is already one row: save memory with --activation-checkpointing, --bf16 or a smaller --max-length."
        )
    return TrainError(
        message,
        f"--per-device-train-batch-size {smaller} --gradient-accumulation-steps {accumulation * batch // smaller} is equivalent, "
        "and --auto-batch finds such values automatically; --activation-checkpointing saves more memory.",
    )


class Pieces:
    """A micro-batch in pieces of at most `most` rows, which halve whenever memory runs out; then the whole step begins anew.

    Args:
        by_slots: batches have a budget of slots, and so have the pieces: `most` counts those.

    The loss is a sum over targets divided by those of the whole step, so that pieces add up to the same loss and gradient.
    """

    def __init__(self, note: Callable[[str], None], *, by_slots: bool = False) -> None:
        self.most: int | None = None
        """Rows (or slots) that fit; None until memory ran out."""
        self.by_slots = by_slots
        self._note = note
        self._done: list[dict[str, Any]] = []
        self._random: list[torch.Tensor] = []

    def begin(self) -> None:
        """An optimizer step begins."""
        self._done = []
        self._random = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]

    def run(
        self, compute: Callable[[dict[str, Any]], torch.Tensor], clear: Callable[[], None], batch: dict[str, Any], step: int
    ) -> torch.Tensor:
        """The batch's loss, its gradient added to that of the step's batches before.

        Args:
            compute: forward and backward of a piece.
            clear: forgets the gradient of the step.

        Raises:
            Exception: what `compute` raises; too little memory only when one row is too much.
        """
        pending = [batch]
        while True:
            try:
                for each in pending:
                    losses = [compute(piece) for piece in self._of(each)]
            except Exception as error:
                if not ran_out(error) or not self._halve(batch, step):
                    raise
            else:
                self._done.append(batch)
                return losses[0] if len(losses) == 1 else torch.stack(losses).sum()
            gc.collect()  # out of the handler, so that what the failed attempt holds can go
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
                torch.cuda.set_rng_state_all(self._random[1:])
            torch.set_rng_state(self._random[0])
            clear()
            pending = [*self._done, batch]

    def check(self, arguments: TrainingArguments) -> Check:
        """What was done, for the report."""
        assert self.most is not None
        if self.by_slots:
            summary = f"memory ran out: batches were split to at most {self.most:,} tokens; the batch of a step stayed the same"
            fix = "To avoid the failed attempt, start with a smaller --max-tokens-per-batch and more --gradient-accumulation-steps."
            return Check("auto-batch", "steps", "info", summary, {"tokens_at_a_time": self.most}, fix)
        batch, accumulation = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
        summary = f"memory ran out: batches of {batch} rows were computed {self.most} at a time; the batch of a step stayed {batch * accumulation}"
        fix = "To avoid the failed attempt, set --per-device-train-batch-size and --gradient-accumulation-steps accordingly."
        evidence = {"rows_at_a_time": self.most, "per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        return Check("auto-batch", "steps", "info", summary, evidence, fix)

    def _of(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        count, rows = len(batch["input_ids"]), self._rows(batch)
        if count <= rows:
            yield batch
            return
        for start in range(0, count, rows):
            part = slice(start, start + rows)
            yield {name: value[part] if isinstance(value, torch.Tensor) and value.ndim else value for name, value in batch.items()}

    def _rows(self, batch: dict[str, Any]) -> int:
        """Rows of the batch that are computed at a time."""
        count, width = batch["input_ids"].shape
        return count if self.most is None else max(1, self.most // width) if self.by_slots else self.most

    def _halve(self, batch: dict[str, Any], step: int) -> bool:
        """Take half as many rows from here on; False when one row is already too much."""
        count, width = batch["input_ids"].shape
        now = min(count, self._rows(batch))
        if now == 1:
            return False
        self.most = now // 2 * (width if self.by_slots else 1)
        rows = now // 2
        what = f"{self.most:,} tokens" if self.by_slots else f"{rows} row{'s' * (rows > 1)}"
        self._note(
            f"step {step}: memory does not hold {now} rows × {width:,} tokens; from here on a batch is computed {what} at a time, "
            "which is equivalent"
        )
        return True
