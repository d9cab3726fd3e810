"""The best checkpoint of a run that goes on: its state names a folder as it was then, where by now there may be none, or another run's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerState

from ftcli.core.training import checkpoints


def step_of_state(checkpoint: Path) -> int:
    """The step that a checkpoint is of, whatever its folder is called."""
    return int(TrainerState.load_from_json(str(checkpoint / "trainer_state.json")).global_step)


def find(state: TrainerState, checkpoint: Path, identity: Mapping[str, Any], *, full: bool = False) -> tuple[Path | None, str]:
    """The checkpoint of the best evaluation, and why there is none.

    Args:
        state: as `checkpoint`, which the run goes on from, holds it.
        identity: of the run; see `checkpoints.identity`.
        full: compare every byte, as whoever loads it should.
    """
    step, said = state.best_global_step, ""
    told = [Path(state.best_model_checkpoint)] if state.best_model_checkpoint else []
    own = [checkpoint] if step == state.global_step else []
    for folder in dict.fromkeys([*own, checkpoint.parent / f"checkpoint-{step}", *told]):
        problem = _problem(folder, step, identity, full)
        if not problem:
            return folder, ""
        said = said if said and not folder.is_dir() else f"{folder} {problem}"
    return None, said


def _problem(folder: Path, step: int, identity: Mapping[str, Any], full: bool) -> str:
    if not folder.is_dir():
        return "is not there"
    if damage := checkpoints.damage(folder, full=full, weights=True):
        return f"cannot be used: {damage}"
    if (found := step_of_state(folder)) != step:
        return f"is of step {found}"
    others = checkpoints.differences(folder, identity).keys() - {*checkpoints.HARMLESS}
    return f"belongs to another run, which differs in {', '.join(sorted(others))}" if others else ""
