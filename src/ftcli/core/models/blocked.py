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

    q: Tensor
    k: Tensor
    v: Tensor
    shares: list[Tensor]
    """Of each block, [B × K, queries × G, keys seen]; none: they are computed again."""
    sizes: tuple[int, int, int, int]
    """B, S, K (heads of keys), D."""
    scale: float


def fits(width: int, kind: torch.dtype) -> bool:
    """Whether rows of so many slots go by blocks."""
    return width <= (KEPT if kind == torch.float32 else LONGEST)


def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float, kind: torch.dtype) -> tuple[Tensor, Kept]:
    """`q` [B, S, H, D], `k` and `v` [B, S, K, D], K a divisor of H → [B, S, H, D] in `kind`, and what the backward pass needs."""
    rows, width, heads, size = k.shape
    sizes = rows, width, heads, size
    group = q.shape[2] // heads
    q, k, v = (_folded(part, sizes, kind) for part in (q, k, v))
    out, shares = torch.empty_like(q), []
    for begin, end in _blocks(width):
        share = _share(q, k, begin, end, scale)
        out[:, begin * group : end * group] = torch.bmm(share, v[:, :end])
        if width <= KEPT:
            shares.append(share)
    return _unfolded(out, sizes), Kept(q, k, v, shares, sizes, scale)


def attend_back(grad: Tensor, kept: Kept) -> tuple[Tensor, Tensor, Tensor]:
    """`grad` [B, S, H, D] → gradients of q, k and v as `attend` got them; that of q in the products' type, the others in float32."""
    q, k, v, scale = kept.q, kept.k, kept.v, kept.scale
    _, width, heads, _ = kept.sizes
    group = grad.shape[2] // heads
    grad = _folded(grad, kept.sizes, q.dtype)
    dq = torch.empty_like(q)
    dk, dv = (torch.zeros(k.shape, dtype=torch.float32) for _ in range(2))
    for number, (begin, end) in enumerate(_blocks(width)):
        part = slice(begin * group, end * group)
        share = kept.shares[number] if kept.shares else _share(q, k, begin, end, scale)
        dv[:, :end] += torch.bmm(share.transpose(1, 2), grad[:, part])
        dshare = torch.bmm(grad[:, part], v[:, :end].transpose(1, 2))
        dscores = torch._softmax_backward_data(dshare, share, -1, share.dtype)
        dq[:, part] = _times(dscores, k[:, :end], scale)
        dk[:, :end] += torch.bmm(dscores.transpose(1, 2), q[:, part])
    return _unfolded(dq, kept.sizes), _unfolded(dk.mul_(scale), kept.sizes), _unfolded(dv, kept.sizes)


def _blocks(width: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + BLOCK, width)) for begin in range(0, width, BLOCK)]


def _share(q: Tensor, k: Tensor, begin: int, end: int, scale: float) -> Tensor:
    """What the queries of a block take from the keys that they see."""
    group = q.shape[1] // k.shape[1]
    scores = _times(q[:, begin * group : end * group], k[:, :end].transpose(1, 2), scale)
    scores[:, :, begin:] += _later(end - begin, group, q.dtype)
    return torch.softmax(scores, -1)


def _times(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """The scaled product, rounded once."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale)


@cache
def _later(count: int, group: int, kind: torch.dtype) -> Tensor:
    """-inf where a key comes after the query; [count × group, count]."""
    return torch.full((count, count), -torch.inf, dtype=kind).triu(1).repeat_interleave(group, 0)


def _folded(x: Tensor, sizes: tuple[int, int, int, int], kind: torch.dtype) -> Tensor:
    """[B, S, K × G, D] → [B × K, S × G, D]."""
    rows, width, heads, size = sizes
    group = x.shape[2] // heads
    folded = torch.empty(rows, heads, width, group, size, dtype=kind)
    folded.copy_(x.view(rows, width, heads, group, size).transpose(1, 2))
    return folded.view(rows * heads, width * group, size)


def _unfolded(x: Tensor, sizes: tuple[int, int, int, int]) -> Tensor:
    rows, width, heads, size = sizes
    return x.view(rows, heads, width, -1, size).transpose(1, 2).contiguous().view(rows, width, -1, size)
