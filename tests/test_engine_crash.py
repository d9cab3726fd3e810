"""Engines that end their process or hang: tried apart, and in the middle of a run, they cost a fallback and not the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ftcli.context import Context
from ftcli.core.engines.engine import choose_engine
from ftcli.core.prepare.dialogue import load_template_early
from ftcli.core.prepare.engine_trials import Apart, Early
from ftcli.errors import EngineError, WorkerDied
from ftcli.pluginmanager import Plugins
from ftcli.testing import tiny_tokenizer
from timing import PATIENCE
from tokenizing import corpus, ids, manifest, plugins, prepare, write

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("nursery")]

HERE = Path(__file__).parent
FUSE = """
import os, sys, time
from ftcli import hookimpl

class Fuse:
    def __init__(self, encoder):
        self.encoder = encoder
    def encode(self, texts):
        if any("boom" in text for text in texts.to_pylist()):
            ACTION
        return self.encoder.encode(texts)

class Engine:
    name, version, rank = "fuse", "1", 1
    def load(self, backend_json, folder, threads):
        from ftcli.core.engines.reference import load_reference
        if AT_LOAD:
            os.abort()
        return Fuse(load_reference(backend_json, folder, threads))

@hookimpl
def register_engines(register):
    register("fuse", Engine)
"""
ENDS = {"abort": "os.abort()", "exit": "os._exit(3)", "hang": "time.sleep(100_000)", "panic": "raise BaseException('panicked')"}


HASTY = "from ftcli.core.engines import guard\nguard.HUNG_SECONDS = 3.0\n"
"""Makes a plugin that is loaded in a worker shorten its patience."""


def fuse(folder: Path, action: str = "os.abort()", at_load: bool = False) -> Plugins:
    return plugins(folder, FUSE.replace("ACTION", action).replace("AT_LOAD", str(at_load)), "fuse")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crash") / "tokenizer"
    tiny_tokenizer(folder)
    return folder


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("abort", "ended its process by SIGABRT; on the text 'boom'"),
        ("exit", "ended its process with exit code 3; on the text 'boom'"),
        ("panic", "failed while encoding: RuntimeError: BaseException\\('panicked'\\)"),
    ],
)
def test_an_engine_that_ends_its_process_in_the_proof_is_refused_by_name(action: str, words: str, tokenizer: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(str(tokenizer))
    loaded.add_tokens(["boom"])  # the stored corpus holds the tokenizer's own added tokens

    with closing(Apart(found := fuse(tmp_path, ENDS[action]), 1)) as apart, pytest.raises(EngineError, match=words):
        choose_engine(loaded, tokenizer, found, requested="fuse", load=apart)


def test_an_engine_that_cannot_even_be_loaded_is_passed_over(tokenizer: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    with closing(Apart(found := fuse(tmp_path, at_load=True), 1)) as apart:
        choice = choose_engine(AutoTokenizer.from_pretrained(str(tokenizer)), tokenizer, found, load=apart)

    assert choice.name != "fuse"
    assert any("fuse is not used: fuse 1 ended its process by SIGABRT" in note for note in choice.notes)


def test_an_engine_that_never_answers_is_given_up(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    found = fuse(tmp_path, ENDS["hang"])
    loaded = AutoTokenizer.from_pretrained(str(tokenizer))
    with closing(Apart(found, 1)) as apart:
        choose_engine(loaded, tokenizer, found, requested="fuse", sample=["well"], load=apart, cache_dir=tmp_path)
        monkeypatch.setattr("ftcli.core.prepare.engine_trials.PATIENCE", 2.0)
        with pytest.raises(EngineError, match="did not answer within 2 s"):
            choose_engine(loaded, tokenizer, found, requested="fuse", sample=["boom"], load=apart, cache_dir=tmp_path)


def test_an_engine_that_was_proved_and_then_crashes_in_the_workers_costs_a_fallback(tokenizer: Path, tmp_path: Path) -> None:
    """The second run knows tokenizer and proof, so that only the workers load it."""
    sources = [write(tmp_path / f"{name}.jsonl", texts) for name, texts in (("well", corpus(50)), ("ill", ["boom", *corpus(50)]))]
    found = fuse(tmp_path / "plugins")
    options = {"dataset__num_proc": 2, "dataset__shard_bytes": 1_000, "runtime__cache_dir": tmp_path / "cache"}
    prepare(tokenizer, sources[0], tmp_path / "first", found, tokenizer__engine="auto", **options)
    assert manifest(tmp_path / "first")["engine"]["engine"] == "fuse"

    report = prepare(tokenizer, sources[1], tmp_path / "out", found, tokenizer__engine="auto", **options)

    assert report.metrics["engine"] not in {"fuse", "hf"}
    (note,) = [note for note in report.notes if note.startswith("engine fuse is not used")]
    assert "fuse 1: the worker process" in note
    assert "ended by SIGABRT" in note
    prepare(tokenizer, sources[1], tmp_path / "plain", **options)
    assert ids(tmp_path / "out") == ids(tmp_path / "plain")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("action", ["abort", "exit", "hang"])
def test_an_engine_that_crashes_or_hangs_on_a_row_costs_its_shard_a_fallback(
    workers: int, action: str, tokenizer: Path, tmp_path: Path
) -> None:
    texts = corpus(2_600)
    texts[2_300] += " boom"
    source = write(tmp_path / "data.jsonl", texts)
    options = {"dataset__num_proc": workers, "dataset__shard_bytes": 40_000}

    found = plugins(tmp_path / "plugins", f"{HASTY}{FUSE.replace('ACTION', ENDS[action]).replace('AT_LOAD', 'False')}", "fuse")
    report = prepare(tokenizer, source, tmp_path / "out", found, tokenizer__engine="fuse", **options)
    prepare(tokenizer, source, tmp_path / "plain", **options)

    assert ids(tmp_path / "out") == ids(tmp_path / "plain")
    assert report.metrics["engine"] == "fuse"
    assert report.metrics["content_hash"] == manifest(tmp_path / "plain")["content_hash"]
    crashed = [note for note in report.notes if "assumed to be the cause" in note]
    assert len(crashed) == 1
    assert "data.jsonl" in crashed[0]
    assert crashed[0] in manifest(tmp_path / "out")["notes"]


def test_without_processes_of_their_own_such_an_engine_ends_the_whole_run(tokenizer: Path, tmp_path: Path) -> None:
    """The control: the same engine in the process that asked for it."""
    fuse(tmp_path / "plugins")
    code = (
        "import sys; from transformers import AutoTokenizer; from pathlib import Path\n"
        "from ftcli.core.engines import proof; from ftcli.core.engines.engine import choose_engine; from ftcli.pluginmanager import Plugins\n"
        "proof.texts = lambda *_: ['well']; proof.sweep = lambda unknown, whole=proof.sweep: whole(unknown)[::100]\n"
        f"folder = {str(tokenizer)!r}\n"
        f"choose_engine(AutoTokenizer.from_pretrained(folder), folder, Plugins(Path({str(tmp_path / 'plugins')!r}), ()), requested='fuse', sample=['boom'])\n"
    )

    done = subprocess.run([sys.executable, "-m", "the_code", code], cwd=HERE, capture_output=True, timeout=PATIENCE)

    assert done.returncode == -6, json.dumps(done.stderr.decode())


TOKENIZER_THAT_ENDS_A_WORKER = """
import os
from pathlib import Path
from ftcli import hookimpl

