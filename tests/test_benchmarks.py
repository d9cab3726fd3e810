"""benchmarks/tokenize.py: it measures what it says, and one wrong id makes it fail."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict

from tokenizing import ENGINE, corpus, small_tokenizers

__all__ = ["small_tokenizers"]

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "benchmarks" / "tokenize.py"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the benchmarks are in the source tree only")

CODE_FOR = "import sys; sys.path.insert(0, {root!r}); {code}"


@pytest.fixture
def data(tmp_path: Path, small_tokenizers: Mapping[Any, Path]) -> Path:
    """A data folder of the expected layout; text "zebra" stands far behind."""
    folder = tmp_path / "data"
    texts = corpus(2_500)
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
    for name, kind in {
        "qwen3": "bpe",
        "gpt2": "bpe",
        "mistral-7b-v0.1": "bpe",
        "bert-base-uncased": "wordpiece",
        "t5-small": "unigram",
    }.items():
        (folder / "tokenizers" / name).symlink_to(small_tokenizers[kind])  # type: ignore[index]
    return folder


def benchmark(data: Path, *arguments: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the program with one worker (a machine with one CPU must do)."""
    result = data.parent / "result.json"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--data", str(data), "--work-dir", str(data.parent / "work"), "--workers", "1", "--json", str(result), *arguments],
        capture_output=True, text=True, env={**os.environ, **variables}, cwd=data.parent, timeout=3000,
    )  # fmt: skip
    return done, json.loads(result.read_text()) if result.exists() else {}


@pytest.mark.slow
def test_works_are_measured_after_their_ids_were_found_equal(data: Path) -> None:
    done, document = benchmark(data, "--works", "nsmc-parquet", "--repeats", "1", "--scale", "0.2")

    assert done.returncode == 0, done.stderr
    assert [each["work"] for each in document["results"]] == ["nsmc-parquet"]
    for each in document["results"]:
        assert each["rows_compared"] == each["rows"] > 0
        assert each["tokens_compared"] > each["rows"]
        assert each["over_naive"]["median"] > 0
        assert each["of_engine"]["required"] == 0.7
        ours = each["rounds"][0]["ours"]
        assert ours["wall"] > ours["pipeline_seconds"] > 0
        assert ours["cpu"] > 0
        assert ours["peak_rss_mb"] >= ours["peak_pss_mb"] > 50
        assert set(each["rounds"][0]["alone"]) == {"processes", "threads"}
    assert "| nsmc-parquet |" in done.stdout
    assert "Machine: " in done.stdout
    assert document["versions"]["datasets"] in done.stdout


@pytest.mark.slow
def test_one_wrong_id_makes_it_fail_and_names_the_row(data: Path) -> None:
    """The engine passes its proof: what it does wrong stands in none of the texts that are tried before."""
    for name in ("en_docs", "ko_docs"):
        path = data / "text" / f"{name}_long" / f"{name}.jsonl.gz"
        lines = gzip.decompress(path.read_bytes()).decode().replace("2311 ", "zebra 2311 ")
        path.write_bytes(gzip.compress(lines.encode()))
    plugins = data.parent / "plugins"
    plugins.mkdir()
    (plugins / "other.py").write_text(ENGINE)
    done, document = benchmark(
        data, "--works", "docs", "--repeats", "1", "--scale", "0.2", TOKENIZER_ENGINE="double", FTCLI_PLUGINS_DIR=str(plugins)
    )

    assert done.returncode == 1, done.stdout + done.stderr
    assert document["results"] == []
    assert "differs" in document["error"]
    assert "row " in document["error"]
    assert "**FAILED**" in done.stdout


@pytest.mark.slow
def test_a_job_that_is_killed_and_run_again_ends_in_the_same_hash(data: Path) -> None:
    done, document = benchmark(data, "--works", "job", "--rows", "3000", "--kills", "2", "--baseline-mb", "1")

    assert done.returncode == 0, done.stderr
    [result] = document["results"]
    assert result["rows"] == 3000
    assert 1500 < result["file_bytes"] / result["rows"] < 2600
    assert result["kill_and_resume"]["content_hash"] == result["content_hash"]
    assert result["kill_and_resume"]["kills"] == 2


def prepared(folder: Path, rows: list[list[int]], split: str | None = None) -> Path:
    made = Dataset(pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))}))
    (DatasetDict({split: made}) if split else made).save_to_disk(str(folder))
    return folder


def code(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", CODE_FOR.format(root=str(ROOT), code=text)], capture_output=True, text=True)


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
    done = code(
        f"from pathlib import Path; from benchmarks.equal import same_ids; print(same_ids(Path({str(ours)!r}), Path({str(other)!r})))"
    )

    assert (done.returncode == 0) == (not words), done.stderr
    assert words in done.stderr


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
    pair = str(indexed(tmp_path / "ours", [[1, 2], [3], [4, 5]])), str(indexed(tmp_path / "theirs", theirs))
    done = code(
        f"from pathlib import Path; from benchmarks.megatron import same_tokens; print(same_tokens(*map(Path, {pair!r}), {len(theirs)}))"
    )

    assert (done.returncode == 0) == (not words), done.stderr
    assert words in done.stderr
    assert words or int(done.stdout) == sum(map(len, theirs))


@pytest.mark.slow
def test_megatrons_way_is_measured_where_it_is_installed(data: Path) -> None:
    done, document = benchmark(data, "--works", "megatron", "--repeats", "1", "--scale", "0.2")

    assert done.returncode == 0, done.stderr
    if not document["results"]:
        assert "megatron-core is not installed" in done.stderr
        pytest.skip("megatron-core is not installed")
    [result] = document["results"]
    assert result["tokens_compared"] > result["rows"] > 0
    assert result["over_megatron"]["median"] > 0
    assert "Megatron's files" in done.stdout


def test_a_command_that_fails_is_an_error_with_its_words() -> None:
    run = "from benchmarks.process import run; import os, sys, pathlib; run([sys.executable, '-c', 'import sys; sys.exit(\"no luck\")'], os.sched_getaffinity(0), dict(os.environ), pathlib.Path('.'))"
    done = code(run)

    assert "no luck" in done.stderr
    assert "ended with 1" in done.stderr


def test_an_unknown_work_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    for arguments in (["--works", "nothing"], ["--data", str(tmp_path)]):
        done = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True)
        assert done.returncode == 2
        assert arguments[1] in done.stderr
