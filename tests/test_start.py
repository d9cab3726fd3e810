"""What a process imports before it does anything: every command waits for it, and every worker."""

from __future__ import annotations

import subprocess
import sys

import pytest


def imported(statement: str, env: dict[str, str] | None = None) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, env=env).stdout.split())


def test_a_worker_is_started_before_anything_heavy_is_imported() -> None:
    assert not imported("import ftcli.core.processes.warm_worker") & {"pluggy", "importlib.metadata", "pydantic", "numpy", "pyarrow"}


def test_the_version_and_the_markers_are_there_when_asked_for() -> None:
    import ftcli
    from ftcli import hookimpl, hookspec, markers

    assert (hookimpl, hookspec) == (markers.hookimpl, markers.hookspec)
    assert ftcli.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="no attribute 'hookimp'"):
        ftcli.hookimp  # noqa: B018


def test_garbage_is_looked_for_again_after_the_imports() -> None:
    from ftcli.core.processes.child import Child

    child = Child()
    try:
        enabled, frozen = child.ask(state)
    finally:
        child.stop()
        child.join()
    assert enabled
    assert frozen > 1_000


def state() -> tuple[bool, int]:
    import gc

    return gc.isenabled(), gc.get_freeze_count()


def test_whoever_calls_main_decides_about_garbage() -> None:
    import gc

    from ftcli.cli.main import main

    before = gc.get_freeze_count()
    assert main(["--version"]) == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() <= before  # what was frozen may have gone


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["doctor"], "ftcli.cli.doctor.execute"),
        (["train", "--dataset", "data", "--nproc-per-node", "2"], "ftcli.commands.launch.run"),  # stays for as long as the ranks train
        (["tokenize", "data"], "ftcli.commands.tokenize.run"),
        (["settings"], "ftcli.commands.settings.run"),
    ],
)
def test_every_command_looks_for_garbage_while_it_works(words: list[str], place: str) -> None:
    module, _, name = place.rpartition(".")
    code = (
        f"import gc, os, sys, {module} as module; sys.argv = ['ftcli', *{words}]; "
        f"module.{name} = lambda *_, **__: (os.write(1, str((gc.isenabled(), gc.get_freeze_count() > 1_000)).encode()), os._exit(0)); "
        "from ftcli.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(True, True)", done.stderr
