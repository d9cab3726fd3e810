"""`--executor ray`: the bytes of local on a cluster of three nodes, whoever dies; a node without the output's folder is refused by name."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from ftcli.plugins.executor_ray import Ray
from ftcli.plugins.ray_cluster import Cluster

from ftcli.errors import DataError, MissingExtraError, PublishError, SettingsError, WorkerDied
from ftcli.pluginmanager import Plugins
from ftcli.records import ShardPlan
from ftcli.settings import Settings, update
from ftcli.testing import tiny_tokenizer
from ray_tasks import append, slowly
from reliability import size
from test_executors import complain, die, double, shards
from timing import FOR_EVER, until
from tokenizing import corpus, ids, left_behind, manifest, prepare, write

CLUSTER = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'ftcli[ray]'")
ROWS = 1_200
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
"""The least store that Ray takes is 75 MB."""


# -- without a cluster -------------------------------------------------------------------------------------------------


def test_without_ray_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(MissingExtraError) as caught:
        Plugins(allow=()).registry("executor").get("ray")()

    assert "pip install 'ftcli[ray]'" in caught.value.hint


@pytest.mark.parametrize("address", ["", "node0", "ray://node0:10001", "node0:port", "node 0:6379"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="auto, local or HOST:PORT"):
        update(Settings(), {"runtime.ray_address": address})


@pytest.mark.parametrize("address", ["auto", "local", "node0:6379", "10.0.0.1:6379", "[::1]:6379"])
def test_what_is_an_address_is_taken(address: str) -> None:
    assert update(Settings(), {"runtime.ray_address": address}).runtime.ray_address == address


@CLUSTER
def test_an_address_where_nobody_listens_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

        with pytest.raises(SettingsError) as caught:
            Ray().connect(update(Settings(), {"runtime.ray_address": address}))

    assert address in caught.value.message
    assert "ray start --address" in caught.value.hint


@CLUSTER
def test_a_head_that_takes_connections_and_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.plugins.ray_cluster.ANSWER_SECONDS", 0.2, raising=False)
    monkeypatch.setattr("ftcli.plugins.ray_cluster._init", lambda _: pytest.fail("Ray would try for minutes"))
    with socket.create_server(("127.0.0.1", 0)) as dumb:
        address = f"127.0.0.1:{dumb.getsockname()[1]}"

        with pytest.raises(SettingsError, match=r"cannot connect to the Ray cluster at .*: nothing answers there"):
            Ray().connect(update(Settings(), {"runtime.ray_address": address}))


@CLUSTER
def test_sigterm_while_ray_connects_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(_: str) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))  # as ray.init does
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(FOR_EVER)

    monkeypatch.setattr("ftcli.plugins.ray_cluster._init", asked)
    monkeypatch.setenv("RAY_CLIENT_MODE", "0")  # the first import of ray sets it
    before, stdout = signal.getsignal(signal.SIGTERM), sys.stdout
    with pytest.raises(KeyboardInterrupt):
        Cluster("local")
    assert signal.getsignal(signal.SIGTERM) is before
    assert sys.stdout is stdout


@CLUSTER
def test_the_client_address_in_the_variable_of_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://node0:10001")

    with pytest.raises(SettingsError, match="ray://node0:10001"):
        Ray().connect(Settings())


# -- the cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes of one CPU: head, second, third."""
    from ray.cluster_utils import Cluster as Simulated

    folder = tempfile.mkdtemp(prefix="ftcli-ray-", dir="/tmp")  # a socket's path has 107 bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")  # a process with threads has no copies, and it is copies that are killed here
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # what a test sends lies in its module
        made = None
        try:
            made = Simulated(initialize_head=True, head_node_args={**NODE, "node_name": "head", "include_dashboard": False})
            for name in ("second", "third"):
                made.add_node(**NODE, node_name=name)
        except Exception as error:
            _end(made, folder)
            if "timed out during startup" not in str(error):  # Ray gives its processes 15 s, which a busy machine may not have
                raise
            pytest.skip(f"no ray cluster starts here: {error}")
        yield made
        _end(made, folder)


