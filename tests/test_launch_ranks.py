"""`ftcli train --nproc-per-node 2` for real: two processes train like one, stop together, and are ended when one of them stalls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ftcli.commands.train import run
from ftcli.core.training.checkpoints import damage
from ftcli.core.training.run_lock import FOLDER, Claim
from reliability import size
from runs import VOCABULARY, Bench, weights
from stores import learnable, told
from timing import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.usefixtures("nursery")]
HERE = Path(__file__).parent
ALONE = {
    "train__num_train_epochs": 1,
    "train__optim": "sgd",  # AdamW makes steps of full size of gradients that are nothing but rounding
    "train__learning_rate": 0.1,
    "train__logging_steps": 1,
    "train__train_sampling_strategy": "sequential",
    "train__per_device_train_batch_size": 12,
    "train__bf16": False,
}
SENDER = '''
"""Rank 0 sends rank 1, or its launcher, a signal after the third step: a step needs both, so that rank 1 is in its fourth at most."""
import os
import signal
import time
from pathlib import Path

from ftcli import hookimpl
from ftcli.core.distributed import pulse


@hookimpl
def on_step(step):
    if step.step == 3:
        while (beat := pulse.read(Path(os.environ["FTCLI_LAUNCH"]) / "beat-1.json", pulse.Beat)) is None:
            time.sleep(0.05)
        os.kill(os.getppid() if "TO_LAUNCHER" in os.environ else beat.pid, getattr(signal, os.environ["SENT"]))
'''


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench.make(tmp_path_factory.mktemp("bench"))
    (made.folder / "plugins").mkdir()
    (made.folder / "plugins" / "sender.py").write_text(SENDER)
    return made


@pytest.fixture(scope="module")
def told_store(bench: Bench) -> Path:
    """As `store`, with any number of labels a row."""
    return bench.store("told", {"train": told(37, 3, VOCABULARY, 0), "test": told(13, 3, VOCABULARY, 1)}, labels=3)


@pytest.fixture(scope="module")
def store(bench: Bench) -> Path:
    """37 rows: three steps of 12, and one of a single row, for which one of two ranks has none."""
    held_out = {"validation": learnable(13, 3, VOCABULARY, 1), "test": learnable(9, 3, VOCABULARY, 2)}
    return bench.store("data", {"train": learnable(37, 3, VOCABULARY, 0), **held_out}, labels=3)


def launched(bench: Bench, store: Path, output: str, *options: str, ranks: int = 2, **environment: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the one document of stdout, and stderr of two ranks."""
    bench.context(store, output)  # writes the configuration
    words = ["--dataset", store, "--tokenizer-path", bench.tokenizer, "--model-config", bench.folder / "qwen3.json", "--output-dir", output]
    steps = [
        "--num-train-epochs",
        "1",
        "--optim",
        "sgd",
        "--learning-rate",
        "0.1",
        "--logging-steps",
        "1",
        "--no-verify",
        "--no-bf16",
        "--use-cpu",
    ]
    command = [sys.executable, "-m", "ftcli", "train", *words, *steps, "--nproc-per-node", str(ranks), "--json", *options]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    ended = subprocess.run(list(map(str, command)), cwd=bench.folder, capture_output=True, text=True, env=environ, timeout=2 * PATIENCE)
    lines = ended.stdout.splitlines()
    assert len(lines) == 1, (ended.stdout, ended.stderr[-3000:])
    return ended.returncode, json.loads(lines[0]), ended.stderr


