"""The result of `benchmarks/accuracy.py` as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.page import points
from benchmarks.tables import _machine, _spread, _table


def markdown(document: Mapping[str, Any]) -> str:
    """The table, what stands behind it, and the machine."""
    rows = []
    for each in document["results"]:
        found, ratios = each["difference"], each["ratios"]
        required = f"within {found['allowed']:g} point: {'met' if found['met'] else 'NOT met'}"
        wall = f"{_spread(ratios['train_wall'])}: {'met' if ratios['train_wall']['met'] else 'NOT met'}"
        accuracies = [f"{100 * each['accuracy'][way]:.2f} %" for way in ("ftcli", "plain")]
        rest = [_spread(ratios[key]) for key in ("train_cpu", "wall", "cpu")]
        rows.append((each["work"], *accuracies, f"{100 / each['labels']:.2f} %", points(found), required, wall, *rest))
    head = ("work", "`ftcli train`", "plain loop", "chance", "difference", "required", "steps: times as fast", "by CPU seconds")
    parts = [_table((*head, "whole command: times as fast", "by CPU seconds"), rows), _method(document)] if rows else []
    if "error" in document:
        parts.append(f"**FAILED**: {document['error']}")
    return "\n\n".join([*parts, _machine(document)])


def _method(document: Mapping[str, Any]) -> str:
    works = (
        f"{each['work']}: {each['labels']} labels, {each['train_rows']:,} rows, {each['test_rows']:,} held out, vocabulary {each['vocabulary']:,}, {each['epochs']} epochs, {each['batch']} a batch, "
        f"peak learning rate {each['learning_rate']:g}; {sum(run['rows']['ftcli'] for run in each['runs']):,} answers are right in ftcli's models only, "
        f"{sum(run['rows']['plain'] for run in each['runs']):,} in the plain loop's only"
        for each in document["results"]
    )
    lines = [
        *works,
        f"Means of seeds {', '.join(map(str, document['arguments']['seeds']))}; both ways start from the same weights for each.",
        "(low to high) of the difference is Student's 95 % interval of the pairs, of a ratio the bootstrap's.",
        "Both models are judged by one program, in float32. Steps are timed without evaluations and checkpoints.",
        f"On {document['device']}; both ways compute in {'bfloat16 autocast' if document['bf16'] else 'float32'}.",
    ]
    return "\n".join(f"- {line}{'' if line.endswith('.') else '.'}" for line in lines)
