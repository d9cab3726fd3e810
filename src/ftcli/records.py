"""The records passed between layers: frozen, standard library only, each serialised by `to_json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

REPORT_SCHEMA = "ftcli.report/1"
MANIFEST_SCHEMA = "ftcli.manifest/1"
MANIFEST_NAME = "ftcli-manifest.json"
RUN_NAME = "ftcli-run.json"

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
CheckStatus = Literal["pass", "info", "warn", "fail", "error", "skipped"]
RunStatus = Literal["ok", "failed", "interrupted"]
LABELLED = frozenset({"classify", "regress"})
"""Tasks with one label per row, in which a decoder has to find the last token of a text."""
STAGES = ("env", "settings", "tokenizer", "data", "batch", "model", "steps")

_PLAIN = frozenset({str, int, bool, type(None)})


def to_json(value: Any) -> Any:
    """Any record, path, mapping or sequence in a form that `json.dumps` accepts; a non-finite float becomes null."""
    if type(value) in _PLAIN:  # most of what is in a record: a tenth of the time of what follows
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None  # noqa: PLR0124 - NaN test
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):  # a numpy or torch scalar
        return to_json(value.item())
    return value


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value and its origin ("--num-proc", "DATASET_NUM_PROC", "run.toml", "profile highend", "default")."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Choice:
    """An automatic choice and its reason: `Choice(2, "48 by profile highend, 2 used: 2 cores by affinity")`."""

    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Tweak:
    """The value that the `environment` hook wants for one environment variable, and the reason."""

    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_bytes: int
    """0: unknown, or shared with the system."""
    capability: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """What this process may use; `how` gives the source of every figure (key: field name, value: text)."""

    cores: int
    memory_bytes: int
    memory_available_bytes: int
    cpu_model: str
    cpu_flags: tuple[str, ...]
    """Only the relevant ones: avx2, avx512f, avx512_bf16, amx_bf16."""
    disk_kind: Literal["ssd", "hdd", "memory", "network", "unknown"]
    disk_free_bytes: int
    gpus: tuple[Gpu, ...]
    platform: str
    python: str
    load_average: float | None
    how: Mapping[str, str]
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of ftcli, of the libraries that determine its speed, and of the GPU driver, if installed."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    name: str
    version: str
    origin: str
    """"built-in", "entry point NAME of DISTRIBUTION" or the file's path."""
    file_hash: str
    hooks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """One verdict of `verify`.

    `evidence` holds the figures, decoded text and row numbers on which the verdict is based; `fix` is one sentence, empty on pass.
    """

    id: str
    stage: str
    status: CheckStatus
    summary: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""
    severity: str = ""
    """The worst status that this check returns by itself: "info", "warn" or "fail"."""
    page: str = ""
    """Where the check is explained: "docs/checks/FT101.md"; for a plugin's check the command that prints its page; empty if there is no page."""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """A figure with its spread: median and 95 % bootstrap interval over n runs."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    n: int
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one source file: `unit` is the unit of start and stop ("bytes", "rows", "file")."""

    path: str
    format: str
    start: int
    stop: int
    unit: str
    size: int
    """Bytes on disk of this piece, used for balancing and for progress."""


BadCode = Literal[
    "not-utf8",
    "not-json",
    "not-an-object",
    "missing-field",
    "duplicate-key",
    "wrong-type",
    "null",
    "out-of-range",
    "surrogate",
    "line-too-long",
    "too-deep",
    "ragged",
    "unterminated-quote",
    "unknown-label",
    "too-many-tokens",
    "template",
]
"""Why a row is rejected; the list is closed."""


LabelKind = Literal["string", "int", "strings", "ints", "bool", "float"]
"""The type of a label column: one label per row, or a list of labels; "bool" only if each label has its own column, "float" only in mode regress."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns to read. `label_kind` is determined once, while planning, so that every worker reads the same type."""

    text: str
    label: str | None = None
    label_kind: LabelKind | None = None
    label_separator: str | None = None
    """Separator of labels in a string column; readers return the strings unchanged, `read_shard` splits them."""
    labels_only: bool = False
    """Batches hold only `label`: the text column is neither decoded nor checked."""
    pair: str | None = None
    """Column with a second text per row; batches have it as `pair`."""
    flags: tuple[str, ...] = ()
    """Columns of labels that have one column each, which holds whether the label is set. Readers return them as that many columns named `label`, in this order; `read_shard` turns them into lists."""
    flag_kinds: tuple[LabelKind, ...] = ()
    """"string", "int" or "bool" for each."""
    number: bool = False
    """The label is a number to predict; `label_kind` is "float", or "string" in text tables."""
    chat: tuple[str, ...] | None = None
    """Columns of conversations (mode sft). A row has some of them; `text` in a batch is the result of `ftcli.core.reading.conversation.as_document`."""
    renamed: tuple[tuple[str, str], ...] = ()
    """(column in the data, known conversation column that it is read as)."""

    @property
    def multi_label(self) -> bool:
        """Whether a row may have several labels."""
        return (
            bool(self.flags) or self.label_kind in {"strings", "ints"} or (self.label_kind == "string" and self.label_separator is not None)
        )


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used, with its position in the decompressed content; None if unknown."""

    path: str
    code: BadCode
    reason: str
    """Message for users, without the position."""
    line: int | None = None
    """Counted from 1, in formats with lines."""
    row: int | None = None
    """Counted from 1, in formats without lines."""
    start: int | None = None
    """Offset of the first byte."""
    size: int | None = None
    """Bytes, without the line end."""
    field: str | None = None
    raw: bytes | None = None
    """The row's bytes; truncated in a rejects file."""
    sha256: str | None = None
    """Hash of the whole row, if `raw` is only its beginning."""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """A deterministic unit of work. Nothing here depends on the number of workers."""

    index: int
    split: Split
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Report:
    """What a command returns; `to_json` turns it into the document of `--json`."""

    command: str
    status: RunStatus
    seconds: float
    metrics: Mapping[str, Any]
    checks: tuple[Check, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    machine: Machine | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)
    plugins: tuple[PluginInfo, ...] = ()
    error: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()
    """Automatic choices with their reasons, and warnings, in order of occurrence."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Data behind the plots (histograms, curves); not part of the fixed metric names."""
    schema: str = REPORT_SCHEMA


@dataclass(frozen=True, slots=True)
class Step:
    """What `on_step` plugins receive after an optimizer step; unknown figures are None."""

    step: int
    epoch: float
    loss: float | None
    grad_norm: float | None
    learning_rate: float | None
