"""docs/benchmarks.md from what was measured: one row a figure, with its machine, date and command; "not measured" where there is none.

A few of the figures stand in the READMEs, too.

python -m benchmarks.page                                        write the pages
python -m benchmarks.page --check                                exit code 1 if it is stale
python -m benchmarks.page --add tokenize result.json --command "python benchmarks/tokenize.py --json result.json"
                                                                 keep a result under benchmarks/results/, then write the page

Stands on the standard library alone, so that `docs/generate.py` can load it by its path.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
READMES = (HERE.parent / "README.md", HERE.parent / "README.ko.md")
MISSING = "not measured"
PLACES = ("json", "data", "work_dir")
"""Arguments of the benchmarks that name folders and files of the machine."""
OF_A_REPORT = ("paths", "settings", "plugins", "details", "checks")
"""What ftcli's own reports have and no figure comes from; the command says what was set."""
Result = Any
Figures = Iterator[tuple[str, str]]
"""What was measured, and the figure."""

HEAD = """# Benchmarks

What was measured, on which machine, when and by which command. This page is made from the JSON files in `benchmarks/results/` by `python -m benchmarks.page`; nothing
in it is typed. A row without a result says so. How each program measures stands in `benchmarks/README.md` of the source tree, how `ftcli benchmark` does it under
[Benchmark](benchmark.md).
"""


def _tokenize(result: Result) -> Figures:
    for each in result["results"]:
        if "over_naive" in each:
            yield f"{each['work']}: `ftcli tokenize` over `datasets.map`", _spread(each["over_naive"])
            yield f"{each['work']}: share of the engine alone", _spread(each["of_engine"], "")
        elif "over_megatron" in each:
            yield "docs: `ftcli tokenize` and `ftcli export --format megatron` over Megatron-LM's way", _spread(each["over_megatron"])
        elif "over_map" in each:
            yield "sft: `ftcli tokenize --mode sft` over `apply_chat_template` in `datasets.map`", _spread(each["over_map"])
        elif "ours" in each:
            what = f"{each['work']}: {each['rows']:,} rows, {result['arguments']['workers']} workers"
            peaks = [each["ours"][name] for name in ("peak_rss_mb", "peak_pss_mb")]
            yield what, "{:.0f} s, peak {:,.0f} MB ({:,.0f} MB with shared pages counted once)".format(each["ours"]["wall"], *peaks)
        elif "pipeline" in each:
            yield f"{each['work']}: {each['workers']} workers over one, the pipeline", _spread(each["pipeline"])
            yield f"{each['work']}: {each['workers']} workers over one, the whole command", _spread(each["command"])
            if "engine" in each:
                yield f"{each['work']}: {each['workers']} processes over one, the engine alone", _spread(each["engine"])


def _train(result: Result) -> Figures:
    for each in result["results"]:
        for way, ratio in each["ratios"].items():
            yield f"{each['work']}: `ftcli train` over {way}, by wall clock", _spread(ratio["wall"])
            if result.get("device", "cpu") == "cpu":
                yield f"{each['work']}: `ftcli train` over {way}, by CPU seconds", _spread(ratio["cpu"])
        rounds = [one["ftcli"] for one in each.get("rounds", ()) if one["ftcli"].get("mfu") is not None]
        if rounds:
            shares, rates = ([one[name] for one in rounds] for name in ("mfu", "real_tokens_per_second"))
            yield (
                f"{each['work']}: `ftcli train`, share of the device's peak (MFU)",
                f"{median(shares):.1%} (all rounds: {min(shares):.1%} to {max(shares):.1%})",
            )
            yield (
                f"{each['work']}: `ftcli train`, real tokens a second",
                f"{median(rates):,.0f} (all rounds: {min(rates):,.0f} to {max(rates):,.0f})",
            )


