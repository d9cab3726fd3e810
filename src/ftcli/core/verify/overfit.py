"""Whether the model can learn at all: a few rows by heart, and, on demand, a few hundred steps against rows that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ftcli.contracts import Task
from ftcli.core.batches.tasks import IGNORED, any_number, measured
from ftcli.core.storage.few_rows import Few, short_rows
from ftcli.core.storage.label_flags import label_codes
from ftcli.core.storage.store import Rows
from ftcli.core.verify.budget import affordable, told, within
from ftcli.core.verify.forward import forward, inputs_of
from ftcli.core.verify.rehearsal import restored

if TYPE_CHECKING:
    from ftcli.core.verify.probe import Probe

ROWS, LONGEST = 8, 48
STEPS, LEAST_STEPS = 40, 16
LEAST_PLACES = 64
MOST_ROWS, BATCH_ROWS = 2000, 16
"""Of `learn`."""
HALF = 0.5
"""Share of the first loss that the last must be under: clean models of some 24 families get there in 1 to 16 steps; the
reference measured 0.79 to 1.0 for faults."""
RATES, PARTLY = (1.0, 3.0, 0.3), (10.0, 30.0)
"""Multiples of `peak_rate` that are tried one after the other before a model is said not to learn; the others where a part of the weights is trained only, or the logits
are damped: Cohere of 32 units fell to 0.69 of its loss in 40 steps at the first three, and under half at the next."""
DAMPING = (("logit_scale", 1.0), ("logits_scaling", -1.0))
"""Settings by which logits are multiplied (1) or divided (-1): Cohere, Granite."""


def peak_rate(model: PreTrainedModel) -> float:
    """AdamW's rate for learning by heart: 3e-3 for 64 hidden units, in inverse proportion to their number, at most 6e-3.

    Measured: some 24 families of 64 units need 1 to 16 steps at 3e-3, and up to more than 40 at 1e-3. With 768 units (100 M weights)
    BERT needs 2 steps at 2.5e-4 and 14 at 8.7e-4, Qwen3 1 at both.
    """
    hidden = getattr(model.config.get_text_config(), "hidden_size", 64) or 64
    return min(6e-3, 3e-3 * 64 / hidden)


@dataclass(frozen=True, slots=True)
class ByHeart:
    """Losses of AdamW steps on a few short rows, dropout off, at `rate`: the try that came lowest."""

    losses: list[float]
    rate: float
    most_steps: int
    """Of a try; fewer than `STEPS` for large models."""
    left_out: Mapping[str, Any]
    """What a large model did not get of the rows, as evidence."""


def by_heart(probe: Probe) -> ByHeart:
    """Steps on a few short rows until the loss is `HALF` of the first. When one rate does not do it, the next of `RATES` is tried. The weights are put back."""
    given = short_rows(probe.train_split, probe.settings.train.seed, ROWS, LONGEST)
    each = given.labels if given.flags is None else label_codes(given.flags)
    if probe.task.needs_labels and each is not None and len(given) > 1 and len(set(each.tolist())) == 1:
        given = Few(given).rows([0, len(given) - 1])
    rows = within(given, affordable(probe.model, passes=3 * LEAST_STEPS, least=LEAST_PLACES))
    batch = telling(probe.collator(rows))
    steps = max(LEAST_STEPS, min(STEPS, STEPS * affordable(probe.model, 3 * STEPS, least=1) // batch["input_ids"].numel()))
    best: tuple[list[float], float] = ([], 0.0)
    for factor in (*RATES, *(PARTLY if partly(probe.model) or damped(probe.model) else ())):
        rate = peak_rate(probe.model) * factor
        with restored(probe.model):
            losses = _descend(probe.model.eval(), batch, probe.task, rate, steps)
        if not best[0] or _share(losses) < _share(best[0]):
            best = losses, rate
        if _share(best[0]) < HALF:
            break
    return ByHeart(*best, steps, told(rows, given))


def partly(model: PreTrainedModel) -> bool:
    """Whether some weights are frozen: LoRA, or a head alone."""
    return not all(parameter.requires_grad for parameter in model.parameters())


def damped(model: PreTrainedModel) -> bool:
    """Whether the model makes its logits smaller before it gives them."""
    config = model.config.get_text_config()
    scales = ((getattr(config, name, None), power) for name, power in DAMPING)
    return any(isinstance(scale, (int, float)) and scale > 0 and scale**power < 1 for scale, power in scales)


def telling(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The batch with the labels that tell its rows apart, where a row has any number of them: the others are learned without a look at the
    text. Eight rows' loss is then above `HALF` of ln 2 for whoever says the same of every row. Numbers lose their mean and are divided by their standard
    deviation, with the same end."""
    labels = batch["labels"]
    if measured(labels) and (spread := labels.std(correction=0)) > 0:
        return {**batch, "labels": (labels - labels.mean()) / spread}
    same = labels.eq(labels[:1]).all(0) if any_number(labels) else None
    if same is None or same.all():
        return batch
    return {**batch, "labels": labels.masked_fill(same, IGNORED)}


