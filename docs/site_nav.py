"""mkdocs hooks: the order of the pages, where one that nobody placed ends the build, and the language of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECTIONS = {
    "How to": (
        "tokenize", "scale", "inspect", "verify", "why-is-my-loss-wrong", "train", "distributed", "gpu", "benchmark", "export", "settings-import",
    ),
    "Reference": ("cli", "settings", "profiles", "environment", "json", "errors", "data-format"),
    "Extend": ("plugins", "plugin-collator", "plugin-environment", "plugin-check", "hooks"),
    "Measured": ("benchmarks", "reliability", "incident-2"),
}  # fmt: skip
FOLDERS = {"Checks": "checks", "Decisions": "decisions"}


def nav(folder: Path = HERE) -> list[Any]:
    """Sections with their pages, as mkdocs wants them.

    Raises:
        LookupError: a page stands in no section, or a section names one that is not there.
    """
    placed = {name for names in SECTIONS.values() for name in names}
    there = {page.stem for page in folder.glob("*.md")} - {"index"}
    if placed != there:
        raise LookupError(f"docs/site_nav.py: pages without a section, or sections without their page: {sorted(placed ^ there)}")
    sections = [{title: [f"{name}.md" for name in names]} for title, names in SECTIONS.items()]
    folders = [
        {title: sorted(page.relative_to(folder).as_posix() for page in (folder / name).glob("*.md"))} for title, name in FOLDERS.items()
    ]
    for section in folders:
        for pages in section.values():
            pages.sort(key=lambda page: not page.endswith("README.md"))
    return ["index.md", *sections, *folders, {"한국어": ["ko/index.md"]}]


def on_config(config: Any) -> Any:
    config["nav"] = nav()
    return config


def on_page_context(context: Any, *, page: Any, config: Any, **_: Any) -> Any:
    config.theme["language"] = "ko" if page.url.startswith("ko/") else "en"
    return context
