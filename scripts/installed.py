"""Fails unless an installed ftcli has every file of the source tree, byte for byte, and no other: `installed.py SOURCE_ROOT SITE_PACKAGES`."""

from __future__ import annotations

import sys
from pathlib import Path

PLACES = {"src/ftcli": "", "plugins": "plugins", "profiles": "profiles"}


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


def main(root: Path, site: Path) -> int:
    wanted = {str(Path(place, name)): data for source, place in PLACES.items() for name, data in files(root / source).items()}
    found = files(site / "ftcli")
    missing, more = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    other = sorted(name for name in wanted.keys() & found.keys() if wanted[name] != found[name])
    for words, names in (("is missing", missing), ("is not of the source tree", more), ("differs", other)):
        for name in names:
            print(f"ftcli/{name} {words} in the wheel", file=sys.stderr)
    print(f"the wheel holds the {len(wanted)} files of the source tree")
    return 1 if missing or more or other else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
