"""The receipt of a published directory: what a later run compares to know, in a fraction of a second, that it would make the same again.

Settling a fingerprint loads the tokenizer, and with it transformers and torch: 2 to 3 s. A receipt is made of what *decides* the
fingerprint and is cheap to get. Equal receipts mean equal fingerprints, because each of the fingerprint's inputs is a function of these:

    settings    every field of the sections that tokenizing reads, and train.mode, except those listed in `HARMLESS`: a new field counts
    sources     format by name, split, size and content hash of every file, in order. The kind of the label column and the format by
                content follow from content and code
    tokenizer   names and bytes of all files of the folder. A file above `WHOLE_BYTES` (weights) counts by its stamp, as if touching
                it changed it. There is no receipt where a tokenizer comes from elsewhere: a hub id, a plugin, code of its own
    day         what the chat template writes where it asks for today's date; not there where it does not, which the tokenizer's files decide
    plugins     name, version and hash of other plugins that can change data. There is no receipt with one that loads tokenizers or
                reads sources: what it reads cannot be known
    code        the source of ftcli itself, and the versions of the libraries that turn files into ids or rows

So a receipt that differs means nothing: the fingerprint is then settled in full. One that is equal stands for the fingerprint.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any

import ftcli
from ftcli.context import Context
from ftcli.core.files.cached_document import forget, kept
from ftcli.core.files.manifest import check_files, fingerprint, hash_file, read_manifest, unseal
from ftcli.core.files.stamps import Hashed, SourceHashes, Stamp
from ftcli.core.files.streams import bare_suffix
from ftcli.core.publishing.inputs import FORMAT_VERSION
from ftcli.core.publishing.output_location import leftovers
from ftcli.core.reading.find import Found
from ftcli.core.reading.read import find_sources, hash_sources
from ftcli.errors import FtcliError
from ftcli.pluginmanager import Plugins
from ftcli.records import to_json
from ftcli.settings import Settings, template_day
from ftcli.versions import version

HARMLESS = frozenset(
    {
        "dataset.sources",  # by content
        "dataset.output_dir",
        "dataset.num_proc",
        "dataset.batch_size",
        "dataset.writer_batch_size",
        "dataset.memory_mode",
        "tokenizer.path",  # by content
        "tokenizer.template_date",  # by the day, where the chat template asks for one
        "tokenizer.engine",
        "tokenizer.audit",
    }
)
"""Settings of the sections below that never change an output byte, whatever their value."""
SECTIONS = ("dataset", "tokenizer", "packing")
LIBRARIES = ("transformers", "tokenizers", "sentencepiece", "tiktoken", "pyarrow")
WHOLE_BYTES = 1 << 26
MOST = 200
"""Renewed receipts that are kept."""
MARKS = ("tokenizer.json", "tokenizer_config.json", "config.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
"""Files of which a folder with a tokenizer has one. The files of another, such as / or a home, are not read: that took minutes."""
DECIDES = frozenset({"load_tokenizer", "register_sources"})
CHANGES = DECIDES | {"register_packers", "register_tasks"}
"""Hooks through which a plugin can change data."""


def still_there(context: Context, hashes: SourceHashes) -> dict[str, Any] | None:
    """The manifest of the output directory when it is complete and this run would make the same again; None when that is not certain.

    Whatever is wrong (a missing source, damaged data) is left to the full way to say, and what a crash left behind to clear away.
    """
    output = context.settings.dataset.output_dir
    with suppress(FtcliError, OSError):
        manifest = None if output is None else read_manifest(output)
        if output is None or manifest is None or leftovers(output) or not makes_the_same(context, hashes, manifest):
            return None
        check_files(output, manifest)
        return manifest
    return None


def makes_the_same(context: Context, hashes: SourceHashes, manifest: Mapping[str, Any]) -> bool:
    """Whether it is certain that this run would make what a manifest describes.

    Raises:
        FtcliError, OSError: a source is missing or cannot be read.
    """
    return any(_makes_the_same(context, hashes, receipt) for receipt in (manifest.get("receipt"), _renewed(context, manifest)) if receipt)


def renew(context: Context, manifest: Mapping[str, Any], receipt: Mapping[str, str] | None) -> None:
    """Keep the receipt of a run that settled on a manifest's fingerprint though its receipt is another: after an update of ftcli each run would settle
    it in full again (measured: 6.6 s of conversations, 0.7 s so)."""
    if receipt is not None and receipt != manifest.get("receipt"):
        kept(_renewal(context, manifest), lambda: {"receipt": dict(receipt)}, lambda found: found.get("receipt") == receipt)
        forget(context.cache_dir, "receipt-*.json", MOST)


def _renewal(context: Context, manifest: Mapping[str, Any]) -> Path:
    return context.cache_dir / f"receipt-{manifest['fingerprint']}.json"


def _renewed(context: Context, manifest: Mapping[str, Any]) -> Mapping[str, str] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return dict(unseal(_renewal(context, manifest).read_bytes())["receipt"])
    return None


def _makes_the_same(context: Context, hashes: SourceHashes, receipt: Mapping[str, str]) -> bool:
    known = dict(receipt)
    sources = known.pop("sources", None)
    day, asked = known.pop("day", None), context.settings.tokenizer.template_date
    if (asked or (day and template_day(context.settings))) != day or _without_sources(context) != known:
        return False
    _, found = find_sources(context.settings, context.plugins.registry("source"), context.progress)
    return bool(_sources(found, hash_sources(found, hashes, context.progress)) == sources)


def make_receipt(context: Context, found: Sequence[Found], hashed: Sequence[Hashed], day: str | None = None) -> dict[str, str] | None:
    """The receipt of this run; None where none is possible.

    Args:
        found, hashed: the sources in order, with their content hashes.
        day: what the chat template writes where it asks for today's date.
    """
    parts = _without_sources(context)
    return None if parts is None else {**parts, **({"day": day} if day else {}), "sources": _sources(found, hashed)}


def tokenizer_key(context: Context) -> str | None:
    """What decides everything about the tokenizer of this run, as one hash; None where that cannot be known without loading it."""
    parts = _without_sources(context)
    return None if parts is None else fingerprint({name: part for name, part in parts.items() if name != "settings"})


def changing_plugins(plugins: Plugins) -> list[list[str]]:
    """Name, version and file hash of every plugin that is not built in and can change data."""
    return [
        [info.name, info.version, info.file_hash] for info in plugins.describe() if info.origin != "built-in" and CHANGES & set(info.hooks)
    ]


def _without_sources(context: Context) -> dict[str, str] | None:
    outside = [info for info in context.plugins.describe() if info.origin != "built-in"]
    tokenizer = _tokenizer(context.settings)
    if tokenizer is None or any(DECIDES & set(info.hooks) for info in outside):
        return None
    return {
        "settings": fingerprint(_settings(context.settings)),
        "tokenizer": fingerprint(tokenizer),
        "plugins": fingerprint({"plugins": changing_plugins(context.plugins)}),
        "code": fingerprint({"format": FORMAT_VERSION, "files": _code(_packages(context.plugins)), "libraries": _libraries()}),
    }


def _settings(settings: Settings) -> Mapping[str, Any]:
    fields = {
        f"{section}.{name}": value
        for section in SECTIONS
        for name, value in getattr(settings, section)
        if f"{section}.{name}" not in HARMLESS
    }
    return {**to_json(fields), "train.mode": settings.train.mode}


def _sources(found: Sequence[Found], hashed: Sequence[Hashed]) -> str:
    files = [[kind_of(file.format, file.path), file.split, one.stamp.size, one.xxh3] for file, one in zip(found, hashed, strict=True)]
    return fingerprint({"sources": files})


def kind_of(name: str, path: str) -> str:
    """The format, and of tables what their delimiter is told by."""
    return "tsv" if name == "csv" and bare_suffix(path) != ".csv" else name


def _tokenizer(settings: Settings) -> Mapping[str, Any] | None:
    """Name → content hash of every file of the folder; None where the tokenizer is not all in one, or a file cannot be read: it may not need that one."""
    folder = Path(settings.tokenizer.path or "")
    files: dict[str, Any] = {}
    try:
        if not settings.tokenizer.path or settings.tokenizer.trust_remote_code or not any((folder / name).is_file() for name in MARKS):
            return None
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                stamp = Stamp.of(str(path))
                files[str(path.relative_to(folder))] = hash_file(path) if stamp.size <= WHOLE_BYTES else stamp
    except OSError:
        return None
    return files


def _packages(plugins: Plugins) -> tuple[Path, ...]:
    """The folders with the source of ftcli and of its built-in plugins, which an editable install keeps elsewhere."""
    built_in = {info.name for info in plugins.describe() if info.origin == "built-in"}
    modules = [ftcli, *(plugin for name, plugin in plugins.objects().items() if name in built_in and isinstance(plugin, ModuleType))]
    return tuple(sorted({Path(module.__file__).parent for module in modules if module.__file__}))


@cache
def _code(folders: tuple[Path, ...]) -> dict[str, str]:
    return {
        f"{number}/{path.relative_to(folder)}": hash_file(path) for number, folder in enumerate(folders) for path in folder.rglob("*.py")
    }


@cache
def _libraries() -> dict[str, str]:
    found = {"python": platform.python_version(), "ftcli": ftcli.__version__}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found
