"""What is released comes out the same every time, and CI elsewhere runs what `.ci/run` runs here."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from docpages import ROOT
from foreign_readers import VARIABLE
from ftcli.errors import adding

pytestmark = pytest.mark.skipif(
    not (ROOT / "Dockerfile").is_file(), reason="the suite runs from the wheel: the repository is not around it"
)


@pytest.fixture(scope="module")
def release() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        yield importlib.import_module("release")


def sdist(clock: int, owner: str, names: tuple[str, ...]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.mode = len(name), clock, owner, 0o600 if name.endswith(".py") else 0o700
            tar.addfile(member, io.BytesIO(name.encode()))
    return gzip.compress(packed.getvalue(), mtime=clock)


def test_an_sdist_depends_on_nothing_but_its_files_and_the_commits_clock(release: ModuleType) -> None:
    names = ("ftcli/b.py", "ftcli/a.py", "ftcli/run.sh")
    one, another = sdist(1_700_000_000, "me", names), sdist(1_800_000_000, "you", names[::-1])
    assert one != another, "the control"
    assert release.settled(one, 7) == release.settled(another, 7) != release.settled(one, 8)
    with tarfile.open(fileobj=io.BytesIO(release.settled(one, 7))) as tar:
        assert [(member.name, member.mtime, member.uname, oct(member.mode)) for member in tar] == [
            ("ftcli/a.py", 7, "", "0o644"),
            ("ftcli/b.py", 7, "", "0o644"),
            ("ftcli/run.sh", 7, "", "0o755"),
        ]
        file = tar.extractfile("ftcli/b.py")
        assert file is not None
        assert file.read() == b"ftcli/b.py"


class Wheel(Distribution):
    """What is asked for, and nothing that is installed."""

    def __init__(self, *needs: str) -> None:
        self._text = "\n".join(("Metadata-Version: 2.4", "Name: Made-Up", "Version: 7", *(f"Requires-Dist: {need}" for need in needs), ""))

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        raise NotImplementedError


def test_the_inventory_is_the_wheel_and_what_it_needs_in_the_versions_of_the_constraints(release: ModuleType) -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    needs = distribution("ftcli").requires or []
    found = release.sbom(Wheel(*needs), "0" * 64, pins, 1_700_000_000)
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.6", 1)
    assert found["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    root, parts = found["metadata"]["component"], {part["name"]: part for part in found["components"]}
    assert (root["name"], root["version"], root["hashes"]) == ("made-up", "7", [{"alg": "SHA-256", "content": "0" * 64}])
    asked = {re.match(r"[\w.-]+", need)[0].lower() for need in needs if "extra ==" not in need}  # type: ignore[index]
    assert asked | {"numpy", "huggingface-hub"} <= parts.keys()
    assert not parts.keys() & {"pytest", "mypy", "ruff", "mkdocs", "trl", "ray", "s3fs", "tensorboard"}, "what develops it, and its extras"
    pinned = dict(line.lower().replace("_", "-").split("==") for line in pins.splitlines() if "==" in line)
    assert asked <= pinned.keys()
    assert all(part["version"] == pinned.get(name, part["version"]) for name, part in parts.items())
    refs = {part["bom-ref"]: part for part in (root, *parts.values())}
    assert len(refs) == len(parts) + 1
    assert all(part["type"] and part["purl"] == ref == f"pkg:pypi/{part['name']}@{part['version']}" for ref, part in refs.items())
    edges = {edge["ref"]: edge["dependsOn"] for edge in found["dependencies"]}
    assert edges.keys() == refs.keys() >= {need for each in edges.values() for need in each}
    assert {refs[need]["name"] for need in edges[root["bom-ref"]]} == asked
    assert parts["torch"]["licenses"][0]["expression"].startswith("Apache-2.0")
    assert parts["pluggy"]["licenses"] == [{"license": {"name": "MIT License"}}]


@pytest.mark.usefixtures("release")
def test_the_inventory_follows_extras_that_are_asked_for_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"a": Wheel("b; extra == 'more'", "c; extra == 'other'"), "b": Wheel("a"), "d": Wheel()}
    sbom = importlib.import_module("sbom")
    monkeypatch.setattr(sbom, "distribution", there.__getitem__)
    wheel = Wheel("A[more]", "d; sys_platform == 'linux'", "e; sys_platform == 'never'", "f; extra == 'mine'")
    assert sbom.closure(wheel) == {"made-up": {"a", "d"}, "a": {"b"}, "b": {"a"}, "d": set()}


@pytest.mark.skipif(find_spec("cyclonedx") is None, reason="the group release is not installed: make release")
def test_the_inventory_is_held_against_its_schema(release: ModuleType) -> None:
    good = release.sbom(Wheel("pluggy"), "0" * 64, "pluggy==9\n", 0)
    assert release.checked(good) == json.dumps(good, indent=1, ensure_ascii=False) + "\n"
    with pytest.raises(SystemExit, match="is not CycloneDX"):
        release.checked({**good, "components": [{"type": "wheel"}]})


def test_the_hint_for_an_extra_completes_the_ftcli_that_is_installed_and_needs_no_index_for_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    code = "\n".join(path.read_text(encoding="utf-8") for part in ("src", "plugins") for path in (ROOT / part).rglob("*.py"))
    asked = set(re.findall(r'\b(?:adding|require)\("([^"]+)"', code))
    assert {"peft", "ray", "s3", "deepspeed"} <= asked <= extras.keys()
    assert not re.findall(r"pip install '?\.", code), "right in the source directory alone"
    command = shlex.split(adding("peft").removeprefix("Run: pip "))
    assert command == ["install", "ftcli[peft]"]
    tried = subprocess.run([sys.executable, "-m", "pip", *command, "--dry-run", "--no-index"], capture_output=True, text=True)
    assert "No matching distribution found for ftcli" not in tried.stderr
    assert "already satisfied: ftcli" in tried.stdout
    control = subprocess.run(
        [sys.executable, "-m", "pip", "install", "ftcli>999", "--dry-run", "--no-index"], capture_output=True, text=True
    )
    assert "No matching distribution found for ftcli" in control.stderr


def test_the_workflow_runs_ci_on_every_python_that_is_promised() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = [found[1] for line in project["classifiers"] if (found := re.search(r":: (3\.\d+)$", line))]
    assert jobs["test"]["strategy"]["matrix"]["python"] == promised
    assert {"run": ".ci/run", "env": {"FTCLI_COVERAGE": "1"}} in jobs["test"]["steps"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
    assert jobs["release"]["needs"] == ["test", "audit"]


def test_every_night_what_the_workflow_skips_is_run_as_root_with_the_programs_that_tests_ask_for() -> None:
    document = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8"))
    assert {"schedule", "workflow_dispatch"} == document[True].keys(), "YAML 1.1 reads on as true"
    (job,) = document["jobs"].values()
    targets = job["strategy"]["matrix"]["target"]
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert set(targets) == {"suite", *re.findall(r"^(faults-\w+):", recipes, re.MULTILINE)}
    assert job["timeout-minutes"] <= 360, "GitHub ends it then"
    steps = [step.get("run", "") for step in job["steps"]]
    (last,) = (step for step in job["steps"] if "make ${{ matrix.target }}" in step.get("run", ""))
    assert last["run"].startswith("sudo env ")
    assert "'full'" in last["env"]["FTCLI_FAULTS"]
    installed = set(" ".join(steps).split())
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*.py") if path != Path(__file__))
    asked = set(re.findall(r'shutil\.which\("(\w+)"\) is (?:not )?None', tests)) | {"zsh"}
    assert {"jq", "strace", "unshare", "ip"} <= asked
    assert {{"ip": "iproute2", "unshare": "util-linux"}.get(name, name) for name in asked} <= installed
    assert {"megatron-core", "datatrove", "mosaicml-streaming"} <= installed
    assert any(VARIABLE in step for step in steps)


def test_the_audit_fails_where_nothing_could_be_looked_up() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\naudit:")[2].partition("\n\n")[0]
    assert {"run": "make audit"} in jobs["audit"]["steps"]
    assert "pip-audit --strict --requirement constraints.txt" in recipe


def test_the_package_names_every_folder_that_it_holds() -> None:
    """One that it does not name still gets into the wheel, with a warning of setuptools that it would be ignored."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = {
        ".".join((package, *path.parent.relative_to(ROOT / folder).parts))
        for package, folder in settings["package-dir"].items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert sorted(settings["packages"]) == sorted(found)


def test_an_issue_begins_with_what_the_doctor_says() -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8"))
    asked = {field["id"]: field for field in form["body"] if "id" in field}
    assert "ftcli doctor" in asked["doctor"]["attributes"]["description"]
    assert asked["doctor"]["validations"]["required"]
    assert all(field["type"] in {"markdown", "textarea", "input", "checkboxes"} for field in form["body"])


def test_the_image_gets_every_folder_of_the_package() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for name in line.split()}
    context = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {path.split("/")[0] for path in project["tool"]["setuptools"]["package-dir"].values()}
    assert copied == context >= {*folders, "pyproject.toml", project["project"]["readme"]}
    assert all((ROOT / name).exists() for name in copied)