def _accuracy(result: Result) -> Figures:
    for each in result["results"]:
        found, ratios, reached = each["difference"], each["ratios"], each["accuracy"]
        yield (
            f"{each['work']}: accuracy of `ftcli train` less a plain torch loop's",
            f"{points(found)}; {reached['ftcli']:.1%} and {reached['plain']:.1%}",
        )
        for key, words in (
            ("train_wall", "the steps, by wall clock"),
            ("train_cpu", "the steps, by CPU seconds"),
            ("wall", "the whole command"),
        ):
            yield f"{each['work']}: `ftcli train` over a plain torch loop, {words}", _spread(ratios[key])


def _cluster(result: Result) -> Figures:
    words = {
        "ray": "on three Ray nodes, nobody killed",
        "worker": "on three Ray nodes, a worker process killed",
        "actor": "on three Ray nodes, an actor killed",
        "node": "on three Ray nodes, one of them killed and replaced",
        "beside": "local, idle Ray nodes killed and replaced beside it",
    }
    for each in result["results"]:
        for way, ratio in each.get("over_local", {}).items():
            kills = sorted(one[way]["kills"] for one in each["rounds"])
            times = f"{kills[0]} times" if kills[0] == kills[-1] else f"{kills[0]} to {kills[-1]} times"
            often = f" every {result['arguments']['seconds']:.0f} s ({times})" if kills[-1] else ""
            yield f"{each['rows']:,} rows {words[way]}{often}: time over local", _spread(ratio)


def _planted(result: Result) -> Figures:
    for case in dict.fromkeys(each["case"] for each in result):
        tries = [each for each in result if each["case"] == case]
        firsts = [each["metrics"]["factors"][0] for each in tries]
        names = ", ".join(dict.fromkeys(first["name"] for first in firsts))
        times = [first["alone"]["median"] for first in firsts]
        shares = [first["share"] for first in firsts if first["share"] is not None] or [float("nan")]
        said = f"first: {names}, {min(times):.2f}x to {max(times):.2f}x, share {min(shares):.3f} to {max(shares):.3f}"
        yield f"planted: {case}", f"found {sum(each['found'] for each in tries)} of {len(tries)} times ({said})"
    beside = [factor[way]["verdict"] for each in result for factor in each["metrics"]["factors"][1:] for way in ("alone", "taken_back")]
    if beside:
        yield "settings beside them that cost nothing", f"no difference {beside.count('no difference')} of {len(beside)} times"


def _twins(result: Result) -> Figures:
    for each in result:
        low, high = min(each["ratios"]), max(each["ratios"])
        said = ", ".join(f"{verdict} {count}" for verdict, count in each["verdicts"].items() if verdict != "no difference")
        yield (
            f"equal things: {each['action']}",
            f"no difference {each['verdicts'].get('no difference', 0)} of {each['comparisons']} times{f' ({said})' * bool(said)}; ratios {low:.3f} to {high:.3f}",
        )


def _attribute(result: Result) -> Figures:
    metrics = result["metrics"]
    for each in metrics["factors"]:
        share = "" if each["share"] is None else f", {round(100 * each['share'])} % of the difference"
        back = "" if each["kind"] == "volume" else f"; taken back {_spread(each['taken_back'])}"
        yield each["name"], f"{_spread(each['alone'])}{back}{share}"
    yield "unexplained", _spread(metrics["unexplained"])
    yield "total", f"{_spread(metrics['total'])}: {metrics['total']['verdict']}"


KNOWN: Mapping[str, tuple[str, str, Callable[[Result], Figures]]] = {
    "tokenize": ("Tokenizing", "python benchmarks/tokenize.py --json result.json", _tokenize),
    "cluster": ("On a Ray cluster", "python benchmarks/cluster.py --json result.json", _cluster),
    "train": ("Training", "python benchmarks/train.py --json result.json", _train),
    "accuracy": ("Accuracy on the same budget", "python benchmarks/accuracy.py --json result.json", _accuracy),
    "planted": ("Planted slowdowns", "python benchmarks/planted.py --json result.json", _planted),
    "twins": ("Equal things", "python benchmarks/twins.py --json result.json", _twins),
    "incident1": (
        "Incident 1, attributed",
        "ftcli benchmark attribute examples/incident1/base.toml examples/incident1/new.toml",
        _attribute,
    ),
}
"""Name of the result file → title of its section, the command that makes it, and how its figures are read."""