def test_two_processes_train_and_evaluate_like_one_and_end_with_one_document(bench: Bench, store: Path) -> None:
    alone = run(bench.context(store, "alone", **ALONE))
    split = ["--per-device-train-batch-size", "3", "--gradient-accumulation-steps", "2", "--per-device-eval-batch-size", "1"]
    code, document, log = launched(bench, store, "two", *split, "--train-sampling-strategy", "sequential")
    assert code == 0, log
    assert (document["status"], document["metrics"]["steps"]) == ("ok", 4)
    assert "train.ddp_find_unused_parameters = false: one pass gives every weight a gradient" in document["notes"]
    assert [entry["loss"] for entry in document["details"]["log"] if "loss" in entry] == pytest.approx(
        [entry["loss"] for entry in alone.details["log"] if "loss" in entry], rel=1e-5
    )
    assert document["metrics"]["first_loss"] == pytest.approx(alone.metrics["first_loss"], rel=1e-5)
    for name in ("eval_loss", "test_loss"):
        assert document["metrics"][name] == pytest.approx(alone.metrics[name], rel=1e-5)
    assert torch.allclose(weights(bench.folder / "two"), weights(bench.folder / "alone"), atol=1e-6)
    assert any("OMP_NUM_THREADS=1 is already set and kept" in note for note in document["notes"]) or document["machine"]["cores"] // 2 <= 1
    assert "[rank 0] mode classify: " in log, "one log, with the number of the rank before every line"


def test_all_ranks_are_refused_where_another_run_is_at_work(bench: Bench, store: Path) -> None:
    (bench.folder / "raw.jsonl").write_text('{"text": "a text", "label": "a"}\n' * 8)
    with Claim(bench.folder / "taken", pytest.fail) as other:
        other.take()
        for source in (store, bench.folder / "raw.jsonl"):
            code, document, log = launched(bench, source, "taken")
            assert code == 1, log
            assert document["error"]["message"].startswith(f"taken is in use by another training run, pid {os.getpid()} on ")
        assert [path.name for path in (bench.folder / "taken").iterdir()] == [FOLDER]


def test_two_processes_learn_any_number_of_labels_like_one(bench: Bench, told_store: Path) -> None:
    """The last step has one row, so that a rank has none, and the evaluation's 13 rows are not the same number on both."""
    alone = run(bench.context(told_store, "told alone", **ALONE))
    split = ["--per-device-train-batch-size", "3", "--gradient-accumulation-steps", "2", "--per-device-eval-batch-size", "1"]
    code, document, log = launched(bench, told_store, "told two", *split, "--train-sampling-strategy", "sequential")
    assert code == 0, log
    assert [entry["loss"] for entry in document["details"]["log"] if "loss" in entry] == pytest.approx(
        [entry["loss"] for entry in alone.details["log"] if "loss" in entry], rel=1e-5
    )
    for name in ("eval_loss", "eval_micro_f1", "eval_macro_f1", "eval_exact_match"):
        assert document["metrics"][name] == pytest.approx(alone.metrics[name], rel=1e-5), name
    assert torch.allclose(weights(bench.folder / "told two"), weights(bench.folder / "told alone"), atol=1e-6)


@pytest.mark.parametrize(("ranks", "options", "pieces"), [(4, [], "on"), (2, ["--ddp-find-unused-parameters"], "off")])
def test_processes_continue_texts_like_one(bench: Bench, ranks: int, options: list[str], pieces: str) -> None:
    """Packed by nothing, of every length, some of one token that has no target; in the last step only one rank of four has a row.

    A search for unused weights cannot see that the loss in pieces uses the output layer.
    """
    texts = [([10 + (number * 7 + place) % 300 for place in range(1 + number % 17)], None) for number in range(37)]
    store = bench.store(f"texts {ranks} store", {"train": texts, "test": texts[:3]})
    alone = run(bench.context(store, f"texts alone {ranks}", **ALONE))
    split = [
        "--per-device-train-batch-size",
        "3",
        "--gradient-accumulation-steps",
        str(4 // ranks),
        "--train-sampling-strategy",
        "sequential",
    ]
    code, document, log = launched(bench, store, f"texts {ranks}", *split, *options, ranks=ranks)
    assert code == 0, log
    assert f"cross-entropy in pieces {pieces}" in "".join(document["notes"])
    assert [entry["loss"] for entry in document["details"]["log"] if "loss" in entry] == pytest.approx(
        [entry["loss"] for entry in alone.details["log"] if "loss" in entry], rel=1e-5
    )
    assert document["metrics"]["eval_loss"] == pytest.approx(alone.metrics["eval_loss"], rel=1e-5)
    assert torch.allclose(weights(bench.folder / f"texts {ranks}"), weights(bench.folder / f"texts alone {ranks}"), atol=1e-6)


@pytest.mark.reliability(17, "a signal to one rank of two")
def test_a_signal_to_one_rank_stops_all_at_one_step_with_one_complete_checkpoint(bench: Bench, store: Path) -> None:
    sender = ["--plugins-dir", str(bench.folder / "plugins"), "--per-device-train-batch-size", "2", "--save-strategy", "no"]
    code, document, log = launched(bench, store, "stopped", *sender, SENT="SIGTERM")
    assert code == 3, log
    assert (document["status"], document["error"]["code"]) == ("interrupted", "interrupted")
    assert "[rank 0] interrupted: stopped by a signal to another process" in log
    saved = list((bench.folder / "stopped").glob("checkpoint-*"))
    assert [path.name for path in saved] == [f"checkpoint-{document['metrics']['steps']}"]
    assert document["metrics"]["steps"] in {3, 4}
    assert damage(saved[0]) == ""
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in saved[0].iterdir()}


