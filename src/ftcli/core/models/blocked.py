"""Causal attention in blocks of queries: plain matrix products over the keys that a block may see, forward and backward.

On a CPU torch's flash kernel computes 100 GFLOP/s where its matrix products do 400 in bfloat16, and in its backward pass less. Measured, forward and
backward, 2 cores of an AMD EPYC with avx512_bf16, 4 heads of 64 over 2, milliseconds of the kernel → of the blocks: 16 texts of 216 tokens 38 → 15
in bfloat16 and 25 → 19 in float32; 8 of 512 57 → 28 and 58 → 41; 4 of 1,024 64 → 52 and 74 → 71 (computed again). Scores are rounded to the products' type,
as transformers' eager attention rounds them. Half of all scores are kept for the backward pass in rows of up to `KEPT` slots, and computed again in
longer ones, as the kernel does.
Texts that stand side by side keep the kernel: one text's blocks are too few for two threads, and each new length has oneDNN write new code (54 texts of
60 tokens on average: 82 → 127 ms).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from ftcli.core.models.scripted import scripted

Tensor = torch.Tensor
BLOCK = 64
"""Queries; 108 and 128 were slower for 216 tokens, and no different for longer texts."""
KEPT = 512
"""Slots of the longest rows whose scores are kept: with Qwen3-0.6B they are a fifth of what a layer keeps besides."""
LONGEST = 1_024
"""Slots of the longest rows in 16 bits. In 32 the kernel is as fast where scores are computed again."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the backward pass needs; queries in rows of position times the heads that share keys, [B × K, S × G, D]."""

    folded: list[Tensor]
    """q, k and v."""
    shares: list[Tensor]
    """Of each block, [B × K, queries × G, keys seen]; none: they are computed again."""
    sizes: list[int]
    """B, S, K (heads of keys), D."""
    scale: float


def fits(width: int, kind: torch.dtype) -> bool:
    """Whether rows of so many slots go by blocks."""
    return width <= (KEPT if kind == torch.float32 else LONGEST)


def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float, kind: torch.dtype) -> tuple[Tensor, Kept]:
    """`q` [B, S, H, D], `k` and `v` [B, S, K, D], K a divisor of H → [B, S, H, D] in `kind`, and what the backward pass needs."""
    _, width, heads, _ = sizes = list(k.shape)
    out, folded, shares = _attend(q, k, v, scale, _later(q.shape[2] // heads, kind), BLOCK, width <= KEPT)
    return out, Kept(folded, shares, sizes, scale)


def attend_back(grad: Tensor, kept: Kept) -> tuple[Tensor, Tensor, Tensor]:
    """`grad` [B, S, H, D] → gradients of q, k and v as `attend` got them; that of q in the products' type, the others in float32."""
    later = _later(grad.shape[2] // kept.sizes[2], kept.folded[0].dtype)
    return _attend_back(grad, kept.folded, kept.shares, kept.sizes, kept.scale, later, BLOCK)


@scripted
def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, later: Tensor, block: int, keep: bool
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    sizes = list(k.shape)
    group, width = q.shape[2] // sizes[2], sizes[1]
    q, k, v = _folded(q, sizes, later.dtype), _folded(k, sizes, later.dtype), _folded(v, sizes, later.dtype)
    out = torch.empty_like(q)
    shares: list[Tensor] = []
    for begin in range(0, width, block):
        end = min(begin + block, width)
        share = _share(q, k, begin, end, scale, later)
        out[:, begin * group : end * group] = torch.bmm(share, v[:, :end])
        if keep:
            shares.append(share)
    return _unfolded(out, sizes), [q, k, v], shares


@scripted
def _attend_back(
    grad: Tensor, folded: list[Tensor], shares: list[Tensor], sizes: list[int], scale: float, later: Tensor, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = folded
    group, width = grad.shape[2] // sizes[2], sizes[1]
    grad = _folded(grad, sizes, q.dtype)
    dq = torch.empty_like(q)
    dk, dv = torch.zeros(k.shape, dtype=torch.float32), torch.zeros(k.shape, dtype=torch.float32)
    for begin in range(0, width, block):
        end = min(begin + block, width)
        first, last = begin * group, end * group
        share = shares[begin // block] if len(shares) > 0 else _share(q, k, begin, end, scale, later)
        dv[:, :end] += torch.bmm(share.transpose(1, 2), grad[:, first:last])
        dshare = torch.bmm(grad[:, first:last], v[:, :end].transpose(1, 2))
        dscores = torch._softmax_backward_data(dshare, share, -1, share.dtype)
        dq[:, first:last] = _times(dscores, k[:, :end], scale)
        dk[:, :end] += torch.bmm(dscores.transpose(1, 2), q[:, first:last])
    return _unfolded(dq, sizes), _unfolded(dk.mul_(scale), sizes), _unfolded(dv, sizes)


def _share(q: Tensor, k: Tensor, begin: int, end: int, scale: float, later: Tensor) -> Tensor:
    """What the queries of a block take from the keys that they see."""
    group = q.shape[1] // k.shape[1]
    scores = _times(q[:, begin * group : end * group], k[:, :end].transpose(1, 2), scale)
    scores[:, :, begin:] += later[: (end - begin) * group, : end - begin]
    return torch.softmax(scores, -1)


def _times(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """The scaled product, rounded once."""
    return torch.baddbmm(torch.empty([1], dtype=a.dtype), a, b, beta=0, alpha=scale)


@cache
def _later(group: int, kind: torch.dtype) -> Tensor:
    """-inf where a key of a block comes after the query; [block × group, block]."""
    return torch.full((BLOCK, BLOCK), -torch.inf, dtype=kind).triu(1).repeat_interleave(group, 0)


def _folded(x: Tensor, sizes: list[int], kind: torch.dtype) -> Tensor:
    """[B, S, K × G, D] → [B × K, S × G, D]."""
    rows, width, heads, size = sizes
    group = x.shape[2] // heads
    folded = torch.empty([rows, heads, width, group, size], dtype=kind)
    folded.copy_(x.view(rows, width, heads, group, size).transpose(1, 2))
    return folded.view(rows * heads, width * group, size)


def _unfolded(x: Tensor, sizes: list[int]) -> Tensor:
    rows, width, heads, size = sizes
    return x.view(rows, heads, width, -1, size).transpose(1, 2).contiguous().view(rows, width, -1, size)
