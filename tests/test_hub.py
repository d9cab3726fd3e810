"""The hub that cannot be reached: known before the libraries try for a minute."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ftcli.plugins.environment import environment

from ftcli.core import hub
from ftcli.core.models.adapter_base import unavailable
from ftcli.settings import Settings
from ftcli.testing import run
from report_samples import MACHINE


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in (hub.VARIABLE, "HF_ENDPOINT", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    hub.unknown_host.cache_clear()
    yield
    hub.unknown_host.cache_clear()


def answers(monkeypatch: pytest.MonkeyPatch, *errors: int | None) -> list[str]:
    """What the name server says, one after the other; the list fills with what it was asked."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: Any) -> list[Any]:
        error = errors[len(asked)]
        asked.append(host)
        if error is not None:
            raise socket.gaierror(error, "as the system says it")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def wanted(**sections: dict[str, Any]) -> str | None:
    tweak = environment(Settings(**sections), MACHINE).get(hub.VARIABLE)
    return None if tweak is None else f"{tweak.value}: {tweak.reason}"


@pytest.mark.parametrize(
    "sections", [{"tokenizer": {"path": "Qwen/Qwen3"}}, {"model": {"name_or_path": "gpt2"}}, {"dataset": {"sources": ["a/b:c"]}}]
)
def test_a_hub_that_no_name_server_knows_is_not_asked(sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, socket.EAI_NONAME)

    assert wanted(**sections) == "1: huggingface.co cannot be resolved here: the cache is used immediately"
    assert asked == ["huggingface.co"]


def test_nobody_is_asked_about_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer").mkdir()

    assert (
        wanted(tokenizer={"path": "tokenizer"}, model={"name_or_path": "/not/there"}, dataset={"sources": ["s3://a/b", "a/b/*.csv"]})
        is None
    )
    assert asked == []


@pytest.mark.parametrize(
    ("errors", "unknown"),
    [
        ([None], False),
        ([socket.EAI_AGAIN, socket.EAI_AGAIN, None], False),
        ([socket.EAI_AGAIN] * hub.TRIES, True),
        ([socket.EAI_AGAIN, socket.EAI_NONAME], True),
    ],
)
def test_a_name_server_that_does_not_answer_is_asked_again(
    errors: list[int | None], unknown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers(monkeypatch, *errors)

    assert (wanted(tokenizer={"path": "gpt2"}) is not None) == unknown
    assert len(asked) == len(errors)


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "all_proxy", hub.VARIABLE])
def test_where_a_proxy_asks_or_nobody_does_nothing_is_known(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch)
    monkeypatch.setenv(variable, "1")

    assert wanted(tokenizer={"path": "gpt2"}) is None
    assert asked == []


def test_it_is_the_users_own_hub_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, socket.EAI_NONAME)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example:8443/x")

    assert "hub.example cannot be resolved" in str(wanted(tokenizer={"path": "gpt2"}))
    assert asked == ["hub.example"]


ADAPTER = '{"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "far/away"}'


@pytest.mark.parametrize(("command", "adapter"), [("predict", False), ("predict", True), ("merge", True)])
def test_a_model_that_is_an_argument_is_one_too(command: str, adapter: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`ftcli predict nowhere hello` asked for half a minute. An adapter here may have its base there."""
    asked = answers(monkeypatch, socket.EAI_NONAME)
    monkeypatch.chdir(tmp_path)
    if adapter:
        (tmp_path / "nowhere").mkdir()
        (tmp_path / "nowhere" / "adapter_config.json").write_text(ADAPTER)
    result = run(command, "nowhere", *(("hello",) if command == "predict" else ("--output", tmp_path / "merged")), "--json")

    assert asked == ["huggingface.co"]
    assert "HF_HUB_OFFLINE=1: huggingface.co cannot be resolved here: the cache is used immediately" in result.report["notes"]
    assert result.exit_code
    assert result.report["error"]["hint"].startswith("Run this once where there is a network")


def test_the_base_of_an_adapter_that_is_trained_on_may_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`ftcli train --model-name-or-path ADAPTER` asked for 37 s, and was told to look at its folder."""
    asked = answers(monkeypatch, socket.EAI_NONAME)
    (tmp_path / "adapter_config.json").write_text(ADAPTER)

    assert wanted(model={"name_or_path": str(tmp_path)}) == "1: huggingface.co cannot be resolved here: the cache is used immediately"
    assert asked == ["huggingface.co"]


def test_weights_that_only_the_hub_has_are_no_missing_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers says of a cache without the weights what it says of a repository without them."""
    error = OSError("far/away does not appear to have a file named model.safetensors or model.safetensors.index.json and thus …")
    monkeypatch.setenv(hub.VARIABLE, "1")
    found = unavailable("far/away", error)

    assert found is not None
    assert found.hint == hub.advice()
    monkeypatch.delenv(hub.VARIABLE)
    assert unavailable("far/away", error) is None


def test_the_advice_is_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """It told those who had set HF_HUB_OFFLINE=1 to set it."""
    answers(monkeypatch, socket.EAI_NONAME)

    assert "set HF_HUB_OFFLINE=1" in hub.advice()
    wanted(tokenizer={"path": "gpt2"})
    monkeypatch.setenv(hub.VARIABLE, "1")
    assert "huggingface.co cannot be resolved here, and" in hub.advice()
    hub.unknown_host.cache_clear()
    assert "HF_HUB_OFFLINE=1 forbids asking the hub, and" in hub.advice()
