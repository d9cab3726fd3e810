"""What transformers' files export: read once, kept, and read again when any of them changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftcli.core.tokenizer.import_structure import Structure, kept_structure

STRUCTURE: Structure = {
    "albert": {
        frozenset(): {"configuration_albert": {"AlbertConfig", "AlbertOther"}},
        frozenset({"torch", "vision"}): {"modeling_albert": {"AlbertModel"}},
    },
    "empty": {},
    frozenset(): {"beside": set()},
}


class Scans:
    """A folder with a module in it, its scanner, and how often it was scanned."""

    def __init__(self, folder: Path) -> None:
        self.models, self.cache, self.scanner, self.count = folder / "models", folder / "cache", folder / "import_utils.py", 0
        self.module = self.models / "albert" / "configuration_albert.py"
        self.module.parent.mkdir(parents=True)
        for path in (self.module, self.scanner):
            path.write_text("x = 1\n")

    def ask(self) -> Structure:
        return kept_structure(str(self.models), str(self.scanner), self.cache, self.scan)

    def scan(self) -> Structure:
        self.count += 1
        return STRUCTURE


@pytest.fixture
def scans(tmp_path: Path) -> Scans:
    return Scans(tmp_path)


def test_the_second_run_gets_the_same_without_a_scan(scans: Scans) -> None:
    assert [scans.ask(), scans.ask()] == [STRUCTURE, STRUCTURE]
    assert scans.count == 1


@pytest.mark.parametrize("change", ["written", "written with its old time", "new", "gone", "scanner"])
def test_any_change_of_a_file_is_a_new_scan(scans: Scans, change: str) -> None:
    scans.ask()
    if change == "new":
        (scans.models / "albert" / "modeling_albert.py").write_text("")
    elif change == "gone":
        scans.module.unlink()
    else:
        path = scans.scanner if change == "scanner" else scans.module
        before = path.stat()
        path.write_text("x = 2\n")
        if change == "written with its old time":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert scans.ask() == STRUCTURE
    assert scans.count == 2
    scans.ask()
    assert scans.count == 2


def test_compiled_files_do_not_count(scans: Scans) -> None:
    scans.ask()
    (scans.models / "__pycache__").mkdir()
    (scans.models / "__pycache__" / "x.pyc").write_bytes(b"")
    scans.ask()
    assert scans.count == 1


def test_a_damaged_record_and_a_folder_that_cannot_be_written_cost_a_scan_only(scans: Scans) -> None:
    scans.ask()
    (record,) = scans.cache.iterdir()
    record.write_bytes(record.read_bytes().replace(b"AlbertConfig", b"AlbertConfic"))
    assert scans.ask() == STRUCTURE
    record.unlink()
    scans.cache.rmdir()
    scans.cache.write_text("a file")
    assert scans.ask() == STRUCTURE
    assert scans.count == 3
