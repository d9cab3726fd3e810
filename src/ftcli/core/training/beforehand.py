"""What can be refused before the data are prepared, which may take hours: settings, libraries and files that need no row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ftcli.context import Context, Quiet
from ftcli.contracts import Task
from ftcli.core.distributed import group
from ftcli.core.models.adapter import check_choice
from ftcli.core.models.adapter_base import base_of
from ftcli.core.models.config import planned
from ftcli.core.models.model import check_given, check_kind, check_vocabulary, refuse_pointers
from ftcli.core.training import checkpoints, gate
from ftcli.core.training.arguments import make_arguments, trackers


def refuse(context: Context) -> None:
    """Refuse a run that could not start on any data. What it notes is noted when the run is prepared.

    Raises:
        UsageError, SettingsError, MissingExtraError, ModelError, TokenizerError, TrainError: as `ftcli.core.training.run.prepare` would, later.
    """
    quiet = replace(context, notes=[], progress=Quiet())
    settings = context.settings
    train, model = settings.train, settings.model
    if train.output_dir is not None:
        gate.check_output(train.output_dir, resume=train.resume_from_checkpoint is not None, overwrite=settings.runtime.overwrite)
    trackers(settings.tracking.report_to)
    if group.world() == 1:  # of several, TrainingArguments would join the group, and the preparation would outlast its timeout
        make_arguments(quiet, held_out=True)
    task: Task | None = None if train.mode is None else context.plugins.registry("task").get(train.mode, "train.mode")()
    if settings.loader.collator is not None:
        context.plugins.registry("collator").get(settings.loader.collator, "loader.collator")
    if train.resume_from_checkpoint not in {None, "auto"}:
        checkpoints.choose(str(train.resume_from_checkpoint), Path(str(train.output_dir)), quiet.note, full=False)
    check_given(settings)
    check_choice(settings, task)
    config = planned(settings)
    check_kind(config, "train" if task is None else f"mode {task.name}")
    check_vocabulary(config, context.plugins.hook.load_tokenizer(settings=settings))
    if model.name_or_path is not None:
        for folder in dict.fromkeys((model.name_or_path, base_of(model.name_or_path))):
            refuse_pointers(folder)
