"""The first batch in words: runs of mask, positions and targets, and documents kept apart."""

from __future__ import annotations

import numpy as np
import torch

from ftcli.core.ragged import to_offsets
from ftcli.core.storage.excerpt import DOCUMENT_TOKENS, MOST_TOKENS, document_starts, excerpt
from ftcli.core.storage.store import Ragged, Rows
from ftcli.core.verify.audit import BOUNDARY, batch_runs, decoded_rows
from stores import rows_of


class Letters:
    """Decodes ids as letters."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(chr(96 + number) for number in ids)


def _packed(ids: list[int], documents: list[int]) -> Rows:
    lengths = Ragged(np.array(documents, np.int32), to_offsets(np.array([len(documents)])))
    return Rows(np.array([7]), Ragged(np.array(ids, np.int32), to_offsets(np.array([len(ids)]))), None, lengths)


def test_what_the_collator_added_is_told_in_runs() -> None:
    batch = {
        "input_ids": torch.tensor([[1, 2, 3, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0, 0]]),
        "position_ids": torch.tensor([[0, 1, 0, 1, 2]]),
        "labels": torch.tensor([[-100, 2, 3, -100, -100]]),
    }
    assert batch_runs(batch, 0) == {"mask": "3×1 2×0", "positions": "0–1 0–2", "targets": "1×no 2×yes 2×no"}
    assert batch_runs({"input_ids": batch["input_ids"], "labels": torch.tensor([3])}, 0) == {}


def test_many_runs_are_cut_and_counted() -> None:
    batch = {"input_ids": torch.zeros(1, 20), "position_ids": torch.zeros(1, 20, dtype=torch.int64)}
    assert batch_runs(batch, 0) == {"positions": "0 0 0 0 0 0 … (20)"}


def test_documents_of_a_pack_are_told_apart() -> None:
    shown = decoded_rows(_packed([1, 2, 3, 4, 5], [2, 3]), Letters(), None)
    assert shown[0]["text"] == f"ab{BOUNDARY}cde"
    assert shown[0]["documents"] == [2, 3]
    assert shown[0]["row"] == 7


def test_an_excerpt_holds_short_rows_of_different_lengths() -> None:
    rows = rows_of([[1], [1, 2, 3], [4, 5, 6], [1, 2, 3, 4], list(range(1, 400)), [1] * 9])
    assert excerpt(rows).input_ids.lengths.tolist() == [3, 4, 9]
    assert excerpt(rows_of([list(range(1, 400))])).input_ids.lengths.tolist() == [MOST_TOKENS]
    assert excerpt(rows_of([[1], [2]])).input_ids.lengths.tolist() == [1]


def test_an_excerpt_of_packs_holds_the_beginnings_of_documents() -> None:
    rows = _packed(list(range(1, 101)), [1, 60, 2, 37])
    short = excerpt(rows)
    assert short.seq_lengths is not None
    assert short.seq_lengths.row(0).tolist() == [DOCUMENT_TOKENS, DOCUMENT_TOKENS]
    assert short.input_ids.row(0).tolist() == [*range(2, 2 + DOCUMENT_TOKENS), *range(64, 64 + DOCUMENT_TOKENS)]
    assert document_starts(short, 0).tolist() == [0, DOCUMENT_TOKENS, 2 * DOCUMENT_TOKENS]
