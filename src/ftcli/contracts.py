"""The interface of each kind of pluggable part, one protocol per kind. Types of heavy libraries are imported for type checking only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ftcli.errors import WorkerDied
from ftcli.records import BadRow, Check, Choice, Piece, ShardPlan
from ftcli.records import Columns as Columns  # noqa: PLC0414 - those who write a format take it from here
from ftcli.records import LabelKind as LabelKind  # noqa: PLC0414

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch
    from transformers import PreTrainedTokenizerBase

    from ftcli.core.storage.store import Rows, Store
    from ftcli.settings import Settings


Reject = Callable[[BadRow], None]
"""Called by a reader for each bad row. `ftcli.core.reading.reject` has the strict one, which raises, and the quarantine."""

# -- sources -----------------------------------------------------------------------------------------------------------


class SourceFormat(Protocol):
    """Reads one kind of file. Instances hold no state, so that workers can build their own."""

    name: str
    suffixes: tuple[str, ...]
    """Lower case, with the dot; a trailing .gz, .zst, .bz2, .xz or .lz4 is removed before the comparison."""

    def claims(self, item: str) -> bool:
        """Whether a source whose format no suffix determines (a directory, a Hub id) has this format."""
        ...

    def expand(self, item: str, settings: Settings) -> Mapping[str | None, Sequence[str]]:
        """The files of a claimed item by the item's own split names (None: the planner determines the split from the file name).

        The planner maps aliases ("valid", "dev") and reports which other splits it skips. Never called for a plain file.
        """
        ...

    def plan(self, path: str, target_bytes: int, settings: Settings) -> list[Piece]:
        """Divide one file into pieces of about `target_bytes`, in order, that cover it exactly once.

        Raises:
            DataError: the file does not have this format; names file and reason.
        """
        ...

    def label_kind(self, path: str, column: str, settings: Settings) -> LabelKind | None:
        """The type of the label column, from the first row that shows it; None if no row does (under quarantine, or if all lists are empty)."""
        ...

    def read(self, piece: Piece, columns: Columns, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
        """Record batches with `text` (large_string, UTF-8 checked, no nulls) and, if asked for, `label` (large_string, int64 or bool, or a list
        of strings or numbers; no nulls).

        Args:
            reject: called for every bad row, in file order, before a batch with a later row is yielded. Values are not converted.
                It raises if bad rows are not allowed, so a reader simply continues after the call.

        Raises:
            DataError: the file itself is damaged, so the lost rows are unknown; names file and reason.
        """
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a row: its first byte in formats with lines, its number, counted from 1, in formats without."""

    start: int | None = None
    line: int | None = None
    """Counted from 1; None: derived from `start`."""
    row: int | None = None
    raw: bytes | None = None


@runtime_checkable
class Locating(Protocol):
    """A format that can locate a row that turns out to be bad only after it was read (such as a text with too many tokens)."""

    def places(self, piece: Piece, settings: Settings) -> Iterator[Place]:
        """Positions of all rows of the piece, good or bad, in the order in which `read` yields or rejects them. Slow: used on error paths only."""
        ...


# -- engines -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of n texts: row i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: np.ndarray[Any, np.dtype[np.int32]]
    offsets: np.ndarray[Any, np.dtype[np.int64]]


class Encoder(Protocol):
    """An engine loaded for one tokenizer."""

    def encode(self, texts: pa.Array) -> Encoded:
        """Ids without the post-processor's special tokens, never truncated; special tokens written in the text are recognised as by the reference."""
        ...


class Engine(Protocol):
    """Builds encoders from a serialised `tokenizers` backend (tokenizer.json without truncation and padding)."""

    name: str
    version: str
    rank: int
    """Lower is tried first by `--tokenizer-engine auto`; `hf`, the reference, is last."""

    def load(self, backend_json: str, folder: Path, threads: int) -> Encoder:
        """
        Args:
            backend_json: the tokenizer's serialised backend; empty for a slow tokenizer.
            folder: the tokenizer folder, for the engine that loads it whole (`hf`).
            threads: threads that the encoder may use. A class that starts no thread when this is 1 sets `single_threaded = True`; workers are then copies of one process.

        Raises:
            EngineError: the engine does not support this kind of tokenizer.
        """
        ...


# -- packers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packs:
    """The assignment of documents (or parts of them) to packs. Parts are listed pack by pack, within a pack in document order.

    `document`, `start`, `length` have one entry per part (int64); pack p holds parts `pack_offsets[p]:pack_offsets[p + 1]`.
    """

    document: np.ndarray[Any, np.dtype[np.int64]]
    start: np.ndarray[Any, np.dtype[np.int64]]
    length: np.ndarray[Any, np.dtype[np.int64]]
    pack_offsets: np.ndarray[Any, np.dtype[np.int64]]


class Packer(Protocol):
    """Deterministic: the same lengths give the same packs on every machine."""

    name: str

    def pack(self, lengths: np.ndarray[Any, np.dtype[np.int64]], max_length: int) -> Packs:
        """
        Args:
            lengths: tokens of each document, each in 1..max_length unless `splits` is True.
            max_length: tokens a pack may hold.
        """
        ...

    @property
    def splits(self) -> bool:
        """Whether documents longer than max_length are accepted (and split into parts)."""
        ...


# -- tasks -------------------------------------------------------------------------------------------------------------


