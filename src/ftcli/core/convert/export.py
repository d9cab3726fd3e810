"""Prepared data in another format, published as prepared data are: whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcli.context import Context
from ftcli.contracts_export import Exporter, ExportJob
from ftcli.core.files.durable import KEPT
from ftcli.core.files.manifest import Damage, check_files, fingerprint, read_manifest
from ftcli.core.publishing.output_location import check_place
from ftcli.core.publishing.publish import Attempt
from ftcli.core.storage.store import Store
from ftcli.errors import PluginError, PublishError, StoreError, UsageError
from ftcli.pluginfaults import named

if TYPE_CHECKING:
    from ftcli.core.tokenizer.lossless import Lossless

SHARD = "export"
VERSION = 1
"""Raised when a built-in exporter would write other bytes for the same store."""
FORM = "ftcli.contracts_export.Exporter says what an exporter does; docs/hooks.md has a small one."
REPORT = f"If the plugin is yours: {FORM} Otherwise report it to its author."
MADE = frozenset({"schema", "fingerprint", "content_hash", "files", "seal"})
"""Keys of a manifest that publishing fills in."""


def export(context: Context, store: Store, output: Path, kind: str, splits: Sequence[str], *, tokens_only: bool) -> dict[str, Any]:
    """Write `store` to the directory `output` in the format `kind`. An export of the same is used, if it is there.

    Args:
        splits: all of them if empty.
        tokens_only: labels may be left out.

    Returns:
        the metrics of the command.

    Raises:
        SettingsError: no exporter has that name.
        UsageError: format and wishes do not fit.
        StoreError: the store lacks a split, was made by another tokenizer, is damaged, or holds what the format cannot.
        PublishError: the output is in the way, or the file system refuses.
        PluginError: the exporter breaks.
    """
    make, owner = context.plugins.registry("exporter").get(kind, "--format"), context.plugins.outsider("exporter", kind)
    with named(f"exporter {kind}", owner, REPORT):
        exporter: Exporter = make()
    whole = bool(getattr(exporter, "is_store", False))
    if whole and (splits or tokens_only):
        raise UsageError(f"{kind} is a copy of the whole store", "Remove --split and --tokens-only.")
    wanted = tuple(dict.fromkeys(splits)) or tuple(store.split_names)
    counts = {name: {"rows": len(data), "tokens": int(data.lengths.sum())} for name in wanted for data in [store.split(name)]}
    decode = _decoder(context, store, kind, texts=bool(getattr(exporter, "texts", False)))
    inputs = {
        "store": store.fingerprint,
        "format": kind,
        "splits": list(wanted),
        "--tokens-only": tokens_only,
        "with text": decode is not None,
        "plugins": _maker(context, kind),
    }
    mark = store.fingerprint if whole else fingerprint({"version": VERSION, **inputs})
    figures = {
        "rows": sum(count["rows"] for count in counts.values()),
        "tokens": sum(count["tokens"] for count in counts.values()),
        "files": 0,
        "bytes": 0,
        "texts_kept": None,
        "texts_lost": None,
        "content_hash": None,
        "reused": False,
    }
    _refuse_prepared(store, output, mark)
    check_place(output)
    with Attempt.open(output, mark, replace=context.settings.runtime.overwrite, inputs=inputs) as attempt:
        attempt.on_left = context.note
        if attempt.ready is None:
            manifest = (
                {key: value for key, value in store.manifest.items() if key not in MADE} if whole else _manifest(store, counts, inputs)
            )
            if not whole:  # the hashes of a copy are compared when it is made
                _refuse_damaged(store, wanted)
            context.progress.start("export", figures["rows"], "rows")
            job = ExportJob(wanted, tokens_only, decode, lambda rows: _advance(context, attempt, rows))
            published = _write(attempt, exporter, (kind, owner), store, job, manifest)
            context.progress.close()
        else:
            published, figures["reused"] = attempt.ready, True
            context.note(f"{output} already holds this export: nothing was written")
    if decode is not None and not figures["reused"]:
        figures |= {"texts_kept": decode.kept, "texts_lost": decode.lost}
        if decode.lost:
            context.note(
                f"{decode.lost:,} of {decode.kept + decode.lost:,} texts do not encode to the same ids again and are written as null"
            )
    files = published["files"]
    return figures | {"files": len(files), "bytes": sum(entry["bytes"] for entry in files), "content_hash": published["content_hash"]}


def _refuse_prepared(store: Store, output: Path, mark: str) -> None:
    """Raises `PublishError`: prepared data lie there, which no export replaces, whatever --overwrite says; or it is inside of what is exported."""
    if store.path.resolve() in output.resolve().parents:
        raise PublishError(
            f"{output} is inside the prepared data being exported, and would be deleted with it",
            "Choose a directory outside the prepared data.",
        )
    there = read_manifest(output.resolve())
    if there is not None and "format" not in there and there["fingerprint"] != mark:
        raise PublishError(f"{output} holds prepared data, not an export", "Choose another output directory.")


def _write(
    attempt: Attempt, exporter: Exporter, offer: tuple[str, str | None], store: Store, job: ExportJob, manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """`offer`: under which name it was asked for, and the plugin it is of."""
    kind, owner = offer
    try:
        with named(f"exporter {kind}", owner, REPORT), attempt.shard(SHARD) as shard:
            folder = shard.path(SHARD).parent
            given: Any = exporter.export(store, folder, job)
            paths = list(given) if isinstance(given, Iterable) else []
            fault = _fault(paths, folder) if isinstance(given, Iterable) else f"gives {type(given).__name__}, not the paths of its files"
            if fault:
                raise PluginError(f"the exporter {kind} of plugin {owner!r} {fault}", REPORT)
            made = shard.commit(sorted({path.relative_to(folder).as_posix() for path in paths}), {})
        if getattr(exporter, "is_store", False):
            _refuse_damage(store, {entry["path"]: entry["xxh3"] for entry in made["files"]})
        return attempt.publish(manifest, [SHARD])
    except StoreError:
        attempt.forget(SHARD)
        raise
    except PublishError as error:  # it is one shard, and the next run writes it again
        attempt.forget(SHARD)
        raise PublishError(error.message, error.hint.replace(KEPT, "")) from error


def _fault(paths: Sequence[Any], folder: Path) -> str:
    """What is wrong with the files that an exporter lists, in words."""
    for path in paths:
        if not isinstance(path, Path):
            return f"gives a {type(path).__name__} among its files, not a Path"
        if not path.is_relative_to(folder) or not path.is_file():
            return f"lists a file that it did not write into its folder: {path.name}"
    return ""


def _refuse_damaged(store: Store, splits: Sequence[str]) -> None:
    """Raises `StoreError`: a file of these splits has not the content that the store's manifest says."""
    try:
        check_files(store.path, {"files": [file for file in store.manifest["files"] if file["path"].split("/")[0] in splits]}, full=True)
    except StoreError:
        _refuse_replaced(store)
        raise