@pytest.mark.reliability(17, "the launcher of two ranks is killed")
@pytest.mark.parametrize("attempt", range(size(1, 10)))
def test_ranks_whose_launcher_is_killed_end_with_one_complete_checkpoint(bench: Bench, store: Path, attempt: int) -> None:
    """Each of them notices it by itself, most often after another one has told it that the run ends."""
    output, temporary = f"orphans {attempt}", bench.folder / f"tmp {attempt}"
    temporary.mkdir()
    sender = ["--plugins-dir", str(bench.folder / "plugins"), "--per-device-train-batch-size", "2", "--save-strategy", "no"]
    code, document, _ = launched(
        bench, store, output, *sender, "--num-train-epochs", "500", SENT="SIGKILL", TO_LAUNCHER="1", TMPDIR=str(temporary)
    )
    assert (code, document["status"]) == (-signal.SIGKILL, "interrupted"), document["error"]
    assert (
        document["error"]["message"]
        == f"stopped by the end of its launcher after step {document['metrics']['steps']}; the checkpoint is complete"
    )
    assert not list(temporary.glob("ftcli-ranks-*"))
    saved = list((bench.folder / output).glob("checkpoint-*"))
    assert [path.name for path in saved] == [f"checkpoint-{document['metrics']['steps']}"]
    assert damage(saved[0]) == ""
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in saved[0].iterdir()}


@pytest.mark.reliability(18, "a rank is stopped")
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs job control")
def test_a_stopped_rank_ends_the_job_with_the_stacks_of_all(bench: Bench, store: Path) -> None:
    sender = ["--plugins-dir", str(bench.folder / "plugins"), "--per-device-train-batch-size", "2", "--rank-timeout", "20"]
    code, document, log = launched(bench, store, "stalled", *sender, SENT="SIGSTOP")
    assert code == 4, log
    assert (document["status"], document["error"]["code"]) == ("failed", "rank")
    assert "rank 1 (pid " in document["error"]["message"]
    for rank in (0, 1):
        assert "most recent call first" in (bench.folder / "stalled" / "stacks" / f"stack-{rank}.txt").read_text()


STALLED = """
import os, signal, sys
from datetime import timedelta
from torch import distributed

rank = int(sys.argv[1])
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
if rank:
    os.kill(os.getpid(), signal.SIGSTOP)
print("waits", flush=True)
distributed.barrier()
"""


@pytest.mark.reliability(18, "ranks without a watch", control=True)
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs job control")
def test_ranks_without_a_watch_wait_for_one_that_is_stopped(tmp_path: Path, tally: Callable[..., None]) -> None:
    program = [sys.executable, "-m", "the_code", STALLED]
    ranks = [
        subprocess.Popen([*program, str(rank), str(tmp_path / "meeting")], cwd=HERE, stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    try:
        assert os.waitpid(ranks[1].pid, os.WUNTRACED)[1] & 0xFF == 0x7F  # it is stopped
        assert ranks[0].stdout is not None
        assert ranks[0].stdout.readline() == "waits\n"
        with pytest.raises(subprocess.TimeoutExpired):  # gloo's own patience is half an hour
            ranks[0].wait(3)
    finally:
        for each in ranks:
            each.kill()
            each.communicate()
    tally("ranks of plain torch.distributed wait silently")
