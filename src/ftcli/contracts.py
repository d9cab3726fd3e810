"""What a plugged-in part must look like: one protocol per kind. Types of heavy libraries are named for the reader only."""

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
"""What a reader does with a bad row: `ftcli.core.reading.reject` has the strict one, which raises, and the quarantine."""

# -- sources -----------------------------------------------------------------------------------------------------------


class SourceFormat(Protocol):
    """Reads one kind of file. Instances hold no state, so that workers can build their own."""

    name: str
    suffixes: tuple[str, ...]
    """Lower case, with the dot; a trailing .gz, .zst, .bz2, .xz or .lz4 is taken off before the comparison."""

    def claims(self, item: str) -> bool:
        """Whether a source that no suffix decides (a directory, a hub id) is of this format."""
        ...

    def expand(self, item: str, settings: Settings) -> Mapping[str | None, Sequence[str]]:
        """The files behind a claimed item by the item's own split names (None: the planner decides by file name).

        The planner maps aliases ("valid", "dev") and says which other splits it leaves out. Never called for a plain file.
        """
        ...

    def plan(self, path: str, target_bytes: int, settings: Settings) -> list[Piece]:
        """Cut one file into pieces of about `target_bytes`, in order, covering it exactly once.

        Raises:
            DataError: the file is not of this format; names file and reason.
        """
        ...

    def label_kind(self, path: str, column: str, settings: Settings) -> LabelKind | None:
        """What the label column holds, from the first row that tells; None when none does (under quarantine, or lists that are all empty)."""
        ...

    def read(self, piece: Piece, columns: Columns, settings: Settings, reject: Reject) -> Iterator[pa.RecordBatch]:
        """Record batches with `text` (large_string, UTF-8 checked, no nulls) and, if asked for, `label` (large_string, int64 or bool, or a list
        of strings or numbers; no nulls).

        Args:
            reject: called for every bad row, in the order of the file, before a batch with a later row is given out. Nothing is coerced.
                It raises where bad rows are not wanted, so that a reader simply goes on behind it.

        Raises:
            DataError: the file itself is damaged, so that it is unknown which rows are lost; names file and reason.
        """
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row lies: by its first byte in formats that have lines, by its number from 1 in those that have none."""

    start: int | None = None
    line: int | None = None
    """From 1; None: it is counted from `start`."""
    row: int | None = None
    raw: bytes | None = None


@runtime_checkable
class Locating(Protocol):
    """A format that can say where a row lies that was found to be bad only after it was read (a text of too many tokens)."""

    def places(self, piece: Piece, settings: Settings) -> Iterator[Place]:
        """Places of all rows of the piece, good or bad, in the order in which `read` gives them out or rejects them. Slow: for error paths."""
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
        """Ids without special tokens from the post-processor, never truncated; special-token text inside is recognised as the reference does."""
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
            threads: threads the encoder may use. A class that starts none for one says `single_threaded = True`: workers are then copies.

        Raises:
            EngineError: this tokenizer is not of a kind that the engine handles.
        """
        ...


# -- packers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packs:
    """Where documents (or parts of them) go. Parts are listed pack by pack, inside a pack in document order.

    `document`, `start`, `length` have one entry a part (int64); pack p holds parts `pack_offsets[p]:pack_offsets[p + 1]`.
    """

    document: np.ndarray[Any, np.dtype[np.int64]]
    start: np.ndarray[Any, np.dtype[np.int64]]
    length: np.ndarray[Any, np.dtype[np.int64]]
    pack_offsets: np.ndarray[Any, np.dtype[np.int64]]


class Packer(Protocol):
    """Deterministic: the same lengths give the same packs, whatever the machine."""

    name: str

    def pack(self, lengths: np.ndarray[Any, np.dtype[np.int64]], max_length: int) -> Packs:
        """
        Args:
            lengths: tokens of each document; every one is in 1..max_length unless `splits` is True.
            max_length: tokens a pack may hold.
        """
        ...

    @property
    def splits(self) -> bool:
        """Whether documents longer than max_length are accepted (and cut into parts)."""
        ...


# -- tasks -------------------------------------------------------------------------------------------------------------


class Task(Protocol):
    """What is learned: which columns it needs, which model class, which loss is expected before the first step."""

    name: str
    needs_labels: bool

    def model_class(self) -> Any:
        """The `AutoModelFor…` class."""
        ...

    def configure(self, config: Any, store: Store, tokenizer: PreTrainedTokenizerBase) -> None:
        """Set what the task decides in the model's configuration (label map, pad token, use_cache), in place."""
        ...

    def chance_loss(self, config: Any, store: Store) -> float:
        """Loss of uniform guessing: ln(labels) or ln(vocabulary)."""
        ...

    def labels(self, rows: Rows) -> np.ndarray[Any, np.dtype[Any]]:
        """One label a row (classify; int64), or whether each label holds (float32 [rows, labels]), or one a token (pretrain; int64, -100 on
        the first token of every document), not shifted."""
        ...

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
        """Summed cross-entropy in fp32 divided by `items` (targets of the whole optimizer step, all ranks); by the batch's own targets when None."""
        ...