def _end(made: Any, folder: str) -> None:
    if made is not None:
        made.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and texts of some 40 shards."""
    root = tmp_path_factory.mktemp("ray")
    tiny_tokenizer(root / "tokenizer")
    write(root / "data.jsonl", corpus(ROWS), ("a", "b", "c") * (ROWS // 3))
    return root


def tokenized(folder: Path, output: Path, cluster: Any = None, **values: Any) -> dict[str, Any]:
    """Prepared by ray where there is a cluster, else by local; the manifest."""
    where = {} if cluster is None else {"runtime__executor": "ray", "runtime__ray_address": cluster.address, "dataset__num_proc": 3}
    given = {"dataset__shard_bytes": 4_000, "packing__max_length": 24, "dataset__label_column": "label", **where, **values}
    prepare(folder / "tokenizer", folder / "data.jsonl", output, **given)
    return manifest(output)


@pytest.fixture(scope="module")
def undisturbed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("local") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ftcli.commands.tokenize.filed", lambda report, *_: report)
        tokenized(folder, output)
    return output


def executor(cluster: Any, workers: int = 2) -> Ray:
    made = Ray()
    made.connect(update(Settings(), {"runtime.ray_address": cluster.address}))
    made.start(workers)
    return made


def family(words: str) -> list[psutil.Process]:
    """Processes of this cluster whose command line has these words. A loader and its copies are below nobody: their environment tells."""
    found = []
    below = {process.pid for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        try:
            ours = process.pid in below or process.environ().get("RAY_TMPDIR") == os.environ["RAY_TMPDIR"]
            if ours and words in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def same(output: Path, undisturbed: Path) -> None:
    assert manifest(output)["content_hash"] == manifest(undisturbed)["content_hash"]
    files = [entry["path"] for entry in manifest(undisturbed)["files"]]
    assert len(files) > 20
    assert [(output / name).read_bytes() for name in files] == [(undisturbed / name).read_bytes() for name in files]
    assert left_behind(output) == []


@CLUSTER
@pytest.mark.slow
def test_results_errors_and_progress_are_those_of_local(cluster: Any, tmp_path: Path) -> None:
    seen: list[tuple[int, int, int, str]] = []

    with closing(executor(cluster)) as made:
        assert sorted(made.run(double, shards(5), lambda *told: seen.append(told))) == [0, 2, 4, 6, 8]
        assert [sum(column) for column in list(zip(*seen, strict=True))[:3]] == [500, 75, 7500]
        assert until(lambda: len(made.each(os.getpid)) == 2)  # who comes late is not waited for
        with pytest.raises(DataError) as caught:
            list(made.run(partial(complain, marks=tmp_path), shards(3), lambda *_: None))

    assert caught.value.message.startswith("part-1.jsonl:7: not JSON")
    assert until(lambda: not family("ftcli.core.processes.child"))


@CLUSTER
@pytest.mark.slow
@pytest.mark.fault
def test_an_engine_that_aborts_is_rescued_and_a_shard_that_is_killed_again_and_again_is_given_up(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ftcli.plugins.executor_ray.KILLS", 2)
    asked: list[str] = []

    def rescue(error: WorkerDied, shard: ShardPlan) -> Callable[[ShardPlan], Any]:
        asked.append(error.message)
        return double

    with closing(executor(cluster)) as made:
        assert sorted(made.run(partial(die, how="abort", marks=tmp_path), shards(3), lambda *_: None, rescue)) == [0, 1, 4]
    with closing(executor(cluster)) as made, pytest.raises(WorkerDied, match=r"part-2\.jsonl; its workers were killed 2 times"):
        list(made.run(partial(die, how="kill", marks=tmp_path), shards(3), lambda *_: None, rescue))

    assert len(asked) == 1
    assert "by SIGABRT in shard 2, after 10 of its rows, in part-2.jsonl" in asked[0]


# -- the same bytes ----------------------------------------------------------------------------------------------------


class Slow(Ray):
    def run(self, function: Callable[..., Any], *rest: Any, **named: Any) -> Iterator[Any]:
        return super().run(partial(slowly, function), *rest, **named)


class Killer(threading.Thread):
    """Does one thing after the other, each when so many more shards are finished."""

    def __init__(self, output: Path, deeds: list[Callable[[], Any]], apart: int = 4) -> None:
        super().__init__(daemon=True)
        self.output, self.deeds, self.apart = output, deeds, apart
        self.done = 0

    def run(self) -> None:
        for number, deed in enumerate(self.deeds, 1):
            while sum(1 for _ in self.output.parent.glob(f".{self.output.name}.*.attempt/records/*.json")) < number * self.apart:
                time.sleep(0.01)
            deed()
            self.done += 1


def kill_one(words: str, number: int) -> None:
    victims: list[psutil.Process] = until(lambda: family(words))
    victims[number % len(victims)].kill()


@CLUSTER
@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.reliability(30, "workers and a node die while a cluster tokenizes")
def test_workers_and_a_node_die_and_the_bytes_are_those_of_local(
    cluster: Any,
    folder: Path,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tally: Callable[..., None],
) -> None:
    monkeypatch.setattr("ftcli.commands.tokenize.filed", lambda report, *_: report)
    monkeypatch.setattr("ftcli.plugins.executor_ray.Ray", Slow)
    output = tmp_path / "out"
    rounds = size(1, 4)
    deeds: list[Callable[[], Any]] = []
    for number in range(rounds):
        deeds += [partial(kill_one, "ftcli.core.processes.child", number), partial(kill_one, "ray::Worker", number)]
    node = cluster.add_node(**NODE, node_name="leaving")
    deeds.append(lambda: cluster.remove_node(node, allow_graceful=False))
    killer = Killer(output, deeds, apart=3)
    killer.start()

    tokenized(folder, output, cluster, dataset__num_proc=4)

    assert capsys.readouterr().out == ""  # which is for the report
    assert killer.done == len(deeds)
    same(output, undisturbed)
    lost, doubled = (
        Counter(map(tuple, ids(undisturbed))) - Counter(map(tuple, ids(output))),
        Counter(map(tuple, ids(output))) - Counter(map(tuple, ids(undisturbed))),
    )
    assert not lost
    assert not doubled
    tally(kills=2 * rounds, nodes_lost=1, rows_lost=lost.total(), rows_doubled=doubled.total())


@CLUSTER
@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.reliability(30, "tasks that append as they go", control=True)
def test_tasks_that_append_as_they_go_double_rows_or_lose_them(cluster: Any, tmp_path: Path, tally: Callable[..., None]) -> None:
    import ray

    driver = Cluster(cluster.address)
    try:
        rows = {}
        for retries in (0, 3):
            file = tmp_path / f"{retries}.txt"
            task = ray.remote(append).options(max_retries=retries, name=f"append-{retries}").remote(str(file), 0)
            until(lambda file=file: file.exists() and file.read_text().count("\n") > 5)
            kill_one(f"ray::append-{retries}", 0)
            try:
                ray.get(task)
            except ray.exceptions.RayError:
                assert not retries
            rows[retries] = Counter(file.read_text().split())
    finally:
        driver.close()

    lost, doubled = 20 - len(rows[0]), rows[3].total() - len(rows[3])
    assert lost > 0
    assert doubled > 0
    tally(f"tasks that append, 1 kill each: {lost} of 20 rows lost without retries, {doubled} of 20 doubled with them")


@pytest.fixture(scope="module")
def blind(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that the node "blind" does not see: it has another file system there, as a machine has that mounts something else. It stays
    in the cluster; the tests behind this line know it."""
    if shutil.which("unshare") is None or os.geteuid():
        pytest.skip("another view of the file system needs root and unshare")
    output = tmp_path_factory.mktemp("private")
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--address", cluster.address, "--node-name", "blind", "--block"]
    start += ["--num-cpus", "1", "--object-store-memory", str(NODE["object_store_memory"]), "--disable-usage-stats"]
    words = f'mount -t tmpfs none "{output}" && exec "$@"'
    process = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", words, "sh", *start], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        until(
            lambda: (
                process.poll() is not None
                or any(node["NodeName"] == "blind" and node["Alive"] for node in cluster.global_state.node_table())
            ),
            0.5,
        )
        if process.poll() is not None:
            pytest.skip(f"no node in a namespace of its own here: {process.stderr.read()[-300:] if process.stderr else ''}")
        yield output
    finally:
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.wait()
        for child in below:
            with suppress(psutil.Error):
                child.kill()


