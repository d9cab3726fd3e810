"""Hostile tokenizers, sources, settings and folders: no code runs, nothing is written elsewhere, nothing private is read, and it ends."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from ftcli.masking import coloured, printable
from ftcli.testing import Result, run, tiny_tokenizer
from timing import PATIENCE

PRIVATE = "OPEN_SESAME=decoy4711"
GOOD = '{"text": "Please cancel my subscription."}\n' * 20

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("nursery")]


@dataclass(frozen=True, slots=True)
class Place:
    """A working directory with a decoy .env, a tokenizer and data; `canary` is what hostile code would touch."""

    root: Path

    @property
    def canary(self) -> Path:
        return self.root.parent / "canary"

    @property
    def touch(self) -> str:
        return f"open({str(self.canary)!r}, 'w').close()\n"

    def tokenizer(self, **files: str | None) -> Path:
        """A copy of the good one with files replaced (None: removed)."""
        folder = self.root / "hostile"
        shutil.copytree(self.root / "tokenizer", folder)
        for name, text in files.items():
            path = folder / name.replace("__", ".")
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
        return folder

    def config(self, **changes: Any) -> str:
        return json.dumps({**json.loads((self.root / "tokenizer" / "tokenizer_config.json").read_text()), **changes})

    def tokenize(self, *words: str | Path, tokenizer: Path | str | None = None, source: str | Path = "data.jsonl", **env: str) -> Result:
        """`ftcli tokenize`, after which nothing private was shown, no code was run and nothing was written but output and reports."""
        before = snapshot(self.root)
        done = run(
            "tokenize", source, "--tokenizer-path", tokenizer or "tokenizer", "--output-dir", "out", "--tokenizer-engine", "hf",
            "--num-proc", "1", *words, env=env, cwd=self.root,
        )  # fmt: skip
        self.check(done, before)
        return done

    def check(self, done: Result, before: dict[str, bytes]) -> None:
        assert not self.canary.exists(), "hostile code was run"
        assert done.exit_code in {0, 1, 2}
        said = done.stdout + done.stderr
        assert "Traceback" not in said
        assert "decoy4711" not in said
        assert "\x1b[2J" not in said
        after = snapshot(self.root)
        assert elsewhere(after) == elsewhere(before)
        assert not [name for name, data in after.items() if name not in before and b"decoy4711" in data]


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every regular file below a folder; links are not followed."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.stat().st_size < 1 << 20 else b"large"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def elsewhere(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.startswith(("out/", "ftcli-reports/"))}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("hostile") / "tokenizer")


@pytest.fixture
def place(tmp_path: Path, prepared: Path) -> Place:
    made = Place(tmp_path / "work")
    made.root.mkdir()
    shutil.copytree(prepared, made.root / "tokenizer")
    (made.root / ".env").write_text(f"{PRIVATE}\n")
    (made.root / "data.jsonl").write_text(GOOD)
    return made


def error_of(done: Result, word: str) -> str:
    assert done.exit_code in {1, 2}, done.stdout
    assert word in done.stderr, done.stderr
    return done.stderr


@pytest.mark.reliability(26, "code that runs, text that leaks and files that stay are found by the same harness", control=True)
def test_control_the_harness_finds_code_writes_and_private_text(place: Place) -> None:
    assert place.tokenize().exit_code == 0, "the place itself must work"
    calm = Result(1, "", "error: no")
    before = snapshot(place.root)
    with pytest.raises(AssertionError, match="decoy"):
        place.check(Result(1, "", f"error: not JSON: {PRIVATE}"), before)
    with pytest.raises(AssertionError):
        place.check(Result(-9, "", ""), before)
    (place.root / "stray").write_text("")
    with pytest.raises(AssertionError):
        place.check(calm, before)
    (place.root / "stray").unlink()
    exec(place.touch)
    with pytest.raises(AssertionError, match="code"):
        place.check(calm, before)


# -- tokenizers --------------------------------------------------------------------------------------------------------


@pytest.mark.reliability(26, "tokenizer with code of its own")
def test_code_that_comes_with_a_tokenizer_is_run_only_on_request(place: Place) -> None:
    config = place.config(auto_map={"AutoTokenizer": ["evil.Evil", None]}, tokenizer_class="Evil")
    code = f"{place.touch}from transformers import PreTrainedTokenizerFast\nclass Evil(PreTrainedTokenizerFast): ...\n"
    folder = place.tokenizer(tokenizer_config__json=config, evil__py=code)
    assert "--trust-remote-code" in error_of(place.tokenize(tokenizer=folder), "brings its own Python code")
    error_of(place.tokenize(tokenizer=folder, TOKENIZER_TRUST_REMOTE_CODE="true"), "only the command line may set this")
    (place.root / "run.toml").write_text("[tokenizer]\ntrust_remote_code = true\n")
    error_of(place.tokenize("--config", "run.toml", tokenizer=folder), "only the command line may set this")
    with pytest.raises(AssertionError, match="hostile code was run"):
        place.tokenize("--trust-remote-code", tokenizer=folder)  # the control: the code itself works


@pytest.mark.reliability(26, "tokenizer_config that names other files")
@pytest.mark.parametrize("key", ["vocab_file", "tokenizer_file", "merges_file", "added_tokens_file", "chat_template_file"])
def test_a_tokenizer_cannot_name_files_outside_of_its_folder(place: Place, key: str) -> None:
    private = str(place.root / ".env")
    place.tokenize(tokenizer=place.tokenizer(tokenizer_config__json=place.config(**{key: private})))
    slow = json.dumps({"tokenizer_class": "BertTokenizer", key: private})
    shutil.rmtree(place.root / "hostile")
    folder = place.tokenizer(tokenizer__json=None, tokenizer_config__json=slow, vocab__txt="[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    place.tokenize("--overwrite", tokenizer=folder)
    assert "decoy4711" not in AutoTokenizer.from_pretrained(folder).get_vocab()


@pytest.mark.reliability(26, "chat template that never ends, or names a file")
@pytest.mark.parametrize(
    "template",
    ["{% for i in range(10 ** 15) %}x{% endfor %}", [{"name": "../../evil", "template": "x"}, {"name": "default", "template": "y"}]],
)
def test_a_chat_template_is_not_rendered_and_writes_nothing(place: Place, template: Any) -> None:
    place.tokenize(tokenizer=place.tokenizer(tokenizer_config__json=place.config(chat_template=template)))


@pytest.mark.reliability(26, "tokenizer.json with a catastrophic regex")
def test_a_regex_that_gives_up_is_named_and_neither_hangs_nor_kills(place: Place) -> None:
    backend = json.loads((place.root / "tokenizer" / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    backend["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, backend["pre_tokenizer"]]}
    folder = place.tokenizer(tokenizer__json=json.dumps(backend))
    (place.root / "data.jsonl").write_text(json.dumps({"text": "a" * 40 + "!"}) + "\n")
    (place.root / "data.jsonl").write_text((place.root / "data.jsonl").read_text() * 3_000)
    error_of(place.tokenize(tokenizer=folder), "retry-limit-in-match over")


@pytest.mark.reliability(26, "huge or deeply nested tokenizer.json")
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_huge_or_nested_file_is_refused(place: Place, name: str) -> None:
    folder = place.tokenizer()
    (folder / name).write_text("[" * 1_000_000)
    error_of(place.tokenize(tokenizer=folder), "cannot be loaded")
    os.truncate(folder / name, 1 << 30)
    error_of(place.tokenize(tokenizer=folder), "1,073,741,824 bytes, too large for a tokenizer file")


@pytest.mark.reliability(26, "tokenizer files that are links, FIFOs or devices")
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("target", ["../.env", "/dev/zero", "loop", "fifo"])
def test_links_in_a_tokenizer_folder_are_no_way_out(place: Place, name: str, target: str) -> None:
    folder = place.tokenizer()
    (folder / name).unlink(missing_ok=True)
    if target == "fifo":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(name if target == "loop" else target)
    done = place.tokenize(tokenizer=folder)
    if target != "../.env":
        error_of(done, f"{folder / name} is not a readable file")


GONE = "the tokenizer folder {} does not exist"
NO_ID = "the tokenizer {} is neither a local folder nor available on the hub: Repo id must use alphanumeric chars"


@pytest.mark.reliability(26, "hub id that looks like a path")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../../etc", GONE),
        ("org/../../x", GONE),
        ("~root/x", GONE.format(Path("~root/x").expanduser())),
        ("..", "{} holds no tokenizer"),
        ("/", "{} holds no tokenizer"),
        ("org/na\nme", NO_ID),
        ("$(touch canary)/x", NO_ID),
        ("`touch canary`", NO_ID),
        ("-x/y", NO_ID),
    ],
)
def test_a_hub_id_that_looks_like_a_path_is_refused(place: Place, name: str, words: str) -> None:
    error_of(place.tokenize(tokenizer=name), words.format(name))


def test_a_hub_id_that_is_one_is_asked_for(place: Place) -> None:
    said = error_of(place.tokenize(tokenizer="org/name"), "the tokenizer org/name is neither a local folder nor available on the hub: ")
    assert "couldn't connect" in said
    assert "Repo id must" not in said


# -- sources -----------------------------------------------------------------------------------------------------------


@pytest.mark.reliability(26, "gzip bomb in one line")
def test_a_line_of_gigabytes_is_refused_in_bounded_memory(place: Place) -> None:
    with gzip.open(place.root / "bomb.jsonl.gz", "wb", compresslevel=1) as file:
        file.write(b'{"text": "')
        for _ in range(24):
            file.write(b"x" * (1 << 24))
    error_of(place.tokenize("--set", "dataset.max_line_bytes=64000000", source="bomb.jsonl.gz"), "bomb.jsonl.gz")


@pytest.mark.reliability(26, "link to a private file in a directory")
def test_a_directory_brings_in_nothing_through_links_that_lead_out(place: Place) -> None:
    folder = place.root / "corpus"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text("hello there\n" * 20)
    (folder / "again.txt").symlink_to("inner/b.txt")
    (folder / "inner" / "b.txt").write_text("good bye\n" * 20)
    (folder / "leak.txt").symlink_to("../.env")
    (folder / "loop").symlink_to(".")
    done = place.tokenize("--json", source="corpus")
    assert done.report["metrics"]["rows_read"] == 40
    assert any("left out" in note and "leak.txt" in note for note in done.report["notes"])
    for path in (folder / "a.txt", folder / "again.txt"):
        path.unlink()
    shutil.rmtree(folder / "inner")
    error_of(place.tokenize(source="corpus"), "Links that lead out of the folder")
    cache = place.root / "hub"
    (cache / "snapshots" / "1").mkdir(parents=True)
    (cache / "blobs").mkdir()
    (cache / "blobs" / "b").write_text("hello there\n" * 20)
    (cache / "snapshots" / "1" / "a.txt").symlink_to("../../blobs/b")
    assert place.tokenize("--overwrite", "--json", source="hub/snapshots/1").report["metrics"]["rows_read"] == 20


@pytest.mark.reliability(26, "link, FIFO or device as a source")
def test_a_private_file_under_another_name_is_not_shown_and_devices_are_refused(place: Place) -> None:
    for suffix in (".jsonl", ".json", ".parquet", ".pkl", ".jsonl.gz", ".arrow"):  # a .csv that is named shows the names of its columns
        link = place.root / f"link{suffix}"
        link.symlink_to(".env")
        error_of(place.tokenize(source=link.name), link.name)
    os.mkfifo(place.root / "fifo.jsonl")
    error_of(place.tokenize(source="fifo.jsonl"), "a FIFO, not a file")
    (place.root / "zero.txt").symlink_to("/dev/zero")
    for name in ("/dev/zero", "zero.txt"):
        error_of(place.tokenize(source=name), "a device, not a file")


@pytest.mark.reliability(26, "file names with control characters and shell code")
@pytest.mark.parametrize("content", ["bad\n", GOOD])
def test_a_file_name_cannot_drive_the_terminal_or_a_shell(place: Place, content: str) -> None:
    name = "x\x1b[2J\r\x07 $(touch canary) `touch canary`.jsonl"
    (place.root / name).write_text(content)
    done = place.tokenize(source=name)
    assert done.exit_code == (0 if content == GOOD else 1)
    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f]", done.stdout + done.stderr)
    report = place.root / "ftcli-reports" / "tokenize.html"
    assert not report.exists() or "\x1b" not in report.read_text()
    assert printable(f"{coloured('red', 31)} a\x1b[2J\x1b[8m\u202eb\n") == "\x1b[31mred\x1b[0m a\\x1b[2J\\x1b[8m\\u202eb\n"


@pytest.mark.reliability(26, "pickle that runs code, as a source")
def test_a_hostile_pickle_runs_nothing_in_a_whole_run(place: Place) -> None:
    (place.root / "a.pkl").write_bytes(b"cposix\nsystem\n(S'touch " + str(place.canary).encode() + b"'\ntR.")
    assert "--trust-pickle" in error_of(place.tokenize(source="a.pkl"), "refers to posix.system")
    error_of(place.tokenize(source="a.pkl", DATASET_TRUST_PICKLE="true"), "only the command line may set this")


# -- settings, environment, working directory --------------------------------------------------------------------------


def aliases(levels: int) -> str:
    lines = ["  a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "dataset:\n" + "\n".join(lines) + f"\n  text_column: *a{levels - 1}\n"


@pytest.mark.reliability(26, "YAML tags and aliases")
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("dataset:\n  text_column: !!python/object/apply:os.system ['touch canary']\n", "could not determine a constructor"),
        (aliases(9), "aliases expand to more than 10,000 values"),
        ("dataset:\n  sources: &a [*a]\n", "aliases expand to more than 10,000 values"),
        ("dataset: " + "[" * 50_000, "recursion"),
        ("dataset:\n" + "  x: y\n" * 100_000, "a config file has 200,000 at most"),
        ("dataset:\n  text_column: [decoy4711\n", "in line 3"),
    ],
)
def test_a_hostile_config_file_is_refused(place: Place, text: str, word: str) -> None:
    (place.root / "run.yaml").write_text(text)
    error_of(place.tokenize("--config", "run.yaml"), word)


def test_control_the_aliases_do_stand_for_a_billion_values() -> None:
    value = yaml.safe_load(aliases(9))["dataset"]["a8"]
    for _ in range(8):
        assert len(value) == 10
        value = value[0]


@pytest.mark.reliability(26, "plugins and modules in the working directory")
def test_nothing_in_the_working_directory_is_imported(place: Place) -> None:
    (place.root / "plugins").mkdir()
    modules = ("conftest.py", "ftcli_plugin.py", "sitecustomize.py", "pyarrow.py", "tokenizers.py", "yaml.py", "resource.py")
    for name in ("plugins/evil.py", *modules):
        (place.root / name).write_text(place.touch)
    (place.root / "strings.pkl").write_bytes(b"\x80\x04]\x94(\x8c\x05hello\x94\x8c\x03you\x94e.")
    before, program = snapshot(place.root), Path(sys.executable).with_name("ftcli")
    words = [program, "tokenize", "strings.pkl", "--tokenizer-path", "tokenizer", "--output-dir", "out", "--tokenizer-engine", "hf"]
    done = subprocess.run(words, cwd=place.root, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    place.check(Result(done.returncode, done.stdout, done.stderr), before)
    subprocess.run([sys.executable, "-c", "import tokenizers"], cwd=place.root, check=True)
    assert place.canary.exists(), "the trap itself must work"


VALUES: dict[str, Callable[[Path], str]] = {
    "substitution": lambda canary: f"$(touch {canary})",
    "backticks": lambda canary: f"`touch {canary}`",
    "quotes": lambda canary: f"'; touch {canary}; '",
    "lines": lambda canary: f"1\ntouch {canary}\nexport X=",
}


@pytest.mark.reliability(26, "shell code in variables")
@pytest.mark.parametrize("kind", VALUES)
def test_values_of_variables_stay_text_in_the_shell(place: Place, kind: str) -> None:
    value = VALUES[kind](place.canary)
    env = dict.fromkeys(("OMP_NUM_THREADS", "HF_HOME", "TOKENIZERS_PARALLELISM", "MALLOC_ARENA_MAX", "PYTORCH_CUDA_ALLOC_CONF"), value)
    done = run("settings", "--export-env", env=env, cwd=place.root)
    assert done.exit_code == 0
    subprocess.run(["bash", "-c", done.stdout], cwd=place.root, check=False, capture_output=True)
    assert not place.canary.exists()
    subprocess.run(["bash", "-c", f"eval echo {VALUES['substitution'](place.canary)}"], check=False, capture_output=True)
    assert place.canary.exists(), "the trap itself must work"


def test_masking_and_escaping_leave_ordinary_text_alone() -> None:
    text = io.StringIO("plain 한국어\ttab\nline").getvalue()
    assert printable(text) == text
