"""What a plugin's collator does wrong is named, with file and line; ftcli's own are used as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ftcli.contracts import BatchSpec
from ftcli.core.batches.collate import Dynamic
from ftcli.core.batches.collating import made, refuse_batch
from ftcli.core.batches.tasks import Pretrain
from ftcli.core.storage.store import Ragged, Rows
from ftcli.errors import FtcliError, PluginError
from ftcli.pluginmanager import Plugins
from thirdparty import put

PLUGIN = """
    from ftcli import hookimpl
    from ftcli.contracts import CollatorKind
    from ftcli.errors import SettingsError

    import torch
    {body}

    @hookimpl
    def register_collators(register):
        register("mine", CollatorKind(make))
"""
CALLED = "def make(spec):\n        return lambda {arguments}: {answer}"
SPEC = BatchSpec(0, "right", 8, 1, Pretrain())
ROWS = Rows(np.arange(2), Ragged(np.array([5, 6, 7], np.int32), np.array([0, 1, 3])))


def plugins(folder: Path, body: str) -> Plugins:
    return Plugins(plugins_dir=put(folder, PLUGIN.replace("{body}", body), "mine"), allow=())


def test_a_sound_collator_of_a_plugin_gives_its_batches(tmp_path: Path) -> None:
    body = "def make(spec):\n        from ftcli.core.batches.collate import Dynamic\n        return Dynamic(spec)"

    found, own = made(plugins(tmp_path, body), "mine", SPEC)(ROWS), made(Plugins(allow=()), "dynamic", SPEC)

    assert isinstance(own, Dynamic)
    assert {name: value.tolist() for name, value in found.items()} == {name: value.tolist() for name, value in own(ROWS).items()}


@pytest.mark.parametrize(
    ("arguments", "answer", "words"),
    [
        ("rows", "None", "makes an unusable batch: it is NoneType"),
        ("rows", "{}", "makes an unusable batch: no input_ids and no labels"),
        ("rows", '{"input_ids": [1], "labels": [2]}', "makes an unusable batch: input_ids is a list and no tensor"),
        (
            "rows",
            "{'input_ids': torch.ones(2, 3), 'labels': torch.ones(2)}",
            "makes an unusable batch: input_ids are torch.float32: token ids",
        ),
        ("rows", "rows.nothing", r"broke: AttributeError: 'Rows' object has no attribute 'nothing' \(mine.py, line 8\)"),
        ("rows", "exit('no licence')", r"broke: SystemExit: no licence \(mine.py, line 8\)"),
        ("", "None", r"broke: TypeError: .*takes 0 positional arguments but 1 was given"),
    ],
)
def test_a_batch_that_cannot_be_used_is_named(tmp_path: Path, arguments: str, answer: str, words: str) -> None:
    collator = made(plugins(tmp_path, CALLED.format(arguments=arguments, answer=answer)), "mine", SPEC)

    with pytest.raises(PluginError, match=f"^the collator mine of plugin 'mine' {words}") as caught:
        collator(ROWS)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def make(): ...", "plugin 'mine' cannot be made: TypeError: make"),
        ("def make(spec): ...", "plugin 'mine' is None, which cannot be called with rows"),
        ("def make(spec):\n        return 1 / 0", r"cannot be made: ZeroDivisionError: division by zero \(mine.py, line 8\)"),
    ],
)
def test_a_factory_that_makes_no_collator_is_named(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(PluginError, match=words) as caught:
        made(plugins(tmp_path, body), "mine", SPEC)
    assert "BatchSpec" in caught.value.hint


def test_a_refusal_of_the_plugin_is_shown_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FtcliError, match=r"^not for this task$"):
        made(plugins(tmp_path, "def make(spec):\n        raise SettingsError('not for this task')"), "mine", SPEC)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("batch['labels'].int()", "labels are torch.int32, where those of the task are torch.int64"),
        ("batch['labels'].float()", "labels are torch.float32, where those of the task are torch.int64"),
        ("batch['labels'][1:]", "1 labels for 2 rows of ids"),
        ("batch.update({name: value[:0] for name, value in batch.items()}) or batch['labels']", "0 rows of ids for 2 rows"),
        ("batch.update(input_ids=torch.tensor(3)) or batch['labels']", r"input_ids have the shape \[\], not \[rows, width\]"),
        ("batch['labels']", None),
    ],
)
def test_a_first_batch_that_nothing_can_be_learned_of_is_named(tmp_path: Path, change: str, words: str | None) -> None:
    """They were bugs of ftcli, or the model's configuration was blamed."""
    body = f"""
    def make(spec):
        from ftcli.core.batches.collate import Dynamic
        def collate(rows):
            batch = Dynamic(spec)(rows)
            labels = {change}
            return batch | {{"labels": labels}}
        return collate
    """
    collator = made(plugins(tmp_path, body), "mine", SPEC)
    if words is None:
        return refuse_batch(collator, SPEC.task, ROWS)
    with pytest.raises(PluginError, match=f"^the collator mine of plugin 'mine' makes an unusable batch: {words}"):
        refuse_batch(collator, SPEC.task, ROWS)
    return refuse_batch(made(Plugins(allow=()), "dynamic", SPEC), SPEC.task, ROWS)
