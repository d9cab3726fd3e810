"""The `launch` section: how many processes train together, and how they find each other. Names are those of torchrun."""

from __future__ import annotations

from typing import Literal

from ftcli.fields import Section, setting


class LaunchSettings(Section):
    """Several processes for one run: `ftcli train` starts them itself, as torchrun would."""

    nproc_per_node: int | Literal["auto"] | None = setting(
        None, "Processes on this machine, one a GPU; auto: as many as there are GPUs. Unset: this process alone."
    )
    nnodes: int = setting(1, "Machines that take part; start the same command on each.", ge=1)
    node_rank: int | None = setting(None, "Number of this machine, from 0; unset: the machines number themselves.", ge=0)
    rdzv_endpoint: str | None = setting(None, "HOST:PORT of one machine, where all find each other; one machine alone needs none.")
    rdzv_id: str | None = setting(None, "Name of the job, the same on all its machines.")
    rank_timeout: float = setting(
        600.0,
        "Seconds after which a process that makes no progress ends the run; longer than your longest save, compilation or evaluation step.",
        ge=2,
    )
