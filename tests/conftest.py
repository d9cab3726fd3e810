"""Every test runs in an empty home, without our variables, and leaves the environment as it found it."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pytest_cov.engine import CovController

    from verifying import World

pytest_plugins = ["nursery", "reliability", "s3_server"]

REAL_DATA = Path(os.environ.get("FTCLI_REAL_DATA") or Path(__file__).resolve().parent.parent.parent / "shared" / "data")
"""Read here, because the isolation below hides FTCLI_* variables."""

SECTIONS = ("DATASET", "TOKENIZER", "PACKING", "LOADER", "MODEL", "TRAIN", "LAUNCH", "RUNTIME", "BENCHMARK", "TRACKING", "FTCLI")
HIDDEN = tuple(f"{section}_" for section in SECTIONS)
SLOW = ("slow", "real", "fault")
"""Tests without coverage."""
HEAVY = ("torch", "transformers", "transformers.trainer", "transformers.models.qwen3.modeling_qwen3", "datasets", "matplotlib.figure")
"""What is imported before anything is measured: measuring doubles the time that it takes (14 and 7.6 s of CPU)."""
LIBRARIES = (
    "PYTEST_",  # names the phase of the running test
    "TORCHINDUCTOR_",  # torch, when it is imported
    "RAYON_NUM_THREADS",
    "FASTOKENS_BPE_THREADS",  # ftcli.core.engines.guard, before the first engine of a process
)
"""Beginnings of variables that libraries set on import or use; everything else that changes is a test's fault."""

# A suite started in the background of a script inherits SIGINT ignored, and so would every process that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["HF_HUB_OFFLINE"] = "1"  # read once, when huggingface_hub is imported: no test reaches the network

