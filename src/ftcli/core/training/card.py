"""The model card of a run: what it was made from, with what, and how well it does; nothing secret, no path of this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from ftcli.core.models.adapter_base import base_of
from ftcli.core.models.held_out import figures_of
from ftcli.core.training.run import Run
from ftcli.masking import masked
from ftcli.records import Report, to_json
from ftcli.versions import version

CARD = "README.md"
SOURCES = 200
"""Of the data that the card lists."""
METRICS = (
    "steps",
    "epochs",
    "first_loss",
    "final_loss",
    "eval_loss",
    "eval_accuracy",
    "eval_macro_f1",
    "eval_micro_f1",
    "eval_exact_match",
    "eval_pearson",
    "eval_rmse",
    "perplexity",
    *(f"test_{name}" for name in figures_of(None)),
    "chance_accuracy",
    "majority_accuracy",
)
LIBRARIES = ("ftcli", "transformers", "torch", "tokenizers")
TAGS = {"classify": "text-classification", "regress": "text-classification"}


def write_card(run: Run, report: Report) -> Path:
    """Write the card into the run's folder. A temporary file is renamed, so that it is whole or not there."""
    path = run.output / CARD
    temporary = path.with_name(f".{CARD}.tmp")
    temporary.write_text(card(run, report), encoding="utf-8")
    temporary.replace(path)
    return path


def card(run: Run, report: Report) -> str:
    """The card as Markdown with a YAML head, as the hub reads it."""
    settings, manifest = run.context.settings, run.store.manifest
    name = settings.model.name_or_path
    base = _name(base_of(name)) if name else None
    start = (
        f"weights of `{base}`" if base else f"random weights, configuration `{settings.model.config.name if settings.model.config else ''}`"
    )
    adapter = hasattr(run.model, "peft_config")
    head = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": TAGS.get(run.task.name, "text-generation"),
        "tags": ["ftcli", run.task.name, *(["lora"] if adapter else [])],
        **({"base_model": base} if base else {}),
    }
    parts = [
        "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items()) + "---",
        f"# {_name(str(run.output))}",
        f"Trained by ftcli for `{run.task.name}`, from {start}{', as a LoRA adapter' if adapter else ''}.",
        "## Results",
        _table(("figure", "value"), [(key, _number(report.metrics.get(key))) for key in METRICS if report.metrics.get(key) is not None]),
        "## Data",
        f"Fingerprint `{run.store.fingerprint}`, content `{manifest.get('content_hash', 'unknown')}`.",
        _table(("split", "rows", "tokens"), [(key, one["rows"], one["tokens"]) for key, one in manifest["splits"].items()]),
    ]
    if sources := manifest.get("sources"):
        listed = [(_name(one["path"]), one["split"], one["bytes"], one["xxh3"]) for one in sources[:SOURCES]]
        parts.append(_table(("source", "split", "bytes", "xxh3"), listed))
    if (further := len(sources or ()) - SOURCES) > 0:
        parts.append(f"And {further:,} further sources, which the manifest of the data lists.")
    parts += ["## Settings", "Settings that were set explicitly:", _settings(report), "## Versions"]
    libraries = (*LIBRARIES, *(["peft"] if adapter else []))
    parts.append(_table(("library", "version"), [(library, version(library)) for library in libraries]))
    return masked("\n\n".join(part for part in parts if part) + "\n")


def _settings(report: Report) -> str:
    rows = [
        (key, json.dumps(_without_paths(to_json(value.value), value.value), ensure_ascii=False))
        for key, value in sorted(report.settings.items())
        if value.origin != "default"
    ]
    return _table(("setting", "value"), rows)


def _without_paths(shown: Any, value: Any) -> Any:
    """Of a path the last part only."""
    if isinstance(shown, list):
        items = value if isinstance(value, (list, tuple)) else shown
        return [_without_paths(one, item) for one, item in zip(shown, items, strict=True)]
    if isinstance(shown, Mapping):
        return {key: _without_paths(one, one) for key, one in shown.items()}
    if isinstance(value, PurePath) or (
        isinstance(shown, str) and ("\\" in shown or shown.startswith(("/", "~", ".")) or Path(shown).exists())
    ):
        return _name(str(shown))
    return shown


def _name(path: str) -> str:
    """The last part of a path; a hub id as it is."""
    return path if path.count("/") == 1 and not path.startswith((".", "/", "~")) and not Path(path).exists() else PurePath(path).name


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)
