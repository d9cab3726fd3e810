"""`ftcli plugins`: list what is loaded, examine each plugin, start a new one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

from ftcli.commands.plugin_trial import tried
from ftcli.context import Context
from ftcli.errors import FtcliError, UsageError
from ftcli.markers import PROJECT
from ftcli.pluginfaults import HOOKS
from ftcli.pluginmanager import BUILT_INS, KINDS, Plugins
from ftcli.pluginparts import CONTRACTS
from ftcli.records import Check, Report, RunStatus

TOGETHER = "all together"


def run(
    context: Context, action: str, name: str, output: Path, *, plugins_dir: Path | None = None, allow: Sequence[str] | None = None
) -> Report:
    """
    Args:
        context: with the built-ins only, so that a broken plugin can be examined.
        action: list, doctor or new (`name` in `output`).
        plugins_dir, allow: as for `Plugins`.

    Raises:
        UsageError: new without a usable name, or a name where none belongs.
        PluginError: list, and a plugin cannot be loaded.
        PublishError: new, and the project cannot be written.
    """
    if (action == "new") != bool(name):
        raise UsageError(
            f"ftcli plugins {action} {'needs a name' if action == 'new' else f'takes no name, found {name!r}'}", "See: ftcli plugins --help"
        )
    if action == "new":
        from ftcli.commands.plugin_project import write_project

        folder = write_project(name, output)
        context.note(f"try it: ftcli plugins list --plugins-dir {folder / 'src'}, or install it: pip install -e {folder}")
        return context.report("plugins", {"plugin": name}, paths={"output": str(folder)})
    if action == "doctor":
        return _doctor(context, plugins_dir, allow)
    loaded = replace(context, plugins=Plugins(plugins_dir, allow))
    for info in loaded.plugins.describe():
        if not info.hooks:
            loaded.note(f"plugin {info.name} ({info.origin}) has no hook, and does nothing: run ftcli plugins doctor")
    rows = [[info.name, info.version, info.origin, info.file_hash, ", ".join(info.hooks)] for info in loaded.plugins.describe()]
    table = {"head": ["plugin", "version", "origin", "file hash", "hooks"], "rows": rows}
    return loaded.report("plugins", {"plugins": len(rows)}, details={"table": table})


def _doctor(context: Context, plugins_dir: Path | None, allow: Sequence[str] | None) -> Report:
    """Every plugin alone, then all together; a problem is a failed check."""
    checks = [examine(title, folder, names) for title, folder, names in candidates(plugins_dir, allow)]
    if all(check.status != "fail" for check in checks):  # else the whole would only repeat what is known
        checks.append(examine(TOGETHER, plugins_dir, allow))
    problems = sum(check.status in {"fail", "warn"} for check in checks)
    status: RunStatus = "failed" if any(check.status == "fail" for check in checks) else "ok"
    return context.report("plugins", {"plugins": len(checks), "problems": problems}, status=status, checks=tuple(checks))


def candidates(plugins_dir: Path | None, allow: Sequence[str] | None) -> Iterator[tuple[str, Path | None, tuple[str, ...]]]:
    """(title, file, entry points) to load one by one."""
    yield "built-ins", None, ()
    points = {point.name for distribution in distributions() for point in distribution.entry_points if point.group == PROJECT}
    for name in sorted(points if allow is None else allow):
        yield name, None, (name,)
    if plugins_dir is not None:
        files = sorted(plugins_dir.glob("*.py")) if plugins_dir.is_dir() else [plugins_dir]
        for path in files:
            yield path.stem, path, ()


def examine(title: str, file: Path | None, names: Sequence[str] | None, *, own: bool = False) -> Check:
    """Load it, ask for everything it registers, make it, and try what needs no run.

    Args:
        own: ask only for the kinds that outside plugins register; the built-in collators and tasks import torch.
    """
    try:
        plugins = Plugins(file, names)
        hooks = {hook for info in plugins.describe()[len(BUILT_INS) :] for hook in info.hooks}
        kinds = [kind for kind in KINDS if not own or f"register_{kind}s" in hooks]
        offers = [(kind, name) for kind in kinds for name in plugins.registry(kind).names()]
        outside_parts = [(kind, name) for kind, name in offers if plugins.outsider(kind, name)]
        for kind, name in outside_parts:
            if kind in CONTRACTS:
                plugins.registry(kind).get(name)()
        theirs = [f"{kind} {name}" for kind, name in outside_parts]
        if "check" in kinds:
            from ftcli.core.verify.rules import every

            every(plugins.registry("check"))
        left = tried(plugins, hooks, outside_parts)
    except FtcliError as error:
        return Check(f"plugin:{title}", "env", "fail", error.message, fix=error.hint or "Fix or remove it.")
    outside = plugins.describe()[len(BUILT_INS) :]
    idle = [info.name for info in outside if not info.hooks]
    if idle:
        return Check(f"plugin:{title}", "env", "warn", f"has no hook: {', '.join(idle)}", fix=f"Hooks are: {', '.join(HOOKS)}.")
    known = sorted({hook for info in outside or plugins.describe() for hook in info.hooks})
    offered = f"{len(offers)} parts on offer" if not outside else f"offers {', '.join(theirs)}" if theirs else "offers no part"
    untried = f"; not tried, which takes a run: {', '.join(left)}" if left else ""
    return Check(f"plugin:{title}", "env", "pass", f"{offered}; hooks: {', '.join(known)}{untried}")
