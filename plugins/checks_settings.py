"""Checks of the settings against the machine and against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftcli.contracts import CheckKind
from ftcli.records import Check

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

BF16_FLAGS = ("avx512_bf16", "amx_bf16")


def workers(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import noted, passed, warned
    from ftcli.machine import cut_to_cores

    cores, num_proc = probe.machine.cores, probe.num_proc()
    over = []
    for key, value in (
        ("dataset.num_proc", num_proc),
        ("loader.num_workers", probe.settings.loader.num_workers),
        ("runtime.threads", probe.settings.runtime.threads),
    ):
        if value is not None and value > cores and probe.set_by_user(key):
            over.append(f"{key} = {value} (from {probe.origin(key)})")
    if over:
        return warned(
            f"{'; '.join(over)}: more than the {cores} cores by {probe.machine.how.get('cores')}",
            "Lower it or leave it unset: on 2 cores 16 workers took 1.7 times as long as one.",
            cores=cores,
        )
    choice = cut_to_cores(num_proc, probe.origin("dataset.num_proc"), probe.machine)
    if num_proc not in {None, choice.value}:
        return noted(f"workers: {choice.reason}", workers=choice.value)
    return passed(f"workers: {choice.reason}", workers=choice.value)


def precision(probe: Probe) -> Check:
    from ftcli.core.models.trainable_weights import lora_rank
    from ftcli.core.verify.verdict import failed, passed, warned

    train, machine = probe.settings.train, probe.machine
    on_cpu = not machine.gpus or bool(train.use_cpu)
    if on_cpu and (train.fp16 or train.fp16_full_eval or probe.settings.model.dtype == "float16"):
        return failed(
            "float16 on a CPU: matrix products are 30 to 100 times slower than in float32",
            "Remove --fp16 and model.dtype = float16; use --bf16 if the CPU supports it.",
        )
    if train.bf16 and not on_cpu and (machine.gpus[0].capability or "").startswith(("5.", "6.", "7.")):
        return failed(f"bf16 on {machine.gpus[0].name}: it has capability {machine.gpus[0].capability}, bfloat16 needs 8.0", "Use --fp16.")
    emulated = on_cpu and not set(BF16_FLAGS) & set(machine.cpu_flags)
    slow = "on a CPU without bf16 instructions: emulated, 6 to 13 times slower than float32"
    if train.bf16 and emulated:
        return warned(f"bf16 {slow}", "Leave out --bf16.", flags=list(machine.cpu_flags))
    kind = _weights_type(probe)
    if kind in {"bfloat16", "float16"} and train.learning_rate < 5e-5 and lora_rank(probe.settings) is None:  # which peft keeps in float32
        return warned(
            f"weights in {kind} with a learning rate of {train.learning_rate:g}: most updates are lost to rounding "
            "(at 1e-5 only 16 % of bf16 weights move)",
            "Leave model.dtype at float32 and use --bf16 (autocast).",
        )
    if kind == "bfloat16" and emulated:
        return warned(f"weights in bfloat16 {slow}", "Use --dtype float32.", flags=list(machine.cpu_flags))
    return passed("the precision suits the device", bf16=train.bf16, fp16=train.fp16, dtype=kind)


def _weights_type(probe: Probe) -> str | None:
    """What a weights' file says by itself FT503 sees."""
    from ftcli.core.models.trainable_weights import weights_type
    from ftcli.core.verify.probe import Missing
    from ftcli.errors import FtcliError

    try:
        return weights_type(probe.settings, probe.config if probe.settings.model.dtype == "auto" else None)
    except (Missing, FtcliError):  # the first check of the model says what is wrong with it
        return "auto"


CHECKS = (
    CheckKind("FT051", "settings", "Workers", workers, severity="warn"),
    CheckKind("FT052", "settings", "Precision", precision),
)
