"""docs/benchmarks.md: every figure with its machine, date and command, and "not measured" where there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks" / "page.py").exists(), reason="the benchmarks are in the source tree only")

MACHINE = {"cpu_model": "EPYC", "cores": 2, "memory_bytes": 2**34, "load_average": 0.5, "gpus": [{"name": "H200"}]}
SPREAD = {"median": 30.25, "low": 29.0, "high": 31.5, "verdict": "slower"}
NOTHING = SPREAD | {"verdict": "no difference"}
RESULTS: dict[str, Any] = {
    "tokenize": {
        "results": [
            {"work": "docs", "over_naive": SPREAD, "of_engine": SPREAD},
            {"work": "job", "rows": 10, "ours": {"wall": 3.0, "peak_rss_mb": 5.0, "peak_pss_mb": 4.0}},
        ],
        "arguments": {"workers": 2},
        "machine": MACHINE,
    },
    "train": {"results": [{"work": "lm", "ratios": {"trl": {"wall": SPREAD, "cpu": SPREAD}}}], "machine": MACHINE},
    "accuracy": {
        "results": [
            {
                "work": "nsmc",
                "accuracy": {"ftcli": 0.5, "plain": 0.495},
                "difference": {"mean": 0.5, "low": None, "high": None},
                "ratios": dict.fromkeys(("train_wall", "train_cpu", "wall"), SPREAD),
            }
        ],
        "machine": MACHINE,
    },
    "planted": [
        {
            "case": "sleep",
            "found": found,
            "metrics": {
                "factors": [{"name": "a|b", "alone": SPREAD, "share": share}, {"name": "decoy", "alone": NOTHING, "taken_back": SPREAD}]
            },
            "machine": MACHINE,
        }
        for found, share in ((True, 0.9), (False, None))
    ],
    "twins": [
        {
            "action": "batch",
            "comparisons": 4,
            "different": 1,
            "verdicts": {"no difference": 3, "faster": 1},
            "ratios": [0.9, 1.1],
            "machine": MACHINE,
        }
    ],
    "incident1": {
        "metrics": {
            "factors": [
                {"name": "data volume", "kind": "volume", "alone": SPREAD, "share": 0.9},
                {"name": "loader.collator", "kind": "code", "alone": SPREAD, "taken_back": SPREAD, "share": -0.001},
            ],
            "unexplained": SPREAD,
            "total": SPREAD,
        },
        "machine": MACHINE,
    },
}

PLACE = re.compile(r'"(?:/|[A-Z]:)[^" ]*"')
"""A quoted absolute path."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import page

    return page


def test_a_row_without_a_result_says_so(module: ModuleType, tmp_path: Path) -> None:
    text = module.page(tmp_path)
    assert text.count("not measured") == len(module.KNOWN)
    for _, command, _ in module.KNOWN.values():
        assert f"`{command}`" in text


@pytest.mark.parametrize("name", RESULTS)
def test_a_kept_result_is_shown_with_machine_date_and_command(name: str, module: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(RESULTS[name]))
    path = module.keep(name, file, "make it", tmp_path / "results")
    kept = json.loads(path.read_text())
    rows = [line for line in module.page(tmp_path / "results").splitlines() if "EPYC" in line]
    assert rows
    for row in rows:
        assert row.endswith(f"EPYC, 2 cores, 16 GiB, H200, load 0.5 | {kept['date']} | `make it` |")
        assert row.replace("\\|", "").count("|") == 6
    assert any(figure in row for figure in ("30.2× (29 to 31.5)", "found", "no difference") for row in rows)
    assert module.page(tmp_path / "results").count("not measured") == len(module.KNOWN) - 1


@pytest.mark.parametrize(
    ("name", "text"), [("nothing", "{}"), ("train", "{"), ("train", "{}"), ("train", '{"results": []}'), ("planted", None)]
)
def test_what_is_no_result_is_refused(name: str, text: str | None, module: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit, match=r"no (result|figures)"):
        module.keep(name, file, "", tmp_path / "results")
    assert not (tmp_path / "results" / f"{name}.json").exists()


@pytest.mark.parametrize(
    ("name", "words", "figure"),
    [
        ("README.md", "English and Korean documents", "12.5× (29 to 31.5) | EPYC, 2 cores, 16 GiB, H200"),
        ("README.ko.md", "영어와 한국어 문서", "12.5× (29~31.5) | EPYC, 2코어, 16 GiB, H200"),
    ],
)
def test_a_readme_shows_the_newest_of_a_few_figures(name: str, words: str, figure: str, module: ModuleType, tmp_path: Path) -> None:
    file, readme = tmp_path / "result.json", tmp_path / name
    for median, day in ((12.5, "2026-01-02"), (11.25, "2026-01-01")):
        file.write_text(
            json.dumps({"results": [{"work": "docs", "over_naive": SPREAD | {"median": median}, "of_engine": SPREAD}], "machine": MACHINE})
        )
        kept = module.keep(f"tokenize-{day}", file, "make it", tmp_path / "results")
        kept.write_text(json.dumps(json.loads(kept.read_text()) | {"date": day}))
    readme.write_text("# Before\n\n<!-- measured -->\nold\n<!-- /measured -->\n\nAfter\n", encoding="utf-8")

    shown = module.measured(readme, tmp_path / "results").splitlines()

    [row] = [line for line in shown if "×" in line]
    assert row.startswith(f"| {words}: ")
    assert row.endswith(f" | {figure} |")
    assert (shown[0], shown[-1]) == ("# Before", "After")
    assert "old" not in shown


def test_a_kept_result_names_no_place_on_the_machine(module: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(
        json.dumps(
            RESULTS["train"]
            | {"arguments": {"rows": 96, "json": str(file), "data": "/here", "work_dir": "/there"}, "paths": {"html": "/place"}}
        )
    )
    kept = json.loads(module.keep("train", file, "make it", tmp_path / "results").read_text())
    assert kept["result"]["arguments"] == {"rows": 96}
    assert "paths" not in kept["result"]
    assert not [path for path in module.RESULTS.glob("*.json") if PLACE.search(path.read_text())]


def test_the_page_is_what_the_results_say_now(module: ModuleType) -> None:
    assert module.main(["--check"]) == 0


def test_a_later_result_of_a_part_stands_for_the_older_figure(module: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    for name, day, seconds in (("tokenize", "2026-01-01", 300), ("tokenize-job", "2026-02-01", 200)):
        ours = {"wall": seconds, "peak_rss_mb": 1.0, "peak_pss_mb": 1.0}
        result = {"results": [{"work": "job", "rows": 10, "ours": ours}], "arguments": {"workers": 2}, "machine": MACHINE}
        (folder / f"{name}.json").write_text(json.dumps({"command": "c", "date": day, "result": result}), encoding="utf-8")
    rows = [line for line in module.page(folder).splitlines() if line.startswith("| job")]
    assert ["200 s" in row for row in rows] == [True]


def test_a_planted_slowdown_says_how_often_it_was_found(module: ModuleType) -> None:
    assert dict(module.KNOWN["planted"][2](RESULTS["planted"])) == {
        "planted: sleep": "found 1 of 2 times (first: a|b, 30.25x to 30.25x, share 0.900 to 0.900)",
        "settings beside them that cost nothing": "no difference 2 of 4 times",
    }


def test_equal_things_say_how_often_they_were_called_different(module: ModuleType) -> None:
    assert dict(module.KNOWN["twins"][2](RESULTS["twins"])) == {
        "equal things: batch": "no difference 3 of 4 times (faster 1); ratios 0.900 to 1.100"
    }
