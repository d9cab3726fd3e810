"""Arrays of a step lie in memory for which huge pages were asked, and where addresses are counted nothing is reserved."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ftcli.core.training import huge_pages
from timing import PATIENCE

CODE = """if True:
    import dataclasses, os, sys, threading
    from ftcli import environment
    from ftcli.machine import detect
    from ftcli.pluginmanager import Plugins
    from ftcli.settings import Settings
    if not os.confstr("CS_GNU_LIBC_VERSION"): sys.exit(77)
    environment.apply(Plugins(allow=()), Settings(), dataclasses.replace(detect(), gpus=()))
    import torch
    from ftcli.core.training import huge_pages

    def asked(address):
        inside = False
        for line in open("/proc/self/smaps", encoding="ascii"):
            first = line.split()[0]
            if "-" in first:
                start, end = (int(side, 16) for side in first.split("-"))
                inside = start <= address < end
            elif inside and first == "VmFlags:":
                return "hg" in line.split()
        raise AssertionError(address)

    def look(room):
        if sys.argv[1] == "reserve":
            huge_pages.reserve(*room)
        for _ in range(3):  # what is free after an array is what the next one gets
            array = torch.ones(5 * 2**20)
            found.append(asked(array.data_ptr() + 2**21))
            del array

    found = []
    look(huge_pages.MAIN)
    thread = threading.Thread(target=look, args=(huge_pages.THREAD,))
    thread.start(); thread.join()
    print(*found)
"""


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="a kernel without huge pages")
@pytest.mark.parametrize("mode", ["reserve", "not"])
def test_arrays_of_both_threads_lie_where_huge_pages_were_asked_for(mode: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", CODE, mode], env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode == 77:
        pytest.skip("no glibc")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(mode == "reserve")] * 6


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_DATA, None])
def test_nothing_is_reserved_where_addresses_are_counted(limit: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huge_pages, "OVERCOMMIT", tmp_path / "overcommit")
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (2**32 if asked == limit else resource.RLIM_INFINITY,) * 2)
    assert huge_pages._counted() is (limit is not None)
    for number in "012":
        (tmp_path / "overcommit").write_text(number + "\n", encoding="ascii")
        assert huge_pages._counted() is (limit is not None or number == "2")