def _share(losses: list[float]) -> float:
    share = losses[-1] / losses[0] if losses[0] else 0.0
    return share if math.isfinite(share) else math.inf


def _descend(model: PreTrainedModel, batch: Mapping[str, torch.Tensor], task: Task, rate: float, steps: int) -> list[float]:
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=rate, weight_decay=0.0)
    losses: list[float] = []
    for _ in range(steps + 1):
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = task.loss(model(**inputs_of(batch)).logits, batch["labels"], None)
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]) or losses[-1] < HALF * losses[0]:
                break
            torch.autograd.backward(loss)
        optimizer.step()
    return losses


def learn(probe: Probe, steps: int) -> tuple[float, float, float | None, float | None]:
    """Train a classifier for `steps` steps on `MOST_ROWS` rows, and look at rows that it has not seen. The weights are put back.

    Returns:
        Held-out loss, entropy of the held-out labels by the train labels' shares, held-out accuracy, share of the commonest label there. Where a
        row has any number of labels, the last two count every label of every row, said or not said. Of numbers, less the train mean and divided by its
        standard deviation: the mean square, that of always saying the mean, None, None.
    """
    train, held_out = _two_parts(probe)
    model, task, generator = probe.model, probe.task, np.random.default_rng(probe.settings.train.seed)
    rate, few = peak_rate(model) / 2, Few(train)
    moved = None if train.numbers is None else (float(train.numbers.mean()), float(train.numbers.std()) or 1.0)
    with restored(model):
        model.train()
        optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=rate)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / max(1, steps // 10)) * (1 - step / steps)
            batch = _scaled(probe.collator(few.rows(generator.choice(len(few), size=min(BATCH_ROWS, len(few)), replace=False))), moved)
            with torch.enable_grad():
                torch.autograd.backward(task.loss(model(**inputs_of(batch)).logits, batch["labels"], None))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        loss, right = 0.0, 0.0
        unseen = Few(held_out)
        for start in range(0, len(unseen), BATCH_ROWS):
            places = list(range(start, min(start + BATCH_ROWS, len(unseen))))
            result = forward(model, _scaled(probe.collator(unseen.rows(places)), moved), task)
            loss += result.loss * len(places)
            right += 0.0 if moved else _right(result.logits, result.labels)
    if moved is not None and held_out.numbers is not None:
        return loss / len(unseen), float((((held_out.numbers - moved[0]) / moved[1]) ** 2).mean()), None, None
    if train.flags is not None and held_out.flags is not None:
        rows = len(train.flags)
        share = (train.flags.sum(0) + 1.0) / (rows + 2.0)
        there = held_out.flags.mean(0)
        prior = float(-(there * np.log(share) + (1 - there) * np.log(1 - share)).mean())
        return loss / len(unseen), prior, right / len(unseen), float(np.where(share > 0.5, there, 1 - there).mean())
    assert train.labels is not None
    assert held_out.labels is not None
    counts = np.bincount(train.labels, minlength=int(held_out.labels.max()) + 1) + 1.0
    prior = float(-np.log(counts / counts.sum())[held_out.labels].mean())
    majority = float((held_out.labels == counts.argmax()).mean())
    return loss / len(unseen), prior, right / len(unseen), majority


def _scaled(batch: Mapping[str, torch.Tensor], moved: tuple[float, float] | None) -> dict[str, torch.Tensor]:
    """The batch, its numbers less a mean and divided by a standard deviation."""
    return {**batch} if moved is None else {**batch, "labels": (batch["labels"] - moved[0]) / moved[1]}


def _right(logits: torch.Tensor, labels: torch.Tensor) -> float:
    if any_number(labels):
        return float(((logits >= 0) == (labels > 0)).float().mean(-1).sum())
    return float((logits.argmax(-1) == labels).sum())


def _two_parts(probe: Probe) -> tuple[Rows, Rows]:
    """Rows to train on and up to a quarter as many that they do not hold: of the held-out split, else of the train split."""
    generator = np.random.default_rng(probe.settings.train.seed)
    split, other = probe.train_split, probe.store.eval_split
    drawn = generator.choice(len(split), size=min(len(split), MOST_ROWS), replace=False)
    if other is not None and len(probe.store.split(other)) >= 32:
        unseen = probe.store.split(other)
        return split.rows(drawn), unseen.rows(generator.choice(len(unseen), size=min(len(unseen), MOST_ROWS // 4), replace=False))
    cut = max(1, len(drawn) // 5)
    return split.rows(drawn[cut:]), split.rows(drawn[:cut])