def page(folder: Path = RESULTS) -> str:
    """The page as it should be."""
    parts = [HEAD]
    for name, (title, command, figures) in KNOWN.items():
        head = ["| what | figure (95 % interval) | machine | date | command |", "|---|---|---|---|---|"]
        found: dict[str, str] = {}
        for kept in _kept(name, folder):
            beside = f"{_machine(kept['result'])} | {kept['date']} | `{kept['command']}`"
            found |= {what: f"| {_cell(what)} | {_cell(figure)} | {beside} |" for what, figure in figures(kept["result"])}
        rows = [*found.values()] or [f"| {title.lower()} | {MISSING} | | | `{command}` |"]
        parts.append("\n".join([f"## {title}", "", *head, *rows, ""]))
    return "\n".join(parts)


HEADLINES: Sequence[tuple[str, str, str, str]] = (
    (
        "tokenize",
        "docs: `ftcli tokenize` over `datasets.map`",
        "English and Korean documents: speed of `ftcli tokenize` relative to `datasets.map`",
        "영어와 한국어 문서: `datasets.map` 대비 `ftcli tokenize`의 속도",
    ),
    (
        "tokenize",
        "nsmc: `ftcli tokenize` over `datasets.map`",
        "354,000 short Korean reviews, repeated 20 times: the same comparison",
        "짧은 한국어 리뷰 35만 4천 건을 20번 반복: 같은 비교",
    ),
    ("tokenize", "code: `ftcli tokenize` over `datasets.map`", "Python sources: the same comparison", "Python 소스: 같은 비교"),
    (
        "tokenize",
        "job: 7,500,000 rows, 2 workers",
        "7.5 million rows of 2 kB, 15 GB of text: time of the whole job, 2 workers",
        "2 kB짜리 750만 행, 텍스트 15 GB: 전체 작업 시간, 워커 2개",
    ),
    ("tokenize", "job: 7,500,000 rows, 12 workers", "the same with 12 workers", "같은 작업, 워커 12개"),
    (
        "train",
        "incident1: `ftcli train` over fixed, by wall clock",
        "280 labels, 2 CPU cores: speed of `ftcli train` relative to a `Trainer` that pads to `max_length`",
        "레이블 280개, CPU 코어 2개: `max_length`까지 패딩하는 `Trainer` 대비 `ftcli train`의 속도",
    ),
    (
        "train",
        "incident1: `ftcli train` over dynamic, by wall clock",
        "the same, relative to a `Trainer` that pads to the longest row",
        "같은 학습: 가장 긴 행까지만 패딩하는 `Trainer` 대비",
    ),
    (
        "train",
        "gpu-incident1: `ftcli train` over dynamic, by wall clock",
        "Qwen3-0.6B, 280 labels: speed of `ftcli train` relative to a default `Trainer`",
        "Qwen3-0.6B, 레이블 280개: 기본 `Trainer` 대비 `ftcli train`의 속도",
    ),
    (
        "train",
        "gpu-incident1: `ftcli train` over best, by wall clock",
        "the same, relative to the fastest hand-tuned `Trainer`",
        "같은 학습: 수동으로 가장 빠르게 튜닝한 `Trainer` 대비",
    ),
)
"""Section, figure, and what the README calls it in English and in Korean."""
KOREAN: Sequence[tuple[str, str]] = (
    (r"(?<=\d) to (?=\d)", "~"),
    (r" s, peak (\S+ MB) \((\S+ MB) with shared pages counted once\)", r"초, 최대 \1(공유 페이지를 한 번만 세면 \2)"),
    (r"(?<=\d) cores\b", "코어"),
)
"""What stands in figures and machines, and how the Korean README says it."""
MEASURED = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- /measured -->)", re.DOTALL)


