"""Checks of installed libraries against known defects, and of the attention that a model really uses."""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING

from ftcli.contracts import CheckKind
from ftcli.records import Check
from ftcli.versions import version

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

Version = tuple[int, ...]
LIBRARIES = ("torch", "transformers", "datasets", "accelerate", "tokenizers", "numpy", "pyarrow")


@dataclass(frozen=True, slots=True)
class Defect:
    """A known fault of the versions `first` ≤ v < `fixed` of a library; None: no such end is known."""

    library: str
    first: str | None
    fixed: str | None
    words: str
    reference: str
    avoided: str = ""
    """How ftcli keeps clear of it; empty: it does not, and the fault is a warning."""


DEFECTS = (
    Defect(
        "transformers",
        "4.57.1",
        None,
        "a plain Trainer multiplies the loss and gradient of classifiers by accumulation × processes (reproduced with 4.57.1, 5.23.0 and 5.24.0)",
        "https://github.com/huggingface/transformers/issues/47688",
        "ftcli computes the loss itself",
    ),
    Defect(
        "transformers",
        "4.57.1",
        "5.23",
        "a plain Trainer with DataCollatorWithFlattening lets packed texts attend to each other (reproduced with 4.57.1, gone in 5.23.0)",
        "https://github.com/huggingface/transformers/pull/39194",
        "FT408 measures it on this model, and ftcli trains without a cache",
    ),
    Defect(
        "transformers",
        "4.57.1",
        None,
        "an all-ones attention mask with restarting positions lets packed texts attend to each other under sdpa (reproduced with 5.23.0 and 5.24.0)",
        "https://github.com/huggingface/transformers/pull/46634",
        "ftcli's packed collator makes no mask",
    ),
    Defect(
        "datasets",
        "5.2",
        None,
        "a different writer_batch_size changes map's fingerprint, so everything is tokenized again (measured with 5.2.0)",
        "https://github.com/huggingface/datasets/pull/8439",
        "ftcli does not use map",
    ),
    Defect(
        "intel-extension-for-pytorch",
        None,
        None,
        "the extension was discontinued after 2.8",
        "https://github.com/intel/intel-extension-for-pytorch/issues/867",
        "ftcli does not load it",
    ),
)
"""Faults that were reproduced, or whose report was read. https://github.com/pytorch/pytorch/issues/166387 (TF32) is looked for by what is set, not by version."""


def versions(probe: Probe) -> Check:  # noqa: ARG001 - the contract's
    from ftcli.core.verify.verdict import noted, passed, warned

    installed = {name: _installed(name) for name in {*LIBRARIES, *(defect.library for defect in DEFECTS)}}
    found = [(defect, here) for defect in DEFECTS if (here := installed[defect.library]) and _has(defect, here)]
    evidence = {
        "libraries": {name: installed[name] for name in LIBRARIES},
        "references": {defect.reference: defect.words for defect, _ in found},
    }
    tf32 = _tf32()
    if tf32:
        return warned(
            tf32, "Use only one of torch.backends.cuda.matmul.fp32_precision and allow_tf32 in all libraries of the run.", **evidence
        )
    open_ones = [(defect, here) for defect, here in found if not defect.avoided]
    if open_ones:
        words = "; ".join(f"{defect.library} {here}: {defect.words}" for defect, here in open_ones)
        return warned(words, f"Install another version; see {open_ones[0][0].reference}.", **evidence)
    if found:
        return noted("; ".join(f"{defect.library} {here}: {defect.words}; {defect.avoided}" for defect, here in found), **evidence)
    return passed("no version with a known defect", **evidence)


def attention(probe: Probe) -> Check:
    from ftcli.core.verify.verdict import noted, passed, warned

    model, asked = probe.model, probe.settings.model.attn_implementation
    used = str(getattr(model.config.get_text_config(), "_attn_implementation", None) or "eager")
    evidence = {
        "asked": asked,
        "used": used,
        "sdpa": bool(getattr(model, "_supports_sdpa", False)),
        "flash": bool(getattr(model, "_supports_flash_attn", False)),
    }
    if asked is not None and asked != used:
        return warned(
            f"{asked} attention was requested, but the model uses {used}",
            "Leave out --attn-implementation, or install what it requires.",
            **evidence,
        )
    if asked is not None:
        return passed(f"{used} attention, as asked", **evidence)
    if used == "eager":
        return noted(
            f"eager attention: {type(model).__name__} has no sdpa, so the attention matrix of every head is kept in memory", **evidence
        )
    return passed(f"{used} attention: the model's own choice", **evidence)


def _tf32() -> str:
    """What is wrong when both ways to set TF32 were used in this process: torch then raises wherever one is read."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    try:
        with warnings.catch_warnings(action="ignore"):
            _ = torch.backends.cuda.matmul.allow_tf32
            _ = torch.get_float32_matmul_precision()
    except RuntimeError:
        return "TF32 was set both by allow_tf32 and by fp32_precision: torch raises when either is read, and torch.compile reads it"
    return ""


def _installed(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _has(defect: Defect, here: str) -> bool:
    number = _number(here)
    return (defect.first is None or number >= _number(defect.first)) and (defect.fixed is None or number < _number(defect.fixed))


def _number(text: str) -> Version:
    """ "2.13.0+cpu" → (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", re.split(r"[+a-z-]", text)[0])[:3])


CHECKS = (
    CheckKind("FT007", "env", "Versions", versions, severity="warn"),
    CheckKind("FT440", "model", "Attention", attention, ("model",), severity="warn"),
)
