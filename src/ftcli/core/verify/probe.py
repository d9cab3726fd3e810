"""What checks look at: each part of the planned run, built once, on first use, exactly as `train` builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ftcli.context import Context
from ftcli.contracts import BatchSpec, Collator, Task
from ftcli.core.batches.collating import made
from ftcli.core.batches.slots import TokenBatches, planned
from ftcli.core.batches.watched_task import watched
from ftcli.core.storage.store import Rows, SplitData, Store
from ftcli.core.tokenizer.facts import hash_of, ids_of, loaded
from ftcli.core.tokenizer.vocabulary import beside_embedding
from ftcli.core.verify.first_batch import draw, excerpt_of, read_back, require_targets
from ftcli.core.verify.missing import Missing
from ftcli.core.verify.planned_data import open_store, read_texts, unprepared
from ftcli.errors import FtcliError, ModelError, PluginError
from ftcli.records import LABELLED

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ftcli.core.prepare.own_texts import OwnTexts
    from ftcli.core.tokenizer.chat import Tried
    from ftcli.core.tokenizer.round_trip import Ids
    from ftcli.core.tokenizer.without_torch import Light
    from ftcli.core.verify.forward import Forward, Gradients
    from ftcli.core.verify.rehearsal import Rehearsal

__all__ = ("MOST_LOGITS", "Missing", "Probe")

MOST_LOGITS = 2**28
"""Logits of a language model's audited batch: 1 GiB in fp32, of which backward holds four. Packs of 1,024 tokens and 151,669 ids: 1."""
T = TypeVar("T")


