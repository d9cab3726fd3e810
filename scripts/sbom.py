"""What an installed wheel is made of, as a CycloneDX document: the wheel, what it asks for without any extra, and what that asks for."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from importlib.metadata import Distribution, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def sbom(wheel: Distribution, sha256: str, constraints: str, epoch: int) -> dict[str, Any]:
    """The document. Versions are those of the constraints, or what is installed where they name none; licences are those of what is installed."""
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in constraints.splitlines()) if version}
    graph = closure(wheel)
    root, *others = graph
    found = {root: wheel, **{name: distribution(name) for name in others}}
    refs = {name: f"pkg:pypi/{name}@{wheel.version if name == root else pins.get(name, here.version)}" for name, here in found.items()}
    parts = {name: _component(name, refs[name], here) for name, here in found.items()}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).isoformat(),
            "component": {**parts[root], "type": "application", "hashes": [{"alg": "SHA-256", "content": sha256}]},
            "properties": [{"name": "python", "value": f"{sys.version_info.major}.{sys.version_info.minor} {sys.platform}"}],
        },
        "components": [parts[name] for name in sorted(others)],
        "dependencies": [{"ref": refs[name], "dependsOn": sorted(refs[need] for need in graph[name])} for name in sorted(graph)],
    }


def closure(wheel: Distribution) -> dict[str, set[str]]:
    """Name → names it asks for on this platform, by way of the extras that are asked for; the wheel comes first."""
    graph: dict[str, set[str]] = {}
    seen, todo = set(), [(canonicalize_name(wheel.name), "", wheel)]
    while todo:
        name, extra, here = todo.pop()
        needs = graph.setdefault(name, set())
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for need in map(Requirement, here.requires or ()):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                needs.add(other := canonicalize_name(need.name))
                todo += [(other, asked, distribution(other)) for asked in ("", *need.extras)]
    return graph


def _component(name: str, ref: str, here: Distribution) -> dict[str, Any]:
    about = here.metadata
    if "License-Expression" in about:
        licences = [{"expression": about["License-Expression"]}]
    else:
        names = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License :: ")]
        words = about.get("License", "").strip()  # some packages put the whole text there
        licences = [{"license": {"name": each}} for each in names or ([words] if words and "\n" not in words else [])]
    part = {"type": "library", "bom-ref": ref, "name": name, "version": ref.rpartition("@")[2], "purl": ref}
    return {**part, "description": about.get("Summary", ""), **({"licenses": licences} if licences else {})}
