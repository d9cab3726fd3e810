"""Pages in Markdown, made from the catalogue: one for each check, and "Why is my loss wrong?"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ftcli.contracts import CheckKind, Page
from ftcli.core.verify.catalogue import CAUSES, SYMPTOMS

SEVERITY = {"info": "informs", "warn": "warns", "fail": "fails the run"}
NOT_BEFORE = """
Labels that are wrong but possible (shuffled, or of another row) leave first loss and gradients as they should be, and a single batch is learned all the same. FT215 sees them where single words tell the label. Otherwise only held-out rows
show them: `ftcli verify … --learnability-steps 200` trains for that many steps and scores rows it did not train on (FT510); for your own run, compare `eval_accuracy` with the
`chance_accuracy` of the report. A small learnable task is well above chance by then; with shuffled labels it never is. In the same way the loss alone never shows that EOS is not learned (FT103, FT302): it is 0.011 with and without.
"""


def path_of(check: str) -> str:
    """Where the page of a built-in check stands in the documentation."""
    return f"docs/checks/{check}.md"


def check_page(kind: CheckKind, page: Page) -> str:
    """The page of a check."""
    lines = [
        f"# {kind.id} {kind.title}",
        "",
        f"Stage `{kind.stage}`, {SEVERITY[kind.severity]} at worst." + (f" Needs {_and(kind.needs)}." if kind.needs else ""),
        *(("", "Finds: " + "; ".join(f"{CAUSES[name]} ({name})" for name in page.causes) + ".") if page.causes else ()),
    ]
    if kind.after:
        lines += ["", f"Runs after {', '.join(kind.after)}, and only if that passed."]
    for title, text in (("Symptom", page.symptom), ("Cause", page.cause), ("How it is found", page.found), ("What to do", page.fix)):
        lines += ["", f"## {title}", "", _flowing(text)]
    if kind.mend is not None:
        lines += ["", "`ftcli verify --fix` fixes it in a copy, where that is safe."]
    if page.references:
        lines += ["", "## References", "", *(f"- {reference}" for reference in page.references)]
    return "\n".join(lines) + "\n"


def index_page(entries: Sequence[tuple[CheckKind, Page]]) -> str:
    """All checks, and all causes with the checks that find them."""
    lines = [
        "# Checks",
        "",
        "What each check of `ftcli verify` finds, how, and what to do. `ftcli verify --explain FT403` prints a page.",
        "",
    ]
    lines += ["| check | stage | title | symptom |", "|---|---|---|---|"]
    lines += [f"| [{kind.id}]({kind.id}.md) | {kind.stage} | {kind.title} | {_cell(page.symptom)} |" for kind, page in entries]
    lines += ["", "## Causes", "", "| cause | what | found by |", "|---|---|---|"]
    for name, words in CAUSES.items():
        by = [f"[{kind.id}]({kind.id}.md)" for kind, page in entries if name in page.causes]
        lines.append(f"| {name} | {words} | {', '.join(by) or 'nothing yet'} |")
    return "\n".join(lines) + "\n"


def loss_entries(entries: Sequence[tuple[CheckKind, Page]]) -> Iterator[str]:
    """Lines of "Why is my loss wrong?": symptom → causes → the check that finds each → what to do."""
    for name, title in SYMPTOMS.items():
        found = [(kind, page) for kind, page in entries if name in page.loss]
        if not found:
            continue
        yield from (f"## {title}", "", "| cause | found by | what to do |", "|---|---|---|")
        yield from (f"| {_cell(page.cause)} | [{kind.id} {kind.title}](checks/{kind.id}.md) | {_cell(page.fix)} |" for kind, page in found)
        yield ""
    yield from ("## What no check can see before training", "", _flowing(NOT_BEFORE), "")


def _flowing(text: str) -> str:
    """Paragraphs on one line each; lists, tables and blocks of code as they are."""
    parts = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(part if re.search(r"^(\s*[-*|>]|```|    )", part, re.MULTILINE) else " ".join(part.split()) for part in parts)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def _and(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
