"""What `ftcli doctor` asks in processes of their own, because any of it may raise, abort or hang. Answers are standard types and records."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from ftcli.commands.plugins import candidates, examine
from ftcli.commands.settings import as_text
from ftcli.context import Context
from ftcli.contracts import Engine
from ftcli.fields import variable_of
from ftcli.machine import cgroup_limits, compute_threads, detect, gpu_driver, shared_memory
from ftcli.masking import private_values
from ftcli.pluginmanager import BUILT_INS, Plugins
from ftcli.records import Check, Value, to_json
from ftcli.settings import walk
from ftcli.sources import Resolved, resolve

Given = tuple[dict[str, tuple[Any, str]], Path | None, str | None] | None
"""Settings of the command line, config file and profile; None: the defaults, whatever the variables say."""
Sources = tuple[Path | None, tuple[str, ...] | None]
"""Plugins folder and the names of entry points to load, as for `Plugins`."""
GIB = 2**30
TEXTS = ("How do I reset the password of my account?", "비밀번호를 잊어버렸어요. 어떻게 바꾸나요?")


def machine() -> dict[str, Any]:
    """The machine card with what stands beside it."""
    found = detect()
    cores, memory, processes = cgroup_limits()
    return {
        "card": found,
        "driver": gpu_driver(),
        "threads": compute_threads(None, found.cores),
        "cgroup": {"cores": cores, "memory": None if memory is None else f"{memory / GIB:.1f} GB", "processes": processes},
        "shared_memory": shared_memory(),
    }


def variables() -> list[str]:
    """The variables of all settings."""
    return [variable_of(section, name) for section, name, _ in walk()]


def settings(given: Given) -> tuple[dict[str, Value], dict[str, str], tuple[str, ...]]:
    """Settings that somebody set, the same in words, and what should be said about them."""
    resolved = _resolved(given)
    found = {key: replace(value, value=private_values(value.value)) for key, value in resolved.origins.items() if value.origin != "default"}
    words = {key: f"{as_text(value.value)}  (from {value.origin})" for key, value in sorted(found.items())}
    return {key: Value(to_json(value.value), value.origin) for key, value in found.items()}, words, resolved.warnings


def plugin_names(sources: Sources) -> list[tuple[str, Path | None, tuple[str, ...]]]:
    """What there is to load: title, file, entry points."""
    return list(candidates(*sources))


def plugin(title: str, file: Path | None, names: Sequence[str] | None) -> tuple[Check, list[dict[str, Any]]]:
    """A plugin loaded and examined alone, and what is loaded beside the built-ins; all of them for the built-ins."""
    check = examine(title, file, names, own=True)
    if check.status == "fail":
        return check, []
    plugins = _plugins((file, None if names is None else tuple(names)))
    described, objects = plugins.describe(), plugins.objects()
    outside = described[len(BUILT_INS) :] if file or names else described
    return check, [{**asdict(info), "file": getattr(objects[info.name], "__file__", None)} for info in outside]


def engine_names(sources: Sources) -> list[str]:
    return _plugins(sources).registry("engine").names()


def engine(name: str, sources: Sources) -> dict[str, Any]:
    """An engine that has loaded a small tokenizer and encoded two texts: its version, and how many tokens that made."""
    from ftcli.core.arrays import strings

    kind = cast("Engine", _plugins(sources).registry("engine").get(name)())
    encoded = kind.load(json.dumps(_backend(), separators=(",", ":")), Path(), 1).encode(strings(list(TEXTS)))
    return {"version": kind.version, "tokens": len(encoded.ids)}


def checks(given: Given, sources: Sources) -> tuple[Check, ...]:
    """The verdicts of `ftcli verify env`."""
    from ftcli.commands.verify import look
    from ftcli.core.tokenizer.without_torch import without_torch
    from ftcli.core.verify.rules import chosen

    resolved = _resolved(given)
    folder = resolved.settings.dataset.output_dir or resolved.settings.train.output_dir
    context = Context(resolved, detect(folder), _plugins(sources))
    registry = context.plugins.registry("check")
    with without_torch(context.cache_dir) as light:
        found = look(context, chosen(registry, ("env",), "quick", (), ()), registry, light).checks
    return tuple(replace(check, evidence=to_json(check.evidence)) for check in found)


def torch() -> dict[str, Any]:
    """torch as it is when it is imported."""
    started = time.process_time()
    import torch as library  # 2 to 3 s of CPU

    spent = time.process_time() - started
    build = f"CUDA {library.version.cuda}" if library.version.cuda else f"HIP {library.version.hip}" if library.version.hip else "CPU"
    backends = {"MKL": library.backends.mkl, "oneDNN": library.backends.mkldnn, "OpenMP": library.backends.openmp}
    facts: dict[str, Any] = {
        "version": library.__version__,
        "build": build,
        "threads": f"{library.get_num_threads()} in operators, {library.get_num_interop_threads()} between them",
        "CPU": library.backends.cpu.get_cpu_capability(),
        "with": ", ".join(name for name, backend in backends.items() if backend.is_available()),
    }
    if library.cuda.is_available():
        facts["GPUs"] = [library.cuda.get_device_name(number) for number in range(library.cuda.device_count())]
        cudnn: Any = library.backends.cudnn
        facts["cuDNN"] = cudnn.version()
        facts["bfloat16"] = library.cuda.is_bf16_supported()
    else:
        facts["GPUs"] = "none"
    return {**facts, "import": f"{spent:.1f} s of CPU"}


@cache
def _plugins(sources: Sources) -> Plugins:
    """Finding the entry points takes 0.1 s each time."""
    return Plugins(*sources)


def _resolved(given: Given) -> Resolved:
    if given is None:
        return resolve({}, environ={})
    cli, config, profile = given
    if profile == "auto":
        from ftcli.commands.profiles import choose

        profile = choose(detect()).value
    return resolve(cli, config, profile)


def _backend() -> dict[str, Any]:
    """A byte-level BPE without merges: 256 tokens, the kind that all engines know."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    characters = {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + place) for place, byte in enumerate(others)}}
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": step,
        "post_processor": None,
        "decoder": step,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {characters[byte]: byte for byte in range(256)},
            "merges": [],
        },
    }
