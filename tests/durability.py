"""What is made durable, renamed and removed, in the order in which it happens."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Steps from now on: "sync NAME", "move NAME" (the new name), "remove NAME" of a file."""
    steps: list[str] = []
    fsync = os.fsync

    def synced(descriptor: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def noted(word: str, real: Callable[..., Any], which: int) -> Callable[..., Any]:
        def call(*paths: Path, **options: Any) -> Any:
            done = real(*paths, **options)
            steps.append(f"{word} {Path(paths[which]).name}")
            return done

        return call

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", noted("move", Path.rename, 1))
    monkeypatch.setattr(Path, "replace", noted("move", Path.replace, 1))
    monkeypatch.setattr(Path, "unlink", noted("remove", Path.unlink, 0))
    return steps
