"""How a run ended: whether patience ended it, and which step's model it ends with."""

from __future__ import annotations

from typing import Any

from transformers import EarlyStoppingCallback

from ftcli.core.reports.headline import ENDINGS
from ftcli.core.training.finished_checkpoint import out_of_patience
from ftcli.core.training.trainer import FtcliTrainer
from ftcli.records import Check

STOPPED, KEPT = ENDINGS


def best_again(trainer: FtcliTrainer) -> bool:
    """Whether the run ends with the model of an earlier step, which then was evaluated again: the log's last evaluation is its."""
    state = trainer.state
    known = trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None
    return bool(known and state.best_global_step != state.global_step)


def told(trainer: FtcliTrainer) -> list[Check]:
    """For the report of a run that has ended: nothing, unless patience or the best model was asked for."""
    args, state, again = trainer.args, trainer.state, best_again(trainer)
    metric = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
    found = [(entry["step"], entry[metric]) for entry in state.log_history if metric in entry]
    if again:
        found = found[:-1]
    if not found:
        return []
    step, value = (max if args.greater_is_better else min)(found, key=lambda each: each[1])
    if again:  # of several of a run whose best was lost, it is not the best of all
        step, value = state.best_global_step, state.best_metric
    at, last = found[-1]
    evidence: dict[str, Any] = {"step": state.global_step, "metric": metric, "best_step": step, "best": value, "last": last}
    checks = []
    early = state.global_step < state.max_steps and _patience_ended(trainer)
    if early:
        words = f"stopped early at step {state.global_step:,} of {state.max_steps:,}: {metric} had not improved since step {step:,}"
        checks.append(Check(STOPPED, "steps", "info", words, evidence))
    kept = "the model of the last step was kept"
    if again:
        of = "the last step's" if at == state.global_step else f"that of step {at:,}, the last one evaluated,"
        kept = f"the model of step {step:,} was kept ({metric} {value:.4g}); {of} was {last:.4g}"
    elif args.load_best_model_at_end and step == state.global_step:
        alone = sum("eval_loss" in entry for entry in state.log_history) < 2
        kept += f": {'no other was evaluated' if alone else 'it is the best'} ({metric} {value:.4g})"
    elif early:
        kept += f" ({metric} {last:.4g}), not that of step {step:,} ({value:.4g}), which --load-best-model-at-end keeps"
    else:
        return checks
    return [*checks, Check(KEPT, "steps", "info", kept, evidence)]


def _patience_ended(trainer: FtcliTrainer) -> bool:
    now = next((one for one in trainer.callback_handler.callbacks if isinstance(one, EarlyStoppingCallback)), None)
    if now is None:
        return False
    return now.early_stopping_patience_counter >= now.early_stopping_patience or out_of_patience(trainer, trainer.state)