@CLUSTER
@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.reliability(31, "a node has another file system where the output is")
def test_a_node_without_the_output_folder_is_refused_by_name(
    blind: Path, cluster: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, tally: Callable[..., None]
) -> None:
    monkeypatch.setattr("ftcli.plugins.ray_pool.SEE_SECONDS", 0.5)

    with pytest.raises(PublishError) as caught:
        tokenized(folder, blind / "out", cluster, dataset__num_proc=4)

    assert caught.value.message.startswith("the node blind (host ")
    assert "every node sees at the same path" in caught.value.hint
    assert list(blind.iterdir()) == []
    tally(nodes_refused=1)


@CLUSTER
@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.reliability(31, "a task that writes where it runs", control=True)
def test_a_task_that_writes_where_it_runs_leaves_its_rows_there(blind: Path, cluster: Any, tally: Callable[..., None]) -> None:
    import ray

    driver = Cluster(cluster.address)
    try:
        place = next(node["NodeID"] for node in ray.nodes() if node["NodeName"] == "blind" and node["Alive"])
        there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(place, soft=False)
        written = ray.get(ray.remote(append).options(scheduling_strategy=there).remote(str(blind / "rows.txt"), 0))
    finally:
        driver.close()

    assert written == 20
    assert not (blind / "rows.txt").exists()
    tally(f"a task reports {written} rows written, and none of them is there")
