"""Tokenizers as users make and edit them, each with a feature that some engine gets wrong, and texts mutated around these features."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from engine_doubles import TEXTS, byte_level, saved
from ftcli.core.engines.adversarial import ODD, SPACES, WORDS

KOREAN = [
    "한국어 문장을 작은 토큰으로 나눈다",
    "띄어쓰기가 중요하다",
    "영화가 정말 재미있었어요 ㅋㅋㅋ",
    "배송이 아직 도착하지 않았습니다",
] * 10
SPECIAL = ["<unk>", "<pad>", "<s>", "</s>"]
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UNUSUAL = r"\p{Hangul}{1,3}|[[:alpha:]]+(?=\d)|\d(?=(?:\d{3})+(?!\d))|[^\s\w]{2}|\w+?\b|\s"
ADDED = (
    AddedToken("<left>", lstrip=True),
    AddedToken("<right>", rstrip=True),
    AddedToken("<both>", lstrip=True, rstrip=True, special=True),
    AddedToken("<Normal>", normalized=True),
    AddedToken("word", single_word=True, normalized=False),
    AddedToken("Straße", single_word=True, normalized=True),
    AddedToken("<|a"),
    AddedToken("<|a|>", special=True),
    AddedToken("<|a|><|b|>", special=True),
    AddedToken("  ", normalized=False),
    AddedToken("\n\n\n", normalized=False),
    AddedToken("\0", normalized=False),
    AddedToken("👨‍👩‍👧‍👦", normalized=False),
    AddedToken("한국", normalized=True),
    AddedToken("e\u0301", normalized=False),
)
"""Every flag; tokens that begin or hold others; tokens of white space, NUL, emoji, Korean and a decomposed letter."""


def made(
    folder: Path,
    model: Any,
    trainer: Any,
    *,
    normalizer: Any = None,
    pre: Any = None,
    post: Any = None,
    texts: Sequence[str] = TEXTS,
    added: Sequence[AddedToken] = (),
    changes: dict[str, Any] | None = None,
) -> Any:
    """A trained tokenizer, saved as a folder; `changes` are written into its tokenizer.json."""
    backend = Tokenizer(model)
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre is not None:
        backend.pre_tokenizer = pre
    backend.train_from_iterator(texts, trainer)
    if post is not None:
        backend.post_processor = post
    backend.add_tokens(list(added))
    return saved(backend, folder, {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}, **(changes or {}))


def bpe(folder: Path, *, size: int = 600, unk: str | None = "<unk>", model: dict[str, Any] | None = None, **options: Any) -> Any:
    """BPE over characters."""
    options.setdefault("pre", pre_tokenizers.Whitespace())
    model = model or {}
    joins = {name: model[name] for name in ("continuing_subword_prefix", "end_of_word_suffix") if name in model}
    special = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))] if model.get("byte_fallback") else SPECIAL
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False, **joins)
    return made(folder, models.BPE(unk_token=unk, **model), trainer, **options)


def byte_bpe(folder: Path, *, split: str | None = None, normalizer: Any = None, prefix_space: bool = False, **options: Any) -> Any:
    """BPE over bytes; `split` is a regular expression of its own in place of GPT-2's."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    pre: Any = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=split is None)
    if split is not None:
        pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), pre])
    return made(folder, models.BPE(), trainer, normalizer=normalizer, pre=options.pop("pre", pre), **options)


def word_piece(folder: Path, *, model: dict[str, Any] | None = None, normalizer: Any = None, **options: Any) -> Any:
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False)
    options.setdefault("pre", pre_tokenizers.BertPreTokenizer())
    model = {"unk_token": "<unk>", **(model or {})}
    return made(folder, models.WordPiece(**model), trainer, normalizer=normalizer or normalizers.BertNormalizer(), **options)


def unigram(folder: Path, **options: Any) -> Any:
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    return made(folder, models.Unigram(), trainer, **{"pre": pre_tokenizers.Metaspace(), **options})


def template(single: str) -> Any:
    return processors.TemplateProcessing(single=single, special_tokens=[(token, number) for number, token in enumerate(SPECIAL)])


