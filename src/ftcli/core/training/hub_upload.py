"""What the Hub gets: a sealed checkpoint's model, and at the end the sealed model with its card. Nothing else of the run's folder, where the prepared
data may stand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import HubStrategy, SaveStrategy
from transformers.utils import PushInProgress

from ftcli.core.publishing.staging import MODEL_MANIFEST, listed
from ftcli.errors import TrainError

STATES = (
    "optimizer*",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*",
    "trainer_state.json",
    "training_args.bin",
    "global_step*",
    "latest",
    "pytorch_model_fsdp*",
    "zero_to_fp32.py",
)
"""What a checkpoint holds beside the model, under FSDP and DeepSpeed, too."""
SEALS = ("ftcli-*",)
WAYS = "Check HF_TOKEN, train.hub_model_id and the network"


def repository(arguments: TrainingArguments) -> str:
    """The repository, made where there is none.

    Raises:
        TrainError: the Hub does not give it.
    """
    name = arguments.hub_model_id or Path(arguments.output_dir).absolute().name
    try:
        return str(_api().create_repo(name, token=arguments.hub_token, private=arguments.hub_private_repo, exist_ok=True).repo_id)
    except Exception as error:  # the library and its network stack raise dozens of kinds
        raise TrainError(
            f"train.push_to_hub: the repository {name} on the Hub is not accessible: {_said(error)}",
            f"{WAYS}, or remove it and upload the finished model with hf upload.",
        ) from error


def push_checkpoint(trainer: Trainer, folder: Path, note: Callable[[str], None]) -> None:
    """Begin to upload the model of a checkpoint that appeared, by `train.hub_strategy`; the run goes on meanwhile."""
    args = trainer.args
    if not trainer.is_world_process_zero() or args.hub_strategy == HubStrategy.END:
        return
    if pending(trainer) and not args.hub_always_push:
        return
    told(trainer, note)
    step = f"step {trainer.state.global_step}" if args.save_strategy == SaveStrategy.STEPS else f"epoch {int(trainer.state.epoch or 0)}"
    common: dict[str, Any] = {
        "repo_id": trainer.hub_model_id,
        "folder_path": folder,
        "token": args.hub_token,
        "revision": args.hub_revision,
    }
    common["run_as_future"] = True
    jobs = [_api().upload_folder(commit_message=f"Training in progress, {step}", ignore_patterns=[*STATES, *SEALS], **common)]
    if args.hub_strategy in {HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS}:
        place = "last-checkpoint" if args.hub_strategy == HubStrategy.CHECKPOINT else folder.name
        jobs.append(_api().upload_folder(commit_message=f"Training in progress, {step}, checkpoint", path_in_repo=place, **common))
    if trainer.push_in_progress is None or trainer.push_in_progress.is_done():
        trainer.push_in_progress = PushInProgress(jobs)
    else:
        trainer.push_in_progress.jobs.extend(jobs)


def pending(trainer: Trainer) -> bool:
    """Whether a checkpoint is still being read by an upload."""
    under_way = getattr(trainer, "push_in_progress", None)
    return under_way is not None and not under_way.is_done()


def finish(trainer: Trainer, note: Callable[[str], None]) -> None:
    """Wait for the uploads of checkpoints."""
    if trainer.is_world_process_zero():
        trainer._finish_current_push()
        told(trainer, note)


def told(trainer: Trainer, note: Callable[[str], None]) -> None:
    """Note the uploads that failed: the run goes on without them."""
    under_way = getattr(trainer, "push_in_progress", None)
    for job in under_way.jobs if under_way is not None else ():
        if job.done() and (error := job.exception()) is not None:
            note(f"a checkpoint was not uploaded: {_said(error)}")
    if under_way is not None and under_way.is_done():
        trainer.push_in_progress = None


def push_model(arguments: TrainingArguments, note: Callable[[str], None]) -> None:
    """Upload the sealed model and its card. Where that fails the model is here all the same."""
    from ftcli.core.training.card import CARD

    output = Path(arguments.output_dir)
    try:
        _api().upload_folder(
            repo_id=repository(arguments),
            folder_path=output,
            commit_message="Model save",
            allow_patterns=[*listed(output), MODEL_MANIFEST, CARD],
            token=arguments.hub_token,
            revision=arguments.hub_revision,
        )
    except TrainError as error:
        note(f"{error.message}. The model is in {output} but was not uploaded")
    except Exception as error:  # noqa: BLE001 - as above, and the model is there
        note(f"the model is in {output} but was not uploaded: {_said(error)}. {WAYS}; upload it with hf upload")


@cache
def _api() -> Any:
    """One, whose uploads follow each other."""
    from huggingface_hub import HfApi

    return HfApi(library_name="ftcli")


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
