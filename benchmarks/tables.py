"""The result as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Result = Mapping[str, Any]


def markdown(document: Mapping[str, Any]) -> str:
    """Tables, what stands behind them, and the machine."""
    results: Sequence[Result] = document["results"]
    compared = [each for each in results if "over_naive" in each]
    parts = []
    if compared:
        parts += [_comparisons(compared), _memory(compared), _method(document, compared)]
    for each in results:
        if each["work"] == "scaling":
            parts.append(
                f"Scaling, 1 to {each['workers']} workers: pipeline {_spread(each['pipeline'])}; whole command {_spread(each['command'])}; "
                f"the engine alone, 1 to {each['workers']} processes: {_spread(each['engine'])}."
            )
        if each["work"] == "sft":
            parts.append(
                f"Conversations: `ftcli tokenize --mode sft`, the whole command, {_spread(each['over_map'])} as fast as `apply_chat_template` in `datasets.map` with "
                f"`save_to_disk`, without its start; {each['rows_compared']:,} rows, {each['tokens_compared']:,} tokens compared, equal."
            )
        if each["work"] == "job":
            parts.append(_job(each))
        if each["work"] == "megatron":
            parts.append(
                f"Megatron's files: `ftcli tokenize` and `ftcli export --format megatron` {_spread(each['over_megatron'])} as fast as Megatron-LM's way "
                f"(transformers row by row in a pool, `IndexedDatasetBuilder`); {each['tokens_compared']:,} tokens compared, equal."
            )
    if "error" in document:
        parts.append(f"**FAILED**: {document['error']}")
    return "\n\n".join([*parts, _machine(document)])


def _comparisons(results: Sequence[Result]) -> str:
    head = (
        "work",
        "engine",
        "input",
        "`ftcli tokenize`, whole command",
        "usual way",
        "times as fast",
        "required",
        "times as fast, both without their start",
        "pipeline, text",
        "engine alone, text",
        "share",
        "required",
    )
    rows = []
    for each in results:
        rounds = each["rounds"]
        rows.append(
            (
                each["work"],
                each["engine"],
                f"{each['rows']:,} rows, {each['file_bytes'] / 1e6:,.0f} MB",
                f"{_median(rounds, 'ours', 'wall'):.1f} s, {_median(rounds, 'ours_mb_per_second'):.1f} MB/s",
                f"{_median(rounds, 'naive_mb_per_second'):.2f} MB/s",
                *_against(each["over_naive"], "×"),
                _spread(each["pipeline_over_naive"], "×"),
                f"{_median(rounds, 'pipeline_text_mb_per_second'):.1f} MB/s",
                f"{_median(rounds, 'alone', each['engine_alone'], 'mb_per_second'):.1f} MB/s",
                *_against(each["of_engine"], ""),
            )
        )
    return _table(head, rows)


def _memory(results: Sequence[Result]) -> str:
    rows = [
        (
            each["work"],
            way,
            f"{_median(each['rounds'], key, 'wall'):.1f}",
            f"{_median(each['rounds'], key, 'cpu'):.1f}",
            f"{_median(each['rounds'], key, 'peak_rss_mb'):,.0f}",
            f"{_median(each['rounds'], key, 'peak_pss_mb'):,.0f}",
        )
        for each in results
        for way, key in (("ftcli", "ours"), (f"usual way, {each['baseline_bytes'] / 1e6:,.0f} MB", "naive"))
    ]
    return _table(("work", "way", "wall s", "CPU s", "peak RSS MB (sum)", "peak PSS MB (sum)"), rows)


def _method(document: Mapping[str, Any], results: Sequence[Result]) -> str:
    repeats, workers = document["arguments"]["repeats"], document["arguments"]["workers"]
    lines = [
        f"- Medians of {repeats} rounds, every way once a round, all on CPUs {document['cpus']}; ratios are formed round by round, (low to high) is their 95 % interval.",
        f"- `ftcli tokenize` is the whole command into a fresh directory, its start, checks, hash and fsync included; {workers} workers; the engine's proof for the tokenizer was cached by an earlier command.",
        f"- The usual way is `load_dataset`, `map(batched=True, num_proc={workers})` and `save_to_disk` with an empty cache, on the first {results[0]['baseline_bytes'] / 1e6:,.0f} MB at most (the inputs are shuffled). What it takes before it works, measured by a run on 2 MB, is taken off; what ftcli takes is not.",
        "- The engine alone has all text (1 GB at most) in memory and is loaded and warm before the clock starts; as processes and as threads, the faster of the two counts. The pipeline is ftcli's own clock, without its start and without loading the engine.",
        "- Ids were compared first, token by token: "
        + "; ".join(f"{each['work']} {each['rows_compared']:,} rows, {each['tokens_compared']:,} tokens" for each in results)
        + ". Inputs were in the page cache.",
    ]
    return "\n".join(lines)


def _job(result: Result) -> str:
    ours, required = result["ours"], result["required"]
    words = (
        f"Job: {result['rows']:,} rows, {result['file_bytes'] / 1e9:,.2f} GB in {ours['wall']:.1f} s (required: under {required['seconds']:.0f}), "
        f"peak RSS of all processes {ours['peak_rss_mb']:,.0f} MB (required: under {required['peak_rss_mb']:,.0f}), PSS {ours['peak_pss_mb']:,.0f} MB; "
        f"{'met' if result['met'] else 'NOT met'}; ids equal on {result['rows_compared']:,} rows."
    )
    if killed := result.get("kill_and_resume"):
        words += f" Killed {killed['kills']} times and run again: the same content hash {killed['content_hash']}."
    return words


def _machine(document: Mapping[str, Any]) -> str:
    card, versions = document["machine"], document["versions"]
    words = (
        f"Machine: {card['cpu_model']}, {card['cores']} cores, {card['memory_bytes'] / 2**30:.0f} GiB, disk {card['disk_kind']}, "
        f"{_gpus(card)}{card['platform']}, Python {card['python']}; load {card['load_average']:.1f} before, {document['load_average_after']:.1f} after."
    )
    return f"{words}\nVersions: {', '.join(f'{name} {number}' for name, number in versions.items())}."


def _gpus(card: Mapping[str, Any]) -> str:
    return "".join(f"{gpu['name']} ({gpu['memory_bytes'] / 1e9:.0f} GB), " for gpu in card.get("gpus", ()))


def _against(found: Mapping[str, Any], unit: str) -> tuple[str, str]:
    required = "reported" if found["required"] is None else f"{found['required']:g}{unit}: {'met' if found['met'] else 'NOT met'}"
    return _spread(found, unit), required


def _spread(found: Mapping[str, Any], unit: str = "×") -> str:
    digits = 2 if found["median"] < 10 else 1
    return f"{found['median']:.{digits}f}{unit} ({found['low']:.{digits}f} to {found['high']:.{digits}f})"


def _median(rounds: Sequence[Result], *keys: str) -> float:
    values = []
    for each in rounds:
        value: Any = each
        for key in keys:
            value = value[key]
        values.append(value)
    return float(np.median(values))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