class Probe:
    """The parts of one planned run. Asking for a part that cannot be built raises `Missing` (not given) or `FtcliError` (unusable)."""

    def __init__(self, context: Context, light: Light | None = None) -> None:
        """`light`: how tokenizer and configuration are loaded where no model is wanted."""
        self.context = context
        self._load: Callable[[Callable[[], Any]], Any] = light.load if light else lambda build: build()
        self.settings = context.settings
        self.machine = context.machine
        self._parts: dict[str, Any] = {}

    def origin(self, key: str) -> str:
        """Where a setting's value comes from."""
        return self.context.resolved.origin(key)

    def num_proc(self) -> int | None:
        """dataset.num_proc, or None where it is of no effect: the data are prepared."""
        try:
            prepared = bool(self.settings.dataset.sources) and not unprepared(self.settings)
        except FtcliError:  # FT201 says what is wrong with them
            prepared = False
        return None if prepared else self.settings.dataset.num_proc

    def set_by_user(self, key: str) -> bool:
        origin = self.origin(key)
        return origin != "default" and not origin.startswith("profile ")

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._part("tokenizer", self._load_tokenizer)

    @property
    def tokenizer_hash(self) -> str:
        return self._part("tokenizer_hash", lambda: hash_of(self))

    @property
    def pad(self) -> int | None:
        """The id of PAD; unusable where the task needs one and there is none, which is one cause for all that stands on it."""
        from ftcli.core.batches.tasks import pad_id

        return self._part("pad", lambda: pad_id(self.tokenizer, needed=self.task_name in LABELLED))

    @property
    def pieces(self) -> list[bytes] | None:
        """Bytes of every token that the data have; None of a slow tokenizer."""
        from ftcli.core.storage.documents import pieces

        return self._part("pieces", lambda: pieces(self.tokenizer, self.store))

    @property
    def store(self) -> Store:
        return self._part("store", lambda: open_store(self.context))

    @property
    def texts(self) -> OwnTexts:
        """A sample of the texts that the run learns from, raw."""
        return self._part("texts", lambda: read_texts(self.context))

    @property
    def text_ids(self) -> Ids:
        """The sample with its ids."""
        return self._part("text_ids", self._encode_texts)

    @property
    def chat(self) -> tuple[Tried, str, bool]:
        """The chat template tried on the user's conversations, else on samples; what they are called, and whether they are the user's."""
        return self._part("chat", self._try_chat)

    @property
    def train_split(self) -> SplitData:
        return self.store.split("train")

    @cached_property
    def task_name(self) -> str:
        """The task of the run: what the user says, else what the labels of the data suggest."""
        if self.settings.train.mode:
            return self.settings.train.mode
        try:
            return self.store.task_name
        except (Missing, FtcliError):  # FT201 says what is wrong with them
            return "classify" if self.settings.dataset.labelled else "pretrain"

    @property
    def task(self) -> Task:
        return self._part("task", self._make_task)

    @property
    def rows(self) -> Rows:
        """The audited rows: random ones of the train split, the shortest and the longest of a larger draw among them."""
        return self._part("rows", lambda: draw(self, MOST_LOGITS))

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The audited rows as people read them."""
        return self._part("shown", lambda: read_back(self))

    @property
    def collator_name(self) -> str:
        return self._part("collator_name", self._choose_collator)

    @property
    def collator(self) -> Collator:
        return self._part("collator", lambda: self.make_collator(self.collator_name))

    @property
    def token_batches(self) -> TokenBatches | None:
        """The run's batches, where `train.max_tokens_per_batch` decides how many rows they have."""
        return self._part("token_batches", lambda: planned(self))

    @property
    def batch(self) -> Mapping[str, torch.Tensor]:
        """The first batch as the collator makes it, "input_ids" and "labels" in it."""
        return self._part("batch", lambda: self.collate(self.rows))

    @property
    def excerpt(self) -> tuple[Rows, Mapping[str, torch.Tensor]]:
        """A few short ones of the audited rows, and the batch that the collator makes of them, for what needs no full batch."""
        return self._part("excerpt", lambda: excerpt_of(self))

    @property
    def places(self) -> NDArray[np.bool_]:
        """Where the rows' tokens stand in the first batch, [rows, width]."""
        return self._part("places", self._find)

    @property
    def config(self) -> Any:
        """The model's configuration as given, before the task sets its part."""
        return self._part("config", lambda: self._load(self._load_config))

    @property
    def vocabulary(self) -> tuple[int, int]:
        """Ids of the tokenizer, and rows of the embedding, which are as many or more."""
        return self._part("vocabulary", lambda: beside_embedding(ids_of(self).rows, self.config))

    @property
    def model(self) -> PreTrainedModel:
        """The model in fp32, in evaluation mode, on the CPU; with LoRA, or frozen, as the run will train it."""
        return self._part("model", self._build_model)

    @property
    def forward(self) -> Forward:
        """Logits and loss of the audited batch."""
        return self._part("forward", self._run_forward)

    @property
    def sound_forward(self) -> Forward:
        """`forward`, where its logits are numbers; else `Missing`."""
        result = self.forward
        if not result.finite:
            raise Missing("the logits are not finite (see FT404)")
        return result

    @property
    def gradients(self) -> Gradients:
        """Gradients of the audited batch."""
        return self._part("gradients", self._run_backward)

    @property
    def rehearsal(self) -> Rehearsal:
        """The first update by the run's own Trainer, of two batches at least."""
        return self._part("rehearsal", self._rehearse)

    def require_supported(self) -> None:
        """Raises `SettingsError` or `MissingExtraError`: `train` refuses a setting, as far as that is known without torch."""
        from ftcli.core.training.refused import refuse_settings

        self._part("supported", lambda: refuse_settings(self.settings))

    def give(self, **parts: Any) -> None:
        """Parts that the caller has built already: store=…, tokenizer=…"""
        self._parts.update(parts)

    def ready(self, name: str) -> Any:
        """A part that a check has built, else None."""
        part = self._parts.get(name)
        return None if isinstance(part, (FtcliError, Missing)) else part

    def _part(self, name: str, build: Callable[[], T]) -> T:
        """Build once; a part that failed fails the same way each time, without the cost."""
        if name not in self._parts:
            try:
                self._parts[name] = build()
            except (FtcliError, Missing) as error:
                self._parts[name] = error
        value: T = self._parts[name]
        if isinstance(value, (FtcliError, Missing)):
            raise value
        return value

    def _make_task(self) -> Task:
        said = "train.mode" if self.settings.train.mode else "the task of the prepared data"
        return watched(self.context.plugins.registry("task").get(self.task_name, said)(), self.task_name, self.context.plugins)

    def _load_tokenizer(self) -> Any:
        if not self.settings.tokenizer.path:
            raise Missing("no --tokenizer-path")
        return loaded(self, lambda: self._load(lambda: self.context.plugins.load_tokenizer(self.settings)))

    def _encode_texts(self) -> Ids:
        from ftcli.core.tokenizer.round_trip import Ids

        return Ids(self.tokenizer, self.texts.texts)

    def _try_chat(self) -> tuple[Tried, str, bool]:
        from ftcli.core.tokenizer.chat import SAMPLES, read_own, try_template

        own = read_own(self.settings).conversations
        return try_template(self.tokenizer, own or SAMPLES), "conversations of the data" if own else "samples", bool(own)

    def _choose_collator(self) -> str:
        if self.settings.loader.collator:
            return self.settings.loader.collator
        return "packed" if self.train_split.packed else "bucketed"

    def make_collator(self, name: str) -> Collator:
        """A collator by name, for this run's tokenizer, data and task. `train` pads on the right whatever the tokenizer says."""
        from ftcli.core.training.gate import check_collator

        tokenizer = self.tokenizer
        kind = self.context.plugins.registry("collator").get(name, "loader.collator")
        check_collator(name, kind, self.task, self.train_split, self.store)
        pad = next((found for found in (tokenizer.pad_token_id, tokenizer.eos_token_id) if found is not None), 0)
        return made(
            self.context.plugins,
            name,
            BatchSpec(
                pad_token_id=pad,
                padding_side="right",
                max_length=self.store.max_length,
                pad_to_multiple_of=self.settings.loader.pad_to_multiple_of,
                task=self.task,
            ),
        )

    def collate(self, rows: Rows) -> Mapping[str, torch.Tensor]:
        """The run's collator on some rows. Raises `PluginError` when one of a plugin breaks, or gives something else than tensors with ids and labels."""
        return self.collator(rows)

    def _find(self) -> NDArray[np.bool_]:
        from ftcli.core.verify.audit import token_places

        ids, lengths = self.batch["input_ids"].numpy(), self.rows.input_ids.lengths
        places = token_places(ids, self.rows)
        if len(ids) != len(lengths) or (places.sum(-1) != lengths).any():
            raise Missing("the batch does not hold the rows as they were prepared (see FT301)")
        return places

    def _load_config(self) -> Any:
        if (
            self.settings.model.config is None and self.settings.model.name_or_path is None
        ):  # before transformers and with it torch are imported
            raise Missing("no --model-config or --model-name-or-path")
        from ftcli.core.models.config import planned

        return planned(self.settings)

    def _build_model(self) -> Any:
        from ftcli.core.models.adapter import adapt, learned_type
        from ftcli.core.models.model import build

        _ = self.vocabulary, self.pad
        built = adapt(self.context, build(self.context, self.task, self.store, self.tokenizer), self.task)
        self.give(learned_type=learned_type(built))
        model = built.float().eval()
        model.config.use_cache = bool(self.settings.train.use_cache)  # as Trainer does; with a cache packed documents are not kept apart
        if "flash" in str(model.config._attn_implementation):
            self.context.note(f"checked with sdpa in place of {model.config._attn_implementation}, which has no float32")
            model.set_attn_implementation("sdpa")
        return model

    def _run_forward(self) -> Forward:
        from ftcli.core.verify.forward import forward

        model, batch, task = self.model, self.batch, self.task
        require_targets(batch, numbers=self.rows.numbers is not None)
        try:
            return forward(model, batch, task)
        except PluginError:
            raise
        except Exception as error:  # models check nothing: what does not fit is an IndexError, a RuntimeError or worse
            words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise ModelError(
                f"{type(model).__name__} cannot take the first batch: {words}",
                "Compare the batch (FT301) and the lengths (FT204) with the model's configuration.",
            ) from error

    def _run_backward(self) -> Gradients:
        result = self.forward
        self.require_memory(2)
        return result.gradients()

    def _rehearse(self) -> Rehearsal:
        from ftcli.core.verify.rehearsal import rehearse

        self.require_supported()  # the rehearsal leaves settings out
        return rehearse(self, updates=1, accumulation=max(2, self.settings.train.gradient_accumulation_steps), watch_weights=True)

    def require_memory(self, copies: int) -> None:
        """Raise `Missing` when `copies` of the fp32 weights, the model's own among them, do not fit into the memory that was free at the start."""
        need = 4 * copies * sum(parameter.numel() for parameter in self.model.parameters())
        free = self.machine.memory_available_bytes
        if need > free:
            raise Missing(f"it takes {need / 2**30:.0f} GB of memory, {free / 2**30:.0f} GB were free")
