"""What is kept of a tokenizer gives the same data without loading it, and never stands for another one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcli.contracts import Encoded
from ftcli.core.engines import known_tokenizer
from ftcli.core.engines.backend import encodes_alone, prepare_backend
from ftcli.core.engines.reference import BackendEncoder
from ftcli.core.engines.sampled_rows import SampledRows
from ftcli.core.prepare import preloading, recipe
from ftcli.core.prepare.job import load_early
from ftcli.core.processes import warm_worker
from ftcli.records import MANIFEST_NAME
from timing import PATIENCE
from tokenizing import context, corpus, manifest, plugins, prepare, small_tokenizers, without_plots, write

kinds = small_tokenizers
no_html = without_plots
pytestmark = pytest.mark.usefixtures("no_html")

LOADER = """
from ftcli import hookimpl
@hookimpl
def load_tokenizer(settings):
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(settings.tokenizer.path)
"""


@pytest.fixture
def tokenizer(kinds: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(kinds["bpe"], tmp_path / "tokenizer"))


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("tokenizer-*.kept"))


@pytest.mark.slow
def test_the_second_command_needs_neither_torch_nor_transformers_nor_pandas_and_makes_the_same(tokenizer: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "data.jsonl", corpus(60))
    code = (
        "import sys; seen = set(); sys.addaudithook(lambda event, words: seen.add(words[0]) if event == 'import' else None); "
        "from ftcli.cli.main import main; code = main(); print(sorted({'torch', 'transformers', 'pandas'} & seen)); sys.exit(code)"
    )
    loaded = []
    for name in ("first", "second"):
        command = [sys.executable, "-c", code, "tokenize", str(source), "--tokenizer-path", str(tokenizer), "--output-dir"]
        options = ["--tokenizer-engine", "hf", "--cache-dir", str(tmp_path / "cache"), "--report-dir", str(tmp_path / "reports"), "--quiet"]
        done = subprocess.run([*command, str(tmp_path / name), *options], capture_output=True, text=True, timeout=PATIENCE, env=os.environ)
        assert done.returncode == 0, done.stderr
        loaded.append(done.stdout.splitlines()[-1])

    assert loaded[0] == "['transformers']"
    assert loaded[1] == "[]"
    first, second = (manifest(tmp_path / name) for name in ("first", "second"))
    assert first["content_hash"] == second["content_hash"]
    assert first["fingerprint"] == second["fingerprint"]
    assert first["tokenizer"] == second["tokenizer"]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize("special", [True, False])
def test_it_answers_as_the_tokenizer_does(kind: str, special: bool, kinds: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    live = AutoTokenizer.from_pretrained(str(kinds[kind]))
    backend = prepare_backend(live, kinds[kind])
    assert known_tokenizer.keep(tmp_path, "key", live, backend) == ""
    found = known_tokenizer.recall(tmp_path, "key", lambda: live)

    assert found is not None
    assert found.backend == backend
    texts = [*corpus(60), "", *live.all_special_tokens]
    assert found(texts, add_special_tokens=special)["input_ids"] == live(texts, add_special_tokens=special)["input_ids"]
    assert found(texts[0])["input_ids"] == live(texts[0])["input_ids"]
    assert len(found) == len(live)
    assert [getattr(found, name) for name in known_tokenizer.ASKED] == [getattr(live, name) for name in known_tokenizer.ASKED]
    assert found.backend_tokenizer is live.backend_tokenizer


def test_any_change_of_the_folder_loads_it_again(tokenizer: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "data.jsonl", corpus(30))
    made = context(tokenizer, source, tmp_path / "out", runtime__cache_dir=tmp_path / "cache")
    recipe.settle(made)
    assert preloading.known_tokenizer(made) is not None

    path = tokenizer / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": 77}))

    assert preloading.known_tokenizer(made) is None
    assert recipe.settle(made).policy.max_length == 77
    again = preloading.known_tokenizer(made)
    assert again is not None
    assert again.model_max_length == 77


@pytest.mark.parametrize("place", [10, 200, -5])
def test_what_is_damaged_is_not_used(place: int, tokenizer: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "data.jsonl", corpus(30))
    made = context(tokenizer, source, tmp_path / "out", runtime__cache_dir=tmp_path / "cache")
    before = recipe.settle(made)
    (path,) = kept(tmp_path / "cache")
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)

    assert preloading.known_tokenizer(made) is None
    assert recipe.settle(made, known=preloading.known_tokenizer(made)).fingerprint == before.fingerprint


def test_what_another_user_kept_is_used_though_its_time_may_not_be_set(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache that several users share, only its owner may touch a file."""
    made = context(tokenizer, write(tmp_path / "data.jsonl", corpus(30)), tmp_path / "out", runtime__cache_dir=tmp_path / "cache")
    before = recipe.settle(made)

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    known = preloading.known_tokenizer(made)
    assert known is not None
    assert known.backend == before.backend


