"""Rows token by token as one HTML file that needs nothing else."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ftcli.core.inspect.tokenlines import documents, facts, where
from ftcli.core.reports.page import render_page
from ftcli.core.tokenizer.visible_text import CODE
from ftcli.records import Report, to_json


def page(report: Report, when: datetime | None = None) -> str:
    """The page of `ftcli inspect`; the same report and time give the same bytes."""
    doc = to_json(report)
    looked = doc["details"]["looked"]
    rows = [
        {
            "where": where(row),
            "facts": facts(row),
            "notes": row["notes"],
            "documents": [(heading, [_token(token, row) for token in tokens]) for heading, tokens in documents(row)],
        }
        for row in looked["rows"]
    ]
    said = "".join(text for row in looked["rows"] for text in row["texts"] or ())
    return render_page(
        "look.html.jinja",
        doc=doc,
        looked=looked,
        rows=rows,
        when=when or datetime.now().astimezone(),
        learns=any(row["labels"] is not None for row in looked["rows"]),
        special=any(row["special"] for row in looked["rows"]),
        coded=CODE[0] in said,
    )


def _token(token: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Text, id, classes and what a pointer that rests on it is told."""
    state = "" if token["learned"] is None else "learned" if token["learned"] else "given"
    words = [f"token {token['at']}", f"id {token['id']}", *([] if not state else ["learned" if token["learned"] else "not learned"])]
    if token["special"]:
        words.append("special")
    return {
        "text": token["text"],
        "id": token["id"] if row["texts"] is not None else None,
        "classes": " ".join(filter(None, ("tok", state, "special" if token["special"] else ""))),
        "title": ", ".join(words),
    }
