"""A decoder layer as one autograd function: the arithmetic of Llama and Qwen with a third of the passes over memory.

transformers writes a layer as some forty operations, each of which reads and writes whole activations. On a CPU, where the matrix products of a small
model take half of a step, the rest is those passes. Here the norms' weights are multiplied into the projections behind them, projections of one
input are one product, residual sums are the products' own accumulators, and the backward pass is written out.

Under autocast the products and attention are in its type, as they would be; residuals, norms and turns in float32, as they would be; and every
activation is rounded once where transformers rounds and widens it several times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from ftcli.core.models import blocked
from ftcli.core.models.blocked import Kept
from ftcli.core.models.scripted import scripted
from ftcli.core.models.varlen import Documents, attend

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Shape:
    """What the weights do not say."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    norm_eps: tuple[float, float, float, float]
    """Of the norms before attention and MLP, and of the queries' and keys'."""


def lean_layer(x: Tensor, *given: Any) -> Tensor:
    """`LeanLayer` in the type that autocast asks for; itself outside autocast."""
    kind = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    with torch.autocast(x.device.type, enabled=False):
        result: Tensor = LeanLayer.apply(kind, x, *given)  # type: ignore[no-untyped-call]
    return result


class LeanLayer(torch.autograd.Function):
    """x [B, S, H] → [B, S, H]. `cos` and `sin` [1 or B, S, D]; `mask` None (causal), what scaled_dot_product_attention takes, or where the texts are.

    `kind` is the type of products and attention: x's own, or a narrower one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kind: torch.dtype,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | Documents | None,
        shape: Shape,
        norm1: Tensor,
        wq: Tensor,
        wk: Tensor,
        wv: Tensor,
        bq: Tensor | None,
        bk: Tensor | None,
        bv: Tensor | None,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        wo: Tensor,
        norm2: Tensor,
        wg: Tensor,
        wu: Tensor,
        wd: Tensor,
    ) -> Tensor:
        biases = [bias for bias in (bq, bk, bv) if bias is not None]
        heads, eps = [shape.heads, shape.kv_heads, shape.head_dim], list(shape.norm_eps)
        (q, k, v), before = _before(kind, x, cos, sin, heads, eps, norm1, [wq, wk, wv], biases, q_norm, k_norm)
        seen, attention = _attend(q, k, v, mask, shape.scale, kind)
        result, after = _after(kind, x, seen, eps, wo, norm2, [wg, wu], wd)
        ctx.save_for_backward(cos, sin, norm1, wq, wk, wv, q_norm, k_norm, norm2, wg, wu, *before, *after)
        ctx.attention, ctx.heads, ctx.kept = attention, heads, len(before)
        ctx.biased = bool(biases)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        cos, sin, norm1, wq, wk, wv, q_norm, k_norm, norm2, wg, wu, *kept = ctx.saved_tensors
        before, after = kept[: ctx.kept], kept[ctx.kept :]
        dmiddle, dseen, dwo, dnorm2, dwg, dwu, dwd = _after_back(grad, ctx.heads, after, norm2, [wg, wu])
        attention: Kept | Graph = ctx.attention
        ctx.attention = None
        heads = blocked.attend_back(dseen, attention) if isinstance(attention, Kept) else attention.back(dseen)
        dx, dnorm1, weights, biases, dq_norm, dk_norm = _before_back(
            list(heads), dmiddle, ctx.heads, before, cos, sin, norm1, [wq, wk, wv], q_norm, k_norm, ctx.biased
        )
        return (
            None,
            dx,
            None,
            None,
            None,
            None,
            dnorm1,
            *weights,
            *(biases if ctx.biased else (None, None, None)),
            dq_norm,
            dk_norm,
            dwo,
            dnorm2,
            dwg,
            dwu,
            dwd,
        )


@scripted
def _before(
    kind: torch.dtype,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: list[int],
    eps: list[float],
    norm: Tensor,
    weights: list[Tensor],
    biases: list[Tensor],
    q_norm: Tensor | None,
    k_norm: Tensor | None,
) -> tuple[list[Tensor], list[Tensor | None]]:
    """A layer until its attention: queries, keys and values [B, S, h, D], and what the backward pass needs. `heads`: of queries, of keys, and their size."""
    rows, width, hidden = x.shape
    into, kept = _folded(kind, norm, weights)
    normed, root = _normalised(x.reshape(-1, hidden), eps[0], kind)
    qkv = normed @ into.t()
    if len(biases) > 0:
        qkv += torch.cat(biases)
    q, k, v = torch.split(qkv.view(rows, width, -1, heads[2]), [heads[0], heads[1], heads[1]], 2)
    turned_q, kept_q, root_q = _turned(q, q_norm, cos, sin, eps[2])
    turned_k, kept_k, root_k = _turned(k, k_norm, cos, sin, eps[3])
    return [turned_q, turned_k, v], [normed, root, kept, kept_q, root_q, kept_k, root_k]


@scripted
def _after(
    kind: torch.dtype, x: Tensor, seen: Tensor, eps: list[float], wo: Tensor, norm: Tensor, weights: list[Tensor], wd: Tensor
) -> tuple[Tensor, list[Tensor | None]]:
    """The rest of a layer, from what attention gave [B, S, h, D]: its output, and what the backward pass needs."""
    hidden = x.shape[-1]
    out, down = wo.to(kind), wd.to(kind)
    attended = seen.reshape(-1, out.shape[1])
    middle = _added(x.reshape(-1, hidden), attended, out)
    across, kept = _folded(kind, norm, weights)
    normed, root = _normalised(middle, eps[1], kind)
    both = normed @ across.t()
    gate, up = both.chunk(2, 1)
    opened = functional.silu(gate)
    product = opened * up
    return _added(middle, product, down).view(x.shape), [attended, out, down, kept, normed, root, both, opened, product]


@scripted
def _after_back(
    grad: Tensor, heads: list[int], kept: list[Tensor | None], norm: Tensor, weights: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Through `_after`: gradients of the sum behind attention [B × S, H], of what attention gave, and of the weights."""
    attended, out, down = _there(kept[0]), _there(kept[1]), _there(kept[2])
    normed, root, both, opened, product = _there(kept[4]), _there(kept[5]), _there(kept[6]), _there(kept[7]), _there(kept[8])
    rows, width, hidden = grad.shape
    grad = grad.reshape(-1, hidden)
    narrow = grad.to(product.dtype)
    dwd = narrow.t() @ product
    dproduct = narrow @ down
    gate, up = both.chunk(2, 1)
    dboth = torch.empty_like(both)
    dgate, dup = dboth.chunk(2, 1)
    torch.mul(dproduct, opened, out=dup)
    torch.ops.aten.silu_backward(dproduct.mul_(up), gate, grad_input=dgate)
    dmiddle, dnorm, dgu = _back(dboth, weights, kept[3], norm, normed, root, grad)
    dwg, dwu = dgu.chunk(2)
    narrow = dmiddle.to(attended.dtype)
    dwo = narrow.t() @ attended
    return dmiddle, (narrow @ out).view(rows, width, heads[0], heads[2]), dwo, dnorm, dwg, dwu, dwd


