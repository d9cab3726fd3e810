"""Writes the generated parts of these pages, which stand between `<!-- generated: NAME -->` and `<!-- end -->`, and the pages of the checks.

python docs/generate.py            write them
python docs/generate.py --check    exit code 1, and the names, if a page is stale
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from ftcli import errors, testing
from ftcli.cli.catalog import COMMANDS
from ftcli.contracts import CheckKind, Page
from ftcli.core.verify.catalogue import page_of
from ftcli.core.verify.pages import check_page, index_page, loss_entries
from ftcli.core.verify.rules import every
from ftcli.fields import extra, flag_of, variable_of
from ftcli.pluginmanager import Plugins
from ftcli.settings import sections
from ftcli.settings_train import NOT_OFFERED, REFUSED, REMOVED
from ftcli.sources import CLI_ONLY

FOLDER = Path(__file__).resolve().parent
BENCHMARKS = FOLDER.parent / "benchmarks" / "page.py"
PART = re.compile(r"<!-- generated: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
WORDS = {str: "text", int: "whole number", float: "number", bool: "yes or no", list: "list", dict: "JSON", Path: "path"}
PASSED_ON = "As in transformers.TrainingArguments."


def cli() -> Iterator[str]:
    """The help of `ftcli` and of every command."""
    for command in ("", *COMMANDS):
        words = [command, "--help"] if command else ["--help"]
        shown = testing.run(*words, env={"COLUMNS": "100"})
        yield from (f"## ftcli {command}".rstrip(), "", "```text", shown.stdout.rstrip(), "```", "")


def settings() -> Iterator[str]:
    """A table for every section; fields of TrainingArguments that are passed on as they are in one list."""
    for section, model in sections().items():
        fields = model.model_fields
        shown = {name: info for name, info in fields.items() if info.description != PASSED_ON}
        yield from (f"## {section}", "", inspect.cleandoc(model.__doc__ or ""), "")
        yield from ("| key | flag | variable | type | default | what it does |", "|---|---|---|---|---|---|")
        yield from (_row(section, name, info) for name, info in shown.items())
        yield ""
        if passed := [name for name in fields if name not in shown and name not in REFUSED]:
            yield "These are handed to `transformers.TrainingArguments` under the same name when they are set:"
            yield from ("", ", ".join(f"`{name}`" for name in passed) + ".", "", "These are refused when they are on:", "")
            yield from (*(f"- `{name}`: {why}" for name, why in REFUSED.items()), "")


def elsewhere() -> Iterator[str]:
    """Fields of TrainingArguments that have another name here."""
    yield from ("| you look for | use |", "|---|---|")
    yield from (f"| `{name}` | {use} |" for name, use in sorted({**NOT_OFFERED, **REMOVED}.items()))


def profiles() -> Iterator[str]:
    """The packaged profiles side by side."""
    loaded = {
        entry.name.removesuffix(".toml"): tomllib.loads(entry.read_text(encoding="utf-8"))
        for entry in resources.files("ftcli.profiles").iterdir()
        if entry.name.endswith(".toml")
    }
    order = sorted(loaded, key=lambda name: loaded[name]["profile"]["min_cores"])
    own = [name for name in ("description", "min_cores", "min_memory_gb") if any(name in loaded[each]["profile"] for each in order)]
    keys = sorted({f"{section}.{name}" for each in order for section in set(loaded[each]) - {"profile"} for name in loaded[each][section]})
    yield "| | " + " | ".join(f"`{name}`" for name in order) + " |"
    yield "|---" * (len(order) + 1) + "|"
    for name in own:
        yield f"| {name.replace('_', ' ')} | " + " | ".join(str(loaded[each]["profile"].get(name, "")) for each in order) + " |"
    for key in keys:
        section, _, name = key.partition(".")
        yield f"| `{key}` | " + " | ".join(str(loaded[each].get(section, {}).get(name, "not set")) for each in order) + " |"


def error_tree() -> Iterator[str]:
    """The tree that stands at the top of `ftcli/errors.py`."""
    tree = [line.removeprefix("    ") for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    yield from ("```text", *tree, "```")


def exit_codes() -> Iterator[str]:
    """Class, `code` of the JSON document and exit code of every error."""
    yield from ("| error | `code` | exit code |", "|---|---|---|")
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.FtcliError):
            yield f"| `{name}` | `{kind.code}` | {kind.exit_code} |"


def wrong_loss() -> Iterator[str]:
    """Symptoms of a wrong loss with their causes."""
    return loss_entries(catalogue())


def catalogue() -> list[tuple[CheckKind, Page]]:
    """The built-in checks with what is written about each, by stage and id."""
    kinds = every(Plugins(allow=()).registry("check"))
    return [(kind, page) for kind in kinds if (page := page_of(kind)) is not None]


def check_pages() -> dict[str, str]:
    """The pages of the folder `checks`."""
    entries = catalogue()
    return {f"{kind.id}.md": check_page(kind, page) for kind, page in entries} | {"README.md": index_page(entries)}


def benchmarks_page() -> str:
    """The page of what was measured, by benchmarks/page.py."""
    text: str = _module(BENCHMARKS).page()
    return text


def _module(path: Path) -> Any:
    """A program of the benchmarks, which are no package that is installed."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def scale() -> Iterator[str]:
    """The plan for 10 TB, by benchmarks/scale.py; as it stands where the benchmarks are not."""
    return iter(_scale())


