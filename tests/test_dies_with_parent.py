"""A command that was started by another ends with it, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ftcli.core.processes import dies_with_parent
from timing import until

TIED = "from ftcli.core.processes import dies_with_parent; dies_with_parent.run(words, os.environ)"
NAIVE = "subprocess.run([sys.executable, '-m', 'ftcli', *words], capture_output=True)"
PLUGIN = """
import os, time
from pathlib import Path
mark = Path(__file__).parent.parent / "pid"
mark.with_suffix(".new").write_text(str(os.getpid()))
mark.with_suffix(".new").rename(mark)
time.sleep(600)
"""


@pytest.mark.fault
@pytest.mark.parametrize(("way", "ends"), [(TIED, True), (NAIVE, False)], ids=["tied", "naive"])
def test_whoever_asks_is_killed_and_the_command_ends_with_it(way: str, ends: bool, tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "slow.py").write_text(PLUGIN)
    words = ["plugins", "list", "--plugins-dir", str(plugins)]
    asker = subprocess.Popen([sys.executable, "-c", f"import os, subprocess, sys; words = {words!r}; {way}"], start_new_session=True)
    mark = tmp_path / "pid"
    assert until(lambda: mark.exists() or asker.poll() is not None)
    command = psutil.Process(int(mark.read_text()))
    try:
        asker.kill()
        asker.wait()
        if ends:
            command.wait(60)
        else:
            time.sleep(1)
        assert command.is_running() is not ends
    finally:
        with suppress(psutil.NoSuchProcess):
            command.kill()


def test_the_command_gives_what_it_printed_and_its_code() -> None:
    good, bad = dies_with_parent.run(["--version"], os.environ), dies_with_parent.run(["plugins", "list", "--nothing"], os.environ)
    assert (good.returncode, good.stdout.split()[0]) == (0, "ftcli")
    assert bad.returncode == 2
    assert "--nothing" in bad.stderr
