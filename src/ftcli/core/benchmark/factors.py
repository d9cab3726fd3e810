"""Two configurations side by side: every setting that differs, and which of them are switched together to be measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ftcli.core.benchmark.attribution import joint
from ftcli.core.benchmark.ceilings import Ceilings, ceilings
from ftcli.errors import SettingsError, UsageError
from ftcli.records import to_json
from ftcli.settings import Settings, get, walk
from ftcli.sources import resolve

Kind = Literal["code", "data", "volume"]

VOLUME = ("train.num_train_epochs", "train.max_steps")
"""How much is trained: counted, not timed."""
SOURCES = "dataset.sources"
TOGETHER = (
    ("packing.strategy", "loader.collator"),
    ("loader.num_workers", "loader.prefetch_factor", "loader.persistent_workers"),
    ("model.config", "model.config_overrides", "model.name_or_path", "model.revision", "tokenizer.path", "tokenizer.revision"),
    (*(f"model.{name}" for name in ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "load_in_4bit", "freeze_backbone")),),
    ("train.optim", "train.optim_args", "train.optim_target_modules"),
    ("train.fsdp", "train.fsdp_config"),
    ("train.bf16", "train.fp16"),
    ("train.torch_compile", "train.torch_compile_backend", "train.torch_compile_mode"),
    (
        "dataset.text_column",
        "dataset.text_pair_column",
        "dataset.label_column",
        "dataset.label_separator",
        "dataset.label_names",
        "dataset.sample_by",
        "dataset.source_format",
        SOURCES,
    ),
    ("train.gradient_checkpointing", "train.activation_checkpointing"),
    ("train.per_device_train_batch_size", "train.max_tokens_per_batch"),
)
"""Settings of which one without the others may be impossible: packed rows need their collator, a model its tokenizer. Or it says nothing: a budget of
tokens leaves the number of rows unused."""
PLACES = frozenset(
    {
        "dataset.output_dir",
        "train.output_dir",
        "runtime.report_dir",
        "runtime.cache_dir",
        "runtime.overwrite",
        "runtime.lease_timeout",
        "runtime.floor",
        "train.resume_from_checkpoint",
        "train.save_total_limit",
        "train.project",
        "train.log_level",
        "train.log_level_replica",
    }
)
LEARNING = frozenset(
    {
        "dataset.seed",
        "train.seed",
        "train.data_seed",
        "train.learning_rate",
        "train.lr_scheduler_type",
        "train.lr_scheduler_kwargs",
        "train.warmup_steps",
        "train.weight_decay",
        "train.adam_beta1",
        "train.adam_beta2",
        "train.adam_epsilon",
        "train.label_smoothing_factor",
        "train.on_unhealthy",
    }
)
RHYTHM = frozenset(
    {
        *(f"train.{name}" for name in ("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "do_predict", "save_strategy", "save_steps", "patience")),
        *(f"train.{name}" for name in ("load_best_model_at_end", "metric_for_best_model", "per_device_eval_batch_size", "verify")),
        *(f"train.{name}" for name in ("learnability_steps", "save_only_model", "greater_is_better", "push_to_hub")),
        *(f"train.hub_{name}" for name in ("model_id", "private_repo", "strategy", "always_push", "revision")),
        "tracking.report_to",
    }
)  # fmt: skip
WHY_NOT = (
    (PLACES, "names a place"),
    (LEARNING, "changes what is learned, and is assumed not to change the speed"),
    (RHYTHM, "evaluations, checkpoints and trackers run on their own schedule: a run's report has their seconds (time_*)"),
)


@dataclass(frozen=True, slots=True)
class Factor:
    """Settings that are switched together. `kind` is "code" (how the work is done), "data" (which texts) or "volume" (how many)."""

    name: str
    kind: Kind
    base: Mapping[str, Any] = field(default_factory=dict)
    new: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Difference:
    """What two configurations differ in. `unmeasured` is setting → (value of the first, of the second, why it is not measured)."""

    base: Settings
    new: Settings
    factors: tuple[Factor, ...]
    unmeasured: Mapping[str, tuple[Any, Any, str]]


def read_settings(path: Path, over: Mapping[str, Any]) -> Settings:
    """The settings of a configuration file (.toml, .yaml, .json), or of a run by its `ftcli-run.json` or report.json.

    Args:
        over: "section.field" values that count above the file's; no environment variable does.

    Raises:
        SettingsError: the file is missing, cannot be read or has an unknown setting.
    """
    if not path.is_file():
        raise SettingsError(f"{path} does not exist", "attribute compares two files: configurations, or the ftcli-run.json of two runs.")
    laid = {key: (value, "argument") for key, value in over.items()}
    recorded = _recorded(path)
    if recorded is None:
        return resolve(laid, path, environ={}).settings
    if not recorded:
        raise SettingsError(
            f"{path} does not contain the settings of a run", "Give a run's ftcli-run.json or report.json, or a configuration."
        )
    return resolve({**{key: (item["value"], f"{path}") for key, item in recorded.items()}, **laid}, environ={}).settings


def read_ceilings(path: Path) -> Ceilings:
    """What of a run's settings a profile had said; nothing for a configuration file, which names none."""
    return ceilings({key: (item["value"], item["origin"]) for key, item in (_recorded(path) or {}).items()})


