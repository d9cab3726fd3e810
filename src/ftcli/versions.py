"""Versions of what is installed, each looked up once a process: for every one the whole of its metadata is parsed (2 ms and more)."""

from __future__ import annotations

from functools import cache
from importlib import metadata

version = cache(metadata.version)
