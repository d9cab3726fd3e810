"""Attention inside the texts of a batch that stand side by side: no mask, and nothing computed between texts.

A mask that keeps packed texts apart has rows × width × width elements, and attention computes all of them. Here each text is attended to alone: by one
call a text on a CPU, by torch's variable-length kernel on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

Tensor = torch.Tensor
DOCUMENTS = "ftcli_documents"
"""The argument by which layers hand down where texts begin and end."""
TAKEN = frozenset(signature(varlen_attn).parameters)
"""What this torch's kernel can be told: 2.10 knows causal attention only by `is_causal`, no scale, and takes fewer heads of keys unasked."""


@dataclass(slots=True)  # torch 2.11 guards every field of a frozen one: code fitted only as many texts as it was compiled for
class Documents:
    """Where texts begin and end among the tokens of a batch, row after row."""

    lengths: list[int]
    """Tokens of each text; together they are all places of the batch."""
    offsets: Tensor
    """Where each begins, and the end of the last one: int32 [texts + 1], on the device."""
    longest: int
    """Tokens of the longest one; kept, since compiled code that looked for it would be compiled again for every batch's lengths."""

    places: Tensor | None = None
    """Of rows with padding: where their tokens stand among all slots, int64 [tokens], on the device."""

    @classmethod
    def known(cls, lengths: NDArray[np.int64], width: int | None, device: torch.device) -> Documents:
        """Texts of so many tokens, [texts], known to the host; with `width`, each in a row of so many slots, padded on the right."""
        host: list[NDArray[Any]] = [np.concatenate([[0], lengths.cumsum()]).astype(np.int32)]
        if width is not None:
            host.append(np.flatnonzero(np.arange(width) < lengths[:, None]))
        parts = [torch.from_numpy(part) for part in host]
        if device.type == "cuda":
            parts = [part.pin_memory().to(device, non_blocking=True) for part in parts]
        return cls(lengths.tolist(), parts[0], int(lengths.max()), parts[1] if width is not None else None)

    @classmethod
    def of_lengths(cls, lengths: Tensor, places: Tensor | None = None) -> Documents:
        """Texts of so many tokens, [texts]; waits for the device."""
        offsets = functional.pad(lengths.cumsum(0), (1, 0)).int()
        known = lengths.tolist()
        return cls(known, offsets, max(known), places)

    @classmethod
    def of_mask(cls, mask: Tensor) -> Documents:
        """A text in each row, padded on the right; `mask` [rows, width]."""
        return cls.of_lengths(mask.sum(1), mask.flatten().nonzero().squeeze(1))

    @classmethod
    def of_positions(cls, positions: Tensor) -> Documents:
        """A text begins with each row, and where a position does not follow the one before it; `positions` [rows, width]."""
        begins = torch.ones_like(positions, dtype=torch.bool)
        begins[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
        starts = begins.flatten().nonzero().flatten()
        return cls.of_lengths(torch.diff(starts, append=starts.new_tensor([positions.numel()])))


def attend(
    q: Tensor, k: Tensor, v: Tensor, documents: Documents, *, scale: float | None, causal: bool = True, dropout: float = 0.0
) -> Tensor:
    """`q` [rows, heads, width, size], `k` and `v` with as many heads or fewer → [rows, width, heads, size]."""
    rows, heads, width, _ = q.shape
    q, k, v = (part.transpose(1, 2).reshape(rows * width, part.shape[1], part.shape[3]) for part in (q, k, v))
    grouped = heads != k.shape[1]
    if q.is_cuda and (q.dtype != torch.float32 or torch.is_autocast_enabled("cuda")):
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
    if dropout:
        raise ValueError("torch's variable-length attention has no dropout")
    if torch.is_autocast_enabled(q.device.type):  # autocast knows scaled_dot_product_attention, not this; Qwen3's norms give float32
        q, k, v = (part.to(torch.get_autocast_dtype(q.device.type)) for part in (q, k, v))
    more: dict[str, Any] = {"window_size": (-1, 0 if causal else -1)} if "window_size" in TAKEN else {"is_causal": causal}
    if grouped and "enable_gqa" in TAKEN:
        more["enable_gqa"] = True
    if "scale" in TAKEN:
        more["scale"] = scale
    elif scale is not None:
        q = q * (scale * q.shape[-1] ** 0.5)
    offsets, longest = documents.offsets, documents.longest
    found = varlen_attn(q, k, v, offsets, offsets, longest, longest, **more)
    assert isinstance(found, Tensor)
    return found
