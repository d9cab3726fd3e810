"""Checks of environment variables and of the threads and processes that they ask for together."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

NO_EFFECT = {
    "MKL_SERVICE_FORCE_INTEL": "no torch library reads it",
    "MKL_THREADING_LAYER": "it is for libmkl_rt, which torch does not use",
}
LIBRARIES = (
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "HF_DATASETS_CACHE",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "PYTORCH_CUDA_ALLOC_CONF",
    "RAYON_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
)
"""Variables of other libraries that matter here, for the misspelt ones."""
NEAR = 0.93
"""Similarity from which a name counts as misspelt: OMP_NUM_THREAD has 0.97, OMP_NUM_TEAMS and GOTO_NUM_THREADS, which exist, 0.86 and 0.84."""
EXIST = frozenset({"HF_HUB_CACHE", "HF_DATASETS_OFFLINE", "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"})
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
SHOWN = ("CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "OMP_PROC_BIND", "TOKENIZERS_PARALLELISM")
Finding = tuple[str, str]
"""What is wrong, and what to do."""


def variables(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import noted, passed, warned

    environ = os.environ
    seen = {name: environ[name] for name in SHOWN if name in environ}
    found: list[Finding] = [(words, "Correct the misspelt variables.") for words in probe.context.resolved.warnings]
    found += [*_misspelt(environ), *_debugging(environ), *_idle_cores(probe, environ), *_contradicting(environ), *_forks(probe, environ)]
    if found:
        return warned("; ".join(words for words, _ in found), " ".join(dict.fromkeys(fix for _, fix in found)), **seen)
    idle = {name: reason for name, reason in NO_EFFECT.items() if name in environ}
    if idle:
        return noted("; ".join(f"{name} has no effect: {reason}" for name, reason in idle.items()), **seen)
    if _on(environ.get("TOKENIZERS_PARALLELISM")):
        return noted(
            "TOKENIZERS_PARALLELISM=true: datasets.map(num_proc=…) disables it in its workers, and leaving it unset has the same effect here",
            **seen,
        )
    return passed("no harmful variable is set", **seen)


def threads(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import passed, warned

    cores, environ = probe.machine.cores, os.environ
    ranks = _ranks(environ)
    found: list[Finding] = []
    evidence: dict[str, int] = {"cores": cores, "ranks": ranks}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        count = _count(environ.get(name))
        if count is not None:
            evidence[name] = count
            if count * ranks > cores and count > 1:
                each = f"{ranks} ranks × " if ranks > 1 else ""
                found.append(
                    (f"{each}{name}={count} are {count * ranks} threads on {cores} cores", f"Run: unset {name}: ftcli divides the cores.")
                )
    computing, loader = probe.settings.runtime.threads, probe.settings.loader.num_workers
    if computing and ranks > 1 and computing <= cores < computing * ranks:
        found.append(
            (f"{ranks} ranks × runtime.threads = {computing} on {cores} cores", f"Use --set runtime.threads={max(1, cores // ranks)}.")
        )
    if loader and ranks > 1 and loader <= cores < loader * ranks:
        found.append(
            (f"{ranks} ranks × loader.num_workers = {loader} on {cores} cores", f"Use --dataloader-num-workers {cores // ranks - 1}.")
        )
    if found:
        return warned("; ".join(words for words, _ in found), " ".join(fix for _, fix in found), **evidence)
    return passed(f"threads and processes fit the {cores} cores", **evidence)


def _misspelt(environ: Mapping[str, str]) -> list[Finding]:
    found = []
    for name in sorted(environ):
        if name in LIBRARIES or name in EXIST or not name.isupper():
            continue
        near = difflib.get_close_matches(name, LIBRARIES, n=1, cutoff=NEAR)
        if near and near[0] not in environ:
            found.append((f"{name} is not read by any library: did you mean {near[0]}?", "Correct the misspelt variables."))
    return found


def _debugging(environ: Mapping[str, str]) -> list[Finding]:
    if environ.get("CUDA_LAUNCH_BLOCKING", "0") in {"", "0"}:
        return []
    return [
        ("CUDA_LAUNCH_BLOCKING serialises every kernel launch: it is slow, and meant for debugging", "Run: unset CUDA_LAUNCH_BLOCKING.")
    ]


def _idle_cores(probe: Probe, environ: Mapping[str, str]) -> list[Finding]:
    on_cpu = not probe.machine.gpus or bool(probe.settings.train.use_cpu)
    cores = probe.machine.cores // _ranks(environ)
    if not on_cpu or cores < 2 or probe.settings.runtime.threads == 1:
        return []
    return [
        (f"{name}=1 leaves {cores - 1} of {cores} cores idle while training on the CPU", f"Run: unset {name}.")
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        if environ.get(name) == "1"
    ]


def _contradicting(environ: Mapping[str, str]) -> list[Finding]:
    found = [
        (f"{name}={environ[name]} is not a number of threads, and is ignored", f"Run: unset {name}.")
        for name in THREADS
        if environ.get(name) and _count(environ[name]) is None
    ]
    omp, mkl = _count(environ.get("OMP_NUM_THREADS")), _count(environ.get("MKL_NUM_THREADS"))
    if omp and mkl and omp != mkl and 1 not in {omp, mkl}:
        found.append(
            (f"OMP_NUM_THREADS={omp} and MKL_NUM_THREADS={mkl} contradict each other", "Run: unset MKL_NUM_THREADS: MKL follows OMP.")
        )
    return found


def _forks(probe: Probe, environ: Mapping[str, str]) -> list[Finding]:
    """What goes wrong in processes that begin as copies of this one."""
    found = []
    workers, encoders = probe.settings.loader.num_workers, probe.num_proc() or 1
    by_fork = probe.settings.train.dataloader_multiprocessing_context in {None, "fork"}
    if _on(environ.get("TOKENIZERS_PARALLELISM")) and workers and by_fork:
        found.append(
            (
                f"TOKENIZERS_PARALLELISM=true with {workers} forked DataLoader workers: a collator that tokenizes deadlocks once the parent process has tokenized",
                "Run: unset TOKENIZERS_PARALLELISM, or use --dataloader-num-workers 0.",
            )
        )
    bound = environ.get("OMP_PROC_BIND", "false").lower()
    processes = max(workers, encoders if probe.set_by_user("dataset.num_proc") else 1, _ranks(environ))
    if bound in {"true", "close", "spread", "master", "primary"} and processes > 1:
        found.append(
            (
                f"OMP_PROC_BIND={bound} pins the process to its first core as soon as torch computes, and its {processes} workers or ranks inherit that core",
                "Run: unset OMP_PROC_BIND.",
            )
        )
    return found


def _ranks(environ: Mapping[str, str]) -> int:
    """Processes on this machine that share its cores: torchrun and accelerate launch say it."""
    return _count(environ.get("LOCAL_WORLD_SIZE")) or 1


def _count(text: str | None) -> int | None:
    first = (text or "").split(",")[0].strip()  # OMP takes a list, one number a level
    return int(first) if first.isdecimal() and int(first) > 0 else None


def _on(text: str | None) -> bool:
    return (text or "").strip().lower() in {"1", "true", "yes", "on"}


CHECKS = (
    CheckKind("FT004", "env", "Variables", variables, severity="warn"),
    CheckKind("FT071", "settings", "Threads", threads, severity="warn"),
)
