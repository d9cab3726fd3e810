"""The `launch` section: how many processes train together, and how they find each other. Names are those of torchrun."""

from __future__ import annotations

from typing import Literal

from ftcli.fields import Section, setting


class LaunchSettings(Section):
    """Several processes for one run: `ftcli train` starts them itself, as torchrun would."""

    nproc_per_node: int | Literal["auto"] | None = setting(
        None, "Processes on this machine, one per GPU; auto: as many as there are GPUs. Unset: this process alone."
    )
    nnodes: int = setting(1, "Number of machines; start the same command on each.", ge=1)
    node_rank: int | None = setting(None, "Rank of this machine, from 0; unset: assigned automatically.", ge=0)
    rdzv_endpoint: str | None = setting(None, "HOST:PORT of one of the machines, where all meet; not needed for a single machine.")
    rdzv_id: str | None = setting(None, "Name of the job, the same on all its machines.")
    rank_timeout: float = setting(
        600.0,
        "Seconds without progress after which a process ends the run; set it longer than your longest save, compilation or evaluation step.",
        ge=2,
    )
