"""`ftcli doctor` tells everything but secrets, also of an installation that is broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftcli import masking
from ftcli.commands import doctor
from ftcli.core.doctor import installed, surroundings
from ftcli.core.doctor.part import Part, examine, page
from ftcli.core.processes.isolated_process import Silent, Ward
from ftcli.errors import DataError
from ftcli.masking import private, private_values
from ftcli.records import Machine, PluginInfo, Value, to_json
from ftcli.testing import Result, run
from timing import FOR_EVER, PATIENCE

GOOD = "from ftcli import hookimpl\n@hookimpl\ndef on_step(step): ...\n"
CANARIES = {"HF_TOKEN": "canary0hub", "WANDB_API_KEY": "canary0wandb", "AWS_SECRET_ACCESS_KEY": "canary0aws"}
USER, PASSWORD, QUERY, PERSON = "canary0user", "canary0pass", "canary0query", "canary0person"
URL = f"https://{USER}:{PASSWORD}@host.example/data.jsonl?token={QUERY}"
CACHE_TOKEN, FILE_TOKEN = "hf_" + "AbCdEfGh" * 4, "canary0file"
LEAKY = f"""
import os
print(os.environ["HF_TOKEN"])
os.write(2, os.environ["HF_TOKEN"].encode())
raise RuntimeError("{URL} with " + os.environ["WANDB_API_KEY"] + " and password={PASSWORD}")
"""
PARTS = [
    "installation", "python", "system", "machine", "gpus", "limits", "libraries", "extras", "plugins", "settings", "variables", "checks", "engines", "torch",
    "places", "terminal", "doctor",
]  # fmt: skip


def parts(result: Result) -> dict[str, dict[str, Any]]:
    return {part["name"]: part for part in result.report["details"]["parts"]}


# -- no secrets --------------------------------------------------------------------------------------------------------


def leaking(folder: Path, *options: str) -> str:
    """All that the doctor prints, on an installation whose every corner holds a secret."""
    home = Path.home()
    (home / ".cache/huggingface").mkdir(parents=True, exist_ok=True)
    (home / ".cache/huggingface/token").write_text(FILE_TOKEN)
    plugins = folder / PERSON / "plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    (plugins / "leaky.py").write_text(LEAKY)
    config = home / "run.toml"
    config.write_text(f'[tracking]\nrun_name = "{URL}"\n[train]\ndeepspeed = "/home/{PERSON}/api_key={QUERY}.json"\n')
    environ = {
        **CANARIES,
        "USER": PERSON,
        "HF_HOME": str(home / ".cache" / CACHE_TOKEN),
        "HF_ENDPOINT": URL,
        "HTTPS_PROXY": URL,
        "MLFLOW_TRACKING_URI": "canary0mlflow",
        "HF_SOMETHING_NEW": "canary0unknown",
        "DATASET_NUMPROC": "canary0misspelt",
        "MODEL_NAME_OR_PATH": f"/home/{PERSON}/models",
        "DATASET_SOURCES": f"{URL},/scratch/{PERSON}/rows.jsonl",
        "RUNTIME_CACHE_DIR": str(home / "cache" / CACHE_TOKEN),
    }
    done = run("doctor", "--quick", "--config", config, "--plugins-dir", plugins, *options, env=environ, cwd=folder)
    assert done.exit_code == 1
    assert "leaky" in done.stdout
    assert "MODEL_NAME_OR_PATH" in done.stdout
    return done.stdout + done.stderr


def leaks(text: str) -> list[str]:
    hidden = [*CANARIES.values(), USER, PASSWORD, QUERY, PERSON, CACHE_TOKEN, FILE_TOKEN, str(Path.home())]
    hidden += ["canary0mlflow", "canary0unknown", "canary0misspelt"]
    return [secret for secret in hidden if secret in text]


def test_no_secret_and_no_name_is_in_the_whole_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = leaking(tmp_path, "--json")
    beside = capfd.readouterr()

    assert leaks(text + beside.out + beside.err) == []
    assert "***" in text


def test_control_without_masking_the_same_output_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "private_values", lambda report: report)
    monkeypatch.setattr(masking, "secrets", lambda _: [])

    assert {PERSON, QUERY, CACHE_TOKEN, CANARIES["WANDB_API_KEY"], str(Path.home())} <= set(leaks(leaking(tmp_path, "--json")))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/kim/x and C:\\Users\\kim\\x", "/home/***/x and C:\\Users\\***\\x"),
        ("/mnt/lee0lee/x, lee0lee", "/mnt/***/x, lee0lee"),
        ("https://h/x?X-Amz-Signature=abc&y=1", "https://h/x?X-Amz-Signature=***&y=1"),
        ("{'hub_token': 'x', 'n': 1}", "{'hub_token': '***', 'n': 1}"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("ghp_" + "a1" * 18 + " sk-" + "a1-" * 8 + "x", "*** ***"),
        ("snapshots/" + "0123456789abcdef" * 2, "snapshots/***"),
        ("TOKENIZERS_PARALLELISM=true gigatoken: 0.10", "TOKENIZERS_PARALLELISM=true gigatoken: 0.10"),
        ("models/Qwen3-4B-Instruct-2507-finetuned-on-Korean", "models/Qwen3-4B-Instruct-2507-finetuned-on-Korean"),
    ],
)
def test_what_others_should_not_read_is_masked_and_the_rest_stays(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "lee0lee")

    assert private(text) == shown


def test_the_home_folder_is_a_tilde_and_its_neighbour_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/scratch/me0")

    assert private("/scratch/me0/x /scratch/me01/x") == "~/x /scratch/me01/x"


def test_records_are_masked_in_depth_and_keep_their_types() -> None:
    info = PluginInfo("a", "1", "/home/kim/a.py", "", ("on_step",))
    value = {"p": (info,), "s": Value([Path("/home/kim"), None, 3], "x"), "HF_TOKEN": "abc", "api_key": {"a": "b"}}

    assert private_values(value) == {
        "p": (PluginInfo("a", "1", "/home/***/a.py", "", ("on_step",)),),
        "s": Value(["/home/***", None, 3], "x"),
        "HF_TOKEN": masking.NOT_SHOWN,
        "api_key": masking.MASK,
    }


def test_variables_that_are_not_known_are_named_without_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OMP_NUM_THREADS": "2",
        "DATASET_NUM_PROC": "3",
        "DATASET_X": "x",
        "HF_X": "x",
        "HTTPS_PROXY": "x",
        "PATH0": "x",
    }.items():
        monkeypatch.setenv(name, value)

    found, _ = surroundings.variables(["DATASET_NUM_PROC"])

    assert (found["OMP_NUM_THREADS"], found["DATASET_NUM_PROC"]) == ("2", "3")
    assert {found[name] for name in ("DATASET_X", "HF_X", "HTTPS_PROXY")} == {masking.NOT_SHOWN}
    assert "PATH0" not in found


# -- what it says ------------------------------------------------------------------------------------------------------


def test_the_json_document_has_every_part_and_the_exit_code_is_0_when_nothing_is_broken() -> None:
    result = run("doctor", "--quick", "--json")
    document, found = result.report, parts(result)

    assert [part["name"] for part in document["details"]["parts"]] == PARTS
    assert all(set(part) == {"name", "title", "facts", "broken", "error"} for part in found.values())
    assert (document["schema"], document["command"], document["status"], document["error"]) == ("ftcli.report/1", "doctor", "ok", None)
    assert (result.exit_code, document["metrics"]["broken"], document["metrics"]["parts"]) == (0, 0, len(PARTS))
    assert document["metrics"]["cpu_seconds"] > 0
    assert {check["id"] for check in document["checks"]} >= {"FT001", "FT002", "FT003", "FT004", "FT007"}
    assert {check["stage"] for check in document["checks"]} == {"env"}
    assert set(document["machine"]) == set(Machine.__dataclass_fields__)
    assert found["libraries"]["facts"]["torch"] == metadata.version("torch")
    built, distributed = found["torch"]["facts"]["version"], metadata.version("torch")
    assert built.partition("+")[0] == distributed.partition("+")[0]  # PyPI's 2.13.0 calls itself 2.13.0+cu130
    assert set(found["engines"]["facts"]) == {"gigatoken", "fastokens", "splintr", "hf"}
    assert document["settings"] == {}


@pytest.mark.slow
def test_the_page_has_torch_as_it_is_and_engines_that_have_loaded() -> None:
    result = run("doctor", "--set", "dataset.num_proc=3")

    assert result.exit_code == 0, result.stdout
    assert result.stdout.startswith("## ftcli doctor\n\nNo problems found.\n\n### Installation\n\n```text\nftcli ")
    assert result.stdout.count("```") == 2 * len(PARTS)
    assert result.stdout.count("loads and encodes") == 4
    assert " in operators, " in result.stdout
    assert "dataset.num_proc  3  (from --set)" in result.stdout


def test_the_parts_are_blocks_that_no_value_can_leave() -> None:
    broken = Part("b", "B", {"x": ["a\nb```", 1], "y": {"n": None, "m": ("c", "d")}, "z": []}, ("it @is <b>",), "E: no")

    lines = list(page(to_json([Part("a", "A"), broken])))

    assert [line for line in lines if line.startswith("```")] == ["```text", "```"] * 3
    assert lines[2:8] == ["**Broken:**", "", "```text", "B: it @is <b>", "B: E: no", "```"]
    assert lines[-6:] == ["x  a b'''", "   1", "y  m c d", "z  none", "error  E: no", "```"]


# -- broken installations ----------------------------------------------------------------------------------------------


def test_a_broken_plugin_is_a_line_and_the_good_one_is_described(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    for name, text in {
        "good": GOOD,
        "raises": "import no_such_module",
        "ends": "import os; os._exit(7)",
        "aborts": "import os; os.abort()",
    }.items():
        (folder / f"{name}.py").write_text(text)

    result = run("doctor", "--quick", "--json", "--plugins-dir", folder)
    facts, broken = parts(result)["plugins"]["facts"], parts(result)["plugins"]["broken"]

    assert (result.exit_code, result.report["status"], result.report["metrics"]["plugins_broken"]) == (1, "failed", 3)
    assert {key: facts["good"][key] for key in ("version", "file", "hooks")} == {
        "version": "0",
        "file": str(folder / "good.py"),
        "hooks": ["on_step"],
    }
    assert "no_such_module" in facts["raises"]["error"]
    assert facts["ends"]["error"] == "its process ended with exit code 7"
    assert facts["aborts"]["error"] == "its process ended by SIGABRT"
    assert [line.partition(":")[0] for line in broken] == ["aborts", "ends", "raises"]
    assert parts(result)["checks"]["facts"]["FT001"], "the checks run without the plugins"
    assert "good" in [each["name"] for each in result.report["plugins"]]


def test_settings_that_cannot_be_are_a_line_and_exit_code_1() -> None:
    result = run("doctor", "--quick", env={"DATASET_NUM_PROC": "many"})

    assert result.exit_code == 1
    assert "dataset.num_proc = 'many' (from DATASET_NUM_PROC)" in result.stdout
    assert "FT001" in result.stdout


def test_a_wrong_command_line_is_exit_code_2() -> None:
    assert run("doctor", "--set", "dataset.nope=1").exit_code == run("doctor", "--nope").exit_code == run("doctor", "x").exit_code == 2


def test_without_a_library_that_the_command_line_needs_the_doctor_works_and_other_commands_point_to_it(tmp_path: Path) -> None:
    (tmp_path / "pydantic").mkdir()
    (tmp_path / "pydantic/__init__.py").write_text("raise ImportError('pydantic was built for another Python')")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def spoken(*words: str) -> Result:
        done = subprocess.run([sys.executable, "-m", "ftcli", *words], capture_output=True, text=True, env=environ, timeout=PATIENCE)
        return Result(done.returncode, done.stdout, done.stderr)

    result = spoken("doctor", "--quick", "--json")
    found = parts(result)
    assert (result.exit_code, result.stderr) == (1, "")
    assert found["installation"]["facts"]["ftcli"] == metadata.version("ftcli")
    assert found["settings"]["error"] == "ImportError: pydantic was built for another Python"
    assert (found["libraries"]["error"], found["places"]["error"]) == ("", "")
    other = spoken("settings")
    assert (other.exit_code, other.stderr) == (
        1,
        "error: ftcli's installation is broken: pydantic was built for another Python\n  Run: ftcli doctor\n",
    )


def test_extras_may_be_missing_and_what_ftcli_needs_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        "no-such-library>=2",
        "pluggy>=999",
        "psutil",
        "no-such-extra; extra == 'more'",
        "xxhash>=3; extra == 'more'",
        "xxhash<1; extra == 'old'",
    ]
    monkeypatch.setattr(installed, "distribution", lambda _: SimpleNamespace(requires=wanted))
    here = {name: metadata.version(name) for name in ("pluggy", "psutil", "xxhash")}

    facts, broken = installed.libraries()
    optional, too_old = installed.extras()

    assert {name: facts[name] for name in ("no-such-library", "pluggy", "psutil")} == {
        "no-such-library": "missing",
        "pluggy": here["pluggy"],
        "psutil": here["psutil"],
    }
    assert broken == [
        "no-such-library is missing: pip install 'no-such-library>=2'",
        f"pluggy {here['pluggy']} does not meet ftcli's requirement: pip install 'pluggy>=999'",
    ]
    assert optional == {"more": ["no-such-extra missing", f"xxhash {here['xxhash']}"], "old": [f"xxhash {here['xxhash']}"]}
    assert too_old == [f"xxhash {here['xxhash']} does not meet ftcli's requirement: pip install 'xxhash<1'"]


def test_a_part_that_raises_is_a_part_with_an_error() -> None:
    def refuses() -> Any:
        raise DataError("no rows", "Give some.")

    assert examine("a", "A", refuses).problems == ("no rows Give some.",)
    assert examine("a", "A", lambda: 1 // 0).error.startswith("ZeroDivisionError: ")  # type: ignore[arg-type, return-value]
    assert examine("a", "A", sys.exit).error == "SystemExit:"


def test_the_ward_answers_after_an_abort_and_gives_up_what_never_ends() -> None:
    ward = Ward("os")
    with pytest.raises(Silent, match=r"^its process ended by SIGABRT$"):
        ward.ask("abort")
    assert ward.ask("getpid") != os.getpid()
    with pytest.raises(Silent, match=r"^AttributeError: .*no_such_thing"):
        ward.ask("no_such_thing")
    ward.close()
    hanging = Ward("time", patience=0.1)
    with pytest.raises(Silent, match="no answer within"):
        hanging.ask("sleep", FOR_EVER)


def test_what_is_nowhere_and_what_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not/there"))
    monkeypatch.setattr(surroundings, "LEAST_FREE", 2**62)

    facts, broken = surroundings.places()

    assert facts["cache"].endswith("does not exist yet")
    assert "MB are free" in broken[0]


def test_a_place_that_cannot_be_looked_at_leaves_the_others_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    usage = shutil.disk_usage

    def refused(path: Path) -> Any:
        if path == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return usage(path)

    monkeypatch.setattr(shutil, "disk_usage", refused)
    facts, broken = surroundings.places()

    assert "cache" not in facts
    assert "working directory" in facts
    assert f"cache: {tmp_path / 'ftcli'}: Permission denied" in broken
