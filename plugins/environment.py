"""The built-in environment variables: only what was measured to help, each with its reason.

Not set, though often recommended (docs/decisions/0011-environment-variables.md has the measurements):
MKL_NUM_THREADS, because MKL follows OMP_NUM_THREADS and would override one that the user set; OMP_WAIT_POLICY=passive, because
a short spin does the same for a loaded machine and costs an idle one nothing; TOKENIZERS_PARALLELISM, because unset is the one
value under which a tokenizer is parallel, and safe after a fork; CUDA_LAUNCH_BLOCKING and MKL_SERVICE_FORCE_INTEL, which slow
down or do nothing.
"""

from __future__ import annotations

import os

from ftcli import hookimpl
from ftcli.core import hub
from ftcli.core.models.adapter_base import base_of
from ftcli.records import Machine, Tweak
from ftcli.settings import Settings

SPIN_REASON = "threads that wait by spinning long make a loaded machine 10 times slower"
MALLOC_REASON = "memory of activations is kept from step to step: 1.2 to 1.5 times faster on a CPU"
KEEP_UP_TO = str(2**30)
"""Blocks up to 1 GiB come from the heap."""
TRIM_ABOVE = str(2**31 - 1)
"""The most that mallopt takes."""
KEEP_HEAPS = str(2**27)
"""More than a heap of a thread: none of them is given back while it is empty."""


@hookimpl
def environment(settings: Settings, machine: Machine) -> dict[str, Tweak]:
    threads, reason = _threads(settings, machine)
    wanted = {
        "OMP_NUM_THREADS": Tweak(str(threads), reason),
        "RAYON_NUM_THREADS": Tweak(str(threads), reason),
        "GOMP_SPINCOUNT": Tweak("1000", SPIN_REASON),
    }
    if _glibc() and not machine.gpus:
        wanted["MALLOC_MMAP_THRESHOLD_"] = Tweak(KEEP_UP_TO, MALLOC_REASON)
        wanted["MALLOC_TRIM_THRESHOLD_"] = Tweak(TRIM_ABOVE, MALLOC_REASON)
        wanted["MALLOC_TOP_PAD_"] = Tweak(KEEP_HEAPS, MALLOC_REASON)
    if hub.named(_places(settings)) and (host := hub.unknown_host()):
        wanted[hub.VARIABLE] = Tweak("1", f"{host} cannot be resolved here: the cache is used immediately")
    return wanted


def _places(settings: Settings) -> list[str | None]:
    model = settings.model.name_or_path
    return [settings.tokenizer.path, model and base_of(model), *(settings.dataset.sources or ())]


def _threads(settings: Settings, machine: Machine) -> tuple[int, str]:
    """Threads of one process, so that threads × ranks on this machine are no more than the cores."""
    if settings.runtime.threads is not None:
        return settings.runtime.threads, f"{settings.runtime.threads} by runtime.threads"
    cores = f"{machine.cores} cores by {machine.how.get('cores', 'count')}"
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")  # set by torchrun and accelerate launch
    if ranks.isdecimal() and int(ranks) > 1:
        return max(1, machine.cores // int(ranks)), f"{cores}, shared by {ranks} ranks"
    return machine.cores, cores


def _glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):
        return False
