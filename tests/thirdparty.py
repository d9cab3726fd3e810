"""Plugins of other people, made the two ways there are: a file in a folder, and an installed distribution with an entry point."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from ftcli.pluginmanager import Plugins

Load = Callable[..., Plugins]
"""load(source, name="other") -> Plugins with that plugin beside the built-ins."""
WAYS = ("folder", "entry point")


def install(patch: pytest.MonkeyPatch, site: Path, source: str, name: str = "other", distribution: str = "", version: str = "1.2") -> None:
    """Put a distribution with one module and one entry point on sys.path, as pip would."""
    distribution = distribution or f"ftcli-{name}"
    module = f"{distribution.replace('-', '_')}_module"
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[ftcli]\n{name} = {module}\n")
    (site / f"{module}.py").write_text(dedent(source))
    patch.syspath_prepend(str(site))
    patch.delitem(sys.modules, module, raising=False)


def put(folder: Path, source: str, name: str = "other") -> Path:
    """Write a plugin file into a folder for --plugins-dir."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(dedent(source))
    return path


def loader(way: str, patch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """What loads a third-party plugin in one of `WAYS`."""

    def load(source: str, name: str = "other") -> Plugins:
        if way == "folder":
            return Plugins(plugins_dir=put(tmp_path / name, source, name).parent, allow=())
        install(patch, tmp_path / "site" / name, source, name)
        return Plugins(allow=[name])

    return load
