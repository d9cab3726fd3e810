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
        rows, width, hidden = x.shape
        x = x.reshape(-1, hidden)
        inner = shape.heads * shape.head_dim
        into, kept_in = _folded(kind, norm1, wq, wk, wv)
        normed1, root1 = _normalised(x, shape.norm_eps[0], kind)
        qkv = normed1 @ into.t()
        if bq is not None and bk is not None and bv is not None:
            qkv += torch.cat((bq, bk, bv))
        parts = qkv.view(rows, width, -1, shape.head_dim)
        q, k, v = torch.split(parts, [shape.heads, shape.kv_heads, shape.kv_heads], 2)
        turned_q, kept_q, root_q = _turned(q, q_norm, cos, sin, shape.norm_eps[2])
        turned_k, kept_k, root_k = _turned(k, k_norm, cos, sin, shape.norm_eps[3])
        seen, attention = _attend(turned_q, turned_k, v, mask, shape.scale, kind)
        attended = seen.reshape(-1, inner)
        out, down = wo.to(kind), wd.to(kind)
        middle = _added(x, attended, out)
        across, kept_across = _folded(kind, norm2, wg, wu)
        normed2, root2 = _normalised(middle, shape.norm_eps[1], kind)
        both = normed2 @ across.t()
        gate, up = both.chunk(2, 1)
        opened = functional.silu(gate)
        product = opened * up
        ctx.save_for_backward(
            normed1, root1, kept_q, root_q, kept_k, root_k, attended, normed2, root2, both, opened, product,
            cos, sin, norm1, wq, wk, wv, q_norm, k_norm, out, norm2, wg, wu, down, kept_in, kept_across,
        )  # fmt: skip
        ctx.attention, ctx.shape, ctx.sizes, ctx.biased = attention, shape, (rows, width, hidden), bq is not None
        return _added(middle, product, down).view(rows, width, hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (
            normed1, root1, kept_q, root_q, kept_k, root_k, attended, normed2, root2, both, opened, product,
            cos, sin, norm1, wq, wk, wv, q_norm, k_norm, out, norm2, wg, wu, down, kept_in, kept_across,
        ) = ctx.saved_tensors  # fmt: skip
        rows, width, hidden = ctx.sizes
        shape: Shape = ctx.shape
        grad = grad.reshape(-1, hidden)
        narrow = grad.to(product.dtype)
        dwd = narrow.t() @ product
        dproduct = narrow @ down
        gate, up = both.chunk(2, 1)
        dboth = torch.empty_like(both)
        dgate, dup = dboth.chunk(2, 1)
        torch.mul(dproduct, opened, out=dup)
        torch.ops.aten.silu_backward.grad_input(dproduct.mul_(up), gate, grad_input=dgate)
        dmiddle, dnorm2, dgu = _back(dboth, torch.cat((wg, wu)), kept_across, norm2, normed2, root2, grad)
        dwg, dwu = dgu.chunk(2)

        narrow = dmiddle.to(attended.dtype)
        dwo = narrow.t() @ attended
        attention: Kept | Graph = ctx.attention
        ctx.attention = None
        dseen = (narrow @ out).view(rows, width, shape.heads, shape.head_dim)
        dq, dk, dv = blocked.attend_back(dseen, attention) if isinstance(attention, Kept) else attention.back(dseen)
        dqkv = torch.empty(rows, width, shape.heads + 2 * shape.kv_heads, shape.head_dim, dtype=dseen.dtype)
        into_q, into_k, into_v = torch.split(dqkv, [shape.heads, shape.kv_heads, shape.kv_heads], 2)
        dq_norm = _turned_back(dq, kept_q, root_q, q_norm, cos, sin, into_q)
        dk_norm = _turned_back(dk, kept_k, root_k, k_norm, cos, sin, into_k)
        into_v.copy_(dv)
        flat = dqkv.view(rows * width, -1)
        dx, dnorm1, dw = _back(flat, torch.cat((wq, wk, wv)), kept_in, norm1, normed1, root1, dmiddle)
        sizes = [len(wq), len(wk), len(wv)]
        biases = torch.split(flat.sum(0), sizes) if ctx.biased else (None, None, None)
        weights = torch.split(dw, sizes)
        return (
            None,
            dx.view(rows, width, hidden),
            None,
            None,
            None,
            None,
            dnorm1,
            *weights,
            *biases,
            dq_norm,
            dk_norm,
            dwo,
            dnorm2,
            dwg,
            dwu,
            dwd,
        )


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


def _folded(kind: torch.dtype, norm: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """Projections of one input with its norm's weight in them; and once more, to be kept for the backward pass, where they are narrower than the weights."""
    folded = torch.cat(weights) * norm
    return (folded, None) if kind == folded.dtype else (narrow := folded.to(kind), narrow)


def _added(residual: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return torch.addmm(residual, x, weight.t()) if x.dtype == residual.dtype else torch.add(residual, x @ weight.t())


def _normalised(x: Tensor, eps: float, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """x over its root mean square, and one over that, [..., 1]."""
    root = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * root).to(kind), root


def _back(
    dout: Tensor, weight: Tensor, kept: Tensor | None, norm: Tensor, normed: Tensor, root: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Through projection and norm: gradients of the norm's input (with the residual's added), of the norm's weight and of the projection's."""
    dfolded = (dout.t() @ normed).to(weight.dtype)
    dnormed = (dout @ (weight * norm if kept is None else kept)).to(weight.dtype)
    normed = normed.to(weight.dtype)
    share = (dnormed * normed).sum(-1, keepdim=True).div_(normed.shape[-1])
    dnormed.addcmul_(normed, share, value=-1)
    dnorm = (dfolded * weight).sum(0)
    return torch.addcmul(residual, dnormed, root), dnorm, dfolded.mul_(norm)


def _turned(x: Tensor, norm: Tensor | None, cos: Tensor, sin: Tensor, eps: float) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Heads [B, S, h, D] normalised where `norm` is given, then turned by their positions; what the backward pass needs."""
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    half = x.shape[-1] // 2
    root = None
    x = x.to(cos.dtype)
    if norm is not None:
        x, root = _normalised(x, eps, x.dtype)
        cos, sin = cos * norm, sin * norm.roll(half)
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return turned, None if norm is None else x, root


def _turned_back(
    grad: Tensor, kept: Tensor | None, root: Tensor | None, norm: Tensor | None, cos: Tensor, sin: Tensor, out: Tensor
) -> Tensor | None:
    """The gradient of `_turned`'s input into `out`; returns that of the norm's weight."""
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    half = grad.shape[-1] // 2
    grad = grad.to(cos.dtype)
    direct = norm is None and out.dtype == grad.dtype
    back = torch.mul(grad, cos, out=out if direct else None)
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