def _refuse_replaced(store: Store) -> None:
    """Raises `StoreError`: other data lie there by now, whose files are compared with the manifest of those that were opened."""
    now = read_manifest(store.path)
    if now is not None and now["files"] != store.manifest["files"]:
        raise StoreError(f"{store.path} was prepared again during the export", "Run the export again.")


def _refuse_damage(store: Store, hashes: Mapping[str, str]) -> None:
    """Raises `StoreError`: a file of the copy has not the content that the store's manifest says; opening compares both ends of a file alone."""
    for entry in store.manifest["files"]:
        if (found := hashes.get(entry["path"])) != entry["xxh3"]:
            _refuse_replaced(store)
            damage = Damage(entry["path"], "content", entry["xxh3"], found or "nothing")
            raise StoreError(f"{store.path / damage.path} {damage.words}", damage.hint)


def _advance(context: Context, attempt: Attempt, rows: int) -> None:
    context.progress.advance(rows)
    attempt.beat(rows=rows)


def _manifest(store: Store, counts: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What an export says of itself; no path and no time, so that two exports of the same store are the same to the byte."""
    of_store = {key: store.manifest.get(key) for key in ("label_names", "task", "max_length", "packing", "tokenizer")}
    return {"format": inputs["format"], "splits": counts, **of_store, "inputs": inputs}


def _maker(context: Context, kind: str) -> list[list[str]]:
    """Name, version and hash of the plugin that offers the exporter; none for a built-in."""
    owner = context.plugins.registry("exporter").owner(kind)
    return [
        [info.name, info.version, info.file_hash] for info in context.plugins.describe() if info.name == owner and info.origin != "built-in"
    ]


def _decoder(context: Context, store: Store, kind: str, *, texts: bool) -> Lossless | None:
    """Raises `StoreError` when the tokenizer is not that of the data."""
    path = context.settings.tokenizer.path
    if path is None:
        return None
    if not texts:
        context.note(f"{kind} holds no text: the tokenizer {path} is not used")
        return None
    from ftcli.core.tokenizer.lossless import Lossless
    from ftcli.core.training.gate import check_tokenizer  # imports torch

    tokenizer = context.plugins.load_tokenizer(context.settings)
    check_tokenizer(store, tokenizer, path)
    return Lossless(tokenizer)
