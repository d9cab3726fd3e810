"""Layers of a model computed by compiled code while it trains.

One function is compiled, the forward pass of the layers' class, and it serves all of them: what compiling costs does not grow with their number. It
stands in for `forward` on the run's own modules; no class, weight or name changes. What is around the layers (embeddings, masks, the loss) stays as it
is, and so does, on a CPU, attention inside texts that stand side by side: as many calls as a batch has texts. On a GPU it is one.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel, TrainingArguments

from ftcli.core.models import lean_layers, side_by_side
from ftcli.core.models.dropout_proof import dropping

STANCE = "fail_on_recompile"
"""torch's word for: use what is compiled, raise where that does not fit."""
GRAPHS = ("reduce-overhead", "max-autotune")
CAPABILITY = (7, 0)
"""What triton needs of a GPU."""


class CompiledLayers:
    """The compiled form of a model's layers; after `seal` nothing more is compiled, and a layer that the code does not fit computes as it did before.

    Args:
        compile_: `torch.compile`.
        dynamic: shapes vary, and the code is to take any.
    """

    def __init__(
        self, model: PreTrainedModel, compile_: Callable[..., Any], *, dynamic: bool, backend: str | None = None, mode: str | None = None
    ) -> None:
        self._before = {layer: vars(layer).get("forward") for layer in layers_of(model)}
        self._sealed = False
        self.fitted, self.missed = 0, 0
        """Calls of layers, since `seal`, that compiled code was used for, and those that it did not fit."""
        how: dict[str, Any] = {"backend": backend, "mode": mode}
        if dropping(model) and backend in {None, "inductor"}:
            how = {"backend": backend, "options": _drawing_alike(mode)}
        side_by_side.keep_out_of_compiled_code(out=not next(model.parameters()).is_cuda)
        kind = type(next(iter(self._before)))
        self._code = compile_(kind.forward, dynamic=dynamic, **{name: value for name, value in how.items() if value is not None})

    def __enter__(self) -> Self:
        self.put()
        return self

    def __exit__(self, *_: object) -> None:
        self.take()

    def put(self) -> None:
        """Compute by compiled code from here on."""
        for layer, before in self._before.items():
            own: Any = partial(type(layer).forward, layer) if before is None else before
            layer.forward = partial(self._call, layer, own)

    def take(self) -> None:
        """Compute as before."""
        for layer, before in self._before.items():
            layer.__dict__.pop("forward", None)
            if before is not None:
                layer.forward = before

    def seal(self) -> None:
        """Compile nothing more: what a batch is computed by then depends on its shape alone, not on the batches before it."""
        self._sealed, self.fitted, self.missed = True, 0, 0

    def _call(self, layer: nn.Module, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not (layer.training and torch.is_grad_enabled()):
            return own(*args, **kwargs)
        if not self._sealed:
            return self._code(layer, *args, **kwargs)
        try:
            with torch.compiler.set_stance(STANCE):
                found = self._code(layer, *args, **kwargs)
        except RuntimeError as error:
            if STANCE not in str(error):
                raise
            self.missed += 1
            return own(*args, **kwargs)
        self.fitted += 1
        return found


def layers_of(model: PreTrainedModel) -> list[nn.Module]:
    """The layers that are compiled: those in the list of one class that has most weights, whose `forward` is their own or the lean step's."""
    base: Any = side_by_side.base_of(model) or model
    lists = [list(part) for part in base.modules() if isinstance(part, nn.ModuleList) and len({type(layer) for layer in part}) == 1]
    largest = max(lists, key=lambda layers: sum(weight.numel() for layer in layers for weight in layer.parameters()), default=[])
    return [layer for layer in largest if "forward" not in vars(layer) or lean_layers.is_lean(vars(layer)["forward"])]


def why_not(model: PreTrainedModel, arguments: TrainingArguments, *, backend: str | None = None, mode: str | None = None) -> str | None:
    """Why the layers cannot be compiled; None: it can be tried."""
    for name in ("fsdp", "deepspeed", "use_liger_kernel"):
        if getattr(arguments, name, None):
            return f"{name} itself replaces the model's code"
    device = arguments.device.type
    if device not in {"cpu", "cuda"}:
        return f"it is for CPUs and NVIDIA's and AMD's GPUs, and the device is {device}"
    if device == "cuda" and (mode or "") in GRAPHS:
        return f"train.torch_compile_mode = {mode} records CUDA graphs, which need the whole model in one piece"
    if backend in {None, "inductor"} and (words := _lacks(device)):
        return words
    return None if layers_of(model) else f"{type(model).__name__} has no list of layers of one class"


def _drawing_alike(mode: str | None) -> dict[str, Any]:
    """Options of torch's compiler for code that drops what the model's own code drops: it calls the operations that draw, and does not draw by itself."""
    from torch._inductor import list_mode_options

    return {**(list_mode_options(mode) if mode else {}), "fallback_random": True}


def _lacks(device: str) -> str | None:
    """What torch's compiler needs and the machine lacks."""
    if device == "cpu":
        compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
        return (
            None if shutil.which(compiler) else f"compiling for a CPU needs a C++ compiler, and there is no {compiler} (CXX names another)"
        )
    if importlib.util.find_spec("triton") is None:
        return "compiling for a GPU needs the package triton, which is not installed"
    if not any(shutil.which(name) for name in ([os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"])):
        return "compiling for a GPU needs a C compiler, and there is none (gcc or clang; CC names another)"
    capability = torch.cuda.get_device_capability()
    if torch.version.hip is None and capability < CAPABILITY:
        return f"compiling needs a GPU of capability {CAPABILITY[0]}.{CAPABILITY[1]}, and this one has {capability[0]}.{capability[1]}"
    return None
