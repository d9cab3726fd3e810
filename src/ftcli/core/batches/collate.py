"""Rows to tensors: the only place that pads. numpy does the work; nothing here is done once a token or a row in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ftcli.contracts import BatchSpec
from ftcli.core.batches.tasks import IGNORED
from ftcli.core.storage.store import Rows
from ftcli.errors import DataError

Ints = NDArray[np.int64]


class Dynamic:
    """Pads to the longest row of the batch (rounded up to `pad_to_multiple_of`)."""

    def __init__(self, spec: BatchSpec) -> None:
        self.spec = spec

    def __call__(self, rows: Rows) -> dict[str, torch.Tensor]:
        """`input_ids`, `attention_mask` [rows, width] and `labels` [rows] or [rows, width], int64, or as the task has them for rows; `token_type_ids`
        [rows, width] where the rows hold two texts and the model wants to know which token is whose.

        Raises:
            DataError: the rows hold several documents each, which a mask of padding cannot keep apart.
        """
        if rows.seq_lengths is not None:
            raise DataError("packed rows need the packed collator", "Leave loader.collator unset, or set it to packed.")
        lengths = rows.input_ids.lengths
        real = self._places(lengths, self.width(lengths))
        batch = {"input_ids": _filled(real, rows.input_ids.values, self.spec.pad_token_id), "attention_mask": real.astype(np.int64)}
        if rows.types is not None:
            batch["token_type_ids"] = _filled(real, rows.types.values, 0)
        return _tensors({**batch, "labels": self._labels(rows, real)})

    def width(self, lengths: Ints) -> int:
        """Slots in a row of this batch."""
        return rounded(int(lengths.max(initial=1)), self.spec.pad_to_multiple_of)

    def texts(self, rows: Rows) -> Ints:
        """Tokens of each text of the batch, row after row."""
        return rows.input_ids.lengths

    def _places(self, lengths: Ints, width: int) -> NDArray[np.bool_]:
        """Where the tokens stand: True [rows, width]."""
        slots = np.arange(width)
        return slots < lengths[:, None] if self.spec.padding_side == "right" else slots >= width - lengths[:, None]

    def _labels(self, rows: Rows, real: NDArray[np.bool_]) -> NDArray[Any]:
        labels = self.spec.task.labels(rows)
        one_a_row = self.spec.task.needs_labels and len(labels) == len(rows)
        return labels if one_a_row else _filled(real, labels, IGNORED)


class Fixed(Dynamic):
    """Pads every batch to `max_length`: constant shapes, and the most padding."""

    def width(self, lengths: Ints) -> int:
        """Slots in a row of every batch."""
        return rounded(max(self.spec.max_length, int(lengths.max(initial=1))), self.spec.pad_to_multiple_of)


class Packed(Dynamic):
    """Rows of several documents: positions restart with each, and there is no mask.

    Positions that restart and a mask that is absent make transformers (5.23, sdpa, eager and flash attention) keep documents apart,
    provided the model uses no cache. Padding at the end of a row is a document of its own. Rows of one document each are padded as ever: the model
    leaves the padding out (`ftcli.core.models.side_by_side`).
    """

    def __call__(self, rows: Rows) -> dict[str, torch.Tensor]:
        """`input_ids`, `position_ids` and `labels` [rows, width], int64; as `Dynamic` for rows of one document each."""
        if rows.seq_lengths is None:
            return super().__call__(rows)
        lengths = rows.input_ids.lengths
        width = self.width(lengths)
        slots = np.arange(width)
        real = slots < lengths[:, None]
        positions = slots - lengths[:, None]
        positions[real] = _restarting(rows.seq_lengths.values.astype(np.int64))
        return _tensors(
            {
                "input_ids": _filled(real, rows.input_ids.values, self.spec.pad_token_id),
                "position_ids": positions,
                "labels": _filled(real, self.spec.task.labels(rows), IGNORED),
            }
        )

    def texts(self, rows: Rows) -> Ints:
        """As `Dynamic`; the padding at the end of a row of several texts is one more."""
        if rows.seq_lengths is None:
            return super().texts(rows)
        lengths = rows.input_ids.lengths
        tails = self.width(lengths) - lengths
        padded = tails > 0
        ends = np.cumsum(rows.seq_lengths.lengths)
        return np.insert(rows.seq_lengths.values.astype(np.int64), ends[padded], tails[padded])


def rounded(width: int, multiple: int) -> int:
    """`width`, rounded up."""
    return -(-width // multiple) * multiple


def _restarting(lengths: Ints) -> Ints:
    """0 … length - 1 for every document, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def _filled(real: NDArray[np.bool_], values: NDArray[np.signedinteger], padding: int) -> Ints:
    if real.size == len(values):  # nothing to pad
        return values.reshape(real.shape).astype(np.int64)
    grid = np.full(real.shape, padding, np.int64)
    grid[real] = values  # 1.4 ns a token; np.place, np.take of an index and a loop over rows cost twice that
    return grid


def _tensors(arrays: dict[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