def _recorded(path: Path) -> dict[str, Mapping[str, Any]] | None:
    """The settings that a run had, each with its origin, without the defaults; None for a configuration file."""
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}", "Fix the file.") from error
    if not isinstance(document, dict) or "schema" not in document:
        return None
    known, settings = {f"{section}.{name}" for section, name, _ in walk()}, document.get("settings") or {}
    if not isinstance(settings, dict) or not all(isinstance(item, dict) and {"value", "origin"} <= set(item) for item in settings.values()):
        raise SettingsError(
            f"{path} is not a run's report, or is damaged: not every setting has a value and an origin",
            "Give a run's ftcli-run.json or report.json, or a configuration.",
        )
    return {key: item for key, item in settings.items() if item["origin"] != "default" and key in known}


def compare(base: Settings, new: Settings) -> Difference:
    """Every setting that differs, those of `benchmark` left out."""
    differing = {
        f"{section}.{name}": (get(base, f"{section}.{name}"), get(new, f"{section}.{name}"))
        for section, name, _ in walk()
        if section != "benchmark" and get(base, f"{section}.{name}") != get(new, f"{section}.{name}")
    }
    unmeasured: dict[str, tuple[Any, Any, str]] = {}
    for keys, why in WHY_NOT:
        unmeasured |= {key: (to_json(old), to_json(now), why) for key, (old, now) in differing.items() if key in keys}
    left = [key for key in differing if key not in unmeasured]
    factors = []
    volume = [key for key in left if key in (*VOLUME, SOURCES)]
    if volume:
        factors.append(_factor("data volume", "volume", volume, differing))
    left = [key for key in left if key not in VOLUME]
    while left:
        group = next((keys for keys in TOGETHER if left[0] in keys), (left[0],))
        chosen = [key for key in left if key in group]
        kind: Kind = "data" if SOURCES in group else "code"
        factors.append(_factor("the texts themselves" if chosen == [SOURCES] else " + ".join(chosen), kind, chosen, differing))
        left = [key for key in left if key not in chosen]
    return Difference(base, new, tuple(factors), unmeasured)


def measured(difference: Difference) -> tuple[Factor, ...]:
    """The factors whose cost is timed."""
    return tuple(factor for factor in difference.factors if factor.kind != "volume")


def without(difference: Difference, key: str, why: str) -> Difference:
    """The same with a factor of one setting among those that are not measured."""
    old, now = (to_json(get(side, key)) for side in (difference.base, difference.new))
    left = tuple(factor for factor in difference.factors if factor.name != key)
    return replace(difference, factors=left, unmeasured={**difference.unmeasured, key: (old, now, why)})


def merged(difference: Difference, names: Sequence[str]) -> Difference:
    """The same with these factors as one."""
    chosen = [factor for factor in difference.factors if factor.name in names]
    kind: Kind = "data" if any(factor.kind == "data" for factor in chosen) else "code"
    sides = [{key: value for factor in chosen for key, value in getattr(factor, side).items()} for side in ("base", "new")]
    left = [factor for factor in difference.factors if factor.name not in names]
    return replace(difference, factors=(*left, Factor(joint(names), kind, *sides)))


def switched(difference: Difference, names: Sequence[str] | frozenset[str]) -> dict[str, Any]:
    """ "section.field" values that turn the first configuration into the one with the named factors of the second."""
    return {key: value for factor in measured(difference) if factor.name in names for key, value in factor.new.items()}


def _factor(name: str, kind: Kind, keys: Sequence[str], differing: Mapping[str, tuple[Any, Any]]) -> Factor:
    return Factor(name, kind, {key: differing[key][0] for key in keys}, {key: differing[key][1] for key in keys})


def refuse_nothing(difference: Difference, paths: Sequence[Path]) -> None:
    """Raises `UsageError` when nothing that differs can be measured."""
    if not difference.factors:
        also = "; ".join(f"{key}, which is not measured ({why})" for key, (_, _, why) in difference.unmeasured.items())
        also = also and f" but {also}"
        raise UsageError(f"{paths[0]} and {paths[1]} have the same settings{also}", "Compare two configurations that differ.")
