"""`ftcli predict`: a quick look at what a trained model says."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftcli.context import Context
from ftcli.core.models.as_prepared import policy_of
from ftcli.core.models.predict import MOST_LABELS, THRESHOLD, load, predict
from ftcli.core.models.predict_inputs import Asked, Conversation, read_asked
from ftcli.core.prepare.policy import LengthPolicy
from ftcli.core.processes.libraries import libraries
from ftcli.core.reports.document import check_document, own_stream, write_document
from ftcli.errors import PublishError, UsageError
from ftcli.machine import compute_threads
from ftcli.records import RUN_NAME, Report

SHOWN = 60
"""Characters of a text in the table."""
ANSWERS = "the file with the predictions"
PRINTED = "They are still printed (in full with --json). Free space there, or choose another file."


def run(
    context: Context,
    model: str,
    texts: tuple[str, ...],
    file: Path | None,
    batch_size: int,
    max_new_tokens: int,
    threshold: float,
    plain: bool,
    pair: str | None = None,
    top_k: int = MOST_LABELS,
    output: Path | None = None,
) -> Report:
    """Labels with probabilities, or answers, for the texts and for those of a file; `details["predictions"]` has all of them, and `output` a line each.
    Where `output` turns out to be unwritable at the end they are in the report of a run that failed.

    Raises:
        UsageError, DataError, ModelError, MissingExtraError, PublishError: named in the message.
    """
    for name, value in (("batch_size", batch_size), ("max_new_tokens", max_new_tokens)):
        if value < 1:
            raise UsageError(f"{name} = {value}", "It must be 1 at least.")
    if top_k < 0:
        raise UsageError(f"top_k = {top_k}", "It must be a number of labels; 0 means all.")
    if output is not None:
        check_document(output, ANSWERS, read=() if file is None else (file,))
        if not context.settings.runtime.overwrite and output.is_file() and output.stat().st_size and own_stream(output) is None:
            raise UsageError(f"output = {output} already exists", "Name another file, or replace it with --overwrite.")
    if not 0 < threshold < 1:
        raise UsageError(f"threshold = {threshold}", "It is a probability between 0 and 1.")
    if "-" in texts:
        raise UsageError("- is not a text; predict does not read stdin", "Give the texts as words, or a file of them: --input rows.txt")
    for text in texts:
        with suppress(OSError, ValueError):  # a text may be no possible name of a file
            if Path(text).is_file():
                context.note(f"{text} is taken as a text, but a file of that name exists: --input {text} predicts its rows")
    asked: list[Asked] = [text if pair is None else (text, pair) for text in texts]
    asked += read_asked(file, context.settings, context.plugins.registry("source"), context.note) if file is not None else ()
    with libraries(compute_threads(context.settings.runtime.threads, context.machine.cores).value):
        loaded = load(model, trust=context.settings.tokenizer.trust_remote_code)
        run_of = _run_of(model)
        learned = run_of.get("asked")
        as_it_is = not plain and not loaded.classifies and bool(loaded.tokenizer.chat_template) and learned == "plain"
        if words := _unlike(learned, asked):
            context.note(words)
        if as_it_is:
            context.note("the chat template is not applied: the model was trained on plain texts")
        if threshold != THRESHOLD and not loaded.several:
            context.note(f"threshold = {threshold} is only for multi-label models, which this is not")
        context.progress.start("predict", len(asked), "rows")
        clock = time.perf_counter()
        found = predict(
            loaded,
            asked,
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            threshold=threshold,
            top_k=top_k,
            chat=not plain and not as_it_is,
            policy=_policy(run_of) if loaded.classifies or learned == "plain" else None,
            on_progress=context.progress.advance,
        )
        seconds = time.perf_counter() - clock
        if top_k != MOST_LABELS and "labels" not in found[0]:
            context.note(f"top_k = {top_k} is only for classifiers, which this is not")
        context.progress.close()
    metrics = {"rows": len(found), "rows_per_second": len(found) / seconds}
    predictions = [
        {"text": one.question if isinstance(one, Conversation) else one, **answer} for one, answer in zip(asked, found, strict=True)
    ]
    scored = bool(predictions) and "score" in predictions[0]
    head = ["text", "score"] if scored else ["text", "label", "probability"] if loaded.classifies else ["text", "answer"]
    table = {"head": head, "rows": [_row(one) for one in predictions]}
    paths, unwritten = {}, None
    if output is not None:
        try:
            write_document(output, "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in predictions), ANSWERS, PRINTED)
            paths = {"output": str(output)}
        except PublishError as error:  # answers may be hours of work: they are in the report, which says that they are nowhere else
            unwritten = error
    return context.report(
        "predict",
        metrics,
        status="failed" if unwritten else "ok",
        paths=paths,
        details={"table": table, "predictions": predictions},
        error=unwritten,
    )


def _row(found: dict[str, Any]) -> list[str]:
    asked = found["text"]
    text = (
        asked
        if isinstance(asked, str)
        else " ‖ ".join(asked)
        if isinstance(asked, tuple)
        else str(asked[-1].get("content"))
        if asked
        else ""
    )
    text = " ".join(text.split())
    shown = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
    if "score" in found:
        return [shown, f"{found['score']:.4g}"]
    if "answer" in found:
        return [shown, " ".join(found["answer"].split())]
    if "holds" in found:
        return [
            shown,
            ", ".join(found["holds"]) or "none",
            ", ".join(f"{one['label']} {one['probability']:.3f}" for one in found["labels"]),
        ]
    return [shown, found["label"], f"{found['probability']:.3f}"]


def _run_of(model: str) -> Mapping[str, Any]:
    """Details of the run whose folder or checkpoint this is; empty where there is none. `asked` is what it learned: "chat", "plain" (then no chat template
    belongs around a text), "texts" or "pairs"; `encoding` how its texts became rows, which older runs do not say."""
    folder = Path(model)
    file = (folder.parent if folder.name.startswith("checkpoint-") else folder) / RUN_NAME
    with suppress(OSError, ValueError, LookupError, TypeError):
        return dict(json.loads(file.read_text(encoding="utf-8"))["details"])
    return {}


def _policy(details: Mapping[str, Any]) -> LengthPolicy | None:
    with suppress(LookupError, TypeError, ValueError):
        return policy_of(details["encoding"])
    return None


def _unlike(learned: str | None, asked: Sequence[Asked]) -> str:
    """Words on rows of one text where a classifier learned pairs, or of two where it did not, and on pairs of which one text is empty."""
    pairs = sum(isinstance(one, tuple) for one in asked)
    if learned == "pairs" and pairs < len(asked):
        return (
            f"the model was trained on text pairs, but {len(asked) - pairs:,} of {len(asked):,} are single texts, so their predictions mean little: "
            "give the second text with --pair, or with --input and --text-pair-column"
        )
    if learned == "texts" and pairs:
        return f"the model was trained on single texts, but {pairs:,} of {len(asked):,} are pairs, so their predictions mean little"
    empty = sum(isinstance(one, tuple) and not all(map(str.strip, one)) for one in asked)
    return f"{empty:,} of {pairs:,} pairs have an empty text" if empty else ""
