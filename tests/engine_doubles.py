"""Small tokenizers of every kind, and engines that are right, wrong or broken on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from ftcli.plugins.engines import register_engines
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ftcli.contracts import Encoded, Encoder
from ftcli.core.engines.adversarial import WORDS
from ftcli.core.engines.reference import load_reference, to_encoded
from ftcli.pluginmanager import Plugins
from ftcli.records import PluginInfo
from ftcli.registry import Registry

TEXTS = [
    "The quick brown fox jumps over the lazy dog. It's 2024, isn't it?\n",
    "한국어 문장을 작은 토큰으로 나눈다. 띄어쓰기가 중요하다!",
    "def add(a, b):\n    return a + b  # sum\n",
    "naïve café, déjà vu; 日本語 and русский",
    *WORDS,
] * 4

LINES = ["Hello, world!", "", "  it's 2024 \n\n", "한국어 문장", "Ω and ω", "a<eos>b [SEP] </s>", "가" * 50, "é e\u0301 😀👍🏽\0"]


def byte_level(folder: Path, **changes: Any) -> Any:
    """Byte-level BPE as GPT-2's, with three special tokens and no post-processor of note; `changes` are written into tokenizer.json."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=500, special_tokens=["<pad>", "<eos>", "<bos>"], initial_alphabet=alphabet, show_progress=False),
    )
    return saved(backend, folder, {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}, **changes)


def word_piece(folder: Path) -> Any:
    """WordPiece as BERT's: [CLS] text [SEP]."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    backend.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False))
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return saved(backend, folder, roles)


def unigram(folder: Path) -> Any:
    """Unigram as T5's: text </s>."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    backend.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>", show_progress=False)
    )
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return saved(backend, folder, {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"})


def saved(backend: Tokenizer, folder: Path, roles: dict[str, str], **changes: Any) -> Any:
    """The backend as a Hugging Face folder, with `changes` in its tokenizer.json ("model.dropout": 0.1), loaded again."""
    PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=512, **roles).save_pretrained(str(folder))
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        *parents, name = key.split(".")
        target = document
        for parent in parents:
            target = target[parent]
        target[name] = value
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return AutoTokenizer.from_pretrained(str(folder))


Twist = Callable[[str, list[int]], list[int]]
"""What a double does to the ids of a text; it may raise."""


class Panic(BaseException):
    """What a Rust panic looks like to Python."""


class DoubleEncoder:
    """The reference, twisted."""

    def __init__(self, encoder: Encoder, twist: Twist) -> None:
        self._encoder = encoder
        self._twist = twist

    def encode(self, texts: pa.Array) -> Encoded:
        encoded = self._encoder.encode(texts)
        ids, offsets = encoded.ids.tolist(), encoded.offsets.tolist()
        return to_encoded([self._twist(text, ids[offsets[row] : offsets[row + 1]]) for row, text in enumerate(texts.to_pylist())])


def double(twist: Twist, name: str = "double", rank: int = 1, load: Callable[[], None] = lambda: None) -> type:
    """An engine class; `load` runs (and may raise) before it loads."""

    class Double:
        version = "1"

        def load(self, backend_json: str, folder: Path, threads: int) -> Encoder:
            load()
            return DoubleEncoder(load_reference(backend_json, folder, threads), twist)

    Double.name = name  # type: ignore[attr-defined]
    Double.rank = rank  # type: ignore[attr-defined]
    return Double


def right(text: str, ids: list[int]) -> list[int]:
    return ids


def wrong_on(characters: str) -> Twist:
    """Another last id in every text that holds one of the characters."""
    return lambda text, ids: [*ids[:-1], 0] if any(character in text for character in characters) else ids


class Offers:
    """What the engine needs of `Plugins`: the registry, with the built-in engines (unless left out) and others."""

    def __init__(self, *engines: type, built_in: bool = False) -> None:
        self._registry: Registry[object] = Registry("engine")
        register = self._registry.registrar("engines")
        register_engines(lambda name, factory: register(name, factory) if built_in or name == "hf" else None)
        for engine in engines:
            self._registry.registrar("test")(engine.name, engine)  # type: ignore[attr-defined]

    def registry(self, kind: str) -> Registry[object]:
        assert kind == "engine"
        return self._registry

    def outsider(self, kind: str, name: str) -> None:
        return None

    def describe(self) -> tuple[PluginInfo, ...]:
        return ()


def offers(*engines: type, built_in: bool = False) -> Plugins:
    return cast("Plugins", Offers(*engines, built_in=built_in))


def array(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


def rows_of(encoded: Encoded) -> list[list[int]]:
    ids, offsets = encoded.ids.tolist(), encoded.offsets.tolist()
    return [ids[start:stop] for start, stop in pairwise(offsets)]


def expected(tokenizer: Any, texts: list[str], **options: Any) -> list[list[int]]:
    return list(tokenizer(texts, verbose=False, **options)["input_ids"])
