"""One log line a step (level DEBUG) and one a command (INFO); FTCLI_LOG chooses the level that is shown."""

from __future__ import annotations

import dataclasses

from ftcli import hookimpl
from ftcli.records import Report, Step


@hookimpl
def on_step(step: Step) -> None:
    """The figures are in the text for people, and in loguru's `extra` for sinks that serialise."""
    from loguru import logger

    figures = {name: value for name, value in dataclasses.asdict(step).items() if value is not None}
    logger.bind(**figures).debug(" ".join(f"{name} {value:.6g}" for name, value in figures.items()))


@hookimpl
def after_run(command: str, report: Report) -> None:
    from loguru import logger

    loss = report.metrics.get("final_loss")
    line = f"{command} {report.status} after {report.seconds:.2f} s"
    if loss is not None:
        line += f", last loss {loss:.4f}"
    if report.error:
        line += f": {report.error['message']}"
    logger.bind(command=command, status=report.status, seconds=report.seconds, final_loss=loss).info("{}", line)
