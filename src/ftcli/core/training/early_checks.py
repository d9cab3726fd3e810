"""What can be refused before the data are prepared, which may take hours: settings, libraries and files that need no row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ftcli.context import Context, Quiet
from ftcli.contracts import Task
from ftcli.core.distributed import group
from ftcli.core.models.adapter import check_choice
from ftcli.core.models.config import planned
from ftcli.core.models.held_out import figures_of
from ftcli.core.models.model import check_given, check_kind, check_vocabulary, refuse_pointers
from ftcli.core.training import checkpoints, gate
from ftcli.core.training.arguments import check_metric, make_arguments, trackers
from ftcli.core.training.refused import refuse_settings


def refuse(context: Context, output: Path) -> None:
    """Refuse a run that could not start on any data. What it notes is noted when the run is prepared.

    Args:
        output: the run's folder.

    Raises:
        UsageError, SettingsError, MissingExtraError, ModelError, TokenizerError, TrainError: as `ftcli.core.training.run.prepare` would, later.
    """
    quiet = replace(context, notes=[], progress=Quiet())
    settings = context.settings
    train = settings.train
    gate.check_output(output, resume=train.resume_from_checkpoint is not None, overwrite=settings.runtime.overwrite)
    trackers(settings.tracking.report_to)
    refuse_settings(settings)
    if group.world() == 1:  # of several, TrainingArguments would join the group, and the preparation would outlast its timeout
        make_arguments(quiet, held_out=True)
    task: Task | None = None if train.mode is None else context.plugins.registry("task").get(train.mode, "train.mode")()
    if train.mode is None or context.plugins.outsider("task", train.mode) is None:
        check_metric(train.metric_for_best_model, figures_of(task))
    if settings.loader.collator is not None:
        context.plugins.registry("collator").get(settings.loader.collator, "loader.collator")
    if train.resume_from_checkpoint not in {None, "auto"}:
        checkpoints.choose(str(train.resume_from_checkpoint), output, quiet.note, full=False)
    check_given(settings)
    if settings.model.name_or_path is not None:
        refuse_pointers(settings.model.name_or_path)
    check_choice(settings, task)
    config = planned(settings)
    check_kind(config, task)
    check_vocabulary(config, context.plugins.load_tokenizer(settings))
