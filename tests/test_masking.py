"""A document is masked string by string: a number in it is no secret, and JSON stays JSON."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftcli.cli.main import main
from ftcli.cli.streams import emit
from ftcli.masking import masked_json


def test_a_number_in_a_secret_leaves_json_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_PASSWORD", "131072")
    monkeypatch.setenv("MAX_TOKEN_LENGTH", "777777")
    document = {"rows": 131072, "text": "131072 of 777777", "deep": [{"a\x9b": "\x9b"}]}
    given: list[dict[str, Any]] = [{}, {"ensure_ascii": False, "indent": 1}]
    for options in given:
        text = masked_json(document, **options)
        assert json.loads(text) == {"rows": 131072, "text": "*** of 777777", "deep": [{"a\x9b": "\x9b"}]}
        assert "\x9b" not in text
    stream = io.StringIO()
    emit(masked_json(document), stream)
    assert json.loads(stream.getvalue())["rows"] == 131072


def test_a_name_that_only_holds_such_a_word_is_a_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = {"ADMIN_PASSWORD": "123456", "ACCOUNT_TOKEN": "234567", "My_Secret": "345678", "MY_SECRET": "456789"}
    for name, value in hidden.items():
        monkeypatch.setenv(name, value)
    assert json.loads(masked_json(list(hidden.values()))) == ["***"] * len(hidden)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_stderr_ends_nothing_and_the_exit_code_stays(capsys: pytest.CaptureFixture[str]) -> None:
    for words, stream in ((["nosuch"], "stderr"), (["nosuch", "--json"], "stdout")):
        with Path("/dev/full").open("w") as full:
            given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
            done = subprocess.run([sys.executable, "-m", "ftcli", *words], **given, text=True, check=False)
        assert done.returncode == 2
        assert "Traceback" not in f"{done.stdout}{done.stderr}"
    assert main(["nosuch"]) == 2
    capsys.readouterr()
