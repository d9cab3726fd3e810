"""Every real tokenizer against real texts: the chosen engine gives the ids of `AutoTokenizer` to the last one."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engine_doubles import array, offers, rows_of
from ftcli.core.engines.engine import choose_engine, load_encoder
from timing import PATIENCE

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
BYTES_A_SOURCE = 75_000
SOURCES = (
    "classification/nsmc_raw/nsmc_raw.jsonl.gz",
    "text/react_docs_ko/react_docs_ko.jsonl.gz",
    "text/code_sympy/code_sympy.jsonl.gz",
    "text/war_and_peace/war-and-peace.txt.gz",
)

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.usefixtures("whole_proof")]


@pytest.fixture(scope="module")
def rows(real_data: Path) -> list[str]:
    """Reviews, documentation, code and prose; about 300 kB."""
    return [text for source in SOURCES for text in _some(_texts(real_data / source))]


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where proofs are kept from test to test: one takes 3 to 6 s."""
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


@pytest.mark.parametrize("name", CHOSEN)
def test_the_chosen_engine_gives_the_ids_of_the_tokenizer(name: str, rows: list[str], real_data: Path, proofs: Path) -> None:
    folder = real_data / "tokenizers" / name
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    plugins = offers(built_in=True)
    choice = choose_engine(tokenizer, folder, plugins, cache_dir=proofs, sample=rows[:500])
    assert choice.name == CHOSEN[name], "\n".join(choice.notes)
    encoder = load_encoder(choice.spec, plugins)
    texts = [*rows, *choice.spec.excluded[:200], f"in {choice.spec.excluded[-1:]} between"]
    encoded = rows_of(encoder.encode_whole(array(texts)))
    different = [text for text, ids, row in zip(texts, tokenizer(texts, verbose=False)["input_ids"], encoded, strict=True) if ids != row]
    assert different == []
    assert encoder.failures == []
    assert encoder.rows_by_reference >= bool(choice.spec.excluded)
    print(f"| {name} | {choice.name} {choice.version} | {choice.proof.get('seconds', '-')} | {len(choice.spec.excluded)} |")


CAP = 10_000
"""Bytes of each of the 27 files, evenly from all of it, so that all tokenizers take a minute. `python benchmarks/exactness.py` has no cap and takes every engine."""


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest, real_data: Path, proofs: Path) -> dict[str, list[str]]:
    """The table of the program, by tokenizer; one process for all that are asked for, because reading the files takes longer than encoding them."""
    program = Path(__file__).parent.parent / "benchmarks" / "exactness.py"
    on_every_text = test_the_chosen_engine_gives_the_ids_of_the_tokenizer_on_every_text
    names = [item.callspec.params["name"] for item in request.session.items if getattr(item, "function", None) is on_every_text]
    options = ["--tokenizers", *names, "--cap", str(CAP), "--cache-dir", str(proofs), "--engines", "auto"]
    done = subprocess.run([sys.executable, str(program), str(real_data), *options], capture_output=True, text=True, timeout=3 * PATIENCE)
    print(done.stdout)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert [row[0] for row in cells] == sorted(names), done.stdout + done.stderr
    assert done.returncode == any(row[4] != "0" for row in cells), done.stdout + done.stderr
    return {name: rest for name, *rest in cells}


@pytest.mark.parametrize("name", CHOSEN)
def test_the_chosen_engine_gives_the_ids_of_the_tokenizer_on_every_text(name: str, table: dict[str, list[str]]) -> None:
    engine, texts, _, differing, *_ = table[name]
    assert engine == f"auto: {CHOSEN[name]}"
    assert int(texts.replace(",", "")) > 1_000
    assert differing == "0"
