"""What is learned: labels, model class, configuration and the true loss of each task."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ftcli.core.storage.store import Rows, Store
from ftcli.core.targets import IGNORED as IGNORED  # noqa: PLC0414 - those who know tasks take it from here
from ftcli.errors import DataError, TokenizerError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


def pad_id(tokenizer: PreTrainedTokenizerBase, *, needed: bool = True) -> int | None:
    """The id of PAD. Raises TokenizerError where there is none and it is needed."""
    found: int | None = tokenizer.pad_token_id
    if found is None and needed:
        raise TokenizerError(
            "the tokenizer has no PAD token, by which a decoder finds the last token of a text",
            f'Add "pad_token": "{tokenizer.eos_token or "<pad>"}" to tokenizer_config.json (for classification the EOS token will do), '
            "then prepare the data again.",
        )
    return found


MULTI_LABEL = "multi_label_classification"
"""transformers' `problem_type` of a classifier that may give a text any number of labels."""


REGRESSION = "regression"
"""transformers' `problem_type` of a head that predicts a number."""


class Classify:
    """One label a text, or any number of them where the prepared data have so, by a head on a pooled token."""

    name = "classify"
    needs_labels = True
    class_weights: NDArray[np.float32] | None = None
    """What counts in training; None: all the same. One label a text: of a row, by its label, [labels]. Any number: of a label that does not
    hold, and of one that does, [2, labels]."""

    def model_class(self) -> Any:
        from transformers import AutoModelForSequenceClassification  # 0.3 s, and `tokenize` needs no model

        return AutoModelForSequenceClassification

    def configure(self, config: Any, store: Store, tokenizer: PreTrainedTokenizerBase) -> None:
        """Label map, number of labels and special tokens.

        Raises:
            DataError: the store has no labels, or fewer than two.
            TokenizerError: there is no PAD token, by which a decoder finds the last token of a text.
        """
        pad = pad_id(tokenizer)
        names = label_names(store)
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}
        several = store.split("train").flags is not None
        config.problem_type = MULTI_LABEL if several else "single_label_classification"
        _special_tokens(config, tokenizer)
        config.pad_token_id = pad

    def chance_loss(self, config: Any, store: Store) -> float:  # noqa: ARG002 - the contract's
        """ln(labels), or ln 2 where each label is a question of its own."""
        return math.log(2 if config.problem_type == MULTI_LABEL else config.num_labels)

    def labels(self, rows: Rows) -> NDArray[Any]:
        """One a row, int64 [rows]; or whether each holds, float32 [rows, labels]."""
        if rows.flags is not None:
            return rows.flags
        if rows.labels is None:
            raise DataError("the prepared data have no labels", "Prepare them with --label-column.")
        return rows.labels

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
        """`logits` [rows, labels], `labels` [rows] or [rows, labels]. Of the latter the targets are rows × labels: the mean over all of them is
        what transformers' `BCEWithLogitsLoss` gives for one batch."""
        return _binary(logits, labels, items) if any_number(labels) else _cross_entropy(logits, labels, items)

    def training_loss(self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
        """As `loss`, each row by the weight of its label: divided by targets, not by weights, so that it does not depend on how a step is cut."""
        if self.class_weights is None:
            return self.loss(logits, labels, items)
        if any_number(labels):
            return _binary(logits, labels, items, self.class_weights)
        return _cross_entropy(logits, labels, items, self.class_weights)


class Regress:
    """A number a text, by a head of one output on a pooled token."""

    name = "regress"
    needs_labels = True
    center = 0.0
    """Mean of the numbers that are learned."""

    def model_class(self) -> Any:
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification

    def configure(self, config: Any, store: Store, tokenizer: PreTrainedTokenizerBase) -> None:
        """One output, named as the label column, and special tokens.

        Raises:
            DataError: the store has no numbers, or one number only.
            TokenizerError: there is no PAD token.
        """
        pad = pad_id(tokenizer)
        numbers = store.split("train").numbers
        if numbers is None:
            raise DataError(f"{store.path} was not prepared for numbers", "Prepare it with --mode regress and --label-column.")
        if numbers.std() == 0:
            raise DataError(
                f"{store.path}: every row of train has the number {numbers[0]:g}: there is nothing to learn", "Check the label column."
            )
        self.center = float(numbers.mean(dtype=np.float64))
        config.id2label = {0: str((store.manifest.get("inputs") or {}).get("dataset.label_column") or "number")}
        config.label2id = {config.id2label[0]: 0}
        config.problem_type = REGRESSION
        _special_tokens(config, tokenizer)
        config.pad_token_id = pad

    def chance_loss(self, config: Any, store: Store) -> float:  # noqa: ARG002 - the contract's
        """Of answering 0, as a fresh head does: the mean square of the numbers."""
        numbers = store.split("train").numbers
        return 1.0 if numbers is None else float(np.square(numbers, dtype=np.float64).mean())

    def labels(self, rows: Rows) -> NDArray[np.float32]:
        """One a row, float32 [rows]."""
        if rows.numbers is None:
            raise DataError("the prepared data have no numbers", "Prepare them with --mode regress.")
        return rows.numbers

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
        """`logits` [rows, 1], `labels` [rows]: the mean square of the difference, as transformers' `MSELoss` has it for one batch."""
        known = labels.ne(IGNORED)
        total = ((logits.float().squeeze(-1) - labels).square() * known).sum()
        return _over(total, known.sum() if items is None else items)


class Pretrain:
    """The next token of a text, never across texts."""

    name = "pretrain"
    needs_labels = False

    def model_class(self) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM

    def configure(self, config: Any, store: Store, tokenizer: PreTrainedTokenizerBase) -> None:  # noqa: ARG002 - the contract's
        """Special tokens. PAD is left out when it is EOS too: torch gives the padding row of an embedding no gradient, and EOS must be learned."""
        _special_tokens(config, tokenizer)
        config.pad_token_id = None if tokenizer.pad_token_id == tokenizer.eos_token_id else tokenizer.pad_token_id

    def chance_loss(self, config: Any, store: Store) -> float:  # noqa: ARG002 - the contract's
        """ln(rows of the output layer)."""
        return math.log(config.get_text_config().vocab_size)

    def labels(self, rows: Rows) -> NDArray[np.int64]:
        """One a token: the token itself, not shifted, but none at the start of a document."""
        labels = rows.input_ids.values.astype(np.int64)
        lengths = rows.input_ids.lengths if rows.seq_lengths is None else rows.seq_lengths.values.astype(np.int64)
        lengths = lengths[lengths > 0]
        labels[np.cumsum(lengths) - lengths] = IGNORED
        return labels

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
        """`logits` [rows, width, vocabulary], `labels` [rows, width] not shifted; position i predicts label i + 1."""
        from torch.nn import functional  # 1.3 s, and `tokenize` asks a task only whether it needs labels

        shifted = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)  # moving the labels spares a copy of the logits
        return _cross_entropy(logits.flatten(0, 1), shifted.flatten(), items)


