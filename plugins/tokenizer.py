"""The built-in tokenizer loader: `AutoTokenizer` on a folder or hub id, never with remote code unless the command line says so."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

from ftcli import hookimpl
from ftcli.core import hub
from ftcli.core.models.adapter_base import only_here
from ftcli.core.models.similar_paths import meant
from ftcli.errors import EngineError, MissingExtraError, TokenizerError, UsageError
from ftcli.settings import Settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
SUFFIXES = frozenset({".json", ".txt", ".jinja", ".model"})
READ = frozenset(
    {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "config.json"}
)
"""Where there is a tokenizer.json; transformers leaves the other files alone then."""
MOST_BYTES = 256 << 20
"""Of one file. The largest vocabularies (262,144 tokens) take 33 MB."""
PACKAGES = {"sentencepiece": "sentencepiece", "tiktoken": "tiktoken", "protobuf": "google.protobuf"}
"""What transformers reads other forms with: package → module."""
KINDS = {("vocab.txt",): "BertTokenizer", ("vocab.json", "merges.txt"): "GPT2Tokenizer"}
"""Files that are enough for a class of transformers, where nothing in the folder names one."""


@hookimpl(trylast=True)
def load_tokenizer(settings: Settings) -> PreTrainedTokenizerBase:
    path = settings.tokenizer.path
    if path is None:
        raise UsageError(
            "no tokenizer: --tokenizer-path is missing", "Give a tokenizer folder or hub id, or make one: ftcli train-tokenizer"
        )
    _check_folder(path)
    if _of_sentencepiece_alone(Path(path)) and not _there("sentencepiece"):  # transformers says so in four lines of its own first
        raise _lacking(path, ["sentencepiece"])
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, revision=settings.tokenizer.revision, trust_remote_code=settings.tokenizer.trust_remote_code
        )
    except Exception as error:
        raise _explained(path, error) from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise TokenizerError(
            f"the tokenizer in {path} has no vocabulary: transformers made an empty one",
            "The folder lacks tokenizer.json (or vocab and merges files). Copy them from where the model comes from.",
        )
    return tokenizer


def _check_folder(path: str) -> None:
    folder = Path(path)
    if folder.is_dir():
        if not any((folder / name).is_file() for name in FILES):
            there = ", ".join(sorted(entry.name for entry in folder.iterdir())[:5]) or "nothing"
            raise TokenizerError(
                f"{path} holds no tokenizer: there is {there}",
                f"A tokenizer folder has one of {', '.join(FILES)}; or make one: ftcli train-tokenizer",
            )
        for file in sorted(folder.iterdir()):
            if file.suffix in SUFFIXES and not file.is_dir():
                _check_file(file)
        _refuse_pointers(folder, READ if (folder / "tokenizer.json").is_file() else None)
    elif folder.exists():
        raise TokenizerError(f"{path} is a file", "Give the folder that holds it.")
    elif (near := meant(path, FILES)) or only_here(path):
        hint = f"Did you mean --tokenizer-path {near}?" if near else "Check --tokenizer-path; a hub id looks like Qwen/Qwen3-0.6B."
        raise TokenizerError(f"the tokenizer folder {path} does not exist", hint)


def _check_file(file: Path) -> None:
    """A link that leads nowhere, a FIFO or a device would hang or be passed over in silence; a huge file takes all memory."""
    if not file.is_file():
        raise TokenizerError(f"{file} is not a readable file", "It is a broken link, a device or a FIFO: copy the real file there.")
    if file.stat().st_size > MOST_BYTES:
        raise TokenizerError(f"{file} has {file.stat().st_size:,} bytes, too large for a tokenizer file", "Copy it again from its source.")


def _refuse_pointers(folder: Path, names: frozenset[str] | None = None) -> None:
    """Of the files `names`, or of all: a vocab.txt that is a pointer makes a tokenizer of three words, without a sound."""
    from ftcli.core.files.pointers import refuse_pointer

    for file in sorted(folder.iterdir()):
        if file.suffix in SUFFIXES and (names is None or file.name in names):
            refuse_pointer(file, TokenizerError)


def _explained(path: str, error: Exception) -> TokenizerError | MissingExtraError:
    text = " ".join(str(error).split())
    wanted = [package for package, module in PACKAGES.items() if package in text.lower() and not _there(module)]
    if wanted == ["tiktoken"] and not _there("sentencepiece") and _of_sentencepiece(Path(path)):
        wanted = ["sentencepiece"]  # without it transformers tries tiktoken, which would not help, and asks for that
    if "trust_remote_code" in text:
        return TokenizerError(
            f"the tokenizer {path} brings its own Python code",
            "Read it, then add --trust-remote-code on the command line if you trust it.",
        )
    if "backend tokenizer" in text and (kind := _kind(Path(path))):  # transformers asks for sentencepiece then, which would not help
        return TokenizerError(
            f"the tokenizer {path} does not say which class of transformers it is: it has {' and '.join(kind[0])}, and no tokenizer.json",
            f'Put "tokenizer_class": "{kind[1]}" into its tokenizer_config.json, or the class of the model that it belongs to.',
        )
    if wanted:
        return _lacking(path, wanted)
    if not Path(path).is_dir():
        return TokenizerError(
            f"the tokenizer {path} is neither a local folder nor available on the hub: {text[:200]}",
            hub.advice(),
        )
    _refuse_pointers(Path(path))
    if wrong := _wrong_kind(Path(path) / "tokenizer.json"):
        return TokenizerError(
            f"{path}/tokenizer.json is {wrong}, not a tokenizer of Hugging Face's tokenizers",
            "Give the folder of the tokenizer that the model was trained with; or make one: ftcli train-tokenizer",
        )
    settings = Path(path) / "tokenizer_config.json"
    if _wrong_settings(settings):
        return TokenizerError(
            f"the tokenizer {path} cannot be loaded: {settings.name} is damaged: {_wrong_settings(settings)}",
            "Copy that file again from where the tokenizer comes from.",
        )
    hint = "A file in the folder is damaged or missing."
    if type(error).__name__.startswith("StrictDataclass"):  # of a kind of model, or layer, that came later or is somebody's own
        hint = "This transformers refuses the folder's config.json: update transformers, or give a folder with the tokenizer's files alone."
    elif _reads(Path(path) / "tokenizer.json"):
        hint = (
            "tokenizer.json itself is readable, but the class that transformers uses for this model cannot be built from it."
            ' Put "tokenizer_class": "PreTrainedTokenizerFast" into tokenizer_config.json: then it is read as is.'
        )
    return TokenizerError(f"the tokenizer {path} cannot be loaded: {type(error).__name__}: {text[:200]}", hint)


def _lacking(path: str, wanted: list[str]) -> MissingExtraError:
    return MissingExtraError(
        f"the tokenizer {path} cannot be loaded without {' or '.join(wanted)}",
        f"Run: pip install {' '.join(PACKAGES)} - or use a folder with a tokenizer.json.",
    )


def _of_sentencepiece_alone(folder: Path) -> bool:
    """Whether there is no other form of the vocabulary, and no code that might read one."""
    others = any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json", "vocab.txt")) or any(folder.glob("*.py"))
    return not others and _of_sentencepiece(folder)


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package that it would be in
        return False


def _of_sentencepiece(folder: Path) -> bool:
    """Whether a vocabulary is a protobuf message, which begins with its first field; tiktoken's are lines of base64."""
    for file in folder.glob("*.model"):
        with file.open("rb") as opened:
            if opened.read(1) == b"\n":
                return True
    return False