def measured(readme: Path, folder: Path = RESULTS) -> str:
    """A README as it should be: its table holds the newest of a few figures, each with its machine."""
    korean = readme.name.endswith(".ko.md")
    head = "| 측정 | 값 (95 % 구간) | 장비 |" if korean else "| measured | figure (95 % interval) | machine |"
    newest = {
        (section, what): f"{_cell(figure)} | {_machine(kept['result']).partition(', load')[0]} |"
        for section, (_, _, figures) in KNOWN.items()
        for kept in _kept(section, folder)
        for what, figure in figures(kept["result"])
    }
    if korean:
        for english, ours in KOREAN:
            newest = {key: re.sub(english, ours, row) for key, row in newest.items()}
    rows = [f"| {words[korean]} | {newest[section, what]}" for section, what, *words in HEADLINES if (section, what) in newest]
    return MEASURED.sub(lambda _: "\n".join(["", head, "|---|---|---|", *rows, "", ""]), readme.read_text(encoding="utf-8"))


def _kept(name: str, folder: Path) -> list[Result]:
    """The results of a name, the oldest first: of two that have the same figure the newer counts."""
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in sorted([*folder.glob(f"{name}.json"), *folder.glob(f"{name}-*.json")])]
    return sorted(kept, key=lambda one: str(one["date"]))


def keep(name: str, file: Path, command: str, folder: Path = RESULTS) -> Path:
    """Put a result beside the others, with its command and today's date, without the places on this machine that it was told.

    Args:
        name: a section ("tokenize"), or a section and what was measured ("tokenize-job"), where one run does not measure all of it.

    Raises:
        SystemExit: the name is unknown, or the file does not hold what the page reads.
    """
    section = name.partition("-")[0]
    if section not in KNOWN:
        sys.exit(f"no result is called {name!r}: {', '.join(KNOWN)}")
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        shown = list(KNOWN[section][2](result))
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{file} is no result of {KNOWN[section][1]}: {error!r}")
    if not shown:
        sys.exit(f"{file} holds no figures")
    if isinstance(result, dict):
        result = {key: value for key, value in result.items() if key not in OF_A_REPORT}
        result["arguments"] = {key: value for key, value in result.get("arguments", {}).items() if key not in PLACES}
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"command": command, "date": date.today().isoformat(), "result": result}, indent=1) + "\n")  # noqa: DTZ011
    return path


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--add", nargs=2, metavar=("NAME", "FILE"))
    parser.add_argument("--command", help="the command that made the file; default: the usual one")
    given = parser.parse_args(words)
    if given.add:
        name, file = given.add
        keep(name, Path(file), given.command or KNOWN.get(name.partition("-")[0], ("", ""))[1])
    pages = {PAGE: page(), **{readme: measured(readme) for readme in READMES}}
    stale = {path: text for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text}
    if given.check:
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    return 0


def _machine(result: Result) -> str:
    first = result[0] if isinstance(result, list) else result
    card = first["machine"]
    load = "" if card.get("load_average") is None else f", load {card['load_average']:.1f}"
    gpus = "".join(f", {gpu['name']}" for gpu in card.get("gpus", ()))
    return f"{card['cpu_model']}, {card['cores']} cores, {card['memory_bytes'] / 2**30:.0f} GiB{gpus}{load}"


def points(found: Mapping[str, Any]) -> str:
    """A difference of accuracies with its interval, where it has one."""
    bounds = "" if found["low"] is None else f" ({found['low']:+.2f} to {found['high']:+.2f})"
    return f"{found['mean']:+.2f} points{bounds}"


def _spread(found: Mapping[str, Any], unit: str = "×") -> str:
    return f"{found['median']:.3g}{unit} ({found['low']:.3g} to {found['high']:.3g})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
