"""What the step log writes, and at which level."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from loguru import logger

from ftcli.pluginmanager import Plugins
from ftcli.records import Report, Step
from ftcli.settings import Settings


@pytest.fixture
def lines() -> Iterator[list[dict[str, object]]]:
    """Everything logged, as loguru serialises it."""
    found: list[dict[str, object]] = []
    sink = logger.add(lambda text: found.append(json.loads(text)["record"]), serialize=True, level="DEBUG")
    yield found
    logger.remove(sink)


def _only(lines: list[dict[str, object]]) -> tuple[str, str, object]:
    (record,) = lines
    return record["level"]["name"], record["message"], record["extra"]  # type: ignore[index, return-value]


def test_a_step_is_one_debug_line_with_the_figures_that_are_known(lines: list[dict[str, object]]) -> None:
    Plugins(allow=()).hook.on_step(step=Step(step=20, epoch=0.5, loss=5.634789, grad_norm=None, learning_rate=1e-5))

    figures = {"step": 20, "epoch": 0.5, "loss": 5.634789, "learning_rate": 1e-5}
    assert _only(lines) == ("DEBUG", "step 20 epoch 0.5 loss 5.63479 learning_rate 1e-05", figures)


def test_a_run_is_one_info_line_with_its_last_loss(lines: list[dict[str, object]]) -> None:
    report = Report("train", "ok", 12.345, {"final_loss": 1.23456})
    Plugins(allow=()).hook.after_run(command="train", settings=Settings(), report=report)

    figures = {"command": "train", "status": "ok", "seconds": 12.345, "final_loss": 1.23456}
    assert _only(lines) == ("INFO", "train ok after 12.35 s, last loss 1.2346", figures)


def test_a_run_that_failed_says_why(lines: list[dict[str, object]]) -> None:
    report = Report("tokenize", "failed", 1, {}, error={"code": "data", "message": "a.jsonl:3: {broken}", "hint": ""})
    Plugins(allow=()).hook.after_run(command="tokenize", settings=Settings(), report=report)

    assert _only(lines)[:2] == ("INFO", "tokenize failed after 1.00 s: a.jsonl:3: {broken}")
