"""Drawings as elements of a page that follow the page's font and colours; one of them may be an SVG document of matplotlib's."""

from __future__ import annotations

import bisect
import html
import itertools
import re
import unicodedata

VARIABLES = ("ink", "muted", "line", "ground", "good", "bad", "s1", "s2", "s3", "s4", "s5", "s6")
SENTINELS = {name: f"#0101{index:02x}" for index, name in enumerate(VARIABLES, start=16)}
"""Colours to draw with; each becomes the CSS variable of its name."""


def verbatim(text: str) -> str:
    """Text of users as a token that the drawing's fonts can measure without a warning; `inline` puts the text back."""
    return f"§{text.encode(errors='replace').hex()}§"


def clip(text: str, columns: int) -> str:
    """Text of at most `columns` Latin letters' width (a Korean letter takes two), cut with an ellipsis."""
    ends = list(itertools.accumulate(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text))
    if not ends or ends[-1] <= columns:
        return text
    return text[: bisect.bisect_right(ends, columns - 1)] + "…"


def inline(document: str, name: str, title: str, description: str) -> str:
    """Strip what only a document of its own needs, put `name` before every id that is used, and label the picture for screen readers."""
    body = document[document.index("<svg") :]
    view = re.search(r'viewBox="[^"]+"', body)
    assert view is not None
    body = body[body.index(">") + 1 : body.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*</defs>", "", body)
    body = re.sub(r'font-family: [^;"]+;? ?| transform="rotate\(-0 [^"]*\)"', "", body).replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(|href=")#(\w+)', body))
    body = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    body = re.sub(r'(url\(|href=")#', rf"\1#{name}-", body)
    body = re.sub(r'( (?:d|x|y)=")([^"]*)', lambda found: found[1] + re.sub(r"(\.\d\d)\d+", r"\1", found[2]), body)
    for variable, sentinel in SENTINELS.items():
        body = body.replace(sentinel, f"var(--{variable})")
    body = re.sub(r"§([0-9a-f]*)§", lambda found: html.escape(bytes.fromhex(found[1]).decode()), body)
    body = re.sub(r"\s*\n\s*", "\n", body)
    return labelled(view[0], name, title, description, body)


def labelled(view: str, name: str, title: str, description: str, body: str) -> str:
    """An <svg> element that screen readers can name and describe. `view` is its viewBox attribute, `body` what it holds."""
    head = f'<svg {view} role="img" aria-labelledby="{name}-title {name}-desc">'
    words = f'<title id="{name}-title">{html.escape(title)}</title><desc id="{name}-desc">{html.escape(description.strip())}</desc>'
    return f"{head}{words}{body}</svg>"
