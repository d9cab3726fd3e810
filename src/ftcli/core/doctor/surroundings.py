"""What surrounds the process: system, variables, disks, terminal; the standard library alone."""

from __future__ import annotations

import locale
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from ftcli.core.doctor.part import Found
from ftcli.home import home
from ftcli.masking import NOT_SHOWN

GIB = 2**30
LEAST_FREE = 2**28
"""Bytes that a folder for temporary files and caches must have free."""
KNOWN = frozenset({
    "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "FTCLI_CONFIG", "FTCLI_FAULTS", "FTCLI_LAUNCH",
    "FTCLI_LOG", "FTCLI_PLUGINS", "FTCLI_PLUGINS_DIR", "FTCLI_PROFILE", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "HF_DATASETS_CACHE",
    "HF_DATASETS_OFFLINE", "HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_DISABLE_XET", "HF_HUB_ENABLE_HF_TRANSFER",
    "HF_HUB_OFFLINE", "KMP_AFFINITY", "KMP_BLOCKTIME", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MKL_NUM_THREADS", "MKL_SERVICE_FORCE_INTEL",
    "MKL_THREADING_LAYER", "NCCL_DEBUG", "NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS",
    "OMP_PLACES", "OMP_PROC_BIND", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED", "PYTHONPATH", "PYTHONUTF8",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "RANK", "RAYON_NUM_THREADS", "SLURM_CPUS_PER_TASK", "SLURM_JOB_ID", "TMPDIR",
    "TOKENIZERS_PARALLELISM", "TORCH_LOGS", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "WORLD_SIZE", "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
})  # fmt: skip
"""Variables that decide something here, whose values are shown."""
FAMILIES = ("CUDA_", "FTCLI_", "GOMP_", "HF_", "KMP_", "MKL_", "MLFLOW_", "NCCL_", "OMP_", "PYTORCH_", "RAYON_", "TOKENIZERS_", "TORCH_", "TRANSFORMERS_", "WANDB_")  # fmt: skip
"""Beginnings of variables that are named without their values, because who knows what these are."""
NAMED = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "HUGGING_FACE_HUB_TOKEN")
SPOKEN = ("LANG", "LC_ALL", "LC_CTYPE", "TERM", "COLUMNS", "NO_COLOR", "PYTHONIOENCODING")


def system() -> Found:
    """Operating system and C library."""
    libc = " ".join(platform.libc_ver()).strip()
    facts = {"system": f"{platform.system()} {platform.release()} {platform.machine()}", "distribution": _distribution(), "libc": libc}
    inside = _container()
    return {name: value for name, value in {**facts, "container": inside}.items() if value}, []


def variables(settings: Collection[str]) -> Found:
    """Variables that matter. Only known ones have their values here.

    Args:
        settings: variables of settings; none where they cannot be told.
    """
    sections = tuple({name.partition("_")[0] + "_" for name in settings})
    environ = os.environ
    found = {}
    for name in sorted(environ):
        if name in KNOWN or name in settings:
            found[name] = environ[name] or "(empty)"
        elif name in NAMED or name.startswith((*FAMILIES, *sections)):
            found[name] = NOT_SHOWN
    return found, []


def places() -> Found:
    """Free space where ftcli works, and whether it may write there."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache")
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HF_HOME") or caches / "huggingface"
    wanted = {"working directory": Path.cwd(), "cache": caches / "ftcli", "Hugging Face cache": Path(hub)}
    broken = []
    try:
        wanted["temporary files"] = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        broken.append(f"temporary files: {error.strerror}")
    facts = {}
    for name, path in wanted.items():
        try:
            there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
            free, writable = shutil.disk_usage(there).free, os.access(there, os.W_OK)
        except OSError as error:
            broken.append(f"{name}: {path}: {error.strerror}")
            continue
        facts[name] = (
            f"{path}: {free / GIB:.1f} GB free"
            + ("" if writable else ", not writable")
            + ("" if there == path.absolute() else ", does not exist yet")
        )
        if not writable and name != "working directory":
            broken.append(f"{name}: {path} is not writable")
        elif free < LEAST_FREE:
            broken.append(f"{name}: {free / 2**20:.0f} MB are free at {path}, too little")
    return facts, broken


def limits() -> Found:
    """Limits on this process that are no part of the machine card."""
    facts = {}
    for name, which in (
        ("open files", resource.RLIMIT_NOFILE),
        ("processes", resource.RLIMIT_NPROC),
        ("address space", resource.RLIMIT_AS),
    ):
        soft, hard = (f"{value:,}" if value != resource.RLIM_INFINITY else "unlimited" for value in resource.getrlimit(which))
        facts[name] = soft if soft == hard else f"{soft}, up to {hard}"
    return facts, []


def terminal() -> Found:
    """Locale and terminal, by which characters and colours may fail."""
    out = sys.stdout
    facts = {
        "locale": ".".join(part or "none" for part in locale.getlocale()),
        "encodings": f"stdout {getattr(out, 'encoding', None)}, files {sys.getfilesystemencoding()}, text {locale.getpreferredencoding(do_setlocale=False)}",
        "terminal": f"{shutil.get_terminal_size().columns} columns"
        if out is not None and out.isatty()
        else "none: stdout is not a terminal",
    }
    return facts | {name: os.environ[name] for name in SPOKEN if name in os.environ}, []


def _distribution() -> str:
    try:
        return _named(platform.freedesktop_os_release())
    except OSError:
        return platform.mac_ver()[0]


def _named(release: Mapping[str, str]) -> str:
    return release.get("PRETTY_NAME", release.get("NAME", ""))


def _container() -> str:
    marks = {"Docker": Path("/.dockerenv"), "Podman": Path("/run/.containerenv")}
    found = [name for name, path in marks.items() if path.exists()]
    found += ["Kubernetes"] if "KUBERNETES_SERVICE_HOST" in os.environ else []
    found += ["WSL"] if "microsoft" in platform.release().lower() else []
    return ", ".join(found)
