"""The ranks of `ftcli train --nproc-per-node`: started, watched and judged from here; each of them runs `commands.train`."""

from __future__ import annotations

from pathlib import Path

from ftcli.context import Context
from ftcli.core.distributed.agent import Agent
from ftcli.core.distributed.launch import Ended, Plan
from ftcli.core.distributed.pulse import STACKS


def run(context: Context, plan: Plan, words: tuple[str, ...]) -> Ended:
    """Run `ftcli` with these words in every rank of the plan, and wait for the end."""
    settings = context.settings
    context.note(
        f"{plan.ranks} ranks here, {plan.nodes} machine{'s' if plan.nodes > 1 else ''}: {plan.backend} rendezvous at {plan.endpoint}"
        + (f", over {plan.interface}" if plan.interface else "")
    )
    return Agent(plan, words, settings.launch.rank_timeout, (settings.train.output_dir or Path()) / STACKS, context.note).run()
