"""Pages that need nothing else: templates beside this module, filled, with the styles of all pages."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import markupsafe

from ftcli import __version__
from ftcli.core import figures
from ftcli.core.reports.values import evidence

_LONG_NAME = re.compile(r"(?<![\w./-])(?=[a-z_.]{16})[a-z_]+\.[a-z_]+(?![\w./-])")
"""Of a setting, and not a part of a path: those are searched for in the page's source."""
_JOINT = re.compile(r"[._](?=\w)")


def render_page(name: str, **values: Any) -> str:
    """The page that a template makes of these values."""
    css = resources.files("ftcli.core.reports").joinpath("report.css").read_text(encoding="utf-8")
    return template(name).render(css=css, version=__version__, **values)


def template(name: str) -> jinja2.Template:
    """A template, compiled once."""
    return _environment().get_template(name)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ftcli.core.reports", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(evidence=evidence, seconds=figures.seconds, breakable=_breakable)
    return environment


def _breakable(text: str) -> markupsafe.Markup:
    """Long names may end a line after a dot or an underscore: train.gradient_accumulation_steps."""
    return markupsafe.Markup(_LONG_NAME.sub(lambda name: _JOINT.sub(r"\g<0><wbr>", name[0]), str(markupsafe.escape(text))))  # noqa: S704
