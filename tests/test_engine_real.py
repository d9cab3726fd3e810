"""Every real tokenizer against real texts: the chosen engine gives the ids of `AutoTokenizer` to the last one."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import short_proof
from engine_doubles import array, offers, rows_of
from ftcli.core.engines.engine import choose_engine, load_encoder
from reliability import FULL

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "benchmarks" / "exactness.py").exists():
    pytest.skip("the benchmarks are in the source tree only", allow_module_level=True)
sys.path.insert(0, str(ROOT))
try:
    from benchmarks import exactness
finally:
    sys.path.remove(str(ROOT))

CHOSEN = {
    "bert-base-multilingual-cased": "splintr",
    "bert-base-uncased": "splintr",
    "deepseek-coder": "fastokens",
    "gpt2": "gigatoken",
    "kobart": "hf",
    "koelectra-v3": "splintr",
    "mistral-7b-v0.1": "gigatoken",
    "phi-2": "gigatoken",
    "phi-3-mini": "gigatoken",
    "qwen2.5": "gigatoken",
    "qwen3": "gigatoken",
    "slow-byt5": "hf",
    "t5-small": "splintr",
}
"""What auto takes with gigatoken 0.10.0, fastokens 0.3.5 and splintr-rs 0.22.0."""
UNLOADABLE = {"spm-only-mistral"}
WHOLE = [name for name in CHOSEN if FULL] or ["gpt2", "t5-small", "slow-byt5"]
"""Proved on the whole corpus: for gigatoken, for splintr, and where there is no engine; the others on a hundredth of it but with FTCLI_FAULTS=full: 6 to
20 s of CPU each."""
BYTES_A_SOURCE = 75_000
SOURCES = (
    "classification/nsmc_raw/nsmc_raw.jsonl.gz",
    "text/react_docs_ko/react_docs_ko.jsonl.gz",
    "text/code_sympy/code_sympy.jsonl.gz",
    "text/war_and_peace/war-and-peace.txt.gz",
)
CAP = 10_000
"""Bytes of each of the 27 files, evenly from all of it. `python benchmarks/exactness.py` has no cap and takes every engine."""

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def every_file(real_data: Path) -> list[str]:
    """Texts of every file; 0.4 MB. Reading takes longer than encoding them: once for all tokenizers."""
    return exactness.all_texts(real_data, CAP)


@pytest.fixture(scope="module")
def rows(real_data: Path, every_file: list[str]) -> list[str]:
    """Reviews, documentation, code and prose, about 300 kB, and texts of every file."""
    return [*(text for source in SOURCES for text in _some(_texts(real_data / source))), *every_file]


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where proofs are kept from test to test."""
    return tmp_path_factory.mktemp("proofs")


def _texts(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        if path.name.endswith(".txt.gz"):
            while paragraph := "".join(islice(lines, 20)):
                yield paragraph
        yield from (json.loads(line)["text"] for line in lines)


def _some(texts: Iterator[str]) -> Iterator[str]:
    size = 0
    for text in texts:
        size += len(text.encode())
        yield text
        if size > BYTES_A_SOURCE:
            return


def test_no_tokenizer_is_left_out(real_data: Path) -> None:
    assert {path.name for path in (real_data / "tokenizers").iterdir()} == CHOSEN.keys() | UNLOADABLE
    assert set(WHOLE) <= CHOSEN.keys()


@pytest.mark.parametrize("name", CHOSEN)
def test_the_chosen_engine_gives_the_ids_of_the_tokenizer(name: str, rows: list[str], real_data: Path, proofs: Path) -> None:
    folder = real_data / "tokenizers" / name
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    plugins = offers(built_in=True)
    short_proof.decide(whole=name in WHOLE)
    choice = choose_engine(tokenizer, folder, plugins, cache_dir=proofs, sample=rows[:500])
    assert choice.name == CHOSEN[name], "\n".join(choice.notes)
    encoder = load_encoder(choice.spec, plugins)
    assert len(rows) > 4_000
    texts = [*rows, *choice.spec.excluded[:200], f"in {choice.spec.excluded[-1:]} between"]
    encoded = rows_of(encoder.encode_whole(array(texts)))
    different = [text for text, ids, row in zip(texts, tokenizer(texts, verbose=False)["input_ids"], encoded, strict=True) if ids != row]
    assert different == []
    assert encoder.failures == []
    assert encoder.rows_by_reference >= bool(choice.spec.excluded)
    print(f"| {name} | {choice.name} {choice.version} | {choice.proof.get('seconds', '-')} | {len(choice.spec.excluded)} |")


def test_the_program_that_compares_everything_finds_no_difference_and_would(
    every_file: list[str], real_data: Path, proofs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["gpt2", "t5-small"]
    options = ["--tokenizers", *names, "--cap", str(CAP), "--cache-dir", str(proofs), "--engines", "auto"]
    monkeypatch.setattr(sys, "argv", ["exactness.py", str(real_data), *options])
    monkeypatch.setattr(exactness, "all_texts", lambda data, cap: every_file)

    def table() -> list[list[str]]:
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")][2:]
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]

    assert exactness.main() == 0
    found = table()
    assert [row[:2] for row in found] == [[name, f"auto: {CHOSEN[name]}"] for name in names]
    assert all(int(row[2].replace(",", "")) > 1_000 and row[4] == "0" for row in found)

    right = exactness.RowEncoder.encode_whole
    monkeypatch.setattr(exactness.RowEncoder, "encode_whole", lambda self, batch: right(self, array(["?", *batch.to_pylist()[1:]])))
    monkeypatch.setattr(exactness, "all_texts", lambda data, cap: every_file[:50])
    assert exactness.main() == 1
    assert [row[4] for row in table()] == ["1", "1"]
