"""benchmarks/tokenize.py: it measures what it says, and one wrong id makes it fail."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict

from ftcli import testing
from nursery import births
from tokenizing import ENGINE, corpus, small_tokenizers, write

__all__ = ["small_tokenizers"]

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "benchmarks" / "tokenize.py"
if not PROGRAM.exists():
    pytest.skip("the benchmarks are in the source tree only", allow_module_level=True)
sys.path.insert(0, str(ROOT))
try:
    from benchmarks import process, tokenize
    from benchmarks.compare import scaling
    from benchmarks.equal import DifferentError, same_ids
    from benchmarks.megatron import same_tokens
    from benchmarks.ways import Ours
finally:
    sys.path.remove(str(ROOT))


def laid_out(folder: Path, tokenizers: Mapping[Any, Path], texts: list[str]) -> Path:
    """A data folder of the expected layout."""
    for name, rows in (
        ("text/en_docs_long/en_docs", texts),
        ("text/ko_docs_long/ko_docs", texts[::5]),
        ("classification/nsmc_raw/nsmc_raw", texts),
    ):
        path = folder / f"{name}.jsonl.gz"
        path.parent.mkdir(parents=True)
        with gzip.open(path, "wt", encoding="utf-8") as out:
            out.writelines(json.dumps({"text": text, "label": "x"}, ensure_ascii=False) + "\n" for text in rows)
    (folder / "tokenizers").mkdir()
    (folder / "tokenizers" / "qwen3").symlink_to(tokenizers["bpe"])
    return folder


def arguments(data: Path, *more: str) -> list[str]:
    """One worker (a machine with one CPU must do)."""
    folders = ["--data", str(data), "--work-dir", str(data.parent / "work"), "--json", str(data.parent / "result.json")]
    return [*folders, "--workers", "1", "--repeats", "1", "--scale", "0.2", *more]


@pytest.fixture(scope="module")
def measured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, small_tokenizers: Mapping[Any, Path]
) -> tuple[str, dict[str, Any]]:
    """What the program prints and writes of two works; once for the tests that look at them."""
    data = laid_out(tmp_path_factory.mktemp("measured") / "data", small_tokenizers, corpus(2_500))
    given = arguments(data, "--works", "nsmc-parquet,job", "--rows", "3000", "--kills", "2", "--baseline-mb", "1")
    proved_before(data.parent, data / "tokenizers" / "qwen3", {})
    with births(request), redirect_stdout(StringIO()) as printed:
        assert tokenize.main(given) == 0, printed.getvalue()
    return printed.getvalue(), json.loads((data.parent / "result.json").read_text())


def proved_before(folder: Path, tokenizer: Path, variables: Mapping[str, str]) -> None:
    """Have the engine's proof in the cache of the program's commands, over a part of the corpus: a whole one takes 8 s of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**variables, "XDG_CACHE_HOME": str(folder / "work" / "cache")}.items():
            patch.setenv(name, value)
        source = write(folder / "proof" / "a.jsonl", corpus(50))
        done = testing.run("tokenize", source, "--tokenizer-path", tokenizer, "--output-dir", source.with_name("out"), cwd=source.parent)
    assert done.exit_code == 0, done.stderr
    assert list((folder / "work" / "cache").rglob("proof-*.json"))


@pytest.mark.slow
@pytest.mark.usefixtures("nursery")
def test_works_are_measured_after_their_ids_were_found_equal(measured: tuple[str, dict[str, Any]]) -> None:
    printed, document = measured
    [each, _] = document["results"]

    assert each["work"] == "nsmc-parquet"
    assert each["rows_compared"] == each["rows"] > 0
    assert each["tokens_compared"] > each["rows"]
    assert each["over_naive"]["median"] > 0
    assert each["of_engine"]["required"] == 0.7
    ours = each["rounds"][0]["ours"]
    assert ours["wall"] > ours["pipeline_seconds"] > 0
    assert ours["cpu"] > 0
    assert ours["peak_rss_mb"] >= ours["peak_pss_mb"] > 50
    assert set(each["rounds"][0]["alone"]) == {"processes", "threads"}
    assert "| nsmc-parquet |" in printed
    assert "Machine: " in printed
    assert document["versions"]["datasets"] in printed


@pytest.mark.slow
@pytest.mark.usefixtures("nursery")
def test_a_job_that_is_killed_and_run_again_ends_in_the_same_hash(measured: tuple[str, dict[str, Any]]) -> None:
    [_, result] = measured[1]["results"]

    assert result["work"] == "job"
    assert result["rows"] == 3000
    assert 1500 < result["file_bytes"] / result["rows"] < 2600
    assert result["kill_and_resume"]["content_hash"] == result["content_hash"]
    assert result["kill_and_resume"]["kills"] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("nursery")
