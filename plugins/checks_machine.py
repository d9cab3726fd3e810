"""Checks of the machine: cores, memory, disk and GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

GIB = 2**30


def cores(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import noted, passed

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
            f"{machine.cores} cores by {how}, but {machine.load_average:.1f} processes compete for them now: timings will be unreliable",
            **evidence,
        )
    return passed(f"{machine.cores} cores by {how}", **evidence)


def memory(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import passed, warned

    machine = probe.machine
    free, limit = machine.memory_available_bytes / GIB, machine.memory_bytes / GIB
    mode = "memory" if free > 50 else "balanced" if free >= 20 else "disk"
    evidence = {"free_gb": round(free, 1), "limit_gb": round(limit, 1), "found_by": machine.how.get("memory_bytes"), "memory_mode": mode}
    if free < 2:
        return warned(f"only {free:.1f} GB of memory are free", "Stop other programs, or use --profile lowmem.", **evidence)
    return passed(f"{free:.0f} of {limit:.0f} GB of memory free: memory mode {mode}", **evidence)


def disk(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import failed, noted, passed, warned

    machine = probe.machine
    free = machine.disk_free_bytes / GIB
    evidence = {"kind": machine.disk_kind, "found_by": machine.how.get("disk_kind"), "free_gb": round(free, 1)}
    if free < 1:
        return failed(f"{free:.2f} GB of disk are free", "Free space, or work in a directory on another disk.", **evidence)
    if machine.disk_kind in {"hdd", "network"}:
        return warned(
            f"the working directory is on a {machine.disk_kind} disk: reading many files from it is slow",
            "Keep prepared data on a local SSD.",
            **evidence,
        )
    if machine.disk_kind == "unknown":
        return noted(f"the kind of disk is unknown ({evidence['found_by']}); {free:.0f} GB free", **evidence)
    return passed(f"{machine.disk_kind}, {free:.0f} GB free", **evidence)


def gpu(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import noted, passed
    from ftcli.machine import gpu_driver, gpu_words

    gpus = probe.machine.gpus
    if not gpus:
        return noted(f"no GPU ({probe.machine.how.get('gpus')}): training runs on the CPU")
    names = "; ".join(map(gpu_words, gpus))
    driver = gpu_driver()
    mixed = len({(device.name, device.memory_bytes) for device in gpus}) > 1
    evidence = {
        "count": len(gpus),
        "driver": driver,
        "memory_gb": [round(device.memory_bytes / GIB, 1) or None for device in gpus],
        "capability": [device.capability for device in gpus],
    }
    words = f"{names}, driver {driver}" if driver else names
    if mixed:
        return noted(f"{words}: the GPUs differ, so every step waits for the slowest", **evidence)
    return passed(words, **evidence)


CHECKS = (
    CheckKind("FT001", "env", "Cores", cores, severity="info"),
    CheckKind("FT002", "env", "Memory", memory, severity="warn"),
    CheckKind("FT003", "env", "Disk", disk),
    CheckKind("FT005", "env", "GPU", gpu, severity="info"),
)
