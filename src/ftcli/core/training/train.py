"""The run itself: train, evaluate, save, and say how it went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler
from transformers import EarlyStoppingCallback, TrainerCallback

from ftcli.core.batches.batch import StoreDataset
from ftcli.core.distributed import pulse
from ftcli.core.distributed.agree import first_decides, stopped
from ftcli.core.distributed.group import left, loss_of_a_rank
from ftcli.core.distributed.heartbeat import Heartbeat
from ftcli.core.distributed.loader_workers import of_a_dead_loader, of_a_loader
from ftcli.core.distributed.signals import Signals
from ftcli.core.files.durable import writing
from ftcli.core.models.adapter_base import base_of
from ftcli.core.models.compiled import Trial, compiled
from ftcli.core.models.config import cache_of, set_cache
from ftcli.core.models.frozen import BASE
from ftcli.core.models.lean import few_rows, lean
from ftcli.core.models.refusals import ran_out
from ftcli.core.publishing import staging
from ftcli.core.training import checkpoints, ending, health, memory, precision, saving, trackers, unused_weights
from ftcli.core.training.arguments import changed
from ftcli.core.training.baselines import course_of
from ftcli.core.training.best import step_of_state
from ftcli.core.training.callbacks import METRICS_FILE, RunCallback
from ftcli.core.training.card import CARD
from ftcli.core.training.clock import clock_of
from ftcli.core.training.evaluating import StoppedEvaluation
from ftcli.core.training.finished_checkpoint import length, state_of_end, take_end
from ftcli.core.training.guarding import Guard, Rollback, most_usual, rows_of_a_step
from ftcli.core.training.halves import halves
from ftcli.core.training.memory import Pieces
from ftcli.core.training.meter import Meter
from ftcli.core.training.outcome import Outcome, figures
from ftcli.core.training.run import Run
from ftcli.core.training.schedule import planned
from ftcli.core.training.split_scoring import score
from ftcli.core.training.trainer import FtcliTrainer
from ftcli.core.training.trends import Course, clipping
from ftcli.core.training.window import Window
from ftcli.errors import FtcliError, TrainError
from ftcli.records import Check, RunStatus


def fit(run: Run, signals: Signals) -> Outcome:
    """Train, evaluate and save. Once it has begun, a signal ends the run at the next step's end with a complete checkpoint.

    Raises:
        TrainError: the checkpoint to go on from cannot be used, or the result cannot be written.
        PublishError: the run's folder cannot be made.
    """
    context, arguments = run.context, run.arguments
    stop = context.settings.train.on_unhealthy == "stop"
    checks: list[Check] = []

    def found(check: Check) -> None:
        checks.append(check)
        if check.status == "fail" and stop:
            raise TrainError(check.summary, f"{check.fix} To train anyway: --on-unhealthy warn.")
        if check.status in {"warn", "fail"}:
            context.note(f"{check.summary}. {check.fix}")

    courses: list[Course] = []

    def on_log(entry: Mapping[str, Any]) -> None:
        if not courses:
            courses.append(course_of(run, trainer.state.max_steps))
        for check in courses[0].log(entry, watch.clipped_share):
            found(check)

    def on_length(steps: int) -> None:
        if check := health.warm_up(planned(arguments, steps).warmup, steps):
            found(check)

    def on_first_step() -> None:
        # of weighed classes, and of the numbers of some rows, the loss of one step says nothing about guessing
        weighed = getattr(run.task, "class_weights", None) is not None or run.train.numbers is not None
        if trainer.first is not None and trainer.start is not None and not weighed:
            chance, fresh = run.task.chance_loss(run.model.config, run.store), context.settings.model.config is not None
            found(health.first_loss(trainer.first[0], chance, trainer.start, fresh=fresh, language=not run.task.needs_labels))

    meter = Meter(clock_of(arguments.device))
    watch = health.Watch(context.note, stop=stop, clip=arguments.max_grad_norm, scaled=arguments.fp16, record=checks.append)
    guard = Guard(
        context.settings.train.on_nonfinite,
        most_usual(run.task.chance_loss(run.model.config, run.store), rows_of_a_step(run), run.task, run.train.numbers),
        scaled=arguments.fp16,
        fatal=stop,
        record=checks.append,
        note=context.note,
    )
    with writing(run.output):
        run.output.mkdir(parents=True, exist_ok=True)
    cached = cache_of(run.model.config)
    callback = RunCallback(context, meter, signals, on_length, on_first_step, on_log, run.claim)
    tracked = [] if arguments.process_index else trackers.start(run.trackers, run.output, context.note, run.told)
    few = few_rows(run.train, run.collator)
    if said := precision.settle(arguments, run.model, few[0], asked=context.settings.train.bf16 is not None):
        context.note(said)
    identity = checkpoints.identity(context, run.store, run.task.name, precision.of(arguments))
    if said := unused_weights.settle(arguments, run.model, run.task, few[0]):  # before the Trainer, which reads it once, when it is made
        context.note(said)
    trainer = _trainer(run, meter, watch, signals, [callback, *tracked], identity, guard)
    checkpoint = _resumed(run, trainer, identity)
    if checkpoint is not None:
        trainer.take(checkpoints.read(checkpoint)["kept"])
        trackers.go_on(tracked, run.output)
    begun = None if checkpoint is None else step_of_state(checkpoint)  # read now: it may be among those that are removed
    meter.start()
    failure: FtcliError | None = None
    status: RunStatus = "failed"
    try:
        status = _whole(run, trainer, few, checkpoint, use_cache=cached)
    except FtcliError as error:
        failure = of_a_loader(error)
    except BaseException as error:
        failure = _named(run, trainer, error) if isinstance(error, (RuntimeError, MemoryError, OSError, EOFError)) else None
        if failure is None:
            for tracker in tracked:  # else when Python exits, behind the report
                tracker.finish({}, 1)
            raise
    meter.stop()
    if status == "ok":
        checks += ending.told(trainer)
        course = courses[0] if courses else course_of(run, trainer.state.max_steps)
        if ended := course.end(trainer.state.log_history, trainer.state.global_step, best=ending.best_again(trainer)):
            found(ended)
    if trainer.pieces is not None and trainer.pieces.most is not None:
        checks.append(trainer.pieces.check(arguments))
    if check := clipping(watch.clipped_share, context.settings.train.optim):
        checks.append(check)
    metrics, details = figures(run, trainer, checkpoint)
    if begun is not None:
        details["resumed_step"] = begun
    for tracker in tracked:
        tracker.finish(metrics, {"ok": 0, "interrupted": 3}.get(status, 1))
    paths = {"output": str(run.output)}
    if (metrics_file := run.output / METRICS_FILE).exists():  # not where the run's folder was moved away
        paths["metrics"] = str(metrics_file)
    if status == "interrupted" and (last := checkpoints.newest(run.output, context.note, full=False)):
        paths["checkpoint"] = str(last)
    return Outcome(status, metrics, details, tuple(checks), paths, failure)


def _whole(
    run: Run, trainer: FtcliTrainer, few: Sequence[Mapping[str, Tensor]], checkpoint: Path | None, *, use_cache: bool | None
) -> RunStatus:
    """Steps, last evaluation and result; or, after a signal, a checkpoint."""
    try:
        settings = run.context.settings.train
        wanted = settings.lean_step
        tokens = settings.max_tokens_per_batch or run.arguments.per_device_train_batch_size * float(run.train.lengths.mean())
        uses = trainer.use_head, trainer.use_texts
        with lean(run.model, run.task, few, run.arguments, *uses, wanted=wanted, texts=run.texts) as said:
            run.context.note(said)
            with _compiled(run, trainer, checkpoint), halves(trainer, few[0], wanted=wanted, tokens=tokens) as halved:
                if halved:
                    run.context.note(halved)
                _steps(trainer, checkpoint)
            trainer.signals.begin()  # a run that had ended took no step
            if not stopped(trainer.signals) and run.held_out is not None and run.arguments.eval_strategy != "no":
                _final_evaluation(trainer)
            if not stopped(trainer.signals) and run.test is not None:
                score(trainer, run.test)
    except StoppedEvaluation:
        pass
    if stopped(trainer.signals):
        trainer.checkpoint()
        return "interrupted"
    if not trainer.state.global_step:
        raise TrainError("no step was taken: the model is unchanged, and is not saved", "Look at the batches: ftcli verify.")
    set_cache(run.model.config, use_cache)  # Trainer turns it off, and a saved model without it would generate slowly
    _save(trainer)
    return "ok"


@contextmanager
def _compiled(run: Run, trainer: FtcliTrainer, checkpoint: Path | None) -> Iterator[None]:
    """Inside, what `train.torch_compile` = auto comes to, which on a GPU is the default."""
    train = run.context.settings.train
    if train.torch_compile != "auto" and not (train.torch_compile is None and run.arguments.device.type == "cuda"):
        yield
        return
    trial = Trial(
        model=run.model,
        task=run.task,
        arguments=run.arguments,
        batches=lambda count: _first_batches(run, trainer, count),
        left=lambda: length(trainer) * run.arguments.gradient_accumulation_steps,
        head=trainer.head,
        dynamic=run.context.settings.loader.collator != "fixed" or run.token_batches is not None,
        backend=train.torch_compile_backend,
        mode=train.torch_compile_mode,
    )
    before = None if checkpoint is None else checkpoints.read(checkpoint)["kept"].get("compiled")
    with compiled(trial, before, run.context.note) as trainer.compiled:
        yield


def _first_batches(run: Run, trainer: FtcliTrainer, count: int) -> list[dict[str, Tensor]]:
    """Of the first epoch, whatever step the run begins with."""
    order = BatchSampler(trainer._get_train_sampler(), run.arguments.train_batch_size, drop_last=False)
    rows = StoreDataset(run.train)
    return [run.collator(rows.__getitems__(batch)) for batch in islice(run.token_batches or order, count)]


def _trainer(
    run: Run,
    meter: Meter,
    watch: health.Watch,
    signals: Signals,
    callbacks: list[TrainerCallback],
    identity: Mapping[str, Any],
    guard: Guard | None = None,
) -> FtcliTrainer:
    settings, rank = run.context.settings, pulse.current()
    patience = settings.train.patience
    beat = [] if rank is None else [Heartbeat(rank, settings.launch.rank_timeout, run.output / pulse.STACKS)]
    return FtcliTrainer(
        model=run.model,
        args=run.arguments,
        task=run.task,
        order=run.order,
        collator=run.collator,
        meter=meter,
        watch=watch,
        signals=signals,
        identity=identity,
        guard=guard,
        pieces=Pieces(run.context.note, by_slots=run.token_batches is not None) if run.context.settings.train.auto_batch else None,
        token_batches=run.token_batches,
        claim=run.claim,
        train_dataset=StoreDataset(run.train),
        eval_dataset=None if run.held_out is None else StoreDataset(run.held_out),
        processing_class=run.tokenizer,
        callbacks=[*callbacks, *beat, *([EarlyStoppingCallback(patience)] if patience else [])],
    )


def _resumed(run: Run, trainer: FtcliTrainer, identity: Mapping[str, Any]) -> Path | None:
    settings, note = run.context.settings, run.context.note
    wanted = settings.train.resume_from_checkpoint
    if wanted is None:
        if run.arguments.process_index == 0:  # overwriting was allowed: an older run's checkpoints must not be taken for this one's
            staging.sweep(run.output)
            if settings.runtime.overwrite and not _starts_there(run):  # a run that fails must not stand beside the model of another
                staging.withdraw(run.output)
                (run.output / CARD).unlink(missing_ok=True)
            checkpoints.remove_all(run.output, _made_of(run))
            trackers.forget(run.output)
        return None
    folder = first_decides(lambda: checkpoints.choose(wanted, run.output, note))
    if folder is not None:
        checkpoints.compare(folder, identity, note, ended=state_of_end(trainer, folder) is not None)
    elif run.arguments.process_index == 0:
        trackers.forget(run.output)
    return folder


def _starts_there(run: Run) -> bool:
    """Whether the run's own folder holds what its model is made of."""
    return any(path.is_relative_to(run.output.resolve()) for path in _made_of(run))


