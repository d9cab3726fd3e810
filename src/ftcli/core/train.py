"""The run itself: train, evaluate, save, and say how it went."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import EarlyStoppingCallback, TrainerState, TrainingArguments

from ftcli.core import checkpoints, health
from ftcli.core.batch import StoreDataset
from ftcli.core.callbacks import METRICS_FILE, RunCallback
from ftcli.core.course import Course, clipping
from ftcli.core.meter import Meter
from ftcli.core.outcome import Outcome, figures, majority
from ftcli.core.run import Run
from ftcli.core.schedule import Schedule
from ftcli.core.signals import Signals
from ftcli.core.trainer import FtcliTrainer, StoppedEvaluation
from ftcli.errors import FtcliError, TrainError
from ftcli.records import Check, RunStatus


def fit(run: Run, signals: Signals) -> Outcome:
    """Train, evaluate and save. A signal ends the run at the next step's end with a complete checkpoint.

    Raises:
        TrainError: the checkpoint to go on from cannot be used, or the result cannot be written.
    """
    context, arguments = run.context, run.arguments
    stop = context.settings.train.on_unhealthy == "stop"
    checks: list[Check] = []

    def found(check: Check) -> None:
        checks.append(check)
        if check.status == "fail" and stop:
            raise TrainError(check.summary, f"{check.fix} To train all the same: --on-unhealthy warn.")
        if check.status in {"warn", "fail"}:
            context.note(f"{check.summary}. {check.fix}")

    courses: list[Course] = []

    def on_log(entry: Mapping[str, Any]) -> None:
        if not courses:
            courses.append(_course(run, trainer.state.max_steps))
        for check in courses[0].log(entry, watch.clipped_share):
            found(check)

    def on_length(steps: int) -> None:
        if check := health.warm_up(arguments.get_warmup_steps(steps), steps):
            found(check)

    def on_first_step() -> None:
        if trainer.first is not None and trainer.start is not None:
            chance, fresh = run.task.chance_loss(run.model.config, run.store), context.settings.model.config is not None
            found(health.first_loss(trainer.first[0], chance, trainer.start, fresh=fresh, language=not run.task.needs_labels))

    meter = Meter()
    watch = health.Watch(context.note, stop=stop, clip=arguments.max_grad_norm, scaled=arguments.fp16, record=checks.append)
    identity = checkpoints.identity(context, run.store, run.task.name)
    cached = run.model.config.use_cache
    trainer = _trainer(run, meter, watch, signals, RunCallback(context, meter, signals, identity, on_length, on_first_step, on_log))
    checkpoint = _resumed(run, identity)
    meter.start()
    failure: FtcliError | None = None
    status: RunStatus = "failed"
    try:
        status = _whole(run, trainer, checkpoint, use_cache=cached)
    except torch.OutOfMemoryError as error:
        failure = _out_of_memory(arguments, error)
    except FtcliError as error:
        failure = error
    meter.stop()
    if check := clipping(watch.clipped_share, context.settings.train.optim):
        checks.append(check)
    metrics, details = figures(run, trainer, checkpoint)
    paths = {"output": str(run.output), "metrics": str(run.output / METRICS_FILE)}
    if status == "interrupted":
        paths["checkpoint"] = str(run.output / f"checkpoint-{trainer.state.global_step}")
    return Outcome(status, metrics, details, tuple(checks), paths, failure)


def _course(run: Run, steps: int) -> Course:
    """What the log is held against."""
    arguments, fresh, labels = run.arguments, run.context.settings.model.config is not None, run.train.labels
    chance = run.task.chance_loss(run.model.config, run.store)
    unlearned: float | None = chance if fresh else None
    held_out = None
    if run.task.needs_labels and labels is not None:
        shares = np.bincount(labels) / len(labels)
        unlearned = -float((shares[shares > 0] * np.log(shares[shares > 0])).sum())
        share = majority(run)
        held_out = None if share is None or run.held_out is None else (share, len(run.held_out))
    planned = Schedule(
        steps, arguments.get_warmup_steps(steps), str(arguments.lr_scheduler_type.value), arguments.lr_scheduler_kwargs or {}
    )
    schedule = None if arguments.fp16 or arguments.deepspeed else planned  # skipped steps, and a scheduler of its own
    return Course(chance, unlearned, arguments.learning_rate, str(run.context.settings.train.optim), schedule, held_out)


def _whole(run: Run, trainer: FtcliTrainer, checkpoint: Path | None, *, use_cache: bool) -> RunStatus:
    """Steps, last evaluation and result; or, after a signal, a checkpoint."""
    try:
        _steps(trainer, checkpoint)
        if trainer.signals.received is None and run.held_out is not None and run.arguments.eval_strategy != "no":
            _final_evaluation(trainer)
    except StoppedEvaluation:
        pass
    if trainer.signals.received is not None:
        trainer.checkpoint()
        return "interrupted"
    run.model.config.use_cache = use_cache  # Trainer turns it off, and a saved model without it would generate slowly
    _save(trainer, run.output)
    return "ok"


def _trainer(run: Run, meter: Meter, watch: health.Watch, signals: Signals, callback: RunCallback) -> FtcliTrainer:
    patience = run.context.settings.train.patience
    return FtcliTrainer(
        model=run.model,
        args=run.arguments,
        task=run.task,
        order=run.order,
        collator=run.collator,
        meter=meter,
        watch=watch,
        signals=signals,
        train_dataset=StoreDataset(run.train),
        eval_dataset=None if run.held_out is None else StoreDataset(run.held_out),
        processing_class=run.tokenizer,
        callbacks=[callback, *([EarlyStoppingCallback(patience)] if patience else [])],
    )


def _resumed(run: Run, identity: Mapping[str, Any]) -> Path | None:
    settings, note = run.context.settings, run.context.note
    wanted = settings.train.resume_from_checkpoint
    if wanted is None:
        if run.arguments.process_index == 0:  # overwriting was allowed: an older run's checkpoints must not be taken for this one's
            for old in run.output.glob("checkpoint-*"):
                shutil.rmtree(old)
        return None
    folder = checkpoints.choose(wanted, run.output, note)
    if folder is not None:
        checkpoints.compare(folder, identity, note)
    return folder


def _steps(trainer: FtcliTrainer, checkpoint: Path | None) -> None:
    if checkpoint is not None:
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        *_, total = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
        if state.global_step >= total:  # transformers would train one step more
            trainer._load_from_checkpoint(str(checkpoint))
            trainer.state = state
            return
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))


def _final_evaluation(trainer: FtcliTrainer) -> None:
    """Evaluate the final weights, unless that was the last thing done."""
    best = trainer.args.load_best_model_at_end and trainer.state.best_global_step != trainer.state.global_step
    done = any("eval_loss" in entry and entry["step"] == trainer.state.global_step for entry in trainer.state.log_history)
    if best or not done:
        trainer.evaluate()


def _save(trainer: FtcliTrainer, output: Path) -> None:
    trainer.refuse_broken_weights()
    try:
        with trainer.meter.timing("saving"):
            trainer.save_model(str(output))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise TrainError(
            f"the model cannot be written to {output}: {error}", "Free space there, then --resume-from-checkpoint auto."
        ) from error


def _out_of_memory(arguments: TrainingArguments, error: Exception) -> TrainError:
    batch, accumulation = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    half = max(1, batch // 2)
    return TrainError(
        f"the device's memory does not hold a batch of {batch} rows: {str(error).splitlines()[0]}",
        f"--per-device-train-batch-size {half} --gradient-accumulation-steps {accumulation * batch // half} is the same training; "
        "--activation-checkpointing saves more.",
    )
