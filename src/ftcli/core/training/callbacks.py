"""What happens beside the steps: progress, the metrics file, plugins' `on_step` and signals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ftcli.context import Context
from ftcli.core.distributed.agree import stopped
from ftcli.core.distributed.signals import Signals
from ftcli.core.files.durable import refusal
from ftcli.core.training.hints import standing_out
from ftcli.core.training.meter import Meter
from ftcli.core.training.run_lock import Claim
from ftcli.errors import FtcliError, PluginError
from ftcli.records import Step, to_json

METRICS_FILE = "metrics.jsonl"


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Our side of a run; the flow stays the Trainer's.

    Args:
        on_length: called with the number of optimizer steps when it is known.
        on_first_step: called after step 1.
        on_log: called with every line of the log, on every rank, after it was written.
        claim: on the run's folder; where another run has it by now, nothing is logged there.
    """

    def __init__(
        self,
        context: Context,
        meter: Meter,
        signals: Signals,
        on_length: Callable[[int], None],
        on_first_step: Callable[[], None],
        on_log: Callable[[Mapping[str, Any]], None] = lambda _: None,
        claim: Claim | None = None,
    ) -> None:
        self.context = context
        self.meter = meter
        self.signals = signals
        self.on_length = on_length
        self.on_first_step = on_first_step
        self._on_log = on_log
        self._claim = claim
        self.interrupted = False
        self._hinted: set[str] = set()
        self._saved = -1
        self._saves = 0
        self._begun = False
        self._lost = False
        self._shown: dict[str, Any] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self._begun = True
        self.signals.begin()
        self.on_length(state.max_steps)
        self.context.progress.start("train", state.max_steps, "steps", state.global_step)
        if state.is_world_process_zero:
            self._keep(args, state)  # a resumed run drops what was logged after its checkpoint
        self.meter.start()

    def on_epoch_begin(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **parts: Any) -> None:
        """Tell our sampler the epoch: accelerate's loader loses it where a resumed run skips batches on several processes."""
        sampler = parts["train_dataloader"].batch_sampler
        while hasattr(sampler, "batch_sampler"):
            sampler = sampler.batch_sampler
        inner = getattr(sampler, "sampler", sampler)
        if hasattr(inner, "set_epoch"):
            inner.set_epoch(int(state.epoch or 0))

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.meter.enter("optimizer")

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.meter.leave()

    def on_step_end(self, _args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        self.meter.step()
        if state.global_step == 1:
            self.on_first_step()
        if state.is_world_process_zero:
            with self.meter.timing("logging"):
                self.context.progress.advance(1, **self._shown)
        if state.global_step >= state.max_steps:
            control.should_log = True
        with self.meter.timing("communication"):  # nothing on one process
            stop = stopped(self.signals)
        if stop:
            self.interrupted = True
            control.should_log = control.should_save = control.should_training_stop = True
            control.should_evaluate = False
        return control

    def on_epoch_end(self, _args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        if self.interrupted or stopped(self.signals):
            self.interrupted = control.should_training_stop = True
            control.should_evaluate = False
            control.should_save = self._saved != state.global_step
        return control

    def on_log(self, args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        entry = state.log_history[-1]
        if state.is_world_process_zero:
            self._write(args, state, entry)
            self.context.progress.advance(0, **self._shown)  # a step counts before its line is logged: the last line would never be shown
        self._on_log(entry)
        self._hint(state)

    def _hint(self, state: TrainerState) -> None:
        """Say once what stands out in where the time goes; after the last step only when its evaluation and its save are done."""
        ended = any("train_runtime" in entry for entry in state.log_history)
        if self.interrupted or (state.global_step >= state.max_steps and not ended):
            return
        seconds, steps = self.meter.since_first_step()
        padding = 1 - self.meter.tokens / self.meter.slots if self.meter.slots else None
        times = {"evaluation": sum("eval_loss" in entry for entry in state.log_history), "checkpoint": self._saves}
        once = {part for part, number in times.items() if number < 2 and ended}
        for part, words in standing_out(seconds, padding, steps, self.context.settings, once=once).items():
            if part not in self._hinted:
                self._hinted.add(part)
                self.context.note(words)

    def _write(self, args: TrainingArguments, state: TrainerState, entry: Mapping[str, Any]) -> None:
        if self._begun or not self._stands(args, entry):
            self._keep(args, state, entry)
        if "loss" in entry:
            self._shown.update(loss=entry["loss"], lr=entry["learning_rate"])
            step = Step(entry["step"], entry["epoch"], entry["loss"], entry.get("grad_norm"), entry["learning_rate"])
            _notify(self.context, step)
        elif "eval_loss" in entry:
            self._shown.update(
                {name: entry[name] for name in ("eval_loss", "eval_accuracy", "eval_micro_f1", "eval_pearson") if name in entry}
            )

    def _stands(self, args: TrainingArguments, entry: Mapping[str, Any]) -> bool:
        """Whether `entry`, an evaluation, is in the metrics file already: of a run that had ended, and whose command is repeated."""
        loss = "test_loss" if "test_loss" in entry else "eval_loss"
        with suppress(OSError, ValueError, AttributeError, KeyError):
            figures = entry["step"], entry[loss]
            lines = map(json.loads, (Path(args.output_dir) / METRICS_FILE).read_text(encoding="utf-8").splitlines())
            return any((line.get("step"), line.get(loss)) == figures for line in lines)
        return False

    def _keep(self, args: TrainingArguments, state: TrainerState, entry: Mapping[str, Any] | None = None) -> None:
        """Write `entry` behind the others in the metrics file, or all of the run there where it is None or the folder is a new one.

        Where that fails the run goes on without the file, since a part of a line may stand at its end.
        """
        path = Path(args.output_dir) / METRICS_FILE
        if self._lost or not (self._claim is None or self._claim.hold()):
            return
        try:
            anew = entry is None or not path.exists()
            with path.open("w" if anew else "a", encoding="utf-8") as file:
                file.writelines(json.dumps(to_json(line)) + "\n" for line in (state.log_history if anew else [entry]))
        except OSError as error:
            self._lost = True
            self.context.note(f"{refusal(error, path).message}; the run continues without it")

    def on_save(self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any) -> None:
        self._saved = state.global_step
        self._saves += 1


def _notify(context: Context, step: Step) -> None:
    for implementation in context.plugins.hook.on_step.get_hookimpls():
        try:
            implementation.function(**dict.fromkeys(implementation.argnames, step))
        except FtcliError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"plugin {implementation.plugin_name!r} failed in on_step at step {step.step}: {error!r}", "Fix or remove the plugin."
            ) from error
