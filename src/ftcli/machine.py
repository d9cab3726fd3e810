"""What this process may use: cores by affinity and cgroup, memory by cgroup, disk kind, GPUs; each with how it was found."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil

from ftcli.errors import UsageError
from ftcli.records import Choice, Gpu, Machine

ROOT = Path("/")
"""Where /proc and /sys are; tests point it at files of their own."""
NO_LIMIT = 2**62
"""Bytes from which a limit of cgroup v1 is none."""
CUDA, ROCM = ("CUDA_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
KFD = "sys/class/kfd/kfd/topology/nodes"
DiskKind = Literal["ssd", "hdd", "memory", "network", "unknown"]
LIBRARIES = (
    "ftcli", "torch", "transformers", "tokenizers", "datasets", "pyarrow", "numpy", "accelerate", "peft", "gigatoken", "fastokens", "splintr-rs",
)  # fmt: skip
"""Those whose version changes what is measured."""
FLAGS_THAT_DECIDE = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
NETWORK_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "beegfs",
    "gpfs",
    "ceph",
    "fuse.sshfs",
    "9p",
    "glusterfs",
}
MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}


def detect(path: Path | None = None) -> Machine:
    """Look at the machine. Cheap (no torch, no GPU context): nvidia-smi is asked for GPUs where it exists.

    Args:
        path: the folder whose disk is described; default: the current directory.
    """
    how: dict[str, str] = {}
    where = _existing(path if path is not None and path.is_absolute() else _working_directory() / (path or ""))
    memory, available = _memory(how)
    kind = disk_kind(where, how)
    return Machine(
        cores=_cores(how),
        memory_bytes=memory,
        memory_available_bytes=available,
        cpu_model=_cpu_field("model name") or platform.processor() or platform.machine(),
        cpu_flags=tuple(flag for flag in FLAGS_THAT_DECIDE if flag in (_cpu_field("flags") or "").split()),
        disk_kind=kind,
        disk_free_bytes=shutil.disk_usage(where).free,
        gpus=_gpus(how),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        how=how,
        versions=_versions() | ({"NVIDIA driver": driver} if (driver := gpu_driver()) else {}),
    )


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory is gone: it was deleted or moved", "Change to an existing directory: cd DIR") from None


def usable_cores() -> int:
    """Cores that this process may use: the fewest of the machine's, its affinity's and its cgroup's."""
    return _cores({})


def free_memory() -> int:
    """Bytes that can be had now: of the machine, or of the cgroup where that has fewer."""
    return _memory({})[1]


