"""No error, log, traceback, report, manifest or record shows a token, a password or the user of a URL."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from ftcli import masking
from ftcli.commands import settings as settings_command
from ftcli.context import Context
from ftcli.masking import masked, secrets
from ftcli.testing import run, tiny_tokenizer, write_config

CANARIES = {
    "HF_TOKEN": "hf_canary0token",
    "WANDB_API_KEY": "wandb0canary0key",
    "MLFLOW_TRACKING_PASSWORD": "mlflow0canary0password",
    "AWS_SECRET_ACCESS_KEY": "aws0canary/secret+key",
}
USER, PASSWORD = "canary0user", "canary0pass"
URL = f"https://{USER}:{PASSWORD}@huggingface.co/org/name"
ENVIRON = {**CANARIES, "HF_ENDPOINT": f"https://{USER}:{PASSWORD}@hub.example", "MLFLOW_TRACKING_URI": URL}
HIDDEN = (*CANARIES.values(), USER, PASSWORD)
TOKEN = CANARIES["HF_TOKEN"]

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("tokenize",),
    ("tokenize", URL),
    ("tokenize", "data.jsonl", "--tokenizer-path", URL, "--output-dir", "out"),
    ("tokenize", URL, "--tokenizer-path", "tokenizer", "--output-dir", "out"),
    ("tokenize", f"train={URL}", "--tokenizer-path", "tokenizer", "--output-dir", "out"),
    ("tokenize", "missing.jsonl", "--tokenizer-path", "tokenizer", "--output-dir", "out"),
    ("tokenize", "data.jsonl", "--tokenizer-path", "missing/a/b", "--output-dir", "out"),
    ("tokenize", "data.jsonl", "--tokenizer-path", "org/name", "--output-dir", "out"),
    ("tokenize", "data.jsonl", "--tokenizer-path", "tokenizer", "--output-dir", "data.jsonl"),
    ("tokenize", "data.jsonl", "--tokenizer-path", "tokenizer", "--output-dir", "out", "--text-column", URL),
    ("tokenize", "data.jsonl", "--tokenizer-path", "tokenizer", "--output-dir", "out", "--text-column", TOKEN),
    ("tokenize", "data.jsonl", "--tokenizer-path", "tokenizer", "--output-dir", "out", "--tokenizer-engine", TOKEN),
    ("tokenize", "data.jsonl", "--tokenizer-path", "tokenizer", "--output-dir", "out", "--num-proc", TOKEN),
    ("tokenize", "data.jsonl", "--tokenizer-path", "tokenizer", "--output-dir", "out", "--packing", URL),
    ("tokenize", "bad.jsonl", "--tokenizer-path", "tokenizer", "--output-dir", "out"),
    ("tokenize", "bad.csv", "--tokenizer-path", "tokenizer", "--output-dir", "out"),
    ("tokenize", "bad.pkl", "--tokenizer-path", "tokenizer", "--output-dir", "out"),
    ("tokenize", "data.jsonl", "--label-column", URL, "--tokenizer-path", "tokenizer", "--output-dir", "out"),
    ("tokenize", "data.jsonl", "--config", "run.yaml"),
    ("tokenize", "data.jsonl", "--config", "broken.yaml"),
    ("tokenize", "data.jsonl", "--config", "broken.toml"),
    ("tokenize", "data.jsonl", "--config", "unknown.yaml"),
    ("tokenize", "data.jsonl", "--config", URL),
    ("tokenize", "data.jsonl", "--profile", URL),
    ("tokenize", "data.jsonl", "--plugins-dir", URL),
    ("tokenize", "data.jsonl", "--set", f"tracking.run_name={URL}"),
    ("tokenize", "data.jsonl", "--set", f"tracking.{TOKEN}=1"),
    ("tokenize", "data.jsonl", "--set", TOKEN),
    ("tokenize", "data.jsonl", f"--{TOKEN}"),
    ("tokenize", "data.jsonl", "--dataset", URL),
    ("verify",),
    ("verify", "--tokenizer-path", URL),
    ("verify", "--tokenizer-path", "tokenizer", "--dataset", URL),
    ("verify", "--tokenizer-path", "tokenizer", "--model-name-or-path", URL),
    ("verify", "--tokenizer-path", "tokenizer", "--model-config", URL),
    ("train",),
    ("train", "--dataset", URL),
    ("train", "--dataset", "data.jsonl", "--tokenizer-path", "tokenizer", "--output-dir", "run"),
    ("train", "--dataset", URL, "--tokenizer-path", URL, "--model-name-or-path", URL, "--output-dir", "run"),
    ("train", "--dataset", "missing", "--report-to", TOKEN, "--run-name", URL),
    ("train-tokenizer", URL, "--output-dir", "made"),
    ("train-tokenizer", "missing.jsonl", "--output-dir", "made"),
    ("benchmark", "tokenize", URL, "--tokenizer-path", "tokenizer"),
    ("benchmark", "batch", "--dataset", URL),
    ("benchmark", "train", "--dataset", URL),
    ("benchmark", URL),
    ("settings", "--set", f"tracking.run_name={URL}"),
    ("settings", "--set", f"dataset.sources={URL},{TOKEN}"),
    ("settings", "--all"),
    ("settings", "--export-env"),
    ("settings", "--profile", URL),
    ("plugins", "list", "--plugins-dir", URL),
    ("plugins", "doctor"),
    ("plugins", URL),
    ("profiles", "show", URL),
    ("profiles", "list"),
    (URL,),
    (TOKEN, "--json"),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("secrets") / "tokenizer")


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Path) -> Path:
    shutil.copytree(tokenizer, tmp_path / "tokenizer")
    write_config(tmp_path / "config.json")
    (tmp_path / "data.jsonl").write_text('{"text": "Please cancel my subscription."}\n' * 20)
    (tmp_path / "bad.jsonl").write_text(f'{{"text": 3, "token": "{TOKEN}"}}\n')
    (tmp_path / "bad.csv").write_text(f"text,{TOKEN}\na\n")
    (tmp_path / "bad.pkl").write_bytes(f"c{TOKEN}\nname\n.".encode())
    (tmp_path / "run.yaml").write_text(f"dataset:\n  num_proc: {URL}\n")
    (tmp_path / "broken.yaml").write_text(f"tracking:\n  run_name: {URL}: [{TOKEN}\n")
    (tmp_path / "broken.toml").write_text(f"[tracking]\nrun_name = {URL}\n")
    (tmp_path / "unknown.yaml").write_text(f"tracking:\n  api_key: {TOKEN}\n{TOKEN}: 1\n")
    return tmp_path


def leaks(folder: Path, *texts: str, allowed: Sequence[Path] = ()) -> list[str]:
    """Where a canary stands: in a text, or in a file below `folder` or the home that is not `allowed`."""
    found = [f"text: {canary}" for canary in HIDDEN for text in texts if canary in text]
    for root in (folder, Path.home()):
        for path in root.rglob("*"):
            if path.is_file() and path not in allowed:
                data = path.read_bytes()
                found += [f"{path}: {canary}" for canary in HIDDEN if canary.encode() in data]
    return found


@pytest.mark.fault
@pytest.mark.usefixtures("nursery")
@pytest.mark.reliability(27, "secrets in the errors of every command")
def test_no_error_of_any_command_shows_a_secret(folder: Path) -> None:
    given, failed = list(folder.iterdir()), 0
    for words in COMMANDS:
        for options in ((), ("--json", "--verbose")):
            done = run(*words, *options, env=ENVIRON, cwd=folder)
            failed += done.exit_code != 0
            assert "Traceback" not in done.stdout + done.stderr
            assert not leaks(folder, done.stdout, done.stderr, allowed=given), words
    assert failed >= 100, "these are meant to fail"


@pytest.mark.fault
@pytest.mark.usefixtures("nursery")
@pytest.mark.reliability(27, "secrets in what a run that succeeds leaves behind")
def test_no_output_of_a_run_that_succeeds_holds_a_secret(folder: Path) -> None:
    given, secret = list(folder.iterdir()), ("--set", f"tracking.run_name={URL}?{TOKEN}")
    made = run("tokenize", "data.jsonl", "--tokenizer-path", "tokenizer", "--output-dir", "out", "--tokenizer-engine", "hf",
               "--num-proc", "1", "--json", *secret, env=ENVIRON, cwd=folder)  # fmt: skip
    assert made.exit_code == 0, made.stderr
    run_name = made.report["settings"]["tracking.run_name"]
    assert run_name == {"value": "https://***@huggingface.co/org/name?***", "origin": "--set"}
    trained = run("train", "--dataset", "out", "--tokenizer-path", "tokenizer", "--model-config", "config.json", "--output-dir", "run",
                  "--max-steps", "1", "--use-cpu", "--json", *secret, env=ENVIRON, cwd=folder)  # fmt: skip
    verified = run("verify", "--tokenizer-path", "tokenizer", "--dataset", "out", "--json", *secret, env=ENVIRON, cwd=folder)
    assert trained.exit_code == 0, trained.stderr
    texts = [text for done in (made, trained, verified) for text in (done.stdout, done.stderr)]
    assert list((folder / "run").rglob("training_args.bin")), "it holds the settings as objects"
    assert leaks(folder, *texts, allowed=given) == []


@pytest.mark.fault
@pytest.mark.reliability(27, "secrets in the traceback of a bug")
@pytest.mark.parametrize("options", [(), ("--verbose",), ("--json",)])
def test_a_bug_shows_no_secret_in_message_traceback_or_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    def broken(context: Context, **_: object) -> None:
        token = os.environ["HF_TOKEN"]
        raise RuntimeError(f"cannot reach {URL} with {token}")

    monkeypatch.setattr(settings_command, "run", broken)
    done = run("settings", *options, env=ENVIRON, cwd=folder)
    assert done.exit_code == 1
    assert "this is a bug in ftcli: RuntimeError: cannot reach https://***@huggingface.co/org/name with ***" in done.stderr
    kept = list(Path.home().rglob("ftcli-bug-*.txt"))
    assert len(kept) == 1
    assert "cannot reach https://***@huggingface.co/org/name with ***" in kept[0].read_text()
    assert not leaks(folder, done.stdout, done.stderr, allowed=list(folder.rglob("*")))


@pytest.mark.reliability(27, "what the harness must find", control=True)
def test_control_a_secret_that_is_printed_or_written_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(leaks(folder, json.dumps({"a": TOKEN}), URL, allowed=list(folder.rglob("*")))) == 3
    (folder / "log.txt").write_text(URL)
    assert leaks(folder, allowed=[path for path in folder.rglob("*") if path.name != "log.txt"])
    (folder / "log.txt").unlink()
    monkeypatch.setattr(masking, "secrets", lambda _: [])
    monkeypatch.setattr(masking, "_USER", masking.re.compile("((?!))"))
    done = run("tokenize", URL, "--tokenizer-path", TOKEN, "--output-dir", "out", env=ENVIRON, cwd=folder)
    assert any(USER in leak for leak in leaks(folder, done.stderr, allowed=list(folder.rglob("*")))), "without masking it leaks"


def test_masking_takes_secrets_and_leaves_the_rest() -> None:
    assert (
        masked(f"at {URL} and {Path(URL)}, or s3://key:word@bucket/x and a@b.c")
        == "at https://***@huggingface.co/org/name and https:/***@huggingface.co/org/name, or s3://***@bucket/x and a@b.c"
    )
    environ = {
        "HF_TOKEN": "abcdefgh",
        "GITHUB_TOKEN": "abcdefghij",
        "HF_TOKEN_PATH": "/home/x/token",
        "TOKENIZERS_PARALLELISM": "whatever",
        "MAX_TOKENS": "1000000",
        "X_TOKEN": "short",
        "HOME": "/home/x",
    }
    assert secrets(environ) == ["abcdefghij", "abcdefgh"]
    assert masking.masked_values({"a": [URL, 3, None], "b": (URL,)}) == {
        "a": ["https://***@huggingface.co/org/name", 3, None],
        "b": ["https://***@huggingface.co/org/name"],
    }


KEY = "sk-proj-ABCDEFGHIJKLMNOP1234567890abcdef"


@pytest.mark.parametrize("key", [KEY, "hf_" + "aBcDe" * 7, "ghp_" + "a1B2c3" * 6, "AKIAABCDEFGHIJKLMNOP"])
def test_a_key_in_a_setting_is_masked_whatever_stands_around_it(key: str) -> None:
    assert masking.masked_values({"run_name": f"key {key}, again ({key})"}) == {"run_name": "key ***, again (***)"}


@pytest.mark.parametrize(
    "value",
    [
        "data/hf_finetuningdataset2024",
        "sk-learn-benchmarks-2024-corpus",
        "task-2024-ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "a" * 40,
        "0123456789abcdef" * 4,
        "org/model-32B-Instruct",
    ],
)
def test_the_name_of_a_file_a_model_or_a_revision_stays(value: str) -> None:
    assert masking.masked_values([value]) == [value]


def test_no_file_of_a_run_has_the_key_that_its_name_holds(folder: Path) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": f"words {number}"}) + "\n" for number in range(20)))
    config = write_config(folder / "qwen3.json", "qwen3")
    words = ("train", "--dataset", "rows.jsonl", "--tokenizer-path", "tokenizer", "--model-config", str(config), "--output-dir", "named")
    done = run(*words, "--max-steps", "1", "--no-verify", "--save-strategy", "no", "--run-name", f"key {KEY}", "--json", cwd=folder)
    assert done.exit_code == 0, done.stderr
    written = {path.name: path.read_bytes() for path in (folder / "named").rglob("*") if path.is_file()}
    assert {"README.md", "report.html", "report.json", "ftcli-run.json", "training_args.bin"} <= written.keys()
    assert [name for name, content in written.items() if KEY.encode() in content] == []
    assert KEY not in done.stdout
    assert "key ***" in written["README.md"].decode()
