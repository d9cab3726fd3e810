"""What a report says first: one sentence and four to eight figures for each command."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftcli.core.figures import between, counted, megabytes, number, percent, quantity, seconds

CARDS = 8
UNSEEN = ("no --dataset", "the sources are not prepared yet", "no --tokenizer-path", "no --model-config or --model-name-or-path")
"""Why checks are skipped without which a run is not verified."""
ENDINGS = ("stopped-early", "kept-model")
"""Checks of a training that say how it ended."""


@dataclass(frozen=True, slots=True)
class Card:
    label: str
    value: str
    note: str = ""
    tone: str = ""
    """"pass", "warn" or "fail" where the figure is a verdict."""


def headline(doc: Mapping[str, Any]) -> list[Card]:
    """Cards for a report as `to_json` gives it; none when the command got nowhere."""
    kind = doc["command"].split()[0]
    if kind == "verify":
        return _verify(doc)
    if not doc["metrics"]:
        return []
    makers = {"tokenize": _tokenize, "train": _train, "benchmark": _benchmark}
    return makers[kind](doc)[:CARDS] if kind in makers else []


def lede(doc: Mapping[str, Any]) -> str:
    """The result in one sentence; empty when there is none to tell."""
    metrics: Mapping[str, Any] = doc["metrics"]
    kind = doc["command"].split()[0]
    if kind == "verify":
        bad = [check["id"] for check in doc["checks"] if check["status"] in ("fail", "error")]
        if bad:
            return f"{len(bad)} of {len(doc['checks'])} checks failed: {', '.join(bad)}."
        return _none_failed(doc["checks"]) if doc["checks"] else ""
    if kind == "tokenize" and metrics.get("reused"):
        return "The prepared data of an earlier run with the same fingerprint was used; nothing was written."
    if kind == "tokenize" and metrics.get("rows_written") is not None:
        return f"{number(metrics['rows_written'])} rows tokenized to {number(metrics.get('tokens'))} tokens in {seconds(doc['seconds'])}."
    if kind == "train" and metrics.get("steps"):
        went = f"{_span(doc)}; the loss went from {number(metrics.get('first_loss'))} to {number(metrics.get('final_loss'))}."
        ended = [check["summary"] for check in doc["checks"] if check["id"] in ENDINGS]
        return " ".join([went, *(f"{words[0].upper()}{words[1:]}." for words in ended)])
    if kind == "benchmark" and metrics.get("ratios"):
        count = Counter(row["verdict"] for row in metrics["ratios"])
        return (
            f"{len(metrics['ratios'])} comparison{'s' if len(metrics['ratios']) > 1 else ''}: "
            + ", ".join(f"{n} {verdict}" for verdict, n in count.items())
            + "."
        )
    return ""


def _none_failed(checks: Sequence[Mapping[str, Any]]) -> str:
    """What that says: that the run can learn only where its first steps were taken."""
    none = "the only check did not fail" if len(checks) == 1 else f"none of {len(checks)} checks failed"
    if any(check["stage"] == "steps" and check["status"] != "skipped" for check in checks):
        return f"Ready to train: {none}."
    skipped = [check["summary"] for check in checks if check["status"] == "skipped"]
    why = ", ".join(reason for reason in UNSEEN if any(f": {reason}" in summary for summary in skipped))
    number_skipped = f"{len(skipped)} {'was' if len(skipped) == 1 else 'were'} skipped"
    if len(skipped) == len(checks):
        return f"Nothing was checked: {why or number_skipped}."
    return f"{none[0].upper()}{none[1:]}{f', but {number_skipped}: {why}' if why else ''}."


def _span(doc: Mapping[str, Any]) -> str:
    """Steps and time: of a run that went on from a checkpoint, the time is that of the steps behind it."""
    steps, epochs, lasted = doc["metrics"]["steps"], number(doc["metrics"].get("epochs")), seconds(doc["seconds"])
    begun = doc["details"].get("resumed_step")
    if begun is None:
        return f"{counted(steps, 'step')} ({epochs} epochs) in {lasted}"
    more = steps - begun
    if more <= 0:
        return f"No further steps, at {number(steps)} ({epochs} epochs), in {lasted}"
    return f"{counted(more, 'further step')}, to {number(steps)} ({epochs} epochs), in {lasted}"


MOST_LOSS = 100.0
"""Loss up to which a perplexity is a number that says anything."""


def _tokenize(doc: Mapping[str, Any]) -> list[Card]:
    m = doc["metrics"].get
    rows, tokens, cut = m("rows_written"), m("tokens"), m("rows_truncated")
    if rows is None:  # a part to which no shard falls
        return []
    lost = f"{number(m('rows_rejected'))} rejected, {number(m('rows_filtered'))} filtered"
    verdict, rating = doc["details"].get("verdict") or "", (doc["details"].get("rating") or "").split(" (")[0]
    speed = verdict.split(": ", 1)[-1] if ": " in verdict else verdict.partition("; ")[2]
    return [
        Card("Speed", quantity(m("examples_per_second"), "examples/s"), speed or rating),
        Card("Token rate", quantity(m("tokens_per_second"), "tokens/s"), f"{quantity(m('megabytes_per_second'), 'MB/s')} of the sources"),
        Card("Rows written", number(rows), f"of {number(m('rows_read'))} read: {lost}"),
        Card("Tokens", number(tokens), f"{number(tokens / rows)} per row" if rows and tokens is not None else ""),
        Card("Rows truncated", number(cut), _share(cut, rows, f" of rows, {number(m('tokens_cut'))} tokens cut")),
        *([Card("Packing waste", percent(m("packing_waste")))] if m("packing_waste") is not None else []),
        Card("Peak memory", megabytes(m("peak_rss_mb")), "all processes together"),
        Card("Engine", number(m("engine")), m("engine_proof") or ""),
    ]


def _verify(doc: Mapping[str, Any]) -> list[Card]:
    if not doc["checks"]:
        return []
    m, count = doc["metrics"].get, Counter(check["status"] for check in doc["checks"])
    failed = count["fail"] + count["error"]
    cards = [
        Card("Passed", quantity(count["pass"], f"of {len(doc['checks'])}"), tone="" if failed else "pass"),
        Card("Failed", number(failed), tone="fail" if failed else ""),
        Card("Warnings", number(count["warn"]), tone="warn" if count["warn"] else ""),
        Card("Skipped", number(count["skipped"])),
    ]
    if "first_loss" in doc["metrics"]:
        cards.append(_first_loss(doc))
    if "first_grad_norm" in doc["metrics"]:
        cards.append(Card("First gradient norm", number(m("first_grad_norm"))))
    return cards


def _train(doc: Mapping[str, Any]) -> list[Card]:
    m = doc["metrics"].get
    beside = m("host_overhead_share")
    return [
        _first_loss(doc),
        Card("Final loss", number(m("final_loss")), f"{counted(m('steps'), 'step')}, {number(m('epochs'))} epochs"),
        *_held_out(m),
        Card("Throughput", quantity(m("real_tokens_per_second"), "tokens/s"), f"without padding; MFU {percent(m('mfu'))}"),
        Card("Padding", percent(m("padding_share")), "of the slots computed"),
        Card(
            "Waiting for data",
            percent(m("data_wait_share")),
            "of the time" + ("" if beside is None else f"; {percent(beside)} is overhead outside the model"),
        ),
        Card("Peak memory", megabytes(m("peak_rss_mb")), "" if m("peak_gpu_mb") is None else f"GPU {megabytes(m('peak_gpu_mb'))}"),
    ]


def _held_out(m: Callable[[str], Any]) -> list[Card]:
    """Accuracy or F1 of a classifier, the perplexity of a language model, and the loss; each beside that of the test split, if that was scored."""
    loss = m("eval_loss")

    def test(name: str, shown: Callable[[Any], str], *rest: str) -> str:
        value = m(f"test_{name}")
        return "; ".join([*([] if value is None else [f"test split {shown(value)}"]), *(words for words in rest if words)])

    if m("eval_micro_f1") is not None:
        right = percent(m("eval_exact_match"))
        return [
            Card("Held-out F1", percent(m("eval_micro_f1")), test("micro_f1", percent, f"over all labels; exact match {right}")),
            Card("Held-out loss", number(loss), test("loss", number)),
        ]
    if m("eval_pearson") is not None:
        return [
            Card("Held-out correlation", number(m("eval_pearson")), test("pearson", number, "Pearson, predictions against labels")),
            Card("Held-out error", number(m("eval_rmse")), test("rmse", number, "RMSE")),
        ]
    if m("chance_accuracy") is not None:
        commonest = "" if m("majority_accuracy") is None else f", majority class {percent(m('majority_accuracy'))}"
        return [
            Card(
                "Held-out accuracy",
                percent(m("eval_accuracy")),
                test("accuracy", percent, f"chance {percent(m('chance_accuracy'))}{commonest}"),
            ),
            Card("Held-out loss", number(loss), test("loss", number)),
        ]
    perplexity = f"perplexity {number(math.exp(loss))}" if loss is not None and loss < MOST_LOSS else ""
    return [Card("Held-out loss", number(loss), test("loss", number, perplexity))]


def _first_loss(doc: Mapping[str, Any]) -> Card:
    first, expected = doc["metrics"].get("first_loss"), doc["metrics"].get("expected_first_loss")
    factor = f"{number(first / expected)}× the " if first is not None and expected else ""
    note = f"{factor}expected {number(expected)}"
    return Card("First loss", number(first), note)


def _benchmark(doc: Mapping[str, Any]) -> list[Card]:
    tones = {"faster": "pass", "slower": "fail"}
    ratios = []
    for row in doc["metrics"].get("ratios") or ():
        note = f"{row['verdict']}; {between(row['low'], row['high'], '×')}"
        ratios.append(Card(row["name"], quantity(row["median"], "×"), note, tones.get(row["verdict"], "")))
    first: dict[str, Mapping[str, Any]] = {}  # plots and tables have a variant's other units
    for row in doc["metrics"].get("measurements") or ():
        first.setdefault(row["name"], row)
    measurements = []
    for row in first.values():
        note = f"{between(row['low'], row['high'], row['unit'])}; {quantity(row['n'], 'runs')}"
        measurements.append(Card(row["name"], quantity(row["median"], row["unit"]), note))
    return ratios[: CARDS // 2] + measurements


def _share(part: float | None, whole: float | None, words: str) -> str:
    return f"{percent(part / whole)}{words}" if part is not None and whole else ""