@scripted
def _before_back(
    grads: list[Tensor],
    dmiddle: Tensor,
    heads: list[int],
    kept: list[Tensor | None],
    cos: Tensor,
    sin: Tensor,
    norm: Tensor,
    weights: list[Tensor],
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    biased: bool,
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor], Tensor | None, Tensor | None]:
    """Through `_before`, from the gradients of queries, keys and values: those of x, of the norm, of the projections, of their biases, and of the heads' norms."""
    dq, dk, dv = grads
    normed, root = _there(kept[0]), _there(kept[1])
    rows, width = dq.shape[0], dq.shape[1]
    dqkv = torch.empty([rows, width, heads[0] + 2 * heads[1], heads[2]], dtype=normed.dtype)
    into_q, into_k, into_v = torch.split(dqkv, [heads[0], heads[1], heads[1]], 2)
    dq_norm = _turned_back(dq, kept[3], kept[4], q_norm, cos, sin, into_q)
    dk_norm = _turned_back(dk, kept[5], kept[6], k_norm, cos, sin, into_k)
    into_v.copy_(dv)
    flat = dqkv.view(rows * width, -1)
    dx, dnorm, dw = _back(flat, weights, kept[2], norm, normed, root, dmiddle)
    sizes = [len(weight) for weight in weights]
    biases = list(torch.split(flat.sum(0), sizes)) if biased else weights[:0]
    return dx.view(rows, width, -1), dnorm, list(torch.split(dw, sizes)), biases, dq_norm, dk_norm


