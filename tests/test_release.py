"""What is released comes out the same every time, and CI elsewhere runs what `.ci/run` runs here."""

from __future__ import annotations

import gzip
import importlib.util
import io
import re
import tarfile
import tomllib
from types import ModuleType

import pytest
import yaml

from docpages import ROOT

pytestmark = pytest.mark.skipif(
    not (ROOT / "Dockerfile").is_file(), reason="the suite runs from the wheel: the repository is not around it"
)


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_the_workflow_runs_ci_on_every_python_that_is_promised() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = [found[1] for line in project["classifiers"] if (found := re.search(r":: (3\.\d+)$", line))]
    assert jobs["test"]["strategy"]["matrix"]["python"] == promised
    assert {"run": ".ci/run", "env": {"FTCLI_COVERAGE": "1"}} in jobs["test"]["steps"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
    assert jobs["release"]["needs"] == ["test", "audit"]


def test_the_audit_fails_where_nothing_could_be_looked_up() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\naudit:")[2].partition("\n\n")[0]
    assert {"run": "make audit"} in jobs["audit"]["steps"]
    assert "pip-audit --strict --requirement constraints.txt" in recipe


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
