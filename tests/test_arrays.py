"""Arrow arrays as `pa.array` makes them, without the library that it asks about each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftcli.core.arrays import flags, numbers, strings, values
from tokenizing import corpus, small_tokenizers

kinds = small_tokenizers


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.sampled_from([np.int32, np.int64]), st.integers(1, 3))
def test_numbers_are_those_of_pyarrow_and_come_back(integers: list[int], kind: type, step: int) -> None:
    array = np.array(integers, kind)[::step]
    numbers(array).validate(full=True)
    assert numbers(array).equals(pa.array(array))
    assert values(numbers(array)[1:]).tolist() == array[1:].tolist()


@given(st.lists(st.booleans(), max_size=40))
def test_flags_are_those_of_pyarrow_and_come_back(given_flags: list[bool]) -> None:
    array = np.array(given_flags, np.bool_)
    flags(array).validate(full=True)
    assert flags(array).equals(pa.array(array))
    assert values(flags(array)[1:]).tolist() == given_flags[1:]


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=9)))
def test_strings_are_those_of_pyarrow(texts: list[str]) -> None:
    strings(texts).validate(full=True)
    assert strings(texts).equals(pa.array(texts, pa.large_string()))


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        strings(["a", "\ud800"])


WORKER = """
import sys
import ftcli.core.prepare.encode
early = sorted({"pandas", "pydantic_settings", "asyncio"} & set(sys.modules))
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
from ftcli.plugins.engines import GigatokenEngine
from ftcli.core.prepare.accept import _labels
from ftcli.core.engines.character_search import CharacterSearch
from ftcli.core.prepare.write import RowWriter
from ftcli.contracts import Columns
from ftcli.core.engines.row_encoder import EncoderSpec, RowEncoder
from ftcli.core.engines.backend import Backend
from ftcli.plugins.columnar import Parquet
from ftcli.plugins.jsonl import JsonLines
from ftcli.core.reading.reject import strict
from ftcli.settings import Settings
from tokenizers import Tokenizer
from types import SimpleNamespace
text = Tokenizer.from_file(sys.argv[2]).to_str()
backend = Backend(json=text, folder="", hash="", prefix=(), suffix=(), constant=True, added_tokens=(), id_limit=10**6, random=False, notes=())
encoder = RowEncoder(EncoderSpec("gigatoken", "", backend, excluded="\\u03a9"), GigatokenEngine().load(text, Path(), 1))
for kind, path in ((JsonLines, sys.argv[3]), (Parquet, sys.argv[4])):
    for label, column in (("string", "name"), ("int", "number")):
        columns = Columns("text", column, label)
        for piece in kind().plan(path, 10**6, Settings()):
            for batch in kind().read(piece, columns, Settings(), strict):
                encoded = encoder.encode(batch.column("text"))
                known = {value: n for n, value in enumerate(batch.column("label").unique().to_pylist())}
                labels, faults = _labels(batch, SimpleNamespace(label_ids=known, columns=columns))
                assert not faults
                with RowWriter(Path(sys.argv[5]), labels=True, packed=False) as writer:
                    writer.add(encoded.ids, np.diff(encoded.offsets), labels)
assert encoder.rows_by_reference
used = "pandas" in sys.modules
import pyarrow as pa
pa.array([1])
print(early, used, "pandas" in sys.modules)
"""


def test_a_worker_does_its_work_without_pandas(kinds: dict[str, Path], tmp_path: Path) -> None:
    """0.4 s of CPU in each of them. The control is the last word: `pa.array` imports it in the same process."""
    texts = corpus(200)
    table = pa.table({"text": texts, "name": [f"l{n % 3}" for n in range(200)], "number": [n % 3 for n in range(200)]})
    pq.write_table(table, tmp_path / "a.parquet")
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()), encoding="utf-8")
    words = [Path(__file__).parent, kinds["bpe"] / "tokenizer.json", lines, tmp_path / "a.parquet", tmp_path / "out.arrow"]
    done = subprocess.run([sys.executable, "-c", WORKER, *map(str, words)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[] False True"
