"""The tests' short way with the lean step: proved once for every kind of run, and put in as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import short_lean
from ftcli.core.models import lean as step
from runs import ONE_STEP, VOCABULARY, Bench, step_of
from stores import learnable

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_run_like_one_before_takes_its_verdicts_and_another_kind_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs: list[Any] = []
    computed = step.computed
    monkeypatch.setattr(step, "computed", lambda *given, **named: proofs.append(given) or computed(*given, **named))  # type: ignore[func-returns-value]
    monkeypatch.setattr(short_lean, "VERDICTS", {})
    bench = Bench.make(tmp_path)
    store = bench.store("rows", {"train": learnable(12, 4, VOCABULARY, 0)}, labels=4)

    def run(kind: str, wanted: str = "auto") -> tuple[float, int, list[str]]:
        before = len(proofs)
        context = bench.context(store, "out", kind, **ONE_STEP, train__lean_step=wanted)
        loss, _ = step_of(context)
        return loss, len(proofs) - before, [note for note in context.notes if note.startswith("lean step")]

    first, second, other, off = run("qwen3"), run("qwen3"), run("bert"), run("qwen3", "off")

    assert [ran[1] > 0 for ran in (first, second, other, off)] == [True, False, True, False]
    assert "proved equal on this model" in first[2][0]
    assert second[2] == first[2]
    assert second[0] == first[0] == pytest.approx(off[0], rel=1e-5)
    assert off[2] != first[2]