def cgroup_limits() -> tuple[float | None, int | None, int | None]:
    """What this process's cgroups allow, the narrowest of them: cores, bytes of memory, processes; None where they set no limit."""
    memory = [_read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes") for folder in _cgroup_folders("memory")]
    processes = [_read(folder / "pids.max") for folder in _cgroup_folders("pids")]
    least, most = (min((int(text) for text in found if text and text.isdecimal()), default=None) for found in (memory, processes))
    return _cgroup_cores(), None if least is None or least >= NO_LIMIT else least, most


def shared_memory() -> int | None:
    """Bytes that are free in /dev/shm, through which DataLoader workers hand over their batches; None where there is none."""
    folder = ROOT / "dev/shm"
    return shutil.disk_usage(folder).free if folder.is_dir() else None


def gpu_driver() -> str | None:
    """Version of the NVIDIA driver, by the kernel's own word; None without one. Needs no nvidia-smi and no torch."""
    found = re.search(r"Kernel Module(?: for \S+)?\s+([0-9.]+)", _read(ROOT / "proc/driver/nvidia/version") or "")
    return found[1] if found else None


@cache
def _versions() -> dict[str, str]:
    """By what the installers wrote down: nothing is imported (10 ms)."""
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def cut_to_cores(asked: int | None, origin: str, machine: Machine) -> Choice:
    """Workers to use. A profile's count is a ceiling; a user's is kept (`verify` warns above the cores); unset means the cores.

    >>> cut_to_cores(48, "profile highend", machine).reason  # doctest: +SKIP
    '48 by profile highend, 2 used: 2 cores by affinity'
    """
    source = machine.how.get("cores", "count")
    if asked is None or origin == "default":
        return Choice(machine.cores, f"{machine.cores} cores by {source}")
    if not origin.startswith("profile "):
        return Choice(asked, f"{asked} by {origin}")
    if asked <= machine.cores:
        return Choice(asked, f"{asked} by {origin}")
    return Choice(machine.cores, f"{asked} by {origin}, {machine.cores} used: {machine.cores} cores by {source}")


def compute_threads(asked: int | None, cores: int) -> Choice:
    """Threads that one process of a training computes with: runtime.threads, else the user's OMP_NUM_THREADS, else the cores shared by the ranks here.

    torchrun sets OMP_NUM_THREADS=1 where the user did not, whatever the cores; its 1 is nobody's choice. ftcli's own launcher, which sets
    FTCLI_LAUNCH, does not.
    """
    if asked is not None:
        return Choice(asked, f"{asked} by runtime.threads")
    given, ranks = (
        os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip(),
        os.environ.get("LOCAL_WORLD_SIZE", "1"),
    )  # 4,2: nested levels
    if given.isdecimal() and int(given) and not (given == "1" and "TORCHELASTIC_RUN_ID" in os.environ and "FTCLI_LAUNCH" not in os.environ):
        return Choice(int(given), f"{given} by OMP_NUM_THREADS")
    share = max(1, cores // int(ranks)) if ranks.isdecimal() and int(ranks) else cores
    return Choice(share, f"{cores} cores shared by {ranks} ranks" if ranks != "1" else f"{cores} cores")


def disk_kind(path: Path, how: dict[str, str] | None = None) -> DiskKind:
    """Kind of the disk under `path`: the mount's file system, then the block device's `rotational` flag (Linux)."""
    how = {} if how is None else how
    mount = _mount_of(path)
    if mount is None:
        how["disk_kind"] = "no mount table on this system"
        return "unknown"
    device, file_system = mount
    if file_system in NETWORK_FILE_SYSTEMS:
        how["disk_kind"] = f"file system {file_system}"
        return "network"
    if file_system in MEMORY_FILE_SYSTEMS:
        how["disk_kind"] = f"file system {file_system}"
        return "memory"
    for candidate in _block_names(Path(device).name, path):
        flag = ROOT / "sys/class/block" / candidate / "queue" / "rotational"
        if flag.is_file():
            rotational = flag.read_text().strip() == "1"
            how["disk_kind"] = f"{flag} = {int(rotational)}"
            if rotational and candidate.startswith(("vd", "xvd")):  # virtual disks say 1 whatever lies below them
                how["disk_kind"] += " on a virtual disk, which says nothing"
                return "unknown"
            return "hdd" if rotational else "ssd"
    how["disk_kind"] = f"no rotational flag for {device} ({file_system})"
    return "unknown"


def _cores(how: dict[str, str]) -> int:
    counts: dict[str, int] = {"count": os.cpu_count() or 1}
    if hasattr(os, "sched_getaffinity"):
        counts["affinity"] = len(os.sched_getaffinity(0))
    quota = _cgroup_cores()
    if quota is not None:
        counts["cgroup"] = max(1, int(quota))
    fewest = min(counts.values())
    # On a tie the narrower mechanism is named last in the dictionary: cgroup, then affinity, then the plain count.
    how["cores"] = next(name for name in reversed(counts) if counts[name] == fewest)
    return fewest


def _cgroup_cores() -> float | None:
    """CPU quota of this process's cgroup (v2 `cpu.max` on the way up to the root, or v1 quota / period)."""
    quotas: list[float] = []
    for folder in _cgroup_folders("cpu"):
        text = _read(folder / "cpu.max")
        if text and text.split()[0] != "max":
            quota, period = text.split()
            quotas.append(int(quota) / int(period))
        v1_quota, v1_period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if v1_quota and v1_period and int(v1_quota) > 0:
            quotas.append(int(v1_quota) / int(v1_period))
    return min(quotas, default=None)


def _memory(how: dict[str, str]) -> tuple[int, int]:
    """(limit, free) in bytes: the machine's, or a cgroup's where it is smaller. Page cache that can be dropped counts as free."""
    physical = psutil.virtual_memory()
    limit, free, source = physical.total, physical.available, "physical"
    for folder in _cgroup_folders("memory"):
        text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if text and text != "max" and int(text) < physical.total:
            free = min(free, int(text) - int(used or 0) + _inactive_file(folder))
            limit, source = min(limit, int(text)), "cgroup"
    how["memory_bytes"] = source
    return limit, free


def _inactive_file(folder: Path) -> int:
    """Bytes of page cache that the kernel drops first; a cgroup counts them as used."""
    fields = dict(line.split(" ", 1) for line in (_read(folder / "memory.stat") or "").splitlines() if " " in line)
    return int(fields.get("total_inactive_file") or fields.get("inactive_file") or 0)


def _cgroup_folders(controller: str) -> list[Path]:
    """The cgroup of this process and its parents, v2 and v1, that exist here."""
    root = ROOT / "sys/fs/cgroup"
    folders = [root, root / controller]
    for line in (_read(ROOT / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        base = root if controllers == "" else root / controller
        if controllers == "" or controller in controllers.split(","):
            relative = Path(path.lstrip("/"))
            folders += [base / part for part in [relative, *relative.parents]]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def _gpus(how: dict[str, str]) -> tuple[Gpu, ...]:
    rows, variables = _listed(how)
    variable = next((name for name in variables if name in os.environ), None)
    if rows and variable is not None:
        how["gpus"] = f"{how['gpus']} and {variable}={os.environ[variable]}"
        rows = _visible(rows, os.environ[variable])
    # A GPU that shares the system's memory says [N/A].
    return tuple(Gpu(name, int(memory) * 2**20 if memory.isdecimal() else 0, capability or None) for _, _, name, memory, capability in rows)


def _listed(how: dict[str, str]) -> tuple[list[list[str]], tuple[str, ...]]:
    """Number, uuid, name, memory and capability of every GPU, as far as they are known; and the variables that may hide some."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return _by_driver(how, "no nvidia-smi")
    query = ["--query-gpu=index,uuid,name,memory.total,compute_cap,mig.mode.current", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run([program, *query], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return _by_driver(how, f"nvidia-smi failed: {error}")
    how["gpus"] = "nvidia-smi"
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.count(",") == 5]
    # Of a card that is cut into slices, CUDA shows one slice, and not the card's memory.
    return [[*row[:2], f"{row[2]} MIG", "", row[4]] if row[5] == "Enabled" else row[:5] for row in rows], CUDA


def gpu_words(gpu: Gpu) -> str:
    """
    >>> gpu_words(Gpu("NVIDIA H200", 143771 << 20, "9.0")), gpu_words(Gpu("AMD GPU", 0))
    ('NVIDIA H200, 140 GB, capability 9.0', 'AMD GPU')
    """
    memory = f"{gpu.memory_bytes / 2**30:.0f} GB" if gpu.memory_bytes else ""
    return ", ".join(filter(None, (gpu.name, memory, gpu.capability and f"capability {gpu.capability}")))


def _by_driver(how: dict[str, str], why: str) -> tuple[list[list[str]], tuple[str, ...]]:
    """The same by what the kernel shows: a container may have GPUs without nvidia-smi, and ROCm's have none. A node of 0 is a CPU."""
    nvidia = sorted((ROOT / "dev").glob("nvidia[0-9]*"))
    amd = [] if nvidia else [file for file in sorted(ROOT.glob(f"{KFD}/*/gpu_id")) if _read(file) not in {None, "0"}]
    how["gpus"] = why + (", by /dev/nvidia*" if nvidia else f", by /{KFD}" if amd else "")
    name, variables = ("AMD GPU", (*ROCM, *CUDA)) if amd else ("NVIDIA GPU", CUDA)
    return [[str(number), "", name, "", ""] for number in range(len(nvidia or amd))], variables


def _visible(rows: list[list[str]], visible: str) -> list[list[str]]:
    """The rows that CUDA would show, in its order: it stops at the first entry that names no GPU, and shows one slice (MIG) at most."""
    chosen = []
    for entry in map(str.strip, visible.split(",")):
        if entry.startswith("MIG-"):
            return [["", entry, entry, "", ""]]
        match = [row for row in rows if entry and (row[0] == entry or row[1].startswith(entry))]
        if len(match) != 1:
            break
        chosen += match
    return chosen


def _cpu_field(name: str) -> str | None:
    for line in (_read(ROOT / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _mount_of(path: Path) -> tuple[str, str] | None:
    """(device, file system) of the longest mount point above `path`."""
    best: tuple[str, str] | None = None
    longest = -1
    absolute = str(path.resolve())
    for partition in psutil.disk_partitions(all=True):
        point = partition.mountpoint.rstrip("/")
        if (absolute == point or absolute.startswith(point + "/")) and len(point) >= longest:  # of two on one point the later is seen
            best, longest = (partition.device, partition.fstype), len(point)
    return best


def _block_names(device: str, path: Path) -> list[str]:
    """The device's name and, for a partition or a mapped device, the disk behind it."""
    names = [device]
    number = path.stat().st_dev  # btrfs and overlay have numbers of their own, which no block device has
    for link in (ROOT / f"sys/dev/block/{os.major(number)}:{os.minor(number)}", ROOT / "sys/class/block" / device):
        if link.exists():
            real = link.resolve()
            names += [real.name, real.parent.name]
    return names


def _existing(path: Path) -> Path:
    """`path`, or its nearest parent that exists."""
    path = path.absolute()
    return next(candidate for candidate in [path, *path.parents] if candidate.exists())


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