@dataclass(frozen=True, slots=True)
class Graph:
    """Attention as torch computes it, with a graph of its own, so that torch chooses the kernel of the backward pass too."""

    seen: Tensor
    leaves: list[Tensor]

    def back(self, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.transpose(1, 2) for part in torch.autograd.grad(self.seen, self.leaves, grad))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | Documents | None, scale: float, kind: torch.dtype
) -> tuple[Tensor, Kept | Graph]:
    """Heads [B, S, h, D] → the same, in `kind`, and what the backward pass needs."""
    width = q.shape[1]
    if mask is None and blocked.fits(width, kind):
        return blocked.attend(q, k, v, scale=scale, kind=kind)
    with torch.enable_grad():
        leaves = [part.detach().to(kind).transpose(1, 2).requires_grad_() for part in (q, k, v)]
        if isinstance(mask, Documents):
            seen = attend(leaves[0], leaves[1], leaves[2], mask, scale=scale)
        else:
            if mask is not None and mask.is_floating_point():
                mask = mask.to(kind)
            seen = functional.scaled_dot_product_attention(
                leaves[0],
                leaves[1],
                leaves[2],
                mask,
                is_causal=mask is None and width > 1,
                scale=scale,
                enable_gqa=q.shape[2] != k.shape[2],
            ).transpose(1, 2)
    return seen.detach(), Graph(seen, leaves)


def _there(x: Tensor | None) -> Tensor:
    assert x is not None
    return x


def _folded(kind: torch.dtype, norm: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Projections of one input with its norm's weight in them; and once more, to be kept for the backward pass, where they are narrower than the weights."""
    folded = torch.cat(weights) * norm
    if kind == folded.dtype:
        return folded, None
    narrow = folded.to(kind)
    return narrow, narrow


def _added(residual: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    if x.dtype == residual.dtype:
        return torch.addmm(residual, x, weight.t())
    return (x @ weight.t()).to(residual.dtype).add_(residual)


def _normalised(x: Tensor, eps: float, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """x over its root mean square, and one over that, [..., 1]."""
    root = torch.linalg.vector_norm(x, dim=[-1], keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * root).to(kind), root


def _back(
    dout: Tensor, weights: list[Tensor], kept: Tensor | None, norm: Tensor, normed: Tensor, root: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Through projections and norm: gradients of the norm's input (with the residual's added), of the norm's weight and of the projections'."""
    dfolded = (dout.t() @ normed).to(norm.dtype)
    if kept is None:
        kept = torch.cat(weights) * norm
    dnormed = (dout @ kept).to(norm.dtype)
    normed = normed.to(norm.dtype)
    shared = dnormed * normed
    # dnormed has the norm's weight in it: the sum over dfolded's columns times their weights without going through both
    dnorm = shared.sum(0).div_(norm) if bool(norm.all()) else (dfolded * torch.cat(weights)).sum(0)
    dnormed.addcmul_(normed, shared.sum(-1, keepdim=True).div_(normed.shape[-1]), value=-1)
    return torch.addcmul(residual, dnormed, root), dnorm, dfolded.mul_(norm)


def _turned(x: Tensor, norm: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Heads [B, S, h, D] normalised where `norm` is given, then turned by their positions; what the backward pass needs."""
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    half = x.shape[-1] // 2
    x = x.to(cos.dtype)
    root: Tensor | None = None
    kept: Tensor | None = None
    if norm is not None:
        x, root = _normalised(x, eps, x.dtype)
        kept = x
        cos, sin = cos * norm, sin * norm.roll(half)
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return turned, kept, root


def _turned_back(
    grad: Tensor, kept: Tensor | None, root: Tensor | None, norm: Tensor | None, cos: Tensor, sin: Tensor, out: Tensor
) -> Tensor | None:
    """The gradient of `_turned`'s input into `out`; returns that of the norm's weight."""
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    half = grad.shape[-1] // 2
    grad = grad.to(cos.dtype)
    direct = norm is None and out.dtype == grad.dtype
    back = torch.mul(grad, cos, out=out) if direct else grad * cos
    back[..., :half].addcmul_(grad[..., half:], sin[..., half:])
    back[..., half:].addcmul_(grad[..., :half], sin[..., :half], value=-1)
    if norm is None or kept is None or root is None:
        if not direct:
            out.copy_(back)
        return None
    shared = back * kept
    dnorm = shared.view(-1, grad.shape[-1]).sum(0)
    share = torch.mv(shared.view(-1, grad.shape[-1]), norm).div_(grad.shape[-1]).view(root.shape)
    back.mul_(norm).addcmul_(kept, share, value=-1)
    out.copy_(back.mul_(root))
    return dnorm