@hookimpl
def load_tokenizer(settings):
    seen = Path(__file__).with_suffix(".seen")
    if os.getpid() != COMMAND and not seen.exists():
        seen.touch()
        os.abort()
"""


def test_a_worker_that_ends_over_the_template_while_the_command_proves_it_is_replaced(tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "talking"
    shutil.copytree(tokenizer, folder)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{% endfor %}", encoding="utf-8")
    source = tmp_path / "talk.jsonl"
    source.write_text(json.dumps({"prompt": "one two", "completion": "three"}) + "\n", encoding="utf-8")
    found = plugins(tmp_path, TOKENIZER_THAT_ENDS_A_WORKER.replace("COMMAND", str(os.getpid())), "ends")

    prepare(folder, source, tmp_path / "out", plugins=found, **{"train.mode": "sft"})

    assert (found.plugins_dir / "ends.seen").exists()  # type: ignore[operator]
    assert manifest(tmp_path / "out")["splits"]["train"]["rows"] == 1


def test_the_workers_load_the_template_aside_and_what_fails_there_is_left_for_later(tokenizer: Path) -> None:
    asked = []

    class Workers:
        def each(self, function: partial[None]) -> list[None]:
            asked.append(function.func)
            raise WorkerDied("it ended", "")

    early = Early(Apart(Plugins(allow=()), 1), Workers(), Plugins(allow=()))  # type: ignore[arg-type]
    early.begin_template(Context.make({"tokenizer.path": str(tokenizer)}).settings)
    early.close()
    assert asked == [load_template_early]


class Placed:
    """Workers that come late, or never."""

    def __init__(self, seconds: float, comes: bool) -> None:
        self.seconds, self.comes, self.here = seconds, comes, False

    def arrived(self) -> bool:
        return self.here

    def each(self, _: Any) -> list[int]:
        time.sleep(self.seconds)
        self.here = self.comes
        if not self.comes:
            raise WorkerDied("no worker has come", "")
        return [1]

    def start(self, _: int) -> None: ...

    def close(self) -> None: ...


def test_an_engine_is_not_blamed_for_workers_that_come_late_or_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.core.prepare.engine_trials.PATIENCE", 0.05)
    found = Plugins(allow=())
    with closing(Early(Apart(found, 1), Placed(0.3, comes=True), found)) as early:  # type: ignore[arg-type]
        assert early.each("an engine", list) == [1]
    with closing(Early(Apart(found, 1), Placed(0.3, comes=False), found)) as early:  # type: ignore[arg-type]
        early.begin("an engine", None)  # type: ignore[arg-type]
        with pytest.raises(WorkerDied, match="no worker has come"):
            early.each("an engine", list)
