"""benchmarks/scale.py: the play behind the plan for 10 TB, and its table on the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ftcli.core.reading.shards import shard_size

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks" / "scale.py").exists(), reason="the benchmarks are in the source tree only")


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import scale

    return scale


@pytest.fixture
def one(scale: ModuleType) -> Any:
    """A core does 64 MB in 2 s and writes half of what it reads."""
    return scale.Measured("made up", "a machine", 32e6, 4.0, 500e6, 0.5)


@pytest.fixture
def plan(scale: ModuleType) -> Any:
    """1,000 shards on 10 workers, with more network and storage than they need."""
    return scale.Plan(size=64e9, nodes=5, cores=2, network=1e12, storage=1e12, file_seconds=0.0)


def test_the_shards_are_the_planners(scale: ModuleType) -> None:
    assert shard_size(int(scale.Plan().size)) == scale.SHARD_BYTES


def test_undisturbed_it_is_the_work_over_the_workers(scale: ModuleType, plan: Any, one: Any) -> None:
    found = scale.simulate(plan, one)

    assert (found.shards, found.made_again, found.limit) == (1000, 0, "cores")
    assert found.work_hours * 3600 == pytest.approx(4 + 1000 * 2 / 10, rel=0.03)
    assert found.node_memory == 2 * 500e6
    assert scale.simulate(plan, one) == found


@pytest.mark.parametrize(
    ("change", "limit"),
    [({"network": 15e6}, "network"), ({"storage": 60e6}, "storage"), ({"kill_seconds": 1.0}, "cores"), ({"slow_share": 0.4}, "cores")],
)
def test_whatever_is_short_costs_time(scale: ModuleType, plan: Any, one: Any, change: dict[str, float], limit: str) -> None:
    found = scale.simulate(replace(plan, **change), one)

    assert found.limit == limit
    assert found.work_hours > 1.05 * scale.simulate(plan, one).work_hours
    assert (found.made_again > 0) == ("kill_seconds" in change)


def test_the_driver_reads_the_sources_once_and_looks_at_every_file(scale: ModuleType, plan: Any, one: Any) -> None:
    found = scale.simulate(replace(plan, network=64e9 / 3600, file_seconds=3.6), one)

    assert found.hash_hours == pytest.approx(1)
    assert found.publish_hours == pytest.approx(1)
    assert scale.cost(replace(plan, node_price=2.0), one, found)[0] == pytest.approx(5 * found.hours * 2)


def test_figures_that_cannot_be_are_refused(scale: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scale.parse(["--nodes", "0"])
    assert "above 0" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no rounds of 'nothing'"):
        scale.measured("nothing")


def test_the_arguments_are_the_plan(scale: ModuleType) -> None:
    assert scale.parse([]) == (scale.Plan(), "docs")
    assert scale.parse(["--terabytes", "2", "--network-gbit", "8"])[0] == replace(scale.Plan(), size=2e12, network=1e9)