# -- collators ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """What a collator needs to know of the run."""

    pad_token_id: int
    padding_side: Literal["left", "right"]
    max_length: int
    pad_to_multiple_of: int
    task: Task


class Collator(Protocol):
    """The only place that pads or makes tensors. Called with `Rows`, returns the model's keyword arguments."""

    def __call__(self, rows: Rows) -> dict[str, torch.Tensor]:
        """`input_ids` int64 [rows, width], `labels` as the task has them, and `attention_mask` or `position_ids` int64 [rows, width]."""
        ...


@dataclass(frozen=True, slots=True)
class CollatorKind:
    """How a collator is made and which rows it wants together."""

    make: Callable[[BatchSpec], Collator]
    order: Literal["random", "grouped"] = "random"
    """"grouped": batches of similar length, shuffled."""
    packed: bool = False
    """Accepts rows that hold several documents (`seq_lengths`)."""


# -- checks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page:
    """What is written about a check: for its page in the documentation, `verify --explain` and the HTML report. Markdown, a few sentences each."""

    symptom: str
    """What a user sees when the cause is there."""
    cause: str
    found: str
    """How the check finds it: the formula, the threshold, and where the threshold comes from."""
    fix: str
    references: tuple[str, ...] = ()
    """Issues, documentation: "[words](https://…)"."""
    causes: tuple[str, ...] = ()
    """Ids of `ftcli.core.verify.catalogue.CAUSES` that this check finds."""
    loss: tuple[str, ...] = ()
    """Symptoms of `ftcli.core.verify.catalogue.SYMPTOMS` under which "Why is my loss wrong?" lists the check."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A reversible change that a check proposes: one key of one JSON file of a folder, made in a copy of the folder."""

    part: Literal["tokenizer", "model"]
    """The folder of `tokenizer.path`, or that of the model's configuration."""
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
    """Parts of the probe it reads: "tokenizer", "store", "batch", "model", "forward", "gradients"."""
    severity: Literal["info", "warn", "fail"] = "fail"
    """The worst verdict it can give, for documentation and `--fail-on`."""
    page: Page | None = None
    """What is written about it. None: the file `pages/ID.toml` beside the module of `run`, with the fields of `Page` as keys."""
    after: tuple[str, ...] = ()
    """Ids of checks that must have passed: where one of them fails, this one is skipped and says so."""
    mend: Callable[[Any, Check], Sequence[Edit]] | None = None
    """What `verify --fix` changes for it in a copy: gets the probe and the verdict, returns safe edits only; none when there is no safe one."""


# -- executors ---------------------------------------------------------------------------------------------------------


Rescue = Callable[[WorkerDied, ShardPlan], Callable[[ShardPlan], Any]]
"""What does a shard whose worker crashed or hung: another function, or the error is raised."""


class Executor(Protocol):
    """Runs shard work somewhere. One for a command: `start`, then `each` and `run` in any number, then `close`, also after an error."""

    name: str

    def start(self, workers: int) -> None:
        """Get ready for so many workers, without waiting for them; called before the work is known, and again when their number changes."""
        ...

    def each(self, function: Callable[[], Any]) -> list[Any]:
        """Call a function once in every worker, and wait for their answers: it loads what the shards will need, before a clock starts.

        `close` may be called meanwhile from another thread; then it raises.
        """
        ...

    def run(
        self,
        function: Callable[[ShardPlan], Any],
        shards: Sequence[ShardPlan],
        on_progress: Callable[[int, int, int, str], None],
        rescue: Rescue | None = None,
    ) -> Iterator[Any]:
        """Yield `function(shard)` for every shard as it ends, in any order; every failure is raised.

        Args:
            function: picklable.
            on_progress: `on_progress(bytes, rows, tokens, file)` adds to the bar.
            rescue: asked when a worker ended by itself in a shard (an engine aborted, or hung); not when it was killed from outside.
        """
        ...

    def close(self) -> None:
        """End the workers, whatever they do."""
        ...


@runtime_checkable
class Distant(Protocol):
    """An executor whose workers may be on other machines: it is told more than the others, and has its own number of cores."""

    def connect(self, settings: Settings) -> Choice:
        """Reach the machines; called once, before `start`. How many workers there is room for, and why so many.

        Raises:
            FtcliError: they cannot be reached.
        """
        ...

    def share(self, directory: Path) -> None:
        """Make sure that every worker, also one that comes later, sees this directory as this process does. Called before work that writes there.

        Raises:
            PublishError: a machine does not; names it.
        """
        ...
