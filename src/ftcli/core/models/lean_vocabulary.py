"""The next token's cross-entropy in float32 on a CPU, some ids of the vocabulary at a time.

A product that gives a row of the whole vocabulary writes each of its small parts to as many places far apart as the part has rows. Blocks of 2 MB are
written, and read again, near each other. Measured, 2 cores of an EPYC with AVX2, 256 rows, GFLOP/s of the product that gives the logits, whole and in
blocks: 50,257 ids of 768 values 59 and 134; 8,192 of 256, 94 and 123.
"""

from __future__ import annotations

import torch

from ftcli.core.models.scripted import scripted

Tensor = torch.Tensor
BLOCK = 2**19
"""Logits of a block: blocks of 8 MB took as long as no blocks."""
NARROWEST = 256
"""Ids of a block, however many rows there are."""


def cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, share: Tensor | None, ahead: Tensor | None, outer: Tensor | None, *, more: bool
) -> Tensor:
    """The summed cross-entropy of some rows, in float64.

    Args:
        hidden: [N, H].
        weight: [V, H].
        targets: [N], each a row of `weight`.
        share: a row's part of the loss; None: no gradients are wanted.
        ahead: [N, H] gets the gradient of `hidden`.
        outer: [V, H] gets that of `weight`, where it is trained.
        more: `outer` has the gradient of other rows, which that of these is added to.
    """
    width = max(NARROWEST, BLOCK // len(hidden))
    starts = range(0, len(weight), width)
    most, sums = hidden.new_empty(len(starts), len(hidden)), hidden.new_empty(len(starts), len(hidden))
    right, blocks = hidden.new_empty(len(hidden)), []
    for start, highest, of_block in zip(starts, most, sums, strict=True):
        block = hidden @ weight[start : start + width].t()
        _spread(block, targets - start, right, highest, of_block)
        if share is not None:
            blocks.append(block)
    top = most.amax(0)
    factors = most.sub_(top).exp_()
    whole = sums.mul_(factors).sum(0)
    total = (whole.log() + top - right).sum(dtype=torch.float64)
    if share is None:
        return total
    factors.mul_(share / whole)
    for start, block, factor in zip(starts, blocks, factors, strict=True):
        some = slice(start, start + width)
        _gradient(block, targets - start, factor, share)
        if ahead is not None:
            ahead.addmm_(block, weight[some], beta=1 if start else 0)
        if outer is not None:
            outer[some].addmm_(block.t(), hidden, beta=1 if more else 0)
    return total


@scripted
def _spread(block: Tensor, targets: Tensor, right: Tensor, highest: Tensor, sums: Tensor) -> None:
    """Each row's logits become powers of e below its highest one; `right` gets the logits of targets that are in the block."""
    inside = (targets >= 0) & (targets < block.shape[1])
    found = block.gather(1, targets.clamp(0, block.shape[1] - 1).unsqueeze(1)).squeeze(1)
    right.copy_(torch.where(inside, found, right))
    highest.copy_(block.amax([1]).clamp(min=-3.4e38))  # of a block whose logits all overflowed, -inf - -inf would not be a number
    block.sub_(highest.unsqueeze(1)).exp_()
    sums.copy_(block.sum(1))


@scripted
def _gradient(block: Tensor, targets: Tensor, factor: Tensor, share: Tensor) -> None:
    """What `_spread` left becomes the gradient of the logits."""
    inside = (targets >= 0) & (targets < block.shape[1])
    block.mul_(factor.unsqueeze(1))
    block.scatter_add_(1, targets.clamp(0, block.shape[1] - 1).unsqueeze(1), (inside * -share).unsqueeze(1))
