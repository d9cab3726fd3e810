"""A release in dist/: wheel and sdist that come out the same every time, their SHA-256 sums, and a CycloneDX list of what the wheel needs.

python scripts/release.py [--commit HEAD]

The clock of the archives is that of the commit. Both are built twice, in different folders, and the bytes compared: exit code 1 when they differ.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

from sbom import sbom

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
SBOM = "ftcli.cdx.json"


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the release into dist/ and prove that it is reproducible.")
    parser.add_argument("--commit", default="HEAD", help="whose files are built")
    commit = parser.parse_args().commit
    epoch = subprocess.run(
        ["git", "log", "-1", "--format=%ct", commit], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="ftcli-release-") as temporary:
        first, second = (build(Path(temporary, name), commit, epoch) for name in ("one", "another"))
        different = [name for name in first if first[name] != second.get(name)]
        if different or first.keys() != second.keys():
            print(f"built twice, and not the same: {', '.join(sorted(different) or sorted(first.keys() ^ second.keys()))}", file=sys.stderr)
            return 1
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for name, content in first.items():
        (DIST / name).write_bytes(content)
    pins = subprocess.run(["git", "show", f"{commit}:constraints.txt"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    (DIST / SBOM).write_text(inventory(next(DIST.glob("*.whl")), pins, int(epoch)), encoding="utf-8")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("\n".join(sums) + "\n", encoding="utf-8")
    print("\n".join(sums))
    return 0


def build(folder: Path, commit: str, epoch: str) -> dict[str, bytes]:
    """Name → content of wheel and sdist, from the files of a commit and no others."""
    source = folder / "source"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(source, filter="data")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    out = folder / "dist"
    subprocess.run([sys.executable, "-m", "build", "--quiet", "--outdir", str(out), str(source)], check=True, env=environment)
    return {
        path.name: settled(path.read_bytes(), int(epoch)) if path.suffix == ".gz" else path.read_bytes() for path in sorted(out.iterdir())
    }


def inventory(wheel: Path, pins: str, epoch: int) -> str:
    """The CycloneDX document of a wheel."""
    with zipfile.ZipFile(wheel) as files:
        folder = next(path for path in zipfile.Path(files).iterdir() if path.name.endswith(".dist-info"))
        return checked(sbom(PathDistribution(folder), hashlib.sha256(wheel.read_bytes()).hexdigest(), pins, epoch))


def checked(document: dict[str, Any]) -> str:
    """As text, held against the schema."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if (wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)) is not None:
        raise SystemExit(f"{SBOM} is not CycloneDX 1.6: {wrong}")
    return text


def settled(sdist: bytes, epoch: int) -> bytes:
    """The same files in the order of their names, with one clock and no owner: setuptools writes those of the machine."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(sdist)) as old, tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname, member.pax_headers = epoch, 0, 0, "", "", {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(tar.getvalue(), mtime=epoch)


if __name__ == "__main__":
    sys.exit(main())
