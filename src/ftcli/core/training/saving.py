"""What `Trainer` saves, as a checkpoint that appears whole; only the first rank (or the first of each node) writes."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import Trainer
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import SaveStrategy

from ftcli.core.distributed.agree import anyone, first_decides, gathered, several
from ftcli.core.publishing import staging
from ftcli.core.training import checkpoints, hub_upload
from ftcli.errors import PublishError

REFUSALS = (OSError, RuntimeError, SafetensorError, PublishError)
"""What writing raises where the file system refuses: torch says RuntimeError, safetensors its own."""


ELSEWHERE = "another process of the run could not write it, and reports why"


def save_checkpoint(trainer: Trainer, identity: Mapping[str, Any], kept: Mapping[str, Any], note: Callable[[str], None]) -> None:
    """Write, seal and publish a checkpoint of this step, then remove those beyond `save_total_limit`. Every rank must call it.

    Args:
        identity: what a run must have in common with this one to go on from it.
        kept: what such a run must know beside what `Trainer` saves.

    Raises:
        TrainError: it cannot be written; all earlier checkpoints are as they were.
        PublishError: another run has the folder by now.
    """
    _hold(trainer)
    args, state = trainer.args, trainer.state
    run = Path(args.output_dir)
    final = run / f"checkpoint-{state.global_step}"
    trainer.store_flos()
    _note_best(trainer, run, final)
    failure: BaseException | None = None
    if args.should_save:
        try:
            staging.sweep(run)
            staging.begin(final)
        except REFUSALS as error:
            failure = error
    _agree(trainer, failure, final)
    staged = staging.aside(final)
    own: dict[str, bytes] = {}
    try:
        if several() and not args.save_only_model:
            own = _random_states(trainer, staged)
    except REFUSALS as error:
        failure = error
    random = {name: content for files in gathered(own) for name, content in files.items()}
    _agree(trainer, failure, final)
    try:
        trainer.save_model(str(staged), _internal_call=True)
        if not args.save_only_model:
            trainer._save_optimizer_and_scheduler(str(staged))
            trainer._save_scaler(str(staged))
            if not several():
                trainer._save_rng_state(str(staged))
        if args.should_save:
            for name, content in random.items():
                (staged / name).write_bytes(content)
            _keep_callbacks(trainer)
            state.save_to_json(str(staged / "trainer_state.json"))
    except REFUSALS as error:
        failure = error
    _agree(trainer, failure, final)  # sharded states are whole when every rank has written
    if args.should_save:
        try:
            checkpoints.seal(staged, identity, kept)
            staging.appear(staged, final)
        except REFUSALS as error:
            failure = error
    _agree(trainer, failure, final)
    read = hub_upload.pending(trainer)  # an older one, which is not to be removed under an upload
    if args.push_to_hub:
        hub_upload.push_checkpoint(trainer, final, note)
    if args.should_save and not read:
        checkpoints.rotate(run, args.save_total_limit, state.best_model_checkpoint, note)


def save_model(trainer: Trainer, document: Mapping[str, Any], note: Callable[[str], None]) -> None:
    """Write, seal and publish the final model in the output directory. Every rank must call it.

    Raises:
        TrainError: it cannot be written.
        PublishError: another run has the folder by now.
    """
    _hold(trainer)
    args = trainer.args
    output = Path(args.output_dir)
    staged = staging.aside(output / "model")
    failure: BaseException | None = None
    try:
        if args.should_save:
            staging.begin(output / "model")
        if trainer.is_fsdp_enabled:  # of sharded states transformers writes no model
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        trainer.save_model(str(staged), _internal_call=True)
        if args.should_save:
            staging.publish_model(staged, output, document)
    except REFUSALS as error:
        failure = error
    if anyone(failure is not None, args.device):
        hint = _how_to_go_on(failure, output)
        raise staging.refused("model in", output, staged, failure or RuntimeError(ELSEWHERE), hint) from failure
    if args.push_to_hub:
        hub_upload.finish(trainer, note)
        if args.should_save:
            checkpoints.rotate(output, args.save_total_limit, trainer.state.best_model_checkpoint, note)


def _hold(trainer: Trainer) -> None:
    """Raises `PublishError` on every rank where another run has the folder by now."""
    if (claim := getattr(trainer, "claim", None)) is not None:
        first_decides(claim.renew)


def _agree(trainer: Trainer, failure: BaseException | None, final: Path) -> None:
    """Raise on every rank when one could not write."""
    if anyone(failure is not None, trainer.args.device):
        hint = _how_to_go_on(failure, final.parent)
        raise staging.refused("checkpoint", final, staging.aside(final), failure or RuntimeError(ELSEWHERE), hint) from failure


def _how_to_go_on(failure: BaseException | None, run: Path) -> str:
    saved = any(run.glob("checkpoint-*"))
    before = "continues from the previous checkpoint" if saved else "starts anew: there is no checkpoint yet"
    return f"{_what_to_do(failure)}; then --resume-from-checkpoint auto {before}."


def _what_to_do(failure: BaseException | None) -> str:
    if "DataLoader worker" in str(failure):
        return "Find out what ended the DataLoader worker"
    too_large = os.strerror(errno.EFBIG) in str(failure)  # safetensors gives the words alone
    return "Raise the limit on the size of a file (ulimit -f)" if too_large else "Free space there"


def _random_states(trainer: Trainer, staged: Path) -> dict[str, bytes]:
    """Files of this rank's random states, so that one rank can write those of all.

    `Trainer` writes them into a folder: among the temporary files, which every machine has, or beside the checkpoint where those are refused.
    """
    try:
        return _written(trainer, staged.name, None)
    except REFUSALS:
        return _written(trainer, staged.name, staged.parent)


def _written(trainer: Trainer, name: str, where: Path | None) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=where) as folder:
        trainer._save_rng_state(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _note_best(trainer: Trainer, run: Path, final: Path) -> None:
    args, state = trainer.args, trainer.state
    if args.save_strategy in {SaveStrategy.STEPS, SaveStrategy.EPOCH, SaveStrategy.BEST} and state.best_global_step:
        best = run / f"checkpoint-{state.best_global_step}"
        if best == final or best.is_dir():
            state.best_model_checkpoint = str(best)


def _keep_callbacks(trainer: Trainer) -> None:
    """The callbacks' own states (early stopping), in the place where `Trainer` keeps them."""
    states: dict[str, list[Any]] = {}
    for callback in (*trainer.callback_handler.callbacks, trainer.control):
        if isinstance(callback, ExportableState):
            states.setdefault(type(callback).__name__, []).append(callback.state())
    trainer.state.stateful_callbacks |= {name: found[0] if len(found) == 1 else found for name, found in states.items()}