def word_level(folder: Path) -> Any:
    trainer = trainers.WordLevelTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    return made(folder, models.WordLevel(unk_token="<unk>"), trainer, pre=pre_tokenizers.Whitespace())


TRUNCATION = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
PADDING = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0, "pad_token": "<pad>"}
N, P = normalizers, pre_tokenizers

ALONE = {
    "lstrip": ADDED[0],
    "rstrip": ADDED[1],
    "both sides stripped": ADDED[2],
    "normalized": ADDED[3],
    "single word": ADDED[4],
    "two spaces": ADDED[9],
    "NUL": ADDED[11],
    "emoji": ADDED[12],
    "Korean": ADDED[13],
}
VARIANTS: dict[str, Callable[[Path], Any]] = {
    "byte-level, added tokens of every flag": partial(byte_bpe, added=ADDED),
    "byte-level with NFC, added tokens of every flag": partial(byte_bpe, added=ADDED, normalizer=N.NFC()),
    "byte-level with a prefix space": partial(byte_bpe, prefix_space=True),
    "byte-level with a prefix space and added tokens": partial(byte_bpe, prefix_space=True, added=ADDED),
    "byte-level, offsets trimmed": partial(byte_bpe, post=processors.ByteLevel(trim_offsets=True)),
    "byte-level, NFKC and single digits": partial(
        byte_bpe, normalizer=N.NFKC(), pre=P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])
    ),
    "byte-level, o200k": partial(byte_bpe, split=O200K),
    "byte-level, an unusual regular expression": partial(byte_bpe, split=UNUSUAL),
    "byte-level, ignored merges": partial(byte_bpe, changes={"model.ignore_merges": True}),
    "byte-level, no regular expression": partial(byte_bpe, pre=P.ByteLevel(add_prefix_space=False, use_regex=False)),
    "byte-level, lower case, stripped and replaced": partial(
        byte_bpe, normalizer=N.Sequence([N.Strip(), N.Replace("ab", "Xy"), N.Replace(Regex(r"\s{2,}"), " "), N.Lowercase()])
    ),
    "byte-level, NFD without accents": partial(byte_bpe, normalizer=N.Sequence([N.NFD(), N.StripAccents()])),
    "byte-level, several special tokens around": partial(byte_bpe, post=template("<s> <s> $A </s> <pad>")),
    "byte-level, truncation and padding stored": partial(byte_bpe, changes={"truncation": TRUNCATION, "padding": PADDING}),
    "byte-level, dropout": partial(byte_level, **{"model.dropout": 0.5}),
    "RoBERTa, its post-processor": partial(byte_bpe, post=processors.RobertaProcessing(("</s>", 3), ("<s>", 2))),
    "RoBERTa without its post-processor": partial(byte_bpe, prefix_space=True, post=None),
    "BPE, Whitespace": bpe,
    "BPE, Whitespace, added tokens of every flag": partial(bpe, added=ADDED),
    "BPE, unknown dropped": partial(bpe, unk=None),
    "BPE, unknown fused": partial(bpe, model={"fuse_unk": True}),
    "BPE, unknown not fused": partial(bpe, model={"fuse_unk": False}),
    "BPE, Metaspace and byte fallback": partial(bpe, size=900, pre=P.Metaspace(), model={"byte_fallback": True, "fuse_unk": True}),
    "BPE, Metaspace first and byte fallback": partial(
        bpe, size=900, pre=P.Metaspace(prepend_scheme="first"), model={"byte_fallback": True}, added=ADDED
    ),
    "BPE, Llama's normaliser": partial(
        bpe, size=900, pre=P.Sequence([]), normalizer=N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), model={"byte_fallback": True}
    ),
    "BPE, prefix of continuing subwords": partial(bpe, model={"continuing_subword_prefix": "##"}),
    "BPE, suffix of words": partial(bpe, normalizer=N.Lowercase(), model={"end_of_word_suffix": "</w>"}),
    "BPE, punctuation and scripts": partial(bpe, pre=P.Sequence([P.UnicodeScripts(), P.Punctuation(), P.WhitespaceSplit()])),
    "WordPiece, Korean": partial(word_piece, texts=KOREAN),
    "WordPiece, cased, added tokens of every flag": partial(word_piece, normalizer=N.BertNormalizer(lowercase=False), added=ADDED),
    "WordPiece, accents kept, [CLS] and [SEP]": partial(
        word_piece, normalizer=N.BertNormalizer(strip_accents=False), post=template("<s> $A </s>")
    ),
    "WordPiece, Chinese not split": partial(word_piece, normalizer=N.BertNormalizer(handle_chinese_chars=False, clean_text=False)),
    "WordPiece, short words": partial(word_piece, model={"max_input_chars_per_word": 5}),
    "Unigram": unigram,
    "Unigram, Nmt and NFKC": partial(unigram, normalizer=N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")])),
    "Unigram, added tokens of every flag": partial(unigram, added=ADDED),
    "Unigram, white space split and T5's end": partial(
        unigram, pre=P.Sequence([P.WhitespaceSplit(), P.Metaspace()]), post=template("$A </s>")
    ),
    "WordLevel": word_level,
    **{
        f"byte-level with NFC, one added token: {name}": partial(byte_bpe, normalizer=N.NFC(), added=[token])
        for name, token in ALONE.items()
    },
    **{f"Unigram with Nmt, one added token: {name}": partial(unigram, normalizer=N.Nmt(), added=[token]) for name, token in ALONE.items()},
}

