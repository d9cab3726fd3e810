"""The built-in source formats, each in its own file."""

from __future__ import annotations

from ftcli import hookimpl
from ftcli.contracts import SourceFormat
from ftcli.hookspecs import Register


@hookimpl
def register_sources(register: Register[type[SourceFormat]]) -> None:
    from .columnar import ArrowIpc, Parquet
    from .csvfile import Csv
    from .hfdataset import HuggingFace
    from .jsonfile import Json
    from .jsonl import JsonLines
    from .picklefile import Pickle
    from .textfile import Text

    register("jsonl", JsonLines)
    register("json", Json)
    register("csv", Csv)
    register("parquet", Parquet)
    register("arrow", ArrowIpc)
    register("text", Text)
    register("pickle", Pickle)
    register("hf", HuggingFace)