class Sft(Pretrain):
    """The next token of what the prepared data mark as learned: the assistant's words, or the completion."""

    name = "sft"

    def configure(self, config: Any, store: Store, tokenizer: PreTrainedTokenizerBase) -> None:
        """As for `Pretrain`.

        Raises:
            DataError: the store has no label a token.
        """
        if not store.split("train").targeted:
            raise DataError(
                f"{store.path} was not prepared for sft: nothing says which tokens are learned",
                "Prepare the conversations with ftcli tokenize --mode sft.",
            )
        super().configure(config, store, tokenizer)

    def labels(self, rows: Rows) -> NDArray[np.int64]:
        """One a token as it is stored: -100 where it is not learned, and at the start of a document."""
        if rows.targets is None:
            raise DataError("the prepared data do not say which tokens are learned", "Prepare them with ftcli tokenize --mode sft.")
        return rows.targets.values.astype(np.int64)


def label_names(store: Store) -> list[str]:
    """Names in id order.

    Raises:
        DataError: there are no labels, or fewer than two.
    """
    names = store.label_names
    if not names and store.manifest.get("task") == "regress":
        raise DataError(
            f"{store.path} holds numbers to be predicted (mode regress), not labels",
            "Leave --mode out, or prepare it again with --mode classify.",
        )
    if not names:
        raise DataError(f"{store.path} was prepared without labels", "Prepare it with --label-column, or train with --mode pretrain.")
    if len(names) < 2:
        raise DataError(f"{store.path} has one label only ({names[0]!r}): there is nothing to tell apart", "Check the label column.")
    return names


def any_number(labels: torch.Tensor) -> bool:
    """Whether a batch's labels say of each label whether it holds (float [rows, labels]); label ids are whole numbers."""
    return labels.is_floating_point() and labels.ndim == 2


def measured(labels: torch.Tensor) -> bool:
    """Whether a batch's labels are numbers that are to be predicted (float [rows])."""
    return labels.is_floating_point() and labels.ndim == 1


def count_targets(labels: torch.Tensor) -> torch.Tensor:
    """Targets in a batch: rows, rows × labels where a row has any number of them, or tokens that a position before them predicts."""
    return (labels if labels.ndim == 1 or any_number(labels) else labels[:, 1:]).ne(IGNORED).sum()


def _binary(
    logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None, weights: NDArray[np.float32] | None = None
) -> torch.Tensor:
    """Binary cross-entropy of every label, summed in float32, over `items`. `weights` [2, labels]: of labels that do not hold, and that do."""
    import torch
    from torch.nn import functional

    known = labels.ne(IGNORED)
    wanted = labels.clamp_min(0).float()
    weight = known.float()
    if weights is not None:
        absent, held = torch.from_numpy(weights).to(logits.device)
        weight = weight * torch.where(wanted > 0, held, absent)
    total = functional.binary_cross_entropy_with_logits(logits.float(), wanted, weight=weight, reduction="sum")
    return _over(total, known.sum() if items is None else items)


def _over(total: torch.Tensor, items: torch.Tensor | int) -> torch.Tensor:
    """A step without a target has the loss 0 and no gradient."""
    return total / (max(1, items) if isinstance(items, int) else items.to(total.device).clamp_min(1))


def _cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None, weights: NDArray[np.float32] | None = None
) -> torch.Tensor:
    import torch
    from torch.nn import functional

    weight = None if weights is None else torch.from_numpy(weights).to(logits.device)
    total = functional.cross_entropy(logits.float(), labels, weight=weight, ignore_index=IGNORED, reduction="sum")
    return _over(total, labels.ne(IGNORED).sum() if items is None else items)


def _special_tokens(config: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """BOS and EOS as the tokenizer has them, so that the saved model and its tokenizer agree."""
    for name in ("bos_token_id", "eos_token_id"):
        if (found := getattr(tokenizer, name)) is not None:
            setattr(config, name, found)
