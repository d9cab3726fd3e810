"""Run with: pytest"""

import ftcli_ladder
import numpy as np
import pytest
from ftcli_ladder import rung

from ftcli.contracts import BatchSpec
from ftcli.core.batches.collate import Dynamic
from ftcli.core.batches.tasks import IGNORED, Pretrain
from ftcli.core.storage.store import Ragged, Rows
from ftcli.pluginmanager import Plugins
from ftcli.testing import tiny_model


def rows(*lengths: int) -> Rows:
    ids = np.arange(sum(lengths), dtype=np.int32) % 300 + 3
    return Rows(np.arange(len(lengths)), Ragged(ids, np.cumsum([0, *lengths])))


@pytest.fixture(scope="module")
def spec() -> BatchSpec:
    return BatchSpec(pad_token_id=0, padding_side="right", max_length=300, pad_to_multiple_of=1, task=Pretrain())


@pytest.fixture(scope="module")
def ladder(spec: BatchSpec):
    from pathlib import Path

    plugins = Plugins(plugins_dir=Path(ftcli_ladder.__file__), allow=())
    return plugins.registry("collator").get("ladder").make(spec)


def test_a_ladder_has_four_rungs_for_each_doubling_and_wastes_a_quarter_at_most() -> None:
    assert sorted({rung(tokens) for tokens in range(1, 321)}) == [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]
    assert all(tokens <= rung(tokens) <= 1.25 * tokens + 1 for tokens in range(32, 10_000))


def test_rows_are_padded_to_the_rung_and_not_beyond_the_maximum(ladder) -> None:
    assert ladder(rows(3, 130))["input_ids"].shape == (2, 160)
    assert ladder(rows(290))["input_ids"].shape == (1, 300)


def test_the_padding_is_masked_and_no_target(ladder, spec: BatchSpec) -> None:
    batch, plain = ladder(rows(5, 67)), Dynamic(spec)(rows(5, 67))

    for name, value in plain.items():
        assert (batch[name][:, :67] == value).all()
    assert not batch["attention_mask"][:, 67:].any()
    assert (batch["labels"][:, 67:] == IGNORED).all()


def test_the_loss_is_that_of_the_batch_without_the_ladder(ladder, spec: BatchSpec) -> None:
    model, task = tiny_model().eval(), Pretrain()

    losses = []
    for collate in (Dynamic(spec), ladder):
        batch = collate(rows(5, 67))
        labels = batch.pop("labels")
        losses.append(float(task.loss(model(**batch).logits, labels, None)))

    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
