"""What is written about every check: symptom, cause, how it is found, fix, references. Pages of the documentation are made from it.

The text of a check lies in `pages/ID.toml` beside the module that holds its `run` (built-ins: `plugins/pages/FT101.toml`), or in `CheckKind.page`.
Keys are the fields of `ftcli.contracts.Page`:

    causes = ["S2"]                 # of CAUSES below
    loss = ["stop"]                 # of SYMPTOMS below; [] when the loss does not show it
    symptom = "What a user sees."
    cause = "Why."
    found = "The formula, the threshold, where the threshold comes from."
    fix = "What to do."
    references = ["[words](https://…)"]
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ftcli.contracts import CheckKind, Page
from ftcli.errors import PluginError

SYMPTOMS: Mapping[str, str] = {
    "multiple": "The first loss, and the gradient norm with it, is a multiple of what it should be",
    "high": "The first loss is far above chance",
    "low": "The first loss is far below chance, or exactly that of another number of classes",
    "nan": "The loss is NaN, or is logged as 0.0 with a gradient norm of NaN",
    "error": "There is no loss: the first steps end in an error",
    "flat": "The loss does not fall",
    "slow": "The loss falls, but slowly or late",
    "batch": "The same text has another loss beside other texts",
    "stop": "The loss is perfect, and the model never stops, repeats itself or reads nothing new",
    "held-out": "The training loss is fine, and the evaluation is too good or does not agree with use",
    "tokens": "The loss is fine, and other programs give the same text another loss",
    "resume": "The loss jumps, or goes on differently, after resuming",
    "time": "The loss is right, and the run is slow or runs out of memory",
}
"""What is seen of a loss, in the order of the page "Why is my loss wrong?"."""

CAUSES: Mapping[str, str] = {
    "F1": "the loss is multiplied by accumulation steps × processes",
    "R1": "a trainer's logged loss is not the mean over its items",
    "F2": "mask, padding side, PAD id or pooling change a row's logits",
    "F3a": "the head's initial weights are too large",
    "F3b": "the labels do not fit the logits",
    "F5": "labels are shifted by one too many or too few",
    "F6": "packed documents attend to each other",
    "F7": "tokenizer and weights do not belong together",
    "S2": "PAD is EOS, so that EOS is never learned",
    "S3": "config.pad_token_id is not the tokenizer's",
    "S4": "ids without a row in the embedding",
    "S5": "labels out of range, of the wrong kind or constant",
    "S6": "rows longer than the model's positions",
    "S7": "no text ends with EOS",
    "S8": "rows without tokens",
    "S9": "doubled BOS, an empty assistant mask, a prompt that is not a prefix",
    "S11": "left padding where positions count from the left",
    "B2": "the collator drops, inverts or fills the attention mask",
    "B3a": "padding is labelled",
    "B3b": "EOS occurs in the batch but is never a target",
    "B3c": "a row has no target",
    "B3d": "the collator shifts labels that the model shifts again",
    "B4": "a token other than the last one is pooled",
    "O1": "parameters get no gradient, or a NaN one",
    "O2": "updates are lost in bfloat16",
    "O3": "the model cannot learn one batch",
    "O4": "the optimizer lacks parameters",
    "O5": "the warm-up never ends",
    "O6": "a gradient norm is taken for unhealthy",
    "O7": "the optimizer's settings cancel the updates or decay the weights away",
    "K1": "weights are not loaded",
    "K2": "NaN is hidden from the log",
    "K3": "a resumed run differs from the one that it continues",
    "D1": "test rows are in train",
    "D2": "equal texts have different labels",
    "D3": "truncation cuts the texts",
    "D4": "the tokenizer does not cover the text",
    "D5": "the text is damaged, or cut into far more tokens than it needs",
    "D6": "rows sorted by label, classes missing or far apart in size",
    "T1": "a tokenizer that is slow, or differs from its own files",
    "E1": "more threads and workers than cores",
    "E2": "variables that are harmful, contradictory or without effect",
    "E3": "memory or disk does not suffice",
    "E4": "versions or devices with known defects",
}
"""Every cause that the checks are there for. F and R need a forward pass, S none, B a batch, O steps, K a checkpoint, D data, T the tokenizer, E the environment."""


def page_of(kind: CheckKind) -> Page | None:
    """What is written about a check; None when nothing is.

    Raises:
        PluginError: its file is not as it must be; names file and key.
    """
    if kind.page is not None:
        return kind.page
    file = _beside(kind)
    return read_page(file) if file is not None and file.is_file() else None


def read_page(file: Path) -> Page:
    """A page from its TOML file.

    Raises:
        PluginError: no TOML, a key that is missing, unknown or of the wrong kind.
    """
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PluginError(f"{file}: {error}", "It must be TOML in UTF-8, with the fields of ftcli.contracts.Page as keys.") from error
    return Page(
        **{name: _value(file, name, found.pop(name, None)) for name in [field.name for field in fields(Page)]}, **_none(file, found)
    )


def _value(file: Path, name: str, value: Any) -> Any:
    if name in {"references", "causes", "loss"}:
        value = [] if value is None else value
        known = {"causes": CAUSES, "loss": SYMPTOMS}.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) and (known is None or item in known) for item in value):
            of = f" of {', '.join(known)}" if known else ""
            raise PluginError(f"{file}: {name} = {value!r}", f"It must be a list of texts{of}.")
        return tuple(value)
    if not isinstance(value, str) or not value.strip():
        raise PluginError(f"{file}: {name} is missing", "It must be a text.")
    return value.strip()


def _none(file: Path, rest: Mapping[str, Any]) -> dict[str, Any]:
    if rest:
        raise PluginError(f"{file}: unknown key {next(iter(rest))!r}", f"Keys: {', '.join(field.name for field in fields(Page))}.")
    return {}


def _beside(kind: CheckKind) -> Path | None:
    try:
        source = inspect.getsourcefile(inspect.unwrap(kind.run))
    except TypeError:  # a built-in, or an object that is called
        return None
    return Path(source).parent / "pages" / f"{kind.id}.toml" if source else None