def test_nothing_is_kept_where_the_class_takes_part_in_encoding(tokenizer: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    live = AutoTokenizer.from_pretrained(str(tokenizer))
    backend = prepare_backend(live, tokenizer)

    class Shouting(type(live)):  # type: ignore[misc]
        def _encode_plus(self, text, **options):  # type: ignore[no-untyped-def]
            return super()._encode_plus(text.upper(), **options)

    assert encodes_alone(live)
    live.__class__ = Shouting
    assert not encodes_alone(live)
    assert known_tokenizer.keep(tmp_path / "cache", "key", live, backend) == ""
    assert not kept(tmp_path / "cache")


def test_nothing_is_kept_where_a_plugin_loads_the_tokenizer(tokenizer: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "data.jsonl", corpus(30))
    prepare(tokenizer, source, tmp_path / "out", plugins(tmp_path / "plugins", LOADER), runtime__cache_dir=tmp_path / "cache")
    assert not kept(tmp_path / "cache")


def test_only_the_last_used_are_kept(tokenizer: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    live = AutoTokenizer.from_pretrained(str(tokenizer))
    backend = prepare_backend(live, tokenizer)
    for number in range(known_tokenizer.KEPT):
        known_tokenizer.keep(tmp_path, f"{number}", live, backend)
        os.utime(tmp_path / f"tokenizer-{number}.kept", (number, number))
    assert known_tokenizer.recall(tmp_path, "0", lambda: live) is not None  # used: now the newest
    known_tokenizer.keep(tmp_path, "new", live, backend)

    assert len(kept(tmp_path)) == known_tokenizer.KEPT
    assert known_tokenizer.recall(tmp_path, "0", lambda: live) is not None
    assert known_tokenizer.recall(tmp_path, "1", lambda: live) is None


def test_a_cache_that_cannot_be_written_is_noted_and_costs_no_run(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    source = write(tmp_path / "data.jsonl", corpus(30))
    report = prepare(tokenizer, source, tmp_path / "out", runtime__cache_dir=tmp_path / "cache")
    assert any("the tokenizer is loaded again by the next run" in note for note in report.notes)


def test_a_folder_that_cannot_be_read_is_left_to_the_loader(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("ftcli.core.reading.receipt.hash_file", refuse)
    made = context(tokenizer, write(tmp_path / "data.jsonl", corpus(30)), tmp_path / "out", runtime__cache_dir=tmp_path / "cache")
    assert preloading.known_tokenizer(made) is None


# -- the ids of sampled rows -------------------------------------------------------------------------------------------


class Sampling:
    """A known tokenizer, and how often its reference was loaded."""

    def __init__(self, kind: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformers import AutoTokenizer

        self.live = AutoTokenizer.from_pretrained(str(kind))
        self.backend, self.cache, self.loads = prepare_backend(self.live, kind), cache, 0
        known_tokenizer.keep(cache, "key", self.live, self.backend)

        def load(*arguments: Any) -> BackendEncoder:
            self.loads += 1
            return BackendEncoder(*arguments)

        monkeypatch.setattr(known_tokenizer, "BackendEncoder", load)

    def rows(self, texts: list[str], *, special: bool = True) -> SampledRows:
        return SampledRows(texts, known_tokenizer.recall(self.cache, "key", lambda: self.live), self.backend, special, self.cache)

    def kept(self) -> list[Path]:
        return sorted(self.cache.glob("rows-*.json"))


@pytest.fixture
def sampling(kinds: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sampling:
    return Sampling(kinds["wordpiece"], tmp_path / "cache", monkeypatch)


def test_the_reference_is_loaded_once_for_the_same_rows(sampling: Sampling) -> None:
    texts = [*corpus(60), ""]
    first, again = sampling.rows(texts), sampling.rows(texts)
    assert sampling.loads == 1
    engine = BackendEncoder(sampling.backend.json, 1)
    assert [rows.difference(engine, "engine") for rows in (first, again)] == [None, None]
    for changed in ({"texts": texts[:-1]}, {"texts": [*texts[:-2], texts[-2] + texts[-1], ""]}, {"texts": texts, "special": False}):
        before = sampling.loads
        assert sampling.rows(**changed).difference(engine, "engine") is None
        assert sampling.loads == before + (changed["texts"] != texts or "special" in changed)


class Backwards(BackendEncoder):
    def encode(self, texts: Any) -> Encoded:
        found = super().encode(texts)
        return Encoded(found.ids[::-1].copy(), found.offsets)


def test_an_engine_is_compared_with_kept_ids_as_with_new_ones(sampling: Sampling) -> None:
    engine = Backwards(sampling.backend.json, 1)
    new, old = (sampling.rows(corpus(60), special=False).difference(engine, "engine") for _ in range(2))
    assert sampling.loads == 1
    assert new is not None
    assert old == new


def test_damaged_ids_are_made_again_and_only_the_last_used_stay(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftcli.core.engines.sampled_rows.KEPT", 2)
    sampling.rows(["one"])
    (path,) = sampling.kept()
    path.write_bytes(path.read_bytes().replace(b"A", b"B", 1))
    assert sampling.rows(["one"]).difference(BackendEncoder(sampling.backend.json, 1), "engine") is None
    assert sampling.loads == 2
    os.utime(path, (1, 1))
    sampling.rows(["two"])
    sampling.rows(["one"])  # used again
    os.utime(next(other for other in sampling.kept() if other != path), (1, 1))
    sampling.rows(["three"])
    assert len(sampling.kept()) == 2
    assert path in sampling.kept()


def test_nothing_is_kept_for_a_tokenizer_whose_class_encodes(sampling: Sampling) -> None:
    SampledRows(corpus(20), sampling.live, sampling.backend, True, sampling.cache)
    assert sampling.kept() == []


@pytest.mark.parametrize(
    ("engine", "waits", "there", "begins"),
    [
        ("gigatoken", True, False, True),
        ("gigatoken", False, False, False),  # nobody to tell
        ("gigatoken", True, True, False),  # probably made already
        ("splintr", True, False, False),  # would keep the threads it is loaded with
        (None, True, False, False),  # not proved
    ],
)
def test_a_worker_that_waits_is_told_of_the_engine_before_the_command_is_imported(
    engine: str | None, waits: bool, there: bool, begins: bool, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run then takes the tokenizer that was sent, so that it is sent no second time."""
    made = context(tokenizer, write(tmp_path / "data.jsonl", corpus(30)), tmp_path / "out", runtime__cache_dir=tmp_path / "cache")
    recipe.settle(made)
    begun: list[Any] = []
    monkeypatch.setattr(warm_worker, "waits", lambda: waits)
    monkeypatch.setattr(warm_worker, "begin", begun.append)
    monkeypatch.setattr(preloading, "proved_engine", lambda *_: engine and made.plugins.registry("engine").get(engine)())
    if there:
        write(tmp_path / "out" / MANIFEST_NAME, "{}")

    preloading.begin(made)

    assert [(work.func, work.args[0], work.args[2]) for work in begun] == [(load_early, engine, 1)] * begins
    known, again = (preloading.known_tokenizer(made, lambda: "loaded") for _ in range(2))
    assert known is not None
    assert again is not None
    assert known.load() == "loaded"
    assert [known.backend is work.args[1] for work in begun] == [True] * begins
    assert again.backend is not known.backend


def test_what_is_wrong_is_left_to_the_run_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_worker, "waits", lambda: True)
    preloading.begin(context(tmp_path / "gone", tmp_path / "gone.jsonl", tmp_path / "out", tokenizer__engine="gone"))


def test_a_tokenizer_that_is_loaded_again_for_a_proof_neither_cuts_nor_pads(tokenizer: Path, tmp_path: Path) -> None:
    """Its file says so, as those of sentence-transformers: from the second run on every fast engine was said to differ."""
    file = tokenizer / "tokenizer.json"
    whole = json.loads(file.read_text())
    whole["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    whole["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>",
    }  # fmt: skip
    file.write_text(json.dumps(whole))
    source = write(tmp_path / "data.jsonl", corpus(60))
    prepare(tokenizer, source, tmp_path / "first", tokenizer__engine="hf")
    report = prepare(tokenizer, source, tmp_path / "second", tokenizer__engine="gigatoken")
    assert report.metrics["rows_written"] == 60
    assert manifest(tmp_path / "first")["content_hash"] == manifest(tmp_path / "second")["content_hash"]
