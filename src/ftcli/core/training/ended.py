"""A checkpoint that is the end of its run: nothing is left to train, and the model is what the run ended with."""

from __future__ import annotations

from pathlib import Path

from transformers import EarlyStoppingCallback, TrainerState

from ftcli.core.distributed.agree import first_decides
from ftcli.core.training.trainer import FtcliTrainer


def state_of_end(trainer: FtcliTrainer, checkpoint: Path) -> TrainerState | None:
    """The state that the run ended in; None: steps are left, of which transformers would make one even where there is none."""
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    return state if state.global_step >= length(trainer) or out_of_patience(trainer, state) else None


def take_end(trainer: FtcliTrainer, checkpoint: Path, state: TrainerState) -> None:
    """Load what the run ended with, the best model where that is wanted and known. What there is not to do is noted.

    Raises:
        TrainError: the best checkpoint cannot be used.
    """
    steps, wanted, note = state.global_step, length(trainer), trainer.watch.note
    words = f"step {steps} of {wanted}"
    if steps > wanted:
        words = f"{checkpoint} is of step {steps}, and {wanted} are wanted now; no step is taken back"
    elif steps < wanted:
        words += ", where --patience ended the run; a larger one, or none, goes on"
    trainer.state = state
    # a state that was read takes itself for that of the first process, and each would write the figures
    state.is_world_process_zero, state.is_local_process_zero = trainer.is_world_process_zero(), trainer.is_local_process_zero()
    if trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None:
        # beside this one, wherever the run's folder is now: the state names it as it was then
        beside = checkpoint.parent / Path(state.best_model_checkpoint).name
        if first_decides(beside.is_dir):
            state.best_model_checkpoint = str(beside)
        checkpoint = trainer.best_checkpoint()
        words += f"; the model is that of the best checkpoint, {checkpoint}"
    elif trainer.args.load_best_model_at_end:
        words += "; it knows no best checkpoint, so that the model is its own"
    note(f"nothing left to train: {words}")
    trainer._load_from_checkpoint(str(checkpoint))


def step_of_state(checkpoint: Path) -> int:
    """The step that a checkpoint is of, whatever its folder is called."""
    return int(TrainerState.load_from_json(str(checkpoint / "trainer_state.json")).global_step)


def length(trainer: FtcliTrainer) -> int:
    """Optimizer steps of the whole run."""
    *_, total = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
    return int(total)


def out_of_patience(trainer: FtcliTrainer, state: TrainerState) -> bool:
    """Whether patience ended the run whose checkpoint has this state."""
    kept = state.stateful_callbacks.get(EarlyStoppingCallback.__name__)
    now = next((one for one in trainer.callback_handler.callbacks if isinstance(one, EarlyStoppingCallback)), None)
    if now is None or not isinstance(kept, dict):
        return False
    return bool(kept["attributes"]["early_stopping_patience_counter"] >= now.early_stopping_patience)
