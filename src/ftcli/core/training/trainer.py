"""`transformers.Trainer` with the task's own loss, our order of rows, exact evaluation and a look at every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainingArguments
from transformers.integrations.neftune import deactivate_neftune
from transformers.trainer_callback import PrinterCallback

from ftcli.contracts import Collator, Task
from ftcli.core.batches.batch import StoreDataset
from ftcli.core.batches.slots import TokenBatches
from ftcli.core.batches.tasks import IGNORED
from ftcli.core.distributed.agree import anyone, first_decides, gathered, stopped
from ftcli.core.distributed.sharding import full
from ftcli.core.distributed.signals import Signals
from ftcli.core.models import adapter
from ftcli.core.models.compiled import Compiled
from ftcli.core.models.confusion import FlagSummary, Summary
from ftcli.core.models.held_out import HeldOut
from ftcli.core.models.lean_head import LeanHead
from ftcli.core.models.refusals import of_the_model
from ftcli.core.models.side_by_side import Texts, told
from ftcli.core.training import best, checkpoints, hub_upload, saving
from ftcli.core.training.arguments import changed
from ftcli.core.training.evaluating import Evaluating, StoppedEvaluation
from ftcli.core.training.guarding import Guard, be_seen
from ftcli.core.training.halves import Halves, cut
from ftcli.core.training.health import Start, Watch, finite, finite_states, look_at
from ftcli.core.training.memory import Pieces
from ftcli.core.training.meter import TEXTS, Counted, Meter
from ftcli.core.training.optimizer import follow
from ftcli.core.training.run_lock import Claim
from ftcli.core.training.window import NAME, Window
from ftcli.errors import TrainError

WITHOUT_BEST = "Without --load-best-model-at-end the run ends with its last weights."


class FtcliTrainer(Evaluating):
    """One run.

    The loss is the sum over targets divided by the targets of the whole optimizer step on all ranks, so that it and its gradient do not
    depend on how a global batch is split. transformers does that for a `compute_loss_func`; without one it multiplies the loss of most
    classification models by accumulation steps and processes (huggingface/transformers#47688).

    Args:
        order: "random", "grouped" (by length) or "sequential".
        collator: padded batches for training and evaluation.
        identity: what a run must have in common with this one to go on from its checkpoints.
        guard: judges steps before the weights change; None: nothing but `watch` does.
        token_batches: the batches of an epoch, where a budget of tokens decides how many rows they have; None: `args` and `order` do.
        pieces: how batches are cut when memory runs out; None: that ends the run.
    """

    def __init__(
        self,
        *,
        args: TrainingArguments,
        task: Task,
        order: str,
        collator: Collator,
        meter: Meter,
        watch: Watch,
        signals: Signals,
        train_dataset: StoreDataset,
        identity: Mapping[str, Any] | None = None,
        guard: Guard | None = None,
        pieces: Pieces | None = None,
        token_batches: TokenBatches | None = None,
        claim: Claim | None = None,
        **rest: Any,
    ) -> None:
        self.task = task
        self.order = order
        self.collator = collator
        self.meter = meter
        self.watch = watch
        self.signals = signals
        self.identity = identity or {}
        self.guard = guard
        self.pieces = pieces
        self.token_batches = token_batches
        self.claim = claim
        self.left_out: set[int] = set()
        """Steps whose batches are not trained on, since the run went back from there."""
        self.shape: tuple[int, int] | None = None
        """Rows and width of the batch that was trained on last."""
        self.evaluating = self._best_again = self._beside = False
        self._rows: list[int] = []
        self._logged: torch.Tensor | None = None
        self._dropped, self._window = 0, 0
        self._untrained: set[int] = set()  # steps of this attempt that were left out
        self.unlogged: Window | None = None
        """Of the checkpoint that the run goes on from, until its first step."""
        self.start: Start | None = None
        self.first: tuple[float, float] | None = None
        """Loss and gradient norm of step 1."""
        self.head: LeanHead | None = None
        self._halves: Halves | None = None
        self.compiled: Compiled | None = None
        self._step_loss: torch.Tensor | None = None
        self._held_out = HeldOut(task)
        self.confusion: Summary | FlagSummary | None = None
        """Of the last evaluation."""
        super().__init__(args=args, data_collator=Counted(collator), train_dataset=train_dataset, compute_loss_func=self._loss, **rest)
        self.model_accepts_loss_kwargs = False  # nothing but `_loss` is to see num_items_in_batch
        self.remove_callback(PrinterCallback)  # stdout belongs to the report

    # -- steps ---------------------------------------------------------------------------------------------------------

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._rows = [row for batch in batches for row in self.meter.count(batch)]
        return batches, items

    def _loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None) -> torch.Tensor:
        logits = outputs["logits"]
        if self.start is None and bool(labels.ne(IGNORED).any()):
            self.start = look_at(logits, labels, None if self.head is None else self.head.logits)
        return self._summed(logits, labels, num_items_in_batch)

    def _summed(self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
        if self.head is not None:
            return self.head.loss(logits, labels, items)
        loss: torch.Tensor = getattr(self.task, "training_loss", self.task.loss)(logits, labels, items)
        return loss

    def loss_of(self, rows: Mapping[str, Any], items: Any) -> torch.Tensor:
        """Of some rows of a batch with so many targets; by no clock and looked at by nobody, so that a thread of its own may ask for it."""
        with self.compute_loss_context_manager():
            given = self.model(**{name: value for name, value in rows.items() if name != "labels"})
            return self._summed(given["logits"], rows["labels"], items)

    def use_head(self, head: LeanHead | None) -> None:
        """Compute the loss by `head`, which makes the model give states for logits; None: from the logits."""
        if head is not None:
            head.armed = True
        self.head = head

    def use_texts(self, texts: Texts | None) -> None:
        """The model computes these side by side, and is told where they are; None: it does not."""
        self._beside, self.meter.unpadded = texts is not None, texts is not None and texts.unpad

    def use_halves(self, halves: Halves | None) -> None:
        """Compute batches in two halves; None: as a whole."""
        self._halves = halves

    def _compute(self, model: Any, inputs: dict[str, Any], items: Any) -> torch.Tensor:
        """Forward and backward of some rows."""
        compute: Callable[..., torch.Tensor] = super().training_step
        parts = None if self._halves is None else cut(inputs, by_tokens=self.meter.unpadded)
        if self._halves is None or parts is None:
            return compute(model, inputs, items)
        first, second = parts
        waiting = self.meter.timing("backward")
        return self._halves.run(lambda: compute(model, first, items), lambda: self.loss_of(second, items), waiting)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        number = self.state.global_step + 1
        texts = inputs.pop(TEXTS, None)
        if self.unlogged is not None:
            self.unlogged.give_back(self)
            self._dropped, self.unlogged = self.unlogged.dropped, None
        if self._step_loss is None:
            self._logged = self._tr_loss.clone()
            if self.pieces is not None:
                self.pieces.begin()
        loss: torch.Tensor
        self.shape = inputs["input_ids"].shape[0], inputs["input_ids"].shape[-1]
        if number in self.left_out:
            loss = torch.zeros((), device=self.args.device)
            if self.accelerator.scaler is not None:
                be_seen(self.model)  # until `_leave_out`
        elif self.pieces is None:
            known = texts if self._beside and self._halves is None else None
            with told(known, inputs), of_the_model(self.model, f"compute step {number}"):
                loss = self._compute(model, inputs, num_items_in_batch)
        else:
            loss = self.pieces.run(lambda piece: self._compute(model, piece, num_items_in_batch), model.zero_grad, inputs, number)
        self._step_loss = loss if self._step_loss is None else self._step_loss + loss
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        with self.meter.timing("optimizer"):
            norm = full(super()._get_grad_norm(model, grad_norm=grad_norm))
            loss, self._step_loss = self._step_loss, None
            assert loss is not None
            number = self.state.global_step + 1
            if number in self.left_out or self._is_bad(number, loss, norm):
                self._leave_out()
                return norm
            self.watch.step(number, loss, torch.as_tensor(norm), self._rows)
        if number == 1:
            self.first = float(self.accelerator.reduce(loss, reduction="mean")), float(norm)
        return norm

    def _is_bad(self, number: int, loss: torch.Tensor, norm: Any) -> bool:
        """The guard's verdict, on figures that all ranks share."""
        if self.guard is None or not self.guard.looks(self.args.device):
            return False
        shared = float(self.accelerator.reduce(loss, reduction="mean"))
        return self.guard.judge(number, shared, float(norm), lambda: [row for rows in gathered(self._rows) for row in rows])

    def _leave_out(self) -> None:
        """Forget the step's gradient: an optimizer passes over parameters without one, with all that it keeps of them."""
        self.model.zero_grad(set_to_none=True)
        assert self._logged is not None
        self._tr_loss.copy_(self._logged)
        self._dropped += 1
        self._untrained.add(self.state.global_step + 1)

    def log(self, logs: dict[str, float], *rest: Any, **named: Any) -> None:
        if "loss" in logs and self.state.global_step in self._untrained:
            logs.pop("grad_norm", None)  # of a step that was left out, beside the loss of those before it
        if "train_loss" in logs and self._untrained:
            steps = self.state.global_step - self._initial_global_step
            if trained := steps - len(self._untrained):
                logs["train_loss"] *= steps / trained
            else:
                del logs["train_loss"]
        if "loss" in logs and self._dropped:  # the mean is over the steps that were trained on
            kept = self._window - self._dropped
            logs["loss"] *= self._window / max(1, kept)
            logs = {name: value for name, value in logs.items() if (name != "loss" or kept) and math.isfinite(value)}
            self._dropped = 0
        super().log(logs, *rest, **named)

    def _maybe_log_save_evaluate(self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, *rest: Any, **named: Any) -> None:
        self._window = self.state.global_step - self._globalstep_last_logged
        lasted = self.control.should_evaluate or self.control.should_save
        try:
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *rest, **named)
        except StoppedEvaluation:
            self.control.should_training_stop = True
            self.checkpoint()
        if lasted and not self.control.should_training_stop and stopped(self.signals):
            self.control.should_training_stop = True  # a signal in an evaluation or a save: no further step

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Save a checkpoint now, unless this step has one, or the weights are no longer its own."""
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if not self._best_again and first_decides(lambda: checkpoints.damage(folder, weights=True)):
            self._save_checkpoint(self.model_wrapped, None)
            self.callback_handler.on_save(self.args, self.state, self.control)

    def _save_checkpoint(self, _model: Any, _trial: Any) -> None:
        self.watch.check()
        self.refuse_broken_weights()
        with self.meter.timing("checkpoint"):
            saving.save_checkpoint(self, self.identity, self.kept(), self.watch.note)

    def kept(self) -> dict[str, Any]:
        """What a run that goes on from here must know beside what `Trainer` saves. Every rank must call it."""
        return {
            self._at_a_time: self.pieces.most if self.pieces else None,
            "left_out": sorted(self.left_out),
            "compiled": self.compiled and self.compiled.on,
            "guard": self.guard and self.guard.kept(),
            "watch": self.watch.kept(),
            NAME: Window.of(self, self._dropped).to_json(),
            **({"weights_alone": True} if self.args.save_only_model else {}),
        }

    def take(self, kept: Mapping[str, Any]) -> None:
        """Go on with what `kept` gave."""
        self.left_out |= set(kept.get("left_out", ()))
        self.unlogged = Window.kept(kept)
        self.watch.take(kept.get("watch"))
        if self.guard is not None and kept.get("guard"):
            self.guard.take(kept["guard"])
        if kept.get(self._at_a_time) is not None:
            self.pieces = self.pieces or Pieces(self.watch.note, by_slots=self.token_batches is not None)
            self.pieces.most = kept[self._at_a_time]

    @property
    def _at_a_time(self) -> str:
        return "rows_at_a_time" if self.token_batches is None else "tokens_at_a_time"

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:  # noqa: ARG002 - as `Trainer` has it
        if self.is_world_process_zero():
            self.hub_model_id, self.push_in_progress = hub_upload.repository(self.args), None

    def forget(self) -> None:
        """An attempt ended in the middle of a step, and another one is to begin."""
        self._step_loss, self._dropped, self._untrained = None, 0, set()
        self.model.zero_grad(set_to_none=True)
        if self.neftune_noise_alpha is not None:  # `train` adds its hook every time
            deactivate_neftune(self.model, self.neftune_hook_handle, self.accelerator)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            follow(self.lr_scheduler)

    def _init_training_state(self, steps: int, updates: int, epochs: int, checkpoint: str | None, trial: Any) -> tuple[int, int]:
        """The state of the checkpoint that is gone on from, with its best one where that is now. Without it the best of what follows is kept."""
        begun: tuple[int, int] = super()._init_training_state(steps, updates, epochs, checkpoint, trial)
        state = self.state
        if checkpoint is not None and state.best_global_step and self.args.load_best_model_at_end:
            found, problem = first_decides(lambda: best.find(state, Path(checkpoint), self.identity))
            state.best_model_checkpoint = None if found is None else str(found)
            if found is None:
                of = f"step {state.best_global_step}, {self.args.metric_for_best_model} {state.best_metric:.4g}"
                self.watch.note(f"the best checkpoint so far ({of}) {problem}: the best of the following ones is kept")
                state.best_metric, state.best_global_step = None, 0
        return begun

    def _load_callback_state(self) -> None:
        """Early stopping counts on from where the checkpoint's run was. The flags of a run that was stopped are not taken over."""
        for callback in self.callback_handler.callbacks:
            kept = self.state.stateful_callbacks.get(type(callback).__name__)
            if isinstance(callback, EarlyStoppingCallback) and isinstance(kept, dict):
                for name, value in kept["attributes"].items():
                    setattr(callback, name, value)

    def _load_best_model(self) -> None:
        folder = Path(str(self.state.best_model_checkpoint))
        if problem := first_decides(lambda: checkpoints.damage(folder, full=True, weights=True)):
            raise TrainError(f"the best checkpoint {folder} cannot be used: {problem}", WITHOUT_BEST)
        super()._load_best_model()
        self._best_again = True

    def _finalize_training(self, *given: Any, **named: Any) -> Any:
        """Transformers' own deletes the last checkpoint at a limit of 1, and loads the best weights where the run is only interrupted."""
        load = self.args.load_best_model_at_end and not stopped(self.signals)
        with changed(self.args, save_total_limit=None, load_best_model_at_end=load):
            return super()._finalize_training(*given, **named)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            adapter.describe(self.model, Path(output_dir or self.args.output_dir))

    def refuse_broken_weights(self) -> None:
        """Raise `TrainError` when a weight, or what the optimizer keeps, is not a number: such a model is never saved."""
        for what, broken in {"weights": not finite(self.model), "optimizer's states": not finite_states(self.optimizer)}.items():
            if anyone(broken, self.args.device):
                raise TrainError(
                    f"after step {self.state.global_step} the {what} contain NaN or infinity: nothing is saved",
                    "Lower the learning rate or warm up longer; an earlier checkpoint may be good.",
                )
