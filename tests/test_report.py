"""The HTML report: what it shows, what it must not do, and that it is one file."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ftcli.core.figures import GAP
from ftcli.core.reports import plot
from ftcli.core.reports.document import write_document
from ftcli.core.reports.headline import lede
from ftcli.core.reports.report import render_html, write_report
from ftcli.errors import PublishError
from ftcli.records import Check, PluginInfo, Report, Value, to_json
from report_samples import CHECKS, FULL, MACHINE, benchmark_report, tokenize_report, train_report, verify_report

pytestmark = pytest.mark.usefixtures("drawn")

WHEN = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
VOID = {"meta", "link", "br", "wbr", "hr", "img", "input"}


class Page(HTMLParser):
    """Collects what a page holds and refuses tags that do not close."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: Counter[str] = Counter()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in {"src", "href", "xlink:href", "srcset", "action", "poster", "data", "background"}:
                self.references.append(value or "")
            elif name == "clip-path" and value and value.startswith("url("):
                self.references.append(value[4:-1])
            elif name == "aria-labelledby":
                self.references += [f"#{word}" for word in (value or "").split()]
            assert not name.startswith("on")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.text += " "

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def words(page: Page) -> str:
    return re.sub(r"\s+", " ", page.text)


@pytest.fixture(scope="module", params=FULL)
def full(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A command and its page with everything in it."""
    return request.param, render_html(FULL[request.param](), WHEN)


def test_a_full_page_is_well_formed_and_its_ids_are_unique(full: tuple[str, str]) -> None:
    page = Page(full[1])
    assert page.tags["svg"] >= 2
    assert "</desc></svg>" not in full[1]  # an empty drawing
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []


def test_a_page_needs_nothing_but_itself(full: tuple[str, str]) -> None:
    page = Page(full[1])
    assert page.references
    assert {reference.removeprefix("#") for reference in page.references} <= set(page.ids)
    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == 0
    assert "http" not in full[1]
    assert "@import" not in full[1]
    assert re.findall(r"url\((?!#)", full[1]) == []


def test_the_same_report_gives_the_same_bytes(full: tuple[str, str]) -> None:
    assert render_html(FULL[full[0]](), WHEN) == full[1]


def test_a_page_says_when_on_what_and_with_what(full: tuple[str, str]) -> None:
    text = words(Page(full[1]))
    for part in ("2026-03-01 09:30 UTC", "AMD EPYC 9354", "16 by affinity", "DATASET_NUM_PROC", "engine_gigatoken", "9c1f0a77d2e4b310"):
        assert part in text


def test_colours_are_left_to_the_page(full: tuple[str, str]) -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", full[1], flags=re.DOTALL))
    assert "var(--s1)" in drawings
    assert re.findall(r"(?:fill|stroke): (#\w+)", drawings) == []
    assert "font-family" not in drawings


@pytest.mark.parametrize("command", [*FULL, "benchmark tokenize", "other"])
def test_a_report_with_nothing_in_it_is_a_page_still(command: str) -> None:
    page = Page(render_html(Report(command, "ok", 0.5, {})))
    assert page.tags["svg"] == 0
    assert command.capitalize() in page.text
    assert "unknown" not in page.text


@pytest.mark.parametrize("command", ["tokenize", "train"])
def test_null_is_shown_as_unknown(command: str) -> None:
    report = FULL[command]()
    text = words(Page(render_html(replace(report, metrics=dict.fromkeys(report.metrics)), WHEN)))
    assert text.count("unknown") >= 8
    assert "None" not in text
    assert "nan" not in text


def test_figures_that_are_not_finite_are_unknown() -> None:
    report = train_report()
    log = [{"step": 1, "loss": 5.6}, {"step": 2, "loss": math.nan}, {"step": 3, "loss": math.inf}]
    histogram = {"edges": [math.nan, math.nan], "counts": [0]}
    text = render_html(replace(report, metrics={**report.metrics, "final_loss": math.nan}, details={"log": log, "lengths": histogram}))
    assert 'id="loss-wide-title"' in text
    assert 'id="lengths-wide-title"' not in text
    assert ">nan<" not in text


@pytest.mark.parametrize("missing", ["lengths", "labels", "splits", "sources", "rating", "max_length", "time", "floor"])
def test_a_missing_detail_leaves_only_its_part_out(missing: str) -> None:
    report = tokenize_report()
    details = {key: value for key, value in report.details.items() if key != missing}
    whole, page = render_html(report, WHEN), render_html(replace(report, details=details), WHEN)
    assert len(page) < len(whole)
    Page(page)


@pytest.mark.parametrize(
    ("lost", "note"),
    [
        (0, "99,800 further files, all of whose rows were written: 199,600."),
        (7, "99,800 further files: 199,600 rows read, 199,593 written, 0 rejected, 7 filtered."),
    ],
)
def test_sources_beyond_a_page_are_told_in_one_line(lost: int, note: str) -> None:
    report = tokenize_report()
    further = {"files": 99_800, "rows_read": 199_600, "rows_written": 199_600 - lost, "rows_rejected": 0, "rows_filtered": lost}
    assert note in words(Page(render_html(replace(report, details={**report.details, "further_sources": further}), WHEN)))
    assert "further files" not in words(Page(render_html(report, WHEN)))


def test_the_run_stands_beside_what_the_machine_can_do_alone() -> None:
    report = tokenize_report()
    verdict = "23,190 examples/s: very fast; 71 % of the engine alone, disk at 12 % of its rate; the engine is the limit"
    text = words(Page(render_html(replace(report, details={**report.details, "verdict": verdict}), WHEN)))

    assert f"Rating {verdict}" in text
    assert "very fast; 71 % of the engine alone, disk at 12 % of its rate; the engine is the limit" in text.replace(f"Rating {verdict}", "")
    assert "bands of" not in text
    assert "the engine with 16 workers in parallel" in text
    assert "Disk, writing with fsync 812.0 MB/s" in text
    assert "Disk, reading unknown" in text
    assert "Where the time went" in text


def test_text_of_users_is_text_wherever_it_stands() -> None:
    evil = "<script>alert('x')</script>&amp;\"' § $x^{ \\frac"
    log = [{"step": 1, "loss": 1.0}]
    rows = [{"row": 0, "text": evil, "label": evil, "tokens": 3, "ids": [1]}]
    one = {"name": evil, "median": 1.0, "low": 0.5, "high": 2.0}
    report = Report(
        command="verify",
        status="failed",
        seconds=1.0,
        metrics={"measurements": [{**one, "unit": evil, "n": 3}], "ratios": [{**one, "verdict": evil}], evil: evil},
        checks=(Check(evil, evil, "fail", evil, {evil: evil, "nested": [evil]}, evil),),
        paths={evil: evil},
        machine=replace(MACHINE, cpu_model=evil, how={"cores": evil}),
        settings={"a": Value(evil, evil)},
        plugins=(PluginInfo(evil, evil, evil, evil, (evil,)),),
        error={"code": evil, "message": evil, "hint": evil},
        notes=(evil,),
        details={
            "log": log, "rows": rows, "rating": evil, "gpu": {evil: evil}, "time": {evil: 1.0}, "splits": {evil: {}},
            "labels": {"names": [evil, "b"], "counts": [1, 2]},
            "sources": [{"path": evil}],
        },
    )  # fmt: skip
    page = Page(render_html(report, WHEN))
    assert page.tags["script"] == 0
    assert page.text.count(evil) > 20


def test_checks_stand_by_stage_with_what_to_do_and_their_evidence() -> None:
    page = render_html(verify_report(), WHEN)
    text = words(Page(page))
    places = [text.index(name) for name in ("environment", "tokenizer ✓", "batch ✓", "model ✓", "first steps ✕")]
    assert places == sorted(places)
    assert "1 of 9 checks failed: first-loss." in text
    assert "What to do Unset CUDA_LAUNCH_BLOCKING" in text
    assert "151643" in text
    assert page.count("<summary>Evidence</summary>") == sum(bool(check.evidence) for check in CHECKS)
    assert "배송이 너무 늦어서" in text


def test_a_clean_verification_says_so() -> None:
    passed = tuple(check for check in CHECKS if check.status == "pass")
    text = words(Page(render_html(Report("verify", "ok", 1.0, {}, passed))))
    assert f"None of {len(passed)} checks failed." in text
    assert "First loss" not in text


def test_a_run_is_called_ready_only_where_its_first_steps_were_taken() -> None:
    def said(*checks: Check) -> str:
        return lede(to_json(Report("verify", "ok", 1.0, {}, checks)))

    tokenizer, steps = Check("FT102", "tokenizer", "pass", "PAD is '<pad>'"), Check("FT501", "steps", "pass", "the loss falls")
    assert said(tokenizer, steps) == "Ready to train: none of 2 checks failed."
    assert said(tokenizer) == "The only check did not fail."
    assert said(tokenizer, replace(steps, status="skipped", summary="it takes 9 GB of memory")) == "None of 2 checks failed."
    unseen = replace(steps, status="skipped", summary="Steps: no --dataset")
    assert said(tokenizer, unseen) == "None of 2 checks failed, but 1 was skipped: no --dataset."
    model = replace(unseen, id="FT503", summary="Model: no --model-config or --model-name-or-path")
    without = "no --dataset, no --model-config or --model-name-or-path"
    assert said(tokenizer, unseen, model) == f"None of 3 checks failed, but 2 were skipped: {without}."
    unprepared = replace(unseen, summary="Steps: the sources are not prepared yet: ftcli train prepares them first")
    assert said(tokenizer, unprepared) == "None of 2 checks failed, but 1 was skipped: the sources are not prepared yet."
    assert said(unseen, model) == f"Nothing was checked: {without}."
    assert said(replace(steps, status="skipped")) == "Nothing was checked: 1 was skipped."


def test_an_error_is_shown_with_what_to_do() -> None:
    error = {"code": "train", "message": "The loss became NaN at step 412.", "hint": "Lower the learning rate."}
    text = words(Page(render_html(replace(train_report(), status="failed", error=error), WHEN)))
    assert "The loss became NaN at step 412. What to do Lower the learning rate." in text


def test_reused_data_is_called_reused() -> None:
    report = tokenize_report()
    text = words(Page(render_html(replace(report, metrics={**report.metrics, "reused": True}), WHEN)))
    assert "nothing was written" in text


def test_headline_figures_carry_separators_units_and_what_they_are_compared_with() -> None:
    text = words(Page(render_html(tokenize_report(), WHEN)))
    for part in ("23,185 examples/s", "very fast", "631,999,811", "5.12 GB", "0.04 % of rows, 20,411 tokens cut"):
        assert part in text
    text = words(Page(render_html(train_report(), WHEN)))
    for part in ("1.00× the expected 5.63", "87.3 %", "chance 0.4 %, majority class 3.4 %", "MFU unknown"):
        assert part in text


def test_an_unknown_share_beside_the_model_is_left_out() -> None:
    report = train_report()
    for share, said in ((0.25, True), (None, False)):
        text = words(Page(render_html(replace(report, metrics={**report.metrics, "host_overhead_share": share}), WHEN)))
        assert ("is overhead outside the model" in text) is said
        assert "unknown goes" not in text


def test_a_language_model_has_a_perplexity_and_no_accuracy() -> None:
    report = train_report()
    measured = {name: value for name, value in report.metrics.items() if name not in {"eval_accuracy", "chance_accuracy"}}
    text = words(Page(render_html(replace(report, metrics={**measured, "eval_loss": 2.0, "peak_gpu_mb": None}), WHEN)))
    assert "perplexity 7.39" in text
    assert "chance" not in text
    assert "GPU unknown" not in text
    assert "perplexity" not in words(Page(render_html(report, WHEN)))


def test_a_first_loss_twelve_times_too_high_shows_its_factor() -> None:
    assert "12.02× the expected 5.63" in words(Page(render_html(verify_report(), WHEN)))


def test_defaults_are_folded_and_chosen_settings_are_not() -> None:
    page = render_html(tokenize_report(), WHEN)
    folded = "".join(re.findall(r"<details.*?</details>", page, flags=re.DOTALL))
    assert "model.model_name_or_path" in folded
    assert "unset" in folded
    assert "dataset.num_proc" in page
    assert "dataset.num_proc" not in folded


def test_long_label_lists_are_cut_and_the_cut_is_named() -> None:
    labels = {"names": [f"label-{index}" for index in range(2700)], "counts": [1] * 2700}
    text = words(Page(render_html(replace(tokenize_report(), details={"labels": labels}), WHEN)))
    assert "The first 500 of 2,700." in text
    assert "label-499" in text
    assert "label-500" not in text


def test_verdicts_are_words_not_only_colours() -> None:
    text = words(Page(render_html(benchmark_report(), WHEN)))
    assert "3 comparisons: 1 faster, 1 slower, 1 no difference." in text
    assert "no difference; 0.97× to 1.04×" in text


def test_a_long_name_is_clipped_in_the_narrow_plot_and_whole_in_the_table() -> None:
    page = render_html(benchmark_report(), WHEN)
    assert "한국어 본문으로 재는 gigat…" in page
    assert "much too long for a phone</td>" in page


def test_both_files_are_written_whole_and_know_their_paths(tmp_path: Path) -> None:
    report = tokenize_report()
    paths = write_report(report, tmp_path / "new" / "folder", "tokenize")
    assert sorted(entry.name for entry in (tmp_path / "new" / "folder").iterdir()) == ["tokenize.html", "tokenize.json"]
    document = json.loads(Path(paths["json"]).read_text(encoding="utf-8"))
    assert document["schema"] == "ftcli.report/1"
    assert document["paths"] == {**report.paths, **paths}
    assert document["metrics"]["packing_waste"] is None
    page = Page(Path(paths["html"]).read_text(encoding="utf-8"))
    assert paths["html"] in page.text
    write_report(report, tmp_path / "new" / "folder", "tokenize")


def test_a_file_name_that_is_not_utf8_can_be_reported(tmp_path: Path) -> None:
    sources = [{"path": "caf\udce9.jsonl", "rows_read": 1}]
    paths = write_report(Report("tokenize", "ok", 1.0, {}, details={"sources": sources}), tmp_path)
    assert json.loads(Path(paths["json"]).read_text(encoding="utf-8"))["details"]["sources"] == sources
    assert "caf\\udce9.jsonl" in Path(paths["html"]).read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PublishError, match=r"report\.json cannot be written") as caught:
        write_report(Report("train", "ok", 1.0, {}), tmp_path / "file")
    assert caught.value.hint


def test_a_failed_write_leaves_the_old_report_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_report(Report("train", "ok", 1.0, {}), tmp_path)
    before = Path(paths["json"]).read_bytes()

    def full_disk(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(PublishError, match="No space left"):
        write_report(Report("train", "failed", 2.0, {}), tmp_path)
    assert Path(paths["json"]).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_is_followed_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    """As root, a rename over /dev/null would take it from the whole machine."""
    (tmp_path / "kept").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    write_document(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "kept").read_text(encoding="utf-8") == "new"
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((tmp_path / "pipe").read_text, "utf-8")
        write_document(tmp_path / "pipe", "through")
        assert read.result(30) == "through"
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("name", ["/dev/stdout", "log"])
def test_what_stands_in_the_file_that_stdout_goes_to_stays_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "log").write_text("before\n")
    words = f"from pathlib import Path; from ftcli.core.reports.document import write_document; print(1); write_document(Path({name!r}), 'new\\n'); print(2)"
    with (tmp_path / "log").open("a") as log:
        subprocess.run([sys.executable, "-c", words], stdout=log, cwd=tmp_path, check=True)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "before\n1\nnew\n2\n"


def test_a_link_to_itself_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    write_document(tmp_path / "loop", "new")
    assert (tmp_path / "loop").read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_and_lines_can_be_told_from_their_ground(scheme: int) -> None:
    css = (Path(plot.__file__).parent / "report.css").read_text(encoding="utf-8")
    palettes = [dict(re.findall(r"--([\w-]+): #(\w{6})", block)) for block in re.findall(r":root \{(.*?)\n *\}", css, flags=re.DOTALL)]
    assert len(palettes) == 2
    colours = palettes[scheme]

    def contrast(one: str, other: str) -> float:
        def light(name: str) -> float:
            parts = [int(colours[name][place : place + 2], 16) / 255 for place in (0, 2, 4)]
            red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue

        high, low = sorted((light(one), light(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for ground in ("ground", "panel", "bad-wash", "warn-wash"):
        assert contrast("ink", ground) >= 7
        assert contrast("muted", ground) >= 4.5
    for status in ("good", "warn", "bad", "note"):
        assert contrast(status, f"{status}-wash") >= 4.5
        assert contrast(status, "ground") >= 4.5
    for series in plot.SERIES:
        assert contrast(series, "ground") >= 3


def test_long_names_of_settings_may_break_in_words_and_code_and_paths_stay_as_they_are() -> None:
    long = "train.gradient_accumulation_steps"
    factor = {
        "name": long,
        "base": {long: 1},
        "new": {long: 2},
        "counted": True,
        "cumulative": NOTHING,
        "share": 1.0,
        "alone": NOTHING,
        "taken_back": NOTHING,
    }
    metrics = {
        "factors": [factor],
        "unmeasured": [{"setting": "train.seed", "base": 1, "new": 2, "why": f"</td> /a/{long}/b"}],
        "unexplained": {**NOTHING, "share": 0.0},
        "total": NOTHING,
    }
    page = render_html(replace(FULL["tokenize"](), command="benchmark attribute", metrics=metrics, details={}), WHEN)
    assert '<td class="t" data-label="Factor">train.<wbr>gradient_<wbr>accumulation_<wbr>steps</td>' in page
    assert f'<td class="c" data-label="Setting">{long}</td>' in page
    assert f'<td class="t" data-label="Factor">not measured: &lt;/td&gt; /a/{long}/b</td>' in page


NOTHING = {"median": None, "low": None, "high": None, "n": 0, "verdict": "not measured"}


@pytest.mark.parametrize(
    ("resumed", "words"),
    [
        (None, "1,400 steps (2.00 epochs) in 1 h 12 min;"),
        (1000, "400 further steps, to 1,400 (2.00 epochs), in 1 h 12 min;"),
        (1399, "1 further step, to 1,400 (2.00 epochs), in 1 h 12 min;"),
        (1400, "No further steps, at 1,400 (2.00 epochs), in 1 h 12 min;"),
    ],
)
def test_a_run_that_went_on_says_how_many_steps_its_time_is_for(resumed: int | None, words: str) -> None:
    report = train_report()
    assert lede(to_json(replace(report, details={**report.details, "resumed_step": resumed}))).replace(GAP, " ").startswith(words)
