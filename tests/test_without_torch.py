"""transformers without torch: imported quickly, forgotten at the end, and tried again with torch where that is what was missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcli.core.tokenizer.quick_import import last_all
from ftcli.core.tokenizer.without_torch import without_torch
from verifying import World

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from ftcli.core.tokenizer.without_torch import without_torch
def heavy():
    return sorted(name for name in ("torch", "transformers") if name in sys.modules)
{body}
"""


def _run(body: str, *words: str) -> Any:
    command = [sys.executable, "-c", SCRIPT.format(tests=str(Path(__file__).parent), body=body), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_tokenizer_is_loaded_as_ever_and_a_model_can_be_built_afterwards(world: World) -> None:
    body = """
with without_torch() as light:
    def load():
        from transformers import AutoTokenizer
        return AutoTokenizer.from_pretrained(sys.argv[1])
    tokenizer = light.load(load)
    inside, ids = heavy(), tokenizer("where is my parcel")["input_ids"]
    from ftcli.core.models.config import from_file
    config = light.load(lambda: from_file(Path(sys.argv[2]), None, print))
    alone = heavy()
after = heavy()
from ftcli.core.models.config import from_file
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_config(from_file(Path(sys.argv[2]), None, print))
same = AutoTokenizer.from_pretrained(sys.argv[1])("where is my parcel")["input_ids"] == ids
print(json.dumps([inside, alone, after, type(model).__name__, same, "TRANSFORMERS_NO_ADVISORY_WARNINGS" in __import__("os").environ]))
"""
    assert _run(body, str(world.bpe), str(world.config("qwen3"))) == [
        ["transformers"],
        ["transformers"],
        [],
        "Qwen3ForCausalLM",
        True,
        False,
    ]


def test_what_needs_torch_gets_it_in_a_second_try_and_other_errors_come_through() -> None:
    body = """
tries = []
def needs():
    import transformers
    tries.append(1)
    import torch
    return torch.__name__
def breaks():
    tries.append(2)
    raise ValueError("another matter")
with without_torch() as light:
    try:
        light.load(breaks)
    except ValueError as error:
        words = str(error)
with without_torch() as light:
    name = light.load(needs)
print(json.dumps([words, name, tries, heavy()]))
"""
    assert _run(body) == ["another matter", "torch", [2, 1, 1], ["torch", "transformers"]]


def test_nothing_is_hidden_or_forgotten_where_transformers_is_there_already() -> None:
    import transformers

    with without_torch() as light:
        assert not light.hides
        assert light.load(lambda: __import__("torch")).__name__ == "torch"
    assert sys.modules["transformers"] is transformers
    assert "torch" in sys.modules


def test_the_scan_made_once_finds_what_transformers_own_scan_finds_and_reads_no_folder_twice() -> None:
    body = """
sys.modules["torch"] = None
import builtins, collections
from ftcli.core.tokenizer.quick_import import scanned_once
opened, plain = collections.Counter(), open
def counted(file, *rest, **named):
    opened[str(file)] += "/transformers/models/" in str(file)
    return plain(file, *rest, **named)
with scanned_once():
    builtins.open = counted
    import transformers.models
    builtins.open = plain
from transformers.utils import import_utils
folder = str(Path(transformers.__file__).parent / "models")
ours = import_utils.define_import_structure(folder)
finders = [type(finder).__name__ for finder in sys.meta_path if type(finder).__module__.startswith("ftcli")]
for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
    del sys.modules[name]
from transformers.utils import import_utils
theirs = import_utils.define_import_structure(folder)
print(json.dumps([ours == theirs, len(ours) > 1, max(opened.values()), sum(opened.values()) > 1000, finders]))
"""
    assert _run(body) == [True, True, 1, True, []]


def test_a_scan_that_was_kept_opens_no_file_of_a_model_and_finds_the_same(tmp_path: Path) -> None:
    body = """
sys.modules["torch"] = None
import builtins
from ftcli.core.tokenizer.quick_import import scanned_once
opened, plain = [], open
def counted(file, *rest, **named):
    opened.append(str(file)) if "/transformers/models/" in str(file) else None
    return plain(file, *rest, **named)
with scanned_once(Path(sys.argv[1])):
    builtins.open = counted
    import transformers.models
    builtins.open = plain
from transformers.utils import import_utils
folder = Path(transformers.__file__).parent / "models"
ours = import_utils.define_import_structure(folder), import_utils.define_import_structure(folder / "qwen3" / "__init__.py")
for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
    del sys.modules[name]
from transformers.utils import import_utils
theirs = import_utils.define_import_structure(folder), import_utils.define_import_structure(folder / "qwen3" / "__init__.py")
print(json.dumps([ours == theirs, len(ours[0]) > 1, len(opened) > 1000, len(list(Path(sys.argv[1]).iterdir()))]))
"""
    assert [_run(body, str(tmp_path)) for _ in range(2)] == [[True, True, True, 1], [True, True, False, 1]]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ('class A: ...\n\n__all__ = ["A", "B"]\n', ["A", "B"]),
        ('__all__ = ["A"]\n', ["A"]),
        ('__all__ = ["A"]\n__all__ = [\n    "B",\n    "C",\n]\n', ["B", "C"]),
        ("x = 1  # no __all__\n", []),
    ],
)
def test_the_last_part_of_a_file_has_all_that_the_scan_looks_for(content: str, names: list[str]) -> None:
    from transformers.utils.import_utils import fetch__all__

    assert fetch__all__(last_all(content)) == fetch__all__(content) == names


# -- the quick level as it is used ---------------------------------------------------------------------------------------------------------

QUICK = """
import json, sys
from ftcli.cli.main import main
code = main(sys.argv[1:])
sys.stderr.write("\\n" + json.dumps([code, sorted({"torch", "datasets", "matplotlib", "pandas"} & set(sys.modules))]))
"""


def _quick(folder: Path, *words: str) -> tuple[dict[str, Any], list[str]]:
    command = [sys.executable, "-c", QUICK, "verify", "--level", "quick", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, "XDG_CACHE_HOME": str(folder)})
    code, heavy = json.loads(done.stderr.splitlines()[-1])
    assert code in {0, 1}, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), heavy


def test_the_quick_level_imports_neither_torch_nor_datasets_with_the_built_in_loader(world: World, tmp_path: Path) -> None:
    report, heavy = _quick(
        tmp_path, "--tokenizer-path", str(world.bpe), "--dataset", str(world.labelled), "--model-config", str(world.config("qwen3"))
    )
    assert heavy == []
    ran = {check["id"] for check in report["checks"] if check["status"] != "skipped"}
    assert {"FT001", "FT101", "FT104", "FT106", "FT201", "FT202", "FT204"} <= ran
    assert report["status"] == "ok"


@pytest.mark.real
@pytest.mark.parametrize("name", ["qwen3", "bert-base-multilingual-cased"])
def test_the_quick_level_needs_no_torch_on_real_tokenizers_and_data(world: World, real_data: Path, tmp_path: Path, name: str) -> None:
    folder = real_data / "tokenizers" / name
    rows = (real_data / "classification" / "banking77" / "train.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "train.csv").write_text("".join([rows[0], *rows[1::40]]), encoding="utf-8")
    columns = {"dataset.text_column": "text", "dataset.label_column": "category"}
    prepared = world.prepare(f"quick-{name}", folder, columns, sources=[f"train={tmp_path / 'train.csv'}"])
    _, heavy = _quick(tmp_path, "--tokenizer-path", str(folder), "--dataset", str(prepared))
    assert heavy == []
