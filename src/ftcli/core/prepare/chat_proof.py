"""The chat template of a run, proved on the first conversations of the data before the fingerprint is settled."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from ftcli.context import Context
from ftcli.core.prepare.beginning import first_batches
from ftcli.core.prepare.dialogue import template_of
from ftcli.core.reading import jq
from ftcli.core.reading.conversation import TEXT, unread_note
from ftcli.core.reading.file_notes import OwnFormat
from ftcli.core.reading.read import Plan, read_shard
from ftcli.core.tokenizer.template import Template, conversation_of
from ftcli.core.tokenizer.template_proof import PROVED, prove, refuse_unused
from ftcli.errors import DataError, UsageError

LOOKED_AT = 200
"""Rows by whose shapes a setting is held to be of no use."""


def proved_template(context: Context, plan: Plan, tokenizer: Any) -> dict[str, Any]:
    """What `prove` found; shapes and the way to the mask are noted.

    Raises:
        TokenizerError: the template does not hold.
        UsageError: a setting says what is learned of rows that the data do not have.
        DataError: the first rows cannot be read.
    """
    documents: list[str] = []
    for _, batch in first_batches(context, plan):
        documents += batch.column("text").slice(0, LOOKED_AT - len(documents)).to_pylist()
        if len(documents) == LOOKED_AT:
            break
    template, dataset = template_of(tokenizer, context.settings), context.settings.dataset
    shapes = Counter(template.render(documents).shapes)
    refuse_unused(list(shapes), assistant_only=dataset.assistant_only_loss, completion_only=dataset.completion_only_loss)
    found = {**prove(template, tokenizer, documents[: 4 * PROVED]), **({"day": template.day} if template.day else {})}
    words = ", ".join(f"{shape} ({count})" for shape, count in shapes.most_common())
    how = {"generation": "by {% generation %}", "prompts": "by rendering what comes before each answer", None: "without a chat template"}
    context.note(
        f"conversations of the shape {words} among the first {len(documents)} rows; the learned tokens are found {how[found['mask']]}"
    )
    _note_day(context, template)
    if unread := unread_note(plan.columns, plan.beside, shapes):
        context.note(unread)
    if bad := _judged_bad(context, plan):
        way = jq.changed("select(.label)")
        context.note(
            f"{bad:,} rows have label false, as data for KTO mark bad answers, and theirs are learned as all are: {way} leaves them out of JSON, Dataset.filter of a table"
        )
    rows = [json.loads(document) for document in documents]
    if found["mask"] is not None and any(template.habits.renames(conversation_of(row)) for row in rows if row["kind"] != TEXT):
        context.note("messages of 'developer' are passed to the chat template as 'system', because it only knows that role")
    offering = sum("tools" in row for row in rows)
    if offering and found["mask"] is not None and template.habits.hides_tools():
        context.note(f"{offering} of them offer tools, which the chat template does not render: the model does not learn what it may call")
    return found


def _judged_bad(context: Context, plan: Plan) -> int:
    """Rows whose `label` is false, where the column is true or false."""
    settings, formats = context.settings, context.plugins.registry("source")
    columns = replace(plan.columns, chat=None, label="label", label_kind="bool", labels_only=True)
    first = plan.found[0]
    reader = formats.get(first.format)()
    if not isinstance(reader, OwnFormat) or "label" not in reader.found_columns(first.path, settings):
        return 0
    with suppress(DataError):  # a label that is none of a run's
        if reader.label_kind(first.path, "label", settings) == "bool":
            bad = 0
            context.progress.start("labels", sum(shard.size for shard in plan.shards), "B")
            for shard in plan.shards:
                batches = read_shard(shard, columns, settings, formats, unkept=lambda _: None)
                bad += sum(pc.sum(pc.equal(batch.column("label"), "false")).as_py() or 0 for _, batch in batches)
                context.progress.advance(shard.size)
            context.progress.close()
            return bad
    return 0


def _note_day(context: Context, template: Template) -> None:
    asked = context.settings.tokenizer.template_date
    if asked and template.day is None:
        raise UsageError(
            f"template_date = {asked} is for chat templates that insert today's date, which that of {template.name} does not",
            "Leave out --template-date.",
        )
    if template.day is not None:
        today = "the date given" if asked else f"today's; to reproduce or resume this on another day: --template-date {template.day}"
        context.note(f"the chat template inserts a date into conversations, {template.day}: {today}")