def _kind(folder: Path) -> tuple[tuple[str, ...], str] | None:
    """The files of a vocabulary, with the class that reads them, where the folder has no other form."""
    if any(folder.glob("*.model")) or (folder / "tokenizer.json").is_file():
        return None
    return next(((files, name) for files, name in KINDS.items() if all((folder / file).is_file() for file in files)), None)


def _reads(file: Path) -> bool:
    """Whether the backend takes the file as it is."""
    from tokenizers import Tokenizer

    from ftcli.core.engines.guard import guarded

    try:
        with guarded("tokenizer.json"):
            Tokenizer.from_file(str(file))
    except EngineError:
        return False
    return True


def _wrong_settings(file: Path) -> str:
    """What makes a tokenizer_config.json useless; nothing where it may be of use."""
    try:
        content = json.loads(file.read_bytes()) if file.is_file() else {}
    except (ValueError, RecursionError) as error:
        return f"no JSON ({error})"
    if not isinstance(content, dict):
        return f"a JSON {type(content).__name__} and no object"
    if not isinstance(kind := content.get("tokenizer_class"), (str, NoneType)):
        return f"tokenizer_class is {kind!r} and no name"
    return ""


def _wrong_kind(file: Path) -> str:
    """What a tokenizer.json is that holds no tokenizer; nothing where it may hold one."""
    try:
        content = json.loads(file.read_bytes())
        if isinstance(content, str):  # Keras writes JSON, and programs that save it write it as JSON again
            content = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return f"a JSON {'list' if isinstance(content, list) else 'value'}"
    if "model" in content:
        return ""
    if {"class_name", "config"} <= content.keys():
        return "a tokenizer of Keras"
    return f"a JSON object with {', '.join(sorted(content)[:5]) or 'nothing in it'}"
