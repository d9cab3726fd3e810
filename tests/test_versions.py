"""Versions of what is installed."""

from __future__ import annotations

from importlib import metadata

import pytest

from ftcli.versions import version


def test_metadata_are_parsed_once_a_process_and_what_is_missing_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    found = metadata.distribution
    monkeypatch.setattr(metadata, "distribution", lambda name: asked.append(name) or found(name))  # type: ignore[func-returns-value]
    version.cache_clear()

    assert version("pytest") == version("pytest") == pytest.__version__
    for _ in range(2):
        with pytest.raises(metadata.PackageNotFoundError):
            version("nobody-has-this")

    assert asked == ["pytest", "nobody-has-this", "nobody-has-this"]
