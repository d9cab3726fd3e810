"""A checkpoint that is the end of its run: nothing is left to train, and the model is what the run ended with."""

from __future__ import annotations

from pathlib import Path

from transformers import EarlyStoppingCallback, TrainerState

from ftcli.core.distributed.agree import first_decides
from ftcli.core.training import best
from ftcli.core.training.trainer import WITHOUT_BEST, FtcliTrainer
from ftcli.errors import TrainError


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
        words = f"{checkpoint} is at step {steps}, but {wanted} are asked for; steps are never undone"
    elif steps < wanted:
        words += ", where --patience ended the run; raise or remove it to continue"
    trainer.state = state
    # a state that was read takes itself for that of the first process, and each would write the figures
    state.is_world_process_zero, state.is_local_process_zero = trainer.is_world_process_zero(), trainer.is_local_process_zero()
    if trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None:
        found, problem = first_decides(lambda: best.find(state, checkpoint, trainer.identity, full=True))
        if found is None:
            raise TrainError(f"the best checkpoint {problem}", WITHOUT_BEST)
        state.best_model_checkpoint, checkpoint = str(found), found
        words += f"; the model is that of the best checkpoint, {checkpoint}"
    elif trainer.args.load_best_model_at_end:
        words += "; no best checkpoint is recorded, so the model is the one of that checkpoint"
    note(f"nothing left to train: {words}")
    trainer._load_from_checkpoint(str(checkpoint))


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
