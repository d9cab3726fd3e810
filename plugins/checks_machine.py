"""Checks of the machine: cores, memory, disk, GPUs and the variables that hurt."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.probe import Probe

GIB = 2**30
NO_EFFECT = {
    "MKL_SERVICE_FORCE_INTEL": "no torch library reads it",
    "MKL_THREADING_LAYER": "it is for libmkl_rt, which torch does not use",
}


def cores(probe: Probe) -> Check:
    from ftcli.core.verdict import noted, passed

    machine = probe.machine
    how = machine.how.get("cores", "count")
    evidence = {
        "cores": machine.cores,
        "found_by": how,
        "cpu": machine.cpu_model,
        "flags": list(machine.cpu_flags),
        "load": machine.load_average,
    }
    if machine.load_average is not None and machine.load_average > machine.cores + 0.5:
        return noted(
            f"{machine.cores} cores by {how}, but {machine.load_average:.1f} processes want them now: timings will not be sound", **evidence
        )
    return passed(f"{machine.cores} cores by {how}", **evidence)


def memory(probe: Probe) -> Check:
    from ftcli.core.verdict import passed, warned

    machine = probe.machine
    free, limit = machine.memory_available_bytes / GIB, machine.memory_bytes / GIB
    mode = "memory" if free > 50 else "balanced" if free >= 20 else "disk"
    evidence = {"free_gb": round(free, 1), "limit_gb": round(limit, 1), "found_by": machine.how.get("memory_bytes"), "memory_mode": mode}
    if free < 2:
        return warned(f"only {free:.1f} GB of memory are free", "Stop other programs, or use --profile lowmem.", **evidence)
    return passed(f"{free:.0f} of {limit:.0f} GB of memory free: memory mode {mode}", **evidence)


def disk(probe: Probe) -> Check:
    from ftcli.core.verdict import failed, noted, passed, warned

    machine = probe.machine
    free = machine.disk_free_bytes / GIB
    evidence = {"kind": machine.disk_kind, "found_by": machine.how.get("disk_kind"), "free_gb": round(free, 1)}
    if free < 1:
        return failed(f"{free:.2f} GB of disk are free", "Free space, or work in a directory on another disk.", **evidence)
    if machine.disk_kind in {"hdd", "network"}:
        return warned(
            f"the working directory is on a {machine.disk_kind} disk: reading many files there is slow",
            "Keep prepared data on a local SSD.",
            **evidence,
        )
    if machine.disk_kind == "unknown":
        return noted(f"the kind of disk cannot be told ({evidence['found_by']}); {free:.0f} GB free", **evidence)
    return passed(f"{machine.disk_kind}, {free:.0f} GB free", **evidence)


def variables(probe: Probe) -> Check:
    from ftcli.core.verdict import noted, passed, warned

    environ = os.environ
    seen = {
        name: environ[name]
        for name in ("CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM")
        if name in environ
    }
    seen |= {name: environ[name] for name in NO_EFFECT if name in environ}
    problems, fixes = list(probe.context.resolved.warnings), ["Correct the misspelt variables."] if probe.context.resolved.warnings else []
    if environ.get("CUDA_LAUNCH_BLOCKING", "0") not in {"", "0"}:
        problems.append("CUDA_LAUNCH_BLOCKING serialises every kernel launch: it is for debugging, and slow")
        fixes.append("Run: unset CUDA_LAUNCH_BLOCKING.")
    on_cpu = not probe.machine.gpus or bool(probe.settings.train.use_cpu)
    ranks = environ.get("LOCAL_WORLD_SIZE", "1")  # set by torchrun and accelerate launch: the ranks share the cores
    cores = probe.machine.cores // max(1, int(ranks) if ranks.isdecimal() else 1)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if on_cpu and environ.get(name) == "1" and cores > 1 and probe.settings.runtime.threads != 1:
            problems.append(f"{name}=1 leaves {cores - 1} of {cores} cores idle while training on the CPU")
            fixes.append(f"Run: unset {name}.")
    if problems:
        return warned("; ".join(problems), " ".join(fixes), **seen)
    idle = {name: reason for name, reason in NO_EFFECT.items() if name in environ}
    if idle:
        return noted("; ".join(f"{name} has no effect: {reason}" for name, reason in idle.items()), **seen)
    return passed("no variable that hurts", **seen)


def gpu(probe: Probe) -> Check:
    from ftcli.core.verdict import noted, passed

    gpus = probe.machine.gpus
    if not gpus:
        return noted(f"no GPU ({probe.machine.how.get('gpus')}): training runs on the CPU")
    names = ", ".join(f"{device.name} ({device.memory_bytes / GIB:.0f} GB, capability {device.capability})" for device in gpus)
    return passed(names, count=len(gpus))


CHECKS = (
    CheckKind("FT001", "env", "Cores", cores, severity="info"),
    CheckKind("FT002", "env", "Memory", memory, severity="warn"),
    CheckKind("FT003", "env", "Disk", disk),
    CheckKind("FT004", "env", "Variables", variables, severity="warn"),
    CheckKind("FT005", "env", "GPU", gpu, severity="info"),
)