def _made_of(run: Run) -> list[Path]:
    model = run.context.settings.model
    named = [str(model.config)] if model.name_or_path is None else [model.name_or_path, base_of(model.name_or_path)]
    return [Path(name).resolve() for name in named]


def _steps(trainer: FtcliTrainer, checkpoint: Path | None) -> None:
    while True:
        try:
            _once(trainer, checkpoint)
        except Rollback as back:
            checkpoint = _gone_back(trainer, back)
        else:
            return


def _once(trainer: FtcliTrainer, checkpoint: Path | None) -> None:
    if checkpoint is not None:
        state = state_of_end(trainer, checkpoint)
        if state is not None:
            take_end(trainer, checkpoint, state)
            return
    at_start = trainer.args.eval_on_start and checkpoint is None  # patience has counted the evaluation of a checkpoint
    with changed(trainer.args, eval_on_start=at_start):
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))


def _gone_back(trainer: FtcliTrainer, back: Rollback) -> Path:
    """The checkpoint that the run goes on from, with the bad steps' batches left out."""
    note = trainer.watch.note
    folder = first_decides(lambda: checkpoints.go_back(Path(trainer.args.output_dir), back.before, note))
    if folder is None and any(Path(trainer.args.output_dir).glob("checkpoint-*")):
        raise TrainError(
            f"{back.message}, and the steps to skip ({back.left_out[0]} to {back.left_out[-1]}) reach back before the first checkpoint",
            "Lower the learning rate or warm up longer: the run goes wrong from the start.",
        )
    if folder is None:
        raise TrainError(f"{back.message}, and there is no checkpoint to go back to", back.without_checkpoint)
    first, last = back.left_out[0], back.left_out[-1]
    left_out = f"step {last} is" if first == last else f"steps {first} to {last} are"
    note(f"{back.message}; gone back to {folder}, and {left_out} left out")
    trainer.forget()
    trainer.unlogged = Window.kept(checkpoints.read(folder)["kept"])
    trainer.left_out |= set(back.left_out)
    return folder