def test_one_wrong_id_makes_it_fail_and_names_the_row(
    tmp_path: Path, small_tokenizers: Mapping[Any, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine passes its proof: what it does wrong stands in none of the texts that are tried before."""
    texts = [text.replace("2311 ", "zebra 2311 ") for text in corpus(2_500)]  # far behind
    data = laid_out(tmp_path / "data", small_tokenizers, texts)
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "other.py").write_text(ENGINE)
    variables = {"TOKENIZER_ENGINE": "double", "FTCLI_PLUGINS_DIR": str(tmp_path / "plugins")}
    proved_before(tmp_path, data / "tokenizers" / "qwen3", variables)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    code = tokenize.main(arguments(data, "--works", "docs"))

    document, printed = json.loads((tmp_path / "result.json").read_text()), capsys.readouterr().out
    assert code == 1, printed
    assert document["results"] == []
    assert "differs" in document["error"]
    assert "row " in document["error"]
    assert "**FAILED**" in printed


def prepared(folder: Path, rows: list[list[int]], split: str | None = None) -> Path:
    made = Dataset(pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))}))
    (DatasetDict({split: made}) if split else made).save_to_disk(str(folder))
    return folder


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ([[1, 2], [], [3]], ""),
        ([[1, 2], []], ""),
        ([[1, 2], [], [4]], "row 2 differs"),
        ([[1], [2], [3]], "row 0 differs"),
        ([[1, 2], [], [3], [4]], "has 3 rows"),
    ],
)
def test_every_row_is_compared_token_by_token(tmp_path: Path, theirs: list[list[int]], words: str) -> None:
    ours = prepared(tmp_path / "ours", [[1, 2], [], [3]], "train")
    other = prepared(tmp_path / "theirs", theirs)

    with pytest.raises(DifferentError, match=words) if words else nullcontext():
        assert same_ids(ours, other) == (len(theirs), sum(map(len, theirs)))


def indexed(prefix: Path, rows: list[list[int]]) -> Path:
    Path(f"{prefix}.bin").write_bytes(np.concatenate(rows).astype("<i4").tobytes())
    Path(f"{prefix}.idx").write_bytes(bytes(34) + np.array([len(row) for row in rows], "<i4").tobytes() + bytes(80))
    return prefix


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ([[1, 2], [3]], ""),
        ([[1, 2], [3], [4, 5]], ""),
        ([[1, 2], [4]], "different tokens"),
        ([[1], [2, 3]], "not as long"),
        ([[1, 2], [3], [4, 5], [6]], "not as long"),
    ],
)
def test_megatrons_files_are_compared_token_by_token(tmp_path: Path, theirs: list[list[int]], words: str) -> None:
    pair = indexed(tmp_path / "ours", [[1, 2], [3], [4, 5]]), indexed(tmp_path / "theirs", theirs)

    with pytest.raises(DifferentError, match=words) if words else nullcontext():
        assert same_tokens(*pair, len(theirs)) == sum(map(len, theirs))


@pytest.mark.slow
def test_megatrons_way_is_measured_where_it_is_installed(
    tmp_path: Path, small_tokenizers: Mapping[Any, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code = tokenize.main(arguments(laid_out(tmp_path / "data", small_tokenizers, corpus(2_500)), "--works", "megatron"))

    printed = capsys.readouterr()
    assert code == 0, printed.err
    results = json.loads((tmp_path / "result.json").read_text())["results"]
    if not results:
        assert "megatron-core is not installed" in printed.err
        pytest.skip("megatron-core is not installed")
    [result] = results
    assert result["tokens_compared"] > result["rows"] > 0
    assert result["over_megatron"]["median"] > 0
    assert "Megatron's files" in printed.out


@pytest.mark.slow
def test_conversations_are_measured_after_their_ids_were_found_equal(
    tmp_path: Path, small_tokenizers: Mapping[Any, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    tokenizer = data / "tokenizers" / "qwen3"
    shutil.copytree(small_tokenizers["bpe"], tokenizer)
    turn = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    (tokenizer / "chat_template.jinja").write_text(turn + "{% if add_generation_prompt %}<assistant>{% endif %}")
    path = data / "instruct" / "gsm8k_train" / "train.jsonl.gz"
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps({"question": text, "answer": text[::-1]}) + "\n" for text in corpus(200))
    proved_before(tmp_path, tokenizer, {})

    code = tokenize.main(arguments(data, "--works", "sft"))

    printed = capsys.readouterr()
    assert code == 0, printed.err
    [result] = json.loads((tmp_path / "result.json").read_text())["results"]
    assert result["rows_compared"] == result["rows"] == 1200
    assert result["tokens_compared"] > result["rows"]
    assert result["over_map"]["median"] > 0
    assert "Conversations: `ftcli tokenize --mode sft`" in printed.out


def test_a_command_that_fails_is_an_error_with_its_words() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no luck')"]
    with pytest.raises(process.RunError, match=r"ended with 1:\nno luck"):
        process.run(command, os.sched_getaffinity(0), dict(os.environ), Path())


def test_an_unknown_work_is_refused_by_the_program_and_a_missing_folder_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), "--works", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "nothing" in done.stderr
    with pytest.raises(SystemExit) as ended:
        tokenize.main(["--data", str(tmp_path)])
    assert ended.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_the_scaling_of_the_engine_stands_beside_that_of_the_pipeline() -> None:
    class Fake:
        workers = 2

        def tokenizer(self, name: str) -> Path:
            return Path(name)

        def prove(self, source: object, tokenizer: Path) -> None: ...

        def ours(self, source: object, tokenizer: Path, workers: int) -> Ours:
            return Ours(process.Outcome(12.0 / workers, 1.0, 1.0, 1.0, ""), {"engine": "e"}, 10.0 / workers)

        def alone(self, engine: str, source: object, tokenizer: Path, *, processes: int, threads: int) -> tuple[None, dict[str, float]]:
            return None, {"seconds": {1: 6.0, 2: 4.0}[processes]}

    said: list[str] = []
    found = scaling(cast("Any", Fake()), cast("Any", {"docs": "docs"}), repeats=2, say=said.append)
    assert (found["pipeline"]["median"], found["command"]["median"], found["engine"]["median"]) == (2.0, 2.0, 1.5)
    assert (found["pipeline"]["met"], found["engine"]["met"]) == (True, None)
    assert said[0] == "scaling, round 1: 10.00 s (engine alone 6.00 s) with 1 worker, 5.00 s (engine alone 4.00 s) with 2"
