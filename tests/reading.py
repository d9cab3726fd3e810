"""What the tests of sources share: build the registry, read files through plan and shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ftcli.plugins.sources import register_sources

from ftcli.core.reading.read import Plan, make_plan, read_shard, scan_labels
from ftcli.errors import DataError
from ftcli.records import BadRow, Split
from ftcli.registry import AnyRegistry, Registry
from ftcli.settings import Settings, update


def formats() -> AnyRegistry:
    registry: AnyRegistry = Registry("source")
    register_sources(registry.registrar("sources"))
    return registry


def settings(*sources: object, mode: str | None = None, **dataset: Any) -> Settings:
    return update(
        Settings(),
        {"train.mode": mode, "dataset.sources": [str(source) for source in sources], **{f"dataset.{k}": v for k, v in dataset.items()}},
    )


def plan(*sources: object, **dataset: Any) -> Plan:
    return make_plan(settings(*sources, **dataset), formats())


def rows(*sources: object, split: Split | None = None, **dataset: Any) -> list[Any]:
    """All texts, or (text, label) pairs, in order; every batch is checked against the contract on the way."""
    chosen, registry = settings(*sources, **dataset), formats()
    made = make_plan(chosen, registry)
    result: list[Any] = []
    for shard in made.shards:
        if split in {None, shard.split}:
            for piece, batch in read_shard(shard, made.columns, chosen, registry):
                assert piece in shard.pieces
                batch.validate(full=True)
                assert str(batch.schema.field("text").type) == "large_string"
                assert all(column.null_count == 0 for column in batch.columns)
                if made.columns.label:
                    assert (
                        str(batch.schema.field("label").type)
                        == {"string": "large_string", "int": "int64", "float": "double"}[made.columns.label_kind or ""]
                    )
                    result += zip(batch["text"].to_pylist(), batch["label"].to_pylist(), strict=True)
                else:
                    result += batch["text"].to_pylist()
    return result


def labels(*sources: object, **dataset: Any) -> set[Any]:
    chosen, registry = settings(*sources, **dataset), formats()
    made = make_plan(chosen, registry)
    return set().union(*(scan_labels(shard, made.columns, chosen, registry) for shard in made.shards))


def count(*sources: object, **dataset: Any) -> dict[str, int]:
    """Rows by split."""
    chosen, registry = settings(*sources, **dataset), formats()
    made = make_plan(chosen, registry)
    result: dict[str, int] = {}
    for shard in made.shards:
        for _, batch in read_shard(shard, made.columns, chosen, registry):
            result[shard.split] = result.get(shard.split, 0) + batch.num_rows
    return result


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(*sources: object, **dataset: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        rows(*sources, **dataset)
    assert caught.value.hint, f"no hint: {caught.value.message}"
    return caught.value


def accounted(*sources: object, **dataset: Any) -> tuple[list[str], list[BadRow]]:
    """The texts that are given out and the rows that are rejected."""
    chosen, registry = settings(*sources, **dataset), formats()
    made = make_plan(chosen, registry)
    good: list[str] = []
    bad: list[BadRow] = []
    for shard in made.shards:
        for piece in shard.pieces:
            for batch in registry.get(piece.format)().read(piece, made.columns, chosen, bad.append):
                batch.validate(full=True)
                good += batch["text"].to_pylist()
    return good, bad