@cache
def _scale() -> tuple[str, ...]:
    """It takes 3 s."""
    module = _module(BENCHMARKS.with_name("scale.py"))
    return tuple(module.lines(module.Plan(), module.measured()))


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "cli": cli,
    "settings": settings,
    "elsewhere": elsewhere,
    "profiles": profiles,
    "error-tree": error_tree,
    "exit-codes": exit_codes,
    "wrong-loss": wrong_loss,
    "scale": scale,
}


def render(text: str) -> str:
    """A page with its generated parts made anew."""

    def part(found: re.Match[str]) -> str:
        return f"<!-- generated: {found[1]} -->\n" + "\n".join(PARTS[found[1]]()).rstrip() + "\n<!-- end -->"

    return PART.sub(part, text)


def stale(folder: Path = FOLDER) -> dict[Path, str]:
    """Pages that are not as they would be written, with what would be; "" for a page of a check that is no more."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(folder.glob("*.md"))}
    found = {page: render(text) for page, text in pages.items() if "<!-- generated:" in text and render(text) != text}
    wanted = {folder / "checks" / name: text for name, text in check_pages().items()}
    if folder == FOLDER and BENCHMARKS.is_file():  # the source tree alone has results
        wanted[folder / "benchmarks.md"] = benchmarks_page()
    there = {page: page.read_text(encoding="utf-8") for page in sorted((folder / "checks").glob("*.md"))}
    there |= {page: text for page, text in pages.items() if page.name == "benchmarks.md" and page in wanted}
    found |= {page: text for page, text in wanted.items() if there.get(page) != text}
    return found | dict.fromkeys(there.keys() - wanted.keys(), "")


def main(words: list[str]) -> int:
    found = stale()
    for page, text in found.items():
        if "--check" in words:
            sys.stderr.write(f"{page.name} is stale: run python docs/generate.py\n")
        elif not text:
            page.unlink()
            sys.stderr.write(f"{page.name} removed\n")
        else:
            page.parent.mkdir(exist_ok=True)
            page.write_text(text, encoding="utf-8")
            sys.stderr.write(f"{page.name} written\n")
    return 1 if found and "--check" in words else 0


def _row(section: str, name: str, info: FieldInfo) -> str:
    key = f"{section}.{name}"
    bare = extra(info, "bare")
    flag = f"`{flag_of(name, info)}`" + (f", bare: `{bare}`" if bare else "")
    variable = "command line only" if key in CLI_ONLY else f"`{variable_of(section, name)}`"
    cells = (f"`{key}`", flag, variable, _type(info.annotation), _default(info.default), str(info.description).replace("|", "\\|"))
    return f"| {' | '.join(cells)} |"


def _type(annotation: Any) -> str:
    if get_origin(annotation) in {Union, UnionType}:
        first, *others = (part for part in get_args(annotation) if part is not type(None))
        return _type(first) + (f", or {_type(others[0])}" if first is bool and others else "")
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    return WORDS[get_origin(annotation) or annotation]


def _default(value: Any) -> str:
    if value is None:
        return "unset"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"`{value}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
