"""Checks of the learning rate's schedule, of what hides a failing run, and of what a resumed run would do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.training.schedule import Plan
    from ftcli.core.verify.probe import Probe
    from ftcli.settings_train import TrainSettings

LEAST = 0.05
"""Share of its steps that a run must amount to at the full rate: linear and cosine 0.5, a polynomial of power 10 0.09, of 40 0.03, of 200 0.005."""


def warm_up(probe: Probe) -> Check:
    """The rate in full-rate steps: what the run has learned with by its first log line, its first evaluation and its end."""
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    plan = plan_of(probe)
    schedule = plan.schedule
    steps, warmup, rate = schedule.steps, schedule.warmup, probe.settings.train.learning_rate
    if refused := schedule.refused:
        return failed(
            f"the schedule is invalid: {refused}",
            "Correct train.lr_scheduler_kwargs, or remove train.lr_scheduler_type.",
            schedule=schedule.name,
            options=dict(schedule.options),
        )
    if schedule.known and (rise := schedule.rise):
        return failed(
            f"{schedule.name} {dict(schedule.options)} raises the learning rate to {rise:,.4g} times the {rate:g} that was asked for: its least rate is above it",
            "Give a least rate below --learning-rate, or leave train.lr_scheduler_kwargs out.",
            schedule=schedule.name,
            options=dict(schedule.options),
        )
    done = {"first_log": min(plan.log_every, steps), "first_eval": plan.first_eval, "end": steps}
    full = {name: None if at is None else round(schedule.full_rate_steps(at), 3) for name, at in done.items()}
    evidence = {"steps": steps, "warmup_steps": warmup, "full_rate_steps": full, "schedule": schedule.name}
    about = steps // 20
    fix = (
        f"Set --warmup-steps to about {about}."
        if about
        else f"Leave --warmup-steps out: a run of {steps:,} step{'s' * (steps != 1)} needs none."
    )
    if warmup >= steps:
        return failed(
            f"the warm-up of {warmup:,} steps does not end in a run of {steps:,}: the learning rate never reaches {rate:g}, "
            f"and the whole run amounts to {full['end']:,.1f} steps at that rate",
            fix,
            **evidence,
        )
    if warmup >= steps / 2:
        return warned(f"the warm-up takes {warmup:,} of {steps:,} steps", fix, **evidence)
    if schedule.known and schedule.name != "inverse_sqrt" and schedule.total < LEAST * steps:
        return warned(
            f"{schedule.name} {schedule.options} leaves {schedule.total:,.1f} full-rate steps of a run of {steps:,}: the rate is near 0 for nearly all of it",
            "Leave train.lr_scheduler_kwargs out, or give other values.",
            **evidence,
        )
    if schedule.given > warmup:
        return noted(f"{schedule.name} has no warm-up: the {schedule.given:,} warm-up steps asked for have no effect", **evidence)
    words = f"{steps:,} steps, {warmup:,} of them warm-up; equivalent to {full['end']:,.0f} steps at the full rate"
    if plan.first_eval is not None and plan.first_eval < warmup:
        return noted(
            f"{words}; the first evaluation, at step {plan.first_eval:,}, falls inside the warm-up, after the equivalent of {full['first_eval']:,.1f}",
            **evidence,
        )
    return passed(words, **evidence)


def best_model(probe: Probe) -> Check:
    """Whether the run is evaluated often enough for `patience` to end it and for a best model to be chosen."""
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import passed, warned

    train = probe.settings.train
    if not train.patience and not train.load_best_model_at_end:
        raise Missing("neither --patience nor --load-best-model-at-end is given")
    plan = plan_of(probe)
    if plan.first_eval is None:
        raise Missing("nothing is evaluated")
    evidence = {"steps": plan.schedule.steps, "first_eval": plan.first_eval, "evaluations": plan.evals_before_end + 1}
    if said := plan.too_few_evaluations(train):
        return warned(said, _more_often(train, plan.schedule.steps), **evidence)
    return passed(f"{plan.evals_before_end + 1:,} evaluations, the first at step {plan.first_eval:,}", **evidence)


def _more_often(train: TrainSettings, steps: int) -> str:
    """What gives a run the evaluations before its last step that are asked for."""
    wanted = (train.patience or 0) + 1
    every = (steps - math.ceil(train.eval_delay or 0)) // (wanted + 1)
    if every < 1:
        sooner = "start evaluating earlier (--eval-delay), " if train.eval_delay and steps > wanted else ""
        return f"{steps:,} steps are too few for that: {sooner}train longer, or leave it out."
    asked = f"--eval-strategy steps --eval-steps {every}"
    if train.load_best_model_at_end and (train.save_steps or train.save_strategy):  # the best model needs both at the same steps
        asked += f" --save-strategy steps --save-steps {every}"
    return f"Evaluate more often ({asked}), train longer, or leave it out."


def hidden_nan(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import passed, warned

    train = probe.settings.train
    if train.logging_nan_inf_filter:
        return warned(
            f"logging_nan_inf_filter (from {probe.origin('train.logging_nan_inf_filter')}) hides NaN and infinite losses from the log: "
            "a broken model is logged with a loss of 0.0",
            "Remove it: ftcli logs the true loss, and stops at NaN.",
        )
    return passed("NaN and infinite losses are logged", on_unhealthy=train.on_unhealthy)


def resume(probe: Probe) -> Check:
    """The checkpoint that the run would go on from, against the run."""
    from ftcli.core.training import checkpoints
    from ftcli.core.verify.probe import Missing
    from ftcli.core.verify.verdict import failed, noted, passed

    train = probe.settings.train
    if train.resume_from_checkpoint is None:
        raise Missing("the run starts from scratch (no --resume-from-checkpoint)")
    if train.output_dir is None and train.resume_from_checkpoint == "auto":
        raise Missing("no --output-dir to look for checkpoints in")
    said: list[str] = []
    folder = checkpoints.choose(train.resume_from_checkpoint, train.output_dir or probe.store.path, said.append, full=False)
    if folder is None:
        if any("passed over" in words for words in said):
            return failed(
                f"no checkpoint in {train.output_dir} is usable, so the run would start at step 0: {'; '.join(said[:-1])}",
                f"{'Resume with the ftcli version that saved it' if 'it has the format' in said[0] else 'Copy the missing files back'}, "
                "or start a new run in another --output-dir.",
                passed_over=said[:-1],
            )
        return noted(f"{train.output_dir} holds no checkpoint yet: the run starts at step 0")
    changed = checkpoints.differences(folder, checkpoints.identity(probe.context, probe.store, probe.task_name))
    evidence = {"checkpoint": str(folder), "differences": {key: [str(old), str(new)] for key, (old, new) in changed.items()}}
    fatal = {key: pair for key, pair in changed.items() if key not in checkpoints.HARMLESS}
    if fatal:
        return failed(
            f"{folder} cannot be resumed with these settings: {checkpoints.listed(fatal)}",
            checkpoints.advice(fatal),
            **evidence,
        )
    if changed or said[:-1]:
        words = [f"{key} was {old}, now {new}" for key, (old, new) in changed.items()] + said[:-1]
        return noted(f"resuming from {folder}: {'; '.join(words)}", **evidence)
    return passed(f"resuming from {folder}: same data, rows in the same order, same optimizer", **evidence)


def plan_of(probe: Probe) -> Plan:
    from ftcli.core.training.schedule import make_plan
    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    rows, held_out, batches = None, False, None
    try:
        rows, held_out = len(probe.train_split), probe.store.eval_split is not None
    except (FtcliError, Missing) as error:  # FT201 fails of it
        if probe.settings.train.max_steps < 0:
            raise Missing(str(getattr(error, "message", error))) from error
    else:
        batches = probe.token_batches
    plan = make_plan(probe.settings, rows, held_out=held_out, token_batches=None if batches is None else len(batches))
    assert plan is not None
    return plan


CHECKS = (
    CheckKind("FT053", "settings", "Warm-up", warm_up, needs=("store",)),
    CheckKind("FT090", "settings", "Hidden NaN", hidden_nan, severity="warn"),
    CheckKind("FT091", "settings", "Resume", resume, needs=("store",)),
    CheckKind("FT092", "settings", "Best model", best_model, severity="warn", needs=("store",)),
)