class Task(Protocol):
    """The training objective: the columns it needs, the model class, and the loss expected before the first step."""

    name: str
    needs_labels: bool

    def model_class(self) -> Any:
        """The `AutoModelFor…` class."""
        ...

    def configure(self, config: Any, store: Store, tokenizer: PreTrainedTokenizerBase) -> None:
        """Set the task's values in the model configuration (label map, pad token, use_cache), in place."""
        ...

    def chance_loss(self, config: Any, store: Store) -> float:
        """Loss of uniform guessing: ln(labels) or ln(vocabulary)."""
        ...

    def labels(self, rows: Rows) -> np.ndarray[Any, np.dtype[Any]]:
        """One label per row (classify; int64), or 0 or 1 for each label (multi-label; float32 [rows, labels]), or one label per token (pretrain;
        int64, -100 on the first token of every document), not shifted."""
        ...

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
        """Summed cross-entropy in fp32 divided by `items` (the number of targets in the whole optimizer step, all ranks), or by the batch's own number of targets if None."""
        ...


# -- collators ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """What a collator needs to know about the run."""

    pad_token_id: int
    padding_side: Literal["left", "right"]
    max_length: int
    pad_to_multiple_of: int
    task: Task


class Collator(Protocol):
    """The only place that pads or makes tensors. Called with `Rows`, returns the model's keyword arguments."""

    def __call__(self, rows: Rows) -> dict[str, torch.Tensor]:
        """`input_ids` int64 [rows, width], `labels` as `Task.labels` defines them, and `attention_mask` or `position_ids` int64 [rows, width]."""
        ...


@dataclass(frozen=True, slots=True)
class CollatorKind:
    """How to create a collator, and how rows are grouped into its batches."""

    make: Callable[[BatchSpec], Collator]
    order: Literal["random", "grouped"] = "random"
    """"grouped": batches of similar length, shuffled."""
    packed: bool = False
    """Accepts rows that hold several documents (`seq_lengths`)."""


# -- checks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page:
    """The text about a check: for its page in the documentation, `verify --explain` and the HTML report. Markdown, a few sentences per field."""

    symptom: str
    """What a user observes when the cause is present."""
    cause: str
    found: str
    """How the check detects it: the formula, the threshold, and the source of the threshold."""
    fix: str
    references: tuple[str, ...] = ()
    """Issues, documentation: "[words](https://…)"."""
    causes: tuple[str, ...] = ()
    """Ids of `ftcli.core.verify.catalogue.CAUSES` that this check finds."""
    loss: tuple[str, ...] = ()
    """Symptoms of `ftcli.core.verify.catalogue.SYMPTOMS` under which "Why is my loss wrong?" lists the check."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A reversible change that a check proposes: one key in one JSON file of a folder, applied to a copy of the folder."""

    part: Literal["tokenizer", "model"]
    """The folder of `tokenizer.path`, or of the model configuration."""
    file: str
    key: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class CheckKind:
    """A check as registered: `run` gets a `ftcli.core.verify.probe.Probe` and returns its verdict; `id` and `stage` are filled in."""

    id: str
    stage: str
    title: str
    run: Callable[[Any], Check]
    needs: tuple[str, ...] = ()
    """Parts of the probe that it reads: "tokenizer", "store", "batch", "model", "forward", "gradients"."""
    severity: Literal["info", "warn", "fail"] = "fail"
    """The worst status it can return, for the documentation and `--fail-on`."""
    page: Page | None = None
    """Its documentation. None: read from `pages/ID.toml` next to the module of `run`, with the fields of `Page` as keys."""
    after: tuple[str, ...] = ()
    """Ids of checks that must pass first: if one of them fails, this one is skipped, with that reason."""
    mend: Callable[[Any, Check], Sequence[Edit]] | None = None
    """Edits that `verify --fix` applies to a copy: receives the probe and the verdict, returns safe edits only, or none."""


# -- executors ---------------------------------------------------------------------------------------------------------


Rescue = Callable[[WorkerDied, ShardPlan], Callable[[ShardPlan], Any]]
"""Returns the function that redoes a shard whose worker crashed or hung, or raises the error."""


class Executor(Protocol):
    """Runs work on shards. One per command: `start`, then any number of `each` and `run`, then `close`, also after an error."""

    name: str

    def start(self, workers: int) -> None:
        """Start this many workers, without waiting for them; called before the work is known, and again if the number changes."""
        ...

    def each(self, function: Callable[[], Any]) -> list[Any]:
        """Call a function once in every worker and wait for the results: it loads what the shards will need, before timing starts.

        If `close` is called meanwhile from another thread, this raises.
        """
        ...

    def run(
        self,
        function: Callable[[ShardPlan], Any],
        shards: Sequence[ShardPlan],
        on_progress: Callable[[int, int, int, str], None],
        rescue: Rescue | None = None,
    ) -> Iterator[Any]:
        """Yield `function(shard)` for every shard as it completes, in any order; every failure is raised.

        Args:
            function: picklable.
            on_progress: `on_progress(bytes, rows, tokens, file)` adds to the progress bar.
            rescue: called if a worker ended by itself in a shard (an engine aborted or hung), but not if it was killed from outside.
        """
        ...

    def close(self) -> None:
        """End the workers, even if they are busy."""
        ...


@runtime_checkable
class Distant(Protocol):
    """An executor whose workers may be on other machines: it receives the settings and the directory, and determines its own number of workers."""

    def connect(self, settings: Settings) -> Choice:
        """Connect to the machines; called once, before `start`. Returns the number of workers there is room for, with the reason.

        Raises:
            FtcliError: the machines cannot be reached.
        """
        ...

    def share(self, directory: Path) -> None:
        """Ensure that every worker, including later ones, sees this directory as this process does. Called before work that writes there.

        Raises:
            PublishError: a machine does not see it; names the machine.
        """
        ...
