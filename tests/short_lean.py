"""The lean step is proved once for every kind of model and run, wherever a test is not about it: the proof is a third of the CPU of a small training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, TrainingArguments

from ftcli.contracts import Task
from ftcli.core.models import lean as step
from ftcli.core.models.lean_proof import Batch
from ftcli.core.models.side_by_side import Texts
from ftcli.core.training import train

PROOFS = ("tried", "bent", "rounded", "seen")
"""What gives a verdict: None, or why not."""
ARGUMENTS = ("bf16", "fp16", "device", "activation_checkpointing", "neftune_noise_alpha", "world_size", "ddp_find_unused_parameters")
VERDICTS: dict[Any, list[str | None]] = {}
"""What the proofs of such a run said, in their order."""
LEAN = step.lean


@contextmanager
def remembered(
    model: PreTrainedModel,
    task: Task,
    batches: Sequence[Batch],
    arguments: TrainingArguments,
    *uses: Any,
    wanted: str,
    texts: Texts | None = None,
) -> Iterator[str]:
    """`lean`, whose parts are put in as they were where a run like this one was proved before."""
    kind = (kind_of(model), type(task), shapes(batches), tuple(str(getattr(arguments, name, None)) for name in ARGUMENTS))
    key = (*kind, wanted, None if texts is None else (type(texts), texts.unpad, texts.needed))
    said: list[str | None] = []

    def recorded(proof: Callable[..., str | None]) -> Callable[..., str | None]:
        def record(*given: Any, **named: Any) -> str | None:
            said.append(proof(*given, **named))
            return said[-1]

        return record

    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            if key in VERDICTS:
                again = iter(VERDICTS[key])
                for name in PROOFS:
                    patch.setattr(step, name, lambda *_, **__: next(again))
                patch.setattr(step, "computed", lambda *_, **__: None)
            else:
                for name in PROOFS:
                    patch.setattr(step, name, recorded(getattr(step, name)))
            words = stack.enter_context(LEAN(model, task, batches, arguments, *uses, wanted=wanted, texts=texts))  # type: ignore[arg-type]
        VERDICTS.setdefault(key, said)
        yield words


def kind_of(model: PreTrainedModel) -> Any:
    """Classes, sizes and configuration; and whether the weights are numbers at all."""
    modules = [(name, type(each), "forward" in vars(each), bool(each._forward_hooks)) for name, each in model.named_modules()]
    weights = [(weight.shape, weight.dtype, weight.requires_grad) for weight in model.parameters()]
    finite = all(bool(torch.isfinite(weight.detach().sum())) for weight in model.parameters())
    return model.config.to_json_string(), tuple(modules), tuple(weights), model.training, finite


def shapes(batches: Sequence[Batch]) -> Any:
    return tuple(
        (
            tuple((name, value.ndim, value.dtype) for name, value in batch.items()),
            len(batch["labels"]),
            bool((batch["input_ids"] == 0).any()),
        )
        for batch in batches
    )


def decide(whole: bool) -> None:
    """Whether the next run proves its own lean step."""
    vars(train)["lean"] = LEAN if whole else remembered
