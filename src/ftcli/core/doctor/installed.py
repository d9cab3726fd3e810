"""What is installed, by what the installers wrote down: nothing is imported."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlparse

from ftcli.core.doctor.part import Found
from ftcli.errors import MissingExtraError, adding
from ftcli.markers import PROJECT

ALSO = ("huggingface_hub", "numpy", "packaging", "pydantic", "safetensors")
"""Libraries that matter and come with others."""
BESIDE = ("bitsandbytes", "flash-attn", "intel-extension-for-pytorch", "ray", "triton", "trl", "vllm")
"""Libraries that change how training runs where they are installed."""
MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Need:
    """A library that ftcli asks for: `extra` is "" for what it cannot do without."""

    name: str
    extra: str
    text: str
    """As the metadata have it."""

    def met(self, here: str) -> bool:
        """Whether this version will do; where nothing can compare versions, it will."""
        try:
            from packaging.requirements import Requirement
        except ImportError:
            return True
        return Requirement(self.text).specifier.contains(here, prereleases=True)


def installation() -> Found:
    """ftcli: version, where its code lies, and where it was installed from."""
    code = Path(__file__).resolve().parents[2]
    try:
        found = distribution(PROJECT)
    except PackageNotFoundError:
        return {"ftcli": None, "code": str(code)}, ["ftcli is not installed as a package: run pip install in its source tree"]
    facts = {"ftcli": found.version, "code": str(code), **_origin(found)}
    installer = (found.read_text("INSTALLER") or "").strip()
    return facts | ({"installer": installer} if installer else {}), []


def python() -> Found:
    """The interpreter."""
    facts = {
        "version": f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()})",
        "executable": sys.executable,
        "environment": "virtual environment" if sys.prefix != sys.base_prefix else "conda" if _is_conda() else "no virtual environment",
        "prefix": sys.prefix,
    }
    return facts | ({"build": "free-threaded"} if sysconfig.get_config_var("Py_GIL_DISABLED") else {}), []


def libraries() -> Found:
    """Versions of what ftcli needs, and of what it meets."""
    facts: dict[str, str] = {}
    broken = []
    for need in needs():
        if need.extra:
            continue
        here = installed(need.name)
        facts[need.name] = here or MISSING
        if here is None:
            broken.append(f"{need.name} is missing: pip install '{need.text}'")
        elif not need.met(here):
            broken.append(f"{need.name} {here} does not meet ftcli's requirement: pip install '{need.text}'")
    others = {name: here for name in (*ALSO, *BESIDE) if (here := installed(name))}
    return dict(sorted({**others, **facts}.items())), broken


def extras() -> Found:
    """Optional libraries by extra; one that is missing is no fault, one that is too old is."""
    facts: dict[str, list[str]] = {}
    broken = []
    for need in needs():
        if not need.extra:
            continue
        here = installed(need.name)
        facts.setdefault(need.extra, []).append(f"{need.name} {here or MISSING}")
        if here and not need.met(here):
            broken.append(f"{need.name} {here} does not meet ftcli's requirement: pip install '{need.text.partition(';')[0].strip()}'")
    return facts, broken


def torch_by_file() -> Found:
    """torch's build as its version.py has it, without importing it."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return {"version": MISSING}, []  # `libraries` says it
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    found = dict(re.findall(r"^(__version__|cuda|hip|xpu)\b[^=\n]*= *'?([^'\n]*)'?$", text, re.MULTILINE))
    builds = [f"{name} {value}" for name, value in found.items() if name != "__version__" and value not in {"", "None"}]
    return {"version": found.get("__version__", "unknown"), "build": " ".join(builds) or "CPU", "imported": "no (--quick)"}, []


def needs() -> Iterator[Need]:
    """What the metadata of the installed ftcli ask for, in their order.

    Raises:
        PackageNotFoundError: ftcli is not installed.
    """
    for text in distribution(PROJECT).requires or ():
        name, marker = re.match(r"[\w.-]+", text), text.partition(";")[2]
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        if name is not None:
            yield Need(name[0], extra[1] if extra else "", text)


def require(extra: str, what: str) -> None:
    """
    Args:
        extra: of one package with its own name.
        what: needs it, for the message.

    Raises:
        MissingExtraError: it is not installed, or older than ftcli's metadata ask for.
    """
    if find_spec(extra) is None:
        raise MissingExtraError(f"{what} needs the package {extra}", adding(extra))
    here = installed(extra)
    asked = needs() if installed(PROJECT) else ()
    if old := next((need for need in asked if need.extra == extra and here is not None and not need.met(here)), None):
        raise MissingExtraError(f"{what} needs the package {old.text.partition(';')[0].strip()}, but {here} is installed", adding(extra))


def installed(name: str) -> str | None:
    """A library's version, "unknown" where its metadata are damaged; None: it is not there."""
    try:
        return str(version(name) or "unknown")
    except PackageNotFoundError:
        return None
    except Exception:  # noqa: BLE001 - a file of metadata may be anything
        return "unknown"


def _origin(found: Distribution) -> dict[str, str]:
    try:
        direct = json.loads(found.read_text("direct_url.json") or "{}")
    except json.JSONDecodeError:
        return {"from": "unknown: direct_url.json is damaged"}
    url = str(direct.get("url", ""))
    if not url:
        return {"from": "a package index or a local file"}
    commit = str(direct.get("vcs_info", {}).get("commit_id", ""))[:12]
    if not url.startswith("file:"):
        return {"from": url, **({"commit": commit} if commit else {})}
    folder = Path(unquote(urlparse(url).path))
    editable = bool(direct.get("dir_info", {}).get("editable"))
    state = _git(folder) if editable else ""
    return {"from": f"{'editable' if editable else 'a copy of'} {folder}", **({"commit": state} if state else {})}


def _git(folder: Path) -> str:
    """Commit of a source tree, "-dirty" behind it where something differs; "" where that cannot be told."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _is_conda() -> bool:
    return (Path(sys.prefix) / "conda-meta").is_dir()
