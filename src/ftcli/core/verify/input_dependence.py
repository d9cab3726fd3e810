"""Which inputs an output depends on: the gradient of the embeddings, which rounding cannot blur."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from ftcli.core.verify.forward import inputs_of
from ftcli.core.verify.missing import Missing

SEEN = 1e-7
"""Share of the largest gradient from which on an input counts as seen: attention that is masked gives exactly 0."""


def reach(model: PreTrainedModel, batch: Mapping[str, torch.Tensor], scalar: Callable[[torch.Tensor], torch.Tensor]) -> NDArray[np.float64]:
    """Size of the gradient that `scalar(logits)` has at every token's embedding, [rows, width].

    Raises:
        Missing: the model does not look its tokens up in `get_input_embeddings()`.
    """
    table: Any = model.get_input_embeddings()
    if not isinstance(table, torch.nn.Module):  # Perceiver's is a matrix
        raise Missing("the model gives no embedding layer that its tokens are looked up in")
    leaves: list[torch.Tensor] = []
    rows, width = batch["input_ids"].shape

    def cut(_: object, __: object, output: Any) -> Any:
        vectors = output[0] if isinstance(output, tuple) else output  # I-BERT gives a scale too
        leaves.append(vectors.detach().requires_grad_())
        fresh = leaves[-1].clone()  # some models scale it in place
        return (fresh, *output[1:]) if isinstance(output, tuple) else fresh

    handle = table.register_forward_hook(cut)
    try:
        with torch.enable_grad():
            value = scalar(model(**inputs_of(batch)).logits)
            leaves = [leaf for leaf in leaves if leaf.ndim == 3 and len(leaf) == rows and leaf.shape[1] >= width]  # some pad further
            if not leaves:
                raise Missing("the model does not look its tokens up in its input embedding")
            found = torch.autograd.grad(value, leaves, allow_unused=True) if value.requires_grad else [None]
    finally:
        handle.remove()
    total = torch.zeros((rows, width), dtype=torch.float64)
    for gradient in found:
        if gradient is not None:
            total += gradient[:, :width].detach().double().abs().sum(-1).cpu()
    seen: NDArray[np.float64] = total.numpy()
    return seen


@contextmanager
def stirred(model: PreTrainedModel) -> Iterator[None]:
    """Noise (0.02) in every parameter that is all zero: heads, adapters and gates may start at zero and let nothing through before step 1."""
    zero = [parameter for parameter in model.parameters() if not parameter.detach().any()]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in zero:
            parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter in zero:
                parameter.zero_()