settings.register_profile(
    "ftcli",
    deadline=None,  # how long an example takes is the machine's business
    derandomize=os.environ.get("FTCLI_FAULTS")
    != "full",  # a change fails for what it changes; the full form tries other examples every time
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("ftcli")  # before the modules with tests are imported, whose own settings add to it


LONGEST = [
    "executor_ray",
    "docs",
    "engine_variants",
    "engine_real",
    "checks_model",
    "tokenize",
    "incident2",
    "tokenize_faults",
    "benchmarks",
    "bad_input",
    "train",
    "launch_ranks",
    "publish_faults",
    "hostile_input",
    "train_faults",
    "ranks",
    "engine_crash",
    "benchmark",
    "tokenize_real",
    "verify",
    "power_loss",
    "publish_model",
    "hooks",
    "two_hosts",
    "resume",
    "checks_data_texts",
    "secrets",
    "sources_pickle",
    "checks_batch",
    "checks_tokenizer",
    "report",
    "publish_races",
    "train_tokenizer",
    "cache",
    "receipt",
    "rank_law",
    "without_torch",
    "compiled",
    "mirror",
    "engines",
    "executors",
    "publish_lease",
    "commands_plugins",
]
"""Files that take longest, by CPU time or by waiting: begun first, so that no worker has one left when the others have ended."""


FOLDERS = count()
FROZEN = [0]
"""How many modules there were when what they hold was taken out of the garbage collector's sight."""
COSTLY = {"world", "bench"}
"""Fixtures of tests that run whole models: measuring takes half of their time again, most of it in the libraries' code."""
UNMEASURED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
    seen: set[tuple[Path, str]] = set()
    for item in items:
        assert isinstance(item, pytest.Function)
        name = (item.path, item.originalname)
        costly = hasattr(item.module, "torch") or not COSTLY.isdisjoint(item.fixturenames)
        item.stash[UNMEASURED] = any(map(item.get_closest_marker, SLOW)) or (costly and name in seen)
        seen.add(name)


def measured(config: pytest.Config) -> CovController | None:
    """What measures coverage in this process."""
    return getattr(config.pluginmanager.getplugin("_cov"), "cov_controller", None)


def import_ours() -> None:
    """Import all of ftcli."""
    for package in ("ftcli.core", "ftcli.commands", "ftcli.cli", "ftcli.plugins"):
        for found in walk_packages(import_module(package).__path__, f"{package}."):
            with suppress(ImportError):
                import_module(found.name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    gc.disable()  # until `pytest_collection_finish`: what collecting imports and makes stays, and looking at it was 3 of a worker's 17 s of CPU
    measuring = measured(session.config)
    if measuring is None or (session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput")):
        return
    measuring.pause()
    for name in HEAVY:
        with suppress(ImportError):
            import_module(name)
    measuring.resume()
    import_ours()  # not in the middle of a test that is not measured


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """No coverage of slow tests, and of costly ones in their first case alone; pytest-cov's own marker `no_cover` would leave their fixtures
    measured."""
    measuring = measured(item.config)
    if measuring is None or not item.stash[UNMEASURED]:
        return (yield)
    measuring.pause()
    try:
        return (yield)
    finally:
        measuring.resume()


def freeze() -> None:
    """A full garbage collection walks all of torch and transformers, which the tests' modules have imported: half the CPU time of a test
    that runs `verify` (2.2 and 1.0 s). What tests import later counts as well."""
    if "transformers" in sys.modules and len(sys.modules) > FROZEN[-1] + 100:
        gc.collect()
        gc.freeze()
        FROZEN.append(len(sys.modules))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    FROZEN.append(len(sys.modules))


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is not None:
        freeze()


@pytest.fixture(scope="session")
def _fonts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """matplotlib's list of fonts, which takes it a second and a line on stderr to make: once for all tests and their processes."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-gw") else base) / "matplotlib"


def folder_of(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of one test. `factory.mktemp` looks through all folders for the next number: 3 ms of CPU where 3,000 tests ran before."""
    folder = factory.getbasetemp() / "t" / f"{name}-{next(FOLDERS)}"
    folder.mkdir(0o700, parents=True)
    return folder


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In place of pytest's own."""
    return folder_of(tmp_path_factory, re.sub(r"\W", "_", request.node.name)[:20])


@pytest.fixture(autouse=True)
def _isolated(_fonts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty home, no settings from outside, 100 columns, and a guard against tests that change os.environ."""
    home = folder_of(tmp_path_factory, "home")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(HIDDEN):
                patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("MPLCONFIGDIR", str(_fonts))
        for variable, folder in {"CONFIG": ".config", "CACHE": ".cache", "DATA": ".local/share", "STATE": ".local/state"}.items():
            patch.setenv(f"XDG_{variable}_HOME", str(home / folder))
        for name in ("NO_COLOR", "FORCE_COLOR", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            patch.delenv(name, raising=False)
        patch.setenv("COLUMNS", "100")
        patch.setenv("TERM", "xterm")
        before = dict(os.environ)
        yield
        after = dict(os.environ)
    changed = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name) and not name.startswith(LIBRARIES)
    )
    assert not changed, f"the test changed os.environ: {', '.join(changed)}"


def undrawn(_draw: object, width: int, height: int, _margins: object) -> str:
    """An empty plot in place of a drawn one."""
    return f'<svg viewBox="0 0 {width} {height}"></svg>'


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Pages have their plots, with captions and legends, but matplotlib draws nothing: that was 62 % of the CPU time of a test that trains. Engines
    are proved on a hundredth of the corpus, the lean step once for every kind of run. Except in tests that are about those.

    No fixture does it: one of a wider scope is made before any of a test's, with what the test before had, and a worker that takes tests from
    another one has any test before.
    """
    names = getattr(item, "fixturenames", ())
    if plots := sys.modules.get("ftcli.core.reports.plots"):  # not yet imported: the first page is drawn
        drawing = vars(plots).setdefault("_drawing", plots._document)
        vars(plots)["_document"] = drawing if "drawn" in names else undrawn
    if "ftcli.core.engines.proof" in sys.modules:
        import short_proof

        short_proof.decide(whole="whole_proof" in names)
    if "ftcli.core.training.train" in sys.modules:
        import short_lean

        short_lean.decide(whole=hasattr(item.module, "lean"))  # type: ignore[attr-defined]


@pytest.fixture
def whole_proof() -> None:
    """Engines are proved on the whole corpus."""


@pytest.fixture
def drawn() -> None:
    """Plots are drawn, for tests that are about them."""


@pytest.fixture
def hangup() -> Iterator[None]:
    """SIGHUP ends what is started here, also where the tests run under nohup, whose ignoring is inherited."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes on one thread, so that sums come out alike, and leaves its random state as it was."""
    import torch  # 1.3 s, and most tests do without

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; the test is skipped where there is none."""
    if not REAL_DATA.is_dir():
        pytest.skip("needs the real data: set FTCLI_REAL_DATA to its folder")
    return REAL_DATA


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Tokenizers, prepared data and configurations that tests of `verify` share; its table of planted faults is printed at the end (-s)."""
    from verifying import World

    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.print_table()
