"""Attention inside the texts of a batch that stand side by side: no mask, and nothing computed between texts.

A mask that keeps packed texts apart has rows × width × width elements, and attention computes all of them. Here each text is attended to alone: by one
call a text on a CPU, by torch's variable-length kernel on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor
DOCUMENTS = "ftcli_documents"
"""The argument by which layers hand down where texts begin and end."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Where texts begin and end among the tokens of a batch, row after row."""

    lengths: list[int]
    """Tokens of each text; together they are all places of the batch."""
    offsets: Tensor
    """Where each begins, and the end of the last one: int32 [texts + 1], on the device."""

    @classmethod
    def of_lengths(cls, lengths: Tensor) -> Documents:
        """Texts of so many tokens, [texts]; waits for the device."""
        offsets = functional.pad(lengths.cumsum(0), (1, 0)).int()
        return cls(lengths.tolist(), offsets)

    @classmethod
    def of_positions(cls, positions: Tensor) -> Documents:
        """A text begins with each row, and where a position does not follow the one before it; `positions` [rows, width]."""
        begins = torch.ones_like(positions, dtype=torch.bool)
        begins[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
        starts = begins.flatten().nonzero().flatten()
        return cls.of_lengths(torch.diff(starts, append=starts.new_tensor([positions.numel()])))

    @property
    def longest(self) -> int:
        return max(self.lengths)


def attend(
    q: Tensor, k: Tensor, v: Tensor, documents: Documents, *, scale: float | None, causal: bool = True, dropout: float = 0.0
) -> Tensor:
    """`q` [rows, heads, width, size], `k` and `v` with as many heads or fewer → [rows, width, heads, size]."""
    rows, heads, width, _ = q.shape
    q, k, v = (part.transpose(1, 2).reshape(rows * width, part.shape[1], part.shape[3]) for part in (q, k, v))
    grouped = heads != k.shape[1]
    if q.is_cuda:
        found = _kernel(q, k, v, documents, scale=scale, causal=causal, grouped=grouped, dropout=dropout)
    else:
        texts = zip(*(torch.split(part, documents.lengths) for part in (q, k, v)), strict=True)
        found = torch.cat([_one(*text, scale=scale, causal=causal, grouped=grouped, dropout=dropout) for text in texts])
    return found.view(rows, width, heads, -1)


def _one(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None, causal: bool, grouped: bool, dropout: float) -> Tensor:
    """One text: [tokens, heads, size] → the same."""
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    seen = functional.scaled_dot_product_attention(
        q, k, v, dropout_p=dropout, is_causal=causal and q.shape[2] > 1, scale=scale, enable_gqa=grouped
    )
    return seen[0].transpose(0, 1)


def _kernel(
    q: Tensor, k: Tensor, v: Tensor, documents: Documents, *, scale: float | None, causal: bool, grouped: bool, dropout: float
) -> Tensor:
    """All texts by flash attention, which takes 16-bit numbers and has no dropout here."""
    from torch.nn.attention.varlen import varlen_attn

    if dropout:
        raise ValueError("torch's variable-length attention has no dropout")
    more: dict[str, Any] = {"enable_gqa": True} if grouped else {}
    window, longest = (-1, 0 if causal else -1), documents.longest
    offsets = documents.offsets
    found = varlen_attn(q, k, v, offsets, offsets, longest, longest, scale=scale, window_size=window, **more)
    assert isinstance(found, Tensor)
    return found