def _final_evaluation(trainer: FtcliTrainer) -> None:
    """Evaluate the final weights, unless that was the last thing done."""
    best = trainer.args.load_best_model_at_end and trainer.state.best_global_step != trainer.state.global_step
    done = any("eval_loss" in entry and entry["step"] == trainer.state.global_step for entry in trainer.state.log_history)
    if best or not done:
        trainer.evaluate()


def _save(trainer: FtcliTrainer) -> None:
    trainer.refuse_broken_weights()
    document = {"step": trainer.state.global_step, "data": trainer.identity["data"]}
    if (base := trainer.identity.get(BASE, "none")) != "none":
        document[BASE] = base
    with trainer.meter.timing("checkpoint"):
        saving.save_model(trainer, document, trainer.watch.note)


def _named(run: Run, trainer: FtcliTrainer, error: Exception) -> FtcliError | None:
    """What a machine's refusal or another rank's end means; None for an error that is neither."""
    if isinstance(error, RuntimeError) and left(error):
        return loss_of_a_rank(error, run.output / pulse.STACKS)
    if ran_out(error):
        return memory.advice(trainer.args, error, trainer.shape, evaluating=trainer.evaluating, batches=trainer.token_batches)
    if of_a_dead_loader(error):
        return TrainError(
            f"after step {trainer.state.global_step} a DataLoader worker died: {str(error).partition(chr(10))[0] or type(error).__name__}",
            "Something killed it, most often for lack of memory: use fewer workers (--dataloader-num-workers 0 is best for prepared data), then --resume-from-checkpoint.",
        )
    return None