MARKS = "\u0300\u0301\u0323\u0338\u05b4\u064b\u093c\u0e38\u3099\u1ab0\u20dd\U0001d165"
BIDI = "\u200e\u200f\u202a\u202e\u2066\u2069\u061c"
BREAKS = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u00a0\u1680\u180e\u2000\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"


def mutated(seed: int, count: int, tokens: Sequence[str], top: int = 0x110000) -> Iterator[str]:
    """Random texts: words, white space, odd characters and the given tokens, joined, cut, doubled, recased and decomposed.

    Args:
        top: other characters are drawn from below this code point.
    """
    rng = random.Random(seed)
    pieces = (*WORDS, *TEXTS[:8], *SPACES, *SPACES, *ODD, *MARKS, *BIDI, *BREAKS, " ", " ", "  ", "\n\n\n")
    for _ in range(count):
        parts = [
            rng.choice(tokens) if tokens and rng.random() < 0.3 else _anything(rng, top) if rng.random() < 0.1 else rng.choice(pieces)
            for _ in range(rng.randint(1, 16))
        ]
        text = "".join(parts)
        for _ in range(rng.randint(0, 3)):
            text = rng.choice(CHANGES)(rng, text)
        if rng.random() < 0.2:
            place = rng.randrange(len(text) + 1)
            text = text[:place] + _anything(rng, top) + text[place:]
        yield text[:2_000]


def _anything(rng: random.Random, top: int) -> str:
    """Any character, of the first planes more often."""
    code = rng.randrange(min(top, rng.choice((0x80, 0x250, 0x600, 0x1200, 0x3400, 0x10000, 0x20000, 0x110000))))
    return "?" if 0xD800 <= code < 0xE000 else chr(code)


def _cut(rng: random.Random, text: str) -> str:
    start = rng.randrange(len(text) + 1)
    return text[start : start + rng.randint(0, len(text))]


def _swapped(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + text[place + 1 : place + 2] + text[place : place + 1] + text[place + 2 :]


CHANGES: tuple[Callable[[random.Random, str], str], ...] = (
    _cut,
    _swapped,
    lambda rng, text: text.upper(),
    lambda rng, text: text.lower(),
    lambda rng, text: text.swapcase(),
    lambda rng, text: unicodedata.normalize(rng.choice(("NFC", "NFD", "NFKC", "NFKD")), text),
    lambda rng, text: text * rng.randint(2, 4),
    lambda rng, text: text.replace(" ", rng.choice(("", "  ", "\t", "\u3000"))),
    lambda rng, text: text[::-1],
)
