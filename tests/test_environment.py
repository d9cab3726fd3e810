"""The environment hook: merging, what the user set, and the variables of the built-in plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ftcli import environment
from ftcli.errors import PluginError
from ftcli.machine import detect
from ftcli.pluginmanager import BUILT_INS, Plugins
from ftcli.records import Gpu, Machine, Tweak
from ftcli.settings import Settings, update
from thirdparty import put
from timing import PATIENCE

PLUGIN = """
    from ftcli import hookimpl
    from ftcli.records import Tweak

    @hookimpl
    def environment():
        return {answer}
"""


@pytest.fixture
def machine() -> Machine:
    return replace(detect(), cores=8, gpus=(), how={"cores": "affinity"})


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plugins]:
    """load(answer, …) -> Plugins with one plugin an answer; without the built-in one."""
    built_ins = [name for name in BUILT_INS if name != "ftcli.plugins.environment"]
    monkeypatch.setattr("ftcli.pluginmanager.BUILT_INS", built_ins)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)

    def load(*answers: str) -> Plugins:
        for number, answer in enumerate(answers):
            put(tmp_path / "plugins", PLUGIN.format(answer=answer), f"plugin{number}")
        return Plugins(plugins_dir=tmp_path / "plugins", allow=())

    return load


def built_in(machine: Machine, settings: Settings | None = None) -> dict[str, Tweak]:
    return environment.compute(Plugins(allow=()), settings or Settings(), machine)


# -- merging -----------------------------------------------------------------------------------------------------------


def test_the_answers_of_all_plugins_are_merged(load: Callable[..., Plugins], machine: Machine) -> None:
    plugins = load('{"OMP_A": Tweak("1", "one")}', '{"OMP_B": Tweak("2", "two")}', "{}")

    assert environment.compute(plugins, Settings(), machine) == {"OMP_A": Tweak("1", "one"), "OMP_B": Tweak("2", "two")}


def test_two_plugins_may_want_the_same(load: Callable[..., Plugins], machine: Machine) -> None:
    plugins = load('{"OMP_A": Tweak("1", "one")}', '{"OMP_A": Tweak("1", "two")}')

    assert environment.compute(plugins, Settings(), machine)["OMP_A"].value == "1"


def test_two_plugins_that_disagree_are_named_with_variable_and_both_values(load: Callable[..., Plugins], machine: Machine) -> None:
    plugins = load('{"OMP_A": Tweak("1", "one")}', '{"OMP_A": Tweak("2", "two")}')

    with pytest.raises(PluginError) as caught:
        environment.compute(plugins, Settings(), machine)

    for word in ("'plugin0'", "'plugin1'", "OMP_A", "'1'", "'2'"):
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("['OMP_A']", r"returned \['OMP_A'\]"),
        ("None", r"environment\(\) returned None"),
        ('{"OMP_A": "1"}', "OMP_A = '1' is not a Tweak"),
        ('{"OMP_A": Tweak(1, "number")}', "is not a Tweak of a string"),
        ('{"omp a": Tweak("1", "name")}', "'omp a' = '1' cannot be an environment variable"),
        ('{1: Tweak("1", "name")}', "1 = '1' cannot be"),
        ('{"OMP_A": Tweak("1\\n2", "lines")}', "cannot be an environment variable"),
        ('{"OMP_A": Tweak("", "empty")}', "cannot be an environment variable"),
    ],
)
def test_an_answer_that_cannot_be_an_environment_names_the_plugin(
    load: Callable[..., Plugins], machine: Machine, answer: str, words: str
) -> None:
    with pytest.raises(PluginError, match=f"'plugin0': .*{words}") as caught:
        environment.compute(load(answer), Settings(), machine)

    assert caught.value.hint


# -- applying ----------------------------------------------------------------------------------------------------------


def test_what_is_not_set_is_set_and_variables_of_one_reason_share_a_note(load: Callable[..., Plugins], machine: Machine) -> None:
    environ = {"EMPTY": "x", "OMP_B": ""}
    answer = '{"OMP_A": Tweak("8", "8 cores by affinity"), "OMP_C": Tweak("0", "other"), "OMP_B": Tweak("8", "8 cores by affinity")}'

    notes = environment.apply(load(answer), Settings(), machine, environ)

    assert notes == ["OMP_A=8 OMP_B=8: 8 cores by affinity", "OMP_C=0: other"]
    assert environ == {"EMPTY": "x", "OMP_A": "8", "OMP_B": "8", "OMP_C": "0"}


def test_what_the_user_set_is_kept_and_said(load: Callable[..., Plugins], machine: Machine) -> None:
    environ = {"OMP_NUM_THREADS": "48"}

    notes = environment.apply(load('{"OMP_NUM_THREADS": Tweak("2", "2 cores by affinity")}'), Settings(), machine, environ)

    assert notes == ["OMP_NUM_THREADS=48 is already set and kept; ftcli would set 2 (2 cores by affinity)"]
    assert environ == {"OMP_NUM_THREADS": "48"}


def test_what_the_user_set_to_the_same_needs_no_word(load: Callable[..., Plugins], machine: Machine) -> None:
    assert environment.apply(load('{"OMP_A": Tweak("2", "x")}'), Settings(), machine, {"OMP_A": "2"}) == []


def test_nothing_is_set_and_no_plugin_asked_when_the_setting_is_off(load: Callable[..., Plugins], machine: Machine) -> None:
    environ: dict[str, str] = {}

    assert environment.apply(load("1 / 0"), update(Settings(), {"runtime.manage_environment": False}), machine, environ) == []
    assert environ == {}


def test_thread_variables_that_come_too_late_are_said(
    load: Callable[..., Plugins], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_PLACES"):
        monkeypatch.setenv(name, "x")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setitem(sys.modules, "numpy", sys)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    plugins = load('{"OMP_NUM_THREADS": Tweak("2", "x"), "OMP_PLACES": Tweak("cores", "y")}')

    notes = environment.apply(plugins, Settings(), machine)

    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert notes[-1].startswith("OMP_NUM_THREADS: too late for numpy, imported before")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delenv("OMP_PLACES")
    monkeypatch.delitem(sys.modules, "numpy")
    assert len(environment.apply(plugins, Settings(), machine)) == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delenv("OMP_PLACES")


# -- the built-in plugin -----------------------------------------------------------------------------------------------


def test_threads_are_the_cores_that_are_there(machine: Machine) -> None:
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
        assert built_in(machine)[name] == Tweak("8", "8 cores by affinity")


def test_threads_are_what_the_settings_say(machine: Machine) -> None:
    settings = update(Settings(), {"runtime.threads": 3})

    assert built_in(machine, settings)["OMP_NUM_THREADS"] == Tweak("3", "3 by runtime.threads")


@pytest.mark.parametrize(("ranks", "threads"), [("4", "2"), ("3", "2"), ("16", "1"), ("1", "8"), ("many", "8")])
def test_ranks_on_one_machine_share_the_cores(machine: Machine, monkeypatch: pytest.MonkeyPatch, ranks: str, threads: str) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)

    assert built_in(machine)["OMP_NUM_THREADS"].value == threads


def test_malloc_is_told_to_keep_memory_only_for_glibc_without_a_gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"}
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.36")
    assert names <= built_in(machine).keys()
    assert not names & built_in(replace(machine, gpus=(Gpu("H200", 1),))).keys()

    monkeypatch.setattr(os, "confstr", lambda _: None)
    assert not names & built_in(machine).keys()

    def unknown(_: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", unknown)
    assert not names & built_in(machine).keys()


def test_what_was_measured_to_harm_or_do_nothing_is_never_set(machine: Machine) -> None:
    never = {"CUDA_LAUNCH_BLOCKING", "MKL_SERVICE_FORCE_INTEL", "MKL_THREADING_LAYER", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"}

    assert not never & built_in(machine).keys()


def test_every_tweak_has_a_reason_on_one_line(machine: Machine) -> None:
    tweaks = built_in(machine)

    assert tweaks
    for tweak in tweaks.values():
        assert tweak.reason.isprintable()
        assert len(tweak.reason) > 10


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_malloc_follows_in_the_process_that_is_running_already() -> None:
    """64 MiB blocks are given back to the system when freed (so each costs page faults again), until `apply` was called."""
    code = """if True:
        import ctypes, os, resource, sys
        from ftcli import environment
        from ftcli.machine import detect
        from ftcli.pluginmanager import BUILT_INS, Plugins
        from ftcli.settings import Settings
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        if not (hasattr(libc, "mallopt") and os.confstr("CS_GNU_LIBC_VERSION")): sys.exit(77)
        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(5):
                block = libc.malloc(1 << 26)
                ctypes.memset(block, 1, 1 << 26)
                libc.free(block)
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        if sys.argv[1] == "apply":
            import dataclasses
            environment.apply(Plugins(allow=()), Settings(), dataclasses.replace(detect(), gpus=()))
        faults()
        print(faults())
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    counts = {}
    for mode in ("no", "apply"):
        done = subprocess.run(
            [sys.executable, "-c", code, mode], env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        if done.returncode == 77:
            pytest.skip("no glibc")
        assert done.returncode == 0, done.stderr
        counts[mode] = int(done.stdout)
    assert counts["apply"] * 10 < counts["no"]
