"""Two machines, played by two network namespaces: one run over both, and what becomes of it when the cable is cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ftcli.commands.train import run
from runs import VOCABULARY, Bench, weights
from stores import learnable
from timing import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.usefixtures("nursery")]
STEPS = {
    "train__num_train_epochs": 1,
    "train__optim": "sgd",
    "train__learning_rate": 0.1,
    "train__logging_steps": 1,
    "train__verify": False,
    "train__bf16": False,
    "train__train_sampling_strategy": "sequential",
    "train__per_device_train_batch_size": 8,
}
CUTTER = """
import os
import subprocess

from ftcli import hookimpl


@hookimpl
def on_step(step):
    if step.step == 2 and "CUT" in os.environ:
        subprocess.run(["ip", "link", "set", os.environ["CUT"], "down"], check=True)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces with the addresses 10.77.0.1 and 10.77.0.2; their loopback interfaces are up, as on any machine."""
    if shutil.which("ip") is None or os.geteuid():
        pytest.skip("network namespaces need root and ip")
    names = [f"ftcli-{os.getpid()}-{number}" for number in (1, 2)]
    made = []

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("-n", names[0], "link", "add", "cable0", "type", "veth", "peer", "name", "cable0", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "cable0")
            for device in ("lo", "cable0"):
                ip("-n", name, "link", "set", device, "up")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr}")
    else:
        yield names[0], names[1]
    finally:
        for name in made:
            ip("netns", "delete", name)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("bench"))
    made.store("data", {"train": learnable(37, 3, VOCABULARY, 0), "test": learnable(13, 3, VOCABULARY, 1)}, labels=3)
    (made.folder / "plugins").mkdir()
    (made.folder / "plugins" / "cutter.py").write_text(CUTTER)
    return made


def both(bench: Bench, hosts: tuple[str, str], output: str, *options: str, **environment: str) -> list[tuple[int, dict[str, Any], str]]:
    """Exit code, document and stderr of the same command on each host; the first one has rank 0."""
    bench.context(bench.folder / "data", output)  # writes the configuration
    command = [sys.executable, "-m", "ftcli", "train", "--dataset", "data", "--tokenizer-path", str(bench.tokenizer), "--model-config"]
    command += ["qwen3.json", "--output-dir", output, "--num-train-epochs", "1", "--optim", "sgd", "--learning-rate", "0.1", "--no-bf16"]
    command += ["--logging-steps", "1", "--no-verify", "--use-cpu", "--per-device-train-batch-size", "4", "--json"]
    command += ["--train-sampling-strategy", "sequential", "--nproc-per-node", "1", "--nnodes", "2", "--rdzv-endpoint", "10.77.0.1:29500"]
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", host, *command, "--node-rank", str(number), *options],
            cwd=bench.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        for number, host in enumerate(hosts)
    ]
    ends = []
    for process in started:
        out, log = process.communicate(timeout=2 * PATIENCE)
        ends.append((process.returncode, json.loads(out) if out.strip() else {}, log))
    return ends


def test_two_machines_train_like_one_whatever_their_names_mean(bench: Bench, hosts: tuple[str, str]) -> None:
    """The name of both machines is that of this one, whose address no other machine can reach."""
    alone = run(bench.context(bench.folder / "data", "alone", **STEPS))
    (code, document, log), (other, _, said) = both(bench, hosts, "both")
    assert (code, other) == (0, 0), (log, said)
    assert "2 machines: static rendezvous at 10.77.0.1:29500, over cable0" in log
    assert document["metrics"]["first_loss"] == pytest.approx(alone.metrics["first_loss"], rel=1e-5)
    assert document["metrics"]["eval_loss"] == pytest.approx(alone.metrics["eval_loss"], rel=1e-5)
    assert torch.allclose(weights(bench.folder / "both"), weights(bench.folder / "alone"), atol=1e-6)


@pytest.mark.reliability(18, "the cable between two machines is cut")
def test_a_cut_cable_ends_the_run_on_both_machines(bench: Bench, hosts: tuple[str, str]) -> None:
    """Nothing tells a machine that the other one is gone: no packet comes, and TCP is patient."""
    options = ["--plugins-dir", str(bench.folder / "plugins"), "--rank-timeout", "20", "--save-strategy", "no"]
    for code, _, log in both(bench, hosts, "cut", *options, CUT="cable0"):
        assert code == 4, log
        assert "Traceback" not in log
